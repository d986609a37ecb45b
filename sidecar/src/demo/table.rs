//! The demo's result.
//!
//! Times come from three clocks' owners: the gateway saw the whole exchange, the sidecar its part of it, the worker
//! its own. What the gateway saw and nobody else accounts for is the network: two kernels' sockets and the wake-ups
//! between the processes.

use core::fmt::Write;
use core::time::Duration;

use serde_json::{Value, json};
use sidecar_shm::stats::{Counter, Snapshot, Stage};

use super::gateway::Report;
use crate::stat::time;

/// One run.
pub(super) struct Row {
    pub(super) title: &'static str,
    pub(super) payload: u32,
    pub(super) report: Report,
    pub(super) snapshot: Option<Snapshot>,
    pub(super) exit: Option<i32>,
}

/// Medians, in nanoseconds.
struct Split {
    network: u64,
    hand_over: u64,
    worker: u64,
}

impl Row {
    pub(super) fn is_solved(&self) -> bool {
        self.exit == Some(0) && self.report.solved == self.report.cases
    }

    /// What the region's error log or its counters of trouble hold.
    pub(super) fn surprise(&self) -> Option<String> {
        let snapshot = self.snapshot.as_ref()?;
        let counter = Counter::TROUBLE.into_iter().find(|counter| snapshot.counter(*counter) > 0);
        let what = snapshot
            .errors
            .first()
            .map(|record| record.text.clone())
            .or_else(|| counter.map(|counter| format!("{} is not 0", counter.name())))?;
        Some(format!("{}: the region's log and counters tell of trouble: {what}", self.title))
    }

    fn split(&self) -> Option<Split> {
        let snapshot = self.snapshot.as_ref()?;
        let median = |stage| nanos(snapshot.stage(stage).p50);
        if snapshot.stage(Stage::Total).count == 0 {
            return None;
        }
        Some(Split {
            network: self.report.p50.saturating_sub(median(Stage::Total)),
            hand_over: median(Stage::HandOver) + median(Stage::Send),
            worker: median(Stage::Worker),
        })
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn text(rows: &[Row]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "{:<10} {:>10} {:>7} {:>7}   {:>9} {:>9} {:>9}   {:>9} {:>9} {:>9}",
        "", "bytes", "solved", "steps", "p50", "p99", "max", "network", "hand-over", "worker"
    );
    for row in rows {
        let report = &row.report;
        let solved = format!("{}/{}", report.solved, report.cases);
        let bytes = row.payload.max(16);
        let split = row.split().map_or_else(
            || ["-", "-", "-"].map(str::to_owned),
            |split| [split.network, split.hand_over, split.worker].map(time),
        );
        let [network, hand_over, worker] = split;
        let [p50, p99, max] = [report.p50, report.p99, report.max].map(time);
        let _ = writeln!(
            out,
            "{:<10} {bytes:>10} {solved:>7} {:>7}   {p50:>9} {p99:>9} {max:>9}   {network:>9} {hand_over:>9} {worker:>9}",
            row.title, report.steps
        );
    }
    let _ = writeln!(
        out,
        "observation -> action as the gateway saw it; network, hand-over (shared memory and wake-ups) and worker are\n\
         medians of their own"
    );
    out
}

pub(super) fn json(rows: &[Row]) -> String {
    let rows: Vec<Value> = rows
        .iter()
        .map(|row| {
            let report = &row.report;
            let split = row.split().map(|split| {
                json!({"network": split.network, "hand_over": split.hand_over, "worker": split.worker})
            });
            json!({
                "title": row.title,
                "payload": row.payload,
                "cases": report.cases,
                "solved": report.solved,
                "steps": report.steps,
                "latency_ns": {"p50": report.p50, "p99": report.p99, "max": report.max},
                "split_p50_ns": split,
                "exit": row.exit,
            })
        })
        .collect();
    format!("{}\n", json!({"runs": rows}))
}
