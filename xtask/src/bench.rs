//! `cargo xtask bench`: builds the harness, the peers that this machine can have, and runs it.
//!
//! What cannot be had here is left out by name; the report says so in each row that wanted it.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::counts;
use crate::python::{self, BENCH};
use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

const BUILD_LIMIT: Duration = Duration::from_secs(60 * 60);
/// A whole run takes 15 minutes; one with more rounds, more.
const RUN_LIMIT: Duration = Duration::from_secs(4 * 60 * 60);
const BEAST: &str = "benches/peers/beast.cpp";
const NO_BENCH: &str = "`cargo xtask bench` makes it";

/// What was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Bench {
    /// Fail when a target is missed.
    check: bool,
    /// Once through, for the answers: no verdicts, nothing counted.
    quick: bool,
    /// What a GPU gets of an observation, and nothing else.
    gpu: bool,
    /// Passed on to the harness.
    arguments: Vec<String>,
}

impl Bench {
    /// Reads what follows `bench`.
    ///
    /// # Errors
    /// An option that there is not, or one without its value.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut bench = Self::default();
        while let Some(word) = words.next() {
            match word.as_str() {
                "--check" => bench.check = true,
                "--quick" => bench.quick = true,
                "--gpu" => bench.gpu = true,
                "--only" | "--rounds" | "--burst" | "--seed" | "--ring" => {
                    let value = words.next().ok_or_else(|| format!("`{word}` wants a value"))?;
                    bench.arguments.extend([word, value]);
                }
                other => return Err(format!("unexpected argument `{other}`")),
            }
        }
        let other = |word: &&String| ["--only", "--burst", "--ring"].contains(&word.as_str());
        match bench.arguments.iter().find(other).filter(|_| bench.gpu) {
            Some(word) => Err(format!("`{word}` means nothing with `--gpu`")),
            None => Ok(bench),
        }
    }

    /// Builds and runs it; the report lies in `target/bench`, that on a GPU in `target/bench/gpu`.
    ///
    /// # Errors
    /// What keeps it from running.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let context = Context::new()?;
        match if self.gpu { self.attempt_gpu(&context) } else { self.attempt(&context) } {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Stop::Failed(reason)) => Err(reason),
            Err(Stop::Skipped(reason)) => Err(reason.to_owned()),
            // As a shell has it: 128 and the signal.
            Err(Stop::Interrupted(signal)) => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))),
        }
    }

    fn attempt(&self, context: &Context) -> Result<(), Stop> {
        let peers = build(context)?;
        let out = context.target.join("bench");
        std::fs::create_dir_all(&out)
            .map_err(|error| Stop::failed(format!("{} can't be made: {error}", out.display())))?;
        let mut tool = Tool::new(context.bench_path(), &context.root, NO_BENCH)
            .args(["run", "--sidecar"])
            .args([context.sidecar_path()])
            .args(["--out"])
            .args([out.clone()])
            .args(self.arguments.iter());
        for (flag, program) in [("--peers", peers), ("--beast", beast(context, &out)?)] {
            if let Some(program) = program {
                tool = tool.args([flag]).args([program]);
            }
        }
        if let Some(interpreter) = python_peers(context)? {
            tool = tool.args(["--python"]).args([interpreter]);
            tool = tool.args(["--scripts"]).args([context.root.join("benches/peers")]);
        }
        if !self.quick {
            for counted in counted(context)? {
                tool = tool.args(["--counted", &counted]);
            }
        }
        context.runner.run(self.with_flags(tool), RUN_LIMIT)
    }

    /// Without a GPU the harness says so, and that every target is open.
    fn attempt_gpu(&self, context: &Context) -> Result<(), Stop> {
        let build = context.cargo_tool(["build", "--release", "--package", "sidecar-benches"]);
        context.runner.run(build, BUILD_LIMIT)?;
        let tool = Tool::new(context.bench_path(), &context.root, NO_BENCH)
            .args(["gpu", "--out"])
            .args([context.target.join("bench/gpu")])
            .args(["--scripts"])
            .args([context.root.join("benches/peers")])
            .args(self.arguments.iter());
        context.runner.run(self.with_flags(tool), RUN_LIMIT)
    }

    fn with_flags(&self, tool: Tool) -> Tool {
        let flags = [("--quick", self.quick), ("--check", self.check)];
        tool.args(flags.iter().filter(|(_, wanted)| *wanted).map(|(flag, _)| flag))
    }
}

