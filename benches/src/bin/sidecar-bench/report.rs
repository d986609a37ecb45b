//! The report: one JSON file for programs, one Markdown file for people, one picture.

use core::fmt::Write as _;
use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::chart;
use crate::rounds::{Cells, Load, Placement};
use crate::rows::{Row, bytes};
use crate::stats::{self, Verdict};
use crate::subjects::Subject;

/// Everything that a run found out.
#[derive(Debug)]
pub(crate) struct Report {
    /// About the machine, the versions, the load while it ran.
    pub(crate) facts: BTreeMap<&'static str, String>,
    pub(crate) rows: Vec<Row>,
    pub(crate) latencies: Vec<Latency>,
}

/// One cell: microseconds.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Latency {
    pub(crate) placement: Placement,
    pub(crate) subject: &'static str,
    pub(crate) bytes: usize,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) exchanges: usize,
    #[serde(skip)]
    pub(crate) who: Subject,
}

/// The latencies in lockstep, sorted.
pub(crate) fn latencies(cells: &Cells) -> Vec<Latency> {
    let mut latencies = Vec::new();
    for ((placement, subject, load), bursts) in cells {
        let Load::Lockstep(bytes) = *load else { continue };
        let mut all = bursts.iter().flat_map(|burst| burst.0.iter().copied()).collect::<Vec<_>>();
        all.sort_by(f64::total_cmp);
        let at = |share| stats::quantile(&all, share).unwrap_or(0.0) / 1000.0;
        latencies.push(Latency {
            placement: *placement,
            subject: subject.name(),
            bytes,
            p50: at(0.5),
            p99: at(0.99),
            exchanges: all.len(),
            who: *subject,
        });
    }
    latencies.sort_by_key(|cell| (cell.placement as u8, cell.who as u8, cell.bytes));
    latencies
}

impl Report {
    /// Writes `report.json`, `report.md` and `latency.svg` into `directory`.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub(crate) fn write(&self, directory: &Path, describe: impl Fn(Placement) -> String) -> io::Result<()> {
        std::fs::create_dir_all(directory)?;
        let json = serde_json::json!({
            "machine": self.facts,
            "rows": self.rows,
            "latencies_us": self.latencies,
        });
        std::fs::write(directory.join("report.json"), serde_json::to_vec_pretty(&json)?)?;
        std::fs::write(directory.join("report.md"), self.markdown(describe))?;
        std::fs::write(directory.join("latency.svg"), chart::draw(&self.latencies, Placement::OneCpu))
    }

    fn markdown(&self, describe: impl Fn(Placement) -> String) -> String {
        let mut text = String::from("# Measurements\n\n");
        facts_table(&mut text, &self.facts);
        row_tables(&mut text, &self.rows);
        for placement in [Placement::OneCpu, Placement::SpinningGateway, Placement::FreeCore] {
            let heading = describe(placement);
            let _ = writeln!(
                text,
                "\n## Latency, {heading}\n\nMicroseconds, p50 (p99); in brackets p50 as a ratio to the first row.\n"
            );
            self.latency_table(&mut text, placement);
        }
        text
    }

    fn latency_table(&self, text: &mut String, placement: Placement) {
        let cells = self.latencies.iter().filter(|cell| cell.placement == placement).collect::<Vec<_>>();
        let mut sizes = cells.iter().map(|cell| cell.bytes).collect::<Vec<_>>();
        sizes.sort_unstable();
        sizes.dedup();
        let mut subjects = cells.iter().map(|cell| cell.who).collect::<Vec<_>>();
        subjects.dedup();
        let names = sizes.iter().map(|size| bytes(*size)).collect::<Vec<_>>().join(" | ");
        let _ = writeln!(text, "| | {names} |\n| --- |{}", " ---: |".repeat(sizes.len()));
        for who in &subjects {
            let _ = write!(text, "| {} |", who.name());
            for size in &sizes {
                let find = |who| cells.iter().find(|cell| cell.who == who && cell.bytes == *size);
                let first = subjects.first().and_then(|first| find(*first));
                let _ = match find(*who) {
                    None => write!(text, " |"),
                    Some(cell) => {
                        let ratio =
                            first.map_or(String::new(), |first| format!(" [{:.2}]", cell.p50 / first.p50));
                        write!(text, " {} ({}){ratio} |", short(cell.p50), short(cell.p99))
                    }
                };
            }
            text.push('\n');
        }
    }
}

