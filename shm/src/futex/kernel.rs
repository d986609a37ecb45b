//! The system calls.

use core::time::Duration;
use std::io;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags};
use rustix::time::Timespec;

use super::Woken;
use crate::eventcount::Ticket;
use crate::sync::AtomicU32;

/// Sleeps while the word is the ticket's sequence, until woken, for `timeout` at most; one that is beyond the clock's
/// range has no end.
///
/// # Errors
/// The word's memory is gone: the file was truncated.
pub fn wait(word: &AtomicU32, ticket: Ticket, timeout: Duration) -> io::Result<Woken> {
    let timeout = Timespec::try_from(timeout).ok();
    match futex::wait(word, Flags::empty(), ticket.sequence(), timeout.as_ref()) {
        Ok(()) => Ok(Woken::Rung),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(Errno::INTR) => Ok(Woken::Interrupted),
        Err(error) => Err(error.into()),
    }
}

/// Wakes all who sleep on the word: somebody else who sleeps there must not take the one wake-up.
pub fn wake(word: &AtomicU32) {
    // It fails only if the word's memory is gone, and then nobody sleeps there.
    let _ = futex::wake(word, Flags::empty(), i32::MAX.cast_unsigned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eventcount::EventCount;
    use crate::sync::Ordering;

    const LONG: Duration = Duration::from_secs(30);

    #[test]
    fn a_stale_ticket_does_not_sleep_and_a_fresh_one_ends_in_time() {
        let (sequence, waiters) = (AtomicU32::new(0), AtomicU32::new(0));
        let events = EventCount::new(&sequence, &waiters);
        let stale = events.prepare();
        assert!(events.post());
        assert_eq!(wait(&sequence, stale, LONG).unwrap(), Woken::Changed);
        let fresh = events.prepare();
        assert_eq!(wait(&sequence, fresh, Duration::from_micros(50)).unwrap(), Woken::TimedOut);
        assert_eq!(wait(&sequence, fresh, Duration::ZERO).unwrap(), Woken::TimedOut);
    }

    #[test]
    fn a_sleeper_is_woken() {
        let (sequence, waiters, done) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let events = EventCount::new(&sequence, &waiters);
                for round in 1..=200 {
                    while done.load(Ordering::Acquire) < round {
                        let ticket = events.prepare();
                        if done.load(Ordering::Acquire) < round {
                            assert_ne!(wait(&sequence, ticket, LONG).unwrap(), Woken::TimedOut);
                        }
                        events.cancel();
                    }
                }
            });
            let events = EventCount::new(&sequence, &waiters);
            for round in 1..=200 {
                // In half of the rounds it sleeps, or is about to; in the others it may be anywhere.
                while round % 2 == 0 && waiters.load(Ordering::Relaxed) == 0 {
                    std::thread::yield_now();
                }
                done.store(round, Ordering::Release);
                if events.post() {
                    wake(&sequence);
                }
            }
        });
    }

    #[test]
    fn a_waker_in_another_mapping_of_the_same_file_is_heard() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let ours = crate::map::Map::writable(&file, 4096).unwrap();
        let theirs = crate::map::Map::readable(&file, 4096).unwrap();
        std::thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let word = theirs.word32(0);
                let waiters = ours.word32(64);
                let ticket = EventCount::new(word, waiters).prepare();
                wait(word, ticket, LONG).unwrap()
            });
            while ours.word32(64).load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            assert!(EventCount::new(ours.word32(0), ours.word32(64)).post());
            wake(ours.word32(0));
            assert_ne!(sleeper.join().unwrap(), Woken::TimedOut);
        });
    }
}
