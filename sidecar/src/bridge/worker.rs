//! The worker's half of the bridge: its records and actions, and how an action gets on the wire.

use core::ptr;

use sidecar_core::agent::{MAX_HEAD, Refused};
use sidecar_core::record::ToSidecar;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_shm::journal::{LONGEST_KEPT, LastAction};
use sidecar_shm::owner::{FromWorker, SeatInfo, SeatPoisoned};
use sidecar_shm::slots::Held;
use sidecar_shm::stats::{Counter, Stage};

use super::failure::Cause;
use super::outbox::{Stamps, State};
use super::{Bridge, Effect, HEARD_IN_A_TURN, Incident, OnWire, Waiting};
use crate::explain::Code;

impl From<&Held> for Waiting {
    fn from(held: &Held) -> Self {
        Self {
            epoch: held.epoch,
            sequence: held.sequence,
            // Its times passed in another process: no latency is recorded for it.
            last_byte: Instant::default(),
            since: None,
            failed: false,
            timed_out: false,
            told: None,
        }
    }
}

impl Bridge {
    /// Takes one thing from the worker; `true` when there was one.
    pub(super) fn poll_worker(&mut self, now: Instant) -> bool {
        if !self.outbox.has_room() || self.heard >= HEARD_IN_A_TURN {
            return false;
        }
        self.heard += 1;
        match self.owner.poll_worker() {
            Ok(None) => {
                self.heard = 0;
                false
            }
            Ok(Some(FromWorker::Record { seat, record })) => {
                self.handle_record(seat, record, now);
                true
            }
            Ok(Some(FromWorker::Action { epoch, sequence, base, length, taken, published, .. })) => {
                let stamps = Stamps { last_byte: Instant::default(), taken, published };
                if self.is_warmup(sequence) {
                    self.finish_warmup(now);
                } else {
                    self.take_action(epoch, sequence, stamps, base, length as usize);
                }
                self.owner.finish_action();
                true
            }
            Err(poisoned) => {
                tracing::error!(code = Code::WorkerDetached.name(), %poisoned, "the worker broke the shared region's rules");
                self.note(Incident::Poisoned, &poisoned.to_string(), now);
                let SeatPoisoned { seat, generation, pid, .. } = poisoned;
                let worker = SeatInfo { seat, generation, pid, connected: false, open: false };
                self.effects.push_back(Effect::DropWorker { worker, why: poisoned.to_string() });
                true
            }
        }
    }

    fn handle_record(&mut self, seat: u8, record: ToSidecar, now: Instant) {
        match record {
            ToSidecar::Ready => self.worker_ready(now),
            ToSidecar::WarmupFailed { message } => self.warmup_failed(seat, &message, now),
            ToSidecar::Failed { sequence, message } if self.is_warmup(sequence) => {
                tracing::error!(message = message.as_str(), "the worker failed on --warmup-payload");
                self.warmup_failed(seat, &message, now);
            }
            // Of an observation that waits for nothing, or told before: a worker can say it for ever.
            ToSidecar::Failed { sequence, .. } if !self.is_news(sequence, seat) => {
                self.owner.stats().count(Counter::DroppedActions);
            }
            ToSidecar::Failed { sequence, message } => {
                tracing::error!(
                    code = Code::WorkerError.name(),
                    sequence,
                    message = message.as_str(),
                    "the worker failed on an observation"
                );
                self.note(Incident::WorkerFailed, &format!("worker failed: {message}"), now);
                self.owner.stats().count(Counter::Failed);
                self.apply_failure_policy(sequence, Cause::Reported { seat }, now);
            }
            // The ownership ledger has dealt with it.
            ToSidecar::Released { .. } => {}
        }
    }

    /// Whether a failure of the worker on this observation was not told yet; afterwards it was.
    fn is_news(&mut self, sequence: u64, seat: u8) -> bool {
        let Some(SeatInfo { generation, .. }) = self.owner.seat(seat) else { return false };
        let waiting = self.waiting.iter_mut().find(|waiting| waiting.sequence == sequence && !waiting.failed);
        waiting.is_some_and(|waiting| waiting.told.replace((seat, generation)) != Some((seat, generation)))
    }

