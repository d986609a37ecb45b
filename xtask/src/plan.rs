//! Goes through steps in order: which are chosen, what each one needs, and what came of it.
//!
//! A failed step stops only those that need it, so that one run shows every failure.

use core::fmt;
use core::time::Duration;

use crate::clock::Stopwatch;
use crate::runner::Stop;

/// One step over whatever the steps share (`C`).
pub(crate) struct Step<C> {
    /// What `--only` calls it.
    pub(crate) name: &'static str,
    /// What it does, in a few words.
    pub(crate) title: &'static str,
    /// Earlier steps whose results it uses.
    pub(crate) needs: &'static [&'static str],
    /// Whether processes that outlive it are a failure.
    pub(crate) leftovers: Leftovers,
    /// What it takes of the machine; steps that differ in that run beside each other.
    pub(crate) takes: Takes,
    pub(crate) run: fn(&C) -> Result<(), Stop>,
}

/// What a process means that is still there after its step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Leftovers {
    /// A compiler's daemon, for example.
    Fine,
    /// The step started our own programs: something did not end what it started.
    AFailure,
}

/// How many processors a step wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Takes {
    /// All there are: compilers.
    All,
    /// One at most: it waits for timers and for processes to end, or searches by itself.
    Little,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// With the reason.
    Failed(String),
    /// With the reason.
    Skipped(String),
}

impl Verdict {
    /// On a step that is not chosen.
    pub(crate) fn not_asked_for() -> Self {
        Self::Skipped("not asked for".to_owned())
    }

    /// The first word and the reason, as [`Verdict::read`] has them.
    pub(crate) fn write(&self) -> String {
        match self {
            Self::Passed => "passed ".to_owned(),
            Self::Failed(reason) => format!("failed {reason}"),
            Self::Skipped(reason) => format!("skipped {reason}"),
        }
    }

    /// What another process wrote; nothing that makes sense is a failure.
    pub(crate) fn read(text: &str) -> Self {
        match text.split_once(' ') {
            Some(("passed", _)) => Self::Passed,
            Some(("skipped", reason)) => Self::Skipped(reason.to_owned()),
            Some(("failed", reason)) => Self::Failed(reason.to_owned()),
            _ => Self::Failed("ended without a verdict".to_owned()),
        }
    }
}

/// The rows of the table, in the order of the steps.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    rows: Vec<(&'static str, Verdict, Duration)>,
    /// The signal that ended the run early.
    pub(crate) interrupted: Option<i32>,
}

impl Report {
    /// What became of a step.
    pub(crate) fn push(&mut self, name: &'static str, verdict: Verdict, took: Duration) {
        self.rows.push((name, verdict, took));
    }

    /// The verdict on a step, if there is one already.
    pub(crate) fn verdict(&self, name: &str) -> Option<&Verdict> {
        self.rows.iter().find(|(row, ..)| *row == name).map(|(_, verdict, _)| verdict)
    }

    /// Brings the rows into the order of the steps.
    pub(crate) fn sort<C>(&mut self, steps: &[Step<C>]) {
        self.rows.sort_by_key(|(row, ..)| steps.iter().position(|step| step.name == *row));
    }

    /// Whether no step failed.
    pub(crate) fn all_passed(&self) -> bool {
        !self.rows.iter().any(|(_, verdict, _)| matches!(verdict, Verdict::Failed(_)))
    }

    /// Whether a step failed.
    pub(crate) fn failed(&self, name: &str) -> bool {
        matches!(self.verdict(name), Some(Verdict::Failed(_)))
    }

