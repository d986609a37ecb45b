//! Instants as plain integers.
//!
//! `core` reads no clock, so it cannot use a clock's own type: an instant is a count of nanoseconds since an
//! origin that the caller chose once and keeps. The sidecar uses `CLOCK_BOOTTIME`, which goes on while the
//! machine sleeps and is the same for all processes, so that a restarted sidecar can go on counting.
//! Arithmetic saturates: a wrong clock may delay a timer, it never panics.

use core::ops::Add;
use core::time::Duration;

/// A point in time: nanoseconds since the caller's origin (584 years of range).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanos` nanoseconds after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time that passed from `earlier` to here; zero if `earlier` is in fact later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `duration` before this one, but never before the origin.
    #[must_use]
    pub const fn saturating_sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// The instant `duration` later; the last one there is if that is past the range.
    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }
}

/// A duration in nanoseconds, cut to the range of an instant.
const fn nanos(duration: Duration) -> u64 {
    let whole = duration.as_nanos();
    if whole > u64::MAX as u128 { u64::MAX } else { whole as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_exact() {
        let start = Instant::from_nanos(5);
        let end = start + Duration::from_millis(3);
        assert_eq!(end.as_nanos(), 3_000_005);
        assert_eq!(end.since(start), Duration::from_millis(3));
        assert_eq!(end.saturating_sub(Duration::from_millis(3)), start);
    }

    #[test]
    fn nothing_wraps_at_either_end() {
        let (first, last) = (Instant::default(), Instant::from_nanos(u64::MAX));
        assert_eq!(first.since(last), Duration::ZERO);
        assert_eq!(first.saturating_sub(Duration::MAX), first);
        assert_eq!(last + Duration::from_nanos(1), last);
        assert_eq!(first + Duration::MAX, last);
    }
}