    fn take_action(&mut self, epoch: Epoch, sequence: u64, stamps: Stamps, base: *const u8, length: usize) {
        let Some(waiting) = self
            .waiting
            .iter()
            .find(|waiting| waiting.sequence == sequence && waiting.epoch == epoch && !waiting.failed)
        else {
            // The failure policy has answered, or its session was closed: never sent.
            return self.owner.stats().count(Counter::DroppedActions);
        };
        if self.outbox.find(sequence).is_some() {
            return self.owner.stats().count(Counter::DroppedActions);
        }
        let stamps = Stamps { last_byte: waiting.last_byte, ..stamps };
        self.outbox.keep(epoch, sequence, length, stamps, |into| {
            // SAFETY: the owner checked that `base..base + length` lies in one action slot of the region, which
            // stays mapped; `into` is private and as long. The worker may still be writing: then a mix of its own
            // bytes is sent.
            unsafe { ptr::copy_nonoverlapping(base, into.as_mut_ptr(), length) };
        });
    }

    /// Puts the oldest action that may leave on the wire. What must never leave is dropped on the way.
    pub(super) fn next_action(&mut self, now: Instant) -> Option<&[u8]> {
        let (sequence, length) = loop {
            let kept = self.outbox.waiting()?;
            match self.agent.may_send(kept.epoch) {
                Ok(()) => break (kept.sequence, kept.payload_length()),
                Err(Refused::Gone) => {
                    let sequence = kept.sequence;
                    let dropped = self.outbox.forget(|kept| kept.sequence == sequence);
                    self.owner.stats().add(Counter::DroppedActions, dropped);
                    self.give_up(sequence);
                }
                Err(Refused::Down | Refused::Held | Refused::Closing) => return None,
            }
        };
        let mut head = [0; MAX_HEAD];
        let epoch = self.outbox.find(sequence)?.epoch;
        let written = self.agent.begin_action(now, epoch, sequence, length, &mut head).ok()?;
        let longest_wait = self.agent.longest_wait();
        if epoch != Epoch::default() && self.agent.config().unfreeze.is_some() {
            let kept = self.outbox.find(sequence)?;
            let (mask, payload) = kept.payload();
            let last = LastAction { epoch, sequence, resent: kept.resend, longest_wait, mask, payload };
            self.owner.journal().last_action(&last);
            if length as usize > LONGEST_KEPT && !core::mem::replace(&mut self.told_unkept, true) {
                let code = Code::ActionNotKept.name();
                tracing::warn!(
                    code,
                    bytes = length,
                    most = LONGEST_KEPT,
                    "an action is too long to be kept for a successor: if this process dies and the action is lost, \
                     nobody can send it once more (--unfreeze), and a simulator in lockstep waits for ever"
                );
            }
        }
        // Promise 1: on record before the kernel gets the first byte.
        self.owner.journal().action_started(sequence);
        self.owner.answered(sequence);
        self.waiting.retain(|waiting| waiting.sequence != sequence);
        self.wire = OnWire::Action;
        let kept = self.outbox.find(sequence)?;
        kept.state = State::Sending;
        Some(kept.frame(&head[..written.len], written.mask, written.mask_offset))
    }

    pub(super) fn action_sent(&mut self, now: Instant) {
        let Some(kept) = self.outbox.sending() else { return };
        kept.state = State::Sent;
        let (epoch, sequence, stamps, resend) = (kept.epoch, kept.sequence, kept.stamps, kept.resend);
        kept.resend = false;
        let bytes = u64::from(kept.payload_length());
        self.owner.journal().action_sent(sequence);
        self.agent.handle_action_sent(now, epoch, sequence);
        // One action is kept for a session that is open: the last one sent.
        self.outbox.forget(|kept| kept.state == State::Sent && kept.sequence != sequence);
        if epoch == Epoch::default() {
            self.outbox.forget(|kept| kept.sequence == sequence);
        }
        let stats = self.owner.stats();
        stats.count(Counter::ActionsOut);
        stats.add(Counter::BytesOut, bytes);
        let measured = stamps.published > Instant::default() && stamps.last_byte > Instant::default();
        if measured && !resend {
            stats.record(Stage::HandOver, stamps.taken.since(stamps.last_byte));
            stats.record(Stage::Worker, stamps.published.since(stamps.taken));
            // One look at the clock serves a turn: the worker may have answered since.
            let left = now.max(stamps.published);
            stats.record(Stage::Send, left.since(stamps.published));
            stats.record(Stage::Total, left.since(stamps.last_byte));
        }
    }

    /// Brings the worker up to date: records first, then the observations that wait for it.
    pub(super) fn tell_worker(&mut self) {
        let Self { announcer, owner, .. } = self;
        let Some(seat) = owner.live_seat() else { return };
        announcer.address((seat.seat, seat.generation), seat.open);
        if announcer.catch_up(|record| owner.send(record).is_ok()) {
            owner.deliver_pending();
        } else {
            // A record found no room: what it announces waits with it.
            owner.hold_deliveries();
        }
    }
}
