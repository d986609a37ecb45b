//! `sidecar worker`: built-in workers over the public worker API, for rehearsals and as an example of its use.

use core::time::Duration;
use std::path::PathBuf;

use sidecar_shm::worker::{AttachOptions, Event, Observation, Worker, WorkerError};

use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

mod cartpole;

/// What a built-in worker does with an observation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Policy {
    /// Answer with the payload it got
    Echo,
    /// Balance the rehearsal gateway's cart-pole
    Cartpole,
    /// Answer with nothing
    Noop,
}

/// `sidecar worker`
#[derive(Debug, Clone, clap::Args)]
pub struct WorkerArgs {
    /// Path of the region
    #[arg(long, env = "SIDECAR_SHM", value_name = "PATH")]
    pub shm: PathBuf,
    /// What to answer
    #[arg(long, value_enum)]
    pub policy: Policy,
    /// Pretend that a model thinks this long about each observation
    #[arg(long, value_name = "TIME", value_parser = crate::cli::duration)]
    pub think: Option<Duration>,
    /// How long to spin for the next observation before a sleep: `auto` (as long as a wake-up costs, where cores are to
    /// spare), `off`, or a number of microseconds
    #[arg(long, default_value = "auto", value_parser = crate::cli::spin, value_name = "auto|off|MICROSECONDS")]
    pub spin: sidecar_shm::spin::Mode,
    /// How long to wait for the sidecar to be there
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = crate::cli::duration)]
    pub attach_timeout: Duration,
}

/// Serves until the sidecar drains or is gone for good.
///
/// # Errors
/// No region to attach to, a live worker that has the seat already, or a sidecar that never came back.
pub fn run(args: &WorkerArgs) -> Result<Exit, Failure> {
    let options = AttachOptions { timeout: args.attach_timeout, spin: args.spin, ..AttachOptions::default() };
    let mut worker = Worker::attach(&args.shm, &options).map_err(|error| {
        Failure::new(Code::WorkerAlone, format!("the worker cannot attach to {}", args.shm.display()))
            .because(error)
            .hint("start `sidecar --shm` with this path first, and only one worker for it")
    })?;
    serve(&mut worker, args).map_err(|error| {
        Failure::new(Code::WorkerAlone, format!("the worker on {} cannot go on", args.shm.display()))
            .because(error)
            .hint("look at the sidecar's log")
    })
}

fn serve(worker: &mut Worker, args: &WorkerArgs) -> Result<Exit, WorkerError> {
    loop {
        let event = match worker.next(None) {
            Err(WorkerError::Ended) => return Ok(Exit::Done),
            event => event?,
        };
        match event {
            Event::Warmup => {
                tracing::debug!("warm-up");
                worker.ready()?;
            }
            Event::SessionOpened { session, epoch, resumed } => {
                tracing::debug!(session = session.as_str(), epoch = epoch.0, resumed, "session open");
            }
            Event::SessionClosed { epoch } => tracing::debug!(epoch = epoch.0, "session closed"),
            Event::Observation(observation) => {
                if let Some(time) = args.think {
                    std::thread::sleep(time);
                }
                answer(worker, observation, args.policy)?;
            }
            // After a drain the sidecar ends, and the next event is that.
            Event::Drain => tracing::debug!("drain"),
            Event::Timeout | Event::SidecarGone => {}
        }
    }
}

fn answer(worker: &mut Worker, observation: Observation, policy: Policy) -> Result<(), WorkerError> {
    // An empty observation (the warm-up round trip) asks for the no-op, which for these policies is nothing.
    if policy == Policy::Noop || observation.is_empty() {
        return worker.answer(observation, &[]);
    }
    match policy {
        Policy::Cartpole => match cartpole::action(observation.payload()) {
            Some(action) => worker.answer(observation, &[action]),
            None => {
                let message = format!("{} bytes are no cart-pole observation", observation.payload().len());
                worker.failed(&observation, &message)
            }
        },
        _ => echo(worker, observation),
    }
}

fn echo(worker: &mut Worker, observation: Observation) -> Result<(), WorkerError> {
    let length = observation.payload().len();
    match worker.reserve(length) {
        Ok(mut action) => {
            action.as_mut_slice().copy_from_slice(observation.payload());
            worker.answer_reserved(observation, action, length)
        }
        Err(error @ WorkerError::ActionTooLarge { .. }) => worker.failed(&observation, &error.to_string()),
        Err(error) => Err(error),
    }
}
