//! System calls a frame: the real sidecar under strace, a worker and a gateway beside it, 64 bytes in and out.
//!
//! A count, so that neither load nor the machine matters. strace follows the first thread alone, which is the frame loop.

use core::time::Duration;
use std::io;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::time::{ClockId, clock_gettime};
use sidecar_benches::gateway::{Gateway, Tunnel};
use sidecar_benches::observation::Observation;
use sidecar_benches::strace::Tally;

use crate::place::Place;
use crate::processes::Process;

/// One way to run the frame loop, and what the design allows it.
#[derive(Debug)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    sidecar: &'static [&'static str],
    worker: &'static [&'static str],
    /// System calls a frame.
    pub(crate) limit: f64,
}

/// It thinks for so long that both sides sleep: strace slows the frame loop down so much that it would find the action
/// there already.
const BLOCKING: [&str; 4] = ["--spin", "off", "--think", "1000"];
/// A frame loop that spins has a worker that spins: otherwise it would have to be woken, one call more.
const SPINNING: [&str; 2] = ["--spin", "100000"];

/// All of them.
pub(crate) const MODES: [Mode; 4] = [
    Mode {
        name: "uring, blocking",
        sidecar: &["--io", "uring", "--spin", "off"],
        worker: &BLOCKING,
        limit: 3.0,
    },
    Mode {
        name: "epoll, blocking",
        sidecar: &["--io", "epoll", "--spin", "off"],
        worker: &BLOCKING,
        limit: 6.0,
    },
    Mode {
        name: "uring, spinning",
        sidecar: &["--io", "uring", "--busy-poll"],
        worker: &SPINNING,
        limit: 2.0,
    },
    Mode {
        name: "epoll, spinning",
        sidecar: &["--io", "epoll", "--busy-poll"],
        worker: &SPINNING,
        limit: 3.0,
    },
];

const WARM_UP: u32 = 100;
const FRAMES: u32 = 500;
/// One frame in fifty may take one call more: a signal, a timer, a wake-up that came too late to be spared.
pub(crate) const SLACK: f64 = 0.02;
const PATIENCE: Duration = Duration::from_secs(60);

/// What was counted.
#[derive(Debug)]
pub(crate) struct Count {
    pub(crate) tally: Tally,
    /// Calls a frame, looks for nothing apart.
    pub(crate) per_frame: f64,
    pub(crate) within: bool,
}

/// Counts every mode and prints a table.
///
/// # Errors
/// Something did not start or broke; strace is missing.
pub(crate) fn run(sidecar: &Path) -> io::Result<ExitCode> {
    let mut within = true;
    for mode in &MODES {
        match count(sidecar, mode) {
            Ok(count) => {
                within &= count.within;
                let verdict = if count.within { "pass" } else { "MISS" };
                let names = count.tally.calls.iter().map(|(name, calls)| format!("{name} {calls}"));
                let names = names.collect::<Vec<_>>().join(", ");
                println!(
                    "{verdict}  {:16} {:.2} system calls a frame, at most {}  ({FRAMES} frames: {names}; {} looks for nothing)",
                    mode.name, count.per_frame, mode.limit, count.tally.empty
                );
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                println!("skip  {:16} {error}", mode.name)
            }
            Err(error) => return Err(error),
        }
    }
    Ok(if within { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Counts one mode.
///
/// # Errors
/// Something did not start or broke; [`io::ErrorKind::NotFound`] where strace is missing.
pub(crate) fn count(sidecar: &Path, mode: &Mode) -> io::Result<Count> {
    let gateway = Gateway::bind()?;
    let place = Place::new()?;
    let log = place.path().join("strace");
    let mut traced = Command::new("strace");
    traced.args(["-ttt", "-o"]).arg(&log).arg(sidecar).args(mode.sidecar);
    traced.args(place.sidecar_arguments(gateway.endpoint(), "calls"));
    let sidecar = Process::start("strace", &mut traced)?;
    let mut worker = Command::new(std::env::current_exe()?);
    worker.arg("worker").args(mode.worker).arg("--shm").arg(place.region());
    let worker = Process::start("the worker", &mut worker)?;

    let mut tunnel = gateway.accept(PATIENCE)?;
    let mut observation = Observation::new(64);
    exchange(&mut tunnel, &mut observation, WARM_UP)?;
    let from = now_micros();
    exchange(&mut tunnel, &mut observation, FRAMES)?;
    let to = now_micros();
    tunnel.drain()?;
    sidecar.finish()?;
    worker.finish()?;

    let tally = Tally::read(&std::fs::read_to_string(&log)?, from, to);
    let per_frame = tally.total() as f64 / f64::from(FRAMES);
    Ok(Count { per_frame, within: per_frame > 0.0 && per_frame <= mode.limit + SLACK, tally })
}

fn exchange(tunnel: &mut Tunnel, observation: &mut Observation, frames: u32) -> io::Result<()> {
    (0..frames).try_for_each(|_| tunnel.exchange(observation).map(drop))
}

/// The clock that strace stamps with.
fn now_micros() -> u64 {
    let time = clock_gettime(ClockId::Realtime);
    time.tv_sec.cast_unsigned() * 1_000_000 + time.tv_nsec.cast_unsigned() / 1_000
}
