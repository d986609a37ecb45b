//! How a connection ends, and what follows. Every end goes through [`Agent::lost`], after which it may be dialled
//! again, or [`Agent::finish`], after which nothing happens.

use core::fmt::Write;

use super::Agent;
use super::event::{CloseBy, Disconnect, End, Event, HangUp, Outcome, Shutdown};
use super::inbound::Stage;
use super::link::{Closing, Next, State, Then, Wait};
use super::outbox::{Farewell, Short};
use super::phase::Phase;
use crate::time::Instant;
use crate::tunnel::{AgentId, MAX_REASON, Reason, clip};
use crate::ws::Violation;
use crate::ws::close::{CloseCode, parse_close_payload};

impl Agent {
    /// Dials if that is due.
    pub(super) fn dial(&mut self, now: Instant) {
        if matches!(self.link.state, State::Waiting { at } if at <= now) {
            let (attempt, timeout, reread_token) = self.link.begin_attempt(&self.config.timers, now);
            self.events.push(Event::Dial { attempt, timeout, reread_token });
        }
    }

    /// The connection, or an attempt at one, is over. The caller has said how to hang up.
    pub(super) fn lost(&mut self, now: Instant, cause: Disconnect) {
        if self.blocked.is_some() {
            // Nothing was read, but our pongs were taken: the gateway knew us until now.
            self.link.heard(now);
        }
        self.connection_over();
        if cause == Disconnect::Replaced {
            self.outbox.ready = false;
            self.outbox.forget_closed();
            self.progress.start_over();
        }
        if self.progress.phase == Phase::Draining {
            // Never redial after a drain (A.5).
            self.events.push(Event::Disconnected { cause, redial_until: None });
            self.finish(Outcome::Drained);
            return;
        }
        match self.link.lost(&cause, &self.config.timers, &mut self.entropy, now) {
            Next::Dial { until } => {
                self.events.push(Event::Disconnected { cause, redial_until: Some(until) });
                self.dial(now);
            }
            Next::Finish(outcome) => {
                self.events.push(Event::Disconnected { cause, redial_until: None });
                self.finish(outcome);
            }
        }
    }

    pub(super) fn finish(&mut self, outcome: Outcome) {
        self.connection_over();
        self.link.state = State::Ended;
        self.events.push(Event::Finished(outcome));
    }

    fn connection_over(&mut self) {
        self.inbound.reset(Stage::Off);
        self.outbox.connection_lost();
        self.sessions.connection_lost();
        self.blocked = None;
        self.ended = None;
    }

    /// A closing connection has nothing more to wait for.
    pub(super) fn conclude(&mut self, now: Instant) {
        self.conclude_with(now, HangUp::Orderly);
    }

    pub(super) fn conclude_with(&mut self, now: Instant, how: HangUp) {
        let Some(closing) = self.link.open_mut().and_then(|open| open.closing.take()) else { return };
        self.events.push(Event::HangUp(how));
        match closing.then {
            Then::Redial(cause) => self.lost(now, cause),
            Then::Finish(outcome) => self.finish(outcome),
        }
    }

    /// The connection ended from outside, and all that came before has been parsed.
    pub(super) fn settle_end(&mut self, now: Instant) {
        let Some(end) = self.ended.take() else { return };
        let how = match end {
            End::Eof => HangUp::Orderly,
            End::Reset => HangUp::Abort,
        };
        if self.link.open().is_some_and(|open| open.closing.is_some()) {
            return self.conclude_with(now, how);
        }
        let cause = match end {
            End::Eof if self.link.is_instant_close(&self.config.timers, now) => Disconnect::Capacity,
            End::Eof => Disconnect::Eof,
            End::Reset => Disconnect::Reset,
        };
        self.events.push(Event::HangUp(how));
        self.lost(now, cause);
    }

    /// The gateway's close frame: answered with the same code (RFC 6455 5.5.1).
    pub(super) fn handle_close(&mut self, now: Instant, payload: &Short) {
        let (code, reason) = match parse_close_payload(payload) {
            Ok(close) => (close.code, clip::<MAX_REASON>(close.reason)),
            Err(error) => return self.violate(now, error.into()),
        };
        let sent = self.outbox.close_taken();
        if let Some(closing) = self.link.open_mut().and_then(|open| open.closing.as_mut()) {
            closing.wait = Wait::Sent;
            if sent {
                self.conclude(now);
            }
            return;
        }
        let cause = if self.link.is_instant_close(&self.config.timers, now) {
            Disconnect::Capacity
        } else {
            Disconnect::Closed { code: code.map(CloseCode::get), reason }
        };
        self.outbox.close(Farewell::Theirs, code, "");
        self.begin_closing(now, Then::Redial(cause), Wait::Sent);
    }

