//! The memory orders that rings and wake-ups rest on, each with the partner it needs.
//!
//! They are constants of a trait, so that a model can weaken exactly one of them in the real code and show that this
//! one is needed. Everything that runs uses [`Strong`], which is the default of every type that takes such a parameter.

use super::{AtomicU32, Ordering, fence};

/// One choice of orders. The provided ones are the right ones.
pub trait Orders {
    /// Store of a producer position, after the cell's words. Partner: [`Orders::OBSERVE`].
    const PUBLISH: Ordering = Ordering::Release;
    /// Load of a producer position, before the cell's words. Partner: [`Orders::PUBLISH`].
    const OBSERVE: Ordering = Ordering::Acquire;
    /// Store of a consumer position, after the last read of the cell. Partner: [`Orders::REUSE`].
    const RELEASE: Ordering = Ordering::Release;
    /// Load of a consumer position, before the cell is written again. Partner: [`Orders::RELEASE`].
    const REUSE: Ordering = Ordering::Acquire;

    /// The poster's step of the sequence word. Release: who reads the new number also sees what was posted. Partner:
    /// the load in [`crate::eventcount::EventCount::prepare`] together with the fence after it.
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

impl Orders for Strong {}
