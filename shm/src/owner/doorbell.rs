//! The eventfds that wake the frame loop: one for each seat, of which its worker has a copy, and one of the sidecar's own.
//!
//! A worker shares the description of its eventfd: it can fill the counter, drain it, and make it one that blocks, at any
//! moment. That has to cost its own rings and no others: neither the control thread's, nor those of the worker that
//! comes while it still runs.
//!
//! One poll is over all of them, so that in a model they are one.

#[cfg(sidecar_loom)]
mod modelled;

#[cfg(sidecar_loom)]
pub use modelled::Sleep;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType};

use crate::layout::SEATS;

/// All of them.
#[derive(Clone, Debug)]
pub(crate) struct Doorbells {
    pub(super) seats: [Arc<OwnedFd>; SEATS],
    pub(super) own: DoorbellHandle,
}

impl Doorbells {
    #[cfg(not(sidecar_loom))]
    pub(crate) fn new() -> io::Result<Self> {
        let new = || eventfd().map(Arc::new);
        Ok(Self { seats: [new()?, new()?], own: DoorbellHandle { fd: new()? } })
    }

    #[cfg(sidecar_loom)]
    pub(crate) fn new() -> io::Result<Self> {
        let (bell, fd) = modelled::Bell::new()?;
        let fd = Arc::new(fd);
        Ok(Self { seats: [Arc::clone(&fd), Arc::clone(&fd)], own: DoorbellHandle { fd, bell } })
    }

    /// A copy for the worker that gets a seat, as it was when it was new: the last one there may have left it full.
    pub(super) fn hand_out(&self, seat: usize) -> io::Result<OwnedFd> {
        let doorbell = self.seats[seat].as_fd();
        rustix::fs::fcntl_setfl(doorbell, rustix::fs::OFlags::NONBLOCK)?;
        clear(doorbell);
        doorbell.try_clone_to_owned()
    }
}

/// Rings the frame loop's doorbell, for any thread of the sidecar. No worker has this one.
#[derive(Clone, Debug)]
pub struct DoorbellHandle {
    pub(super) fd: Arc<OwnedFd>,
    #[cfg(sidecar_loom)]
    bell: Arc<modelled::Bell>,
}

impl DoorbellHandle {
    /// One poll over the bell and whatever `look` looks at, as a driver does it: for models, which have no system to
    /// sleep in. `true`: it was rung more often than `seen`.
    #[cfg(sidecar_loom)]
    pub fn poll(&self, seen: &mut u32, sleep: Sleep, look: impl FnMut() -> bool) -> bool {
        self.bell.poll(seen, sleep, look)
    }

    /// Something that `look` sees in [`Self::poll`] changes.
    #[cfg(sidecar_loom)]
    pub fn change(&self, change: impl FnOnce()) {
        self.bell.change(change);
    }

    /// Wakes the frame loop, or keeps it from falling asleep.
    pub fn ring(&self) {
        ring(self.fd.as_fd());
    }
}

#[cfg(not(sidecar_loom))]
pub(crate) fn eventfd() -> io::Result<OwnedFd> {
    let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
    Ok(rustix::event::eventfd(0, flags)?)
}

#[cfg(sidecar_loom)]
pub(crate) fn ring(fd: BorrowedFd<'_>) {
    if let Some(bell) = modelled::Bell::of(fd) {
        bell.ring();
    }
}

#[cfg(not(sidecar_loom))]
pub(crate) fn ring(fd: BorrowedFd<'_>) {
    crate::crash::step();
    // It fails only when the counter is full, which no honest ringing can do in centuries. A full counter takes no more
    // edges, and a sleeper that waits for edges would never wake: so it is emptied first.
    if rustix::io::write(fd, &1_u64.to_ne_bytes()) == Err(rustix::io::Errno::AGAIN) {
        clear(fd);
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    }
}

/// The two ends of what wakes a worker that waits on a descriptor: ours to call, the worker's to read. A pair of
/// sockets, not an eventfd: two descriptions, and a send that doesn't block whatever the worker does with its own.
pub(super) fn bell() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(rustix::net::socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?)
}

/// Wakes the worker at the other end. If it can take no more it has enough to read, and wakes all the same.
pub(super) fn call(fd: BorrowedFd<'_>) {
    crate::crash::step();
    let _ = rustix::net::send(fd, &1_u64.to_ne_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

pub(crate) fn clear(fd: BorrowedFd<'_>) {
    // Nonblocking: "nothing to read" is fine.
    let _ = rustix::io::read(fd, &mut [0; 8]);
}
