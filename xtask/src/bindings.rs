//! The Python package: its wheel, and its tests against the real binary.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};

use crate::python::{self, ABI, BARE, BINDINGS, Environment};
use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

const PACKAGE: &str = "bindings/python";
const MODULE: &str = "sidecar._native";
const IMPORT: &str = "import sidecar; print(sidecar.Worker, sidecar.__version__)";

/// Builds the wheel into `target/wheels`: one for all versions of Python from 3.11 on, or one for an older interpreter.
///
/// # Errors
/// No environment to build it in, or a failing build.
pub(crate) fn wheel(context: &Context, limit: Duration) -> Result<PathBuf, Stop> {
    python::prepare(BINDINGS, &context.root, &context.target, &context.runner)?;
    let interpreter = BINDINGS.directory(&context.target).join("bin/python");
    build_wheel(context, &interpreter, &context.target.join("wheels"), &["--release"], limit)
}

/// Builds a wheel for an interpreter into an empty place.
///
/// # Errors
/// A failing build.
pub(crate) fn build_wheel(
    context: &Context,
    interpreter: &Path,
    place: &Path,
    how: &[&str],
    limit: Duration,
) -> Result<PathBuf, Stop> {
    // Of an earlier version, or for another interpreter: what is found below has to be the one that was built.
    if place.exists() {
        fs::remove_dir_all(place)
            .map_err(|error| Stop::failed(format!("{} can't be emptied: {error}", place.display())))?;
    }
    let build = python(context, BINDINGS)
        .args(["-m", "maturin", "build", "--quiet"])
        .args(how.iter().copied())
        .args(["--manifest-path"])
        .args([context.root.join(PACKAGE).join("Cargo.toml")])
        .args(["--interpreter"])
        .args([interpreter])
        .args(["--out"])
        .args([place])
        .env("CARGO_TARGET_DIR", &context.target);
    context.runner.run(build, limit)?;
    only_file(place)
}

/// What was built into a place.
///
/// # Errors
/// There is nothing.
pub(crate) fn only_file(place: &Path) -> Result<PathBuf, Stop> {
    let mut entries = fs::read_dir(place).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.next().ok_or_else(|| Stop::failed(format!("no wheel in {}", place.display())))
}

/// Installs a wheel, in the place of one of the same version.
///
/// # Errors
/// As pip has them.
pub(crate) fn install(
    context: &Context,
    environment: Environment<'_>,
    wheel: &Path,
    limit: Duration,
) -> Result<(), Stop> {
    let install = python(context, environment)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"])
        .args(["--no-index", "--no-deps", "--force-reinstall"])
        .args([wheel]);
    context.runner.run(install, limit)
}

/// The wheel, imported where no other package is.
///
/// # Errors
/// As [`wheel`]; an import that fails.
pub(crate) fn build(context: &Context, limit: Duration) -> Result<(), Stop> {
    let wheel = wheel(context, limit)?;
    python::prepare(BARE, &context.root, &context.target, &context.runner)?;
    for environment in [BARE, BINDINGS] {
        install(context, environment, &wheel, limit)?;
    }
    context.runner.run(python(context, BARE).args(["-c", IMPORT]), limit)
}

/// The wheel uses no more of Python than the stable ABI has that its name promises.
///
/// # Errors
/// It uses more; skipped where the interpreter is older than that ABI.
pub(crate) fn abi(context: &Context, limit: Duration) -> Result<(), Stop> {
    let wheel = only_file(&context.target.join("wheels"))?;
    if !wheel.to_string_lossy().contains("-abi3-") {
        return Err(Stop::Skipped("before Python 3.11 the wheel is for one interpreter"));
    }
    python::prepare(ABI, &context.root, &context.target, &context.runner)?;
    let audit =
        python(context, ABI).args(["-m", "abi3audit", "--strict", "--summary", "--verbose"]).args([wheel]);
    context.runner.run(audit, limit)
}

/// Formatting, lints, types, stubs against the module, and the tests.
///
/// # Errors
/// The first that fails.
pub(crate) fn test(context: &Context, limit: Duration) -> Result<(), Stop> {
    let run = |module: &str, arguments: &[&str]| {
        // Caches stay out of the sources.
        let tool = python(context, BINDINGS)
            .args(["-m", module])
            .args(arguments.iter().copied())
            .env("MYPY_CACHE_DIR", context.target.join("mypy"))
            .env("SIDECAR_BIN", context.sidecar_path())
            .env("SIMULATED_CUDA_DRIVER", context.target.join("debug/libsimulated_cuda_driver.so"));
        context.runner.run(tool, limit)
    };
    context.runner.run(context.cargo_tool(["build", "--package", "simulated-cuda-driver"]), limit)?;
    let settings = format!("{PACKAGE}/pyproject.toml");
    let tests = format!("{PACKAGE}/tests");
    let sources = format!("{PACKAGE}/py_src/sidecar");
    let allowed = format!("{tests}/stubtest_allowlist.txt");
    run("ruff", &["format", "--check", "--no-cache", PACKAGE])?;
    run("ruff", &["check", "--no-cache", PACKAGE])?;
    run("mypy", &["--config-file", &settings, &sources])?;
    run("mypy.stubtest", &["--allowlist", &allowed, "--ignore-unused-allowlist", MODULE])?;
    run("pytest", &["-p", "no:cacheprovider", "--quiet", "--config-file", &settings, &tests])
}

/// A worker in Python is killed at random moments, and nothing is lost.
///
/// # Errors
/// The first test that fails.
pub(crate) fn crash(context: &Context, limit: Duration) -> Result<(), Stop> {
    let python = BINDINGS.directory(&context.target).join("bin/python");
    let worker = context.root.join(PACKAGE).join("tests/cartpole_worker.py");
    context.crash(&[python, worker], limit)
}

fn python(context: &Context, environment: Environment<'_>) -> Tool {
    environment.interpreter(&context.root, &context.target)
}
