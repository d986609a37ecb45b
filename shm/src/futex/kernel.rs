//! The system calls.

use core::time::Duration;
use std::io;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Wait, WaitFlags, WaitPtr, WaitvFlags};
use rustix::time::{ClockId, Timespec};

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

/// Most words that [`wait_any`] takes: FUTEX_WAITV_MAX (linux/futex.h).
pub const MOST_WORDS: usize = 128;

/// As [`wait`], on several words at once: sleeps while each word is its ticket's sequence.
///
/// # Errors
/// `Unsupported` before Linux 5.16 or where a sandbox forbids the call; `InvalidInput` for no word or more than
/// [`MOST_WORDS`]; the words' memory is gone.
pub fn wait_any(words: &[(&AtomicU32, Ticket)], timeout: Duration) -> io::Result<Woken> {
    let mut waits = [Wait::new(); MOST_WORDS];
    let Some(waits) = waits.get_mut(..words.len()).filter(|waits| !waits.is_empty()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    for (wait, (word, ticket)) in waits.iter_mut().zip(words) {
        wait.val = u64::from(ticket.sequence());
        wait.uaddr = WaitPtr::new(word.as_ptr().cast());
        wait.flags = WaitFlags::SIZE_U32;
    }
    // The call wants the end of the wait. What is beyond the clock's range has none.
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    let end = Timespec::try_from(timeout).ok().and_then(|timeout| now.checked_add(timeout));
    match futex::waitv(waits, WaitvFlags::empty(), end.as_ref(), ClockId::Monotonic) {
        Ok(_) => Ok(Woken::Rung),
        Err(Errno::AGAIN) => Ok(Woken::Changed),
        Err(Errno::TIMEDOUT) => Ok(Woken::TimedOut),
        Err(Errno::INTR) => Ok(Woken::Interrupted),
        Err(Errno::NOSYS | Errno::PERM) => Err(io::ErrorKind::Unsupported.into()),
        Err(error) => Err(error.into()),
    }
}

/// Wakes all who sleep on the word: somebody else who sleeps there must not take the one wake-up.
pub fn wake(word: &AtomicU32) {
    crate::crash::step();
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
    fn a_sleep_on_several_words_ends_with_any_of_them() {
        let words = [const { AtomicU32::new(0) }; 3];
        let waiters = AtomicU32::new(0);
        let tickets = || words.each_ref().map(|word| (word, EventCount::new(word, &waiters).prepare()));
        let start = tickets();
        match wait_any(&start, Duration::from_micros(50)) {
            // A kernel or a sandbox without the call: there is nothing to test.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return,
            woken => assert_eq!(woken.unwrap(), Woken::TimedOut),
        }
        assert!(EventCount::new(&words[2], &waiters).post());
        assert_eq!(wait_any(&start, LONG).unwrap(), Woken::Changed);
        assert_eq!(wait_any(&[], LONG).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        for word in &words {
            let fresh = tickets();
            waiters.store(0, Ordering::Relaxed);
            std::thread::scope(|scope| {
                let sleeper = scope.spawn(|| {
                    waiters.store(1, Ordering::Release);
                    wait_any(&fresh, LONG).unwrap()
                });
                while waiters.load(Ordering::Acquire) == 0 {
                    std::thread::yield_now();
                }
                assert!(EventCount::new(word, &waiters).post());
                wake(word);
                assert_ne!(sleeper.join().unwrap(), Woken::TimedOut);
            });
        }
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
            // A ticket drawn after the first post waits for the next one; who uses an eventcount looks at what was
            // published in between, and this sleeper publishes nothing.
            while !sleeper.is_finished() {
                assert!(EventCount::new(ours.word32(0), ours.word32(64)).post());
                wake(ours.word32(0));
                std::thread::yield_now();
            }
            assert_ne!(sleeper.join().unwrap(), Woken::TimedOut);
        });
    }
}
