//! An observation in a worker's hands: the slot it lies in, until it is dropped.

use std::sync::{Arc, Mutex, PoisonError};

use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;

use super::WorkerError;
use super::attachment::Attachment;
use super::uplink::Uplink;
use crate::descriptor::{self, Descriptor};
use crate::layout::control;
use crate::map::Map;
use crate::sync::Ordering;

/// An observation. Dropping it gives its slot back to the sidecar; [`super::Worker::answer`] does that as well.
#[derive(Debug)]
pub struct Observation {
    map: Arc<Map>,
    uplink: Arc<Mutex<Uplink>>,
    /// Seat and region that it came by.
    origin: (u64, u32),
    payload: *const u8,
    descriptor: Descriptor,
    /// As it was said with it; 0 for none.
    device_ring: u64,
    taken: Instant,
    /// Its slot was given back already.
    released: bool,
}

// SAFETY: the pointer goes into the mapping that `map` keeps alive, which is the same for all threads; everything
// mutable behind `uplink` is under its lock.
unsafe impl Send for Observation {}
// SAFETY: through a shared reference only the payload is read, which nobody writes while the slot is lent.
unsafe impl Sync for Observation {}

impl Observation {
    pub(super) fn new(
        attachment: &Attachment,
        uplink: &Arc<Mutex<Uplink>>,
        descriptor: &Descriptor,
        record: &[u8],
        taken: Instant,
    ) -> Result<Self, WorkerError> {
        let geometry = attachment.geometry();
        let Descriptor { slot, offset, length, .. } = *descriptor;
        let layout = attachment.layout();
        let fits = slot < geometry.observation_slots
            && (offset as usize).checked_add(length as usize).is_some_and(|end| end <= layout.slot_stride());
        if !fits {
            return Err(WorkerError::Damaged(format!("{length} bytes at {offset} of slot {slot}")));
        }
        let map = Arc::clone(attachment.map_handle());
        let payload = map.range(layout.slot(slot as usize) + offset as usize, length as usize).cast_const();
        Ok(Self {
            map,
            uplink: Arc::clone(uplink),
            origin: (attachment.region_id(), attachment.generation()),
            payload,
            descriptor: *descriptor,
            device_ring: record.try_into().map_or(0, u64::from_ne_bytes),
            taken,
            released: false,
        })
    }

    /// The payload, where it was received.
    pub fn payload(&self) -> &[u8] {
        // SAFETY: the bytes lie in the mapping (checked by `range` when this was made), which `map` keeps alive. The
        // slot is lent to this worker until it is released, which happens when `self` is dropped: until then the
        // sidecar neither receives into it nor gives it to another worker that is alive.
        unsafe { core::slice::from_raw_parts(self.payload, self.descriptor.length as usize) }
    }

    /// Number of its session.
    pub const fn epoch(&self) -> Epoch {
        Epoch(self.descriptor.epoch)
    }

    /// Counts observations.
    pub const fn sequence(&self) -> u64 {
        self.descriptor.sequence
    }

    /// Id of the region that it lies in, see [`super::Worker::region_id`].
    pub const fn region_id(&self) -> u64 {
        self.origin.0
    }

    /// The slot it lies in.
    pub const fn slot(&self) -> u32 {
        self.descriptor.slot
    }

    /// Number of the device ring that it also lies in, in the slot of the same number; `None` if it does not, or if
    /// the sidecar that the ring belongs to has been followed by another one.
    pub fn device_ring(&self) -> Option<u64> {
        let number = self.device_ring;
        let owner = self.map.word32(control::OWNER_GENERATION).load(Ordering::Acquire);
        (number != 0 && number == u64::from(owner)).then_some(number)
    }

    /// The payload is empty: answer with the action that does nothing.
    pub const fn is_empty(&self) -> bool {
        self.descriptor.length == 0
    }

    /// Another worker got it before and did not answer.
    pub const fn redelivered(&self) -> bool {
        self.descriptor.flags & descriptor::REDELIVERED != 0
    }

    /// Whether its session is over, so that an action for it would be dropped. Costs one load: ask between the steps
    /// of a long inference.
    pub fn cancelled(&self) -> bool {
        let epoch = self.descriptor.epoch;
        let closed = self.map.word32(control::EPOCH).load(Ordering::Acquire);
        epoch != 0 && closed != 0 && closed.wrapping_sub(epoch).cast_signed() >= 0
    }

    /// When its first byte came from the gateway.
    pub const fn first_byte(&self) -> Instant {
        Instant::from_nanos(self.descriptor.stamps[0])
    }

    /// When its last byte came from the gateway.
    pub const fn last_byte(&self) -> Instant {
        Instant::from_nanos(self.descriptor.stamps[1])
    }

    /// When the sidecar put it into the worker's ring.
    pub const fn published(&self) -> Instant {
        Instant::from_nanos(self.descriptor.stamps[2])
    }

    /// When this worker took it.
    pub const fn taken(&self) -> Instant {
        self.taken
    }

    pub(super) const fn uplink(&self) -> &Arc<Mutex<Uplink>> {
        &self.uplink
    }

    pub(super) const fn origin(&self) -> (u64, u32) {
        self.origin
    }

    pub(super) fn is_of(&self, attachment: &Attachment) -> bool {
        self.origin == (attachment.region_id(), attachment.generation())
    }

    /// Its slot and the generation that it was lent with.
    pub(super) const fn lent(&self) -> (u32, u32) {
        (self.descriptor.slot, self.descriptor.generation)
    }

    /// Its slot was given back by other means.
    pub(super) const fn forget(&mut self) {
        self.released = true;
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        #[cfg(feature = "simulation")]
        if crate::simulation::is_dying() {
            return;
        }
        if !self.released {
            let (slot, generation) = self.lent();
            let mut uplink = self.uplink.lock().unwrap_or_else(PoisonError::into_inner);
            uplink.release(self.origin, slot, generation);
        }
    }
}
