//! Where received bytes go. The agent holds no payload: it tells the caller where to put the next bytes, in offsets,
//! and afterwards looks at the few of them that are headers through [`Memory`].

use crate::time::Instant;

/// A slot's payload starts here; offsets in a slot count from the start of this headroom. One page, so that the
/// payload is page-aligned when the slot is.
pub const HEADROOM: u32 = 4096;

/// One of the two places for received bytes. Each is `HEADROOM + slot_bytes` long.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// Private memory of the caller.
    Scratch,
    /// The slot that was offered last.
    Slot,
}

/// The caller's memory. The agent never names a byte outside `0..HEADROOM + slot_bytes`, and no slot unless one is on
/// offer.
pub trait Memory {
    /// Copies bytes out: from `offset` of `place`, as many as `into` holds (at most a few hundred).
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]);
    /// Moves `length` bytes; the ranges may overlap, as for `memmove`.
    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32);
}

/// Where the next bytes shall go.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Read {
    /// There is nothing to read: no connection, or all slots are taken.
    Idle,
    /// Receive up to `max` bytes (at least one) at `offset` of `place`.
    At {
        /// Which memory.
        place: Place,
        /// From its start, headroom included.
        offset: u32,
        /// At most this many bytes.
        max: u32,
        /// All `max` bytes are known to come, and nothing has to be looked at before: `MSG_WAITALL` may be used.
        exact: bool,
    },
}

/// A message's payload that is arriving in the slot on offer. Its first `filled` bytes, counted from behind the headroom,
/// stay where they are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Filling {
    /// When the message's first byte came: what it will be announced with if it becomes whole.
    pub first_byte: Instant,
    /// Bytes of payload. The last ones are told by the event alone.
    pub filled: u32,
}

/// Bytes that were received and not parsed yet. `start <= end <= HEADROOM + slot_bytes`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) place: Place,
    pub(super) start: u32,
    pub(super) end: u32,
}

impl Window {
    pub(super) const EMPTY: Self = Self { place: Place::Scratch, start: 0, end: 0 };

    pub(super) const fn len(&self) -> u32 {
        self.end - self.start
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Copies the next bytes out without consuming them; says how many there were.
    pub(super) fn peek(&self, memory: &impl Memory, into: &mut [u8]) -> usize {
        let count = into.len().min(self.len() as usize);
        if count > 0 {
            memory.peek(self.place, self.start, &mut into[..count]);
        }
        count
    }

    /// Consumes `count` bytes; never more than there are.
    pub(super) fn skip(&mut self, count: u32) {
        self.start += count.min(self.len());
    }
}
