//! The worker as a child process (`-- CMD ...`): started, restarted, ended.
//!
//! It has a process group of its own and no PDEATHSIG: that signal fires when a thread ends, and it would kill a warm
//! model together with a crashed sidecar.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::rc::Rc;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::Shared;
use crate::frame_loop;

/// How often a worker may die before it was ever ready.
const WARMUP_STARTS: u32 = 3;
/// How long a restarted sidecar waits for its predecessor's worker.
const SURVIVOR: Duration = Duration::from_secs(2);
/// Between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// A worker that lived this long starts the backoff anew when it dies.
const HEALTHY: Duration = Duration::from_secs(60);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// The group of the running child, for the end that a second signal asks for.
static GROUP: Mutex<Option<Pid>> = Mutex::new(None);

/// Keeps one worker running.
#[derive(Debug)]
pub(super) struct Keeper {
    command: Vec<OsString>,
    shm: PathBuf,
    survivor_expected: bool,
}

impl Keeper {
    pub(super) fn new(command: Vec<OsString>, shm: PathBuf, survivor_expected: bool) -> Self {
        Self { command, shm, survivor_expected }
    }

    pub(super) async fn run(self, shared: Rc<Shared>) {
        let mut ending = shared.ending.subscribe();
        tokio::select! {
            () = self.keep(&shared) => {}
            _ = ending.wait_for(|&ending| ending) => {}
        }
        end_group().await;
    }

    async fn keep(&self, shared: &Shared) {
        if self.survivor_expected {
            wait_for_survivor(shared).await;
        }
        let mut starts_before_ready = 0;
        let mut backoff = FIRST_BACKOFF;
        loop {
            let started = tokio::time::Instant::now();
            let status = match self.spawn() {
                Ok(child) => wait(child, shared).await,
                Err(error) => {
                    let command = self.command[0].display();
                    tracing::error!(%command, %error, "the worker cannot be started");
                    return shared.frame_loop.send(frame_loop::Command::WorkerLost);
                }
            };
            if *shared.ready.borrow() {
                tracing::warn!(%status, "the worker ended; starting it again");
                if started.elapsed() > HEALTHY {
                    backoff = FIRST_BACKOFF;
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                continue;
            }
            starts_before_ready += 1;
            if starts_before_ready > WARMUP_STARTS {
                tracing::error!(%status, starts = starts_before_ready, "the worker ends before it is ready");
                return shared.frame_loop.send(frame_loop::Command::WorkerLost);
            }
            tracing::warn!(%status, starts = starts_before_ready, "the worker ended before it was ready");
            tokio::time::sleep(FIRST_BACKOFF).await;
        }
    }

    fn spawn(&self) -> std::io::Result<Child> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env("SIDECAR_SHM", &self.shm).process_group(0);
        for variable in crate::config::TOKEN_VARIABLES {
            command.env_remove(variable);
        }
        let child = command.spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = group;
        tracing::info!(pid = child.id(), "worker started");
        Ok(child)
    }
}

/// Waits for the child's end, which the frame loop may ask for.
async fn wait(mut child: Child, shared: &Shared) -> String {
    let status = tokio::select! {
        status = child.wait() => status,
        () = shared.drop_worker.notified() => {
            signal_group(Signal::KILL);
            child.wait().await
        }
    };
    // What is left of the group (a shell's children) goes with it.
    signal_group(Signal::KILL);
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    status.as_ref().map_or_else(ToString::to_string, ExitStatus::to_string)
}

async fn wait_for_survivor(shared: &Shared) {
    let mut attached = shared.attached.subscribe();
    if tokio::time::timeout(SURVIVOR, attached.wait_for(|&attached| attached > 0)).await.is_err() {
        return tracing::info!("no worker of the previous sidecar attached within 2 s; starting one");
    }
    tracing::info!("the previous sidecar's worker is alive and keeps its model");
    // The sender lives in `Shared`, so the wait ends with the survivor's death alone.
    let _ = attached.wait_for(|&attached| attached == 0).await;
}

fn group() -> Option<Pid> {
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn signal_group(signal: Signal) {
    if let Some(group) = group() {
        // The group may be empty by now.
        let _ = kill_process_group(group, signal);
    }
}

/// SIGTERM, then SIGKILL after `GRACE` if anything of the group is left.
async fn end_group() {
    let Some(group) = group() else { return };
    signal_group(Signal::TERM);
    let deadline = tokio::time::Instant::now() + GRACE;
    while rustix::process::test_kill_process_group(group).is_ok() {
        // Our own child stays a zombie, and its group alive, until it is reaped.
        let _ = rustix::process::waitpid(Some(group), rustix::process::WaitOptions::NOHANG);
        if tokio::time::Instant::now() >= deadline {
            tracing::warn!("the worker did not end on SIGTERM: SIGKILL");
            return signal_group(Signal::KILL);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// For the end without ceremony.
pub(super) fn kill_at_once() {
    signal_group(Signal::KILL);
}
