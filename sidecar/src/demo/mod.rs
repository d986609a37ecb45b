//! `sidecar demo`: the main job on this machine, closed loop, no GPU and no network.
//!
//! Gateway, sidecar and worker are separate processes, started like a user would start them. The gateway simulates
//! cart-pole; a case is solved only if all 500 steps were survived, so that a wrong byte or a wrong order shows. Nothing
//! goes wrong in it, so nothing may be noted in the region either.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use sidecar_shm::stats::{Snapshot, Stats};

use crate::cli::DemoArgs;
use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

mod gateway;
mod table;

use gateway::GatewayProcess;
use table::Row;

/// Plays the cases with and without images and prints the table.
///
/// # Errors
/// A process could not be started, or ended before its part was done; not every case was solved.
pub fn run(args: &DemoArgs) -> Result<Exit, Failure> {
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Code::Rehearsal, "the demo cannot find its own program").because(error)
    })?;
    let directory = Scratch::new()?;
    let mut rows = Vec::new();
    for (title, payload) in [("no image", 0), ("image", args.payload)] {
        let play = Play { program: &program, shm: directory.0.join("obs0"), title, payload };
        rows.push(play.run(args)?);
    }
    let text = if args.json { table::json(&rows) } else { table::text(&rows) };
    // A closed pipe is a reader that has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    match rows.iter().find(|row| !row.is_solved()) {
        None => rows.iter().find_map(Row::surprise).map_or(Ok(Exit::Done), |what| {
            Err(Failure::new(Code::Unsolved, what).because("nothing was to go wrong"))
        }),
        Some(row) => {
            let report = &row.report;
            let what = format!("{}: {} of {} cases were solved", row.title, report.solved, report.cases);
            Err(Failure::new(Code::Unsolved, what))
        }
    }
}

/// A directory of the demo's own for the region, removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, Failure> {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let name = crate::config::random::<8>().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let path = parent.join(format!("sidecar-demo-{name}"));
        std::fs::create_dir(&path).map_err(|error| {
            Failure::new(Code::Rehearsal, format!("the demo cannot make {}", path.display()))
                .because(error)
                .hint("free some space in /dev/shm")
        })?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed is a few empty names.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A child that does not outlive the demo.
struct Kept(Child);

impl Drop for Kept {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One of the two runs.
struct Play<'a> {
    program: &'a Path,
    shm: PathBuf,
    title: &'static str,
    payload: u32,
}

impl Play<'_> {
    fn run(&self, args: &DemoArgs) -> Result<Row, Failure> {
        let token = crate::config::fresh_agent_id();
        let job = crate::config::fresh_agent_id();
        let mut gateway =
            GatewayProcess::start(self.program, args, self.payload, job.as_str(), token.as_str())?;
        let io = format!("{:?}", args.io).to_lowercase();
        let mut command = Command::new(self.program);
        command
            .args(["--quiet", "--gpu", "none", "--io", &io, "--job", job.as_str(), "--endpoint"])
            .args([&gateway.endpoint, "--shm"])
            .arg(&self.shm)
            .arg("--")
            .arg(self.program)
            .args(["worker", "--policy", "cartpole"])
            .env("JOB_TOKEN", token.as_str())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let mut sidecar = command.spawn().map(Kept).map_err(|error| {
            Failure::new(Code::Rehearsal, "the demo cannot start a sidecar").because(error)
        })?;
        let progress = Progress::new();
        // The region's name is removed at the end of the run: with a second one it can still be read then.
        let kept = self.shm.with_file_name(self.title);
        let report = loop {
            // It fails as long as there is none, and when it was done already.
            let _ = std::fs::hard_link(&self.shm, &kept);
            progress.show(self.title, &gateway);
            if let Some(report) = gateway.poll()? {
                break report;
            }
            if let Ok(Some(status)) = sidecar.0.try_wait()
                && !status.success()
            {
                progress.clear();
                return Err(Failure::new(Code::Rehearsal, format!("the demo's sidecar ended with {status}"))
                    .hint("look at its message above"));
            }
        };
        progress.clear();
        let status = sidecar
            .0
            .wait()
            .map_err(|error| Failure::new(Code::Rehearsal, "the demo's sidecar is lost").because(error))?;
        let snapshot: Option<Snapshot> = Stats::open_read_only(&kept).ok();
        Ok(Row { title: self.title, payload: self.payload, report, snapshot, exit: status.code() })
    }
}

/// One line on a terminal, nothing elsewhere.
struct Progress {
    terminal: bool,
}

impl Progress {
    fn new() -> Self {
        Self { terminal: std::io::stderr().is_terminal() }
    }

    fn show(&self, title: &str, gateway: &GatewayProcess) {
        if self.terminal {
            let (case, step) = gateway.position();
            let _ =
                write!(std::io::stderr(), "\r\x1b[K{title}: case {case} of {}, step {step}", gateway.cases);
        }
    }

    fn clear(&self) {
        if self.terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