    fn count(&self, wanted: fn(&Verdict) -> bool) -> usize {
        self.rows.iter().filter(|(_, verdict, _)| wanted(verdict)).count()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max("step".len());
        writeln!(f, "{:width$}  verdict  seconds", "step")?;
        for (name, verdict, took) in &self.rows {
            let (word, reason) = match verdict {
                Verdict::Passed => ("passed", ""),
                Verdict::Failed(reason) => ("FAILED", reason.as_str()),
                Verdict::Skipped(reason) => ("skipped", reason.as_str()),
            };
            let line = format!("{name:width$}  {word:7}  {:7.1}  {reason}", took.as_secs_f64());
            writeln!(f, "{}", line.trim_end())?;
        }
        let passed = self.count(|verdict| matches!(verdict, Verdict::Passed));
        let failed = self.count(|verdict| matches!(verdict, Verdict::Failed(_)));
        let skipped = self.count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// The steps named in `only` and those they need; every step if `only` is empty.
///
/// # Errors
/// A name that no step has.
pub(crate) fn choose<C>(steps: &[Step<C>], only: &[String]) -> Result<Vec<&'static str>, String> {
    if only.is_empty() {
        return Ok(steps.iter().map(|step| step.name).collect());
    }
    let mut chosen = Vec::new();
    let mut open = only.iter().map(String::as_str).collect::<Vec<_>>();
    while let Some(name) = open.pop() {
        let step = steps
            .iter()
            .find(|step| step.name == name)
            .ok_or_else(|| format!("no step is called `{name}`; `cargo xtask test --list` shows them"))?;
        if !chosen.contains(&step.name) {
            chosen.push(step.name);
            open.extend(step.needs);
        }
    }
    Ok(chosen)
}

/// Why a step was not tried.
pub(crate) fn without(need: &str) -> String {
    format!("needs `{need}`, which failed")
}

/// Has the chosen steps done by `attempt`; ends early only when we are told to.
pub(crate) fn run<C>(
    steps: &[Step<C>],
    chosen: &[&str],
    attempt: impl Fn(&Step<C>) -> Result<(), Stop>,
) -> Report {
    let mut report = Report::default();
    for (number, step) in steps.iter().enumerate() {
        if !chosen.contains(&step.name) {
            report.push(step.name, Verdict::not_asked_for(), Duration::ZERO);
            continue;
        }
        println!("\n== {} ({} of {}): {}", step.name, number + 1, steps.len(), step.title);
        let watch = Stopwatch::start();
        let result = match step.needs.iter().find(|need| report.failed(need)) {
            Some(need) => Err(Stop::Failed(without(need))),
            None => attempt(step),
        };
        let (verdict, word) = match result {
            Ok(()) => (Verdict::Passed, "passed".to_owned()),
            Err(Stop::Failed(reason)) => {
                let word = format!("FAILED: {reason}");
                (Verdict::Failed(reason), word)
            }
            Err(Stop::Skipped(reason)) => (Verdict::Skipped(reason.to_owned()), format!("skipped: {reason}")),
            Err(Stop::Interrupted(signal)) => {
                report.interrupted = Some(signal);
                let reason = format!("interrupted by signal {signal}");
                (Verdict::Failed(reason.clone()), reason)
            }
        };
        println!("-- {} {word} ({:.1} s)", step.name, watch.elapsed().as_secs_f64());
        report.push(step.name, verdict, watch.elapsed());
        if report.interrupted.is_some() {
            break;
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(
        name: &'static str,
        needs: &'static [&'static str],
        run: fn(&()) -> Result<(), Stop>,
    ) -> Step<()> {
        Step { name, title: "a step", needs, leftovers: Leftovers::Fine, takes: Takes::All, run }
    }

    fn steps() -> [Step<()>; 4] {
        [
            step("a", &[], |()| Ok(())),
            step("b", &["a"], |()| Err(Stop::failed("broken"))),
            step("c", &["b"], |()| Ok(())),
            step("d", &["a"], |()| Ok(())),
        ]
    }

    fn attempt(step: &Step<()>) -> Result<(), Stop> {
        (step.run)(&())
    }

    fn chosen(only: &[&str]) -> Result<Vec<&'static str>, String> {
        choose(&steps(), &only.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_choice_brings_what_it_needs() {
        assert_eq!(chosen(&[]).unwrap(), ["a", "b", "c", "d"]);
        assert_eq!(chosen(&["c"]).unwrap(), ["c", "b", "a"]);
        assert_eq!(chosen(&["d", "d"]).unwrap(), ["d", "a"]);
        assert!(chosen(&["e"]).unwrap_err().contains("`e`"));
    }

    #[test]
    fn a_failure_stops_only_what_needs_it() {
        let report = run(&steps(), &["a", "b", "c", "d"], attempt);
        let verdicts = report.rows.iter().map(|(_, verdict, _)| verdict.clone()).collect::<Vec<_>>();
        let failed = |reason: &str| Verdict::Failed(reason.to_owned());
        let needs = failed("needs `b`, which failed");
        assert_eq!(verdicts, [Verdict::Passed, failed("broken"), needs, Verdict::Passed]);
        assert!(!report.all_passed());
        assert!(report.to_string().ends_with("\n2 passed, 2 failed, 0 skipped"), "{report}");
    }

    #[test]
    fn what_was_not_asked_for_is_skipped() {
        let report = run(&steps(), &["d", "a"], attempt);
        assert!(report.all_passed());
        assert!(report.to_string().ends_with("\n2 passed, 0 failed, 2 skipped"), "{report}");
    }

    #[test]
    fn a_verdict_is_read_as_it_was_written() {
        for verdict in
            [Verdict::Passed, Verdict::Failed("two words".to_owned()), Verdict::Skipped("no GPU".to_owned())]
        {
            assert_eq!(Verdict::read(&verdict.write()), verdict);
        }
        assert!(matches!(Verdict::read(""), Verdict::Failed(_)));
    }

    #[test]
    fn an_interruption_ends_the_run() {
        let steps = [step("a", &[], |()| Err(Stop::Interrupted(2))), step("b", &[], |()| Ok(()))];
        let report = run(&steps, &["a", "b"], attempt);
        assert_eq!((report.interrupted, report.rows.len(), report.all_passed()), (Some(2), 1, false));
    }
}
