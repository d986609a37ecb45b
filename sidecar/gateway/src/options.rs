//! What a gateway does, as plain values: made from the command line by `args`, or by a test directly.

use core::num::NonZeroUsize;
use core::time::Duration;

use crate::faults::Faults;
use crate::wire::Pace;

/// What the simulator does when an exchange may have been lost with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnLost {
    /// Wait for the answer, for ever: what the contest's simulator is seen to do.
    #[default]
    Stall,
    /// Ask the current step again once the tunnel is back: at once if it was not delivered, else when `--reask-after`
    /// has passed without a kept answer.
    Reask,
}

/// How long the gateway waits for what.
#[derive(Debug, Clone, Copy)]
pub struct Timers {
    /// Between two pings (tunnel contract A.6: 20 s).
    pub ping_interval: Duration,
    /// Without a pong (A.6: 45 s).
    pub read_deadline: Duration,
    /// How long a tunnel without a connection is kept (A.5: 30 s).
    pub window: Duration,
    /// See [`OnLost::Reask`].
    pub reask_after: Duration,
    /// Between two steps of the simulator.
    pub step_delay: Duration,
    /// A case that takes longer has failed; `None`: it may take for ever.
    pub case_timeout: Option<Duration>,
    /// How long a drained agent may take to close.
    pub drain: Duration,
    /// How long a new agent is kept waiting for `warmup`.
    pub warmup_after: Duration,
    /// How long dials are still answered, with 401, after a job that failed.
    pub linger: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(20),
            read_deadline: Duration::from_secs(45),
            window: Duration::from_secs(30),
            reask_after: Duration::from_secs(2),
            step_delay: Duration::ZERO,
            case_timeout: None,
            drain: Duration::from_secs(60),
            warmup_after: Duration::ZERO,
            linger: Duration::from_secs(5),
        }
    }
}

/// How messages are cut into frames and segments.
#[derive(Debug, Clone, Copy, Default)]
pub struct Framing {
    /// Bytes of a fragment; `None`: a message is one frame.
    pub fragment: Option<NonZeroUsize>,
    /// End fragmented messages with an empty final frame, as gorilla/websocket does.
    pub empty_final: bool,
    /// A ping between any two fragments.
    pub ping_between_fragments: bool,
    /// Write byte by byte.
    pub one_byte_writes: bool,
    /// Each byte of a header in a segment of its own.
    pub split_headers: bool,
}

impl Framing {
    pub(crate) fn pace(&self) -> Pace {
        if self.one_byte_writes { Pace::OneByte } else { Pace::Whole }
    }
}

/// Everything about a job and how it is played.
#[derive(Debug, Clone)]
pub struct Options {
    /// The job's id: what `?job=` has to be. `None`: any one id, the first that comes.
    pub job: Option<String>,
    /// The bearer token.
    pub token: String,
    /// Cases of the job.
    pub cases: u32,
    /// Agents that may be connected at the same time.
    pub parallel_cap: usize,
    /// See there.
    pub on_lost: OnLost,
    /// Send the empty data frame of the warm-up, and expect its answer before `ready` counts.
    pub warmup_frame: bool,
    /// Send `queued` after `ready`.
    pub queued: bool,
    /// Send a control frame of an unknown type after `ready`.
    pub unknown_control: bool,
    /// See there.
    pub timers: Timers,
    /// See there.
    pub framing: Framing,
    /// What goes wrong on request.
    pub faults: Faults,
}
