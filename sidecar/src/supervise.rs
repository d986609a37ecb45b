//! `--supervise`: a parent that starts the sidecar again when it crashes.
//!
//! It is the same program without the flag, in a process group of its own, so that Ctrl-C reaches it once: through
//! this parent, which passes on what it is sent. An end that the sidecar chose, whatever its exit code, is this
//! parent's end as well; so is any end after a signal that asks for one. A start that fails is tried again. Nothing is
//! known here of tunnels or regions: what the next sidecar takes over is in the region of the dead one.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitCode, ExitStatus};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

/// The flag that the child must not get.
const FLAG: &str = "--supervise";
/// The first restart comes at once: the gateway keeps a session for 30 s (tunnel contract A.5). Further ones double.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
/// What to do where the system refuses something that every process needs.
const SHORT: &str =
    "raise the limits on open files and processes (ulimit -n, ulimit -u), or start it without --supervise";
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A sidecar that lived this long starts the pauses anew.
const HEALTHY: Duration = Duration::from_secs(60);

/// Keeps the sidecar of this command line running; gives its exit code.
///
/// # Errors
/// It cannot be started even once, or signals cannot be watched.
pub fn run() -> Result<ExitCode, Failure> {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "sidecar".into());
    let arguments = without_flag(arguments);
    let runtime = crate::descriptors::runtime().map_err(|error| {
        Failure::new(Code::Start, "--supervise: the system gave no event queue to wait with")
            .because(error)
            .hint(SHORT)
    })?;
    runtime.block_on(keep(&name, &arguments))
}

async fn keep(name: &OsString, arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let mut signals = Signals::watch()?;
    let mut pause = None;
    let mut started_once = false;
    loop {
        let started = Instant::now();
        let spawned = Command::new(program()).arg0(name).args(arguments).process_group(0).spawn();
        let why = match spawned {
            Ok(child) => {
                started_once = true;
                let status = watch(child, &mut signals).await?;
                if let Some(code) = final_code(status, signals.asked) {
                    return Ok(ExitCode::from(code));
                }
                format!("the sidecar died: {status}")
            }
            // What could be started before can be again, once the system has what it is short of.
            Err(error) if started_once => format!("the sidecar cannot be started: {error}"),
            Err(error) => {
                return Err(Failure::new(Code::Start, "--supervise: the sidecar cannot be started")
                    .because(error)
                    .hint(SHORT));
            }
        };
        if started.elapsed() > HEALTHY {
            pause = None;
        }
        tracing::error!(%why, pause = ?pause.unwrap_or(Duration::ZERO), "starting the sidecar again");
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

/// Waits for the child's end, and passes on what this process is sent.
async fn watch(mut child: Child, signals: &mut Signals) -> Result<ExitStatus, Failure> {
    let pid = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
    tracing::info!(pid = child.id(), "supervising");
    loop {
        tokio::select! {
            status = child.wait() => {
                return status.map_err(|error| {
                    Failure::new(Code::Start, "--supervise: the sidecar's end cannot be learnt").because(error).hint(
                        "see whether it still runs (`sidecar stat --shm PATH` names its pid) before you start another",
                    )
                });
            }
            number = signals.next() => if let Some(pid) = pid {
                // Not reaped yet, so the pid is still its own.
                let _ = kill_process(pid, number);
            },
        }
    }
}

/// The exit code to end with; `None`: the sidecar died of a signal that nobody asked for, or ended with a code that is
/// none of its own, as after a panic (101) or where the loader found a library missing (127).
fn final_code(status: ExitStatus, asked: Option<Exit>) -> Option<u8> {
    let chosen = |code: &u8| Exit::ALL.iter().any(|exit| exit.code() == *code);
    // An exit code is a byte.
    let code = status.code().map(|code| code as u8);
    match asked {
        None => code.filter(chosen),
        Some(exit) => Some(code.unwrap_or_else(|| exit.code())),
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
        let watch = |kind| {
            signal(kind).map_err(|error| {
                Failure::new(Code::Start, "--supervise: signals cannot be watched for")
                    .because(error)
                    .hint(SHORT)
            })
        };
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
    fn an_end_that_neither_the_sidecar_chose_nor_anybody_asked_for_is_none() {
        let exited = |code: i32| ExitStatus::from_raw(code << 8);
        let killed = ExitStatus::from_raw(9);
        assert_eq!(final_code(exited(0), None), Some(0));
        assert_eq!(final_code(exited(1), None), Some(1));
        assert_eq!(final_code(exited(130), Some(Exit::Interrupted)), Some(130));
        assert_eq!(final_code(killed, None), None);
        assert_eq!(final_code(exited(101), None), None);
        assert_eq!(final_code(exited(127), None), None);
        assert_eq!(final_code(killed, Some(Exit::Terminated)), Some(143));
    }
}
