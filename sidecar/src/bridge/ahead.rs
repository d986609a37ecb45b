//! `--device-copy`: what has landed in the slot is on its way to the GPU while the rest is still coming.
//!
//! What goes wrong with it costs the worker a copy of its own and the tunnel nothing.

use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};

use sidecar_core::agent::Filling;
use sidecar_core::time::Instant;
use sidecar_cuda::ahead::AheadCopier;
use sidecar_shm::slots::SlotIndex;

use super::{Bridge, Incident};

/// A copier whose ring stays on the device until this process ends, however it comes to that: by a result, an error or
/// a panic. A worker may have it open, and giving it back is undefined as long as it has (CUDA driver API,
/// cuIpcCloseMemHandle); the end of the process does it for all in the right order.
#[derive(Debug)]
pub struct LastingCopier(ManuallyDrop<Box<AheadCopier>>);

impl LastingCopier {
    /// To be called on what was just made, before anything else can fail.
    pub fn new(copier: AheadCopier) -> Self {
        Self(ManuallyDrop::new(Box::new(copier)))
    }
}

impl Deref for LastingCopier {
    type Target = AheadCopier;

    fn deref(&self) -> &AheadCopier {
        &self.0
    }
}

impl DerefMut for LastingCopier {
    fn deref_mut(&mut self) -> &mut AheadCopier {
        &mut self.0
    }
}

impl Drop for LastingCopier {
    fn drop(&mut self) {
        // What was given to it is on the device then; nobody is left to be told of errors.
        let _ = self.0.wait();
    }
}

impl Bridge {
    /// From now on observations are copied to the device of this copier, which was made for this bridge's region.
    pub fn copy_ahead(&mut self, copier: LastingCopier) {
        self.ahead = Some(copier);
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
