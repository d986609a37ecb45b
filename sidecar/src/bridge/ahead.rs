//! `--device-copy`: what has landed in the slot is on its way to the GPU while the rest is still coming.
//!
//! What goes wrong with it costs the worker a copy of its own and the tunnel nothing.

use sidecar_core::agent::Filling;
use sidecar_core::time::Instant;
use sidecar_cuda::ahead::AheadCopier;
use sidecar_shm::slots::SlotIndex;

use super::{Bridge, Incident};

impl Bridge {
    /// From now on observations are copied to the device of this copier, which was made for this bridge's region.
    pub fn copy_ahead(&mut self, copier: AheadCopier) {
        self.ahead = Some(Box::new(copier));
    }

    /// Before the end of this process: a worker that stays may be reading the device's ring.
    pub fn leave_device(&mut self) {
        if let Some(copier) = self.ahead.take() {
            copier.leave();
        }
    }

    /// Gives the copier what has landed since it was asked last. After the events of a `process`, as the agent wants it.
    pub(super) fn look_ahead(&mut self, now: Instant) {
        let Some(copier) = &mut self.ahead else { return };
        match (self.agent.filling(), self.slot) {
            (Some(Filling { first_byte, filled }), Some(slot)) => copier.landed(slot, first_byte, filled),
            _ => copier.abandon(),
        }
        self.tell_ahead(now);
    }

    /// All of an observation is in its slot; before it is published.
    pub(super) fn finish_ahead(&mut self, slot: SlotIndex, first_byte: Instant, length: u32, now: Instant) {
        let Some(copier) = &mut self.ahead else { return };
        let copied = copier.finish(slot, first_byte, length);
        self.owner.set_copied(slot, copied);
        self.tell_ahead(now);
    }

    /// How many bytes of a known remainder are received at once.
    pub(super) fn bound_ahead(&self, max: u32) -> u32 {
        self.ahead.as_ref().and_then(|copier| copier.most()).map_or(max, |most| max.min(most))
    }

    fn tell_ahead(&mut self, now: Instant) {
        let Some(error) = self.ahead.as_mut().and_then(|copier| copier.take_trouble()) else { return };
        tracing::warn!(%error, "--device-copy has stopped working; observations are copied by the worker");
        self.note(Incident::DeviceCopy, &format!("--device-copy has stopped working: {error}"), now);
    }
}