/// Each row with a target: what, target, measured, verdict.
pub(crate) fn verdicts(rows: &[Row]) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| row.target.is_some()) {
        let target = row.target.map_or(String::new(), |target| format!("<= {target}"));
        let what = format!("{} / {}", row.what, row.against);
        let _ = writeln!(text, "{:9}  {:70} {target:>8}  {}", row.verdict.to_string(), what, measured(row));
    }
    let count = |verdict| rows.iter().filter(|row| row.verdict == verdict && row.target.is_some()).count();
    let _ = write!(
        text,
        "{} pass, {} missed, {} undecided, {} not measured here",
        count(Verdict::Pass),
        count(Verdict::Miss),
        count(Verdict::Undecided),
        count(Verdict::Missing)
    );
    text
}

/// Whether a target was missed.
pub(crate) fn has_miss(rows: &[Row]) -> bool {
    rows.iter().any(|row| row.verdict == Verdict::Miss)
}

/// What is known of the machine.
pub(crate) fn facts_table(text: &mut String, facts: &BTreeMap<&'static str, String>) {
    text.push_str("| | |\n| --- | --- |\n");
    for (name, value) in facts {
        let _ = writeln!(text, "| {name} | {value} |");
    }
}

/// Those with a target, then the others.
pub(crate) fn row_tables(text: &mut String, rows: &[Row]) {
    text.push_str(
        "\nA ratio is the median of ratios taken within a round, with its 95 % interval. A verdict is given only \
         where the whole interval is on one side of the target.\n\n## Targets\n\n\
         | what | against | placement | ours | theirs | ratio or count | target | verdict |\n\
         | --- | --- | --- | ---: | ---: | ---: | ---: | --- |\n",
    );
    row_table(text, rows, |row| row.target.is_some());
    text.push_str(
        "\n## For comparison\n\n\
         | what | against | placement | ours | theirs | ratio | | |\n\
         | --- | --- | --- | ---: | ---: | ---: | --- | --- |\n",
    );
    row_table(text, rows, |row| row.target.is_none());
}

fn row_table(text: &mut String, rows: &[Row], wanted: fn(&Row) -> bool) {
    for row in rows.iter().filter(|row| wanted(row)) {
        let micros = |value: Option<f64>| value.map_or(String::new(), |value| format!("{} us", short(value)));
        let (ours, theirs) =
            if row.ratio.is_some() { (micros(row.ours), micros(row.theirs)) } else { Default::default() };
        let target = row.target.map_or(String::new(), |target| format!("<= {target}"));
        let Row { what, against, placement, verdict, .. } = row;
        let _ = writeln!(
            text,
            "| {what} | {against} | {placement} | {ours} | {theirs} | {} | {target} | {verdict} |",
            measured(row)
        );
    }
}

fn measured(row: &Row) -> String {
    let note = row.note.as_ref().map_or(String::new(), |note| format!(" ({note})"));
    match (&row.ratio, row.ours) {
        (Some(ratio), _) => format!("{:.3} [{:.3}, {:.3}]{note}", ratio.median, ratio.low, ratio.high),
        (None, Some(count)) => format!("{}{note}", short(count)),
        (None, None) => format!("not measured{note}"),
    }
}

/// Three digits are what a measurement is worth.
pub(crate) fn short(value: f64) -> String {
    match value {
        0.0 => "0".to_owned(),
        value if value < 0.01 => format!("{value:.4}"),
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_printed_and_a_miss_is_seen() {
        let miss = Row::count("copies", "bytes", Some(7.0), 0.0, None);
        let missing = Row::count("x", "calls", None, 1.0, Some("strace is missing".to_owned()));
        let mut report = Report {
            facts: BTreeMap::from([("cores", "2".to_owned())]),
            rows: vec![miss, missing],
            latencies: Vec::new(),
        };
        assert!(has_miss(&report.rows));
        let text = verdicts(&report.rows);
        assert!(text.contains("MISS") && text.contains("strace is missing"), "{text}");
        assert!(text.contains("0 pass, 1 missed, 0 undecided, 1 not measured"), "{text}");
        let markdown = report.markdown(|placement| format!("{placement:?}"));
        assert!(markdown.contains("| copies | bytes |") && markdown.contains("| cores | 2 |"), "{markdown}");
        report.rows.remove(0);
        assert!(!has_miss(&report.rows));
    }
}
