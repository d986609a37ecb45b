//! What is compared with what on a GPU, and what is asked of it. Rows without a target are there to read.

use sidecar_cuda::ahead::PART;

use super::rates::{Memory, ROW};
use super::rounds::{Cell, LIMITS, MIB, Measured, OBSERVATIONS, PARTS, SIZES, Way};
use crate::rounds::Burst;
use crate::rows::{Row, bytes};
use crate::stats::{self, Ratio, Verdict};

/// 0.95 of the bus's limit, as time.
const OF_THE_LIMIT: f64 = 1.0526;
const LIMIT_FROM: usize = 2 * MIB;
/// Microseconds that a copy ahead leaves behind the last byte.
const AHEAD_US: f64 = 15.0;
const AHEAD_AT: usize = 2 * MIB;
/// The habit is beaten by three times.
const OF_THE_HABIT: f64 = 0.333;

const HABIT: &str = "torch.frombuffer(bytes).to(\"cuda\")";

/// All rows, also those of what was not measured.
pub(super) fn of(measured: &Measured) -> Vec<Row> {
    let mut rows = Vec::new();
    copies(&mut rows, measured);
    for size in OBSERVATIONS {
        arrivals(&mut rows, measured, size);
    }
    rows
}

fn copies(rows: &mut Vec<Row>, measured: &Measured) {
    let placement = format!("{ROW} in a row");
    for size in SIZES {
        let slot = measured.nanos(Cell::Copy(Memory::Slot, size));
        let limit = measured.limit(size);
        let target = (size >= LIMIT_FROM).then_some(OF_THE_LIMIT);
        let what = format!("copy out of a page-locked slot, {}", bytes(size));
        let pair = (slot.as_deref(), limit.as_deref());
        rows.push(Row::ratio(what.clone(), "the bus's limit", &placement, pair, target));
        let plain = measured.nanos(Cell::Copy(Memory::Plain, size));
        let pair = (slot.as_deref(), plain.as_deref());
        rows.push(Row::ratio(what, "out of pageable memory", &placement, pair, None));
    }
}

fn arrivals(rows: &mut Vec<Row>, measured: &Measured, size: usize) {
    let part = |way| measured.nanos(Cell::Arrival(way, size));
    let name = picture(size);
    let (ahead, worker, habit) = (part(Way::Ahead(PART)), part(Way::Worker), part(Way::Habit));
    let target = (size == AHEAD_AT).then_some(AHEAD_US);
    rows.push(micros(format!("copied ahead, {name}"), ahead.as_deref(), target));
    rows.push(micros(format!("copied by the worker, {name}"), worker.as_deref(), None));
    let why = measured.habit.as_ref().and_then(|habit| habit.as_ref().err());
    for (what, ours, target) in
        [("copied ahead", &ahead, Some(OF_THE_HABIT)), ("copied by the worker", &worker, None)]
    {
        let pair = (ours.as_deref(), habit.as_deref());
        let mut row = Row::ratio(format!("{what}, {name}"), HABIT, LAST_BYTE, pair, target);
        row.note = why.cloned();
        rows.push(row);
    }
    for other in PARTS.into_iter().filter(|other| *other != PART) {
        let tried = part(Way::Ahead(other));
        let what = format!("copied ahead in parts of {}, {name}", bytes(other as usize));
        let against = format!("in parts of {}, as it is", bytes(PART as usize));
        rows.push(Row::ratio(what, &against, LAST_BYTE, (tried.as_deref(), ahead.as_deref()), None));
    }
}

/// From when to when.
const LAST_BYTE: &str = "last byte to on the device";

/// A time by itself, against a target in microseconds.
fn micros(what: String, nanos: Option<&[f64]>, target: Option<f64>) -> Row {
    let ratio = nanos.and_then(|nanos| Ratio::of(nanos, &vec![1000.0; nanos.len()]));
    let verdict = match (ratio, target) {
        (None, _) => Verdict::Missing,
        (Some(_), None) => Verdict::Info,
        (Some(ratio), Some(target)) => ratio.verdict(target),
    };
    Row {
        what,
        against: "microseconds".to_owned(),
        placement: LAST_BYTE.to_owned(),
        ours: nanos.map(|nanos| stats::median(nanos) / 1000.0),
        theirs: None,
        ratio,
        target,
        verdict,
        note: None,
    }
}

impl Measured {
    /// One number a round.
    fn nanos(&self, cell: Cell) -> Option<Vec<f64>> {
        Some(self.cells.get(&cell)?.iter().map(Burst::median).collect())
    }

