//! A mapping of the region as a process sees it: words as atomics, payloads as raw pointers.
//!
//! It hands out no references to plain memory, because the process on the other side may be writing it. Offsets come
//! from [`crate::layout`] and are checked against the mapping's length here, once more, so that a mistake in them is
//! a panic and not an access to other memory.
//!
//! In a model the words are loom's (`shadow`), and everything else is as it is.

#[cfg(sidecar_loom)]
mod shadow;

use core::ffi::c_void;
use std::fs::File;
use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags};

use crate::guard::Watched;
use crate::layout::PAGE;
use crate::sync::{AtomicU32, AtomicU64};

/// On x86-64, and on aarch64 with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// A shared mapping from offset 0. One that a huge page fits into starts where one can.
#[derive(Debug)]
pub(crate) struct Map {
    /// Dropped before what it watches: fields go in order.
    watched: Watched,
    start: *mut u8,
    length: usize,
    /// The addresses that it lies in, with what alignment cost before and behind it; unmaps it all.
    _range: MmapRaw,
    #[cfg(sidecar_loom)]
    words: std::sync::Arc<shadow::Words>,
}

// SAFETY: the pointer goes into the mapping that this owns, which is the same for all threads; whoever gets an address
// from here keeps to the rules of the region, not to a thread.
unsafe impl Send for Map {}
// SAFETY: as above.
unsafe impl Sync for Map {}

impl Map {
    /// Maps `length` bytes for reading and writing, and populates them; a forked child does not get them.
    pub(crate) fn writable(file: &File, length: usize) -> io::Result<Self> {
        Self::new(file, length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE)
    }

    /// Maps `length` bytes for reading; a forked child does not get them.
    pub(crate) fn readable(file: &File, length: usize) -> io::Result<Self> {
        Self::new(file, length, ProtFlags::READ, MapFlags::SHARED)
    }

    fn new(file: &File, length: usize, rights: ProtFlags, flags: MapFlags) -> io::Result<Self> {
        let align = if length >= HUGE_PAGE { HUGE_PAGE } else { PAGE };
        let reserved = length.checked_next_multiple_of(PAGE).and_then(|whole| whole.checked_add(align));
        let reserved = reserved.ok_or(io::ErrorKind::OutOfMemory)?;
        let range = MmapRaw::from(MmapOptions::new().len(reserved).map_anon()?);
        let all: *mut c_void = range.as_mut_ptr().cast();
        // SAFETY: the whole of a mapping that was just made, of which no references exist.
        unsafe { rustix::mm::mprotect(all, reserved, MprotectFlags::empty())? };
        let offset = range.as_ptr().addr().next_multiple_of(align) - range.as_ptr().addr();
        // SAFETY: below `align`, by which the range is longer than `length`.
        let start = unsafe { range.as_mut_ptr().add(offset) };
        // SAFETY: takes the place of a part of our own mapping, which nobody uses yet, and is unmapped with it.
        unsafe { rustix::mm::mmap(start.cast(), length, rights, flags | MapFlags::FIXED, file, 0)? };
        range.advise(Advice::DontFork)?;
        Ok(Self {
            watched: Watched::new(start, length),
            start,
            length,
            _range: range,
            #[cfg(sidecar_loom)]
            words: shadow::Words::of(file)?,
        })
    }

    /// The file was cut short, and this is zeroes now: see [`crate::guard`].
    pub(crate) fn is_lost(&self) -> bool {
        self.watched.is_lost()
    }

    /// Makes a page-aligned part of a [`Map::readable`] of a file opened for writing writable.
    pub(crate) fn allow_writing(&self, offset: usize, length: usize) -> io::Result<()> {
        let start = self.range(offset, length);
        // SAFETY: the range lies inside this mapping (checked above), which nobody else unmaps or maps over, and no
        // reference to its plain bytes exists anywhere; more rights invalidate none of the atomics handed out.
        unsafe {
            rustix::mm::mprotect(start.cast(), length, MprotectFlags::READ | MprotectFlags::WRITE)?;
        }
        Ok(())
    }

    /// Has the kernel put whole huge pages in place of small ones, as far as it can. Gives the bytes that lie in huge
    /// pages now. Changes nothing about the contents; slow, for the start.
    pub(crate) fn collapse(&self) -> io::Result<usize> {
        /// Since Linux 6.1, whatever the system's wish for shared memory is (madvise(2)).
        const MADV_COLLAPSE: libc::c_int = 25;
        let start = self.start.addr();
        let end = start + self.length;
        let mut collapsed = 0;
        let mut failed = None;
        let mut at = start.next_multiple_of(HUGE_PAGE);
        while at + HUGE_PAGE <= end {
            let chunk: *mut u8 = self.range(at - start, HUGE_PAGE);
            // SAFETY: the range lies inside this mapping (checked by `range`), and the advice keeps its contents.
            if unsafe { libc::madvise(chunk.cast(), HUGE_PAGE, MADV_COLLAPSE) } == 0 {
                collapsed += HUGE_PAGE;
            } else {
                failed = Some(io::Error::last_os_error());
            }
            at += HUGE_PAGE;
        }
        match failed {
            Some(error) if collapsed == 0 => Err(error),
            _ => Ok(collapsed),
        }
    }

    /// Address of `length` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the mapping.
    #[inline]
    pub(crate) fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.length),
            "bytes {offset}+{length} of a mapping of {}",
            self.length
        );
        // SAFETY: `offset` is within the one allocation that the mapping is (checked above).
        unsafe { self.start.add(offset) }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// If it is not inside the mapping, or not aligned.
    #[inline]
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a 32-bit word at {offset}");
        let word = self.range(offset, 4).cast::<u32>();
        // SAFETY: inside the mapping and aligned (checked above; mappings start on a page), valid for as long as
        // `self` is borrowed, and only ever accessed atomically: nobody makes plain references into control pages.
        #[cfg(not(sidecar_loom))]
        unsafe {
            AtomicU32::from_ptr(word)
        }
        // SAFETY: as above; no process stores into the words of a model's file.
        #[cfg(sidecar_loom)]
        self.words.narrow(offset, unsafe { word.read() })
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// If it is not inside the mapping, or not aligned.
    #[inline]
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a 64-bit word at {offset}");
        let word = self.range(offset, 8).cast::<u64>();
        // SAFETY: as in `word32`.
        #[cfg(not(sidecar_loom))]
        unsafe {
            AtomicU64::from_ptr(word)
        }
        // SAFETY: as in `word32`.
        #[cfg(sidecar_loom)]
        self.words.wide(offset, unsafe { word.read() })
    }
}
