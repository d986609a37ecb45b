//! Deadlines. None is stored in a table: each follows from the state that it belongs to, so none can be forgotten when
//! the state changes. A timer that fired has moved or ended its own deadline.

use super::event::{Disconnect, Event, HangUp, Notice};
use super::link::State;
use super::{Agent, DialFailure};
use crate::time::Instant;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Timer {
    /// The next attempt.
    Dial,
    /// An attempt took too long.
    Connect,
    /// A closing connection took too long.
    Close,
    /// Kept answers may leave.
    Hold,
    /// The time for an instant close is over.
    Settle,
    /// Our own ping.
    Ping,
    /// Nothing was received for too long.
    Dead,
    /// All slots are taken: a sign of life of ours.
    BlockedPong,
    /// The worker is not ready.
    Ready,
    /// A drain waited long enough.
    Drain,
    /// The last action once more.
    Unfreeze,
    /// Nothing comes after a redial.
    Wedge,
}

impl Timer {
    const ALL: [Self; 12] = [
        Self::Dial,
        Self::Connect,
        Self::Close,
        Self::Dead,
        Self::Drain,
        Self::Hold,
        Self::Settle,
        Self::Ping,
        Self::BlockedPong,
        Self::Ready,
        Self::Unfreeze,
        Self::Wedge,
    ];
}

impl Agent {
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        Timer::ALL.into_iter().filter_map(|timer| self.deadline(timer)).min()
    }

    /// Fires what is due. With events waiting in numbers the rest stays due for the next call.
    pub(super) fn fire_due(&mut self, now: Instant) {
        for timer in Timer::ALL {
            if self.events.is_crowded() {
                return;
            }
            if self.deadline(timer).is_some_and(|due| due <= now) {
                self.fire(timer, now);
            }
        }
    }

    fn deadline(&self, timer: Timer) -> Option<Instant> {
        let timers = &self.config.timers;
        let open = match &self.link.state {
            State::Waiting { at } => {
                return (timer == Timer::Dial).then_some(*at).or_else(|| self.ready_due(timer));
            }
            State::Dialing { deadline } | State::Upgrading { deadline, .. } => {
                return (timer == Timer::Connect).then_some(*deadline).or_else(|| self.ready_due(timer));
            }
            State::Ended => return None,
            State::Open(open) => open,
        };
        if let Some(closing) = &open.closing {
            return (timer == Timer::Close).then_some(closing.deadline);
        }
        match timer {
            Timer::Dial | Timer::Connect | Timer::Close => None,
            Timer::Hold => open.held_until,
            Timer::Settle => (!open.useful).then(|| open.since + timers.capacity_window),
            Timer::Ping => (self.blocked.is_none() && !open.pinged).then(|| open.heard + timers.ping_after),
            Timer::Dead => self.blocked.is_none().then(|| open.heard + timers.dead_after),
            Timer::BlockedPong => self.blocked.map(|blocked| blocked.next_pong),
            Timer::Ready => self.ready_due(timer),
            Timer::Drain => self.progress.drain_until,
            Timer::Unfreeze if open.held_until.is_none() => {
                self.config.unfreeze.and_then(|least| self.sessions.unfreeze_at(least))
            }
            Timer::Unfreeze => None,
            Timer::Wedge => self.config.wedge_after.and_then(|after| self.sessions.wedged_at(after)),
        }
    }

    fn ready_due(&self, timer: Timer) -> Option<Instant> {
        let asked_at = self.progress.asked_at.filter(|_| timer == Timer::Ready)?;
        Some(asked_at + self.config.timers.ready_warning)
    }

    fn fire(&mut self, timer: Timer, now: Instant) {
        match timer {
            Timer::Dial => self.dial(now),
            Timer::Connect => {
                self.events.push(Event::HangUp(HangUp::Abort));
                self.lost(now, Disconnect::DialFailed(DialFailure::Timeout));
            }
            Timer::Close => self.conclude_with(now, HangUp::Abort),
            Timer::Hold => {
                if let Some(open) = self.link.open_mut() {
                    open.held_until = None;
                }
            }
            Timer::Settle => self.link.proved_useful(),
            Timer::Ping => {
                if let Some(open) = self.link.open_mut() {
                    open.pinged = true;
                }
                self.outbox.ping = true;
            }
            Timer::Dead => {
                self.events.push(Event::HangUp(HangUp::Abort));
                self.lost(now, Disconnect::Silent);
            }
            Timer::BlockedPong => {
                if let Some(blocked) = &mut self.blocked {
                    blocked.next_pong = now + self.config.timers.blocked_pong;
                }
                self.outbox.pong(&[]);
            }
            Timer::Ready => {
                if let Some(since) = self.progress.asked_at.take() {
                    self.events.note(Notice::ReadyOverdue { since });
                }
            }
            Timer::Drain => self.close_after_drain(now),
            Timer::Unfreeze => {
                if let Some((epoch, sequence)) = self.sessions.unfreeze() {
                    self.events.push(Event::Unfreeze { epoch, sequence });
                }
            }
            Timer::Wedge => {
                let silent_for = self.sessions.wedge(now);
                self.events.push(Event::Wedged { silent_for });
                if self.config.fresh_agent_on_wedge {
                    self.events.push(Event::FreshAgent);
                }
            }
        }
    }
}
