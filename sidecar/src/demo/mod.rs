//! `sidecar demo`: the main job on this machine, closed loop, no GPU and no network.
//!
//! Gateway, sidecar and worker are separate processes, started like a user would start them. The gateway simulates
//! cart-pole; a case is solved only if all 500 steps were survived, so that a wrong byte or a wrong order shows. Nothing
//! goes wrong in it, so nothing may be noted in the region either.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use sidecar_shm::attach::socket_path;
use sidecar_shm::stats::Stats;

use crate::cli::DemoArgs;
use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

mod gateway;
mod process;
mod table;

use gateway::GatewayProcess;
pub use process::die_with;
use process::{Kept, Signals, Stop};
use table::Row;

/// Plays the cases with and without images and prints the table.
///
/// # Errors
/// A process could not be started, or ended before its part was done; not every case was solved.
pub fn run(args: &DemoArgs) -> Result<Exit, Failure> {
    match play(args) {
        Ok(exit) | Err(Stop::Asked(exit)) => Ok(exit),
        Err(Stop::Failed(failure)) => Err(failure),
    }
}

fn play(args: &DemoArgs) -> Result<Exit, Stop> {
    let signals = Signals::watch()?;
    let program = std::env::current_exe().map_err(|error| {
        Failure::new(Code::Rehearsal, "the demo cannot find its own program").because(error)
    })?;
    let region = Region::new();
    let mut rows = Vec::new();
    for (title, payload) in [("no image", 0), ("image", args.payload)] {
        let play = Play { program: &program, signals: &signals, shm: &region.0, title, payload };
        rows.push(play.run(args)?);
    }
    let text = if args.json { table::json(&rows) } else { table::text(&rows) };
    // A closed pipe is a reader that has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    match rows.iter().find(|row| !row.is_solved()) {
        None => rows.iter().find_map(Row::surprise).map_or(Ok(Exit::Done), |what| {
            Err(Failure::new(Code::Unsolved, what).because("nothing was to go wrong").into())
        }),
        Some(row) => {
            let report = &row.report;
            let what = format!("{}: {} of {} cases were solved", row.title, report.solved, report.cases);
            Err(Failure::new(Code::Unsolved, what).into())
        }
    }
}

/// The region's path. There is no directory to it, so that nothing is left of a demo that was killed: the sidecar
/// removes the rest.
struct Region(PathBuf);

impl Region {
    fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let name = crate::config::random::<8>().iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        Self(parent.join(format!("sidecar-demo-{name}")))
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // What a sidecar that failed left for a successor that never comes.
        for path in [&self.0, &socket_path(&self.0)] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// One of the two runs.
struct Play<'a> {
    program: &'a Path,
    signals: &'a Signals,
    shm: &'a Path,
    title: &'static str,
    payload: u32,
}

impl Play<'_> {
    fn run(&self, args: &DemoArgs) -> Result<Row, Stop> {
        let token = crate::config::fresh_agent_id();
        let job = crate::config::fresh_agent_id();
        let mut gateway = GatewayProcess::start(self, args, job.as_str(), token.as_str())?;
        let io = format!("{:?}", args.io).to_lowercase();
        let mut command = process::command(self.program);
        command
            .args(["--gpu", "none", "--io", &io, "--job", job.as_str(), "--endpoint"])
            .args([&gateway.endpoint, "--shm"])
            .arg(self.shm)
            .arg("--")
            .arg(self.program)
            .args(["worker", "--policy", "cartpole"])
            .env("JOB_TOKEN", token.as_str())
            .stdout(Stdio::null());
        let mut sidecar = Kept::start(&mut command, "a sidecar")?;
        let progress = Progress::new();
        let mut region: Option<File> = None;
        let report = loop {
            // Its name is removed at the end of the run: what is open can still be read then.
            region = region.or_else(|| File::open(self.shm).ok());
            progress.show(self.title, &gateway);
            if let Some(report) = gateway.poll()? {
                break report;
            }
            self.signals.check()?;
            if let Some(status) = sidecar.ended().filter(|status| !status.success()) {
                progress.clear();
                return Err(Failure::new(Code::Rehearsal, format!("the demo's sidecar ended with {status}"))
                    .hint("look at its message above")
                    .into());
            }
        };
        progress.clear();
        let status = loop {
            if let Some(status) = sidecar.ended() {
                break status;
            }
            self.signals.check()?;
            std::thread::sleep(process::LOOK);
        };
        let snapshot = region.and_then(|region| Stats::read_only(&region, self.shm).ok());
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
