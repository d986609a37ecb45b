//! The worker process: does what the observations say, and tells what it took and answered.

use core::time::Duration;
use std::path::Path;

use sidecar_shm::device::{Announced, DeviceRing};
use sidecar_shm::worker::{AttachOptions, Event, Observation, Worker, WorkerError};

use crate::game::{self, Move, say};

const OPTIONS: AttachOptions = AttachOptions {
    timeout: Duration::from_secs(20),
    orphan_grace: Duration::from_secs(20),
    after_end: sidecar_shm::worker::AfterEnd::Leave,
    spin: sidecar_shm::spin::Mode::Auto,
    stamps: sidecar_shm::clock::Stamps::On,
};

/// Works until it is told to leave, the sidecar ends, or another worker has its place.
pub(crate) fn run(path: &Path) {
    let mut worker = match Worker::attach(path, &OPTIONS) {
        Ok(worker) => worker,
        // Another worker is thought to be there still, or the sidecar died: somebody starts the next one.
        Err(error) => return say(format_args!("refused {error}")),
    };
    say(format_args!("attached"));
    match serve(&mut worker) {
        Ok(()) | Err(WorkerError::Ended | WorkerError::Detached | WorkerError::Replaced { .. }) => {}
        Err(error) => say(format_args!("broken {error}")),
    }
}

fn serve(worker: &mut Worker) -> Result<(), WorkerError> {
    let mut held: Option<Observation> = None;
    loop {
        match worker.next(Some(Duration::from_secs(20)))? {
            Event::Warmup => worker.ready()?,
            Event::Observation(observation) => {
                let what = take(worker, &observation);
                if let Some(earlier) = held.take() {
                    answer(worker, earlier)?;
                }
                match what {
                    Some(Move::Hold) => held = Some(observation),
                    Some(Move::Fail) => worker.failed(&observation, "as told")?,
                    Some(Move::Poll) => {
                        answer(worker, observation)?;
                        worker.fd()?;
                    }
                    Some(Move::Leave) => {
                        answer(worker, observation)?;
                        return Ok(());
                    }
                    Some(Move::Echo) => answer(worker, observation)?,
                    None => {}
                }
            }
            Event::Drain => return Ok(()),
            Event::SessionOpened { .. }
            | Event::SessionClosed { .. }
            | Event::Timeout
            | Event::SidecarGone => {}
        }
    }
}

fn take(worker: &Worker, observation: &Observation) -> Option<Move> {
    let sequence = observation.sequence();
    if let Some(Announced { ring: DeviceRing { gpu: [byte, ..], memory, event }, .. }) = worker.device_ring()
        && !memory.iter().chain(&event).all(|other| *other == byte)
    {
        say(format_args!("spoiled {sequence}: its device ring is a mix of two"));
    }
    let what = game::read(observation.payload(), sequence);
    let how = if observation.redelivered() { "again" } else { "first" };
    say(format_args!("took {sequence} {how}"));
    if what.is_none() {
        say(format_args!("spoiled {sequence} when it was taken"));
    }
    what
}

fn answer(worker: &mut Worker, observation: Observation) -> Result<(), WorkerError> {
    let sequence = observation.sequence();
    if game::read(observation.payload(), sequence).is_none() {
        say(format_args!("spoiled {sequence} while it was in hand"));
    }
    worker.answer(observation, &sequence.to_le_bytes())
}
