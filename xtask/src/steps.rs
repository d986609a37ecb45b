//! The steps of `cargo xtask test` and the commands behind them.
//!
//! Every command here can be typed by hand; the step prints it before it runs.

use core::cell::RefCell;
use core::time::Duration;
use std::path::{Path, PathBuf};

use crate::bindings;
use crate::c;
use crate::conformance;
use crate::counts;
use crate::fuzz;
use crate::interop;
use crate::interpreters;
use crate::loom;
use crate::orphans;
use crate::plan::{Leftovers, Step, Takes};
use crate::python;
use crate::runner::{Runner, Stop};
use crate::simulate;
use crate::soak;
use crate::tally::Tally;
use crate::tool::Tool;
use crate::unit;

/// A whole build on a slow machine with two cores, with the tests behind it.
const BUILD_LIMIT: Duration = Duration::from_secs(30 * 60);
/// A game on this machine; minutes where it hangs, seconds where it does not.
const PLAY_LIMIT: Duration = Duration::from_secs(5 * 60);
const NO_CARGO: &str = "install Rust with https://rustup.rs";
const NO_BINARY: &str = "`cargo build --release` makes it";

const fn step(
    name: &'static str,
    title: &'static str,
    run: fn(&Context) -> Result<(), Stop>,
) -> Step<Context> {
    Step { name, title, needs: &[], leftovers: Leftovers::Fine, takes: Takes::All, run }
}

const fn play(
    name: &'static str,
    title: &'static str,
    needs: &'static [&'static str],
    run: fn(&Context) -> Result<(), Stop>,
) -> Step<Context> {
    Step { name, title, needs, leftovers: Leftovers::AFailure, takes: Takes::Little, run }
}

