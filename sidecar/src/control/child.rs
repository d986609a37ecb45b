//! The worker as a child process (`-- CMD ...`): started, restarted, ended.
//!
//! It has a process group of its own and no PDEATHSIG: that signal fires when a thread ends, and it would kill a warm
//! model together with a crashed sidecar.

use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::rc::Rc;

use rustix::process::Pid;
use tokio::process::{Child, Command};

use super::group::{self, GRACE, MARK};
use super::{Shared, WindDown};
use crate::explain::Code;
use crate::frame_loop;

/// How often a worker that dies before it was ever ready is started again.
const WARMUP_RESTARTS: u32 = 3;
/// How long a restarted sidecar waits for its predecessor's worker.
const SURVIVOR: Duration = Duration::from_secs(2);
/// How often it looks whether there is any left to wait for.
const LOOK: Duration = Duration::from_millis(50);
const FIRST_BACKOFF: Duration = Duration::from_millis(250);
/// A worker that lived this long starts the backoff anew when it dies.
const HEALTHY: Duration = Duration::from_secs(60);
/// How long a worker may take after a drain to end by itself.
const LAST_WORK: Duration = Duration::from_secs(10);
/// Before that is worth a line.
const UNTOLD: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Keeps one worker running.
#[derive(Debug)]
pub(super) struct Keeper {
    command: Vec<OsString>,
    environment: Vec<(&'static str, OsString)>,
    shm: PathBuf,
    /// Pids of the workers that a dead predecessor left in its seats.
    survivors: Vec<u32>,
}

impl Keeper {
    pub(super) const fn new(
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
        // A worker that was lost ends the run: its group goes now. So does one that was never seen.
        let wind_down = *shared.ending.borrow();
        if wind_down != Some(WindDown::LeaveWorker) {
            let marked =
                group::all_marked(&shared.mark).into_iter().filter(|it| Some(*it) != group::current());
            let mut groups: Vec<_> = group::current().into_iter().chain(marked).collect();
            // One that never attached does not know that there is an end.
            if wind_down == Some(WindDown::AwaitWorker) && shared.met.get() {
                let last_work = async {
                    if group::are_gone(&mut groups, UNTOLD).await {
                        return true;
                    }
                    let seconds = LAST_WORK.as_secs();
                    tracing::info!(
                        "the job is done; the worker has {seconds} s to end by itself; a signal ends it now"
                    );
                    group::are_gone(&mut groups, LAST_WORK).await
                };
                let gone = tokio::select! {
                    gone = last_work => gone,
                    () = shared.hurry.notified() => false,
                };
                if !gone {
                    tracing::warn!("the worker has not ended since the drain: SIGTERM");
                }
            }
            group::end(groups).await;
        }
    }

    async fn keep(&self, shared: &Shared) {
        if !self.survivors.is_empty() || !group::all_marked(&shared.mark).is_empty() {
            self.wait_for_survivor(shared).await;
        }
        let mut starts_before_ready = 0;
        let mut backoff = FIRST_BACKOFF;
        loop {
            let started = tokio::time::Instant::now();
            let status = match self.spawn(shared) {
                Ok(child) => wait(child).await,
                // What ran before runs again: the file is being replaced, or the system is short of something.
                Err(error) if *shared.ready.borrow() => format!("not started: {error}"),
                Err(error) => {
                    let command = self.command[0].display();
                    tracing::error!(%command, %error, "the worker cannot be started");
                    return lost(shared, format!("{command} cannot be started: {error}"));
                }
            };
            if *shared.ready.borrow() {
                tracing::warn!(code = Code::WorkerEnded.name(), %status, "the worker ended; starting it again");
                if started.elapsed() > HEALTHY {
                    backoff = FIRST_BACKOFF;
                }
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
                continue;
            }
            starts_before_ready += 1;
            if starts_before_ready > WARMUP_RESTARTS {
                tracing::error!(%status, starts = starts_before_ready, "the worker ends before it is ready");
                return lost(
                    shared,
                    format!(
                        "it ended before it was ready, {starts_before_ready} times; the last time: {status}"
                    ),
                );
            }
            let code = Code::WorkerEnded.name();
            tracing::warn!(code, %status, starts = starts_before_ready, "the worker ended before it was ready");
            tokio::time::sleep(FIRST_BACKOFF).await;
        }
    }

    fn spawn(&self, shared: &Shared) -> std::io::Result<Child> {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).env("SIDECAR_SHM", &self.shm);
        command.env(MARK, &shared.mark).process_group(0);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        // A background group that read the terminal would be stopped.
        command.stdin(Stdio::null());
        for variable in crate::config::TOKEN_VARIABLES {
            command.env_remove(variable);
        }
        shared.met.set(false);
        let child = command.spawn()?;
        group::set_current(child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())));
        tracing::info!(pid = child.id(), "worker started");
        Ok(child)
    }

    /// Returns when a worker is to be started: the predecessor's has ended, or does not come back.
    async fn wait_for_survivor(&self, shared: &Shared) {
        let mut attached = shared.attached.subscribe();
        let nobody = async {
            while *shared.orphans.borrow() > 0 || !group::all_marked(&shared.mark).is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::select! {
            biased;
            _ = attached.wait_for(|&attached| attached > 0) => {}
            () = nobody => return tracing::info!("no worker of the previous sidecar is left; starting one"),
            () = tokio::time::sleep(SURVIVOR) => {
                // Stopped or stuck: it would lose its seat to the next one, and keep the memory that one needs.
                tracing::warn!("no worker of the previous sidecar attached within 2 s; starting another");
                return group::kill(group::all_marked(&shared.mark)).await;
            }
        }
        tracing::info!("the previous sidecar's worker is alive and keeps its model");
        // It ends with this sidecar as if this one had started it.
        group::set_current(self.survivors.iter().find_map(|pid| group::of_marked(*pid, &shared.mark)));
        let mut alive = shared.alive.subscribe();
        loop {
            // The senders live in `Shared`, so each wait ends with what is waited for alone.
            let _ = attached.wait_for(|&attached| attached == 0).await;
            tokio::select! {
                // Only its connection had broken.
                _ = attached.wait_for(|&attached| attached > 0) => {}
                _ = alive.wait_for(|&alive| alive == 0) => break,
                () = tokio::time::sleep(GRACE) => break,
            }
        }
        tracing::warn!("the previous sidecar's worker is gone; starting another");
        group::kill_current();
        group::set_current(None);
    }
}

fn lost(shared: &Shared, why: String) {
    shared.frame_loop.send(frame_loop::Command::WorkerLost { why });
}

/// Waits for the child's end.
async fn wait(mut child: Child) -> String {
    let status = child.wait().await;
    // What is left of the group (a shell's children) goes with it.
    group::kill_current();
    group::set_current(None);
    status.as_ref().map_or_else(ToString::to_string, ExitStatus::to_string)
}
