//! Medians, ratios of what was measured in the same round, and what can be said about them.

use core::fmt;

/// A ratio, or a difference, over rounds: its median, and the interval that holds the true median with 95 % (order statistics, no
/// assumption about a distribution).
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
    pub(crate) rounds: usize,
}

/// What a measurement says about a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    /// The whole interval is within the target.
    Pass,
    /// The whole interval is beyond it.
    Miss,
    /// The target lies within the interval, or there are too few rounds.
    Undecided,
    /// Not measured; the row says why.
    Missing,
    /// There is no target.
    Info,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pass => "pass",
            Self::Miss => "MISS",
            Self::Undecided => "undecided",
            Self::Missing => "missing",
            Self::Info => "",
        })
    }
}

/// Fewer rounds have no 95 % interval.
const LEAST_ROUNDS: usize = 6;

impl Ratio {
    /// `ours[i] / theirs[i]` were measured in the same round. `None` without a round.
    pub(crate) fn of(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        Self::by(ours, theirs, |ours, theirs| ours / theirs)
    }

    fn by(ours: &[f64], theirs: &[f64], compare: impl Fn(f64, f64) -> f64) -> Option<Self> {
        let mut all =
            ours.iter().zip(theirs).map(|(ours, theirs)| compare(*ours, *theirs)).collect::<Vec<_>>();
        all.sort_by(f64::total_cmp);
        let (low, high) = interval(all.len())?;
        Some(Self { median: quantile(&all, 0.5)?, low: all[low], high: all[high], rounds: all.len() })
    }

    /// The same for the difference, in the unit of both.
    pub(crate) fn difference(ours: &[f64], theirs: &[f64]) -> Option<Self> {
        Self::by(ours, theirs, |ours, theirs| ours - theirs)
    }

    /// At most `target`?
    pub(crate) fn verdict(&self, target: f64) -> Verdict {
        match () {
            () if self.rounds < LEAST_ROUNDS => Verdict::Undecided,
            () if self.high <= target => Verdict::Pass,
            () if self.low > target => Verdict::Miss,
            () => Verdict::Undecided,
        }
    }
}

/// Indices into `rounds` sorted values between which the median lies with 95 %; the whole range where that is too much
/// to ask.
fn interval(rounds: usize) -> Option<(usize, usize)> {
    let last = rounds.checked_sub(1)?;
    // P(fewer than k of n values lie below the median) for fair coins; at most 2.5 % on each side.
    let mut probability = 0.5_f64.powi(i32::try_from(rounds).ok()?);
    let mut below = 0.0;
    let mut low = 0;
    for k in 0..rounds / 2 {
        below += probability;
        if below > 0.025 {
            break;
        }
        low = k;
        probability *= (rounds - k) as f64 / (k + 1) as f64;
    }
    Some((low, last - low))
}

/// The value below which `share` of the sorted values lie. `None` without values.
pub(crate) fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = (last as f64 * share).round() as usize;
    Some(sorted[at.min(last)])
}

/// The median of values in any order; 0 without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    quantile(&sorted, 0.5).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_tables() {
        // Known order-statistic ranks for 95 %, from 1: n = 6: 1..6, 10: 2..9, 20: 6..15, 40: 14..27.
        for (rounds, low, high) in [(6, 1, 6), (10, 2, 9), (20, 6, 15), (40, 14, 27)] {
            assert_eq!(interval(rounds), Some((low - 1, high - 1)), "{rounds}");
        }
        assert_eq!(interval(1), Some((0, 0)));
        assert_eq!(interval(0), None);
    }

    #[test]
    fn a_verdict_needs_the_whole_interval_on_one_side() {
        let ones = [1.0; 20];
        let ratio = Ratio::of(&ones, &ones).unwrap();
        assert_eq!((ratio.verdict(1.0), ratio.verdict(0.9)), (Verdict::Pass, Verdict::Miss));
        let spread = (0..20).map(|at| 1.0 + f64::from(at) / 10.0).collect::<Vec<_>>();
        let ratio = Ratio::of(&spread, &ones).unwrap();
        assert_eq!(ratio.verdict(ratio.median), Verdict::Undecided);
        assert_eq!(Ratio::of(&ones[..5], &ones).unwrap().verdict(9.0), Verdict::Undecided);
        assert_eq!(Ratio::of(&[], &[]), None);
    }

    #[test]
    fn quantiles_are_members() {
        let sorted = [1.0, 2.0, 3.0, 4.0];
        assert_eq!(quantile(&sorted, 0.0), Some(1.0));
        assert_eq!(quantile(&sorted, 0.99), Some(4.0));
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
    }
}
