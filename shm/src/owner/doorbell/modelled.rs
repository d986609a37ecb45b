//! The doorbell in a model: each ring is an edge, and a sleep ends with the first edge that was not yet seen, as with an
//! eventfd that is never read behind an edge-triggered poll.
//!
//! What else a driver polls is looked at in the same step as the bell, and changes in one step with the wake-up, as it
//! does in the kernel.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::fs::MemfdFlags;

use crate::sync::monitor::Monitor;

thread_local! {
    /// By the inode of the descriptor, which is what a worker has of a bell.
    static BELLS: RefCell<BTreeMap<u64, Weak<Bell>>> = const { RefCell::new(BTreeMap::new()) };
}

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Bell {
    edges: Monitor<u32>,
}

impl Bell {
    /// A bell, and the descriptor that names it.
    pub(super) fn new() -> io::Result<(Arc<Self>, OwnedFd)> {
        // Eventfds share one inode, files have one each.
        let fd = rustix::fs::memfd_create("bell", MemfdFlags::CLOEXEC)?;
        let bell = Arc::new(Self::default());
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
        self.edges.change(|edges| *edges += 1);
    }

    /// Something else that is polled changes.
    pub(super) fn change(&self, change: impl FnOnce()) {
        self.edges.change(|_| change());
    }

    /// Looks at everything that is polled; `look` says whether there is something besides the bell. With
    /// [`Sleep::UntilSomething`] not before there is. `true`: there are other edges than those `seen`, which start at 0;
    /// they are seen now.
    pub(super) fn poll(&self, seen: &mut u32, sleep: Sleep, mut look: impl FnMut() -> bool) -> bool {
        self.edges.wait(|edges| {
            let rung = core::mem::replace(seen, *edges) != *edges;
            (look() || rung || sleep == Sleep::Never).then_some(rung)
        })
    }
}

/// Whether a poll waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sleep {
    /// It looks.
    Never,
    /// It waits.
    UntilSomething,
}
