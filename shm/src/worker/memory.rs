//! The slots of one kind as one range of memory that stays mapped while somebody needs it: what is page-locked for a
//! device has to be given free before it is unmapped, also when the worker has moved on to another region or seat.

use std::sync::Arc;

use sidecar_core::agent::HEADROOM;

use crate::layout::Layout;
use crate::map::Map;

/// All observation slots of a region, or all action slots of a seat, mapped for as long as this lives.
#[derive(Clone, Debug)]
pub struct SlotMemory {
    /// Never read: it keeps the range mapped.
    _map: Arc<Map>,
    start: *mut u8,
    length: usize,
    stride: usize,
    /// In front of each payload.
    headroom: usize,
}

// SAFETY: the pointer goes into the mapping that this holds, which is the same for all threads; nothing here reads or
// writes through it.
unsafe impl Send for SlotMemory {}
// SAFETY: as above.
unsafe impl Sync for SlotMemory {}

impl SlotMemory {
    pub(crate) fn observations(map: &Arc<Map>, layout: &Layout) -> Self {
        let length = layout.total() - layout.observations();
        let start = map.range(layout.observations(), length);
        let (stride, headroom) = (layout.slot_stride(), HEADROOM as usize);
        Self { _map: Arc::clone(map), start, length, stride, headroom }
    }

    pub(crate) fn actions(map: &Arc<Map>, layout: &Layout, seat: usize) -> Self {
        let stride = layout.action_stride();
        let length = layout.geometry().action_slots as usize * stride;
        let start = map.range(layout.action(seat, 0), length);
        Self { _map: Arc::clone(map), start, length, stride, headroom: 0 }
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
        let fits = length <= self.stride - self.headroom && start + self.stride <= self.length;
        assert!(fits, "{length} bytes of slot {slot}");
        self.start.wrapping_add(start + self.headroom)
    }

    /// How many bytes it has: whole pages, at least one slot.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }
}
