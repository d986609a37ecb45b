//! The eventfd that wakes the frame loop.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;

/// Rings the frame loop's doorbell. The worker has a copy of the descriptor; so may any thread of the sidecar.
#[derive(Clone, Debug)]
pub struct DoorbellHandle {
    fd: Arc<OwnedFd>,
}

impl DoorbellHandle {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { fd: Arc::new(eventfd()?) })
    }

    /// Wakes the frame loop, or keeps it from falling asleep.
    pub fn ring(&self) {
        ring(self.fd.as_fd());
    }
}

impl AsFd for DoorbellHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    Ok(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

pub(crate) fn ring(fd: BorrowedFd<'_>) {
    crate::crash::step();
    // It fails only when the counter is full, and then it is readable: the sleeper wakes all the same.
    let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
}

pub(crate) fn clear(fd: BorrowedFd<'_>) {
    // Nonblocking: "nothing to read" is fine.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
