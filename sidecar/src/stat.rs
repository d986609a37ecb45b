//! `sidecar stat`: what a running sidecar has counted, read from its region without disturbing anyone.

use core::time::Duration;
use std::io::Write;
use std::path::Path;

use serde_json::{Map, Value, json};
use sidecar_shm::stats::{Counter, Gauge, Snapshot, Stage, Stats};

use crate::cli::StatArgs;
use crate::exit::Exit;
use crate::explain::Code;
use crate::report::Failure;

/// Prints the statistics page and the error log, once or again and again.
///
/// # Errors
/// There is no region at the path, or it cannot be read.
pub fn run(args: &StatArgs) -> Result<Exit, Failure> {
    loop {
        let snapshot = read(&args.shm)?;
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
            let _ = writeln!(out, "{:<20} {value:>14}", counter.name());
        }
    }
    for &gauge in Gauge::ALL {
        let _ = writeln!(out, "{:<20} {:>14}", gauge.name(), snapshot.gauge(gauge));
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

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds with a unit that fits.
pub(crate) fn time(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::time;

    #[test]
    fn a_time_is_shown_in_the_unit_that_fits() {
        assert_eq!(
            [time(999), time(1_500), time(2_345_678), time(1_500_000_000)],
            ["999 ns", "1.5 us", "2.35 ms", "1.50 s"]
        );
    }
}
