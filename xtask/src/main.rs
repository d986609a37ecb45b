//! What a developer and CI run: `cargo xtask test`.
//!
//! Nothing here judges code by itself: each step is an external program, and the verdict is that program's own.
//! `steps` says what is run, `plan` in which order and with what result, `runner` how.

mod bindings;
mod clock;
mod interop;
mod orphans;
mod plan;
mod python;
mod runner;
mod simulate;
mod steps;
mod tool;

use std::process::ExitCode;

use steps::{Context, STEPS};

const USAGE: &str = "\
usage: cargo xtask test [--only STEP]... [--list]
       cargo xtask simulate [--seconds N] [--schedules N] [--first SEED] [--seed SEED]
       cargo xtask wheel

  test            every step, in order; goes on after a failure and says so at the end
  --only STEP     this step and those it needs; may be repeated
  --list          the steps

  simulate        the protocol in virtual time, from fresh seeds; --seed SEED tells one schedule's story

  wheel           the Python package, in target/wheels";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help,
    List,
    Wheel,
    Simulate(simulate::Simulate),
    Test { only: Vec<String> },
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Request::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Request::List) => {
            for step in STEPS {
                println!("{:width$}  {}", step.name, step.title, width = 20);
            }
            ExitCode::SUCCESS
        }
        Ok(Request::Simulate(simulate)) => simulate.run().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Wheel) => wheel().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Test { only }) => test(&only).unwrap_or_else(|error| refuse(&error)),
        Err(error) => refuse(&format!("{error}\n{USAGE}")),
    }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut arguments = arguments.peekable();
    match arguments.next().as_deref() {
        Some("test") => {}
        Some("simulate") => return simulate::Simulate::parse(arguments).map(Request::Simulate),
        Some("wheel") => {
            return arguments
                .next()
                .map_or(Ok(Request::Wheel), |more| Err(format!("unexpected argument `{more}`")));
        }
        Some("help" | "--help" | "-h") | None => return Ok(Request::Help),
        Some(other) => return Err(format!("no task is called `{other}`")),
    }
    let mut only = Vec::new();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => return Ok(Request::List),
            "--help" | "-h" => return Ok(Request::Help),
            "--only" => only.push(arguments.next().ok_or("`--only` wants the name of a step")?),
            other => return Err(format!("unexpected argument `{other}`")),
        }
    }
    Ok(Request::Test { only })
}

/// Builds the wheel and says where it is.
fn wheel() -> Result<ExitCode, String> {
    Ok(match Context::new()?.wheel() {
        Ok(wheel) => {
            println!("{}", wheel.display());
            ExitCode::SUCCESS
        }
        Err(runner::Stop::Failed(reason)) => return Err(reason),
        // As a shell has it: 128 and the signal.
        Err(runner::Stop::Interrupted(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
    })
}

/// Runs the chosen steps and prints the table.
fn test(only: &[String]) -> Result<ExitCode, String> {
    let chosen = plan::choose(STEPS, only)?;
    let context = Context::new()?;
    let watch = clock::Stopwatch::start();
    let report = plan::run(STEPS, &chosen, |step| context.attempt(step));
    println!("\n== result after {:.0} s\n{report}", watch.elapsed().as_secs_f64());
    Ok(match report.interrupted {
        // As a shell has it: 128 and the signal.
        Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        None if report.all_passed() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn each_form_of_the_command_line_is_read() {
        let only = |names: &[&str]| Request::Test { only: names.iter().map(|name| (*name).into()).collect() };
        assert_eq!(parsed("test"), Ok(only(&[])));
        assert_eq!(parsed("test --only fmt --only loom"), Ok(only(&["fmt", "loom"])));
        assert_eq!(parsed("test --list"), Ok(Request::List));
        assert_eq!(parsed(""), Ok(Request::Help));
        assert_eq!(parsed("wheel"), Ok(Request::Wheel));
        assert!(parsed("wheel now").unwrap_err().contains("`now`"));
        assert!(parsed("test --only").unwrap_err().contains("--only"));
        assert!(parsed("test fmt").unwrap_err().contains("`fmt`"));
        assert!(parsed("bake").unwrap_err().contains("`bake`"));
    }

    #[test]
    fn a_step_needs_only_earlier_ones() {
        for (at, step) in STEPS.iter().enumerate() {
            for need in step.needs {
                assert!(
                    STEPS[..at].iter().any(|earlier| earlier.name == *need),
                    "{} needs {need}",
                    step.name
                );
            }
            assert_eq!(STEPS.iter().filter(|other| other.name == step.name).count(), 1, "{}", step.name);
        }
    }
}