/// In the order in which they start, each as soon as there is room (`lanes`): what fails fast first, then what others need,
/// and last what is long and needed by none.
pub(crate) const STEPS: &[Step<Context>] = &[
    step("fmt", "the code is formatted", |context| context.cargo(["fmt", "--all", "--check"])),
    step("lint", "clippy has nothing to say", |context| {
        context.cargo(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    }),
    step("tests", "the tests and examples of every crate build", |context| unit::build(context, BUILD_LIMIT)),
    step("docs", "the documentation builds without a warning, and its examples run", |context| {
        let tool = context.cargo_tool(["doc", "--no-deps", "--workspace"]).env("RUSTDOCFLAGS", "-D warnings");
        context.runner.run(tool, BUILD_LIMIT)?;
        context.cargo(["test", "--workspace", "--doc"])
    }),
    Step {
        name: "unit",
        title: "unit, property and process tests of every crate",
        needs: &["tests"],
        leftovers: Leftovers::Fine,
        takes: Takes::Little,
        run: |context| unit::run(context, BUILD_LIMIT),
    },
    play(
        "conformance",
        "the Autobahn cases 1 to 10 against the codec and the agent",
        &["tests"],
        |context| conformance::step(context, BUILD_LIMIT),
    ),
    step("build", "the release binary", |context| {
        context.cargo(["build", "--release", "--package", "sidecar"])
    }),
    Step {
        name: "no-simulation",
        title: "the release binary cannot load the simulated CUDA driver",
        needs: &["build"],
        leftovers: Leftovers::Fine,
        takes: Takes::All,
        run: no_simulation,
    },
    Step {
        name: "calls",
        title: "system calls a frame, where strace is",
        needs: &["build"],
        leftovers: Leftovers::AFailure,
        takes: Takes::All,
        run: |context| counts::calls(context, BUILD_LIMIT),
    },
    step("python", "a virtual environment for the interop programs", |context| {
        python::prepare(python::INTEROP, &context.root, &context.target, &context.runner)
    }),
    play(
        "client",
        "Python's websockets as client plays against `sidecar gateway`",
        &["build", "python"],
        |context| interop::client(context, PLAY_LIMIT),
    ),
    play(
        "gateway-uring",
        "Python's websockets as gateway against the sidecar, io_uring",
        &["build", "python"],
        |context| interop::gateway(context, "uring", PLAY_LIMIT),
    ),
    play("gateway-epoll", "the same, epoll", &["build", "python"], |context| {
        interop::gateway(context, "epoll", PLAY_LIMIT)
    }),
    play("demo-uring", "five cases of the demo with and without images, io_uring", &["build"], |context| {
        demo(context, "uring")
    }),
    play("demo-epoll", "the same, epoll", &["build"], |context| demo(context, "epoll")),
    step("python-build", "the Python package as a wheel, imported where nothing else is", |context| {
        bindings::build(context, BUILD_LIMIT)
    }),
    play(
        "python-abi",
        "the wheel uses the stable ABI of its name and no more",
        &["python-build"],
        |context| bindings::abi(context, BUILD_LIMIT),
    ),
    play(
        "pytest",
        "the Python package: lints, types, tests against the sidecar",
        &["build", "python-build"],
        |context| bindings::test(context, PLAY_LIMIT),
    ),
    play(
        "python-versions",
        "the same under the other interpreters that are here",
        &["build", "python-build"],
        |context| interpreters::test(context, BUILD_LIMIT),
    ),
    play(
        "python-crash",
        "Python workers killed at random moments: nothing is lost",
        &["tests", "python-build"],
        |context| bindings::crash(context, BUILD_LIMIT),
    ),
    Step {
        name: "c-header-fresh",
        title: "sidecar.h is what the sources say",
        needs: &["tests"],
        leftovers: Leftovers::Fine,
        takes: Takes::All,
        run: |context| c::header(context, BUILD_LIMIT),
    },
    step(
        "c-examples",
        "the C library: exported symbols, examples with strict warnings and sanitizers",
        |context| c::examples(context, BUILD_LIMIT),
    ),
    play(
        "c-consumers",
        "projects of others find and link the C library, by pkg-config and by CMake",
        &["c-examples"],
        |context| c::consumers(context, BUILD_LIMIT),
    ),
    step("c-freestanding", "the agent for C links without an allocator", |context| {
        c::freestanding(context, BUILD_LIMIT)
    }),
    play(
        "c-play",
        "the examples in C and C++ play against `sidecar` and `sidecar gateway`",
        &["build", "c-examples", "c-freestanding"],
        |context| c::play(context, PLAY_LIMIT),
    ),
    play("c-crash", "the same with workers in C", &["tests", "c-examples"], |context| {
        c::crash(context, BUILD_LIMIT)
    }),
    play(
        "c-valgrind",
        "the examples under Valgrind",
        &["build", "c-examples", "c-freestanding"],
        |context| c::valgrind(context, PLAY_LIMIT),
    ),
    step("no-alloc", "core links without std and without an allocator", |context| {
        let tool = Tool::new("bash", &context.root, "install bash").args(["core/no-alloc-proof/check.sh"]);
        context.runner.run(tool, BUILD_LIMIT)
    }),
    step("failpoints", "a process dies at each store that others see, and the others go on", |context| {
        context.cargo([
            "test",
            "--package",
            "sidecar-shm",
            "--features",
            "failpoints",
            "--test",
            "failpoints",
        ])
    }),
    step("instructions", "instructions a frame in core, where valgrind is", |context| {
        counts::instructions(context, BUILD_LIMIT)
    }),
    Step {
        name: "simulation",
        title: "200,000 schedules of the whole protocol in virtual time",
        needs: &[],
        leftovers: Leftovers::Fine,
        takes: Takes::Little,
        run: |context| simulate::run(context, simulate::PROFILE, &simulate::FIXED, BUILD_LIMIT),
    },
    step("loom", "models of the concurrent code under every interleaving", |context| {
        loom::run(context, loom::Depth::Shallow, BUILD_LIMIT)
    }),
    step("fuzz", "every fuzz target for 5 seconds, where nightly and cargo-fuzz are", fuzz::step),
];

/// What the steps share.
pub(crate) struct Context {
    /// The repository.
    pub(crate) root: PathBuf,
    /// Cargo's target directory, absolute.
    pub(crate) target: PathBuf,
    pub(crate) runner: Runner,
    /// What the tests counted that [`Context::run_test`] ran.
    pub(crate) tally: RefCell<Tally>,
    cargo: PathBuf,
}

impl Context {
    /// Finds the repository by what cargo tells a program that it runs.
    ///
    /// # Errors
    /// When cargo did not start us, or the system refuses what the runner wants.
    pub(crate) fn new() -> Result<Self, String> {
        let manifest = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
        let root = manifest
            .as_deref()
            .and_then(Path::parent)
            .ok_or("CARGO_MANIFEST_DIR is not set; start this with `cargo xtask`")?
            .to_owned();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = std::path::absolute(target).map_err(|error| format!("no target directory: {error}"))?;
        let cargo = std::env::var_os("CARGO").map_or_else(|| "cargo".into(), PathBuf::from);
        let runner = Runner::new().map_err(|error| format!("cannot watch over child processes: {error}"))?;
        Ok(Self { root, target, runner, tally: RefCell::default(), cargo })
    }

    /// Builds the Python wheel.
    ///
    /// # Errors
    /// As the step `python-build`.
    pub(crate) fn wheel(&self) -> Result<PathBuf, Stop> {
        bindings::wheel(self, BUILD_LIMIT)
    }

    /// Builds the C library.
    ///
    /// # Errors
    /// As the step `c-examples`.
    pub(crate) fn c(&self) -> Result<PathBuf, Stop> {
        c::build(self, BUILD_LIMIT)
    }

    /// Runs a step and ends what outlived it. An interrupted step leaves nothing behind, whoever started it.
    ///
    /// # Errors
    /// The step's own; processes that are still there after a step that promises to leave none.
    pub(crate) fn attempt(&self, step: &Step<Self>) -> Result<(), Stop> {
        let before = orphans::list();
        let result = (step.run)(self);
        if result.is_ok() && step.leftovers == Leftovers::Fine {
            return result;
        }
        let left = orphans::end_new(&before);
        result?;
        if left.is_empty() {
            return Ok(());
        }
        let names = left.iter().map(|orphan| orphan.name.as_str()).collect::<Vec<_>>().join(", ");
        Err(Stop::failed(format!("left processes running (ended now): {names}")))
    }

    /// The sidecar, as the step `build` left it.
    pub(crate) fn sidecar(&self) -> Tool {
        Tool::new(self.sidecar_path(), &self.root, NO_BINARY)
    }

    /// Where the step `build` left it.
    pub(crate) fn sidecar_path(&self) -> PathBuf {
        self.target.join("release/sidecar")
    }

    /// Where a release build leaves the harness of the benchmarks.
    pub(crate) fn bench_path(&self) -> PathBuf {
        self.target.join("release/sidecar-bench")
    }

    pub(crate) fn cargo_tool<const N: usize>(&self, arguments: [&str; N]) -> Tool {
        let tool = Tool::new(&self.cargo, &self.root, NO_CARGO).args(arguments);
        // What helps to build the same again takes as much room as what is built.
        let incremental = std::env::var_os("CARGO_INCREMENTAL").unwrap_or_else(|| "0".into());
        tool.env("CARGO_TARGET_DIR", &self.target).env("CARGO_INCREMENTAL", incremental)
    }

    /// `cargo test --profile soak --package ...`, showing what the tests say, with a variable set.
    pub(crate) fn run_test(&self, arguments: &[&str], variable: &str, limit: Duration) -> Result<(), Stop> {
        let tool = self.cargo_tool(["test", "--profile", soak::PROFILE, "--package"]).args(arguments);
        let tool = tool.args(["--", "--nocapture"]);
        let running = self.runner.start_listening(tool.env(variable, "1"))?;
        running.finish_reading(limit, |line| self.tally.borrow_mut().read(line))
    }

    /// The crash tests with another worker than the built-in one (sidecar/tests/crash).
    ///
    /// # Errors
    /// The first test that fails.
    pub(crate) fn crash(&self, worker: &[PathBuf], limit: Duration) -> Result<(), Stop> {
        let words: Vec<_> = worker.iter().map(|word| word.display().to_string()).collect();
        let tool = unit::program(self, "sidecar/tests/crash/main.rs")?
            .args(["worker", "--nocapture"])
            .env("SIDECAR_TEST_WORKER", words.join(" "));
        self.runner.run(tool, limit)
    }

    fn cargo<const N: usize>(&self, arguments: [&str; N]) -> Result<(), Stop> {
        self.runner.run(self.cargo_tool(arguments), BUILD_LIMIT)
    }
}

/// The name of the variable would be in the program if the program looked for it.
fn no_simulation(context: &Context) -> Result<(), Stop> {
    const SIGNS: [&str; 2] = ["SIDECAR_SIMULATED", "SIMULATED_CUDA"];
    let path = context.sidecar_path();
    let program = std::fs::read(&path)
        .map_err(|error| Stop::failed(format!("{} cannot be read: {error}", path.display())))?;
    let known = |text: &str| program.windows(text.len()).any(|window| window == text.as_bytes());
    if !known("libcuda.so.1") {
        return Err(Stop::failed(
            "the program does not name the real driver: it was looked at in vain".to_owned(),
        ));
    }
    match SIGNS.iter().find(|sign| known(sign)) {
        None => Ok(()),
        Some(sign) => Err(Stop::failed(format!("{} knows {sign}", path.display()))),
    }
}

fn demo(context: &Context, driver: &str) -> Result<(), Stop> {
    context.runner.run(context.sidecar().args(["demo", "--cases", "5", "--io", driver]), PLAY_LIMIT)
}
