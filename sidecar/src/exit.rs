//! Exit codes: what a supervisor or a script may rely on (README, "Exit codes").

use std::process::ExitCode;

use sidecar_core::agent::Outcome;

/// Why the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Drained, or left on request.
    Done,
    /// Bad arguments, a worker that cannot be loaded, retries exhausted.
    Failed,
    /// Ctrl-C.
    Interrupted,
    /// SIGTERM.
    Terminated,
}

impl Exit {
    /// Each there is.
    pub const ALL: [Self; 4] = [Self::Done, Self::Failed, Self::Interrupted, Self::Terminated];

    /// The number the shell sees.
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Interrupted => 130,
            Self::Terminated => 143,
        }
    }

    /// What an agent's outcome means when no signal asked for the end.
    pub const fn of(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Drained | Outcome::Left | Outcome::Closed => Self::Done,
            _ => Self::Failed,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}
