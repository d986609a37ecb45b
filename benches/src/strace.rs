//! System calls in a log of `strace -ttt`, counted by name between two times.
//!
//! Looks for nothing (a wait with a timeout of zero that found nothing) are counted apart: how many there are is a
//! matter of time, not of frames.

use std::collections::BTreeMap;

/// What a log says about a stretch of time.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Calls that did something, by name.
    pub calls: BTreeMap<String, u64>,
    /// Looks that found nothing.
    pub empty: u64,
}

impl Tally {
    /// Counts what began at `from` or later and before `to`, in microseconds since 1970.
    #[must_use]
    pub fn read(log: &str, from: u64, to: u64) -> Self {
        let mut tally = Self::default();
        for line in log.lines() {
            let Some((time, call)) = line.split_once(' ') else { continue };
            let Some(time) = micros(time) else { continue };
            let Some((name, rest)) = call.split_once('(') else { continue };
            if !(from..to).contains(&time)
                || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
            {
                continue;
            }
            if is_empty_look(name, rest) {
                tally.empty += 1;
            } else {
                *tally.calls.entry(name.to_owned()).or_default() += 1;
            }
        }
        tally
    }

    /// All calls that did something.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.calls.values().sum()
    }
}

fn micros(time: &str) -> Option<u64> {
    let (seconds, micros) = time.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 1_000_000 + micros.parse::<u64>().ok()?)
}

fn is_empty_look(name: &str, rest: &str) -> bool {
    let Some((arguments, result)) = rest.rsplit_once(" = ") else { return false };
    let arguments = arguments.trim_end().trim_end_matches(')');
    let words = arguments.split(", ").collect::<Vec<_>>();
    match name {
        // epoll_wait(fd, events, size, timeout); with a mask behind it epoll_pwait.
        "epoll_wait" => words.last() == Some(&"0") && result == "0",
        // io_uring_enter(fd, to_submit, min_complete, flags, ...): nothing given, nothing waited for.
        "io_uring_enter" => words.get(1..3) == Some(&["0", "0"]) && result == "0",
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
1700000000.000001 epoll_wait(4, [{events=EPOLLIN, data=0}], 4, 0) = 1
1700000000.000002 epoll_wait(4, [], 4, 0)  = 0
1700000000.000003 epoll_wait(4, [], 4, 17) = 0
1700000000.000004 recvfrom(5, \"x = 0, 0)\", 64, MSG_DONTWAIT, NULL, NULL) = 9
1700000000.000005 io_uring_enter(6, 0, 0, IORING_ENTER_GETEVENTS, NULL, 8) = 0
1700000000.000006 io_uring_enter(6, 2, 1, IORING_ENTER_GETEVENTS, NULL, 8) = 2
--- SIGUSR1 {si_signo=SIGUSR1} ---
1700000000.000007 --- SIGTERM {si_signo=SIGTERM, si_code=SI_USER} ---
1700000000.000008 futex(0x7f, FUTEX_WAKE, 1) = 1
";

    #[test]
    fn calls_are_counted_by_name_and_looks_for_nothing_apart() {
        let start = 1_700_000_000_000_000;
        let tally = Tally::read(LOG, start + 1, start + 8);
        let calls = [("epoll_wait", 2), ("io_uring_enter", 1), ("recvfrom", 1)];
        assert_eq!(tally.calls, calls.map(|(name, count)| (name.to_owned(), count)).into());
        assert_eq!((tally.empty, tally.total()), (2, 4));
        assert_eq!(Tally::read(LOG, start + 8, start + 9).total(), 1);
    }
}
