//! `sidecar stat`: what a running sidecar has counted, read from its region without disturbing anyone.

use core::time::Duration;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use sidecar_core::time::Instant;
use sidecar_shm::clock;
use sidecar_shm::stats::{Counter, Gauge, Snapshot, Stage, Stats};

use crate::cli::StatArgs;
use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

/// Prints the statistics page and the error log, once, or again and again until the region is gone.
///
/// # Errors
/// There is no region at the path, or it cannot be read.
pub fn run(args: &StatArgs) -> Result<Exit, Failure> {
    let mut watched = false;
    loop {
        let snapshot = match read(&args.shm) {
            Err(_) if watched && !args.shm.exists() => {
                tracing::info!("the sidecar has ended, and its region is gone");
                return Ok(Exit::Done);
            }
            read => read?,
        };
        watched = true;
        let text = if args.json { format!("{}\n", to_json(&snapshot)) } else { to_text(&snapshot) };
        if std::io::stdout().lock().write_all(text.as_bytes()).is_err() || args.json || args.once {
            // A closed pipe is a reader that has seen enough.
            return Ok(Exit::Done);
        }
        std::thread::sleep(args.every);
    }
}

fn read(shm: &Path) -> Result<Snapshot, Failure> {
    Stats::open_read_only(shm).map_err(|error| {
        Failure::new(Code::NoStatistics, format!("the region {} cannot be read", shm.display()))
            .because(error)
            .hint("name the path that a running sidecar was given with --shm")
    })
}

/// One object: `owner`, `counters`, `trouble` (those of the counters that stay at 0 unless something goes wrong, and are
/// not), `gauges`, `latency_ns` by stage, `errors`.
fn to_json(snapshot: &Snapshot) -> Value {
    let counters: Map<String, Value> = Counter::ALL
        .iter()
        .map(|&counter| (counter.name().to_owned(), snapshot.counter(counter).into()))
        .collect();
    let trouble: Map<String, Value> = Counter::TROUBLE
        .iter()
        .map(|&counter| (counter.name().to_owned(), snapshot.counter(counter)))
        .filter(|(_, count)| *count != 0)
        .map(|(name, count)| (name, count.into()))
        .collect();
    let gauges: Map<String, Value> =
        Gauge::ALL.iter().map(|&gauge| (gauge.name().to_owned(), snapshot.gauge(gauge).into())).collect();
    let latency: Map<String, Value> = Stage::ALL
        .iter()
        .map(|&stage| {
            let figures = snapshot.stage(stage);
            let [p50, p90, p99, max, mean] =
                [figures.p50, figures.p90, figures.p99, figures.max, figures.mean].map(nanos);
            let count = figures.count;
            let value = json!({"count": count, "p50": p50, "p90": p90, "p99": p99, "max": max, "mean": mean});
            (stage.name().to_owned(), value)
        })
        .collect();
    let errors: Vec<Value> = snapshot
        .errors
        .iter()
        .map(|record| {
            json!({
                "kind": record.kind,
                "text": record.text,
                "count": record.count,
                "first_ns": record.first.as_nanos(),
                "last_ns": record.last.as_nanos(),
            })
        })
        .collect();
    let owner = snapshot.owner.as_ref().map(
        |owner| json!({"pid": owner.pid, "alive": owner.alive, "ended": owner.ended, "agent": owner.agent}),
    );
    json!({
        "owner": owner,
        "counters": counters,
        "trouble": trouble,
        "gauges": gauges,
        "latency_ns": latency,
        "errors": errors,
    })
}

