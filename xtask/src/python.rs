//! The virtual environment of the interop programs, under the target directory.

use core::time::Duration;
use std::path::{Path, PathBuf};

use crate::runner::{Runner, Stop};
use crate::tool::Tool;

/// Names the packages with exact versions.
const REQUIREMENTS: &str = "sidecar/tests/interop/requirements.txt";
const LIMIT: Duration = Duration::from_secs(300);
const NO_PYTHON: &str = "install Python 3.10 or later (Debian, Ubuntu: `apt install python3 python3-venv`)";
const NO_VENV: &str = "`cargo xtask test --only python` makes it";

/// The environment's place.
pub(crate) fn directory(target: &Path) -> PathBuf {
    target.join("venv")
}

/// The environment's interpreter, to run one of our programs.
pub(crate) fn interpreter(root: &Path, target: &Path) -> Tool {
    // Unbuffered, so that each check is seen when it is made; and no caches beside the sources.
    Tool::new(directory(target).join("bin/python"), root, NO_VENV)
        .env("PYTHONUNBUFFERED", "1")
        .env("PYTHONDONTWRITEBYTECODE", "1")
}

/// Makes the environment, or brings an old one up to date. One that is complete needs no network.
///
/// # Errors
/// No Python, one that is too old, or packages that cannot be had; each with the next step.
pub(crate) fn prepare(root: &Path, target: &Path, runner: &Runner) -> Result<(), Stop> {
    let check = "import sys; sys.exit(sys.version_info < (3, 10) and f'Python {sys.version} is too old')";
    let python = || Tool::new("python3", root, NO_PYTHON);
    runner.run(python().args(["-c", check]), LIMIT).map_err(|stop| with_next_step(stop, NO_PYTHON))?;

    let place = directory(target);
    let working = interpreter(root, target).args(["-m", "pip", "--version"]);
    if !place.join("bin/python").exists() || matches!(runner.run(working, LIMIT), Err(Stop::Failed(_))) {
        let make = python().args(["-m", "venv", "--clear"]).args([&place]);
        let hint = "the module `venv` comes with `apt install python3-venv` on Debian and Ubuntu";
        runner.run(make, LIMIT).map_err(|stop| with_next_step(stop, hint))?;
    }

    let install = interpreter(root, target)
        .args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"])
        .args(["--retries", "2", "--timeout", "15", "--requirement", REQUIREMENTS]);
    let hint = format!(
        "if the package index is out of reach, set PIP_INDEX_URL or install {REQUIREMENTS} from wheels with {}/bin/pip",
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
