//! What a developer and CI run: `cargo xtask test`, and `cargo xtask soak` when there is time.
//!
//! Nothing here judges code by itself: each step is an external program, and the verdict is that program's own.
//! `steps` says what is run, `plan` in which order and with what result, `runner` how.

mod bench;
mod beside;
mod bindings;
mod c;
mod clock;
mod conformance;
mod counts;
mod fuzz;
mod gpu;
mod interop;
mod interpreters;
mod lanes;
mod loom;
mod orphans;
mod plan;
mod python;
mod runner;
mod simulate;
mod soak;
mod steps;
mod tally;
mod tool;
mod unit;
mod watched;

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use steps::{Context, STEPS};

const USAGE: &str = "\
usage: cargo xtask test [--only STEP]... [--list]
       cargo xtask simulate [--seconds N] [--schedules N] [--first SEED] [--seed SEED]
       cargo xtask fuzz [--seconds N] [--only TARGET]...
       cargo xtask soak [--only STEP]... [--minutes N] [--list]
       cargo xtask gpu-test [--only STEP]... [--list]
       cargo xtask bench [--check] [--quick] [--rounds N] [--only PART]... [--ring MODE]
       cargo xtask bench --gpu [--check] [--quick] [--rounds N]
       cargo xtask wheel
       cargo xtask c

  test            every step, some beside each other; goes on after a failure and says so at the end
  --only STEP     this step and those it needs, one after the other; may be repeated
  --list          the steps

  simulate        the protocol in virtual time, from fresh seeds; --seed SEED tells one schedule's story

  fuzz            every fuzz target for 60 seconds; needs the nightly toolchain
  --seconds N     for each target
  --only TARGET   this target; may be repeated

  soak            what takes long, some steps beside each other, over and over until the time is up
  --minutes N     how long; 30 unless told otherwise

  gpu-test        what only a real GPU can show; skipped where there is none

  bench           the fast path beside floors and peers, in target/bench; wants a quiet machine for 15 minutes
  --check         fail when a target of the design is missed
  --quick         everything once, for its answers and not for its times
  --rounds N      of each part; 40 unless told otherwise
  --only PART     one-cpu, spinning-gateway, free-core, hop or calls; may be repeated
  --ring MODE     how io_uring is set up: auto, plain, cooperative or deferred
  --gpu           copies to a GPU and when an observation is there, in target/bench/gpu; skipped where there is none

  wheel           the Python package, in target/wheels
  c               the C library, its headers and where they are, in target/c";

/// Which steps are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Task {
    Test,
    Soak,
    GpuTest,
}

impl Task {
    const ALL: [Self; 3] = [Self::Test, Self::Soak, Self::GpuTest];

    /// What the command line calls it.
    const fn name(self) -> &'static str {
        match self {
            Self::Test => "test",
            Self::Soak => "soak",
            Self::GpuTest => "gpu-test",
        }
    }

    const fn steps(self) -> &'static [plan::Step<Context>] {
        match self {
            Self::Test => STEPS,
            Self::Soak => soak::STEPS,
            Self::GpuTest => gpu::STEPS,
        }
    }
}

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help,
    List(Task),
    Wheel,
    C,
    Simulate(simulate::Simulate),
    Fuzz(fuzz::Fuzz),
    Bench(bench::Bench),
    Test {
        only: Vec<String>,
    },
    Soak {
        only: Vec<String>,
        minutes: u32,
    },
    GpuTest {
        only: Vec<String>,
    },
    /// What [`lanes`] asks of this program for each step.
    Step {
        task: Task,
        name: String,
        verdict: PathBuf,
    },
}

fn main() -> ExitCode {
    match parse(std::env::args().skip(1)) {
        Ok(Request::Help) => {
            println!("{USAGE}");
            ExitCode::SUCCESS
        }
        Ok(Request::List(task)) => {
            for step in task.steps() {
                println!("{:width$}  {}", step.name, step.title, width = 20);
            }
            ExitCode::SUCCESS
        }
        Ok(Request::Simulate(simulate)) => simulate.run().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Bench(bench)) => bench.run().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Fuzz(fuzz)) => fuzz.run().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Wheel) => build(Context::wheel).unwrap_or_else(|error| refuse(&error)),
        Ok(Request::C) => build(Context::c).unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Test { only }) if only.is_empty() => all().unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Step { task, name, verdict }) => {
            step(task, &name, &verdict).unwrap_or_else(|error| refuse(&error))
        }
        Ok(Request::Test { only }) => test(STEPS, &only).unwrap_or_else(|error| refuse(&error)),
        Ok(Request::GpuTest { only }) => test(gpu::STEPS, &only).unwrap_or_else(|error| refuse(&error)),
        Ok(Request::Soak { only, minutes }) => soaked(&only, minutes).unwrap_or_else(|error| refuse(&error)),
        Err(error) => refuse(&format!("{error}\n{USAGE}")),
    }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::FAILURE
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Request, String> {
    let mut arguments = arguments.peekable();
    let first = arguments.next();
    let task = match first.as_deref() {
        Some("simulate") => return simulate::Simulate::parse(arguments).map(Request::Simulate),
        Some("bench") => return bench::Bench::parse(arguments).map(Request::Bench),
        Some("fuzz") => return fuzz::Fuzz::parse(arguments).map(Request::Fuzz),
        Some("wheel") => return alone(arguments, Request::Wheel),
        Some("step") => {
            let mut word =
                || arguments.next().ok_or("`step` wants a task, a name and a file for the verdict");
            return Ok(Request::Step { task: named(&word()?)?, name: word()?, verdict: word()?.into() });
        }
        Some("c") => return alone(arguments, Request::C),
        Some("help" | "--help" | "-h") | None => return Ok(Request::Help),
        Some(other) => named(other)?,
    };
    let (mut only, mut minutes) = (Vec::new(), soak::MINUTES);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--list" => return Ok(Request::List(task)),
            "--help" | "-h" => return Ok(Request::Help),
            "--minutes" if task == Task::Soak => {
                let number = arguments.next().and_then(|number| number.parse().ok());
                minutes = number.ok_or("`--minutes` wants a number")?;
            }
            "--only" => only.push(arguments.next().ok_or("`--only` wants the name of a step")?),
            other => return Err(format!("unexpected argument `{other}`")),
        }
    }
    Ok(match task {
        Task::Test => Request::Test { only },
        Task::Soak => Request::Soak { only, minutes },
        Task::GpuTest => Request::GpuTest { only },
    })
}

