//! The two places for received bytes, as plain memory. In the sidecar the slot is shared with the worker.

use sidecar_core::agent::{HEADROOM, Memory, Place};

/// See the module.
pub(crate) struct Places {
    scratch: Vec<u8>,
    slot: Vec<u8>,
}

impl Places {
    pub(crate) fn new(slot_bytes: u32) -> Self {
        let bytes = (HEADROOM + slot_bytes) as usize;
        Self { scratch: vec![0; bytes], slot: vec![0; bytes] }
    }

    /// Where to receive into. The agent never names bytes outside of a place.
    pub(crate) fn at(&mut self, place: Place, offset: u32, length: u32) -> &mut [u8] {
        &mut self.of(place)[offset as usize..][..length as usize]
    }

    const fn of(&mut self, place: Place) -> &mut Vec<u8> {
        match place {
            Place::Scratch => &mut self.scratch,
            Place::Slot => &mut self.slot,
        }
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        let from = match place {
            Place::Scratch => &self.scratch,
            Place::Slot => &self.slot,
        };
        into.copy_from_slice(&from[offset as usize..][..into.len()]);
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        let (from_offset, to_offset, length) = (from_offset as usize, to_offset as usize, length as usize);
        match (from, to) {
            _ if from == to => self.of(to).copy_within(from_offset..from_offset + length, to_offset),
            (Place::Scratch, _) => {
                self.slot[to_offset..][..length].copy_from_slice(&self.scratch[from_offset..][..length]);
            }
            (Place::Slot, _) => {
                self.scratch[to_offset..][..length].copy_from_slice(&self.slot[from_offset..][..length]);
            }
        }
    }
}
