//! The memory orders that rings and wake-ups rest on, each with the partner it needs.
//!
//! They are functions of a trait, so that a model can weaken exactly one of them in the real code and show that this
//! one is needed. Everything that runs uses [`Strong`], which is the default of every type that takes such a parameter.
//! Models of whole sidecars and workers, which have no such parameter, weaken [`Strong`] itself (`weaken`).

use super::{AtomicU32, Ordering, fence};

/// One choice of orders. The provided ones are the right ones.
pub trait Orders {
    /// Store of a cell's mark, after the cell's words. Partner: [`Orders::observe`].
    fn publish() -> Ordering {
        Ordering::Release
    }

    /// Load of a cell's mark, before the cell's words. Partner: [`Orders::publish`].
    fn observe() -> Ordering {
        Ordering::Acquire
    }

    /// Store of a consumer position, after the last read of the cell. Partner: [`Orders::reuse`].
    fn release() -> Ordering {
        Ordering::Release
    }

    /// Load of a consumer position, before the cell is written again. Partner: [`Orders::release`].
    fn reuse() -> Ordering {
        Ordering::Acquire
    }

    /// The poster's step of the sequence word. Release: who reads the new number also sees what was posted. Partner:
    /// the load in [`crate::eventcount::EventCount::prepare`].
    fn step(sequence: &AtomicU32) {
        // One poster, so nobody else steps in between.
        sequence.store(sequence.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Between what was posted and the look for sleepers. Partner: [`Orders::wait_fence`]. One of the two comes first:
    /// either the poster sees the sleeper, or the sleeper sees what was posted.
    fn post_fence() {
        fence(Ordering::SeqCst);
    }

    /// Between the announcement of a sleeper and its last look. Partner: [`Orders::post_fence`].
    fn wait_fence() {
        fence(Ordering::SeqCst);
    }
}

/// The orders that production code uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strong;

#[cfg(not(sidecar_loom))]
impl Orders for Strong {}

#[cfg(sidecar_loom)]
pub use weakened::{Weakness, weaken};

#[cfg(sidecar_loom)]
mod weakened {
    use core::cell::Cell;

    use super::{Ordering, Orders, Strong, fence};

    thread_local! {
        /// All threads of a model are one thread of the system.
        static WEAKNESS: Cell<Option<Weakness>> = const { Cell::new(None) };
    }

    /// One order of [`Strong`] that a model does without.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub enum Weakness {
        /// [`Orders::publish`] is relaxed.
        Publish,
        /// [`Orders::post_fence`] is none.
        PostFence,
        /// [`Orders::wait_fence`] is none.
        WaitFence,
    }

    /// From here on this order of [`Strong`] is weak; `None` makes it strong again.
    pub fn weaken(weakness: Option<Weakness>) {
        WEAKNESS.set(weakness);
    }

    fn is(weakness: Weakness) -> bool {
        WEAKNESS.get() == Some(weakness)
    }

    impl Orders for Strong {
        fn publish() -> Ordering {
            if is(Weakness::Publish) { Ordering::Relaxed } else { Ordering::Release }
        }

        fn post_fence() {
            if !is(Weakness::PostFence) {
                fence(Ordering::SeqCst);
            }
        }

        fn wait_fence() {
            if !is(Weakness::WaitFence) {
                fence(Ordering::SeqCst);
            }
        }
    }
}
