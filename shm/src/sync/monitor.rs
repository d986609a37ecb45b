//! What a model has of a kernel that lets threads sleep: a value behind a lock, and those who wait for it to change. To
//! look, and to fall asleep if there is nothing, is one step of the model; so is to change the value and to wake.
//!
//! Nobody wakes by itself and there are no timeouts, so that a lost wake-up is a deadlock, which loom reports.

use loom::sync::{Mutex, MutexGuard};
use loom::thread::{self, Thread};

/// See the module's text.
#[derive(Debug, Default)]
pub struct Monitor<T>(Mutex<Watched<T>>);

#[derive(Debug, Default)]
struct Watched<T> {
    value: T,
    sleepers: Vec<Thread>,
}

impl<T> Monitor<T> {
    /// A value that nobody waits for.
    pub fn new(value: T) -> Self {
        Self(Mutex::new(Watched { value, sleepers: Vec::new() }))
    }

    /// Changes the value, and wakes all who wait: they look again.
    pub fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let mut watched = self.lock();
        for sleeper in watched.sleepers.drain(..) {
            sleeper.unpark();
        }
        change(&mut watched.value)
    }

    /// Looks at the value, and sleeps until it was changed as long as there is nothing to be had.
    pub fn wait<R>(&self, mut take: impl FnMut(&mut T) -> Option<R>) -> R {
        loop {
            let mut watched = self.lock();
            if let Some(taken) = take(&mut watched.value) {
                return taken;
            }
            watched.sleepers.push(thread::current());
            drop(watched);
            // One step with the look: loom switches threads at neither the end of the lock nor here.
            thread::park();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watched<T>> {
        self.0.lock().expect("nobody panics with it")
    }
}
