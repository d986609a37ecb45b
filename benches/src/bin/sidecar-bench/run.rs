//! The whole run: calls, end to end in three placements, the hop; then the report.

use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use crate::calls;
use crate::cores::Cores;
use crate::machine;
use crate::micro;
use crate::report::{self, Report};
use crate::rounds::{self, After, Cells, Effort, Load, Placement};
use crate::rows::{self, Row};
use crate::subjects::{Programs, Subject};

/// `sidecar-bench run`
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    programs: Programs,
    /// Where the report goes
    #[arg(long, value_name = "DIRECTORY")]
    out: PathBuf,
    /// Rounds of each placement; more narrow the intervals and take longer
    #[arg(long, default_value_t = 40)]
    rounds: u32,
    /// Milliseconds of a burst
    #[arg(long, default_value_t = 25)]
    burst: u64,
    /// Only this placement; `hop` for the hop alone; may be repeated
    #[arg(long, value_enum)]
    only: Vec<Part>,
    /// Everything once, for its answers and not for its times: no verdicts
    #[arg(long)]
    quick: bool,
    /// Fail when a target is missed
    #[arg(long)]
    check: bool,
    /// What another program has counted, as NAME=VALUE=LIMIT
    #[arg(long, value_name = "NAME=VALUE=LIMIT")]
    counted: Vec<String>,
    /// Order of the rounds
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Calls,
    OneCpu,
    SpinningGateway,
    FreeCore,
    Hop,
}

impl From<Placement> for Part {
    fn from(placement: Placement) -> Self {
        match placement {
            Placement::OneCpu => Self::OneCpu,
            Placement::SpinningGateway => Self::SpinningGateway,
            Placement::FreeCore => Self::FreeCore,
        }
    }
}

/// How long nothing happens for the row about it.
const IDLE: Duration = Duration::from_secs(5);

/// Subjects and sizes of each placement.
fn plan(placement: Placement) -> (Vec<Subject>, &'static [usize]) {
    use Subject::{
        Beast, Epoll, Fastwebsockets, Floor, Picows, Relay, SocketEpoll, SocketUring, SpinningFloor,
        TokioUring, Tungstenite, Uring, UringPython, Websockets,
    };
    let peers = [Fastwebsockets, Tungstenite, Beast, Picows];
    let (mut subjects, sizes): (Vec<_>, &[usize]) = match placement {
        Placement::OneCpu => {
            (vec![Floor, Relay, Uring, Epoll, UringPython, TokioUring, Websockets], &rows::SIZES)
        }
        Placement::SpinningGateway => (
            vec![Floor, SpinningFloor, Relay, SocketUring, SocketEpoll, Uring, UringPython, Websockets],
            &rows::FEWER,
        ),
        Placement::FreeCore => (vec![Floor, Uring, Epoll], &rows::FREE),
    };
    subjects.extend(peers);
    (subjects, sizes)
}

