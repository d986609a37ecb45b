//! The rows of a report: what is compared with what, where, and what the design asks of it.
//!
//! A row of the design appears at every size and against every peer that it names. Rows without a target are there to
//! read.

use crate::micro::{self, Language, Medians, Micro, Stamped, Thinking};
use crate::rounds::{Burst, Cells, Load, Placement};
use crate::socket::Io;
use crate::stats::{self, Ratio, Verdict};
use crate::subjects::Subject;

/// One line.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Row {
    /// What is measured, with its size.
    pub(crate) what: String,
    /// What it is compared with, or the unit of a count.
    pub(crate) against: String,
    /// Who runs where; empty for counts.
    pub(crate) placement: String,
    /// Ours and theirs: microseconds, or the count alone.
    pub(crate) ours: Option<f64>,
    pub(crate) theirs: Option<f64>,
    pub(crate) ratio: Option<Ratio>,
    /// The ratio, or the count, may be as large as this.
    pub(crate) target: Option<f64>,
    pub(crate) verdict: Verdict,
    pub(crate) note: Option<String>,
}

impl Row {
    /// A count, which has no spread.
    pub(crate) fn count(what: &str, unit: &str, value: Option<f64>, most: f64, note: Option<String>) -> Self {
        let verdict = match value {
            None => Verdict::Missing,
            Some(value) if value <= most => Verdict::Pass,
            Some(_) => Verdict::Miss,
        };
        Self {
            what: what.to_owned(),
            against: unit.to_owned(),
            placement: String::new(),
            ours: value,
            theirs: None,
            ratio: None,
            target: Some(most),
            verdict,
            note,
        }
    }

    /// Ours as a ratio to theirs, nanoseconds of the same rounds.
    pub(crate) fn ratio(
        what: String,
        against: &str,
        placement: &str,
        (ours, theirs): (Option<&[f64]>, Option<&[f64]>),
        target: Option<f64>,
    ) -> Self {
        let ratio = ours.zip(theirs).and_then(|(ours, theirs)| Ratio::of(ours, theirs));
        let micros = |nanos: Option<&[f64]>| nanos.map(|nanos| stats::median(nanos) / 1000.0);
        let verdict = match (ratio, target) {
            (None, _) => Verdict::Missing,
            (Some(_), None) => Verdict::Info,
            (Some(ratio), Some(target)) => ratio.verdict(target),
        };
        let (ours, theirs) = (micros(ours), micros(theirs));
        let (against, placement) = (against.to_owned(), placement.to_owned());
        Self { what, against, placement, ours, theirs, ratio, target, verdict, note: None }
    }
}

/// Which part of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    P50,
    P99,
}

