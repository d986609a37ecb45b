//! The demo's own processes, and the signals that end it: nothing that it started outlives it, however it ends.
//!
//! In order, each child is ended here. When the demo is killed, the children see it (`--die-with`): they are no workers
//! with a model to keep.

use core::time::Duration;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, getpid, getppid, kill_process, pidfd_open};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

/// How often the demo looks at its children and at its signals.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// A sidecar ends its worker, for which that has 5 s, and closes its tunnel.
const GRACE: Duration = Duration::from_secs(8);

/// Why the demo ends early.
pub(super) enum Stop {
    Failed(Failure),
    /// A signal asked for it.
    Asked(Exit),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// This program as a child that ends with this process.
pub(super) fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    // Ctrl-C reaches them through this process alone.
    command.process_group(0).stdin(Stdio::null());
    command.args(["--quiet", "--die-with", &std::process::id().to_string()]);
    command
}

/// `--die-with PID`: SIGTERM for this process when its parent has ended; at once, if that has happened already.
///
/// Not PR_SET_PDEATHSIG: it sends the signal for each thread of the parent that ends, and a second one means haste.
pub fn die_with(parent: u32) {
    let parent = Pid::from_raw(parent.cast_signed());
    let process = parent.and_then(|parent| pidfd_open(parent, PidfdFlags::empty()).ok());
    // Looked at after the pidfd was opened: from then on it can't be another process.
    let Some(process) = process.filter(|_| getppid() == parent) else { end() };
    let waiting = move || {
        let mut ended = [PollFd::new(&process, PollFlags::IN)];
        while poll(&mut ended, None).is_err() {}
        let _ = kill_process(getpid(), Signal::TERM);
    };
    if thread::Builder::new().name("die-with".into()).spawn(waiting).is_err() {
        end();
    }
}

/// A child that nobody could end must not begin.
fn end() -> ! {
    tracing::warn!("the demo that started this process is gone");
    crate::log::finish();
    #[expect(clippy::exit, reason = "nothing has begun")]
    std::process::exit(Exit::Failed.code().into());
}

/// A child that does not outlive the demo.
pub(super) struct Kept(Child);

impl Kept {
    pub(super) fn start(command: &mut Command, what: &str) -> Result<Self, Failure> {
        command.spawn().map(Self).map_err(|error| {
            Failure::new(Code::Rehearsal, format!("the demo cannot start {what}")).because(error)
        })
    }

    pub(super) const fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// Whether it has ended, and how.
    pub(super) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Asked first, since a sidecar has a worker to end.
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        let looks = GRACE.as_millis() / LOOK.as_millis();
        for _ in 0..looks {
            if self.ended().is_some() {
                return;
            }
            thread::sleep(LOOK);
        }
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The signals that ask the demo to end.
pub(super) struct Signals(Receiver<Exit>);

impl Signals {
    pub(super) fn watch() -> Result<Self, Failure> {
        let refused = |error| {
            Failure::new(
                Code::Start,
                "the demo cannot watch for signals, and would leave its children behind",
            )
            .because(error)
        };
        let runtime = crate::descriptors::runtime().map_err(refused)?;
        let watch = |kind| runtime.block_on(async { signal(kind) }).map_err(refused);
        let (mut interrupt, mut terminate) =
            (watch(SignalKind::interrupt())?, watch(SignalKind::terminate())?);
        let (sender, asked) = mpsc::channel();
        let waiting = async move {
            let mut first = true;
            loop {
                let exit = tokio::select! {
                    _ = interrupt.recv() => Exit::Interrupted,
                    _ = terminate.recv() => Exit::Terminated,
                };
                if !core::mem::replace(&mut first, false) {
                    // The children see it.
                    std::process::exit(exit.code().into());
                }
                // A demo that is over needs no telling.
                let _ = sender.send(exit);
            }
        };
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || runtime.block_on(waiting))
            .map_err(refused)?;
        Ok(Self(asked))
    }

    /// Stops the demo if a signal asked for it.
    pub(super) fn check(&self) -> Result<(), Stop> {
        self.0.try_recv().map_or(Ok(()), |exit| Err(Stop::Asked(exit)))
    }
}
