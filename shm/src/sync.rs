//! Atomics, in one place: those of the language, or loom's under `cfg(sidecar_loom)`, which explores every order in
//! which threads may see them. Everything else in the workspace takes them from here (clippy.toml sees to it).
//!
//! It has no locks and no other shared cells: what processes share is words like these and nothing else.
#![allow(clippy::disallowed_types, reason = "this is the one place where raw atomics come from")]

#[cfg(sidecar_loom)]
mod modelled;
#[cfg(sidecar_loom)]
pub mod monitor;
pub mod orders;
#[cfg(all(feature = "failpoints", not(sidecar_loom)))]
mod watched;

/// The language's own in a model too: for what a signal handler shares with the thread that it interrupts.
pub(crate) mod plain {
    // Aliases, not re-exports: the lint sees through a re-export.
    pub(crate) type AtomicBool = core::sync::atomic::AtomicBool;
    pub(crate) type AtomicUsize = core::sync::atomic::AtomicUsize;
}

#[cfg(not(sidecar_loom))]
mod real {
    /// Orders of atomic accesses.
    pub use core::sync::atomic::Ordering;
    /// A fence between accesses of different words.
    pub use core::sync::atomic::fence;

    // Aliases, not re-exports: the lint sees through a re-export.
    /// A boolean that threads share.
    pub type AtomicBool = core::sync::atomic::AtomicBool;
    /// A 32-bit word that threads or processes share.
    #[cfg(not(feature = "failpoints"))]
    pub type AtomicU32 = core::sync::atomic::AtomicU32;
    /// A 64-bit word that threads or processes share.
    #[cfg(not(feature = "failpoints"))]
    pub type AtomicU64 = core::sync::atomic::AtomicU64;
    #[cfg(feature = "failpoints")]
    pub use super::watched::{AtomicU32, AtomicU64};
    /// A machine word that threads share.
    pub type AtomicUsize = core::sync::atomic::AtomicUsize;

    /// Tells the processor that a loop is spinning.
    #[inline]
    pub fn spin_hint() {
        core::hint::spin_loop();
    }
}

#[cfg(sidecar_loom)]
mod real {
    /// Orders of atomic accesses.
    pub use loom::sync::atomic::Ordering;

    loom::lazy_static! {
        static ref FENCES: loom::sync::atomic::AtomicU32 = loom::sync::atomic::AtomicU32::new(0);
    }

    /// A fence between accesses of different words. To loom a fence by itself is no point at which another thread may
    /// run: it would be one step with the access before it, and what goes wrong in between would never be seen. The
    /// word that all fences count on makes it one; loom orders fences among each other anyway.
    pub fn fence(order: Ordering) {
        FENCES.fetch_add(1, Ordering::Relaxed);
        loom::sync::atomic::fence(order);
    }

    /// A boolean that threads share.
    pub type AtomicBool = loom::sync::atomic::AtomicBool;
    pub use super::modelled::{AtomicU32, AtomicU64};
    /// A machine word that threads share.
    pub type AtomicUsize = loom::sync::atomic::AtomicUsize;

    /// Lets another thread of the model run: a loop that spins needs it.
    pub fn spin_hint() {
        loom::hint::spin_loop();
    }
}

pub use real::*;