/// Rows that differ only in their sizes.
struct EndToEnd {
    placement: Placement,
    ours: Subject,
    theirs: Subject,
    sizes: &'static [usize],
    at: At,
    target: Option<f64>,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
/// The design's sizes, in bytes.
pub(crate) const SIZES: [usize; 8] = [0, 64, 16 * KIB, 87_040, 256 * KIB, 786_432, 2 * MIB, 7_000_000];
/// "From 256 KiB".
const LARGE: &[usize] = &[256 * KIB, 786_432, 2 * MIB, 7_000_000];
/// Sizes where the gateway spins.
pub(crate) const FEWER: [usize; 5] = [64, 16 * KIB, 256 * KIB, 786_432, 2 * MIB];
/// Sizes where a core is free.
pub(crate) const FREE: [usize; 5] = [64, 256 * KIB, 786_432, 2 * MIB, 7_000_000];

const PEERS: [Subject; 4] = [Subject::Picows, Subject::Beast, Subject::Fastwebsockets, Subject::Tungstenite];

fn end_to_end() -> Vec<EndToEnd> {
    use Placement::{FreeCore, OneCpu, SpinningGateway};
    use Subject::{
        Epoll, Floor, Relay, SocketEpoll, SocketUring, SpinningFloor, TokioUring, Uring, UringPython,
        Websockets,
    };
    let row =
        |placement, ours, theirs, sizes, at, target| EndToEnd { placement, ours, theirs, sizes, at, target };
    let p50 = |placement, ours, theirs, sizes, target| row(placement, ours, theirs, sizes, At::P50, target);
    let mut rows = vec![
        p50(OneCpu, Uring, Floor, &[64, 16 * KIB], Some(1.6)),
        p50(OneCpu, Uring, Floor, &[256 * KIB], Some(1.15)),
        p50(OneCpu, Uring, Floor, &[2 * MIB], Some(1.05)),
        p50(OneCpu, Uring, Floor, &[0, 87_040, 786_432, 7_000_000], None),
        p50(OneCpu, Epoll, Uring, &[64, 16 * KIB, 256 * KIB, 2 * MIB], Some(1.1)),
    ];
    for placement in [OneCpu, SpinningGateway] {
        for peer in PEERS {
            let sizes = if placement == OneCpu { LARGE } else { &LARGE[..3] };
            rows.push(p50(placement, Uring, peer, sizes, Some(1.1)));
        }
    }
    for peer in PEERS {
        rows.push(p50(FreeCore, Uring, peer, LARGE, Some(0.7)));
    }
    rows.push(p50(FreeCore, Uring, Floor, &FREE, None));
    for placement in [OneCpu, SpinningGateway] {
        for at in [At::P50, At::P99] {
            rows.push(row(placement, UringPython, Websockets, &[64, 2 * MIB], at, Some(0.5)));
        }
    }
    for socket in [SocketUring, SocketEpoll] {
        rows.push(p50(SpinningGateway, socket, Floor, &[64], Some(0.45)));
        rows.push(p50(SpinningGateway, socket, Floor, &FEWER[1..], None));
    }
    rows.push(p50(SpinningGateway, SpinningFloor, Floor, &FEWER, None));
    // What three processes cost at least, with nothing of ours in them.
    for placement in [OneCpu, SpinningGateway] {
        rows.push(p50(placement, Uring, Relay, &FEWER, None));
        rows.push(p50(placement, Relay, Floor, &FEWER, None));
    }
    rows.push(p50(OneCpu, Uring, TokioUring, &FEWER, None));
    rows
}

/// Who has to be measured in a placement, and at which size, for the rows there.
#[cfg(test)]
pub(crate) fn needs(placement: Placement) -> Vec<(Subject, Subject, usize)> {
    let rows = end_to_end().into_iter().filter(|row| row.placement == placement);
    rows.flat_map(|row| row.sizes.iter().map(move |size| (row.ours, row.theirs, *size))).collect()
}

/// What is streamed.
pub(crate) const STREAMED: usize = 2 * MIB;

/// All rows that cross a socket, of the placements that were asked for.
pub(crate) fn of_cells(
    cells: &Cells,
    asked: impl Fn(Placement) -> bool,
    place: impl Fn(Placement) -> String,
    missing: &[(Placement, Subject, String)],
) -> Vec<Row> {
    let mut rows = Vec::new();
    let why = |placement, subjects: [Subject; 2]| {
        missing
            .iter()
            .find(|(at, subject, _)| *at == placement && subjects.contains(subject))
            .map(|(_, subject, what)| format!("{} is missing: {what}", subject.name()))
    };
    let mut push = |placement, ours: Subject, theirs: Subject, load, at, target| {
        let part = |subject| cells.get(&(placement, subject, load)).map(|bursts| values(bursts, at));
        let (first, second) = (part(ours), part(theirs));
        let form = match (load, at) {
            (Load::Stream(size), _) => format!("{} streamed", bytes(size)),
            (Load::Lockstep(size), At::P50) => bytes(size),
            (Load::Lockstep(size), At::P99) => format!("{}, p99", bytes(size)),
        };
        let what = format!("{}, {form}", ours.name());
        let mut row =
            Row::ratio(what, theirs.name(), &place(placement), (first.as_deref(), second.as_deref()), target);
        row.note = why(placement, [ours, theirs]);
        rows.push(row);
    };
    for EndToEnd { placement, ours, theirs, sizes, at, target } in end_to_end() {
        if !asked(placement) {
            continue;
        }
        for size in sizes {
            push(placement, ours, theirs, Load::Lockstep(*size), at, target);
        }
    }
    for ours in [Subject::Uring, Subject::Epoll].into_iter().filter(|_| asked(Placement::OneCpu)) {
        push(Placement::OneCpu, ours, Subject::Floor, Load::Stream(STREAMED), At::P50, None);
    }
    rows
}

/// One number a round; for the tail, one for each group of rounds, since a burst has too few exchanges for it.
fn values(bursts: &[Burst], at: At) -> Vec<f64> {
    match at {
        At::P50 => bursts.iter().map(Burst::median).collect(),
        At::P99 => bursts.chunks(bursts.len().div_ceil(10)).map(tail).collect(),
    }
}

fn tail(bursts: &[Burst]) -> f64 {
    let mut all = bursts.iter().flat_map(|burst| burst.0.iter().copied()).collect::<Vec<_>>();
    all.sort_by(f64::total_cmp);
    stats::quantile(&all, 0.99).unwrap_or(0.0)
}

/// All rows of the hop.
pub(crate) fn of_hops(medians: &Medians) -> Vec<Row> {
    let mut rows = Vec::new();
    let spinning = "both sides spinning, a core each";
    push_handler(&mut rows, medians);
    let mut push = |what: &str, ours: Micro, theirs: Micro, against: &str, placement: &str, target| {
        let part = |micro| medians.rounds.get(&micro).map(Vec::as_slice);
        let mut row = Row::ratio(what.to_owned(), against, placement, (part(ours), part(theirs)), target);
        row.note = medians.why_missing([ours, theirs]);
        rows.push(row);
    };
    for size in micro::SIZES {
        let hop = |touch, stamps| Micro::Hop { bytes: size, touch, stamps };
        let what = |form: &str| format!("region hop, {}{form}", bytes(size));
        let line = "cache-line ping-pong";
        push(&what(", no stamps"), hop(false, Stamped::No), Micro::CacheLine, line, spinning, Some(2.0));
        push(&what(", stamped"), hop(false, Stamped::Yes), Micro::CacheLine, line, spinning, Some(3.0));
        push(
            &what(": what stamps cost"),
            hop(false, Stamped::Yes),
            hop(false, Stamped::No),
            "no stamps",
            spinning,
            None,
        );
        for (touch, form, target) in [(false, "", Some(0.35)), (true, ", written and read", None)] {
            let ours = hop(touch, Stamped::Yes);
            let theirs = Micro::PublishSubscribe { bytes: size, touch };
            push(&what(form), ours, theirs, "iceoryx2 publish/subscribe", spinning, target);
            let theirs = Micro::RequestResponse { bytes: size, touch };
            push(&what(form), ours, theirs, "iceoryx2 request/response", spinning, None);
        }
    }
    for (io, name) in [(Io::Uring, "uring"), (Io::Epoll, "epoll")] {
        let what = format!("region hop, blocking, {name}");
        let (ours, theirs) = (Micro::Blocking(io), Micro::FutexAndEventfd);
        push(&what, ours, theirs, "futex + eventfd ping-pong", "all on one CPU", Some(1.15));
    }
    for (thinking, what, target) in [
        (Thinking::Adaptive, "region hop, worker thinks 100 us, adaptive", Some(1.02)),
        (Thinking::Blocking, "region hop, worker thinks 100 us, blocking", None),
    ] {
        let ours = medians.rounds.get(&Micro::Thinking(thinking));
        let think = f64::from(micro::THINK_US) * 1000.0;
        let theirs = ours.map(|ours| vec![think; ours.len()]);
        let pair = (ours.map(Vec::as_slice), theirs.as_deref());
        let mut row = Row::ratio(what.to_owned(), "its thinking time", "a core each", pair, target);
        row.note = medians.why_missing([Micro::Thinking(thinking)]);
        rows.push(row);
    }
    rows
}

/// Microseconds that a Python worker may cost on top of the one in Rust.
const PYTHON_EXTRA: f64 = 3.0;

/// What an empty handler in Python costs on top of one in Rust, last byte to action.
fn push_handler(rows: &mut Vec<Row>, medians: &Medians) {
    let [rust, python] = [Language::Rust, Language::Python].map(Micro::Handler);
    let micros = |micro| {
        let nanos = medians.rounds.get(&micro)?;
        Some(nanos.iter().map(|nanos| nanos / 1000.0).collect::<Vec<_>>())
    };
    let (ours, theirs) = (micros(python), micros(rust));
    let extra = ours.as_ref().zip(theirs.as_ref()).and_then(|(ours, theirs)| Ratio::difference(ours, theirs));
    rows.push(Row {
        what: "Python worker on top of the one in Rust, empty handler, 64 B".to_owned(),
        against: "microseconds more".to_owned(),
        placement: "region hop, both sides adaptive, a core each".to_owned(),
        ours: ours.as_deref().map(stats::median),
        theirs: theirs.as_deref().map(stats::median),
        ratio: extra,
        target: Some(PYTHON_EXTRA),
        verdict: extra.map_or(Verdict::Missing, |extra| extra.verdict(PYTHON_EXTRA)),
        note: medians.why_missing([rust, python]),
    });
}

/// A size as people say it.
pub(crate) fn bytes(size: usize) -> String {
    match size {
        786_432 => "0.75 MB".to_owned(),
        7_000_000 => "7 MB".to_owned(),
        87_040 => "85 KB".to_owned(),
        0..1024 => format!("{size} B"),
        _ if size.is_multiple_of(MIB) => format!("{} MiB", size / MIB),
        _ => format!("{} KiB", size / KIB),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Every row of the design's table of speeds that this harness can measure, as placement, ours, theirs, target.
    #[test]
    fn no_row_of_the_design_is_dropped_or_loosened() {
        let rows = end_to_end();
        let has = |placement, theirs, size, at, target: f64| {
            let found = rows.iter().any(|row| {
                row.placement == placement
                    && row.theirs == theirs
                    && row.at == at
                    && row.sizes.contains(&size)
                    && row.target == Some(target)
            });
            assert!(found, "{placement:?} {theirs:?} {size} {target}");
        };
        for (size, target) in [(64, 1.6), (16 * KIB, 1.6), (256 * KIB, 1.15), (2 * MIB, 1.05)] {
            has(Placement::OneCpu, Subject::Floor, size, At::P50, target);
        }
        for peer in PEERS {
            for size in [256 * KIB, 2 * MIB] {
                has(Placement::OneCpu, peer, size, At::P50, 1.1);
                has(Placement::SpinningGateway, peer, size, At::P50, 1.1);
                has(Placement::FreeCore, peer, size, At::P50, 0.7);
            }
        }
        for at in [At::P50, At::P99] {
            for size in [64, 2 * MIB] {
                has(Placement::OneCpu, Subject::Websockets, size, at, 0.5);
            }
        }
        has(Placement::SpinningGateway, Subject::Floor, 64, At::P50, 0.45);
    }

    #[test]
    fn what_was_not_measured_is_missing_and_says_why() {
        let missing = [(Placement::OneCpu, Subject::Beast, "libboost-dev or g++".to_owned())];
        let rows = of_cells(&HashMap::new(), |_| true, |_| String::new(), &missing);
        assert!(rows.iter().all(|row| row.verdict == Verdict::Missing));
        let beast = rows.iter().find(|row| row.against == Subject::Beast.name()).unwrap();
        assert!(beast.note.as_ref().unwrap().contains("libboost-dev"));
        assert!(of_hops(&Medians::default()).iter().all(|row| row.verdict == Verdict::Missing));
    }

    #[test]
    fn a_row_compares_rounds_with_rounds() {
        let mut cells = HashMap::new();
        let burst =
            |nanos: f64| (0..10).map(|round| Burst(vec![nanos * f64::from(round + 1)])).collect::<Vec<_>>();
        cells.insert((Placement::OneCpu, Subject::Uring, Load::Lockstep(64)), burst(3000.0));
        cells.insert((Placement::OneCpu, Subject::Floor, Load::Lockstep(64)), burst(2000.0));
        let rows = of_cells(&cells, |_| true, |_| String::new(), &[]);
        let row = rows.iter().find(|row| row.verdict == Verdict::Pass).unwrap();
        assert_eq!(row.ratio.unwrap().median, 1.5);
        assert_eq!(row.target, Some(1.6));
        assert_eq!(Row::count("x", "calls", Some(3.0), 2.0, None).verdict, Verdict::Miss);
    }

    #[test]
    fn what_was_not_asked_for_has_no_row() {
        assert!(of_cells(&HashMap::new(), |_| false, |_| String::new(), &[]).is_empty());
    }

    /// The design's section on speed, by hand.
    #[test]
    fn every_hop_has_the_designs_target() {
        let rows = of_hops(&Medians::default());
        let mut targets = rows
            .iter()
            .filter_map(|row| Some((row.what.as_str(), row.against.as_str(), row.target?)))
            .collect::<Vec<_>>();
        let mut expected = Vec::new();
        let sizes = ["64 B", "64 KiB", "1 MiB"];
        let [plain, stamped, whole] = [", no stamps", ", stamped", ""]
            .map(|form| sizes.map(|size| format!("region hop, {size}{form}")));
        for ((plain, stamped), whole) in plain.iter().zip(&stamped).zip(&whole) {
            expected.push((plain.as_str(), "cache-line ping-pong", 2.0));
            expected.push((stamped, "cache-line ping-pong", 3.0));
            expected.push((whole, "iceoryx2 publish/subscribe", 0.35));
        }
        expected.push(("region hop, blocking, uring", "futex + eventfd ping-pong", 1.15));
        expected.push(("region hop, blocking, epoll", "futex + eventfd ping-pong", 1.15));
        expected.push(("region hop, worker thinks 100 us, adaptive", "its thinking time", 1.02));
        let python = "Python worker on top of the one in Rust, empty handler, 64 B";
        expected.push((python, "microseconds more", 3.0));
        targets.sort_by_key(|row| (row.0, row.1));
        expected.sort_by_key(|row| (row.0, row.1));
        assert_eq!(targets, expected);
    }
}
