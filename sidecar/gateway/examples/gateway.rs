//! The rehearsal gateway without the rest of `sidecar`: the same flags, the same lines on standard output.

use std::process::ExitCode;

use clap::Parser;

/// A rehearsal gateway: the whole server side of the tunnel contract, with faults on request
#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: sidecar_gateway::Args,
}

fn main() -> ExitCode {
    match sidecar_gateway::run(Cli::parse().args) {
        Ok(report) if report.solved == report.cases => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