/// Runs it.
///
/// # Errors
/// Something broke or answered wrongly.
pub(crate) fn run(args: &Args) -> io::Result<ExitCode> {
    let cores = Cores::usable()?;
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    let mut facts = machine::describe();
    let (load, stolen) = (machine::load(), machine::stolen());
    let effort = Effort {
        rounds: if args.quick { 1 } else { args.rounds },
        burst: Duration::from_millis(if args.quick { 1 } else { args.burst }),
        seed: args.seed,
    };
    let mut all_rows = Vec::new();
    let (mut cells, mut missing) = (Cells::new(), Vec::new());
    let mut after = Vec::new();
    for placement in [Placement::OneCpu, Placement::SpinningGateway, Placement::FreeCore] {
        if !wants(Part::from(placement)) {
            continue;
        }
        let (subjects, sizes) = plan(placement);
        let mut loads = sizes.iter().map(|size| Load::Lockstep(*size)).collect::<Vec<_>>();
        if placement == Placement::OneCpu {
            loads.push(Load::Stream(rows::STREAMED));
        }
        let idle = (placement == Placement::OneCpu && !args.quick).then_some(IDLE);
        let work = rounds::Work {
            placement,
            subjects: &subjects,
            loads: &loads,
            programs: &args.programs,
            cores: &cores,
        };
        let outcome = rounds::measure(&work, effort, idle, &mut cells)?;
        missing.extend(outcome.missing.into_iter().map(|(subject, what)| (placement, subject, what)));
        if placement == Placement::OneCpu {
            after.extend(outcome.after);
        }
    }
    let describe = |placement: Placement| placement.describe(&cores);
    let asked = |placement| wants(Part::from(placement));
    all_rows.extend(rows::of_cells(&cells, asked, describe, &missing));
    if wants(Part::Hop) {
        let rounds = if args.quick { 1 } else { args.rounds.div_ceil(2) };
        let medians = micro::measure(&args.programs, &cores, rounds, args.seed)?;
        all_rows.extend(rows::of_hops(&medians));
    }
    for (subject, after) in after {
        all_rows.extend(rows_after(subject, &after));
    }
    if wants(Part::Calls) && !args.quick {
        all_rows.extend(rows_of_calls(args)?);
    }
    for counted in &args.counted {
        all_rows.push(counted_elsewhere(counted)?);
    }
    facts.insert("load average before, after", format!("{load}, {}", machine::load()));
    facts.insert("ticks stolen by the hypervisor", (machine::stolen() - stolen).to_string());
    facts.insert("rounds", args.rounds.to_string());
    let report = Report { facts, rows: all_rows, latencies: report::latencies(&cells) };
    report.write(&args.out, describe)?;
    if !args.quick {
        println!("{}", report::verdicts(&report.rows));
    }
    println!("{}", args.out.join("report.md").display());
    Ok(if args.check && report::has_miss(&report.rows) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn rows_after(subject: Subject, after: &After) -> Vec<Row> {
    let name = subject.name();
    let received = Some(format!("of {} received", after.received));
    let mut rows = vec![Row::count(
        &format!("{name}: payload copied in user space"),
        "bytes",
        Some(after.moved as f64),
        0.0,
        received,
    )];
    if let Some((sidecar, worker)) = after.idle {
        rows.push(Row::count(&format!("{name}: idle for 5 s"), "share of a core", Some(sidecar), 0.01, None));
        rows.push(Row::count(
            &format!("{name}: its worker, idle for 5 s"),
            "share of a core",
            Some(worker),
            0.01,
            None,
        ));
    }
    rows
}

fn rows_of_calls(args: &Args) -> io::Result<Vec<Row>> {
    let mut rows = Vec::new();
    for mode in &calls::MODES {
        let (value, note) = match calls::count(&args.programs.sidecar, mode) {
            Ok(count) => (Some(count.per_frame), None),
            Err(error) if error.kind() == io::ErrorKind::NotFound => (None, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        let limit = mode.limit + calls::SLACK;
        rows.push(Row::count(&format!("system calls a frame, {}", mode.name), "calls", value, limit, note));
    }
    Ok(rows)
}

fn counted_elsewhere(text: &str) -> io::Result<Row> {
    let parts = text.split('=').collect::<Vec<_>>();
    let [name, value, limit] = parts[..] else {
        return Err(io::Error::other(format!("`{text}` is not NAME=VALUE=LIMIT")));
    };
    let limit = limit.parse().map_err(io::Error::other)?;
    Ok(Row::count(name, "counted by its own test", value.parse().ok(), limit, None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Verdict;

    #[test]
    fn what_others_counted_is_a_row() {
        let row = counted_elsewhere("allocations a frame=0=0").unwrap();
        assert_eq!((row.verdict, row.what.as_str()), (Verdict::Pass, "allocations a frame"));
        assert_eq!(counted_elsewhere("x=unknown=1").unwrap().verdict, Verdict::Missing);
        assert!(counted_elsewhere("x=1").is_err());
    }

    #[test]
    fn every_subject_of_a_row_is_measured_in_its_placement() {
        for placement in [Placement::OneCpu, Placement::SpinningGateway, Placement::FreeCore] {
            let (subjects, sizes) = plan(placement);
            for (ours, theirs, size) in rows::needs(placement) {
                assert!(
                    subjects.contains(&ours) && subjects.contains(&theirs),
                    "{placement:?} {ours:?} {theirs:?}"
                );
                assert!(sizes.contains(&size), "{placement:?} {size}");
            }
        }
    }
}
