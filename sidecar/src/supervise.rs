//! `--supervise`: a parent that starts the sidecar again when it dies of a signal.
//!
//! It is the same program without the flag, in a process group of its own, so that Ctrl-C reaches it once: through
//! this parent, which passes on what it is sent. An end that the sidecar chose, whatever its exit code, is this
//! parent's end as well; so is any end after a signal that asks for one. Nothing is known here of tunnels or regions:
//! what the next sidecar takes over is in the region of the dead one.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::exit::Exit;
use crate::report::Failure;

/// The flag that the child must not get.
const FLAG: &str = "--supervise";
/// The first restart comes at once: the gateway keeps a session for 30 s (tunnel contract A.5). Further ones double.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A sidecar that lived this long starts the pauses anew.
const HEALTHY: Duration = Duration::from_secs(60);

/// Keeps the sidecar of this command line running; gives its exit code.
///
/// # Errors
/// It cannot be started, or signals cannot be watched.
pub fn run() -> Result<ExitCode, Failure> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "sidecar".into());
    let arguments = without_flag(arguments);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::new("no runtime for --supervise").because(error))?;
    runtime.block_on(keep(&name, &arguments))
}

async fn keep(name: &OsString, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let mut signals = Signals::watch()?;
    let mut pause = None;
    loop {
        let started = Instant::now();
        let mut child = Command::new(program())
            .arg0(name)
            .args(arguments)
            .process_group(0)
            .spawn()
            .map_err(|error| Failure::new("the sidecar cannot be started").because(error))?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        tracing::info!(pid = child.id(), "supervising");
        let status = loop {
            tokio::select! {
                status = child.wait() => break status,
                number = signals.next() => if let Some(pid) = pid {
                    // Not reaped yet, so the pid is still its own.
                    let _ = kill_process(pid, number);
                },
            }
        };
        let status = status.map_err(|error| Failure::new("the sidecar cannot be watched").because(error))?;
        if let Some(code) = final_code(status, signals.asked) {
            return Ok(ExitCode::from(code));
        }
        if started.elapsed() > HEALTHY {
            pause = None;
        }
        tracing::error!(%status, pause = ?pause.unwrap_or(Duration::ZERO), "the sidecar died; starting it again");
        if let Some(time) = pause {
            tokio::select! {
                () = tokio::time::sleep(time) => {}
                // Nothing runs that could do more about it.
                _ = signals.next() => if let Some(exit) = signals.asked {
                    return Ok(exit.into());
                },
            }
        }
        pause = Some(pause.map_or(FIRST_PAUSE, |pause: Duration| (pause * 2).min(LONGEST_PAUSE)));
    }
}

/// What Rust's runtime exits with after a panic.
const PANICKED: i32 = 101;

/// The exit code to end with; `None`: the sidecar panicked, or died of a signal that nobody asked for.
fn final_code(status: ExitStatus, asked: Option<Exit>) -> Option<u8> {
    match (status.code(), asked) {
        // A panic is a crash too.
        (Some(PANICKED), None) => None,
        // An exit code is a byte.
        (Some(code), _) => Some(code as u8),
        (None, Some(exit)) => Some(exit.code()),
        (None, None) => None,
    }
}

/// This program; by its open file if somebody has replaced or removed it meanwhile.
fn program() -> PathBuf {
    std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or_else(|| "/proc/self/exe".into())
}

/// The arguments for the child: all but the flag, which may stand anywhere before a `--`.
fn without_flag(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut ours = true;
    arguments
        .filter(|argument| {
            ours &= argument != "--";
            !(ours && argument == FLAG)
        })
        .collect()
}

/// The signals that are passed on.
struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    leave: tokio::signal::unix::Signal,
    /// The end that the first of them asked for.
    asked: Option<Exit>,
}

impl Signals {
    fn watch() -> Result<Self, Failure> {
        let watch =
            |kind| signal(kind).map_err(|error| Failure::new("signals cannot be watched for").because(error));
        Ok(Self {
            interrupt: watch(SignalKind::interrupt())?,
            terminate: watch(SignalKind::terminate())?,
            leave: watch(SignalKind::user_defined2())?,
            asked: None,
        })
    }

    async fn next(&mut self) -> Signal {
        let (exit, number) = tokio::select! {
            _ = self.interrupt.recv() => (Exit::Interrupted, Signal::INT),
            _ = self.terminate.recv() => (Exit::Terminated, Signal::TERM),
            _ = self.leave.recv() => (Exit::Done, Signal::USR2),
        };
        self.asked.get_or_insert(exit);
        number
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn the_child_gets_all_arguments_but_the_flag() {
        let given = ["--shm", "/x", "--supervise", "-v", "--", "worker", "--supervise"];
        let passed = without_flag(given.into_iter().map(OsString::from));
        assert_eq!(passed, ["--shm", "/x", "-v", "--", "worker", "--supervise"]);
    }

    #[test]
    fn only_a_death_by_signal_that_nobody_asked_for_is_no_end() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(final_code(exited(0), None), Some(0));
        assert_eq!(final_code(exited(1), None), Some(1));
        assert_eq!(final_code(exited(130), Some(Exit::Interrupted)), Some(130));
        assert_eq!(final_code(killed, None), None);
        assert_eq!(final_code(killed, Some(Exit::Terminated)), Some(143));
    }
}
