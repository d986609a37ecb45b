//! The command line of `sidecar gateway`.

use core::net::SocketAddr;
use core::num::NonZeroUsize;
use core::time::Duration;
use std::path::PathBuf;

use crate::cartpole::CartPole;
use crate::faults::{CloseAt, CutAt, Faults, MalformedAt, Refuse};
use crate::options::{Framing, OnLost, Options, Timers};
use crate::simulator::Factory;
use crate::{GatewayError, duration};

/// `sidecar gateway ...`
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where to listen; port 0 picks one, printed in the first line of the output
    #[arg(long, default_value = "127.0.0.1:9000", value_name = "ADDR")]
    pub listen: SocketAddr,
    /// The job's id [default: the first that is asked for]
    #[arg(long, value_name = "UUID")]
    pub job: Option<String>,
    /// File with the token that agents must show, instead of JOB_TOKEN
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Cases to play
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub cases: u32,
    /// Seed of the cases' starting states
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Bytes of an observation, the state and a rendered picture of the cart [default: the state alone, 16]
    #[arg(long, value_parser = clap::value_parser!(u32).range(16..), value_name = "BYTES")]
    pub payload: Option<u32>,
    /// What the simulator does when an exchange may have been lost
    #[arg(long, value_enum, default_value_t)]
    pub on_lost: OnLost,
    /// Agents that may be connected at the same time
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub parallel_cap: usize,
    /// Send a data frame with empty session id and payload after `warmup`; without its answer `ready` does not count
    #[arg(long)]
    pub warmup_frame: bool,
    /// Send `queued` after `ready`
    #[arg(long)]
    pub queued: bool,
    /// Timers.
    #[command(flatten)]
    pub timers: TimerArgs,
    /// Faults.
    #[command(flatten)]
    pub faults: FaultArgs,
}

/// Timers of the contract and of the simulator.
#[derive(Debug, Clone, Copy, clap::Args)]
#[command(next_help_heading = "Timers")]
pub struct TimerArgs {
    /// Between two pings
    #[arg(long, default_value = "20s", value_parser = time, value_name = "TIME")]
    pub ping_interval: Duration,
    /// Without a pong the connection is cut
    #[arg(long, default_value = "45s", value_parser = time, value_name = "TIME")]
    pub read_deadline: Duration,
    /// How long a tunnel without a connection is kept, however the agent left; then the job is over
    #[arg(long, default_value = "30s", value_parser = time, value_name = "TIME")]
    pub window: Duration,
    /// With --on-lost reask: how long after a redial a step that was delivered is asked again; one that was not is
    /// asked at once
    #[arg(long, default_value = "2s", value_parser = time, value_name = "TIME")]
    pub reask_after: Duration,
    /// Between two steps
    #[arg(long, default_value = "0s", value_parser = time, value_name = "TIME")]
    pub step_delay: Duration,
    /// A case that takes longer has failed [default: none]
    #[arg(long, value_parser = time, value_name = "TIME")]
    pub case_timeout: Option<Duration>,
    /// How long a drained agent may take to close
    #[arg(long, default_value = "60s", value_parser = time, value_name = "TIME")]
    pub drain_wait: Duration,
    /// How long a new agent is kept waiting for its warm-up
    #[arg(long, default_value = "0s", value_parser = time, value_name = "TIME")]
    pub warmup_after: Duration,
    /// How long dials are still answered, with 401, after a job that failed
    #[arg(long, default_value = "5s", value_parser = time, value_name = "TIME")]
    pub linger: Duration,
}

/// What goes wrong on request; steps count from 0 within a case, and each fault happens once in a job.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Faults")]
pub struct FaultArgs {
    /// Cut the socket at a step: after its observation (FIN), before it, or in the middle of its frame (reset)
    #[arg(long, value_delimiter = ',', value_name = "STEP[:after|before|mid-frame]")]
    pub cut_at: Vec<CutAt>,
    /// From a step on the connection says nothing and hears nothing
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    pub silent_at: Vec<u32>,
    /// A close frame instead of a step's observation
    #[arg(long, value_delimiter = ',', value_name = "STEP[:CODE]")]
    pub close_at: Vec<CloseAt>,
    /// Close the first N upgrades at once, in the segment of the 101
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub instant_close: u32,
    /// Answer the first N dials with an HTTP status
    #[arg(long, value_delimiter = ',', value_name = "STATUS:N")]
    pub refuse: Vec<Refuse>,
    /// A malformed frame in front of a step's observation
    #[arg(long, value_delimiter = ',', value_name = "KIND[:STEP]")]
    pub malformed: Vec<MalformedAt>,
    /// Fragments of that many bytes
    #[arg(long, value_name = "BYTES")]
    pub fragment: Option<NonZeroUsize>,
    /// An empty final fragment behind each fragmented message
    #[arg(long)]
    pub empty_final: bool,
    /// A ping between any two fragments
    #[arg(long)]
    pub ping_between_fragments: bool,
    /// Write byte by byte
    #[arg(long)]
    pub one_byte_writes: bool,
    /// Each byte of a frame's headers in a segment of its own
    #[arg(long)]
    pub split_headers: bool,
    /// A control frame of an unknown type after `ready`
    #[arg(long)]
    pub unknown_control: bool,
    /// Drain in mid-session, at a step
    #[arg(long, value_name = "STEP")]
    pub drain_at: Option<u32>,
}

impl Args {
    /// The gateway's options and its simulator.
    ///
    /// # Errors
    /// No token, or one that cannot be read.
    pub fn options(self) -> Result<(Options, Factory), GatewayError> {
        let token = self.token()?;
        let Self {
            job,
            cases,
            seed,
            payload,
            on_lost,
            parallel_cap,
            warmup_frame,
            queued,
            timers,
            faults,
            ..
        } = self;
        let timers = Timers {
            ping_interval: timers.ping_interval,
            read_deadline: timers.read_deadline,
            window: timers.window,
            reask_after: timers.reask_after,
            step_delay: timers.step_delay,
            case_timeout: timers.case_timeout,
            drain: timers.drain_wait,
            warmup_after: timers.warmup_after,
            linger: timers.linger,
        };
        let framing = Framing {
            fragment: faults.fragment,
            empty_final: faults.empty_final,
            ping_between_fragments: faults.ping_between_fragments,
            one_byte_writes: faults.one_byte_writes,
            split_headers: faults.split_headers,
        };
        let unknown_control = faults.unknown_control;
        let faults = Faults {
            cut: faults.cut_at,
            silent: faults.silent_at,
            close: faults.close_at,
            malformed: faults.malformed,
            drain: faults.drain_at,
            refuse: faults.refuse,
            instant_close: faults.instant_close,
        };
        let options = Options {
            job,
            token,
            cases,
            parallel_cap,
            on_lost,
            warmup_frame,
            queued,
            unknown_control,
            timers,
            framing,
            faults,
        };
        let payload = payload.map(|bytes| bytes as usize);
        Ok((options, Box::new(move |case| Box::new(CartPole::new(seed, case, payload)))))
    }

    fn token(&self) -> Result<String, GatewayError> {
        let text = match &self.token_file {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|source| GatewayError::TokenFile { path: path.clone(), source })?,
            None => std::env::var("JOB_TOKEN").unwrap_or_default(),
        };
        let token = text.trim();
        if token.is_empty() { Err(GatewayError::NoToken) } else { Ok(token.to_owned()) }
    }
}

fn time(text: &str) -> Result<Duration, duration::DurationError> {
    duration::parse(text)
}
