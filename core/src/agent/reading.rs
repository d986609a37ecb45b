//! Where the next bytes go: the reading half of [`Inbound`].
//!
//! ```text
//!            0                    HEADROOM                     HEADROOM + slot_bytes
//! slot       |......[header][head]|payload.....................|
//! scratch    |control frames, texts, what belongs to nobody....|
//! ```
//!
//! A read is planned only when everything received before it has been parsed, so what is planned can't be disturbed by
//! bytes that still lie there.

use super::inbound::{Inbound, Message, Stage};
use super::place::{Filling, HEADROOM, Place, Read, Window};
use crate::time::Instant;
use crate::ws::handshake::MAX_HEAD;

/// Outside a session only control frames and the warm-up's empty data frame are due.
const OUTSIDE_SESSION: u32 = 4096;
/// Without a slot: the longest header of a data frame fits, and little payload comes along that has to be moved.
const WITHOUT_SLOT: u32 = 512;
/// Between fragments: with less room than this left in the slot, the next header is read elsewhere.
const BETWEEN_FRAGMENTS: u32 = 256;

/// What the plan depends on besides the bytes.
pub(super) struct Outlook {
    /// Bytes of the open session's id.
    pub(super) session: Option<usize>,
    /// Observations that wait for their answer.
    pub(super) unanswered: u32,
}

impl Inbound {
    /// Bytes of each place.
    const fn place_len(&self) -> u32 {
        HEADROOM + self.limits.slot_bytes
    }

    /// Plans the next read and remembers it.
    pub(super) fn plan_read(&mut self, outlook: &Outlook) -> Read {
        let read = self.plan(outlook);
        self.reading = match read {
            Read::Idle => None,
            Read::At { place, offset, max, .. } => Some((place, offset, max)),
        };
        read
    }

    /// `length` bytes were received where the last plan said. Bytes that nobody asked for are ignored.
    pub(super) fn received(&mut self, now: Instant, length: u32) {
        let Some((place, offset, max)) = self.reading.take() else { return };
        let length = length.min(max);
        if length == 0 {
            return;
        }
        self.received_at = now;
        if self.stage == Stage::Answer {
            self.window.end = offset + length;
        } else {
            self.window = Window { place, start: offset, end: offset + length };
        }
    }

    /// Takes the slot off offer, unless bytes of a message lie in it or may be on their way into it.
    pub(super) fn take_back_slot(&mut self) -> bool {
        let in_use = (self.window.place == Place::Slot && !self.window.is_empty())
            || matches!(self.reading, Some((Place::Slot, ..)))
            || matches!(self.message, Message::Payload { filled, .. } if filled > 0);
        let taken = self.slot && !in_use;
        if taken {
            self.slot = false;
        }
        taken
    }

    /// What is arriving in the slot.
    pub(super) const fn filling(&self) -> Option<Filling> {
        match self.message {
            Message::Payload { filled, .. } if self.slot => {
                Some(Filling { first_byte: self.first_byte, filled })
            }
            _ => None,
        }
    }

    /// There is no room for more of an answer to the upgrade.
    pub(super) fn answer_is_full(&self) -> bool {
        self.window.end >= self.answer_room()
    }

    fn answer_room(&self) -> u32 {
        self.place_len().min(MAX_HEAD as u32)
    }

    fn plan(&self, outlook: &Outlook) -> Read {
        match self.stage {
            Stage::Off => Read::Idle,
            Stage::Answer => {
                let room = self.answer_room().saturating_sub(self.window.end);
                at(Place::Scratch, self.window.end, room, false)
            }
            _ if !self.window.is_empty() => Read::Idle,
            Stage::Header => self.plan_header(outlook),
            Stage::Control(_) => self.plan_remainder(),
            Stage::Data { last } => self.plan_data(last, outlook),
        }
    }

    fn plan_header(&self, outlook: &Outlook) -> Read {
        match (self.message, outlook.session) {
            (Message::Payload { filled, .. }, _) if self.slot => self.plan_next_fragment(filled, 0, outlook),
            (Message::TooLarge { .. } | Message::Dropping(_), _) => {
                at(Place::Scratch, 0, self.place_len(), false)
            }
            (Message::None, Some(session)) if self.slot => {
                let missing = self.expect.before_payload(&self.header[..self.header_have], session);
                self.plan_first(missing, outlook)
            }
            (Message::None, None) => at(Place::Scratch, 0, OUTSIDE_SESSION.min(self.place_len()), false),
            _ => at(Place::Scratch, 0, WITHOUT_SLOT.min(self.place_len()), false),
        }
    }

    fn plan_data(&self, last: bool, outlook: &Outlook) -> Read {
        match self.message {
            Message::Payload { .. } if !self.slot => Read::Idle,
            Message::Payload { filled, .. } if last => {
                let room = self.limits.slot_bytes.saturating_sub(filled);
                let wanted = self.left().min(room);
                at(Place::Slot, HEADROOM + filled, wanted, true)
            }
            Message::Payload { filled, .. } => self.plan_next_fragment(filled, self.left(), outlook),
            Message::Head { fed } if self.slot => {
                let session = outlook.session.unwrap_or(0);
                let missing = self.expect.before_payload_in_head(&self.head, fed, session);
                if !last {
                    return self.plan_first(missing, outlook);
                }
                let offset = HEADROOM.saturating_sub(missing);
                let room = self.place_len() - offset;
                at(Place::Slot, offset, self.left().min(room), self.left() <= room)
            }
            Message::Head { .. } if !last => at(Place::Scratch, 0, WITHOUT_SLOT.min(self.place_len()), false),
            Message::Head { .. } => at(Place::Scratch, 0, self.left().min(WITHOUT_SLOT), false),
            _ => self.plan_remainder(),
        }
    }

    /// The start of a data frame, `missing` bytes before its payload.
    fn plan_first(&self, missing: u32, outlook: &Outlook) -> Read {
        let offset = HEADROOM.saturating_sub(missing);
        let room = self.place_len() - offset;
        at(Place::Slot, offset, room.min(self.expect.bound(outlook.unanswered)), false)
    }

    /// Behind what is filled, in one large read: payload of several fragments, compacted afterwards.
    fn plan_next_fragment(&self, filled: u32, left: u32, outlook: &Outlook) -> Read {
        let room = self.limits.slot_bytes.saturating_sub(filled);
        if room < BETWEEN_FRAGMENTS && left == 0 {
            return at(Place::Scratch, 0, BETWEEN_FRAGMENTS, false);
        }
        let bound = self.expect.bound(outlook.unanswered).max(left);
        at(Place::Slot, HEADROOM + filled, room.min(bound), false)
    }

    /// The rest of this frame, to where it disturbs nothing.
    fn plan_remainder(&self) -> Read {
        let wanted = self.left().min(self.place_len());
        at(Place::Scratch, 0, wanted, true)
    }

    fn left(&self) -> u32 {
        u32::try_from(self.remaining).unwrap_or(u32::MAX)
    }
}

/// A read, or none when it would be empty.
const fn at(place: Place, offset: u32, max: u32, exact: bool) -> Read {
    if max == 0 { Read::Idle } else { Read::At { place, offset, max, exact } }
}
