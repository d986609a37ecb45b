//! The clock, read here and nowhere else.
//!
//! `CLOCK_BOOTTIME`: it never jumps, goes on while the machine sleeps, and reads the same in every process, so that
//! stamps can cross from one to the other and a restarted sidecar can go on counting.

use rustix::time::{ClockId, clock_gettime};
use sidecar_core::time::Instant;

/// Now, in nanoseconds since the machine started.
#[must_use]
pub fn now() -> Instant {
    #[cfg(feature = "simulation")]
    if let Some(now) = crate::simulation::time() {
        return now;
    }
    let time = clock_gettime(ClockId::Boottime);
    // Both are never negative for this clock; an error in them may only make an instant early.
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    Instant::from_nanos(seconds.saturating_mul(1_000_000_000).saturating_add(nanos))
}

/// Whether descriptors carry the times at which they passed a point. Off only to measure what stamping costs: no latency
/// is recorded then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Stamps {
    /// They do.
    #[default]
    On,
    /// Every stamp is 0.
    Off,
}

impl Stamps {
    /// A stamp.
    #[must_use]
    pub fn now(self) -> Instant {
        match self {
            Self::On => now(),
            Self::Off => Instant::from_nanos(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::now;
    use core::time::Duration;

    #[test]
    fn it_does_not_go_back_and_counts_time() {
        let first = now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(now().since(first) >= Duration::from_millis(2));
        assert!(first.as_nanos() > 0);
    }
}
