//! One record of the journal: two copies of a few words, each with a count and a checksum.
//!
//! A write goes to the older copy, so that a writer killed at any instruction leaves the newer one whole; the reader
//! takes the valid copy with the higher count. Nothing here is ordered against other memory: only the sidecar reads
//! a journal, and only after its writer has died.

use crate::crash::{Point, point};
use crate::map::Map;
use crate::sync::Ordering;

/// Where the two copies of a record of `N` words lie, and how often it was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<const N: usize> {
    offset: usize,
    count: u64,
}

/// What was found in the place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Read<const N: usize> {
    /// Never written: all zero.
    Blank,
    /// Neither copy is whole, though something was written. A crash alone can't do this.
    Corrupt,
    /// The newest whole copy.
    Words([u64; N]),
}

impl<const N: usize> Record<N> {
    /// Bytes of both copies.
    pub(super) const BYTES: usize = 2 * (N + 2) * 8;

    /// The record at `offset`, continuing its count.
    pub(super) fn open(map: &Map, offset: usize) -> (Self, Read<N>) {
        let [first, second] = [0, 1].map(|copy| Self::copy(map, offset, copy));
        let newest = match (first, second) {
            (Some(first), Some(second)) => Some(if first.0 > second.0 { first } else { second }),
            (first, second) => first.or(second),
        };
        if let Some((count, words)) = newest {
            return (Self { offset, count }, Read::Words(words));
        }
        // The first version goes to the second copy. Killed in the middle of it, a writer leaves the first one blank,
        // and the check that it stores last: nothing had been recorded yet. Only later can neither copy be whole, and
        // not by a crash alone.
        let untouched = |copy: usize| {
            let start = Self::start(offset, copy);
            (0..N + 2).all(|word| map.word64(start + word * 8).load(Ordering::Relaxed) == 0)
        };
        let second = |word: usize| map.word64(Self::start(offset, 1) + word * 8).load(Ordering::Relaxed);
        let torn = second(0) == 1 && second(N + 1) == 0;
        let blank = untouched(0) && (torn || untouched(1));
        (Self { offset, count: 0 }, if blank { Read::Blank } else { Read::Corrupt })
    }

    /// Writes the next version.
    pub(super) fn write(&mut self, map: &Map, words: &[u64; N]) {
        point(Point::JournalBefore);
        self.count += 1;
        let start = Self::start(self.offset, (self.count & 1) as usize);
        map.word64(start).store(self.count, Ordering::Relaxed);
        for (index, word) in words.iter().enumerate() {
            if index == N / 2 {
                point(Point::JournalTorn);
            }
            map.word64(start + 8 * (1 + index)).store(*word, Ordering::Relaxed);
        }
        // Release only keeps the compiler from moving the check in front of the words.
        map.word64(start + 8 * (1 + N)).store(check(self.offset, self.count, words), Ordering::Release);
        point(Point::JournalAfter);
    }

    /// Makes the checksums of both copies right, whatever they hold: for a fuzzer, which can't guess them.
    #[cfg(feature = "fuzzing")]
    pub(super) fn reseal(map: &Map, offset: usize) {
        for copy in 0..2 {
            let start = Self::start(offset, copy);
            let word = |index: usize| map.word64(start + 8 * index).load(Ordering::Relaxed);
            if word(0) == 0 {
                continue;
            }
            let words: [u64; N] = core::array::from_fn(|index| word(1 + index));
            let sum = check(offset, word(0), &words);
            map.word64(start + 8 * (1 + N)).store(sum, Ordering::Relaxed);
        }
    }

    fn copy(map: &Map, offset: usize, copy: usize) -> Option<(u64, [u64; N])> {
        let start = Self::start(offset, copy);
        let count = map.word64(start).load(Ordering::Relaxed);
        let words = core::array::from_fn(|index| map.word64(start + 8 * (1 + index)).load(Ordering::Relaxed));
        let found = map.word64(start + 8 * (1 + N)).load(Ordering::Relaxed);
        // A writer never comes this far: it is forged, and there would be an end to what follows it.
        (count != 0
            && count < 1 << 63
            && (count & 1) as usize == copy
            && found == check(offset, count, &words))
        .then_some((count, words))
    }

    const fn start(offset: usize, copy: usize) -> usize {
        offset + copy * (N + 2) * 8
    }
}

/// A checksum that catches torn and stray writes, a few nanoseconds for a small record. It is no protection against
/// somebody who wants to forge a record: who may write the file owns it.
fn check(offset: usize, count: u64, words: &[u64]) -> u64 {
    // Four sums that do not wait for each other: a multiplication takes as long as the rest of the record's writing.
    // The offset keeps a record that was copied to another place from being taken for that place's.
    let mut sums = [offset as u64, 1, 2, 3];
    for (index, word) in words.iter().enumerate() {
        sums[index % 4] = step(sums[index % 4], *word);
    }
    sums.into_iter().chain([count]).fold(MULTIPLIER, step)
}

/// The 64-bit golden ratio, odd and with well spread bits.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Takes a word into a sum.
pub(super) const fn step(sum: u64, word: u64) -> u64 {
    let sum = (sum ^ word).wrapping_mul(MULTIPLIER);
    sum ^ sum >> 29
}
