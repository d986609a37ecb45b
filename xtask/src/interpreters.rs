//! The Python package under the other interpreters that the machine has: on PATH, or in pyenv. From 3.11 on they get the
//! one wheel there is, before that one of their own.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};

use crate::bindings;
use crate::python::{self, BINDINGS, Environment};
use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

/// Minor versions of Python 3 that are looked for.
const MINORS: core::ops::RangeInclusive<u32> = 9..=20;
/// The first whose stable ABI has what the package uses.
const FIRST_STABLE: u32 = 11;
const REQUIREMENTS: &str = "bindings/python/tests/requirements-versions.txt";
/// What depends on the interpreter. The rest is about processes.
const TESTS: [&str; 5] =
    ["test_exchange.py", "test_views.py", "test_arrays.py", "test_errors.py", "test_asyncio.py"];
const ANSWERS_WITHIN: Duration = Duration::from_secs(20);
const IS_HERE: &str = "it was just there";

/// Tests the package under each of them.
///
/// # Errors
/// The first one under which it fails; skipped where there is only the one that everything else runs under.
pub(crate) fn test(context: &Context, limit: Duration) -> Result<(), Stop> {
    let own = BINDINGS.directory(&context.target).join("bin/python");
    let own = minor(context, &own)
        .ok_or_else(|| Stop::failed("the environment's own interpreter does not say its version"))?;
    let others: Vec<_> = MINORS
        .filter(|minor| *minor != own)
        .filter_map(|minor| Some((minor, find(context, minor)?)))
        .collect();
    if others.is_empty() {
        return Err(Stop::Skipped("there is no other Python 3.9 or later here"));
    }
    for (minor, interpreter) in others {
        let wheel = if minor >= FIRST_STABLE && own >= FIRST_STABLE {
            bindings::only_file(&context.target.join("wheels"))?
        } else {
            let place = context.target.join(format!("wheels-3.{minor}"));
            // Quickly: it is about what the interpreter has, not about speed.
            bindings::build_wheel(context, &interpreter, &place, &[], limit)?
        };
        under(context, minor, &interpreter, &wheel, limit)?;
    }
    Ok(())
}

fn under(
    context: &Context,
    minor: u32,
    interpreter: &Path,
    wheel: &Path,
    limit: Duration,
) -> Result<(), Stop> {
    let (name, base) = (format!("venv-3.{minor}"), interpreter.display().to_string());
    let environment = Environment::under(&name, REQUIREMENTS, &base);
    python::prepare(environment, &context.root, &context.target, &context.runner)?;
    bindings::install(context, environment, wheel, limit)?;
    let tests = TESTS.map(|test| format!("bindings/python/tests/{test}"));
    let pytest = environment
        .interpreter(&context.root, &context.target)
        .args(["-m", "pytest", "-p", "no:cacheprovider", "--quiet"])
        .args(["--config-file", "bindings/python/pyproject.toml"])
        .args(tests)
        .env("SIDECAR_BIN", context.sidecar_path());
    context.runner.run(pytest, limit)
}

/// An interpreter of that version that starts.
fn find(context: &Context, wanted: u32) -> Option<PathBuf> {
    let name = format!("python3.{wanted}");
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".pyenv")));
    let versions = pyenv.and_then(|root| fs::read_dir(root.join("versions")).ok());
    let mut installed: Vec<_> =
        versions.into_iter().flatten().flatten().map(|version| version.path().join("bin")).collect();
    installed.sort();
    std::env::split_paths(&on_path)
        .chain(installed)
        .map(|directory| directory.join(&name))
        // What pyenv has on PATH only speaks of the versions that it has elsewhere.
        .find(|candidate| candidate.is_file() && minor(context, candidate) == Some(wanted))
}

/// The minor version that an interpreter says it has, if it is CPython and starts.
fn minor(context: &Context, interpreter: &Path) -> Option<u32> {
    let ask = "import sys; print(sys.implementation.name, sys.version_info[1])";
    let tool = Tool::new(interpreter, &context.root, IS_HERE).args(["-c", ask]);
    let mut asked = context.runner.start_listening(tool).ok()?;
    let told = |line: &str| line.strip_prefix("cpython ").and_then(|minor| minor.parse().ok());
    asked.line("its version", ANSWERS_WITHIN, told).ok()
}
