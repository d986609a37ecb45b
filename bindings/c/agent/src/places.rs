//! The caller's memory, as core sees it: scratch, and the slot that is on offer. Core names offsets; here they become
//! addresses, and none outside of what the caller gave.

use core::ptr;

use sidecar_core::agent::{HEADROOM, Memory, Place};

/// Two places of the same size.
#[derive(Debug)]
pub(crate) struct Places {
    scratch: *mut u8,
    /// NULL: none is on offer.
    slot: *mut u8,
    bytes: usize,
}

impl Places {
    /// `scratch` has `bytes` bytes.
    pub(crate) const fn new(scratch: *mut u8, bytes: usize) -> Self {
        Self { scratch, slot: ptr::null_mut(), bytes }
    }

    /// Bytes of either place.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The slot on offer, or NULL.
    pub(crate) const fn slot(&self) -> *mut u8 {
        self.slot
    }

    /// A slot of [`Places::bytes`] bytes is on offer; NULL: none is.
    pub(crate) const fn offer(&mut self, slot: *mut u8) {
        self.slot = slot;
    }

    /// Payload of the slot on offer.
    pub(crate) const fn payload(&self) -> *mut u8 {
        self.slot.wrapping_add(HEADROOM as usize)
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Panics
    /// If they are not all in that place, or no slot is on offer: core names no such bytes.
    pub(crate) fn at(&self, place: Place, offset: u32, length: usize) -> *mut u8 {
        let start = match place {
            Place::Scratch => self.scratch,
            Place::Slot => self.slot,
        };
        let fits = (offset as usize).checked_add(length).is_some_and(|end| end <= self.bytes);
        assert!(fits && !start.is_null(), "{length} bytes at {offset} of {place:?}");
        start.wrapping_add(offset as usize)
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        let from = self.at(place, offset, into.len());
        // SAFETY: `at` has checked that the bytes are the caller's, who promised them to us until the agent is dropped
        // or gives the slot back; `into` is private memory of core's.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        let source = self.at(from, from_offset, length as usize);
        let target = self.at(to, to_offset, length as usize);
        // SAFETY: as in `peek`, for both ranges, which may overlap.
        unsafe { ptr::copy(source, target, length as usize) };
    }
}
