//! What a model has of the channel: the same calls over a lock of loom's.

use std::collections::VecDeque;
use std::sync::Arc;

use loom::sync::{Mutex, MutexGuard};

/// A queue without bounds.
pub fn unbounded<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Queue { items: VecDeque::new(), is_read: true }));
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

#[derive(Debug)]
struct Queue<T> {
    items: VecDeque<T>,
    is_read: bool,
}

/// The writing end.
#[derive(Debug)]
pub struct Sender<T>(Arc<Mutex<Queue<T>>>);

/// The reading end.
#[derive(Debug)]
pub struct Receiver<T>(Arc<Mutex<Queue<T>>>);

/// Why nothing was received.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TryRecvError {
    /// Nothing is there now.
    Empty,
    /// Nothing will come.
    Disconnected,
}

fn lock<T>(queue: &Mutex<Queue<T>>) -> MutexGuard<'_, Queue<T>> {
    queue.lock().expect("nobody panics with it")
}

impl<T> Sender<T> {
    /// # Errors
    /// The value, if nobody reads.
    pub fn send(&self, value: T) -> Result<(), T> {
        let mut queue = lock(&self.0);
        if !queue.is_read {
            return Err(value);
        }
        queue.items.push_back(value);
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Receiver<T> {
    /// # Errors
    /// See [`TryRecvError`].
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        // The end of a sender is no step: as long as somebody reads, every model has one.
        let none =
            if Arc::strong_count(&self.0) == 1 { TryRecvError::Disconnected } else { TryRecvError::Empty };
        lock(&self.0).items.pop_front().ok_or(none)
    }

    /// Whether nothing is there now.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).items.is_empty()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // A model that failed has no more steps.
        if !std::thread::panicking() {
            lock(&self.0).is_read = false;
        }
    }
}
