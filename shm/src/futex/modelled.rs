//! The kernel's part in a model: under one lock, a waiter compares and joins the queue of its word, a waker empties it.
//!
//! Timeouts never fire, so that a lost wake-up is a deadlock, which loom reports. Queues are kept by address: a wake-up
//! of one word must not hide one that another word lost.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use loom::sync::{Condvar, Mutex};

use super::Woken;
use crate::eventcount::Ticket;
use crate::sync::{AtomicU32, Ordering};

loom::lazy_static! {
    static ref QUEUES: Mutex<BTreeMap<usize, Arc<Condvar>>> = Mutex::new(BTreeMap::new());
}

/// Sleeps while the word is the ticket's sequence, until woken.
///
/// # Errors
/// None in a model.
pub fn wait(word: &AtomicU32, ticket: Ticket, _timeout: Duration) -> io::Result<Woken> {
    // Nothing panics while it is held.
    let mut queues = QUEUES.lock().expect("a lock that is never poisoned");
    if word.load(Ordering::Relaxed) != ticket.sequence() {
        return Ok(Woken::Changed);
    }
    let queue = Arc::clone(queues.entry(address(word)).or_insert_with(|| Arc::new(Condvar::new())));
    drop(queue.wait(queues).expect("a lock that is never poisoned"));
    Ok(Woken::Rung)
}

/// Most words of [`wait_any`].
pub const MOST_WORDS: usize = 128;

/// Not modelled: a kernel without the call, for which its users have another way.
///
/// # Errors
/// Always `Unsupported`.
pub fn wait_any(_words: &[(&AtomicU32, Ticket)], _timeout: Duration) -> io::Result<Woken> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Wakes all who sleep on the word.
pub fn wake(word: &AtomicU32) {
    let queue = QUEUES.lock().expect("a lock that is never poisoned").get(&address(word)).map(Arc::clone);
    if let Some(queue) = queue {
        queue.notify_all();
    }
}

fn address(word: &AtomicU32) -> usize {
    core::ptr::from_ref(word).addr()
}
