//! The memory that bytes from the gateway are received into, as the agent sees it: private scratch, and the slot
//! that is on offer.
//!
//! A slot is shared with the worker, so it is touched through raw pointers alone, and what is parsed is copied out
//! first (`peek`). A worker that writes into a slot while it is being filled spoils its own observation, nothing
//! else.

use core::ptr;

use sidecar_core::agent::{HEADROOM, Memory, Place};

/// Private memory as large as a slot with its headroom: whatever was received there fits.
#[derive(Debug)]
pub(super) struct Scratch {
    bytes: Box<[u8]>,
}

impl Scratch {
    pub(super) fn new(slot_bytes: u32) -> Self {
        let length = (HEADROOM + slot_bytes) as usize;
        // Written once, so that its pages are there before the first frame and not in the middle of one.
        Self { bytes: vec![0xa5; length].into_boxed_slice() }
    }

    pub(super) fn base(&mut self) -> *mut u8 {
        self.bytes.as_mut_ptr()
    }
}

/// Both places at once; `slot` is null while none is on offer.
#[derive(Debug)]
pub(super) struct Places {
    pub(super) scratch: *mut u8,
    pub(super) slot: *mut u8,
    pub(super) length: usize,
}

impl Places {
    /// The address of `offset` in `place`, with `length` bytes behind it.
    ///
    /// # Panics
    /// When the range is not inside the place, or no slot is on offer: a bug in the agent, and the last fence
    /// before memory that is not ours.
    pub(super) fn at(&self, place: Place, offset: u32, length: u32) -> *mut u8 {
        let base = match place {
            Place::Scratch => self.scratch,
            Place::Slot => self.slot,
        };
        assert!(!base.is_null(), "no slot is on offer");
        let end = offset as usize + length as usize;
        assert!(end <= self.length, "{end} is past the end of {place:?} ({})", self.length);
        base.wrapping_add(offset as usize)
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        let length = u32::try_from(into.len()).expect("the agent peeks at headers, a few hundred bytes");
        let from = self.at(place, offset, length);
        // SAFETY: `at` checked that the range lies inside memory that is mapped for as long as the bridge lives;
        // `into` is private. A worker may be writing the slot at this moment: the copy then holds a mix of bytes,
        // which is parsed as untrusted input like everything that comes from the network.
        unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        let source = self.at(from, from_offset, length);
        let target = self.at(to, to_offset, length);
        // SAFETY: both ranges were checked by `at`; they may overlap, and `copy` allows it.
        unsafe { ptr::copy(source, target, length as usize) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(scratch: &mut Scratch, slot: &mut [u8]) -> Places {
        Places { scratch: scratch.base(), slot: slot.as_mut_ptr(), length: slot.len() }
    }

    #[test]
    fn bytes_move_between_places_and_within_one() {
        let mut scratch = Scratch::new(64);
        let mut slot = vec![0; HEADROOM as usize + 64];
        slot[10..14].copy_from_slice(b"abcd");
        let mut places = places(&mut scratch, &mut slot);
        places.relocate(Place::Slot, 10, Place::Scratch, 3, 4);
        places.relocate(Place::Scratch, 3, Place::Scratch, 5, 4);
        let mut seen = [0; 6];
        places.peek(Place::Scratch, 3, &mut seen);
        assert_eq!(&seen, b"ababcd");
    }

    #[test]
    #[should_panic(expected = "past the end")]
    fn a_range_past_the_end_is_never_touched() {
        let mut scratch = Scratch::new(64);
        let mut slot = vec![0; HEADROOM as usize + 64];
        places(&mut scratch, &mut slot).peek(Place::Slot, HEADROOM + 60, &mut [0; 5]);
    }
}
