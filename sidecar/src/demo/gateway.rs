//! The demo's gateway process and what it says on its standard output.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use serde_json::Value;

use super::Kept;
use crate::cli::DemoArgs;
use crate::explain::Code;
use crate::report::Failure;

/// How often the demo looks at the region and the progress.
const POLL: core::time::Duration = core::time::Duration::from_millis(50);

/// A process and a socket are made in far less.
const START: core::time::Duration = core::time::Duration::from_secs(20);

/// What the gateway says at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) cases: u64,
    pub(super) solved: u64,
    pub(super) steps: u64,
    /// Nanoseconds from observation to action.
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

/// A running gateway.
pub(super) struct GatewayProcess {
    process: Kept,
    lines: Receiver<Value>,
    pub(super) endpoint: String,
    pub(super) cases: u32,
    case: u64,
    step: u64,
}

impl GatewayProcess {
    pub(super) fn start(
        program: &Path,
        args: &DemoArgs,
        payload: u32,
        job: &str,
        token: &str,
    ) -> Result<Self, Failure> {
        let mut command = Command::new(program);
        command
            .args(["gateway", "--quiet", "--listen", "127.0.0.1:0", "--job", job])
            .args(["--cases", &args.cases.to_string(), "--seed", &args.seed.to_string()])
            .env("JOB_TOKEN", token)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        if payload > 0 {
            command.args(["--payload", &payload.to_string()]);
        }
        let mut child = command.spawn().map_err(|error| {
            Failure::new(Code::Rehearsal, "the demo cannot start a gateway").because(error)
        })?;
        let output = child.stdout.take();
        let process = Kept(child);
        let (sender, lines) = mpsc::channel::<Value>();
        thread::spawn(move || {
            let Some(output) = output else { return };
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(value) = serde_json::from_str(&line)
                    && sender.send(value).is_err()
                {
                    return;
                }
            }
        });
        let first = lines
            .recv_timeout(START)
            .map_err(|_| Failure::new(Code::Rehearsal, "the demo's gateway did not start"))?;
        let endpoint = first["endpoint"].as_str().unwrap_or_default().to_owned();
        Ok(Self { process, lines, endpoint, cases: args.cases, case: 0, step: 0 })
    }

    /// The case that is played, counted from 1, and its step.
    pub(super) const fn position(&self) -> (u64, u64) {
        (self.case, self.step)
    }

    /// Waits a moment for what the gateway says; the report when it is there.
    ///
    /// # Errors
    /// The gateway ended without one.
    pub(super) fn poll(&mut self) -> Result<Option<Report>, Failure> {
        match self.lines.recv_timeout(POLL) {
            Ok(line) => Ok(self.take(&line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => {
                let status =
                    self.process.0.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
                Err(Failure::new(Code::Rehearsal, format!("the demo's gateway ended with {status}"))
                    .hint("look at its message above"))
            }
        }
    }

    fn take(&mut self, line: &Value) -> Option<Report> {
        let number = |name: &str| line[name].as_u64().unwrap_or_default();
        match line["event"].as_str() {
            Some("case") => (self.case, self.step) = (number("case") + 1, 0),
            Some("step") => self.step = number("step"),
            Some(_) => {}
            None => {
                let latency = |name: &str| line["latency_ns"][name].as_u64().unwrap_or_default();
                return Some(Report {
                    cases: number("cases"),
                    solved: number("solved"),
                    steps: number("steps"),
                    p50: latency("p50"),
                    p99: latency("p99"),
                    max: latency("max"),
                });
            }
        }
        None
    }
}