/// What other programs count, as the harness wants it: how many of their limits are broken.
fn counted(context: &Context) -> Result<Vec<String>, Stop> {
    let allocations = || {
        let test = ["test", "--package", "sidecar-benches", "--test", "allocations"];
        context.runner.run(context.cargo_tool(test), BUILD_LIMIT)
    };
    let mut counted = Vec::new();
    for (name, result) in [
        ("allocations a frame, sidecar and worker: tests that found one", allocations()),
        ("instructions a frame in core: budgets broken", counts::instructions(context, BUILD_LIMIT)),
    ] {
        let value = match result {
            Ok(()) => "0",
            Err(Stop::Failed(_)) => "1",
            Err(Stop::Skipped(reason)) => reason,
            Err(stop @ Stop::Interrupted(_)) => return Err(stop),
        };
        counted.push(format!("{name}={value}=0"));
    }
    Ok(counted)
}

/// Sidecar, harness, clients in Rust and iceoryx2; without the latter two where they can't be built. In one go, since
/// their features change what the others are built from.
fn build(context: &Context) -> Result<Option<PathBuf>, Stop> {
    let ours = ["build", "--release", "--package", "sidecar", "--package", "sidecar-benches"];
    let all = context.cargo_tool(ours).args(["--features", "sidecar-benches/peers"]);
    let without = match context.runner.run(all, BUILD_LIMIT) {
        Ok(()) => return Ok(Some(context.target.join("release/sidecar-bench-peers"))),
        Err(stop) => left_out("fastwebsockets, tungstenite, tokio-uring and iceoryx2", stop),
    };
    context.runner.run(context.cargo_tool(ours), BUILD_LIMIT)?;
    without
}

fn beast(context: &Context, out: &Path) -> Result<Option<PathBuf>, Stop> {
    let program = out.join("beast");
    let compile = Tool::new("g++", &context.root, "install g++ and libboost-dev")
        .args(["-O2", "-std=c++17", "-Wall", "-Wextra", "-pthread", BEAST, "-o"])
        .args([program.clone()]);
    match context.runner.run(compile, BUILD_LIMIT) {
        Ok(()) => Ok(Some(program)),
        Err(stop) => left_out("Boost.Beast", stop),
    }
}

/// The interpreter of an environment with the peers' packages and our own.
fn python_peers(context: &Context) -> Result<Option<PathBuf>, Stop> {
    let install = || {
        python::prepare(BENCH, &context.root, &context.target, &context.runner)?;
        let wheel = context.wheel()?;
        let pip = BENCH
            .interpreter(&context.root, &context.target)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--force-reinstall"])
            .args([wheel]);
        context.runner.run(pip, BUILD_LIMIT)
    };
    match install() {
        Ok(()) => Ok(Some(BENCH.directory(&context.target).join("bin/python"))),
        Err(stop) => left_out("the Python clients and our Python worker", stop),
    }
}

fn left_out(what: &str, stop: Stop) -> Result<Option<PathBuf>, Stop> {
    match stop {
        Stop::Failed(reason) => {
            println!("left out: {what}: {reason}");
            Ok(None)
        }
        Stop::Skipped(reason) => {
            println!("left out: {what}: {reason}");
            Ok(None)
        }
        stop @ Stop::Interrupted(_) => Err(stop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Bench, String> {
        Bench::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_of_the_harness_are_passed_on_and_everything_else_is_refused() {
        let bench = parsed("--check --rounds 60 --only one-cpu --only hop").unwrap();
        assert!(bench.check && !bench.quick);
        assert_eq!(bench.arguments, ["--rounds", "60", "--only", "one-cpu", "--only", "hop"]);
        assert!(parsed("--quick").unwrap().quick);
        let bench = parsed("--gpu --rounds 60").unwrap();
        assert!(bench.gpu);
        assert_eq!(bench.arguments, ["--rounds", "60"]);
        assert!(parsed("--only hop --gpu").unwrap_err().contains("`--only`"));
        assert!(parsed("--rounds").unwrap_err().contains("--rounds"));
        assert!(parsed("--fast").unwrap_err().contains("`--fast`"));
    }
}
