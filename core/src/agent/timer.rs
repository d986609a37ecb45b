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
        let mut next: Option<Instant> = None;
        self.deadlines(|_, due| next = Some(next.map_or(due, |next| next.min(due))));
        next
    }

    /// Fires what is due. With events waiting in numbers the rest stays due for the next call.
    pub(super) fn fire_due(&mut self, now: Instant) {
        if self.next_deadline().is_none_or(|due| due > now) {
            return;
        }
        for timer in Timer::ALL {
            if self.events.is_crowded() {
                return;
            }
            // Asked anew each time: one that fires moves others.
            let mut due = None;
            self.deadlines(|it, at| due = due.or_else(|| (it == timer).then_some(at)));
            if due.is_some_and(|due| due <= now) {
                self.fire(timer, now);
            }
        }
    }

    /// Every deadline that there is. Looked at several times a frame, so the state is asked once for all of them.
    fn deadlines(&self, mut each: impl FnMut(Timer, Instant)) {
        let timers = &self.config.timers;
        let ready_due = self.progress.asked_at.map(|asked_at| asked_at + timers.ready_warning);
        let mut when = |timer, due: Option<Instant>| due.into_iter().for_each(|due| each(timer, due));
        let open = match &self.link.state {
            State::Waiting { at } => {
                when(Timer::Dial, Some(*at));
                return when(Timer::Ready, ready_due);
            }
            State::Dialing { deadline } | State::Upgrading { deadline, .. } => {
                when(Timer::Connect, Some(*deadline));
                return when(Timer::Ready, ready_due);
            }
            State::Ended => return,
            State::Open(open) => open,
        };
        if let Some(closing) = &open.closing {
            return when(Timer::Close, Some(closing.deadline));
        }
        match self.blocked {
            Some(blocked) => when(Timer::BlockedPong, Some(blocked.next_pong)),
            None => {
                when(Timer::Ping, (!open.pinged).then(|| open.heard + timers.ping_after));
                when(Timer::Dead, Some(open.heard + timers.dead_after));
            }
        }
        when(Timer::Hold, open.held_until);
        when(Timer::Settle, (!open.useful).then(|| open.since + timers.capacity_window));
        when(Timer::Ready, ready_due);
        when(Timer::Drain, self.progress.drain_until);
        if let Some(least) = self.config.unfreeze.filter(|_| open.held_until.is_none()) {
            when(Timer::Unfreeze, self.sessions.unfreeze_at(least));
        }
        if let Some(after) = self.config.wedge_after {
            when(Timer::Wedge, self.sessions.wedged_at(after));
        }
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
