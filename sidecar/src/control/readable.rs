//! Waiting for a descriptor to become readable.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A copy of a descriptor, watched by the runtime.
#[derive(Debug)]
pub(super) struct Readable(AsyncFd<OwnedFd>);

impl Readable {
    /// Watches what `fd` refers to.
    ///
    /// # Errors
    /// No descriptor is left, or it is of a kind that cannot be watched.
    pub(super) fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        let fd = fd.try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` is open for as long as it lives, always refers to the same description, and is not
        // given out while the `AsyncFd` has it.
        let watched = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) };
        Ok(Self(watched?))
    }

    /// Waits until it is readable, or may be: look at it afterwards, without blocking.
    ///
    /// # Errors
    /// The runtime is going down.
    pub(super) async fn wait(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
