//! `cargo xtask gpu-test`: what only a real GPU can show. Where there is none the steps are skipped by name, with the
//! reason above. Figures are `cargo xtask bench --gpu`.

use core::time::Duration;

use crate::plan::{Leftovers, Step, Takes};
use crate::runner::Stop;
use crate::steps::Context;

const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
const LOOK_LIMIT: Duration = Duration::from_secs(60);

/// In the order in which they run.
pub(crate) const STEPS: &[Step<Context>] = &[
    Step {
        name: "gpus",
        title: "the release binary lists the GPUs of this machine",
        needs: &[],
        leftovers: Leftovers::AFailure,
        takes: Takes::All,
        run: look,
    },
    Step {
        name: "device",
        title: "page-locking, copies, slots, and what is copied ahead for another process, on a real GPU",
        needs: &["gpus"],
        leftovers: Leftovers::AFailure,
        takes: Takes::All,
        run: device,
    },
];

/// Builds the sidecar and asks it; there is nothing to be done without a GPU.
fn look(context: &Context) -> Result<(), Stop> {
    let build = context.cargo_tool(["build", "--release", "--package", "sidecar"]);
    context.runner.run(build, BUILD_LIMIT)?;
    let mut running = context.runner.start_listening(context.sidecar().args(["gpus", "--json"]))?;
    let none = running
        .line("the list", LOOK_LIMIT, |line| line.starts_with('{').then(|| line.contains("\"gpus\":[]")))?;
    running.finish(LOOK_LIMIT)?;
    if none { Err(Stop::Skipped("there is no GPU here; the line above says why")) } else { Ok(()) }
}

fn device(context: &Context) -> Result<(), Stop> {
    look(context)?;
    // One at a time: they look at one device's memory.
    let tests = context
        .cargo_tool(["test", "--package", "sidecar-cuda", "--test", "device"])
        .args(["--", "--nocapture", "--test-threads=1"])
        .env("SIDECAR_GPU_TEST", "1");
    context.runner.run(tests, BUILD_LIMIT)
}
