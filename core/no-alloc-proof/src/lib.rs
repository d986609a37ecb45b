//! Everything that `sidecar-core` offers, called from a static library that has no std, no allocator and no
//! unwinding. That it builds proves `no_std`; that the library names no allocator, and that a C program runs
//! it with the C library's memory functions alone, proves the rest. `check.sh` does both.
//!
//! It proves nothing about behaviour: each step is checked just far enough to know that it was taken.

#![no_std]

/// Ends the proof with the line that failed.
macro_rules! ensure {
    ($condition:expr) => {
        if !$condition {
            return Err(line!());
        }
    };
}

mod agent;
mod codec;
mod tunnel;

use core::panic::PanicInfo;

/// The line of a step that failed.
type Proof = Result<(), u32>;

/// Runs the proof: 0, or the line in the Rust source that failed.
#[unsafe(no_mangle)]
pub extern "C" fn sidecar_no_alloc_proof() -> u32 {
    match run() {
        Ok(()) => 0,
        Err(line) => line,
    }
}

fn run() -> Proof {
    codec::run()?;
    tunnel::run()?;
    agent::run()
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    unsafe extern "C" {
        safe fn abort() -> !;
    }
    abort()
}

/// Objects of the prebuilt `core` name it in their unwind tables; with panic = "abort" nobody calls it.
#[unsafe(no_mangle)]
pub extern "C" fn rust_eh_personality() {}