    /// The gateway broke a rule: it is told so, then the connection is dropped and dialled again.
    pub(super) fn violate(&mut self, now: Instant, violation: Violation) {
        if !self.link.is_usable() {
            return self.conclude(now);
        }
        let mut reason = Reason::new();
        // A text that does not fit is cut.
        let _ = write!(reason, "{violation}");
        self.outbox.close(Farewell::Theirs, Some(violation.close_code()), &reason);
        self.begin_closing(now, Then::Redial(Disconnect::Protocol(violation)), Wait::Sent);
    }

    fn begin_closing(&mut self, now: Instant, then: Then, wait: Wait) {
        let deadline = now + self.config.timers.close;
        if let Some(open) = self.link.open_mut() {
            open.closing = Some(Closing { deadline, then, wait });
        }
    }

    /// Our own close, with `outcome` at its end. A close that is under way gets that end.
    fn close_and_finish(&mut self, now: Instant, outcome: Outcome) {
        let then = Then::Finish(outcome);
        let Some(open) = self.link.open_mut() else { return };
        if let Some(closing) = &mut open.closing {
            closing.then = then;
            return;
        }
        self.outbox.close(Farewell::Ours, Some(CloseCode::NORMAL), "");
        self.begin_closing(now, then, Wait::Peer);
    }

    pub(super) fn close_after_drain(&mut self, now: Instant) {
        self.progress.drain_until = None;
        if self.link.is_usable() {
            self.close_and_finish(now, Outcome::Drained);
        }
    }

    /// The worker's warm-up failed for good: leaves, with [`Outcome::WorkerFailed`].
    pub fn worker_failed(&mut self, now: Instant) {
        self.end_with(now, Outcome::WorkerFailed);
    }

    /// Ends on request; [`Event::Finished`] follows, within the time for a close.
    pub fn shutdown(&mut self, now: Instant, how: Shutdown) {
        match how {
            Shutdown::Close => self.end_with(now, Outcome::Closed),
            Shutdown::Leave => match self.link.state {
                State::Ended => {}
                State::Open(_) => self.leave(HangUp::Orderly, Outcome::Left),
                _ => self.abandon(Outcome::Left),
            },
        }
    }

    fn end_with(&mut self, now: Instant, outcome: Outcome) {
        match self.link.state {
            State::Ended => {}
            State::Open(_) => {
                if self.link.is_usable() {
                    self.close_current(CloseBy::Us, "the agent ends");
                }
                self.close_and_finish(now, outcome);
            }
            _ => self.abandon(outcome),
        }
    }

    /// Ends while there is no tunnel.
    fn abandon(&mut self, outcome: Outcome) {
        if matches!(self.link.state, State::Waiting { .. }) {
            self.finish(outcome);
        } else {
            self.leave(HangUp::Abort, outcome);
        }
    }

    fn leave(&mut self, how: HangUp, outcome: Outcome) {
        self.events.push(Event::HangUp(how));
        self.finish(outcome);
    }

    /// The answer to [`Event::FreshAgent`]: forfeits the session and starts over under an id never used before.
    pub fn replace_agent(&mut self, now: Instant, agent: AgentId) {
        self.config.agent = agent;
        if matches!(self.link.state, State::Ended) || self.progress.phase == Phase::Draining {
            return;
        }
        if self.link.is_usable() {
            // A clean close, so that the gateway does not hold the old agent's place for its window.
            self.close_current(CloseBy::Us, "the agent starts over");
            self.outbox.close(Farewell::Ours, Some(CloseCode::NORMAL), "");
            return self.begin_closing(now, Then::Redial(Disconnect::Replaced), Wait::Peer);
        }
        if let Some(open) = self.link.open_mut() {
            if let Some(Closing { then: then @ Then::Redial(_), .. }) = &mut open.closing {
                *then = Then::Redial(Disconnect::Replaced);
            }
            return self.close_current(CloseBy::Us, "the agent starts over");
        }
        self.close_current(CloseBy::Us, "the agent starts over");
        if !matches!(self.link.state, State::Waiting { .. }) {
            self.events.push(Event::HangUp(HangUp::Abort));
        }
        self.lost(now, Disconnect::Replaced);
    }
}