fn named(name: &str) -> Result<Task, String> {
    let task = Task::ALL.into_iter().find(|task| task.name() == name);
    task.ok_or_else(|| format!("no task is called `{name}`"))
}

/// A request without arguments.
fn alone(mut arguments: impl Iterator<Item = String>, request: Request) -> Result<Request, String> {
    arguments.next().map_or(Ok(request), |more| Err(format!("unexpected argument `{more}`")))
}

/// Builds something and says where it is.
fn build(what: fn(&Context) -> Result<PathBuf, runner::Stop>) -> Result<ExitCode, String> {
    Ok(match what(&Context::new()?) {
        Ok(place) => {
            println!("{}", place.display());
            ExitCode::SUCCESS
        }
        Err(runner::Stop::Failed(reason)) => return Err(reason),
        Err(runner::Stop::Skipped(reason)) => return Err(reason.to_owned()),
        // As a shell has it: 128 and the signal.
        Err(runner::Stop::Interrupted(signal)) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
    })
}

/// Runs every step, some of them beside each other, and prints the table.
fn all() -> Result<ExitCode, String> {
    let context = Context::new()?;
    let watch = clock::Stopwatch::start();
    let report = lanes::run(&context, Task::Test)?;
    println!("\n== result after {:.0} s\n{report}", watch.elapsed().as_secs_f64());
    Ok(verdict(&report))
}

fn step(task: Task, name: &str, file: &Path) -> Result<ExitCode, String> {
    lanes::one(&Context::new()?, task, name, file).map(|report| verdict(&report))
}

/// Runs the chosen steps one after the other, and prints the table.
fn test(steps: &'static [plan::Step<Context>], only: &[String]) -> Result<ExitCode, String> {
    let chosen = plan::choose(steps, only)?;
    let context = Context::new()?;
    let watch = clock::Stopwatch::start();
    let report = plan::run(steps, &chosen, |step| context.attempt(step));
    println!("\n== result after {:.0} s\n{report}", watch.elapsed().as_secs_f64());
    Ok(verdict(&report))
}

/// Runs steps over and over, and prints the last table.
fn soaked(only: &[String], minutes: u32) -> Result<ExitCode, String> {
    let chosen = plan::choose(soak::STEPS, only)?;
    let context = Context::new()?;
    let beside = if only.is_empty() { soak::Order::Beside } else { soak::Order::OneByOne(&chosen) };
    let (report, times) = soak::run(&context, &beside, Duration::from_secs(u64::from(minutes) * 60))?;
    println!("\n== result of time {times}\n{report}\n\n{}", context.tally.borrow());
    Ok(verdict(&report))
}

fn verdict(report: &plan::Report) -> ExitCode {
    match report.interrupted {
        // As a shell has it: 128 and the signal.
        Some(signal) => ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)),
        None if report.all_passed() => ExitCode::SUCCESS,
        None => ExitCode::FAILURE,
    }
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
        assert_eq!(parsed("test --list"), Ok(Request::List(Task::Test)));
        assert_eq!(parsed("soak --list"), Ok(Request::List(Task::Soak)));
        let network = Request::Soak { only: vec!["network".into()], minutes: 5 };
        assert_eq!(parsed("soak --minutes 5 --only network"), Ok(network));
        assert_eq!(parsed("soak"), Ok(Request::Soak { only: Vec::new(), minutes: soak::MINUTES }));
        assert!(parsed("soak --minutes soon").unwrap_err().contains("--minutes"));
        assert!(parsed("test --minutes 5").unwrap_err().contains("--minutes"));
        assert_eq!(parsed(""), Ok(Request::Help));
        let device = Request::GpuTest { only: vec!["device".into()] };
        assert_eq!(parsed("gpu-test --only device"), Ok(device));
        assert_eq!(parsed("gpu-test --list"), Ok(Request::List(Task::GpuTest)));
        assert_eq!(parsed("wheel"), Ok(Request::Wheel));
        assert_eq!(parsed("c"), Ok(Request::C));
        let step = Request::Step { task: Task::Soak, name: "loom".into(), verdict: "/t/loom".into() };
        assert_eq!(parsed("step soak loom /t/loom"), Ok(step));
        assert!(parsed("step bake loom /t/loom").unwrap_err().contains("`bake`"));
        assert!(parsed("step test fmt").unwrap_err().contains("verdict"));
        assert!(parsed("c now").unwrap_err().contains("`now`"));
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
