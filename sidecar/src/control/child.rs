//! The worker as a child process (`-- CMD ...`): started, restarted, ended.
//!
//! It has a process group of its own and no PDEATHSIG: that signal fires when a thread ends, and it would kill a warm
//! model together with a crashed sidecar.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, Command};

use super::{Shared, WindDown};
use crate::frame_loop;

/// In the environment of each worker that a sidecar started.
const MARK: &str = "SIDECAR_CHILD";
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
    environment: Vec<(&'static str, OsString)>,
    shm: PathBuf,
    /// Pids of the workers that a dead predecessor left.
    survivors: Vec<u32>,
}

impl Keeper {
    pub(super) fn new(
        command: Vec<OsString>,
        environment: Vec<(&'static str, OsString)>,
        shm: PathBuf,
        survivors: Vec<u32>,
    ) -> Self {
        Self { command, environment, shm, survivors }
    }

    pub(super) async fn run(self, shared: Rc<Shared>) {
        let mut ending = shared.ending.subscribe();
        tokio::select! {
            () = self.keep(&shared) => {}
            _ = ending.wait_for(Option::is_some) => {}
        }
        // A worker that was lost ends the run: its group goes now.
        let wind_down = *shared.ending.borrow();
        if wind_down != Some(WindDown::LeaveWorker) {
            end_group().await;
        }
    }

    async fn keep(&self, shared: &Shared) {
        if !self.survivors.is_empty() {
            self.wait_for_survivor(shared).await;
        }
        let mut starts_before_ready = 0;
        let mut backoff = FIRST_BACKOFF;
        loop {
            let started = tokio::time::Instant::now();
            let status = match self.spawn() {
                Ok(child) => wait(child, shared).await,
                // What ran before runs again: the file is being replaced, or the system is short of something.
                Err(error) if *shared.ready.borrow() => format!("not started: {error}"),
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
        command.args(&self.command[1..]).env("SIDECAR_SHM", &self.shm).env(MARK, "1").process_group(0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // A background group that read the terminal would be stopped.
        command.stdin(Stdio::null());
        for variable in crate::config::TOKEN_VARIABLES {
            command.env_remove(variable);
        }
        let child = command.spawn()?;
        let group = child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        set_group(group);
        tracing::info!(pid = child.id(), "worker started");
        Ok(child)
    }

    async fn wait_for_survivor(&self, shared: &Shared) {
        let mut attached = shared.attached.subscribe();
        if tokio::time::timeout(SURVIVOR, attached.wait_for(|&attached| attached > 0)).await.is_err() {
            return tracing::info!("no worker of the previous sidecar attached within 2 s; starting one");
        }
        tracing::info!("the previous sidecar's worker is alive and keeps its model");
        // It ends with this sidecar as if this one had started it.
        set_group(self.survivors.iter().find_map(|pid| group_of_child(*pid)));
        // The sender lives in `Shared`, so the wait ends with the survivor's death alone.
        let _ = attached.wait_for(|&attached| attached == 0).await;
        signal_group(Signal::KILL);
        set_group(None);
    }
}

/// The process group of a worker, if a sidecar started it: nobody else's is ever signalled.
fn group_of_child(pid: u32) -> Option<Pid> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let mark = format!("{MARK}=1");
    let marked = environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes());
    let group = rustix::process::getpgid(Pid::from_raw(pid.cast_signed())).ok()?;
    (marked && group != rustix::process::getpgrp()).then_some(group)
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
    set_group(None);
    status.as_ref().map_or_else(ToString::to_string, ExitStatus::to_string)
}

fn group() -> Option<Pid> {
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn set_group(group: Option<Pid>) {
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = group;
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
