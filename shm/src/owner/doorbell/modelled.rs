//! The doorbell in a model: each ring is an edge, and a sleep ends with the first edge that was not yet seen, as with an
//! eventfd that is never read behind an edge-triggered poll. There are no timeouts: a lost wake-up is a deadlock.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use loom::sync::{Condvar, Mutex};
use rustix::fs::MemfdFlags;

thread_local! {
    /// By the inode of the descriptor, which is what a worker has of a bell.
    static BELLS: RefCell<BTreeMap<u64, Weak<Bell>>> = const { RefCell::new(BTreeMap::new()) };
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Bell {
    edges: Mutex<u32>,
    rung: Condvar,
}

impl Bell {
    /// A bell, and the descriptor that names it.
    pub(super) fn new() -> io::Result<(Arc<Self>, OwnedFd)> {
        // Eventfds share one inode, files have one each.
        let fd = rustix::fs::memfd_create("bell", MemfdFlags::CLOEXEC)?;
        let bell = Arc::new(Self { edges: Mutex::new(0), rung: Condvar::new() });
        let inode = rustix::fs::fstat(&fd)?.st_ino;
        BELLS.with_borrow_mut(|bells| {
            bells.retain(|_, bell| bell.strong_count() > 0);
            bells.insert(inode, Arc::downgrade(&bell));
        });
        Ok((bell, fd))
    }

    /// The bell behind a descriptor; `None`: its owner is gone, and nobody hears it.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Option<Arc<Self>> {
        let inode = rustix::fs::fstat(fd.as_fd()).ok()?.st_ino;
        BELLS.with_borrow(|bells| bells.get(&inode).and_then(Weak::upgrade))
    }

    pub(super) fn ring(&self) {
        *self.edges.lock().expect("nobody panics with it") += 1;
        self.rung.notify_all();
    }

    /// Whether there are other edges than those seen; they are seen now.
    pub(super) fn look(&self, seen: &mut u32) -> bool {
        let edges = *self.edges.lock().expect("nobody panics with it");
        core::mem::replace(seen, edges) != edges
    }

    /// Sleeps until there are other edges than those seen. `seen` starts at 0.
    pub(super) fn sleep(&self, seen: &mut u32) {
        let mut edges = self.edges.lock().expect("nobody panics with it");
        while *edges == *seen {
            edges = self.rung.wait(edges).expect("nobody panics with it");
        }
        *seen = *edges;
    }
}
