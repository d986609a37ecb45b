//! A worker over the public worker API that replies as the gateway expects it, and otherwise leaves the payload alone.

use core::time::Duration;
use std::io;
use std::path::PathBuf;

use sidecar_benches::batches;
use sidecar_benches::reply;
use sidecar_shm::clock::{self, Stamps};
use sidecar_shm::spin::{self, Mode};
use sidecar_shm::worker::{AttachOptions, Event, Observation, Worker, WorkerError};

use crate::cores;

/// `sidecar-bench worker`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The region
    #[arg(long, value_name = "PATH")]
    shm: PathBuf,
    /// How it waits
    #[arg(long, default_value = "auto", value_parser = mode, value_name = "auto|off|MICROSECONDS")]
    spin: Mode,
    /// Computes this long for each observation
    #[arg(long, value_parser = micros, value_name = "MICROSECONDS")]
    think: Option<Duration>,
    /// Stays on this core, once it knows how many there are
    #[arg(long)]
    core: Option<usize>,
    /// Reads all of each payload
    #[arg(long)]
    touch: bool,
    /// Puts no times into descriptors
    #[arg(long)]
    no_stamps: bool,
}

/// Serves until the sidecar drains.
///
/// # Errors
/// Whatever keeps it from going on.
pub(crate) fn run(args: &Args) -> io::Result<()> {
    let stamps = if args.no_stamps { Stamps::Off } else { Stamps::On };
    let options = AttachOptions { spin: args.spin, stamps, ..AttachOptions::default() };
    let mut worker = Worker::attach(&args.shm, &options).map_err(io::Error::other)?;
    if let Some(core) = args.core {
        cores::stay_on(&[core])?;
    }
    loop {
        match worker.next(None) {
            Err(WorkerError::Ended) => return Ok(()),
            Ok(Event::Warmup) => worker.ready(),
            Ok(Event::Observation(observation)) => answer(&mut worker, observation, args),
            Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
        .map_err(io::Error::other)?;
    }
}

fn answer(worker: &mut Worker, observation: Observation, args: &Args) -> Result<(), WorkerError> {
    // Zero is not to think at all: not even the clock is read.
    let until = args.think.filter(|think| !think.is_zero()).map(|think| clock::now() + think);
    let length = reply::length(observation.payload().len());
    let mut action = worker.reserve(length)?;
    reply::write(observation.payload(), action.as_mut_slice());
    core::hint::black_box(batches::read_if(args.touch, observation.payload()));
    if let Some(until) = until {
        // A model keeps its core busy.
        spin::poll(|| false, || clock::now() >= until);
    }
    worker.answer_reserved(observation, action, length)
}

pub(crate) fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "auto" => Ok(Mode::Auto),
        "off" => Ok(Mode::Off),
        number => micros(number).map(Mode::Fixed),
    }
}

fn micros(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_micros).map_err(|_| format!("`{text}` is no number of microseconds"))
}
