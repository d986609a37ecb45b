//! All steps of `cargo xtask test` or `cargo xtask soak`, beside each other where that saves time: one that wants all
//! processors, and a few that want little of them. Each is a process of its own, `cargo xtask step TASK NAME`, so that what
//! outlives it is found under it alone; its output is shown in one piece when it is done.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use crate::Task;
use crate::beside;
use crate::clock::Stopwatch;
use crate::orphans;
use crate::plan::{self, Report, Step, Takes, Verdict};
use crate::runner::{LOOK_EVERY, Running, Stop};
use crate::steps::Context;
use crate::tool::Tool;

/// Steps that want little, at a time. More of them would disturb the tests among them that are about time.
const LITTLE_AT_A_TIME: usize = 2;
/// A step that wants all processors has what the others leave.
const NICENESS: i32 = 10;
/// Past any step's own limits.
const LIMIT: Duration = Duration::from_secs(3 * 60 * 60);
/// It runs, so it is there.
const OURSELVES: &str = "/proc/self/exe";

/// A step that was started.
struct Started<'a> {
    step: &'static Step<Context>,
    running: Running<'a>,
    watch: Stopwatch,
}

/// Runs them all, and prints what each of them says.
///
/// # Errors
/// There is no place for their output.
pub(crate) fn run(context: &Context, task: Task) -> Result<Report, String> {
    let steps = task.steps();
    let before = orphans::list();
    let places = Places(context.target.join("steps"));
    beside::make(&places.0)?;
    let mut report = Report::default();
    let mut started: Vec<Started<'_>> = Vec::new();
    let mut waiting: Vec<_> = steps.iter().collect();
    while report.interrupted.is_none() && !(waiting.is_empty() && started.is_empty()) {
        waiting.retain(|step| match next(step, &report, &started) {
            Next::Later => true,
            Next::Never(reason) => {
                println!("\n-- {} FAILED: {reason}", step.name);
                report.push(step.name, Verdict::Failed(reason), Duration::ZERO);
                false
            }
            Next::Now => {
                match start(context, task, step, &places) {
                    Ok(running) => started.push(Started { step, running, watch: Stopwatch::start() }),
                    Err(reason) => report.push(step.name, Verdict::Failed(reason), Duration::ZERO),
                }
                false
            }
        });
        for one in core::mem::take(&mut started) {
            let ended = match one.running.has_ended(one.watch, LIMIT) {
                Ok(false) => {
                    started.push(one);
                    continue;
                }
                Err(Stop::Interrupted(signal)) => {
                    report.interrupted = Some(signal);
                    started.push(one);
                    continue;
                }
                Ok(true) => one.running.finish(LIMIT),
                Err(stop) => Err(stop),
            };
            // Without a log there is nothing to count, and that is told with the verdict.
            let said = fs::read_to_string(places.log(one.step)).unwrap_or_default();
            said.lines().for_each(|line| context.tally.borrow_mut().read(line));
            report.push(one.step.name, verdict(one.step, ended, &places), one.watch.elapsed());
        }
        thread::sleep(LOOK_EVERY);
    }
    if let Some(signal) = report.interrupted {
        for Started { step, watch, .. } in started.drain(..) {
            let reason = format!("interrupted by signal {signal}");
            report.push(step.name, Verdict::Failed(reason), watch.elapsed());
        }
    }
    // What a step left that could not end it itself.
    orphans::end_new(&before);
    report.sort(steps);
    Ok(report)
}

/// What is to be done with a step.
enum Next {
    Now,
    Later,
    Never(String),
}

fn next(step: &Step<Context>, report: &Report, started: &[Started<'_>]) -> Next {
    if let Some(need) = step.needs.iter().find(|need| report.failed(need)) {
        return Next::Never(plan::without(need));
    }
    let alike = started.iter().filter(|other| other.step.takes == step.takes).count();
    let room = match step.takes {
        Takes::All => 1,
        Takes::Little => LITTLE_AT_A_TIME,
    };
    let ready = step.needs.iter().all(|need| report.verdict(need).is_some());
    if ready && alike < room { Next::Now } else { Next::Later }
}

fn start<'a>(
    context: &'a Context,
    task: Task,
    step: &Step<Context>,
    places: &Places,
) -> Result<Running<'a>, String> {
    let tool = Tool::new(OURSELVES, &context.root, "mount /proc")
        .shown_as("cargo xtask")
        .args(["step", task.name(), step.name])
        .args([places.verdict(step)]);
    beside::start(&context.runner, tool, &places.log(step)).map_err(|stop| match stop {
        Stop::Failed(reason) => reason,
        Stop::Skipped(reason) => reason.to_owned(),
        Stop::Interrupted(signal) => format!("interrupted by signal {signal}"),
    })
}

/// Shows what a step said; its exit code says no more than its verdict, save where it did not come to one.
fn verdict(step: &Step<Context>, ended: Result<(), Stop>, places: &Places) -> Verdict {
    if let Err(reason) = beside::copy(&places.log(step)) {
        println!("{reason}");
    }
    match (fs::read_to_string(places.verdict(step)), ended) {
        (Ok(text), _) => Verdict::read(&text),
        (Err(_), Err(Stop::Failed(reason))) => Verdict::Failed(reason),
        (Err(_), _) => Verdict::read(""),
    }
}

/// Where output and verdict of each step are.
struct Places(PathBuf);

impl Places {
    fn log(&self, step: &Step<Context>) -> PathBuf {
        self.0.join(format!("{}.log", step.name))
    }

    fn verdict(&self, step: &Step<Context>) -> PathBuf {
        self.0.join(format!("{}.verdict", step.name))
    }
}

/// One step, without those that it needs; the verdict goes to a file. What [`run`] starts.
///
/// # Errors
/// There is no such step; the file can't be written.
pub(crate) fn one(context: &Context, task: Task, name: &str, verdict: &Path) -> Result<Report, String> {
    let steps = task.steps();
    let step = steps.iter().find(|step| step.name == name).ok_or("no such step")?;
    if step.takes == Takes::All {
        // Without it everything takes a little longer.
        let _ = rustix::process::nice(NICENESS);
    }
    let report = plan::run(steps, &[step.name], |step| context.attempt(step));
    if let Some(text) = report.verdict(step.name).map(Verdict::write) {
        fs::write(verdict, text).map_err(|error| format!("{}: {error}", verdict.display()))?;
    }
    Ok(report)
}
