//! What received frames mean: the answer to the upgrade, control frames, data frames, pings. Timers are elsewhere, and
//! so is everything about ends.

use super::event::{CloseBy, Disconnect, Event, HangUp, Kind, Notice};
use super::inbound::{Complete, Stage, Step};
use super::link::State;
use super::phase::{Phase, Warmup};
use super::{Agent, Blocked};
use crate::agent::place::Memory;
use crate::time::Instant;
use crate::tunnel::control::Control;
use crate::tunnel::{SessionId, clip};
use crate::ws::handshake::{HandshakeError, MAX_HEAD, Response, parse_response};
use crate::ws::message::ControlKind;

impl Agent {
    pub(super) fn parse(&mut self, now: Instant, memory: &mut impl Memory) -> bool {
        let mut progress = false;
        loop {
            if self.events.has_flow() || self.events.is_full_of_notices() {
                return true;
            }
            if !self.parses() {
                break;
            }
            let went = match self.link.state {
                State::Upgrading { key, .. } => self.read_answer(now, memory, &key),
                _ => self.step(now, memory),
            };
            if !went {
                break;
            }
            progress = true;
        }
        if self.ended.is_some() {
            self.settle_end(now);
            progress = true;
        }
        progress
    }

    /// The answer to the upgrade. Out of line: its buffer is large, and it is needed once a connection.
    #[inline(never)]
    fn read_answer(&mut self, now: Instant, memory: &impl Memory, key: &[u8; 24]) -> bool {
        if self.inbound.window.is_empty() {
            return false;
        }
        let mut bytes = [0; MAX_HEAD];
        let count = self.inbound.window.peek(memory, &mut bytes);
        let cause = match parse_response(&bytes[..count], key) {
            Ok(Response::Incomplete) if !self.inbound.answer_is_full() => return false,
            Ok(Response::Incomplete) => Disconnect::Handshake(HandshakeError::TooLong),
            Ok(Response::Accepted { consumed }) => {
                self.inbound.begin_frames(consumed as u32);
                self.upgraded(now);
                return true;
            }
            Ok(Response::Refused { status, .. }) => Disconnect::Refused { status },
            Err(error) => Disconnect::Handshake(error),
        };
        self.events.push(Event::HangUp(HangUp::Abort));
        self.lost(now, cause);
        true
    }

    fn upgraded(&mut self, now: Instant) {
        let attempt = self.link.attempt();
        let resumed = self.link.upgraded(&self.config.timers, now);
        if resumed {
            self.sessions.redialled(now);
            self.outbox.ready |= self.progress.redialled();
        }
        self.events.push(Event::Upgraded { attempt, resumed });
    }

    fn step(&mut self, now: Instant, memory: &mut impl Memory) -> bool {
        let step = match self.inbound.step(memory, self.sessions.current()) {
            Ok(Step::Starved) => return false,
            Ok(Step::NeedSlot) => {
                let next_pong = now + self.config.timers.blocked_pong;
                self.blocked.get_or_insert(Blocked { next_pong, told: false });
                return false;
            }
            Ok(step) => step,
            Err(violation) => {
                self.violate(now, violation);
                return true;
            }
        };
        self.unblock(now);
        match step {
            Step::Starved | Step::NeedSlot => {}
            Step::Went => {
                if matches!(self.inbound.stage, Stage::Data { .. }) {
                    self.link.proved_useful();
                }
            }
            Step::Control(kind) => self.handle_control_frame(now, kind),
            // What comes after our close frame is read for the peer's only.
            Step::Data(_) if !self.link.is_usable() => self.inbound.slot = true,
            Step::Text { .. } | Step::TooLarge { .. } if !self.link.is_usable() => {}
            Step::Text { readable } => self.handle_text(now, readable),
            Step::Data(complete) => self.handle_data(now, complete),
            Step::TooLarge { epoch, size } => {
                self.sessions.message(now);
                let sequence = self.sessions.observation(epoch, now);
                self.events.push(Event::ObservationTooLarge { epoch, sequence, size });
            }
            Step::Dropped(kind) => {
                self.sessions.message(now);
                self.events.note(Notice::DroppedFrame(kind));
            }
        }
        true
    }

    /// There is a slot again.
    fn unblock(&mut self, now: Instant) {
        let Some(blocked) = self.blocked.take() else { return };
        // Nothing was read meanwhile, so that nothing was heard proves nothing.
        self.link.heard(now);
        if blocked.told {
            self.events.note(Notice::Unblocked);
        }
    }

    /// Out of line, as [`Agent::handle_text`]: the frame path has no room for what is large and rare.
    #[inline(never)]
    fn handle_control_frame(&mut self, now: Instant, kind: ControlKind) {
        let payload = self.inbound.take_control_payload();
        match kind {
            ControlKind::Close => self.handle_close(now, &payload),
            ControlKind::Pong => self.link.proved_useful(),
            ControlKind::Ping => {
                self.link.proved_useful();
                if self.link.is_usable() {
                    self.outbox.pong(&payload);
                    self.events.note(Notice::Pinged);
                }
            }
        }
    }

    fn handle_data(&mut self, now: Instant, complete: Complete) {
        self.sessions.message(now);
        self.progress.ready_arrived();
        let sequence = self.sessions.observation(complete.epoch, complete.first_byte);
        self.events.observation(sequence, complete);
    }

    #[inline(never)]
    fn handle_text(&mut self, now: Instant, readable: bool) {
        self.sessions.message(now);
        match readable.then(|| self.inbound.take_control()).flatten() {
            None => self.events.note(Notice::MalformedControl),
            Some(Control::Unknown { kind }) => self.events.note(Notice::UnknownControl { kind }),
            Some(Control::Ready) => {
                let kind: Kind = clip("ready");
                self.events.note(Notice::WrongDirection { kind });
            }
            Some(Control::Warmup) => self.ask_for_warmup(now),
            Some(Control::Queued { reason }) => {
                self.progress.ready_arrived();
                self.events.push(Event::Queued { reason });
            }
            Some(Control::SessionOpen { session }) => self.open_session(session),
            Some(Control::SessionClose { session, reason }) => {
                if self.sessions.current().is_some_and(|(open, _)| *open == session) {
                    self.close_current(CloseBy::Gateway, &reason);
                } else {
                    self.outbox.session_close_heard(&session);
                    self.events.note(Notice::StraySessionClose);
                }
            }
            Some(Control::Drain { reason }) => {
                if self.progress.phase != Phase::Draining {
                    self.progress.phase = Phase::Draining;
                    self.progress.drain_until = Some(now + self.config.timers.drain);
                    self.events.push(Event::Drain { reason });
                }
            }
        }
    }

    pub(super) fn ask_for_warmup(&mut self, now: Instant) {
        match self.progress.warmup(now) {
            Warmup::Ask => self.events.push(Event::Warmup),
            Warmup::Ready => {
                self.outbox.ready = true;
                self.events.note(Notice::WarmAlready);
            }
            Warmup::Nothing => {}
        }
    }

    fn open_session(&mut self, session: SessionId) {
        self.progress.ready_arrived();
        if self.outbox.closes_again(&session) {
            return self.events.note(Notice::RestoredAfterClose);
        }
        self.outbox.forget_closed();
        let open = self.sessions.current().filter(|(open, _)| **open == session).map(|(_, epoch)| epoch);
        let (epoch, resumed) = match open {
            Some(epoch) => (epoch, true),
            None => {
                self.close_current(CloseBy::Replaced, "");
                (self.sessions.open(session.clone()), false)
            }
        };
        self.events.push(Event::SessionOpened { session, epoch, resumed });
    }
}
