//! When a worker fails, dies or takes too long: what becomes of the observation.

use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_shm::stats::Counter;

use super::outbox::Stamps;
use super::policy::{DEATHS, FailurePolicy};
use super::{Bridge, Effect, Incident, Waiting};
use crate::explain::Code;

/// Why an observation has no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The worker of this seat said that it failed on it.
    Reported {
        /// Its seat.
        seat: u8,
    },
    /// Nobody said anything: workers died on it, it takes too long, or no slot can hold it.
    Silence,
}

impl Bridge {
    /// The policy decides about the observation `sequence`, once.
    pub(super) fn apply_failure_policy(&mut self, sequence: u64, cause: Cause, now: Instant) {
        let Some(waiting) = self.waiting.iter_mut().find(|waiting| waiting.sequence == sequence) else {
            return;
        };
        if waiting.failed || self.outbox.find(sequence).is_some() {
            return;
        }
        let epoch = waiting.epoch;
        match &self.rules.on_failure {
            FailurePolicy::Hold => {
                tracing::warn!(
                    sequence,
                    "the observation is held until a restarted worker answers it; --on-failure reply or close \
                     would go on without one"
                );
                // One that is going already is followed anyway.
                let worker =
                    self.owner.live_seat().filter(|live| cause == Cause::Reported { seat: live.seat });
                if let Some(worker) = worker {
                    let why = format!("it failed on observation {sequence}, and --on-failure is hold");
                    self.effects.push_back(Effect::RestartWorker { worker, why });
                }
            }
            FailurePolicy::Reply(bytes) => {
                waiting.failed = true;
                if !self.outbox.has_room() {
                    tracing::error!(sequence, "too many answers wait already: this observation gets none");
                    return self.give_up(sequence);
                }
                let stamps = Stamps { last_byte: waiting.last_byte, ..Stamps::default() };
                self.outbox.keep(epoch, sequence, bytes.len(), stamps, |into| into.copy_from_slice(bytes));
                tracing::warn!(
                    sequence,
                    bytes = bytes.len(),
                    "answered with the bytes of --on-failure reply"
                );
            }
            // The warm-up's round trip belongs to no session.
            FailurePolicy::Close if epoch == Epoch::default() => {
                tracing::error!(sequence, "the warm-up's observation gets no answer");
                self.give_up(sequence);
            }
            FailurePolicy::Close => {
                waiting.failed = true;
                self.agent.close_session(now, epoch, "worker failed");
            }
        }
    }

    /// Nobody will answer it: its slot is needed for the next one.
    pub(super) fn give_up(&mut self, sequence: u64) {
        self.waiting.retain(|waiting| waiting.sequence != sequence);
        self.owner.answered(sequence);
    }

    /// An observation on which three workers died is no accident any more.
    pub(super) fn check_deaths(&mut self, now: Instant) {
        if let Some(held) = self.owner.oldest_unanswered()
            && held.deaths >= DEATHS
        {
            let text = format!("{} workers died on one observation", held.deaths);
            tracing::error!(
                code = Code::WorkerDies.name(),
                sequence = held.sequence,
                deaths = held.deaths,
                "workers die on this observation"
            );
            self.note(Incident::WorkersDie, &text, now);
            self.apply_failure_policy(held.sequence, Cause::Silence, now);
        }
    }

    /// An observation that no slot can hold was discarded as it came in.
    pub(super) fn too_large(&mut self, waiting: Waiting, size: u64, now: Instant) {
        // No slot notes for a successor that it came.
        self.outbox.acknowledge(waiting.epoch);
        self.owner.journal().next_sequence(waiting.sequence.saturating_add(1));
        let slot = self.owner.geometry().observation_bytes;
        tracing::error!(
            code = Code::TooLarge.name(),
            size,
            slot,
            "an observation is larger than a slot and was discarded; raise --slot-bytes to at least its size"
        );
        self.note(
            Incident::TooLarge,
            &format!("observation of {size} bytes is larger than a slot ({slot})"),
            now,
        );
        self.owner.stats().count(Counter::TooLarge);
        let sequence = waiting.sequence;
        self.waiting.push(waiting);
        self.apply_failure_policy(sequence, Cause::Silence, now);
        // Nobody else can answer it: what the policy left open is lost, and a drain must not wait for it.
        if self.outbox.find(sequence).is_none() {
            self.waiting.retain(|waiting| waiting.sequence != sequence);
        }
    }

    /// `--worker-timeout` for the oldest observation that a worker has.
    pub(super) fn worker_deadline(&self) -> Option<Instant> {
        let timeout = self.rules.worker_timeout?;
        let oldest = self.waiting.iter().find(|waiting| self.is_owed(waiting))?;
        Some(oldest.since? + timeout)
    }

    /// The worker owes an answer: what lies in the outbox waits for the tunnel, not for the worker.
    fn is_owed(&self, waiting: &Waiting) -> bool {
        !waiting.failed && !waiting.timed_out && !self.outbox.has(waiting.sequence)
    }

    pub(super) fn check_worker_timeout(&mut self, now: Instant) {
        for waiting in &mut self.waiting {
            waiting.since.get_or_insert(now);
        }
        if self.worker_deadline().is_none_or(|due| due > now) {
            return;
        }
        let Some(index) = self.waiting.iter().position(|waiting| self.is_owed(waiting)) else { return };
        self.waiting[index].timed_out = true;
        let sequence = self.waiting[index].sequence;
        let code = Code::WorkerSlow.name();
        tracing::error!(code, sequence, "the worker did not answer within --worker-timeout");
        self.note(Incident::WorkerTimeout, "the worker did not answer within --worker-timeout", now);
        self.apply_failure_policy(sequence, Cause::Silence, now);
    }
}
