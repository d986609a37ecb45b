//! Wall time of the steps. The only clock read of this program.

use core::time::Duration;
use std::time::Instant;

/// A running stopwatch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    #[expect(
        clippy::disallowed_methods,
        reason = "a task runner times programs; it shares no clock with them"
    )]
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since the start.
    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }
}
