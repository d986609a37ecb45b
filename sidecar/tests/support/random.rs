//! Random moments. The seed is printed, and taken from SIDECAR_SEED if that is set.

use core::hash::BuildHasher;
use core::time::Duration;
use std::hash::RandomState;

/// SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// For one round of a test; says the seed that plays it again.
    pub(crate) fn new(test: &str, round: u32) -> Self {
        let given = std::env::var("SIDECAR_SEED").ok().and_then(|text| text.parse().ok());
        let seed = given.unwrap_or_else(|| RandomState::new().hash_one(round));
        println!("{test}, round {round}: SIDECAR_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A time of `least..most` milliseconds.
    pub(crate) fn millis(&mut self, least: u64, most: u64) -> Duration {
        Duration::from_micros(least * 1000 + self.next() % ((most - least) * 1000))
    }
}
