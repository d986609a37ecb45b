//! `cargo xtask soak`: what takes too long for every change, over and over until the time is up.
//!
//! Each step runs at least once, which takes about half an hour; a time with a failure is the last one. Seeds are fresh
//! each time, and printed by the tests. What the tests count (`tally`) is summed up at the end.

use core::time::Duration;

use crate::clock::Stopwatch;
use crate::plan::{self, Leftovers, Report, Step, Takes};
use crate::runner::Stop;
use crate::steps::Context;
use crate::{Task, fuzz, lanes, loom, simulate};

/// A step's own limit: 50 rounds of everything, on a slow machine.
const LIMIT: Duration = Duration::from_secs(60 * 60);
/// How everything is built whose speed decides how much of it there is.
pub(crate) const PROFILE: &str = "soak";
/// How long a soak takes unless told otherwise, in minutes.
pub(crate) const MINUTES: u32 = 30;

/// In the order in which they run.
pub(crate) const STEPS: &[Step<Context>] = &[
    step(
        "failpoints",
        "a process dies at each store that others see, every time it is passed",
        Takes::Little,
        |context| {
            context.run_test(
                &["sidecar-shm", "--features", "failpoints", "--test", "failpoints"],
                "SIDECAR_SOAK",
                LIMIT,
            )
        },
    ),
    step("crashes", "50 rounds of processes killed at random moments", Takes::Little, |context| {
        context.run_test(&["sidecar", "--test", "crash"], "SIDECAR_SOAK", LIMIT)
    }),
    step("hostile", "workers that attack their region, a minute each", Takes::Little, |context| {
        context.run_test(&["sidecar", "--test", "hostile"], "SIDECAR_SOAK", LIMIT)
    }),
    step("network", "50 rounds of a network that falls silent", Takes::Little, |context| {
        context.run_test(&["sidecar", "--test", "network"], "SIDECAR_SOAK", LIMIT)
    }),
    step("real-time", "the same with the timers of life", Takes::Little, |context| {
        context.run_test(&["sidecar", "--test", "network"], "SIDECAR_REAL_TIME", LIMIT)
    }),
    step(
        "limits",
        "memory and descriptors over 1,000,000 frames and 1,000 reconnects",
        Takes::Little,
        |context| context.run_test(&["sidecar", "--test", "limits"], "SIDECAR_SOAK", LIMIT),
    ),
    step("simulation", "the whole protocol in virtual time, from fresh seeds", Takes::All, |context| {
        simulate::run(context, PROFILE, &["--seconds", "180"], LIMIT)
    }),
    step(
        "fuzz",
        "every fuzz target for 20 seconds, from what the last runs learned",
        Takes::All,
        |context| fuzz::for_seconds(context, 20),
    ),
    step(
        "loom",
        "models of the concurrent code, each as deep as some minutes allow",
        Takes::All,
        |context| loom::run(context, loom::Depth::Soak, LIMIT),
    ),
];

/// `takes`: processes that are started, killed and waited for take little; a search takes whatever processors there are.
const fn step(
    name: &'static str,
    title: &'static str,
    takes: Takes,
    run: fn(&Context) -> Result<(), Stop>,
) -> Step<Context> {
    Step { name, title, needs: &[], leftovers: Leftovers::AFailure, takes, run }
}

/// How the steps follow each other.
pub(crate) enum Order<'a> {
    /// All of them, as [`lanes`] has it.
    Beside,
    /// These, one after the other.
    OneByOne(&'a [&'static str]),
}

/// Runs the steps until the time is up; gives the last table, and how often they ran.
///
/// # Errors
/// As [`lanes::run`].
pub(crate) fn run(context: &Context, order: &Order<'_>, time: Duration) -> Result<(Report, u32), String> {
    let watch = Stopwatch::start();
    let mut times = 0;
    loop {
        let report = match order {
            Order::Beside => lanes::run(context, Task::Soak)?,
            Order::OneByOne(chosen) => plan::run(STEPS, chosen, |step| context.attempt(step)),
        };
        times += 1;
        if !report.all_passed() || watch.elapsed() >= time {
            return Ok((report, times));
        }
        println!("\n== time {times} done after {:.0} s\n{report}", watch.elapsed().as_secs_f64());
    }
}
