//! A mapping of the region as a process sees it: words as atomics, payloads as raw pointers.
//!
//! It hands out no references to plain memory, because the process on the other side may be writing it. Offsets come
//! from [`crate::layout`] and are checked against the mapping's length here, once more, so that a mistake in them is
//! a panic and not an access to other memory.

use std::fs::File;
use std::io;

use memmap2::{Advice, MmapOptions, MmapRaw};

use crate::guard::Watched;
use crate::sync::{AtomicU32, AtomicU64};

/// A shared mapping from offset 0.
#[derive(Debug)]
pub(crate) struct Map {
    /// Dropped before what it watches: fields go in order.
    watched: Watched,
    raw: MmapRaw,
}

impl Map {
    /// Maps `length` bytes for reading and writing, and populates them; a forked child does not get them.
    pub(crate) fn writable(file: &File, length: usize) -> io::Result<Self> {
        let raw = MmapOptions::new().len(length).populate().map_raw(file)?;
        raw.advise(Advice::DontFork)?;
        Ok(Self { watched: Watched::new(raw.as_ptr(), raw.len()), raw })
    }

    /// Maps `length` bytes for reading; a forked child does not get them.
    pub(crate) fn readable(file: &File, length: usize) -> io::Result<Self> {
        let raw = MmapOptions::new().len(length).map_raw_read_only(file)?;
        raw.advise(Advice::DontFork)?;
        Ok(Self { watched: Watched::new(raw.as_ptr(), raw.len()), raw })
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
            rustix::mm::mprotect(
                start.cast(),
                length,
                rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE,
            )?;
        }
        Ok(())
    }

    /// Address of `length` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not inside the mapping.
    pub(crate) fn range(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(
            offset.checked_add(length).is_some_and(|end| end <= self.raw.len()),
            "bytes {offset}+{length} of a mapping of {}",
            self.raw.len()
        );
        // SAFETY: `offset` is within the one allocation that the mapping is (checked above).
        unsafe { self.raw.as_mut_ptr().add(offset) }
    }

    /// The 32-bit word at `offset`.
    ///
    /// # Panics
    /// If it is not inside the mapping, or not aligned.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "a 32-bit word at {offset}");
        let word = self.range(offset, 4).cast::<u32>();
        // SAFETY: inside the mapping and aligned (checked above; mappings start on a page), valid for as long as
        // `self` is borrowed, and only ever accessed atomically: nobody makes plain references into control pages.
        unsafe { AtomicU32::from_ptr(word) }
    }

    /// The 64-bit word at `offset`.
    ///
    /// # Panics
    /// If it is not inside the mapping, or not aligned.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "a 64-bit word at {offset}");
        let word = self.range(offset, 8).cast::<u64>();
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(word) }
    }
}
