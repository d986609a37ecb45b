//! The connection and the outage before it: when to dial, how long to keep trying, when to give up.
//!
//! ```text
//! Waiting -> Dialing -> Upgrading -> Open -> (closing) -> Waiting ...
//!                                                      -> Ended
//! ```
//!
//! One budget covers every cause of an outage. It begins with the loss of a connection that had proved useful, and
//! ends with the first frame of the next one, however many attempts lie between.

use core::time::Duration;

use super::config::Timers;
use super::entropy::Entropy;
use super::event::{Disconnect, Outcome};
use crate::time::Instant;

#[expect(clippy::large_enum_variant, reason = "there is one, and it is open most of its life")]
#[derive(Debug)]
pub(super) enum State {
    /// The next attempt is due then.
    Waiting { at: Instant },
    /// The caller is connecting.
    Dialing { deadline: Instant },
    /// The request was written.
    Upgrading { deadline: Instant, key: [u8; 24] },
    /// Frames flow.
    Open(Open),
    /// Nothing happens any more.
    Ended,
}

/// An upgraded connection.
#[derive(Debug)]
pub(super) struct Open {
    /// The `101`.
    pub(super) since: Instant,
    /// The last byte received, or the end of a time in which nothing was read.
    pub(super) heard: Instant,
    /// A ping of ours is out since `heard`.
    pub(super) pinged: bool,
    /// It proved that it stays: a frame other than close came, or the time for an instant close is over.
    pub(super) useful: bool,
    /// Kept answers wait until then, or until a frame comes.
    pub(super) held_until: Option<Instant>,
    pub(super) closing: Option<Closing>,
}

/// A connection that is on its way to its end.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) deadline: Instant,
    pub(super) then: Then,
    pub(super) wait: Wait,
}

/// What follows the end of a connection.
#[derive(Clone, Debug)]
pub(super) enum Then {
    Redial(Disconnect),
    Finish(Outcome),
}

/// What the end waits for, the deadline aside.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// Our close frame leaves.
    Sent,
    /// The peer closes, too.
    Peer,
}

/// What to do about the token after it was refused.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Token {
    Unquestioned,
    /// Refused once in this outage: read again with the next dial.
    Reread,
}

/// What is decided after a connection, or an attempt at one, is over.
#[expect(clippy::large_enum_variant, reason = "there is no heap to put a reason on")]
pub(super) enum Next {
    /// Dial then.
    Dial {
        until: Instant,
    },
    Finish(Outcome),
}

#[derive(Debug)]
pub(super) struct Link {
    pub(super) state: State,
    /// A tunnel of this job and agent was up once, perhaps in a predecessor's time.
    pub(super) established: bool,
    /// The last byte of a useful connection.
    pub(super) last_byte: Option<Instant>,
    /// Attempts in this outage.
    attempt: u32,
    /// Connections in a row that ended as soon as they had begun, though they were useful.
    flaps: u32,
    /// The budget's end.
    until: Instant,
    token: Token,
    /// Over the cap, keep trying.
    patient: bool,
    /// An upgrade was asked for and its answer never came: the gateway may hold that connection for a while.
    unanswered: bool,
}

impl Link {
    /// Before the first dial.
    pub(super) fn new(timers: &Timers, patient: bool, now: Instant) -> Self {
        Self {
            state: State::Waiting { at: now },
            established: false,
            last_byte: None,
            attempt: 0,
            flaps: 0,
            until: now + timers.dial,
            token: Token::Unquestioned,
            patient,
            unanswered: false,
        }
    }

    /// After a predecessor's end: this is a redial.
    pub(super) fn redial_of(&mut self, timers: &Timers, last_byte: Option<Instant>, now: Instant) {
        self.established = true;
        self.last_byte = last_byte;
        self.until = last_byte.unwrap_or(now) + timers.redial_after_silence;
    }

    /// Counts the next attempt; returns its number, the time for it, and whether to read the token again.
    pub(super) fn begin_attempt(&mut self, timers: &Timers, now: Instant) -> (u32, Duration, bool) {
        self.attempt = self.attempt.saturating_add(1);
        // The last attempt of a budget is not cut down to nothing.
        let timeout = timers.connect.min(self.until.since(now).max(timers.connect / 8));
        self.state = State::Dialing { deadline: now + timeout };
        (self.attempt, timeout, self.token == Token::Reread)
    }

