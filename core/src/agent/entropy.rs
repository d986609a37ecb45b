//! The agent's only source of chance: mask keys, the upgrade's key and jitter, all from one ChaCha generator that the
//! caller seeds once. Mask keys have to be unpredictable (RFC 6455 10.3), so the generator is a cryptographic one.

use core::fmt;
use core::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};

pub(super) struct Entropy(ChaCha12Rng);

impl Entropy {
    pub(super) fn new(seed: [u8; 32]) -> Self {
        Self(ChaCha12Rng::from_seed(seed))
    }

    pub(super) fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    /// A duration in `[0, bound)`: full jitter.
    pub(super) fn below(&mut self, bound: Duration) -> Duration {
        let nanos = u64::try_from(bound.as_nanos()).unwrap_or(u64::MAX);
        // The high half of a 64 x 64 bit product is uniform up to a bias of 2^-64 times the bound.
        let scaled = (u128::from(self.0.next_u64()) * u128::from(nanos)) >> 64;
        Duration::from_nanos(u64::try_from(scaled).unwrap_or(nanos))
    }
}

impl fmt::Debug for Entropy {
    /// Says nothing of the state, from which every later mask key follows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Entropy")
    }
}
