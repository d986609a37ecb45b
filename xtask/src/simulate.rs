//! `cargo xtask simulate`: schedules of the simulation from fresh seeds, or one of them told.

use core::time::Duration;
use std::process::ExitCode;

use crate::runner::Stop;
use crate::steps::Context;

/// Schedules of `cargo xtask test`: the same ones each time, in less than two minutes on one core.
pub(crate) const FIXED: [&str; 4] = ["--first", "1", "--schedules", "200000"];

/// How it is built: each schedule is some thousand steps.
pub(crate) const PROFILE: &str = "release";

/// On top of the time that was asked for: a build, and the story of a broken seed.
const SLACK: Duration = Duration::from_secs(30 * 60);

/// What was asked for: numbers of `--seconds`, `--schedules`, `--first`, `--seed`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Simulate {
    arguments: Vec<String>,
    seconds: u64,
}

impl Simulate {
    /// Reads what follows `simulate`.
    ///
    /// # Errors
    /// An option that there is not, or one without its number.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut simulate = Self { arguments: Vec::new(), seconds: 60 };
        while let Some(word) = words.next() {
            if !matches!(word.as_str(), "--seconds" | "--schedules" | "--first" | "--seed") {
                return Err(format!("unexpected argument `{word}`"));
            }
            let value = words.next().ok_or_else(|| format!("`{word}` wants a number"))?;
            let number: u64 = value.parse().map_err(|_| format!("`{value}` is no number"))?;
            if word == "--seconds" {
                simulate.seconds = number;
            }
            simulate.arguments.extend([word, value]);
        }
        Ok(simulate)
    }

    /// Builds and runs it.
    ///
    /// # Errors
    /// What keeps it from running.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let arguments: Vec<_> = self.arguments.iter().map(String::as_str).collect();
        match run(&Context::new()?, PROFILE, &arguments, SLACK + Duration::from_secs(self.seconds)) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Stop::Failed(reason)) => Err(reason),
            Err(Stop::Skipped(reason)) => Err(reason.to_owned()),
            // As a shell has it: 128 and the signal.
            Err(Stop::Interrupted(signal)) => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))),
        }
    }
}

/// Runs the simulation, built as a profile of the workspace says.
///
/// # Errors
/// A broken promise; a build that fails.
pub(crate) fn run(context: &Context, profile: &str, arguments: &[&str], limit: Duration) -> Result<(), Stop> {
    let tool = context.cargo_tool(["run", "--profile", profile, "--package", "sidecar-simulation", "--"]);
    context.runner.run(tool.args(arguments.iter().copied()), limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Simulate, String> {
        Simulate::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn numbers_are_passed_on_and_everything_else_is_refused() {
        assert_eq!(parsed("").unwrap().seconds, 60);
        let simulate = parsed("--seconds 5 --first 7").unwrap();
        assert_eq!((simulate.seconds, simulate.arguments.len()), (5, 4));
        assert!(parsed("--seed").unwrap_err().contains("--seed"));
        assert!(parsed("--seed x").unwrap_err().contains("`x`"));
        assert!(parsed("--fast").unwrap_err().contains("`--fast`"));
    }
}
