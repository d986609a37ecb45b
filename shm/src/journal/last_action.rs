//! The action that was started last, with its payload: a successor may have to send it once more, when neither it nor
//! the next observation arrived (the design's *unfreeze*).
//!
//! There is one copy, written before the action counts as started. In lockstep its observation has acknowledged the
//! action before it, and is itself held until the action is started: so nobody needs what a crash tears. Where a
//! crash tears what was about to be sent for the second time, there is no second time.

use core::time::Duration;

use sidecar_core::tunnel::Epoch;

use super::place;
use super::words::step;
use crate::crash::{Point, point};
use crate::layout::JOURNAL_BYTES;
use crate::map::Map;
use crate::sync::Ordering;

/// Words in front of the payload: sequence, epoch and whether it was sent again, length and mask, longest wait.
const HEADER: usize = 4;
/// The check stands in front of all of them.
const PAYLOAD: usize = place::LAST_ACTION + (1 + HEADER) * 8;
/// Longer payloads are not kept for a successor.
pub const LONGEST_KEPT: usize = JOURNAL_BYTES - PAYLOAD;

/// See the module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LastAction<Payload = Vec<u8>> {
    /// Its session's epoch.
    pub epoch: Epoch,
    /// Of the observation that it answers.
    pub sequence: u64,
    /// It was started a second time: never a third.
    pub resent: bool,
    /// The longest wait from an action to the next observation in the session so far.
    pub longest_wait: Duration,
    /// What the payload is masked with, from its first byte on.
    pub mask: [u8; 4],
    /// The payload, masked.
    pub payload: Payload,
}

impl LastAction<&[u8]> {
    pub(super) fn write(&self, map: &Map) {
        let word = |index: usize| map.word64(place::LAST_ACTION + index * 8);
        // Nothing is there while it is being written; release and the order of the compiler are all that a reader needs
        // who comes after this process's death.
        word(0).store(0, Ordering::Relaxed);
        crate::sync::fence(Ordering::Release);
        if self.payload.len() > LONGEST_KEPT {
            return;
        }
        point(Point::JournalBefore);
        let header = self.header();
        let mut sum = start();
        for (index, value) in header.into_iter().enumerate() {
            sum = step(sum, value);
            word(1 + index).store(value, Ordering::Relaxed);
        }
        point(Point::JournalTorn);
        for (index, chunk) in self.payload.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            let value = u64::from_le_bytes(bytes);
            sum = step(sum, value);
            word(1 + HEADER + index).store(value, Ordering::Relaxed);
        }
        word(0).store(sum | 1, Ordering::Release);
        point(Point::JournalAfter);
    }

    fn header(&self) -> [u64; HEADER] {
        let wait = u64::try_from(self.longest_wait.as_nanos()).unwrap_or(u64::MAX);
        [
            self.sequence,
            u64::from(self.epoch.0) | u64::from(self.resent) << 32,
            // `LONGEST_KEPT` is less than a u32.
            self.payload.len() as u64 | u64::from(u32::from_le_bytes(self.mask)) << 32,
            wait,
        ]
    }
}

impl LastAction {
    /// What is there, if it is whole.
    pub(super) fn read(map: &Map) -> Option<Self> {
        let word = |index: usize| map.word64(place::LAST_ACTION + index * 8).load(Ordering::Relaxed);
        let header: [u64; HEADER] = core::array::from_fn(|index| word(1 + index));
        // Every cast takes the bits that `header` put there.
        let length = usize::try_from(header[2] as u32).ok().filter(|length| *length <= LONGEST_KEPT)?;
        let mut sum = header.into_iter().fold(start(), step);
        let mut payload = Vec::with_capacity(length.next_multiple_of(8));
        for index in 0..length.div_ceil(8) {
            let value = word(1 + HEADER + index);
            sum = step(sum, value);
            payload.extend(value.to_le_bytes());
        }
        payload.truncate(length);
        (word(0) == sum | 1).then(|| Self {
            sequence: header[0],
            epoch: Epoch(header[1] as u32),
            resent: header[1] >> 32 & 1 == 1,
            mask: ((header[2] >> 32) as u32).to_le_bytes(),
            longest_wait: Duration::from_nanos(header[3]),
            payload,
        })
    }

    /// The same, with the payload borrowed.
    pub(crate) fn borrowed(&self) -> LastAction<&[u8]> {
        let Self { epoch, sequence, resent, longest_wait, mask, ref payload } = *self;
        LastAction { epoch, sequence, resent, longest_wait, mask, payload }
    }
}

const fn start() -> u64 {
    place::LAST_ACTION as u64
}

const _: () = assert!(LONGEST_KEPT.is_multiple_of(8), "the last word lies in the journal");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::blank;

    fn action(payload: &[u8]) -> LastAction<&[u8]> {
        LastAction {
            epoch: Epoch(3),
            sequence: 41,
            resent: true,
            longest_wait: Duration::from_millis(250),
            mask: [1, 2, 3, 0xff],
            payload,
        }
    }

    #[test]
    fn it_is_read_back_whatever_its_length() {
        let map = blank(JOURNAL_BYTES);
        assert_eq!(LastAction::read(&map), None);
        for length in [0, 1, 7, 8, 9, 64, LONGEST_KEPT - 1, LONGEST_KEPT] {
            let payload: Vec<u8> = (0..length).map(|byte| byte as u8).collect();
            action(&payload).write(&map);
            assert_eq!(LastAction::read(&map).unwrap().borrowed(), action(&payload));
        }
        action(&vec![1; LONGEST_KEPT + 1]).write(&map);
        assert_eq!(LastAction::read(&map), None, "none is better than one of before");
    }

    #[test]
    fn a_torn_one_is_none() {
        let map = blank(JOURNAL_BYTES);
        for word in [1, 2, 3, 4, 5, 12] {
            action(&[7; 64]).write(&map);
            let at = map.word64(place::LAST_ACTION + word * 8);
            at.store(at.load(Ordering::Relaxed) ^ 1 << 3, Ordering::Relaxed);
            assert_eq!(LastAction::read(&map), None, "word {word}");
        }
        action(&[7; 64]).write(&map);
        map.word64(place::LAST_ACTION + 3 * 8).store(u64::from(u32::MAX), Ordering::Relaxed);
        assert_eq!(LastAction::read(&map), None, "a length that is nonsense");
    }
}
