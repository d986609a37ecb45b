//! Every cell, round by round, in another order each time, so that whatever the machine does for a while meets all of
//! them. Ratios are taken within a round.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use sidecar_cuda::ahead::PART;
use sidecar_cuda::driver::Driver;

use super::ahead::Ahead;
use super::habit::Habit;
use super::rates::{Memory, Rates};
use crate::random::Random;
use crate::rounds::Burst;

const KIB: usize = 1 << 10;
pub(super) const MIB: usize = 1 << 20;
pub(super) const LARGEST: usize = 16 * MIB;
/// Sizes of copies.
pub(super) const SIZES: [usize; 9] =
    [64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 8 * MIB, LARGEST];
/// At which of them the bus is asked for its limit: what is best there.
pub(super) const LIMITS: [usize; 4] = [2 * MIB, 4 * MIB, 8 * MIB, LARGEST];
/// Three pictures of 224 x 224 and of 480 x 640, and 2 MiB.
pub(super) const OBSERVATIONS: [usize; 3] = [3 * 224 * 224 * 3, 3 * 480 * 640 * 3, 2 * MIB];
/// Sizes of a part that is copied ahead.
pub(super) const PARTS: [u32; 5] = [64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];
/// Exchanges of a cell in a round, behind one that finds caches as the last cell left them.
pub(super) const REPEATS: u32 = 8;

const _: () = assert!(PART == 128 << 10, "the part that is used has to be one of those that are tried");

/// How an observation gets to the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Way {
    /// By the sidecar, in parts of this size.
    Ahead(u32),
    /// By the worker, out of a page-locked slot.
    Worker,
    /// By what people do today.
    Habit,
}

/// One thing that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Cell {
    /// A copy of so many bytes.
    Copy(Memory, usize),
    /// From the last byte of an observation until it is on the device.
    Arrival(Way, usize),
}

/// What came of it.
#[derive(Debug, Default)]
pub(super) struct Measured {
    /// Nanoseconds, a burst a round.
    pub(super) cells: HashMap<Cell, Vec<Burst>>,
    /// What PyTorch's script is made with, or why it is missing.
    pub(super) habit: Option<Result<String, String>>,
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effort {
    pub(super) rounds: u32,
    pub(super) repeats: u32,
    pub(super) seed: u64,
}

/// All cells that there are.
pub(super) fn plan() -> Vec<Cell> {
    let copies = |memory| SIZES.map(move |size| Cell::Copy(memory, size));
    let mut plan = copies(Memory::Slot).to_vec();
    plan.extend(copies(Memory::Plain));
    plan.extend(LIMITS.map(|size| Cell::Copy(Memory::Driver, size)));
    for size in OBSERVATIONS {
        plan.extend(PARTS.map(|part| Cell::Arrival(Way::Ahead(part), size)));
        plan.extend([Way::Worker, Way::Habit].map(|way| Cell::Arrival(way, size)));
    }
    plan
}

/// Measures everything.
///
/// # Errors
/// The driver or a region refuses: then nothing measured is worth anything.
pub(super) fn measure(driver: Driver, effort: Effort, python: &Path, script: &Path) -> io::Result<Measured> {
    let mut habit = Habit::start(python, script);
    let mut rates = Rates::new(driver)?;
    let mut ahead = Ahead::new(driver)?;
    let mut measured = Measured {
        cells: HashMap::new(),
        habit: Some(habit.as_ref().map(|habit| habit.version.clone()).map_err(String::clone)),
    };
    if let Err(why) = &habit {
        println!("left out: torch.frombuffer(bytes).to(\"cuda\"): {why}");
    }
    let mut plan = plan();
    plan.retain(|cell| habit.is_ok() || !matches!(cell, Cell::Arrival(Way::Habit, _)));
    let mut random = Random(effort.seed);
    for round in 0..effort.rounds {
        random.shuffle(&mut plan);
        for cell in &plan {
            let mut once = || match (*cell, &mut habit) {
                (Cell::Copy(memory, size), _) => rates.copy(memory, size),
                (Cell::Arrival(Way::Ahead(part), size), _) => ahead.arrival(part, size),
                (Cell::Arrival(Way::Worker, size), _) => rates.arrival(size),
                (Cell::Arrival(Way::Habit, size), Ok(habit)) => habit.arrival(size),
                (Cell::Arrival(Way::Habit, _), Err(why)) => Err(io::Error::other(why.clone())),
            };
            once()?;
            let mut nanos = (0..effort.repeats).map(|_| once()).collect::<io::Result<Vec<_>>>()?;
            nanos.sort_by(f64::total_cmp);
            measured.cells.entry(*cell).or_default().push(Burst(nanos));
        }
        eprint!("\rround {} of {}   ", round + 1, effort.rounds);
    }
    eprintln!();
    Ok(measured)
}
