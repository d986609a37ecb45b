//! Logs: talk on stderr, human by default, one JSON object a line on request.
//!
//! Lines go through a queue to a thread of their own. A stderr that nobody reads (a stopped pager, a full pipe) or that
//! is closed costs lines, never a frame: who logs neither waits nor fails.

use core::time::Duration;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::thread;

use crossbeam_channel::{Sender, bounded};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

/// How log lines and errors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Errors and warnings.
    Quiet,
    /// What a person who started it wants to see.
    #[default]
    Normal,
    /// Each step.
    Verbose,
}

/// Installs the process's logger. `SIDECAR_LOG` (a `tracing` filter) overrides the level.
pub fn start(format: Format, level: Level) {
    let default = match level {
        Level::Quiet => "warn",
        Level::Normal => "info",
        Level::Verbose => "debug",
    };
    start_writer();
    let wish = std::env::var("SIDECAR_LOG").ok().filter(|wish| !wish.is_empty());
    let filter = wish.and_then(|wish| wish.parse().ok()).unwrap_or_else(|| EnvFilter::new(default));
    let colour = colour();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| Lines)
        .log_internal_errors(false)
        .with_target(false)
        .with_timer(SystemTime);
    // A second logger in one process can only come from a test; the first one stays.
    let _ = match format {
        Format::Human => builder.with_ansi(colour).try_init(),
        Format::Json => builder.with_ansi(false).json().flatten_event(true).try_init(),
    };
}

/// Whether stderr is somebody who wants colours.
pub(crate) fn colour() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && io::stderr().is_terminal()
}

/// Lines that wait for stderr at most; more are lost.
const QUEUE: usize = 1024;
/// How long the end of the process waits for stderr to take what is left.
const LAST_LINES: Duration = Duration::from_millis(500);

enum Job {
    Line(Vec<u8>),
    /// Everything before this was written.
    Told(Sender<()>),
}

static QUEUED: OnceLock<Sender<Job>> = OnceLock::new();

/// Starts the thread: now, since one that starts with the first line inherits what the thread that says it has been
/// pinned to.
fn start_writer() {
    QUEUED.get_or_init(|| {
        let (sender, jobs) = bounded(QUEUE);
        let writer = thread::Builder::new().name("log".into()).spawn(move || {
            for job in jobs {
                match job {
                    // A closed stderr is nobody to tell.
                    Job::Line(line) => drop(io::stderr().write_all(&line)),
                    Job::Told(told) => drop(told.send(())),
                }
            }
        });
        // Without a thread the queue has no reader, and every line is lost: the run is worth more.
        drop(writer);
        sender
    });
}

/// The way into the queue.
#[derive(Debug)]
struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(queue) = QUEUED.get() {
            // A full queue costs the line.
            let _ = queue.try_send(Job::Line(bytes.to_vec()));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives stderr a moment to take the lines that wait; for the end of the process.
pub fn finish() {
    let Some(queue) = QUEUED.get() else { return };
    let (told, heard) = bounded(1);
    if queue.send_timeout(Job::Told(told), LAST_LINES).is_ok() {
        // Nobody reads: then nobody misses them.
        let _ = heard.recv_timeout(LAST_LINES);
    }
}
