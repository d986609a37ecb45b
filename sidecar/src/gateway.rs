//! `sidecar gateway`: the rehearsal gateway, a crate of its own that shares nothing with the sidecar's protocol core.

use sidecar_gateway::GatewayError;

use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

/// Plays the gateway until its job is over; a success only if every case was solved.
///
/// # Errors
/// It cannot listen, or has no token; not every case was solved.
pub fn run(args: sidecar_gateway::Args) -> Result<Exit, Failure> {
    let report = sidecar_gateway::run(args).map_err(|error| failure(&error))?;
    tracing::info!(solved = report.solved, cases = report.cases, steps = report.steps, "the job is over");
    if report.solved == report.cases {
        return Ok(Exit::Done);
    }
    let what = format!("{} of {} cases were solved", report.solved, report.cases);
    let failure = Failure::new(Code::Unsolved, what);
    Err(report.failure.into_iter().fold(failure, Failure::because))
}

fn failure(error: &GatewayError) -> Failure {
    Failure::new(Code::Rehearsal, "the rehearsal gateway cannot start")
        .because_and_hint(error, Code::Rehearsal.next())
}
