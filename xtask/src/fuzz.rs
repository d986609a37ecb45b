//! `cargo xtask fuzz`: every fuzz target of `fuzz/` for a while, from its corpus.
//!
//! It wants the nightly toolchain, which is the user's to install, and cargo-fuzz, which it installs itself into the
//! target directory. What a target finds lies in `fuzz/artifacts`; put it into the corpus, under a name that says what
//! it is, together with the mending.

use core::time::Duration;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

/// Seconds for each target unless told otherwise.
const SECONDS: u32 = 60;
/// Seconds for each target in `cargo xtask test`.
const SECONDS_IN_TEST: u32 = 5;
/// Version that is installed when there is none.
const CARGO_FUZZ: &str = "cargo-fuzz@0.13.2";
/// A build of everything with a sanitizer, on a slow machine with two cores.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// On top of a target's own seconds: it looks at its time between inputs.
const SLACK: Duration = Duration::from_secs(60);
const NO_CARGO: &str = "install Rust with https://rustup.rs";

/// What was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fuzz {
    seconds: u32,
    /// Empty: all of them.
    targets: Vec<String>,
}

impl Fuzz {
    /// Reads what follows `fuzz`.
    ///
    /// # Errors
    /// An option that there is not, or one without its number.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut fuzz = Self { seconds: SECONDS, targets: Vec::new() };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--seconds" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    fuzz.seconds =
                        number.filter(|seconds| *seconds > 0).ok_or("`--seconds` wants a number above 0")?;
                }
                "--only" => fuzz.targets.push(words.next().ok_or("`--only` wants the name of a target")?),
                other => return Err(format!("unexpected argument `{other}`")),
            }
        }
        Ok(fuzz)
    }

    /// Runs the targets one after the other.
    ///
    /// # Errors
    /// What keeps them from running, or the target that found something.
    pub(crate) fn run(&self) -> Result<ExitCode, String> {
        let context = Context::new()?;
        let all = targets(&context.root)?;
        let chosen = if self.targets.is_empty() { all.clone() } else { self.targets.clone() };
        if let Some(unknown) = chosen.iter().find(|name| !all.contains(name)) {
            return Err(format!("no target is called `{unknown}`; there are {}", all.join(", ")));
        }
        match Fuzzer::find(&context).and_then(|fuzzer| fuzzer.run(&chosen, self.seconds)) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(Stop::Failed(reason)) => Err(reason),
            Err(Stop::Skipped(reason)) => Err(reason.to_owned()),
            // As a shell has it: 128 and the signal.
            Err(Stop::Interrupted(signal)) => Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))),
        }
    }
}

/// The step of `cargo xtask test`: a few seconds each, where the tools are. The same bodies ran over the corpora as unit
/// tests already.
///
/// # Errors
/// A target that found something; the tools are not there.
pub(crate) fn step(context: &Context) -> Result<(), Stop> {
    for_seconds(context, SECONDS_IN_TEST)
}

/// Every target for so many seconds.
///
/// # Errors
/// As [`step`].
pub(crate) fn for_seconds(context: &Context, seconds: u32) -> Result<(), Stop> {
    let targets = targets(&context.root).map_err(Stop::failed)?;
    Fuzzer::find(context)?.run(&targets, seconds)
}

/// The tools that fuzzing takes.
struct Fuzzer<'a> {
    context: &'a Context,
    /// Where cargo-fuzz is.
    tools: PathBuf,
}

impl<'a> Fuzzer<'a> {
    fn find(context: &'a Context) -> Result<Self, Stop> {
        if !quiet("rustup", &["run", "nightly", "rustc", "--version"]) {
            return Err(Stop::Skipped("no nightly toolchain; `rustup toolchain install nightly` makes one"));
        }
        let tools = context.target.join("tools");
        if !tools.join("bin/cargo-fuzz").is_file() {
            let install = Tool::new("cargo", &context.root, NO_CARGO)
                .args(["install", "--quiet", "--locked", "--debug", CARGO_FUZZ, "--root"])
                .args([tools.clone()])
                .env("CARGO_PROFILE_DEV_DEBUG", "0");
            context.runner.run(install, BUILD_LIMIT).map_err(|stop| match stop {
                Stop::Failed(why) => {
                    println!("{why}");
                    Stop::Skipped("cargo-fuzz could not be installed; see above")
                }
                other => other,
            })?;
        }
        Ok(Self { context, tools })
    }

    fn run(&self, targets: &[String], seconds: u32) -> Result<(), Stop> {
        self.context.runner.run(self.tool().args(["build", "--fuzz-dir", "fuzz"]), BUILD_LIMIT)?;
        for target in targets {
            let corpus = self.context.root.join("fuzz/corpus").join(target);
            // What it learns stays in the target directory: the corpus in the repository is chosen by people.
            let learned = self.context.target.join("fuzz-learned").join(target);
            std::fs::create_dir_all(&learned)
                .map_err(|error| Stop::failed(format!("{}: {error}", learned.display())))?;
            let tool = self
                .tool()
                .args(["run", "--fuzz-dir", "fuzz", target.as_str()])
                .args([learned, corpus])
                .args(["--".to_owned(), format!("-max_total_time={seconds}")])
                .args(["-timeout=10", "-rss_limit_mb=2048", "-verbosity=0", "-print_final_stats=1"]);
            self.context.runner.run(tool, SLACK + Duration::from_secs(seconds.into()))?;
        }
        Ok(())
    }

    /// `cargo +nightly fuzz`, with a target directory of its own: the sanitizer changes every crate.
    fn tool(&self) -> Tool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut path: Vec<_> = std::env::split_paths(&path).collect();
        path.insert(0, self.tools.join("bin"));
        let path = std::env::join_paths(path).unwrap_or_default();
        Tool::new("rustup", &self.context.root, NO_CARGO)
            .args(["run", "nightly", "cargo", "fuzz"])
            .env("PATH", path)
            .env("CARGO_TARGET_DIR", self.context.target.join("fuzz"))
    }
}

/// The targets, by their files.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let directory = root.join("fuzz/fuzz_targets");
    let entries =
        std::fs::read_dir(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let stem = |entry: std::fs::DirEntry| Some(entry.path().file_stem()?.to_str()?.to_owned());
    let mut names: Vec<_> = entries.flatten().filter_map(stem).collect();
    names.sort_unstable();
    Ok(names)
}

/// Whether a program runs and succeeds; it says nothing.
fn quiet(program: &str, arguments: &[&str]) -> bool {
    let null = Stdio::null;
    let status = Command::new(program).args(arguments).stdin(null()).stdout(null()).stderr(null()).status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Fuzz, String> {
        Fuzz::parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn seconds_and_targets_are_read_and_everything_else_is_refused() {
        assert_eq!(parsed(""), Ok(Fuzz { seconds: 60, targets: Vec::new() }));
        let fuzz = parsed("--seconds 5 --only stream --only region").unwrap();
        assert_eq!((fuzz.seconds, fuzz.targets.len()), (5, 2));
        assert!(parsed("--seconds 0").unwrap_err().contains("--seconds"));
        assert!(parsed("--only").unwrap_err().contains("--only"));
        assert!(parsed("stream").unwrap_err().contains("`stream`"));
    }
}
