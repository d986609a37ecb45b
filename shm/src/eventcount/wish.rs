//! A waiter's wish to be woken for room too: a ring or a set of slots that empties again.
//!
//! Whoever makes room does so after every message, and nearly nobody waits for it; so it posts only where somebody said
//! that they do.

use core::marker::PhantomData;

use crate::sync::orders::{Orders, Strong};
use crate::sync::{AtomicU32, Ordering};

/// A view of the wish's word, which the waiter writes.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a, O = Strong> {
    word: &'a AtomicU32,
    orders: PhantomData<O>,
}

impl<'a> Wish<'a> {
    /// The word starts at 0.
    pub const fn new(word: &'a AtomicU32) -> Self {
        Self::with_orders(word)
    }
}

impl<'a, O: Orders> Wish<'a, O> {
    /// As [`Wish::new`], with orders of the caller's choice: for models.
    pub const fn with_orders(word: &'a AtomicU32) -> Self {
        Self { word, orders: PhantomData }
    }

    /// Wishes for room. [`super::EventCount::prepare`] comes next, whose fence stands between the wish and the last
    /// look for room.
    pub fn make(&self) {
        self.word.store(1, Ordering::Relaxed);
    }

    /// The waiter has room, or waits for something else.
    pub fn withdraw(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Asks after room was shown; `true`: post. Its fence stands between the two, so that either the wish is seen here
    /// or the room by the waiter's last look.
    #[must_use = "somebody may be waiting"]
    pub fn is_made(&self) -> bool {
        O::post_fence();
        self.word.load(Ordering::Relaxed) != 0
    }
}
