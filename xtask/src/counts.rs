//! What a frame costs in counts, which hold on every machine and under any load: system calls, instructions.
//! (Allocations are counted by a test of `sidecar-benches`, in the step `unit`.)

use core::time::Duration;

use crate::runner::Stop;
use crate::steps::Context;
use crate::tool::Tool;

/// The version has to be that of the library in Cargo.lock.
const RUNNER: &str = "gungraun-runner@0.20.0";
const NO_STRACE: &str = "install strace";
const NO_VALGRIND: &str = "install valgrind";

/// System calls a frame, under strace.
///
/// # Errors
/// More than the design allows.
pub(crate) fn calls(context: &Context, limit: Duration) -> Result<(), Stop> {
    let version = Tool::new("strace", &context.root, NO_STRACE).args(["--version"]);
    if let Err(Stop::Failed(_)) = context.runner.run(version, limit) {
        return Err(Stop::Skipped("strace is not installed, or may not trace here"));
    }
    let build =
        context.cargo_tool(["build", "--release", "--package", "sidecar-benches", "--bin", "sidecar-bench"]);
    context.runner.run(build, limit)?;
    let bench = Tool::new(context.bench_path(), &context.root, "`cargo xtask bench` makes it");
    context.runner.run(bench.args(["calls", "--sidecar"]).args([context.sidecar_path()]), limit)
}

/// Instructions a frame in the protocol core, under callgrind.
///
/// # Errors
/// More than the stored budgets.
pub(crate) fn instructions(context: &Context, limit: Duration) -> Result<(), Stop> {
    let version = Tool::new("valgrind", &context.root, NO_VALGRIND).args(["--version"]);
    if let Err(Stop::Failed(_)) = context.runner.run(version, limit) {
        return Err(Stop::Skipped("valgrind is not installed"));
    }
    let tools = context.target.join("tools");
    let runner = tools.join("bin/gungraun-runner");
    if !runner.is_file() {
        // It reads what callgrind found: to optimise it takes longer than it ever will.
        let install = context
            .cargo_tool(["install", "--quiet", "--locked", "--debug", RUNNER, "--root"])
            .args([tools])
            .env("CARGO_PROFILE_DEV_DEBUG", "0");
        context.runner.run(install, limit).map_err(|stop| match stop {
            Stop::Failed(why) => {
                println!("{why}");
                Stop::Skipped("gungraun-runner could not be installed; see above")
            }
            other => other,
        })?;
    }
    let bench = context.cargo_tool(["bench", "--package", "sidecar-instructions"]);
    context.runner.run(bench.env("GUNGRAUN_RUNNER", runner), limit)
}
