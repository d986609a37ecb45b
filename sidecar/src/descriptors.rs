//! tokio runtimes, for processes that may be short of descriptors: tokio panics where it gets no socket for signals, and
//! a start has to say what is missing instead.

use std::io;
use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, eventfd};
use tokio::runtime::{Builder, Runtime};

/// What tokio opens for a runtime and for its first signal: an epoll instance, a waker, two ends of a socket and copies
/// of them. tokio-uring has a ring and its own watch on it besides.
const NEEDED: usize = 8;

/// Sees to it that a runtime finds what it needs.
///
/// # Errors
/// What the system says: the limit on open files is too low, as a rule.
pub(crate) fn are_enough() -> io::Result<()> {
    let all: io::Result<Vec<OwnedFd>> = (0..NEEDED).map(|_| Ok(eventfd(0, EventfdFlags::CLOEXEC)?)).collect();
    all.map(drop)
}

/// A runtime on this thread, with signals, sockets and time.
///
/// # Errors
/// What the system says.
pub(crate) fn runtime() -> io::Result<Runtime> {
    are_enough()?;
    Builder::new_current_thread().enable_all().build()
}