fn to_text(snapshot: &Snapshot) -> String {
    use core::fmt::Write as _;
    let mut out = String::new();
    // Writing to a string cannot fail.
    match &snapshot.owner {
        Some(owner) => {
            let state = match (owner.alive, owner.ended) {
                (true, _) => "running",
                (false, true) => "ended",
                (false, false) => "dead; the next sidecar with this --shm takes over",
            };
            let _ = writeln!(out, "sidecar {} ({state}), agent {}", owner.pid, owner.agent);
        }
        None => out.push_str("sidecar unknown: its journal cannot be read at the moment\n"),
    }
    for &counter in Counter::ALL {
        let value = snapshot.counter(counter);
        if value > 0 {
            let shown = if counter.name().contains("bytes") { bytes(value) } else { value.to_string() };
            let _ = writeln!(out, "{:<20} {shown:>14}", counter.name());
        }
    }
    for &gauge in Gauge::ALL {
        let (name, value) = reading(gauge, snapshot);
        let _ = writeln!(out, "{name:<20} {value:>14}");
    }
    let _ =
        writeln!(out, "{:<20} {:>9} {:>9} {:>9} {:>9} {:>9}", "latency", "count", "p50", "p90", "p99", "max");
    for &stage in Stage::ALL {
        let figures = snapshot.stage(stage);
        let [p50, p90, p99, max] =
            [figures.p50, figures.p90, figures.p99, figures.max].map(|duration| time(nanos(duration)));
        let (name, count) = (stage.name(), figures.count);
        let _ = writeln!(out, "{name:<20} {count:>9} {p50:>9} {p90:>9} {p99:>9} {max:>9}");
    }
    for record in &snapshot.errors {
        let _ = writeln!(out, "error x{}: {}", record.count, record.text);
    }
    out.push('\n');
    out
}

/// A gauge in words, or with a unit.
fn reading(gauge: Gauge, snapshot: &Snapshot) -> (&'static str, String) {
    let name = if gauge == Gauge::ConnectedSince { "connected_for" } else { gauge.name() };
    let shown = match (gauge, snapshot.gauge(gauge)) {
        (Gauge::Phase, 0) => "queued",
        (Gauge::Phase, 1) => "warm-up",
        (Gauge::Phase, 2) => "running",
        (Gauge::Phase, 3) => "draining",
        (Gauge::SessionOpen | Gauge::Connected, 0) => "no",
        (Gauge::SessionOpen | Gauge::Connected, 1) => "yes",
        (Gauge::ConnectedSince, _) if snapshot.gauge(Gauge::Connected) == 0 => "-",
        (Gauge::WorkerPid, 0) => "none",
        (Gauge::Driver, 1) => "io_uring",
        (Gauge::Driver, 2) => "epoll",
        (Gauge::ConnectedSince, since) => {
            return (name, time(nanos(clock::now().since(Instant::from_nanos(since)))));
        }
        (_, number) => return (name, number.to_string()),
    };
    (name, shown.to_owned())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds with a unit that fits.
pub(crate) fn time(nanos: u64) -> String {
    let (unit, name) = match nanos {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => return format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => (1e6, "ms"),
        1_000_000_000..60_000_000_000 => (1e9, "s"),
        60_000_000_000..3_600_000_000_000 => (60e9, "min"),
        _ => (3600e9, "h"),
    };
    format!("{:.2} {name}", nanos as f64 / unit)
}

/// Bytes with a unit that fits.
fn bytes(count: u64) -> String {
    let (unit, name) = match count {
        0..0x400 => return format!("{count} B"),
        0x400..0x10_0000 => (1_u64 << 10, "KiB"),
        0x10_0000..0x4000_0000 => (1 << 20, "MiB"),
        0x4000_0000..0x100_0000_0000 => (1 << 30, "GiB"),
        _ => (1 << 40, "TiB"),
    };
    format!("{:.1} {name}", count as f64 / unit as f64)
}

#[cfg(test)]
mod tests {
    use super::{bytes, time};

    #[test]
    fn a_time_is_shown_in_the_unit_that_fits() {
        let times = [999, 1_500, 2_345_678, 1_500_000_000, 90_000_000_000, 5_400_000_000_000].map(time);
        assert_eq!(times, ["999 ns", "1.5 us", "2.35 ms", "1.50 s", "1.50 min", "1.50 h"]);
    }

    #[test]
    fn bytes_are_shown_in_the_unit_that_fits() {
        let counts = [0, 1023, 1024, 786_432, 1_288_490_189, 3 << 40, u64::MAX].map(bytes);
        let shown = ["0 B", "1023 B", "1.0 KiB", "768.0 KiB", "1.2 GiB", "3.0 TiB", "16777216.0 TiB"];
        assert_eq!(counts, shown);
    }
}
