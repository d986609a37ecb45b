//! Where the tunnel stood when the run ended: what a person needs to know to decide how to go on.

use core::fmt;
use core::time::Duration;

use sidecar_core::agent::{Outcome, Phase};
use sidecar_core::time::Instant;

use super::Bridge;

/// How long the gateway keeps a tunnel after an unclean end (tunnel contract A.5).
const WINDOW: Duration = Duration::from_secs(30);

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    phase: Phase,
    session: Option<String>,
    keeps: Keeps,
}

/// What the gateway still has of us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeps {
    /// No tunnel was ever up.
    Nothing,
    /// The tunnel, for as long as this at most.
    Tunnel(Duration),
    /// No longer the tunnel that was up.
    NoMore,
}

impl Bridge {
    /// Where it stands at `now`, or stood before this outcome.
    pub fn standing(&self, now: Instant, outcome: Option<&Outcome>) -> Standing {
        let keeps = match outcome {
            _ if !self.agent.connected_once() => Keeps::Nothing,
            None if self.agent.is_open() => Keeps::Tunnel(WINDOW),
            None => self.window_until.map_or(Keeps::NoMore, |until| match until.since(now) {
                Duration::ZERO => Keeps::NoMore,
                left => Keeps::Tunnel(left),
            }),
            // Left without a close: the window opens, for the successor.
            Some(Outcome::Left) => Keeps::Tunnel(WINDOW),
            // Refused, given up, or closed by us.
            Some(_) => Keeps::NoMore,
        };
        let session = self.agent.session().map(|(session, _)| session.as_str().escape_debug().to_string());
        Standing { phase: self.agent.phase(), session, keeps }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Queued => "before the warm-up",
            Phase::Warmup => "in the warm-up",
            Phase::Running => "running",
            Phase::Draining => "draining",
        };
        f.write_str(phase)?;
        match &self.session {
            Some(session) => write!(f, ", session \"{session}\" open")?,
            None => f.write_str(", no session open")?,
        }
        match self.keeps {
            Keeps::Nothing => f.write_str("; no tunnel was ever up"),
            Keeps::Tunnel(left) => {
                write!(f, "; the gateway keeps the tunnel for {} s at most", left.as_secs())
            }
            Keeps::NoMore => f.write_str("; the gateway keeps nothing of it any more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_phase_session_and_window() {
        let standing = |phase, session: Option<&str>, keeps| {
            Standing { phase, session: session.map(str::to_owned), keeps }.to_string()
        };
        let left = Keeps::Tunnel(Duration::from_millis(28_900));
        assert_eq!(
            standing(Phase::Running, Some("case-1"), left),
            "running, session \"case-1\" open; the gateway keeps the tunnel for 28 s at most"
        );
        assert_eq!(
            standing(Phase::Queued, None, Keeps::Nothing),
            "before the warm-up, no session open; no tunnel was ever up"
        );
    }
}
