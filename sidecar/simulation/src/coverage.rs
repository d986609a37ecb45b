//! What was hit: faults by kind, situations of the design's section 4, ends.

use std::collections::BTreeMap;
use std::fmt;

use crate::fault::Fault;

/// Counts over any number of schedules.
#[derive(Clone, Debug, Default)]
pub struct Coverage {
    /// Schedules.
    pub schedules: u64,
    /// Events of all of them.
    pub steps: u64,
    /// Turns of the frame loop.
    pub turns: u64,
    /// Lives of sidecars.
    pub lives: u64,
    /// Nanoseconds of virtual time.
    pub virtual_nanos: u64,
    faults: BTreeMap<&'static str, u64>,
    rows: BTreeMap<&'static str, u64>,
    ends: BTreeMap<String, u64>,
}

impl Coverage {
    pub(crate) fn fault(&mut self, fault: Fault) {
        *self.faults.entry(fault.name()).or_default() += 1;
    }

    pub(crate) fn row(&mut self, row: &'static str) {
        *self.rows.entry(row).or_default() += 1;
    }

    pub(crate) fn end(&mut self, end: String) {
        *self.ends.entry(end).or_default() += 1;
    }

    /// Takes in another one's counts.
    pub fn add(&mut self, other: &Self) {
        self.schedules += other.schedules;
        self.steps += other.steps;
        self.turns += other.turns;
        self.lives += other.lives;
        self.virtual_nanos += other.virtual_nanos;
        for (to, from) in [(&mut self.faults, &other.faults), (&mut self.rows, &other.rows)] {
            for (name, count) in from {
                *to.entry(name).or_default() += count;
            }
        }
        for (name, count) in &other.ends {
            *self.ends.entry(name.clone()).or_default() += count;
        }
    }

    /// Faults that were injected.
    pub fn faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// Kinds of faults and situations that were never met.
    pub fn missing(&self) -> Vec<&'static str> {
        let faults =
            Fault::ALL.iter().map(|fault| fault.name()).filter(|name| !self.faults.contains_key(name));
        faults.chain(ROWS.iter().copied().filter(|row| !self.rows.contains_key(row))).collect()
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "schedules {:>12}", self.schedules)?;
        writeln!(f, "steps     {:>12}", self.steps)?;
        writeln!(f, "turns     {:>12}", self.turns)?;
        writeln!(f, "sidecars  {:>12}", self.lives)?;
        writeln!(f, "virtual   {:>12} s", self.virtual_nanos / 1_000_000_000)?;
        writeln!(f, "faults    {:>12}", self.faults())?;
        for (title, counts) in [("faults", &self.faults), ("situations", &self.rows)] {
            writeln!(f, "{title}:")?;
            for (name, count) in counts {
                writeln!(f, "  {count:>10}  {name}")?;
            }
        }
        writeln!(f, "ends:")?;
        for (name, count) in &self.ends {
            writeln!(f, "  {count:>10}  {name}")?;
        }
        let missing = self.missing();
        if missing.is_empty() {
            return Ok(());
        }
        writeln!(f, "never met: {}", missing.join("; "))
    }
}

/// Situations of the design's section 4, and a few more, that a campaign has to meet.
const ROWS: &[&str] = &[
    "401 on a redial",
    "401 on the first dial",
    "429, 5xx: retried",
    "RFC 6455 violation closes the socket",
    "SIGTERM",
    "SIGUSR2, taken over",
    "all slots taken",
    "control frame of the wrong direction",
    "data frame for an unknown session",
    "data frame shorter than 4 bytes",
    "drain",
    "drain while an answer is computed",
    "failure policy: close",
    "failure policy: hold",
    "failure policy: reply",
    "fragments with pings in between",
    "fresh agent id on a wedge",
    "gateway has forgotten the session",
    "instant close on a redial",
    "instant close, first dial",
    "message larger than a slot",
    "observation with an empty payload",
    "ping",
    "queued",
    "read deadline of the gateway",
    "redelivered to a successor",
    "redial budget is over",
    "redialled: the session goes on",
    "region taken over",
    "region too old, session forfeited",
    "session id longer than 256 bytes",
    "session id past the end",
    "session_close for a session that is not open",
    "session_close while inference runs",
    "session_open for another id",
    "session_open for the session that is open",
    "stalled for ever, by a loss in flight",
    "text that is no control frame",
    "token read again",
    "unfreeze",
    "unknown control type",
    "warm-up fails",
    "warm-up round trip with an empty session id",
    "warmup again after a redial",
    "window expires",
    "worker answers late",
    "worker sees that its session is over",
];
