//! The tests of every crate, save those in the documentation. Cargo builds them; the programs run beside each other, since
//! most of the long ones wait: for a timer, for a process to end.

use core::time::Duration;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::beside::{self, Job};
use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

/// Programs at a time. Some tests give what they wait for a few seconds, which a machine has to keep: at more than ten
/// runnable threads a core they were seen to fail. Each program runs a test per core.
const AT_A_TIME: usize = 4;
const NO_TEST: &str = "`cargo xtask test --only tests` makes it";

/// A program of tests, as cargo tells of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    kind: Kind,
    /// The package's directory, where its tests expect to run.
    package: PathBuf,
    /// The source of its root.
    source: PathBuf,
    executable: PathBuf,
}

/// In the order in which they start: what starts processes takes longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Integration,
    Unit,
}

impl Program {
    /// Reads a line of `--message-format=json`, if it tells of one.
    fn read(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        if message["profile"]["test"] != true {
            return None;
        }
        let path = |value: &Value| value.as_str().map(PathBuf::from);
        let integration = message["target"]["kind"][0] == "test";
        Some(Self {
            kind: if integration { Kind::Integration } else { Kind::Unit },
            package: path(&message["manifest_path"])?.parent()?.to_owned(),
            source: path(&message["target"]["src_path"])?,
            executable: path(&message["executable"])?,
        })
    }

    fn job(&self, root: &Path) -> Job {
        let source = self.source.strip_prefix(root).unwrap_or(&self.source);
        let tool =
            Tool::new(&self.executable, &self.package, NO_TEST).env("CARGO_MANIFEST_DIR", &self.package);
        Job { name: source.display().to_string(), tool }
    }
}

/// Builds the tests and examples of every crate.
///
/// # Errors
/// Whatever does not build.
pub(crate) fn build(context: &Context, limit: Duration) -> Result<(), Stop> {
    let list = list(context);
    let at_list = |error| Stop::failed(format!("{}: {error}", list.display()));
    let format = "--message-format=json-render-diagnostics";
    let tool = context.cargo_tool(["test", "--workspace", "--no-run", format]);
    context.runner.start_to(tool, File::create(&list).map_err(at_list)?)?.finish(limit)
}

/// Runs what [`build`] made.
///
/// # Errors
/// The names of the programs that failed.
pub(crate) fn run(context: &Context, limit: Duration) -> Result<(), Stop> {
    let jobs = programs(context)?.iter().map(|program| program.job(&context.root)).collect();
    beside::run(&context.runner, jobs, AT_A_TIME, &context.target.join("unit"), limit)
}

/// One program of those that [`build`] made, by its source.
///
/// # Errors
/// There is none.
pub(crate) fn program(context: &Context, source: &str) -> Result<Tool, Stop> {
    let source = context.root.join(source);
    let programs = programs(context)?;
    let program = programs.iter().find(|program| program.source == source);
    let program = program.ok_or_else(|| Stop::failed(format!("no test is made of {}", source.display())))?;
    Ok(program.job(&context.root).tool)
}

fn programs(context: &Context) -> Result<Vec<Program>, Stop> {
    let list = list(context);
    let text = fs::read_to_string(&list)
        .map_err(|error| Stop::failed(format!("{}: {error}; {NO_TEST}", list.display())))?;
    let mut programs: Vec<_> = text.lines().filter_map(Program::read).collect();
    programs.sort();
    if programs.is_empty() {
        return Err(Stop::failed(format!("{} names no program with tests", list.display())));
    }
    Ok(programs)
}

/// What cargo says about what it built.
fn list(context: &Context) -> PathBuf {
    context.target.join("tests.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_programs_with_tests_are_read() {
        let line = |kind: &str, test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/r/a/Cargo.toml","target":{{"kind":["{kind}"],
                "src_path":"/r/a/x.rs"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = Program::read(&line("test", true, r#""/t/x""#)).unwrap();
        assert_eq!((program.kind, program.package.as_path()), (Kind::Integration, Path::new("/r/a")));
        assert_eq!(program.job(Path::new("/r")).name, "a/x.rs");
        assert_eq!(Program::read(&line("lib", true, r#""/t/y""#)).unwrap().kind, Kind::Unit);
        assert_eq!(Program::read(&line("bin", false, r#""/t/z""#)), None, "an ordinary program");
        assert_eq!(Program::read(&line("lib", true, "null")), None, "nothing to run");
        assert_eq!(Program::read("no JSON"), None);
        assert_eq!(Program::read(r#"{"reason":"build-finished"}"#), None);
    }
}
