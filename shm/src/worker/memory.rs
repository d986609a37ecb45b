//! The observation slots as one range of memory that stays mapped while somebody needs it: what is page-locked for a
//! device has to be given free before it is unmapped, also when the worker has moved on to another region.

use std::sync::Arc;

use sidecar_core::agent::HEADROOM;

use crate::layout::Layout;
use crate::map::Map;

/// All observation slots of a region, mapped for as long as this lives.
#[derive(Clone, Debug)]
pub struct SlotMemory {
    /// Never read: it keeps the range mapped.
    _map: Arc<Map>,
    start: *mut u8,
    length: usize,
    stride: usize,
    region: u64,
}

// SAFETY: the pointer goes into the mapping that this holds, which is the same for all threads; nothing here reads or
// writes through it.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    pub(crate) fn of(map: &Arc<Map>, layout: &Layout, region: u64) -> Self {
        let length = layout.total() - layout.observations();
        let start = map.range(layout.observations(), length);
        Self { _map: Arc::clone(map), start, length, stride: layout.slot_stride(), region }
    }

    /// Where it starts: on a page.
    pub const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Where the first `length` bytes of a slot's payload lie. The other process may be writing there: make no reference
    /// of it.
    ///
    /// # Panics
    /// If a slot has no room for so many, or there is none of that number.
    pub fn payload(&self, slot: u32, length: usize) -> *const u8 {
        let start = slot as usize * self.stride;
        let fits = length <= self.stride - HEADROOM as usize && start + self.stride <= self.length;
        assert!(fits, "{length} bytes of slot {slot}");
        self.start.wrapping_add(start + HEADROOM as usize)
    }

    /// How many bytes it has: whole pages, at least one slot.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Id of the region that it is of.
    pub const fn region_id(&self) -> u64 {
        self.region
    }
}
