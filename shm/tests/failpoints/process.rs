//! Children: this test binary once more, in another role. A child that stops itself is killed there.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitpid,
};
use sidecar_shm::sync::{AtomicBool, Ordering};

/// What the test is called that begins with [`child`]. Under another name children would pass no place.
const TEST: &str = "whoever_dies_at_whatever_store_the_others_go_on";
/// What a child is told by its environment.
const ROLE: &str = "SIDECAR_FAILPOINTS_ROLE";
const REGION: &str = "SIDECAR_FAILPOINTS_REGION";
const STOP: &str = "SIDECAR_FAILPOINTS_STOP";

/// A place and how often it is passed unharmed; or only noting the places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    Note,
    Stop(String, u32),
    Live,
}

/// What this process is, if it is a child: its role, the region, its fate.
pub(crate) fn child() -> Option<(String, PathBuf, Fate)> {
    let role = std::env::var(ROLE).ok()?;
    let region = std::env::var_os(REGION)?.into();
    let fate = match std::env::var(STOP).ok() {
        None => Fate::Live,
        Some(text) if text == "note" => Fate::Note,
        Some(text) => {
            let (place, pass) = text.split_once(' ').unwrap();
            Fate::Stop(place.to_owned(), pass.parse().unwrap())
        }
    };
    Some((role, region, fate))
}

/// How a child ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// At its place, killed.
    There,
    /// By itself.
    Done,
    Failed,
}

pub(crate) struct Process {
    pid: Pid,
    lines: JoinHandle<Vec<String>>,
    errors: JoinHandle<String>,
}

impl Process {
    pub(crate) fn start(role: &str, region: &Path, fate: &Fate) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(REGION, region)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        match fate {
            Fate::Live => command.env_remove(STOP),
            Fate::Note => command.env(STOP, "note"),
            Fate::Stop(place, pass) => command.env(STOP, format!("{place} {pass}")),
        };
        #[expect(clippy::zombie_processes, reason = "`finish` waits, also for a stop, which std can't")]
        let mut child = command.spawn().unwrap();
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let lines = std::thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            // The harness may have begun the line.
            lines.filter_map(|line| line.split_once('@').map(|(_, said)| said.to_owned())).collect()
        });
        let errors = std::thread::spawn(move || {
            let mut errors = String::new();
            let _ = stderr.read_to_string(&mut errors);
            errors
        });
        Self { pid: Pid::from_child(&child), lines, errors }
    }

    /// A name of it that means no other process, ever.
    pub(crate) fn pidfd(&self) -> OwnedFd {
        pidfd_open(self.pid, PidfdFlags::empty()).unwrap()
    }

    /// Waits until it has ended or stopped; a stopped one is killed. Gives what it said.
    pub(crate) fn finish(self) -> (End, Vec<String>, String) {
        let (_, status) = waitpid(Some(self.pid), WaitOptions::UNTRACED).unwrap().unwrap();
        let end = if status.stopped() {
            kill_process(self.pid, Signal::KILL).unwrap();
            waitpid(Some(self.pid), WaitOptions::empty()).unwrap();
            End::There
        } else if status.exit_status() == Some(0) {
            End::Done
        } else {
            End::Failed
        };
        (end, self.lines.join().unwrap(), self.errors.join().unwrap())
    }
}

/// Keeps a worker running, the first one with a fate of its own.
pub(crate) struct Keeper {
    ending: Arc<AtomicBool>,
    running: Arc<Mutex<Option<OwnedFd>>>,
    thread: JoinHandle<Kept>,
}

/// What came of all workers.
#[derive(Debug, Default)]
pub(crate) struct Kept {
    pub(crate) lines: Vec<String>,
    /// The first one's end.
    pub(crate) first: Option<End>,
}

impl Keeper {
    pub(crate) fn start(region: &Path, fate: Fate) -> Self {
        let (ending, running) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let (is_ending, runs, region) = (Arc::clone(&ending), Arc::clone(&running), region.to_owned());
        let thread = std::thread::spawn(move || {
            let mut kept = Kept::default();
            let mut fate = fate;
            while !is_ending.load(Ordering::Relaxed) {
                let worker = Process::start("worker", &region, &fate);
                fate = Fate::Live;
                *runs.lock().unwrap() = Some(worker.pidfd());
                let (end, lines, errors) = worker.finish();
                kept.lines.extend(lines);
                if end == End::Failed && !is_ending.load(Ordering::Relaxed) {
                    kept.lines.push(format!("broken {errors}"));
                }
                kept.first.get_or_insert(end);
            }
            kept
        });
        Self { ending, running, thread }
    }

    /// Ends the worker and gives what all of them said.
    pub(crate) fn end(self) -> Kept {
        self.ending.store(true, Ordering::Relaxed);
        while !self.thread.is_finished() {
            if let Some(worker) = &*self.running.lock().unwrap() {
                // It may have ended by itself.
                let _ = pidfd_send_signal(worker, Signal::KILL);
            }
            std::thread::sleep(core::time::Duration::from_millis(2));
        }
        self.thread.join().unwrap()
    }
}
