//! Virtual environments, under the target directory. Every package in them has an exact version.

use core::time::Duration;
use std::path::{Path, PathBuf};

use crate::runner::{Runner, Stop};
use crate::tool::Tool;

/// A virtual environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment<'a> {
    /// Its directory under the target directory.
    name: &'a str,
    /// The file that names its packages; without one it has none.
    requirements: Option<&'a str>,
    /// The interpreter that it is made of.
    base: &'a str,
    /// The first version of Python that will do.
    oldest: (u8, u8),
}

impl Environment<'static> {
    const fn new(name: &'static str, requirements: Option<&'static str>) -> Self {
        Self { name, requirements, base: "python3", oldest: (3, 10) }
    }
}

/// Of the interop programs.
pub(crate) const INTEROP: Environment<'static> =
    Environment::new("venv", Some("sidecar/tests/interop/requirements.txt"));
/// The Autobahn cases.
pub(crate) const CONFORMANCE: Environment<'static> =
    Environment::new("venv-autobahn", Some("core/tests/autobahn/requirements.txt"));
/// Builds and tests the Python package.
pub(crate) const BINDINGS: Environment<'static> =
    Environment::new("venv-bindings", Some("bindings/python/tests/requirements.txt"));
/// Looks at the Python package's wheel.
pub(crate) const ABI: Environment<'static> =
    Environment::new("venv-abi", Some("bindings/python/tests/requirements-abi.txt"));
/// Has CMake, for those who build with the C library.
pub(crate) const CMAKE: Environment<'static> =
    Environment::new("venv-cmake", Some("bindings/c/tests/requirements.txt"));
/// Python peers of the benchmarks, and our own package.
pub(crate) const BENCH: Environment<'static> =
    Environment::new("venv-bench", Some("benches/peers/requirements.txt"));
/// Has the Python package and nothing else.
pub(crate) const BARE: Environment<'static> = Environment::new("venv-bare", None);

const LIMIT: Duration = Duration::from_secs(300);
const NO_PYTHON: &str = "install Python 3.10 or later (Debian, Ubuntu: `apt install python3 python3-venv`)";
/// What Python says where Debian's package python3-venv is missing.
const NO_MODULE: &[&str] =
    &["ensurepip is not available", "No module named venv", "No module named ensurepip"];
/// What pip says when an index is out of reach, or has not what is asked for.
const NO_PACKAGE: &[&str] =
    &["No matching distribution found", "Could not find a version", "Connection", "timed out"];
const NO_VENV: &str =
    "`cargo xtask test --only python`, `--only python-build` and `--only conformance` make it";

impl<'a> Environment<'a> {
    /// One that is made of another interpreter than the one everything else runs under.
    pub(crate) const fn under(name: &'a str, requirements: &'a str, base: &'a str) -> Self {
        Self { name, requirements: Some(requirements), base, oldest: (3, 9) }
    }

    /// Its place.
    pub(crate) fn directory(self, target: &Path) -> PathBuf {
        target.join(self.name)
    }

    /// Its interpreter, to run one of our programs.
    pub(crate) fn interpreter(self, root: &Path, target: &Path) -> Tool {
        // Unbuffered, so that each check is seen when it is made; and no caches beside the sources.
        Tool::new(self.directory(target).join("bin/python"), root, NO_VENV)
            .env("PYTHONUNBUFFERED", "1")
            .env("PYTHONDONTWRITEBYTECODE", "1")
    }
}

/// Makes the environment, or brings an old one up to date. One that is complete needs no network.
///
/// # Errors
/// No Python, one that is too old, or packages that cannot be had; each with the next step.
pub(crate) fn prepare(
    environment: Environment<'_>,
    root: &Path,
    target: &Path,
    runner: &Runner,
) -> Result<(), Stop> {
    let Environment { oldest: (major, minor), .. } = environment;
    let check = format!(
        "import sys; sys.exit(sys.version_info < ({major}, {minor}) and f'Python {{sys.version}} is too old')"
    );
    let python = || Tool::new(environment.base, root, NO_PYTHON);
    runner.run(python().args(["-c", &check]), LIMIT).map_err(|stop| with_next_step(stop, NO_PYTHON))?;

    let place = environment.directory(target);
    let working = environment.interpreter(root, target).args(["-m", "pip", "--version"]);
    if !place.join("bin/python").exists() || matches!(runner.run(working, LIMIT), Err(Stop::Failed(_))) {
        let make = python().args(["-m", "venv", "--clear"]).args([&place]);
        let hint = "the module `venv` comes with `apt install python3-venv` on Debian and Ubuntu";
        run_with_hint(runner, make, NO_MODULE, hint)?;
    }

    let Some(requirements) = environment.requirements else { return Ok(()) };
    let install = environment
        .interpreter(root, target)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"])
        .args(["--retries", "2", "--timeout", "15", "--requirement", requirements]);
    let hint = format!(
        "if the package index is out of reach, set PIP_INDEX_URL or install {requirements} from wheels with {}/bin/pip",
        place.display()
    );
    run_with_hint(runner, install, NO_PACKAGE, &hint)
}

/// A failure has the hint only if the program named the cause that the hint helps against; a full disk is another one.
fn run_with_hint(runner: &Runner, tool: Tool, signs: &[&str], hint: &str) -> Result<(), Stop> {
    let mut fits = false;
    let result = runner.run_reading(tool, LIMIT, |line| fits |= signs.iter().any(|sign| line.contains(sign)));
    if fits { result.map_err(|stop| with_next_step(stop, hint)) } else { result }
}

fn with_next_step(stop: Stop, hint: &str) -> Stop {
    match stop {
        Stop::Failed(reason) if !reason.contains(hint) => Stop::Failed(format!("{reason}; {hint}")),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_is_given_for_its_own_cause_alone() {
        let runner = Runner::new().unwrap();
        let attempt = |says: &str| {
            let tool = Tool::new("sh", Path::new("/"), "install it")
                .args(["-c", &format!("echo '{says}' >&2; exit 1")]);
            match run_with_hint(&runner, tool, NO_MODULE, "install venv") {
                Err(Stop::Failed(reason)) => reason,
                other => panic!("{other:?}"),
            }
        };
        assert!(
            attempt("because ensurepip is not available").ends_with("ended with exit code 1; install venv")
        );
        assert!(attempt("[Errno 28] No space left on device").ends_with("ended with exit code 1"));
    }
}
