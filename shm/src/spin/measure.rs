//! What a wake-up costs here, and how many cores there are to spin on.

use core::time::Duration;
use std::sync::OnceLock;
use std::thread;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::eventcount::EventCount;
use crate::sync::{AtomicU32, Ordering};
use crate::{clock, futex};

/// How long the measurement may take.
const MOST_TIME: Duration = Duration::from_millis(20);
/// As many round trips are enough for a median.
const ROUNDS: usize = 128;
/// Fewer say nothing.
const LEAST_ROUNDS: usize = 8;
/// Taken where nothing could be measured, and nothing below or above is believed: a wake-up is a system call at
/// least, and on a machine where it takes longer than the most it is the load that was measured.
const UNKNOWN: Duration = Duration::from_micros(20);
const LEAST: Duration = Duration::from_micros(1);
const MOST: Duration = Duration::from_micros(100);

/// Cores that this process may keep busy: by its affinity, and by the cgroup's quota (rounded down, but one at least).
pub fn usable_cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What it takes to wake a thread that sleeps on a futex. Measured at the first call, which takes up to 20 ms.
pub fn wake_cost() -> Duration {
    static COST: OnceLock<Duration> = OnceLock::new();
    *COST.get_or_init(|| measured(MOST_TIME).map_or(UNKNOWN, |cost| cost.clamp(LEAST, MOST)))
}

/// One direction of the ping-pong.
#[derive(Debug, Default)]
struct Way {
    sequence: AtomicU32,
    waiters: AtomicU32,
    /// Number of the last ball; [`END`] ends the game.
    ball: AtomicU32,
}

const END: u32 = u32::MAX;

impl Way {
    fn send(&self, ball: u32) {
        self.ball.store(ball, Ordering::Release);
        if EventCount::new(&self.sequence, &self.waiters).post() {
            futex::wake(&self.sequence);
        }
    }

    /// Sleeps until another ball than the last one comes. `None`: it took too long.
    fn receive(&self, last: u32, patience: Duration) -> Option<u32> {
        let started = clock::now();
        let events = EventCount::new(&self.sequence, &self.waiters);
        loop {
            let ticket = events.prepare();
            let ball = self.ball.load(Ordering::Acquire);
            let left = patience.saturating_sub(clock::now().since(started));
            if ball != last || left.is_zero() {
                events.cancel();
                return (ball != last).then_some(ball);
            }
            // However it ends, what counts is the ball.
            let _ = futex::wait(&self.sequence, ticket, left);
            events.cancel();
        }
    }
}

/// Half of the median round trip between two threads that sleep, each on a core of its own if there are two: left
/// alone the scheduler puts them on one core, which costs less and is nothing that spinning could save. `None`: too few
/// round trips in the time given.
fn measured(most_time: Duration) -> Option<Duration> {
    let (there, back) = (Way::default(), Way::default());
    let cores = two_cores();
    let mut trips = thread::scope(|scope| {
        // Threads of their own, so that the caller's affinity stays as it is.
        let start = |name: &str| thread::Builder::new().name(name.into());
        let partner = start("wake-partner").spawn_scoped(scope, || {
            if let Some((_, core)) = &cores {
                stay_on(core);
            }
            answer(&there, &back, most_time);
        });
        let player = partner.and_then(|_| {
            start("wake-cost").spawn_scoped(scope, || {
                if let Some((core, _)) = &cores {
                    stay_on(core);
                }
                play(&there, &back, most_time)
            })
        });
        player.ok().and_then(|player| player.join().ok())
    })?;
    trips.sort_unstable();
    (trips.len() >= LEAST_ROUNDS).then(|| trips[trips.len() / 2] / 2)
}

/// Ends with the game, or when the other side is not heard of.
fn answer(there: &Way, back: &Way, patience: Duration) {
    let mut last = 0;
    while let Some(ball) = there.receive(last, patience) {
        if ball == END {
            break;
        }
        back.send(ball);
        last = ball;
    }
}

fn play(there: &Way, back: &Way, most_time: Duration) -> Vec<Duration> {
    let mut trips = Vec::with_capacity(ROUNDS);
    let started = clock::now();
    for ball in 1..=ROUNDS as u32 {
        let thrown = clock::now();
        let left = most_time.saturating_sub(thrown.since(started));
        there.send(ball);
        if back.receive(ball - 1, left).is_none() {
            break;
        }
        trips.push(clock::now().since(thrown));
    }
    there.send(END);
    trips
}

/// The first and the last core that this thread may run on, as far apart as numbers go: neighbours may be two threads
/// of one core.
fn two_cores() -> Option<(CpuSet, CpuSet)> {
    let allowed = sched_getaffinity(None).ok()?;
    let first = (0..CpuSet::MAX_CPU).find(|core| allowed.is_set(*core))?;
    let last = (first + 1..CpuSet::MAX_CPU).rev().find(|core| allowed.is_set(*core))?;
    let only = |core| {
        let mut set = CpuSet::new();
        set.set(core);
        set
    };
    Some((only(first), only(last)))
}

fn stay_on(core: &CpuSet) {
    // Where it is forbidden the scheduler decides, and the measurement is of that.
    let _ = sched_setaffinity(None, core);
}

#[cfg(all(test, not(sidecar_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_wake_up_is_measured_in_its_time() {
        let started = clock::now();
        let cost = measured(MOST_TIME);
        // The partner may wait once more for as long; the rest is what a loaded machine adds.
        assert!(clock::now().since(started) < MOST_TIME * 2 + Duration::from_secs(1));
        if let Some(cost) = cost {
            assert!(cost > Duration::from_nanos(100), "{cost:?}");
        }
    }

    #[test]
    fn the_callers_affinity_stays_as_it_is() {
        let before = sched_getaffinity(None).unwrap();
        measured(Duration::from_millis(2));
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }

    #[test]
    fn no_time_gives_no_answer() {
        assert_eq!(measured(Duration::ZERO), None);
    }

    #[test]
    fn there_is_a_core_and_a_cost() {
        assert!(usable_cores() >= 1);
        assert!((LEAST..=MOST).contains(&wake_cost()));
    }
}
