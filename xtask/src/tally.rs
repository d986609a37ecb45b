//! What tests counted: lines `tally NAME=NUMBER ...` of their output, summed up by name.

use core::fmt;
use std::collections::BTreeMap;

/// Sums so far.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally(BTreeMap<String, u64>);

impl Tally {
    /// Adds what a line says, if it is one of these. It may stand behind a test's name.
    pub(crate) fn read(&mut self, line: &str) {
        let Some((_, counts)) = line.split_once("tally ") else { return };
        for count in counts.split_whitespace() {
            if let Some((name, number)) = count.split_once('=')
                && let Ok(number) = number.parse::<u64>()
            {
                *self.0.entry(name.to_owned()).or_default() += number;
            }
        }
    }

    fn of(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or(0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |name| self.of(name);
        writeln!(f, "crashes survived   {} of {}", of("survived"), of("crashes"))?;
        writeln!(f, "cases solved       {} of {}", of("solved"), of("cases"))?;
        writeln!(f, "  not, explained   {} (an exchange lost with nobody to ask again)", of("explained"))?;
        writeln!(f, "windows expired    {} of {} that had to", of("expired"), of("long_cuts"))?;
        writeln!(f, "frames redelivered {}", of("redelivered"))?;
        writeln!(f, "sent once more     {} (unfreeze)", of("unfrozen"))?;
        write!(f, "actions sent twice {}", of("twice"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_summed_up_by_name() {
        let mut tally = Tally::default();
        for line in
            ["tally crashes=3 survived=2 twice=0", "test a ... tally crashes=4 survived=4", "nothing=1"]
        {
            tally.read(line);
        }
        assert_eq!((tally.of("crashes"), tally.of("survived"), tally.of("nothing")), (7, 6, 0));
        assert!(tally.to_string().starts_with("crashes survived   6 of 7\n"));
        assert!(tally.to_string().ends_with("\nactions sent twice 0"));
    }
}
