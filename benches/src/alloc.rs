//! An allocator that counts, for threads that asked for it.
//!
//! Frees are not counted: what is never allocated is never freed.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

use sidecar_shm::sync::{AtomicU64, Ordering};

/// The system's allocator, with a count for each thread that has a [`Place`]. Install it with `#[global_allocator]`.
#[derive(Debug)]
pub struct Counting;

/// Threads that can be counted at the same time.
const PLACES: usize = 8;
static COUNTS: [AtomicU64; PLACES] = [const { AtomicU64::new(0) }; PLACES];

thread_local! {
    static PLACE: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Number of one counted thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place(pub usize);

impl Place {
    /// From here on the calling thread counts its allocations here.
    ///
    /// # Panics
    /// If there is no such place.
    pub fn count_this_thread(self) {
        assert!(self.0 < PLACES, "there are {PLACES} places");
        PLACE.set(Some(self.0));
    }

    /// Allocations of the thread so far. From any thread.
    #[must_use]
    pub fn allocations(self) -> u64 {
        COUNTS[self.0].load(Ordering::Relaxed)
    }
}

fn count() {
    // A thread that is ending has no place any more.
    if let Ok(Some(place)) = PLACE.try_with(Cell::get) {
        COUNTS[place].fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every method passes its arguments on to the system's allocator, whose contract is the same, and returns what
// that returns. Counting touches a constant-initialised thread-local without a destructor and a static: it allocates
// nothing and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller's promise is the one that is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout, by the caller's promise and the methods here.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as for `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as for `dealloc`, and the caller promises that `size` fits.
        unsafe { System.realloc(memory, layout, size) }
    }
}
