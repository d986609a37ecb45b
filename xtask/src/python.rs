//! Virtual environments, under the target directory. Every package in them has an exact version.

use core::time::Duration;
use std::path::{Path, PathBuf};

use crate::runner::{Runner, Stop};
use crate::tool::Tool;

/// A virtual environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment {
    /// Its directory under the target directory.
    name: &'static str,
    /// The file that names its packages; without one it has none.
    requirements: Option<&'static str>,
}

/// Of the interop programs.
pub(crate) const INTEROP: Environment =
    Environment { name: "venv", requirements: Some("sidecar/tests/interop/requirements.txt") };
/// The Autobahn cases.
pub(crate) const CONFORMANCE: Environment =
    Environment { name: "venv-autobahn", requirements: Some("core/tests/autobahn/requirements.txt") };
/// Builds and tests the Python package.
pub(crate) const BINDINGS: Environment =
    Environment { name: "venv-bindings", requirements: Some("bindings/python/tests/requirements.txt") };
/// Has the Python package and nothing else.
pub(crate) const BARE: Environment = Environment { name: "venv-bare", requirements: None };

const LIMIT: Duration = Duration::from_secs(300);
const NO_PYTHON: &str = "install Python 3.10 or later (Debian, Ubuntu: `apt install python3 python3-venv`)";
const NO_VENV: &str =
    "`cargo xtask test --only python`, `--only python-build` and `--only conformance` make it";

impl Environment {
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
    environment: Environment,
    root: &Path,
    target: &Path,
    runner: &Runner,
) -> Result<(), Stop> {
    let check = "import sys; sys.exit(sys.version_info < (3, 10) and f'Python {sys.version} is too old')";
    let python = || Tool::new("python3", root, NO_PYTHON);
    runner.run(python().args(["-c", check]), LIMIT).map_err(|stop| with_next_step(stop, NO_PYTHON))?;

    let place = environment.directory(target);
    let working = environment.interpreter(root, target).args(["-m", "pip", "--version"]);
    if !place.join("bin/python").exists() || matches!(runner.run(working, LIMIT), Err(Stop::Failed(_))) {
        let make = python().args(["-m", "venv", "--clear"]).args([&place]);
        let hint = "the module `venv` comes with `apt install python3-venv` on Debian and Ubuntu";
        runner.run(make, LIMIT).map_err(|stop| with_next_step(stop, hint))?;
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
    runner.run(install, LIMIT).map_err(|stop| with_next_step(stop, &hint))
}

fn with_next_step(stop: Stop, hint: &str) -> Stop {
    match stop {
        Stop::Failed(reason) if !reason.contains(hint) => Stop::Failed(format!("{reason}; {hint}")),
        other => other,
    }
}
