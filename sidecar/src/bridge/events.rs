//! What the agent reports, turned into journal entries, records for the worker, and effects.

use sidecar_core::agent::{CloseBy, Disconnect, DropKind, Event, HangUp, Notice, Phase};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_shm::owner::Lent;
use sidecar_shm::slots::Observed;
use sidecar_shm::stats::{Counter, Gauge, Stage};

use super::outbox::State;
use super::{Bridge, Effect, Incident, Waiting};
use crate::explain::Code;

impl Bridge {
    /// What a dead predecessor's journal said, put in place before the first event.
    pub(super) fn take_up_state(&mut self) {
        if let Some((session, epoch)) = self.agent.session() {
            let session = session.clone();
            self.announcer.open(session, epoch, true);
        }
        if self.agent.is_warm() {
            self.announcer.warmed_before();
        }
        self.dialled_before = self.agent.connected_once();
        self.owner.stats().set(Gauge::Connected, 0);
        self.show_phase();
    }

    /// To `sidecar stat` and the metrics.
    pub(super) fn show_phase(&self) {
        let phase = match self.agent.phase() {
            Phase::Queued => 0,
            Phase::Warmup => 1,
            Phase::Running => 2,
            Phase::Draining => 3,
        };
        self.owner.stats().set(Gauge::Phase, phase);
    }

    pub(super) fn handle_event(&mut self, event: Event, now: Instant) {
        match event {
            Event::Dial { attempt, reread_token, .. } => {
                if self.dialled_before {
                    self.owner.stats().count(Counter::Redials);
                }
                self.dialled_before = true;
                self.effects.push_back(Effect::Dial { attempt, reread_token });
            }
            Event::HangUp(HangUp::Orderly) => self.effects.push_back(Effect::HangUpOrderly),
            Event::HangUp(HangUp::Abort) => self.effects.push_back(Effect::HangUpAbort),
            Event::Upgraded { attempt, resumed } => {
                self.owner.journal().connected();
                self.owner.stats().set(Gauge::Connected, 1);
                self.owner.stats().set(Gauge::ConnectedSince, now.as_nanos());
                self.show_phase();
                tracing::info!(attempt, resumed, agent = self.agent.agent_id().as_str(), "tunnel is up");
            }
            Event::Disconnected { cause, redial_until } => self.disconnected(&cause, redial_until, now),
            Event::Warmup => {
                tracing::info!("warm-up asked for");
                self.owner.journal().warmup_seen();
                self.show_phase();
                self.announcer.warm_up();
                self.tell_worker();
                self.start_warmup(now);
            }
            Event::Queued { reason } => {
                tracing::info!(reason = reason.as_str(), "queued: waiting for a session");
                self.owner.journal().ready_heard();
            }
            Event::ReadySent => {
                tracing::info!("ready");
                self.owner.journal().ready_sent();
                self.show_phase();
            }
            Event::SessionOpened { session, epoch, resumed } => {
                tracing::info!(session = session.as_str(), epoch = epoch.0, resumed, "session open");
                self.owner.journal().ready_heard();
                self.owner.journal().session_opened(&session, epoch);
                self.owner.stats().set(Gauge::SessionOpen, 1);
                self.owner.stats().count(Counter::Sessions);
                self.announcer.open(session, epoch, resumed);
            }
            Event::SessionClosed { session, epoch, by, reason } => {
                tracing::info!(
                    session = session.as_str(),
                    epoch = epoch.0,
                    ?by,
                    reason = reason.as_str(),
                    "session closed"
                );
                self.owner.stats().set(Gauge::SessionOpen, 0);
                self.close_epoch(epoch, by);
            }
            Event::Observation { epoch, sequence, length, moved, first_byte, last_byte } => {
                self.observation(epoch, sequence, length, moved, first_byte, last_byte);
            }
            Event::ObservationTooLarge { epoch, sequence, size } => {
                let since = Some(now);
                let waiting = Waiting {
                    epoch,
                    sequence,
                    last_byte: now,
                    since,
                    failed: false,
                    timed_out: false,
                    told: None,
                };
                self.too_large(waiting, size, now);
            }
            Event::Drain { reason } => {
                tracing::info!(reason = reason.as_str(), unanswered = self.waiting.len(), "drain");
                self.owner.journal().drain_seen();
                self.show_phase();
                self.announcer.drain();
                self.draining = true;
            }
            Event::Unfreeze { epoch, sequence } => self.unfreeze(epoch, sequence, now),
            Event::Wedged { silent_for } => {
                let seconds = silent_for.as_secs();
                tracing::warn!(
                    code = Code::Wedged.name(),
                    seconds,
                    "the tunnel is up and a session is open, but nothing has come: the gateway may have lost the \
                     session; a fresh agent id (--fresh-agent-on-wedge) would forfeit it"
                );
                self.note(Incident::Wedged, "session open, tunnel up, nothing received", now);
            }
            Event::FreshAgent => self.effects.push_back(Effect::FreshAgent),
            Event::Notice(notice) => self.notice(&notice, now),
            Event::Finished(outcome) => {
                self.owner.stats().set(Gauge::Connected, 0);
                self.effects.push_back(Effect::Finished(Box::new(outcome)));
            }
        }
    }