    /// What a copy of this size would take at the best rate that the bus showed in a round.
    fn limit(&self, size: usize) -> Option<Vec<f64>> {
        let of = |at: usize| {
            let nanos = self.nanos(Cell::Copy(Memory::Driver, at))?;
            Some(nanos.into_iter().map(|nanos| nanos / at as f64 * size as f64).collect::<Vec<_>>())
        };
        let all = LIMITS.into_iter().map(of).collect::<Option<Vec<_>>>()?;
        let better = |one: Vec<f64>, other: Vec<f64>| {
            one.into_iter().zip(other).map(|(one, other)| one.min(other)).collect()
        };
        all.into_iter().reduce(better)
    }
}

/// An observation as people say it.
pub(super) fn picture(size: usize) -> String {
    match size {
        451_584 => "3x224x224x3".to_owned(),
        2_764_800 => "3x480x640x3".to_owned(),
        _ => bytes(size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten rounds in which a copy of each kind takes so many nanoseconds a byte, and an arrival so many microseconds.
    fn measured(slot: f64, driver: f64, ahead: f64, habit: f64) -> Measured {
        let mut measured = Measured { habit: Some(Ok("torch 2".to_owned())), ..Measured::default() };
        for cell in super::super::rounds::plan() {
            let nanos = match cell {
                Cell::Copy(Memory::Slot, size) => slot * size as f64,
                Cell::Copy(Memory::Plain, size) => 3.0 * size as f64,
                // Best at 8 MiB: that is the limit at every size.
                Cell::Copy(Memory::Driver, size) if size == 8 * MIB => driver * size as f64,
                Cell::Copy(Memory::Driver, size) => 2.0 * driver * size as f64,
                Cell::Arrival(Way::Ahead(_) | Way::Worker, _) => ahead * 1000.0,
                Cell::Arrival(Way::Habit, _) => habit * 1000.0,
            };
            measured.cells.insert(cell, vec![Burst(vec![nanos]); 10]);
        }
        measured
    }

    fn verdicts(rows: &[Row]) -> Vec<(&str, &str, f64, Verdict)> {
        let told = |row: &'_ Row| row.target.is_some();
        let rows = rows.iter().filter(|row| told(row));
        rows.filter_map(|row| Some((row.what.as_str(), row.against.as_str(), row.target?, row.verdict)))
            .collect()
    }

    #[test]
    fn every_target_has_its_row_and_is_met_or_missed() {
        for (measured, verdict) in [
            (measured(1.05, 1.0, 14.9, 45.0), Verdict::Pass),
            (measured(1.06, 1.0, 15.1, 45.0), Verdict::Miss),
        ] {
            let rows = of(&measured);
            let slot = |size| format!("copy out of a page-locked slot, {size} MiB");
            let sizes = [2, 4, 8, 16].map(slot);
            let limit = "the bus's limit";
            let mut expected: Vec<_> =
                sizes.iter().map(|what| (what.as_str(), limit, 1.0526, verdict)).collect();
            expected.push(("copied ahead, 3x224x224x3", HABIT, 0.333, verdict));
            expected.push(("copied ahead, 3x480x640x3", HABIT, 0.333, verdict));
            expected.push(("copied ahead, 2 MiB", "microseconds", 15.0, verdict));
            expected.push(("copied ahead, 2 MiB", HABIT, 0.333, verdict));
            assert_eq!(verdicts(&rows), expected);
        }
    }

    #[test]
    fn what_was_not_measured_has_its_rows_all_the_same_and_says_why() {
        let rows = of(&Measured::default());
        assert!(rows.iter().all(|row| row.verdict == Verdict::Missing));
        let mut measured = measured(1.0, 1.0, 1.0, 1.0);
        assert_eq!(rows.len(), of(&measured).len());
        measured.habit = Some(Err("no module named torch".to_owned()));
        measured.cells.retain(|cell, _| !matches!(cell, Cell::Arrival(Way::Habit, _)));
        let rows = of(&measured);
        let missing = rows.iter().filter(|row| row.verdict == Verdict::Missing);
        let notes: Vec<_> = missing.map(|row| (row.against.as_str(), row.note.as_deref())).collect();
        assert_eq!(notes, [(HABIT, Some("no module named torch")); 6]);
    }

    #[test]
    fn each_size_of_a_part_is_compared_with_the_one_that_is_used() {
        let rows = of(&measured(1.0, 1.0, 1.0, 1.0));
        let parts = rows.iter().filter(|row| row.against == "in parts of 128 KiB, as it is");
        let tried: Vec<_> = parts.map(|row| row.what.as_str()).collect();
        assert_eq!(tried.len(), 3 * 4);
        assert!(tried.contains(&"copied ahead in parts of 1 MiB, 2 MiB"), "{tried:?}");
    }
}