    pub(super) const fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The `101` came. Returns whether it is a redial's.
    pub(super) fn upgraded(&mut self, timers: &Timers, now: Instant) -> bool {
        let held_until = self.established.then(|| now + timers.hold_answers);
        self.state = State::Open(Open {
            since: now,
            heard: now,
            pinged: false,
            useful: false,
            held_until,
            closing: None,
        });
        self.established
    }

    pub(super) const fn open(&self) -> Option<&Open> {
        if let State::Open(open) = &self.state { Some(open) } else { None }
    }

    pub(super) const fn open_mut(&mut self) -> Option<&mut Open> {
        if let State::Open(open) = &mut self.state { Some(open) } else { None }
    }

    /// Open, and not on its way to its end.
    pub(super) fn is_usable(&self) -> bool {
        self.open().is_some_and(|open| open.closing.is_none())
    }

    /// The open connection has proved that it stays.
    pub(super) fn proved_useful(&mut self) {
        let State::Open(open) = &mut self.state else { return };
        open.held_until = None;
        if !open.useful {
            open.useful = true;
            self.established = true;
            self.last_byte = Some(open.heard);
            self.token = Token::Unquestioned;
        }
    }

    /// Bytes came.
    pub(super) fn heard(&mut self, now: Instant) {
        let State::Open(open) = &mut self.state else { return };
        open.heard = now;
        open.pinged = false;
        if open.useful {
            self.last_byte = Some(now);
        }
    }

    /// A close or an end, this soon and before anything else, means the cap: or, on a redial, that the gateway still
    /// holds the old connection.
    pub(super) fn is_instant_close(&self, timers: &Timers, now: Instant) -> bool {
        self.open().is_some_and(|open| !open.useful && now.since(open.since) < timers.capacity_window)
    }

    /// The connection, or the attempt, is over for `cause`. Leaves the state at `Waiting` when it goes on.
    pub(super) fn lost(
        &mut self,
        cause: &Disconnect,
        timers: &Timers,
        entropy: &mut Entropy,
        now: Instant,
    ) -> Next {
        if let State::Open(open) = &self.state
            && open.useful
        {
            let brief = now.since(open.since) < timers.capacity_window;
            self.flaps = if brief { self.flaps.saturating_add(1) } else { 0 };
            self.attempt = 0;
            self.until = match cause {
                Disconnect::Closed { .. } | Disconnect::Eof | Disconnect::Protocol(_) => {
                    now + timers.redial_after_close
                }
                _ => open.heard + timers.redial_after_silence,
            };
        }
        let answered = matches!(cause, Disconnect::Refused { .. } | Disconnect::Handshake(_));
        self.unanswered |= matches!(self.state, State::Upgrading { .. }) && !answered;
        self.state = State::Ended;
        match cause {
            Disconnect::Replaced => {
                // As an agent that was never seen; the old one's place may still count towards the cap.
                *self = Self::new(timers, true, now);
                return Next::Dial { until: self.until };
            }
            Disconnect::Refused { status: status @ (401 | 403) } => {
                if !self.established || self.token == Token::Reread {
                    return Next::Finish(Outcome::TokenRefused { status: *status, first: !self.established });
                }
                self.token = Token::Reread;
            }
            // Our own earlier attempt may be what is connected: a new socket of the same agent is closed (A.1).
            Disconnect::Capacity if !self.established && self.unanswered && !self.patient => {}
            Disconnect::Capacity if !self.established => {
                if !self.patient {
                    return Next::Finish(Outcome::Capacity);
                }
                // The gateway is there: the time for a first dial counts from now.
                self.until = now + timers.dial;
            }
            _ => {}
        }
        // However late a loss is noticed, one attempt is owed to it.
        if now >= self.until && self.attempt > 0 {
            let last = cause.clone();
            return Next::Finish(if self.established {
                Outcome::RedialBudget { last }
            } else {
                Outcome::DialBudget { last }
            });
        }
        let at = (now + self.delay(timers, entropy)).min(self.until);
        self.state = State::Waiting { at };
        Next::Dial { until: self.until }
    }

    /// Full jitter: anything between nothing and a bound that doubles. The first retry goes at once.
    fn delay(&self, timers: &Timers, entropy: &mut Entropy) -> Duration {
        let retries = if self.established { self.attempt } else { self.attempt.saturating_sub(1) };
        match retries.max(self.flaps.saturating_sub(1)) {
            0 => timers.backoff_first,
            retry => {
                let doubled = timers.backoff_base.saturating_mul(1 << (retry - 1).min(16));
                entropy.below(doubled.min(timers.backoff_max))
            }
        }
    }
}
