//! Events that wait for the caller, in fixed room. What has to be acted on is never lost: the agent parses no further
//! and fires no timer while such an event waits in numbers. Parsing waits for room for a notice as well, since some are
//! counted; where one comes about otherwise, the oldest gives way.

use heapless::Deque;

use super::event::{Event, Notice};
use super::inbound::Complete;

/// Flow events. A timer is fired with at most [`CROWDED`] waiting and adds up to three; each of `close_session`,
/// `handle_end` and one of the ending commands can add its own before everything is over.
const FLOW: usize = 10;
const CROWDED: usize = 2;
const NOTICES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Events {
    /// An observation, which goes before all that is in `flow`: it came when nothing was. An event with texts is some
    /// hundred bytes that are moved twice; this one comes with each frame.
    observation: Option<(u64, Complete)>,
    flow: Deque<Event, FLOW>,
    notices: Deque<Notice, NOTICES>,
}

impl Events {
    pub(super) fn push(&mut self, event: Event) {
        match event {
            Event::Notice(notice) => self.note(notice),
            event => {
                // There is room, unless a caller calls commands without end and never drains; then it gets no more.
                let _ = self.flow.push_back(event);
            }
        }
    }

    /// The observation with this number lies complete in its slot. Parsing stops at each event of the flow, so that none
    /// waits now.
    pub(super) fn observation(&mut self, sequence: u64, complete: Complete) {
        debug_assert!(!self.has_flow(), "it would overtake what happened before");
        self.observation = Some((sequence, complete));
    }

    pub(super) fn note(&mut self, notice: Notice) {
        if self.notices.is_full() {
            self.notices.pop_front();
        }
        // There is room now.
        let _ = self.notices.push_back(notice);
    }

    pub(super) fn pop(&mut self) -> Option<Event> {
        if !self.notices.is_empty() {
            return self.notices.pop_front().map(Event::Notice);
        }
        match self.observation.take() {
            Some((sequence, Complete { epoch, length, moved, first_byte, last_byte })) => {
                Some(Event::Observation { epoch, sequence, length, moved, first_byte, last_byte })
            }
            None => self.flow.pop_front(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        !self.has_flow() && self.notices.is_empty()
    }

    /// Something waits that the caller has to act on.
    pub(super) fn has_flow(&self) -> bool {
        self.observation.is_some() || !self.flow.is_empty()
    }

    /// The next notice would push one out.
    pub(super) fn is_full_of_notices(&self) -> bool {
        self.notices.is_full()
    }

    /// The caller has to drain before anything may fire.
    pub(super) fn is_crowded(&self) -> bool {
        self.flow.len() > CROWDED
    }
}
