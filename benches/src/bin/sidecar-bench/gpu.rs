//! What a GPU gets of an observation, and when: `cargo xtask bench --gpu`.
//!
//! | modules | what |
//! | --- | --- |
//! | `rows`, `report` | what is compared with what, and how it looks |
//! | `rounds` | every cell, round by round, in another order each time |
//! | `rates`, `ahead`, `habit` | copies beside the bus's limit; ahead of the last byte; what people do today |
//! | `side` | a sidecar's side of a region |
//!
//! Where there is no GPU, and under a simulated driver, the same rows are told, without a verdict.

mod ahead;
mod habit;
mod rates;
mod report;
mod rounds;
mod rows;
mod side;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use sidecar_cuda::discovery::{Gpu, Inventory};
use sidecar_cuda::driver::Driver;

use crate::machine;
use crate::report::{has_miss, verdicts};
use crate::stats::Verdict;
use report::Report;
use rounds::{Effort, Measured};

/// `sidecar-bench gpu`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the report goes
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
    /// Rounds; more narrow the intervals and take longer
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Everything once, to see that it works: no verdicts
    #[arg(long)]
    quick: bool,
    /// Fail when a target is missed
    #[arg(long)]
    check: bool,
    /// The Python that may have PyTorch
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    python: PathBuf,
    /// Where the peers' scripts lie
    #[arg(long, value_name = "DIRECTORY")]
    scripts: PathBuf,
    /// Order of the rounds
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// What CUDA calls the device that is measured: the one that PyTorch takes as well.
const DEVICE: u32 = 0;
/// What a simulated driver's devices are called.
const SIMULATED: &str = "Simulated";

/// Runs it.
///
/// # Errors
/// The driver refuses in the middle of it, or the report cannot be written.
pub(crate) fn run(args: &Args) -> io::Result<ExitCode> {
    let mut facts = machine::of_the_machine();
    let load = machine::load();
    let (measured, open) = match Driver::open() {
        Err(why) => {
            println!("skipped: gpu: {why}");
            (Measured::default(), Some(format!("open: no GPU: {why}")))
        }
        Ok(driver) => {
            let gpu = describe(&mut facts)?;
            let simulated = gpu.name.starts_with(SIMULATED);
            let effort = Effort {
                rounds: if args.quick { 1 } else { args.rounds },
                repeats: if args.quick { 1 } else { rounds::REPEATS },
                seed: args.seed,
            };
            let script = args.scripts.join("torch_habit.py");
            let measured = rounds::measure(driver, effort, &args.python, &script)?;
            (measured, simulated.then(|| "open: a simulated driver says nothing about speed".to_owned()))
        }
    };
    let mut rows = rows::of(&measured);
    if let Some(why) = open {
        for row in &mut rows {
            row.verdict = Verdict::Missing;
            row.note = Some(why.clone());
        }
    }
    facts.insert("load average before, after", format!("{load}, {}", machine::load()));
    facts.insert("rounds", args.rounds.to_string());
    let (missed, told) = (has_miss(&rows), verdicts(&rows));
    Report { facts, rows, cells: report::cells(&measured) }.write(&args.out)?;
    if !args.quick {
        println!("{told}");
    }
    println!("{}", args.out.join("report.md").display());
    Ok(if args.check && missed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn describe(facts: &mut BTreeMap<&'static str, String>) -> io::Result<Gpu> {
    let Inventory { driver_version, cuda_version: (major, minor), gpus, .. } =
        Inventory::take().map_err(io::Error::other)?;
    let gpu = gpus.into_iter().find(|gpu| u32::try_from(gpu.ordinal) == Ok(DEVICE));
    let gpu = gpu.ok_or_else(|| io::Error::other("the driver lists no device 0"))?;
    let node = gpu.numa_node.map_or_else(|| "unknown".to_owned(), |node| node.to_string());
    facts.insert("gpu", format!("{} at {}, NUMA node {node}", gpu.name, gpu.bus));
    let driver = driver_version.unwrap_or_else(|| "unknown".to_owned());
    facts.insert("driver", format!("{driver}, CUDA {major}.{minor}"));
    Ok(gpu)
}
