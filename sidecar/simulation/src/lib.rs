//! Seeded simulation: the whole protocol in one process and in virtual time.
//!
//! ```text
//!  real:     FrameLoop ── Bridge ── Agent        real: Owner, journal, rings, region   real: Worker library
//!                │                                            │                              │
//!  modelled: driver ── network ── gateway         control thread, processes, signals      what a model does
//!                              └──────────── one clock, one queue of events, one seed ──────────┘
//! ```
//!
//! The region is a file on a memory file system, made anew for each schedule. A sidecar dies at any store that others
//! can see ([`sidecar_shm::simulation`]) or between two events; its successor takes the region over as the program
//! does. See README.md for what is checked, what is met, and how each check was proven to have teeth.
//!
//! It refuses to know how the sidecar does anything: a promise is judged by the bytes that go in and come out.

mod coverage;
mod driver;
mod fault;
mod gateway;
mod net;
mod oracle;
mod plan;
mod process;
mod random;
mod server;
mod trace;
mod wire;
mod workers;
mod world;

use core::any::Any;
use std::io;
use std::path::PathBuf;

use sidecar::config::{Token, TokenSources};
use tempfile::TempDir;

pub use coverage::Coverage;
pub use fault::Fault;

/// A schedule that broke a promise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken {
    /// Replays it.
    pub seed: u64,
    /// What was broken.
    pub what: String,
}

/// Where schedules are run: a directory for the region, and the two tokens.
#[derive(Debug)]
pub struct Stage {
    directory: TempDir,
    tokens: Vec<Token>,
}

impl Stage {
    /// Makes the directory, on a memory file system if there is one.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new() -> io::Result<Self> {
        trace::quiet_panics();
        let place = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
        let directory = tempfile::Builder::new().prefix("sidecar-simulation-").tempdir_in(place)?;
        let mut tokens = Vec::new();
        for text in world::TOKENS {
            let file = directory.path().join("token");
            std::fs::write(&file, text)?;
            let sources = TokenSources { file: Some(file.clone()), env_file: None };
            tokens.push(sources.read().map_err(|failure| io::Error::other(failure.to_string()))?);
            std::fs::remove_file(file)?;
        }
        Ok(Self { directory, tokens })
    }

    fn region(&self) -> PathBuf {
        self.directory.path().join("region")
    }

    /// Runs one schedule; its counts are added.
    ///
    /// # Errors
    /// It broke a promise.
    pub fn run(&self, seed: u64, coverage: &mut Coverage) -> Result<(), Broken> {
        let world = process::run(world::World::new(seed, self.region(), self.tokens.clone(), false));
        coverage.add(&world.coverage);
        sidecar_shm::simulation::set_time(None);
        world.violation.map_or(Ok(()), |what| Err(Broken { seed, what }))
    }

    /// Runs one schedule and tells its story, line by line.
    pub fn tell(&self, seed: u64) -> Vec<String> {
        trace::with_log(|| {
            let world = process::run(world::World::new(seed, self.region(), self.tokens.clone(), true));
            sidecar_shm::simulation::set_time(None);
            let mut story = world.trace.unwrap_or_default();
            story.extend(trace::logged());
            story
        })
    }
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let said = payload.downcast_ref::<String>().cloned();
    let said = said.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    let place = trace::last_panic();
    format!("{} ({place})", said.unwrap_or_else(|| "no text".into()))
}
