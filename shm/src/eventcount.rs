//! An eventcount: how one side learns that it may sleep, and the other whether it has to wake somebody.
//!
//! Two words, each with one writer, so that they can lie in pages of different owners: `sequence` is stepped by the
//! poster, `waiters` is 1 while the waiter sleeps or is about to.
//!
//! ```text
//!  poster                                  waiter
//!  publish (ring, flag, ...)               spin for a while                  crate::spin
//!  post:  step the sequence                prepare:  waiters = 1
//!         fence                                      fence
//!         anyone asleep?                             ticket = sequence
//!         yes: system call                 look once more; something there: cancel
//!                                          sleep while sequence is the ticket   crate::futex, or a descriptor
//!                                          cancel:   waiters = 0
//! ```
//!
//! Why nothing is lost: of the two fences one is first. If it is the waiter's, the poster sees the waiter and makes the
//! system call; the sleep then either has begun, or finds the stepped sequence and does not begin. If it is the
//! poster's, the last look finds what was published. A ticket that is already the stepped one was stored with release
//! order after the publication, so again the last look finds it. A plain flag as futex word lacks that step: wake-ups
//! sent between the last look and the sleep would be lost.
//!
//! A waiter that dies asleep leaves `waiters` at 1, which costs its poster needless system calls and nothing else. A
//! peer that scribbles over its word can make this side sleep too long or call too often: waits have an end.

mod wish;

use core::marker::PhantomData;

use crate::sync::orders::{Orders, Strong};
use crate::sync::{AtomicU32, Ordering};

pub use wish::Wish;

/// The sequence that a waiter saw before its last look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket(u32);

impl Ticket {
    /// The number in the sequence word.
    pub const fn sequence(self) -> u32 {
        self.0
    }
}

/// A view of the two words. One thread posts and one waits at a time.
#[derive(Clone, Copy, Debug)]
pub struct EventCount<'a, O = Strong> {
    sequence: &'a AtomicU32,
    waiters: &'a AtomicU32,
    orders: PhantomData<O>,
}

impl<'a> EventCount<'a> {
    /// `sequence` is the poster's word, `waiters` the waiter's. Both start at 0.
    pub const fn new(sequence: &'a AtomicU32, waiters: &'a AtomicU32) -> Self {
        Self::with_orders(sequence, waiters)
    }
}

impl<'a, O: Orders> EventCount<'a, O> {
    /// As [`EventCount::new`], with orders of the caller's choice: for models.
    pub const fn with_orders(sequence: &'a AtomicU32, waiters: &'a AtomicU32) -> Self {
        Self { sequence, waiters, orders: PhantomData }
    }

    /// Says that something was published. `true`: somebody sleeps or is about to, make the system call.
    #[must_use = "a sleeper has to be woken"]
    pub fn post(&self) -> bool {
        O::step(self.sequence);
        O::post_fence();
        self.waiters.load(Ordering::Relaxed) != 0
    }

    /// Announces a sleeper. The caller looks once more, then sleeps on the ticket or not, then calls
    /// [`EventCount::cancel`].
    pub fn prepare(&self) -> Ticket {
        self.announce();
        // Who sees a step sees what it was made for.
        Ticket(self.sequence.load(Ordering::Acquire))
    }

    /// As [`EventCount::prepare`], for a sleeper on a descriptor, which keeps a wake-up by itself.
    pub fn announce(&self) {
        self.waiters.store(1, Ordering::Relaxed);
        O::wait_fence();
    }

    /// The waiter is awake.
    pub fn cancel(&self) {
        self.waiters.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(sidecar_loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_post_asks_for_the_system_call_only_while_somebody_sleeps() {
        let (sequence, waiters) = (AtomicU32::new(u32::MAX), AtomicU32::new(0));
        let events = EventCount::new(&sequence, &waiters);
        assert!(!events.post());
        let ticket = events.prepare();
        assert_eq!(ticket.sequence(), 0, "the sequence wraps");
        assert!(events.post());
        assert_ne!(sequence.load(Ordering::Relaxed), ticket.sequence());
        events.cancel();
        assert!(!events.post());
    }
}
