//! Randomness: a seeded generator for what must repeat, and session ids, which must not.

use core::fmt::Write;
use core::hash::{BuildHasher, Hasher};
use std::hash::RandomState;

/// SplitMix64 (Steele, Lea, Flood 2014): each seed gives a sequence of its own. Not for secrets.
#[derive(Debug, Clone)]
pub(crate) struct SplitMix(u64);

impl SplitMix {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Uniform in `-bound..bound`.
    pub(crate) fn symmetric(&mut self, bound: f64) -> f64 {
        // 53 bits are what an f64 between 0 and 1 can hold.
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (unit * 2.0 - 1.0) * bound
    }
}

/// A session id that no other session has: the form of a UUIDv4, from the keys the operating system gave to the
/// standard library's hasher.
pub(crate) fn session_id() -> String {
    let state = RandomState::new();
    let word = |salt| {
        let mut hasher = state.build_hasher();
        hasher.write_u64(salt);
        hasher.finish()
    };
    let bytes = ((u128::from(word(1)) << 64) | u128::from(word(2))).to_be_bytes();
    let mut id = String::with_capacity(36);
    for (index, byte) in bytes.into_iter().enumerate() {
        // Version 4 and variant 10 (RFC 9562 section 5.4).
        let byte = match index {
            6 => byte & 0x0F | 0x40,
            8 => byte & 0x3F | 0x80,
            _ => byte,
        };
        let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
        write!(id, "{dash}{byte:02x}").expect("a String takes everything");
    }
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generator_gives_the_published_sequence() {
        let mut random = SplitMix::new(1_234_567);
        let expected = [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!([random.next(), random.next(), random.next()], expected);
    }

    #[test]
    fn symmetric_numbers_stay_within_and_use_both_sides() {
        let mut random = SplitMix::new(0);
        let numbers: Vec<f64> = (0..1000).map(|_| random.symmetric(0.05)).collect();
        assert!(numbers.iter().all(|number| number.abs() <= 0.05));
        assert!(numbers.iter().any(|number| *number < -0.04) && numbers.iter().any(|number| *number > 0.04));
    }

    #[test]
    fn session_ids_look_like_uuids_and_differ() {
        let (one, other) = (session_id(), session_id());
        assert_ne!(one, other);
        assert_eq!(one.len(), 36);
        let bytes = one.as_bytes();
        assert!([8, 13, 18, 23].into_iter().all(|at| bytes[at] == b'-'));
        assert_eq!(bytes[14], b'4');
        assert!(matches!(bytes[19], b'8' | b'9' | b'a' | b'b'));
    }
}
