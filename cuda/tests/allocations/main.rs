//! Copying ahead allocates nothing on the way of a frame. (The simulated driver does, with an allocator of its own.)

#[path = "../gpu/simulated.rs"]
#[expect(dead_code, reason = "the region and the driver are what is needed of it")]
mod simulated;

use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use std::alloc::System;

use sidecar_cuda::ahead::{AheadCopier, PART};
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::slots::Copied;
use simulated::{Side, Simulated};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted for each thread.
struct Counting;

// SAFETY: both methods pass their arguments on to the system's allocator, whose contract is the same. Counting touches a
// constant-initialised thread-local without a destructor: it allocates nothing and does not unwind. What is not written
// here is made of these by the trait.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that is ending has no count any more.
        let _ = ALLOCATIONS.try_with(|count| count.set(count.get() + 1));
        // SAFETY: the caller's promise is the one that is asked for here.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout, by the caller's promise and the method above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn frames_that_are_copied_ahead_allocate_nothing_also_when_the_driver_fails() {
    for config in ["", "fail=cuMemcpyHtoDAsync_v2@40:700"] {
        let simulated = Simulated::new(config);
        let geometry = Geometry {
            observation_slots: 2,
            observation_bytes: 4 * PART,
            action_slots: 1,
            action_bytes: 4096,
        };
        let mut side = Side::of(&geometry);
        let mut copier = AheadCopier::with(simulated.driver(), 0, &side.owner).unwrap();
        let before = ALLOCATIONS.get();
        let mut copied = 0;
        for _ in 0..50 {
            let slot = side.owner.claim_slot().unwrap();
            let begun = clock::now();
            for landed in 1..=4 {
                copier.landed(slot, begun, landed * PART);
            }
            copied += u32::from(copier.finish(slot, begun, 4 * PART) == Copied::Yes);
            copier.abandon();
            let _ = copier.take_trouble();
            side.owner.unclaim(slot);
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "{config}");
        assert_eq!(copied == 50, config.is_empty(), "{copied} frames were copied");
        drop((copier, side));
        assert_eq!(simulated.wrongs(), [""; 0], "{config}");
    }
}