    fn observation(
        &mut self,
        epoch: Epoch,
        sequence: u64,
        length: u32,
        moved: u32,
        first_byte: Instant,
        last_byte: Instant,
    ) {
        let slot = self.slot.take().expect("the agent completes an observation only in the slot on offer");
        self.outbox.acknowledge(epoch);
        if !self.agent.is_session_open(epoch) {
            // Its session was closed by us while its bytes were still coming: nobody may answer it.
            self.owner.unclaim(slot);
            return self.owner.stats().count(Counter::DroppedFrames);
        }
        let since = Some(last_byte);
        self.waiting.push(Waiting {
            epoch,
            sequence,
            last_byte,
            since,
            failed: false,
            timed_out: false,
            told: None,
        });
        // The session's own record comes before its first observation.
        self.tell_worker();
        self.finish_ahead(slot, first_byte, length, last_byte);
        self.owner.publish(slot, &Observed { epoch, sequence, length, first_byte, last_byte });
        let carried = self.agent.carried();
        let stats = self.owner.stats();
        stats.count(Counter::FramesIn);
        stats.add(Counter::MovedBytes, u64::from(moved));
        stats.add(Counter::BytesIn, u64::from(length));
        stats.add(Counter::CarriedBytes, carried - self.carried);
        stats.record(Stage::Receive, last_byte.since(first_byte));
        self.carried = carried;
    }

    fn close_epoch(&mut self, epoch: Epoch, by: CloseBy) {
        self.waiting.retain(|waiting| waiting.epoch != epoch);
        let dropped = self.outbox.forget(|kept| kept.epoch == epoch);
        self.owner.stats().add(Counter::DroppedActions, dropped);
        // First: who dies in between must not leave observations that nobody answers in a session that seems open.
        self.owner.journal().session_closed(by == CloseBy::Us);
        self.owner.close_epoch(epoch);
        self.announcer.close();
    }

    fn disconnected(&mut self, cause: &Disconnect, redial_until: Option<Instant>, now: Instant) {
        self.owner.stats().set(Gauge::Connected, 0);
        self.show_phase();
        self.outbox.take_back();
        let connected_once = self.agent.connected_once();
        if connected_once {
            self.window_until = redial_until;
        }
        match redial_until {
            Some(until) => {
                let left = until.since(now).as_secs();
                let code = Code::Redialling.name();
                if connected_once {
                    tracing::warn!(code, %cause, budget_seconds = left, "the connection is gone; redialling");
                    self.note(Incident::ConnectionLost, &format!("connection lost: {cause}"), now);
                } else {
                    tracing::warn!(code, %cause, budget_seconds = left, "no connection yet; dialling again");
                    self.note(Incident::ConnectionLost, &format!("no connection yet: {cause}"), now);
                }
            }
            None => tracing::info!(%cause, "the connection is gone"),
        }
    }

