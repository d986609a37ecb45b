//! The kernel's part in a model: under one lock, a waiter compares and joins the queue of its word, a waker empties it.
//!
//! Queues are kept by address: a wake-up of one word must not hide one that another word lost.

use core::time::Duration;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::Woken;
use crate::eventcount::Ticket;
use crate::sync::monitor::Monitor;
use crate::sync::{AtomicU32, Ordering};

/// How often a word was woken.
type Queue = Monitor<u32>;

loom::lazy_static! {
    // Which word has which queue is no step of the model.
    static ref QUEUES: Mutex<BTreeMap<usize, Arc<Queue>>> = Mutex::default();
}

/// Sleeps while the word is the ticket's sequence, until woken.
///
/// # Errors
/// None in a model.
pub fn wait(word: &AtomicU32, ticket: Ticket, _timeout: Duration) -> io::Result<Woken> {
    let mut asleep = None;
    Ok(queue(word).wait(|woken| match asleep {
        None if word.load(Ordering::Relaxed) != ticket.sequence() => Some(Woken::Changed),
        None => {
            asleep = Some(*woken);
            None
        }
        Some(before) => (*woken != before).then_some(Woken::Rung),
    }))
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
    queue(word).change(|woken| *woken += 1);
}

fn queue(word: &AtomicU32) -> Arc<Queue> {
    let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(queues.entry(core::ptr::from_ref(word).addr()).or_default())
}
