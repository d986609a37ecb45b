//! The report on a GPU: the same two files as that of the whole run, without its picture.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use sidecar_cuda::ahead::PART;

use super::rates::Memory;
use super::rounds::{Cell, Measured, OBSERVATIONS, PARTS, SIZES, Way};
use super::rows::picture;
use crate::report::{facts_table, row_tables, short};
use crate::rows::{Row, bytes};
use crate::stats;

/// Everything that was found out.
pub(super) struct Report {
    pub(super) facts: BTreeMap<&'static str, String>,
    pub(super) rows: Vec<Row>,
    pub(super) cells: Vec<Figures>,
}

/// One cell. Microseconds.
#[derive(Debug, Clone, serde::Serialize)]
pub(super) struct Figures {
    subject: String,
    bytes: usize,
    p50: f64,
    p99: f64,
    samples: usize,
    /// GB/s at the median, of a copy.
    rate: Option<f64>,
    #[serde(skip)]
    cell: Cell,
}

/// The figures of every cell, in order.
pub(super) fn cells(measured: &Measured) -> Vec<Figures> {
    let mut cells = Vec::new();
    for (cell, bursts) in &measured.cells {
        let mut all = bursts.iter().flat_map(|burst| burst.0.iter().copied()).collect::<Vec<_>>();
        all.sort_by(f64::total_cmp);
        let at = |share| stats::quantile(&all, share).unwrap_or(0.0) / 1000.0;
        let (bytes, rate) = match cell {
            // Bytes in a nanosecond are GB in a second.
            Cell::Copy(_, size) => (*size, Some(*size as f64 / (at(0.5) * 1000.0))),
            Cell::Arrival(_, size) => (*size, None),
        };
        let (p50, p99, samples) = (at(0.5), at(0.99), all.len());
        cells.push(Figures { subject: cell.name(), bytes, p50, p99, samples, rate, cell: *cell });
    }
    cells.sort_by_key(|figures| figures.cell);
    cells
}

impl Cell {
    fn name(self) -> String {
        match self {
            Self::Copy(Memory::Slot, _) => "copy out of a page-locked slot".to_owned(),
            Self::Copy(Memory::Plain, _) => "copy out of pageable memory".to_owned(),
            Self::Copy(Memory::Driver, _) => "copy out of the driver's own memory".to_owned(),
            Self::Arrival(Way::Ahead(part), _) => {
                format!("copied ahead in parts of {}", bytes(part as usize))
            }
            Self::Arrival(Way::Worker, _) => "copied by the worker out of its page-locked slot".to_owned(),
            Self::Arrival(Way::Habit, _) => "torch.frombuffer(bytes).to(\"cuda\")".to_owned(),
        }
    }
}

impl Report {
    /// Writes `report.json` and `report.md` into `directory`.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(super) fn write(&self, directory: &Path) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let of = |wanted: fn(&Figures) -> bool| self.cells.iter().filter(|it| wanted(it)).collect::<Vec<_>>();
        let json = serde_json::json!({
            "machine": self.facts,
            "rows": self.rows,
            "copies_us": of(|figures| figures.rate.is_some()),
            "latencies_us": of(|figures| figures.rate.is_none()),
        });
        std::fs::write(directory.join("report.json"), serde_json::to_vec_pretty(&json)?)?;
        std::fs::write(directory.join("report.md"), self.markdown())
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# Measurements on a GPU\n\n");
        facts_table(&mut text, &self.facts);
        row_tables(&mut text, &self.rows);
        text.push_str("\n## Copies, GB/s\n\n");
        let memories = [Memory::Slot, Memory::Plain, Memory::Driver].map(|memory| {
            let cells =
                SIZES.map(|size| self.find(Cell::Copy(memory, size)).and_then(|it| it.rate).map(short));
            (Cell::Copy(memory, 0).name(), cells.to_vec())
        });
        table(&mut text, &SIZES.map(bytes), &memories);
        text.push_str(
            "\n## From the last byte to on the device\n\nMicroseconds, p50 (p99). Ahead of the last byte, bytes come at \
             10 Gbit/s, 16 KiB at a time; otherwise they are all there, and nobody has to be woken.\n\n",
        );
        let ways = PARTS.map(Way::Ahead).into_iter().chain([Way::Worker, Way::Habit]);
        let ways: Vec<_> = ways
            .map(|way| {
                let told = |it: &Figures| format!("{} ({})", short(it.p50), short(it.p99));
                let cells = OBSERVATIONS.map(|size| self.find(Cell::Arrival(way, size)).map(told));
                let used = if way == Way::Ahead(PART) { ", as it is" } else { "" };
                (Cell::Arrival(way, 0).name() + used, cells.to_vec())
            })
            .collect();
        table(&mut text, &OBSERVATIONS.map(picture), &ways);
        text
    }

    fn find(&self, cell: Cell) -> Option<&Figures> {
        self.cells.iter().find(|figures| figures.cell == cell)
    }
}

fn table(text: &mut String, heads: &[String], lines: &[(String, Vec<Option<String>>)]) {
    let _ = writeln!(text, "| | {} |\n| --- |{}", heads.join(" | "), " ---: |".repeat(heads.len()));
    for (name, cells) in lines {
        let cells: Vec<_> = cells.iter().map(|cell| cell.as_deref().unwrap_or("")).collect();
        let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
    }
}