    fn unfreeze(&mut self, epoch: Epoch, sequence: u64, now: Instant) {
        let Some(kept) = self.outbox.find(sequence) else { return };
        if kept.state != State::Sent || kept.epoch != epoch {
            return;
        }
        kept.state = State::Waiting;
        kept.resend = true;
        tracing::warn!(
            code = Code::Resent.name(),
            sequence,
            "nothing has come since the cut: the last action is sent once more (--unfreeze)"
        );
        self.note(Incident::Unfreeze, "an action was sent once more to unfreeze the simulator", now);
        self.owner.stats().count(Counter::Resent);
    }

    fn notice(&mut self, notice: &Notice, now: Instant) {
        match notice {
            Notice::DroppedFrame(kind) => {
                self.owner.stats().count(Counter::DroppedFrames);
                // One line a kind, however many come: the log of distinct errors keeps the count.
                if self.note(Incident::DroppedFrame, &notice.to_string(), now) {
                    let code = Code::FrameIgnored.name();
                    tracing::warn!(code, why = %kind, unknown_session = *kind == DropKind::UnknownSession, "data frame dropped");
                }
            }
            Notice::Pinged => self.owner.stats().count(Counter::Pings),
            Notice::ReadyOverdue { since } => {
                let seconds = now.since(*since).as_secs();
                let worker = self.owner.live_seat();
                let look = match worker {
                    Some(_) => {
                        "it is attached and has not said ready: look at its output, it may still be loading"
                    }
                    None => {
                        "none is attached: start it against --shm, or look at the output of the one that was started"
                    }
                };
                let pid = worker.map_or(0, |worker| worker.pid);
                let text = notice.to_string();
                let (code, shm) = (Code::ReadyOverdue.name(), self.owner.path().display());
                tracing::warn!(code, seconds, pid, %shm, look, "{text}");
                self.note(Incident::Notice, &text, now);
            }
            Notice::WarmAlready | Notice::Unblocked => tracing::debug!(%notice, "notice"),
            _ => {
                let text = match notice {
                    Notice::Blocked => format!("{notice}{}", whose(self.owner.lent_after_answer())),
                    _ => notice.to_string(),
                };
                if self.note(Incident::Notice, &text, now) {
                    let code = match notice {
                        Notice::Blocked => Code::SlotsTaken,
                        _ => Code::FrameIgnored,
                    };
                    tracing::warn!(code = code.name(), notice = %text, "notice");
                }
            }
        }
    }
}

/// Who keeps slots that no observation needs any more, for the end of a sentence about slots.
fn whose(lent: Lent) -> String {
    let slots = |count| if count == 1 { "1 slot is".to_owned() } else { format!("{count} slots are") };
    let mut text = String::new();
    if lent.to_live > 0 {
        let held = slots(lent.to_live);
        text += &format!("; {held} held by the worker after it answered (release each observation)");
    }
    if lent.to_gone > 0 {
        let held = slots(lent.to_gone);
        text += &format!("; {held} held by a worker that is gone and whose process has not ended");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Lent, whose};

    #[test]
    fn who_holds_slots_is_named() {
        let said = |to_live, to_gone| whose(Lent { to_live, to_gone });
        assert_eq!(said(0, 0), "");
        assert_eq!(
            said(3, 0),
            "; 3 slots are held by the worker after it answered (release each observation)"
        );
        assert_eq!(
            said(1, 1),
            "; 1 slot is held by the worker after it answered (release each observation); 1 slot is held by a worker \
             that is gone and whose process has not ended"
        );
    }
}
