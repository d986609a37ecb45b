//! The agent's functions of `sidecar.h` as a static library for programs that have no allocator and nothing of Rust's.
//! A panic, which would be a bug, ends the process through the C library's `abort`.

#![no_std]

// For what it exports.
pub use sidecar_c_agent as functions;

use core::panic::PanicInfo;

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
