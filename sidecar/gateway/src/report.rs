//! What a gateway tells: one JSON object a line on standard output while it plays, the report last.

use core::time::Duration;

use serde::Serialize;

/// Something worth a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum GatewayEvent {
    /// An agent's connection is up.
    Connected {
        /// Its agent id.
        agent: String,
        /// The tunnel was there before.
        resumed: bool,
    },
    /// An agent's connection ended.
    Disconnected {
        /// Its agent id.
        agent: String,
        /// How, in words.
        why: String,
    },
    /// A dial was turned away.
    Refused {
        /// Its HTTP status, or 101 for an upgrade that was closed at once.
        status: u16,
        /// Why, in words.
        why: String,
    },
    /// A case began.
    Case {
        /// Its number, from 0.
        case: u32,
        /// Its session id.
        session: String,
    },
    /// Every 25th step, for those who watch.
    Step {
        /// The case.
        case: u32,
        /// The step that was answered.
        step: u32,
    },
    /// A case ended.
    CaseEnded {
        /// Its number.
        case: u32,
        /// All steps were survived.
        solved: bool,
        /// Steps that were answered.
        steps: u32,
        /// How it ended, in words.
        how: String,
    },
    /// An exchange was outstanding when a connection ended.
    ExchangeLost {
        /// The case.
        case: u32,
        /// The step.
        step: u32,
        /// What is known about it.
        why: String,
    },
    /// The job is over, and the agent was told so.
    Drained {
        /// Its agent id.
        agent: String,
    },
    /// The reconnect window of an agent passed.
    WindowExpired {
        /// Its agent id.
        agent: String,
    },
}

/// The last line.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Cases of the job.
    pub cases: u32,
    /// Cases of which all steps were survived.
    pub solved: u32,
    /// Steps that were answered.
    pub steps: u64,
    /// From the observation's first byte written to its answer read.
    pub latency_ns: Latency,
    /// Exchanges that were outstanding when a connection ended.
    pub lost_exchanges: u64,
    /// Steps that were asked again.
    pub reasked: u64,
    /// Answers that came when none was due.
    pub duplicate_answers: u64,
    /// Our frames that were due while the tunnel was down: dropped, not queued (tunnel contract A.5).
    pub dropped_frames: u64,
    /// Data frames of agents for a session that is not open, late answers among them: dropped (A.3).
    pub unknown_session: u64,
    /// Connections, the first one included.
    pub connections: u64,
    /// Faults that were asked for and never came due.
    pub faults_left: usize,
    /// Why the job ended early, if it did.
    pub failure: Option<String>,
}

/// Percentiles in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Latency {
    /// Exchanges measured: those that no connection loss touched.
    pub count: u64,
    /// Half took at most this.
    pub p50: u64,
    /// 99 of 100 took at most this.
    pub p99: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    pub(crate) fn of(times: &mut [Duration]) -> Self {
        times.sort_unstable();
        let nanos = |time: &Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let percentile = |per_cent: usize| {
            times.get((times.len() * per_cent).div_ceil(100).saturating_sub(1)).map_or(0, nanos)
        };
        Self {
            count: times.len() as u64,
            p50: percentile(50),
            p99: percentile(99),
            max: times.last().map_or(0, nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_what_was_measured() {
        assert_eq!(Latency::of(&mut []), Latency::default());
        let mut times: Vec<Duration> = (1..=200).rev().map(Duration::from_nanos).collect();
        assert_eq!(Latency::of(&mut times), Latency { count: 200, p50: 100, p99: 198, max: 200 });
    }

    /// What others read from the report.
    #[test]
    fn the_report_keeps_its_names() {
        let report = serde_json::to_value(Report::default()).unwrap();
        let mut names: Vec<&str> = report.as_object().unwrap().keys().map(String::as_str).collect();
        names.sort_unstable();
        let expected = [
            "cases",
            "connections",
            "dropped_frames",
            "duplicate_answers",
            "failure",
            "faults_left",
            "latency_ns",
            "lost_exchanges",
            "reasked",
            "solved",
            "steps",
            "unknown_session",
        ];
        assert_eq!(names, expected);
        assert!(report.get("event").is_none(), "the report is the line without `event`");
    }

    #[test]
    fn an_event_is_one_line_of_json() {
        let event = GatewayEvent::Step { case: 1, step: 25 };
        assert_eq!(serde_json::to_string(&event).unwrap(), r#"{"event":"step","case":1,"step":25}"#);
    }
}
