//! The `sidecar` command.

use std::process::ExitCode;

use sidecar::cli::{Cli, Command};
use sidecar::exit::Exit;
use sidecar::log::Format;
use sidecar::report::Failure;

fn main() -> ExitCode {
    let cli = match Cli::read(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => {
            if error.use_stderr() {
                sidecar::report::refuse(&error);
                return Exit::Failed.into();
            }
            // Help and version are no failure, and a closed stream is nobody to tell.
            let _ = error.print();
            return Exit::Done.into();
        }
    };
    sidecar::log::start(cli.talk.log_format, cli.talk.level());
    if let Some(parent) = cli.talk.die_with {
        sidecar::demo::die_with(parent);
    }
    if cli.command.is_none() && cli.run.supervise {
        let ended = sidecar::supervise::run();
        sidecar::log::finish();
        return ended.unwrap_or_else(|failure| fail(&failure, cli.talk.log_format));
    }
    if cli.command.is_none() {
        sidecar::report::tell_of_panics(cli.talk.log_format);
    }
    let result = match cli.command {
        None => sidecar::run::run(&cli.run),
        Some(Command::Demo(args)) => sidecar::demo::run(&args),
        Some(Command::Gateway(args)) => sidecar::gateway::run(*args),
        Some(Command::Worker(args)) => sidecar::worker::run(&args),
        Some(Command::Gpus(args)) => sidecar::gpus::run(&args),
        Some(Command::Stat(args)) => sidecar::stat::run(&args),
        Some(Command::Explain(args)) => sidecar::explain::run(&args),
    };
    sidecar::log::finish();
    match result {
        Ok(exit) => exit.into(),
        Err(failure) => fail(&failure, cli.talk.log_format),
    }
}

fn fail(failure: &Failure, format: Format) -> ExitCode {
    failure.print(format);
    Exit::Failed.into()
}
