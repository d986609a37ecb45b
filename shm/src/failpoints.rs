//! Death at a chosen store: a process stops itself there, and whoever started it kills it. Feature `failpoints`; a
//! product is built without it.
//!
//! A place is named by where it stands in the source and how often it has been passed. First a process notes the
//! places that it passes ([`note`]); then one process for each of them stops there ([`stop_at`]). Only the thread that
//! asked for it counts.

use core::cell::{Cell, RefCell};
use core::panic::Location;
use std::collections::HashMap;

use rustix::process::{Signal, getpid, kill_process};

thread_local! {
    static NOTES: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
    static END: RefCell<Option<End>> = const { RefCell::new(None) };
    static BUSY: Cell<bool> = const { Cell::new(false) };
}

struct End {
    place: String,
    /// Passes of the place that are still survived.
    left: u32,
}

/// From here on this thread notes the places that it passes.
pub fn note() {
    NOTES.set(Some(Vec::new()));
}

/// The places that were passed since [`note`], in order: `file:line`, and how often it was passed before.
pub fn notes() -> Vec<(String, u32)> {
    let mut passed = HashMap::new();
    let count = |place: String| {
        let before = passed.entry(place.clone()).or_insert(0);
        *before += 1;
        (place, *before - 1)
    };
    NOTES.take().unwrap_or_default().into_iter().map(count).collect()
}

/// This process stops (SIGSTOP) when this thread passes `place` for the time with number `pass`, from 0.
pub fn stop_at(place: &str, pass: u32) {
    END.set(Some(End { place: place.to_owned(), left: pass }));
}

/// A place was reached: the store behind it has not happened yet.
pub(crate) fn reached(at: &Location<'_>) {
    // What this function itself does is no place.
    if BUSY.replace(true) {
        return;
    }
    let place = || format!("{}:{}", at.file(), at.line());
    NOTES.with_borrow_mut(|notes| notes.as_mut().map(|notes| notes.push(place())));
    END.with_borrow_mut(|end| {
        let Some(end) = end.as_mut().filter(|end| end.place == place()) else { return };
        if end.left == 0 {
            // It returns only if somebody lets the process go on.
            let _ = kill_process(getpid(), Signal::STOP);
        }
        end.left = end.left.wrapping_sub(1);
    });
    BUSY.set(false);
}
