//! `--warmup-payload`: a first observation of our own making, so that a forward pass really runs before `ready`.
//!
//! Without it the first real observation pays for lazy initialisation and compilation, ten seconds and more. The
//! worker sees an observation of the warm-up's epoch; what it answers is thrown away.

use core::ptr;

use sidecar_core::agent::HEADROOM;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_shm::slots::{Asker, Held, Observed};

use super::{Bridge, Effect, Incident};

/// Where the warm-up stands.
#[derive(Debug, Default)]
pub(super) struct Warmup {
    /// The observation that waits for the worker.
    sequence: Option<u64>,
    /// The worker has said that it is ready.
    ready: bool,
    /// Why it never will be.
    pub(super) failure: Option<String>,
}

impl Bridge {
    /// A dead predecessor left its payload with the worker. It is waited for instead of a second one: the survivor may
    /// be at it, or has answered it already, and a model's first pass is long. Of use is one at most, and none once
    /// the worker was said to be warm.
    pub(super) fn take_up_warmup(&mut self, kept: &[Held]) {
        for held in kept.iter().filter(|held| held.asker == Asker::Sidecar) {
            if self.warmup.sequence.is_none() && !self.agent.is_warm() {
                self.warmup.sequence = Some(held.sequence);
            } else {
                self.owner.answered(held.sequence);
            }
        }
    }

    /// The gateway asked for the warm-up: the payload goes to the worker, once.
    pub(super) fn start_warmup(&mut self, now: Instant) {
        let Some(payload) = &self.rules.warmup_payload else { return };
        if self.warmup.sequence.is_some() || self.agent.is_warm() {
            return;
        }
        let Some(slot) = self.owner.claim_slot() else {
            return tracing::warn!("no slot is free for --warmup-payload; the worker warms up without it");
        };
        let length = u32::try_from(payload.len()).expect("checked against the slot at the start");
        let target = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize);
        // SAFETY: a claimed slot is ours to write, `HEADROOM` and as many bytes as an observation may have long, and
        // the payload was checked to be no longer; it is private memory.
        unsafe { ptr::copy_nonoverlapping(payload.as_ptr(), target, payload.len()) };
        let sequence = self.agent.take_sequence();
        self.warmup.sequence = Some(sequence);
        let epoch = Epoch::default();
        self.finish_ahead(slot, now, length, now);
        self.owner
            .publish_rehearsal(slot, &Observed { epoch, sequence, length, first_byte: now, last_byte: now });
    }

    /// The worker says that it is warm; the gateway hears of it once the payload has been answered too.
    pub(super) fn worker_ready(&mut self, now: Instant) {
        self.warmup.ready = true;
        if self.warmup.sequence.is_none() {
            self.agent.worker_ready(now);
            // Once is enough, however often it is said before the caller looks.
            if !self.effects.contains(&Effect::WorkerReady) {
                self.effects.push_back(Effect::WorkerReady);
            }
        }
    }

    /// A worker could not be warmed up. Before the gateway heard `ready` that ends the run, with the worker's words.
    /// Afterwards it is a restarted worker's misfortune, and costs that one its seat: the session waits for the next.
    pub(super) fn warmup_failed(&mut self, seat: u8, message: &str, now: Instant) {
        tracing::error!(message, "the worker's warm-up failed");
        self.note(Incident::WorkerFailed, &format!("warm-up failed: {message}"), now);
        if !self.agent.is_warm() {
            self.warmup.failure = Some(format!("it said: {message}"));
            return self.agent.worker_failed(now);
        }
        if let Some(worker) = self.owner.live_seat().filter(|live| live.seat == seat) {
            let why = format!("its warm-up failed: {message}");
            self.owner.seat_poison(&why);
            self.effects.push_back(Effect::DropWorker { worker, why });
        }
    }

    /// Whether `sequence` is the warm-up's observation; its answer goes no further.
    pub(super) fn is_warmup(&self, sequence: u64) -> bool {
        self.warmup.sequence == Some(sequence)
    }

    /// The worker answered the payload.
    pub(super) fn finish_warmup(&mut self, now: Instant) {
        if let Some(sequence) = self.warmup.sequence.take() {
            self.owner.answered(sequence);
            tracing::info!("the warm-up payload was answered");
            if self.warmup.ready {
                self.worker_ready(now);
            }
        }
    }
}
