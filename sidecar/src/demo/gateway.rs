//! The demo's gateway process and what it says on its standard output.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use serde_json::Value;

use super::Play;
use super::process::{self, Kept, LOOK, Stop};
use crate::cli::DemoArgs;
use crate::explain::Code;
use crate::report::Failure;

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
    pub(super) fn start(play: &Play<'_>, args: &DemoArgs, job: &str, token: &str) -> Result<Self, Stop> {
        let mut command = process::command(play.program);
        command
            .args(["gateway", "--listen", "127.0.0.1:0", "--job", job])
            .args(["--cases", &args.cases.to_string(), "--seed", &args.seed.to_string()])
            .env("JOB_TOKEN", token)
            .stdout(Stdio::piped());
        if play.payload > 0 {
            command.args(["--payload", &play.payload.to_string()]);
        }
        let mut process = Kept::start(&mut command, "a gateway")?;
        let output = process.child().stdout.take();
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
        let looks = START.as_millis() / LOOK.as_millis();
        let first = (0..looks).find_map(|_| match lines.recv_timeout(LOOK) {
            Err(RecvTimeoutError::Timeout) => play.signals.check().err().map(Err),
            Err(RecvTimeoutError::Disconnected) => Some(Err(ended(&mut process).into())),
            Ok(line) => Some(Ok(line)),
        });
        let first =
            first.ok_or_else(|| Failure::new(Code::Rehearsal, "the demo's gateway did not start"))??;
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
        match self.lines.recv_timeout(LOOK) {
            Ok(line) => Ok(self.take(&line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ended(&mut self.process)),
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

/// Its standard output has ended, and so has it.
fn ended(process: &mut Kept) -> Failure {
    let status = process.child().wait().map_or_else(|error| error.to_string(), |status| status.to_string());
    Failure::new(Code::Rehearsal, format!("the demo's gateway ended with {status}"))
        .hint("look at its message above")
}
