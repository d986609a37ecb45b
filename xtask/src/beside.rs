//! Runs programs beside each other, a few at a time. Each one's output is shown in one piece, in the order in which they
//! were named, and all of them run whatever becomes of the others.

use core::time::Duration;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread;

use crate::clock::Stopwatch;
use crate::runner::{LOOK_EVERY, Runner, Running, Stop};
use crate::tool::Tool;

/// A program, and what it is called.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) tool: Tool,
}

/// One that was started.
struct Started<'a> {
    running: Running<'a>,
    watch: Stopwatch,
    /// Its place among all of them.
    at: usize,
}

/// One that has ended, or could not start.
struct Ended {
    result: Result<(), Stop>,
    took: Duration,
}

/// Runs them all, `width` at a time; what they say stays in `logs`, too.
///
/// # Errors
/// The names of those that failed; a signal to us, which ends all of them.
pub(crate) fn run(
    runner: &Runner,
    jobs: Vec<Job>,
    width: usize,
    logs: &Path,
    limit: Duration,
) -> Result<(), Stop> {
    make(logs).map_err(Stop::Failed)?;
    let names: Vec<_> = jobs.iter().map(|job| job.name.clone()).collect();
    let mut ended: Vec<Option<Ended>> = names.iter().map(|_| None).collect();
    let mut waiting: VecDeque<_> = jobs.into_iter().enumerate().collect();
    let mut started: Vec<Started<'_>> = Vec::new();
    let mut shown = 0;
    while shown < names.len() {
        while started.len() < width
            && let Some((at, job)) = waiting.pop_front()
        {
            match start(runner, job.tool, &log(logs, at)) {
                Ok(running) => started.push(Started { running, watch: Stopwatch::start(), at }),
                Err(stop) => ended[at] = Some(Ended { result: Err(stop), took: Duration::ZERO }),
            }
        }
        for one in core::mem::take(&mut started) {
            let Started { running, watch, at } = one;
            let result = match running.has_ended(watch, limit) {
                Ok(false) => {
                    started.push(Started { running, watch, at });
                    continue;
                }
                Ok(true) => running.finish(limit),
                Err(stop) => Err(stop),
            };
            if matches!(result, Err(Stop::Interrupted(_))) {
                return result;
            }
            ended[at] = Some(Ended { result, took: watch.elapsed() });
        }
        while let Some(Some(Ended { took, .. })) = ended.get(shown) {
            println!("\n---- {} ({:.1} s)", names[shown], took.as_secs_f64());
            copy(&log(logs, shown)).map_err(Stop::Failed)?;
            shown += 1;
        }
        if shown < names.len() {
            thread::sleep(LOOK_EVERY);
        }
    }
    let failures: Vec<_> = ended
        .into_iter()
        .flatten()
        .zip(&names)
        .filter_map(|(Ended { result, .. }, name)| match result {
            Err(Stop::Failed(reason)) => Some(format!("{name}: {reason}")),
            _ => None,
        })
        .collect();
    if failures.is_empty() { Ok(()) } else { Err(Stop::Failed(failures.join("; "))) }
}

/// Starts a program with everything that it says in a file.
///
/// # Errors
/// When it cannot be started, or the file cannot be made.
pub(crate) fn start<'a>(runner: &'a Runner, mut tool: Tool, log: &Path) -> Result<Running<'a>, Stop> {
    let at_log = |error: io::Error| Stop::failed(format!("{}: {error}", log.display()));
    let output = File::create(log).map_err(at_log)?;
    tool.command().stderr(output.try_clone().map_err(at_log)?);
    runner.start_to(tool, output)
}

/// Prints what is in a file.
///
/// # Errors
/// When it cannot be read or printed; the file of a program that could not start may be missing.
pub(crate) fn copy(log: &Path) -> Result<(), String> {
    let mut file = match File::open(log) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file.map_err(|error| format!("{}: {error}", log.display()))?,
    };
    io::copy(&mut file, &mut io::stdout().lock())
        .map(drop)
        .map_err(|error| format!("{} cannot be shown: {error}", log.display()))
}

/// Makes an empty directory: a log of an earlier run tells nothing about this one.
///
/// # Errors
/// When it cannot be made, or not be emptied.
pub(crate) fn make(logs: &Path) -> Result<(), String> {
    let cleared = match fs::remove_dir_all(logs) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => fs::create_dir_all(logs),
    };
    cleared.map_err(|error| format!("{} cannot be made empty: {error}", logs.display()))
}

fn log(logs: &Path, at: usize) -> PathBuf {
    logs.join(format!("{at:03}.log"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn jobs(programs: &[(&str, &[&str])]) -> Vec<Job> {
        let job = |(program, arguments): &(&str, &[&str])| Job {
            name: (*program).to_owned(),
            tool: Tool::new(program, Path::new("/"), "install it").args(arguments.iter().copied()),
        };
        programs.iter().map(job).collect()
    }

    fn attempt(test: &str, programs: &[(&str, &[&str])], width: usize) -> (Result<(), Stop>, Vec<String>) {
        let logs = std::env::temp_dir().join(format!("sidecar-xtask-{}-{test}", std::process::id()));
        let result = run(&Runner::new().unwrap(), jobs(programs), width, &logs, SOON);
        let said = (0..programs.len()).map(|at| fs::read_to_string(log(&logs, at)).unwrap()).collect();
        fs::remove_dir_all(logs).unwrap();
        (result, said)
    }

    #[test]
    fn each_has_its_own_output_and_one_failure_hides_no_other() {
        let programs: &[(&str, &[&str])] =
            &[("false", &[]), ("printf", &["a"]), ("no-such-program", &[]), ("ls", &["/no/such/place"])];
        let (result, said) = attempt("failures", programs, 2);
        let Err(Stop::Failed(reason)) = result else { panic!("{result:?}") };
        let names: Vec<_> = reason.split("; ").filter_map(|part| part.split_once(": ")).collect();
        assert_eq!(names[0], ("false", "`false` ended with exit code 1"));
        assert!(reason.contains("no-such-program: ") && reason.contains("ls: "), "{reason}");
        assert!(!reason.contains("printf"), "{reason}");
        assert_eq!(said[1], "a");
        assert!(said[3].contains("/no/such/place"), "errors are in it, too: {}", said[3]);
    }

    #[test]
    fn they_run_beside_each_other() {
        // Each waits for the other, which one after the other would last past the limit.
        let pipe = std::env::temp_dir().join(format!("sidecar-xtask-{}-pipe", std::process::id()));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let pipe_name = pipe.to_str().unwrap();
        let to_pipe = format!("of={pipe_name}");
        let from_pipe = format!("if={pipe_name}");
        let (result, _) = attempt("beside", &[("dd", &["if=/dev/null", &to_pipe]), ("dd", &[&from_pipe])], 2);
        fs::remove_file(pipe).unwrap();
        assert_eq!(result, Ok(()));
    }
}
