//! `cargo xtask soak`: what takes too long for every change, over and over until the time is up.
//!
//! Each step runs at least once, which takes about half an hour; the first failure ends the run. Seeds are fresh each
//! time, and printed by the tests. What the tests count (`tally`) is summed up at the end.

use core::time::Duration;

use crate::clock::Stopwatch;
use crate::plan::{self, Leftovers, Report, Step, Takes};
use crate::runner::Stop;
use crate::steps::Context;
use crate::{fuzz, loom, simulate};

/// A step's own limit: 50 rounds of everything, on a slow machine.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// How long a soak takes unless told otherwise, in minutes.
pub(crate) const MINUTES: u32 = 30;

/// In the order in which they run.
pub(crate) const STEPS: &[Step<Context>] = &[
    step("failpoints", "a process dies at each store that others see, every time it is passed", |context| {
        context.run_test(
            &["sidecar-shm", "--features", "failpoints", "--test", "failpoints"],
            "SIDECAR_SOAK",
            LIMIT,
        )
    }),
    step("crashes", "50 rounds of processes killed at random moments", |context| {
        context.run_test(&["sidecar", "--test", "crash"], "SIDECAR_SOAK", LIMIT)
    }),
    step("hostile", "workers that attack their region, a minute each", |context| {
        context.run_test(&["sidecar", "--test", "hostile"], "SIDECAR_SOAK", LIMIT)
    }),
    step("network", "50 rounds of a network that falls silent", |context| {
        context.run_test(&["sidecar", "--test", "network"], "SIDECAR_SOAK", LIMIT)
    }),
    step("real-time", "the same with the timers of life", |context| {
        context.run_test(&["sidecar", "--test", "network"], "SIDECAR_REAL_TIME", LIMIT)
    }),
    step("limits", "memory and descriptors over 1,000,000 frames and 1,000 reconnects", |context| {
        context.run_test(&["sidecar", "--test", "limits"], "SIDECAR_SOAK", LIMIT)
    }),
    step("simulation", "the whole protocol in virtual time, from fresh seeds", |context| {
        simulate::run(context, &["--seconds", "180"], LIMIT)
    }),
    step("fuzz", "every fuzz target for 20 seconds, from what the last runs learned", |context| {
        fuzz::for_seconds(context, 20)
    }),
    step("loom", "models of the concurrent code, a forced switch deeper", |context| {
        loom::run(context, loom::Depth::Switches(2), LIMIT)
    }),
];

const fn step(
    name: &'static str,
    title: &'static str,
    run: fn(&Context) -> Result<(), Stop>,
) -> Step<Context> {
    Step { name, title, needs: &[], leftovers: Leftovers::AFailure, takes: Takes::Little, run }
}

/// Runs the chosen steps until the time is up; gives the last table, and how often they ran.
pub(crate) fn run(context: &Context, chosen: &[&str], time: Duration) -> (Report, u32) {
    let watch = Stopwatch::start();
    let mut times = 0;
    loop {
        let report = plan::run(STEPS, chosen, |step| context.attempt(step));
        times += 1;
        if !report.all_passed() || watch.elapsed() >= time {
            return (report, times);
        }
        println!("\n== time {times} done after {:.0} s\n{report}", watch.elapsed().as_secs_f64());
    }
}
