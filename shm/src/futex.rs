//! Sleeping on a word that processes share, and waking who does.
//!
//! Shared futexes: private ones wake nobody in another process. Both calls work on memory that is mapped read-only.
//! Every wait has an end, because the peer can scribble over the word. Under loom the kernel's part is modelled.

#[cfg(not(sidecar_loom))]
mod kernel;
#[cfg(sidecar_loom)]
mod modelled;

#[cfg(not(sidecar_loom))]
pub use kernel::{MOST_WORDS, wait, wait_any, wake};
#[cfg(sidecar_loom)]
pub use modelled::{MOST_WORDS, wait, wait_any, wake};

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Somebody woke us, or nobody did: such waits may end by themselves.
    Rung,
    /// The word was no longer the ticket's: there was no sleep.
    Changed,
    /// The time is over.
    TimedOut,
    /// A signal was handled.
    Interrupted,
}
