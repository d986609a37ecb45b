//! Measurements of the fast path, and what they are made with.
//!
//! ```text
//! counts, the same on every machine and under any load          times, on a quiet machine: `cargo xtask bench`
//!   tests/allocations.rs     allocations a frame                   src/bin/sidecar-bench   across processes, to a GPU
//!   sidecar-bench calls      system calls a frame (strace)         benches/core, region    within one (criterion)
//!   instructions/frame.rs    instructions a frame (callgrind)
//! ```
//!
//! The other end is always [`gateway`], which shares no code with the product: minimal, so that what is measured is the
//! client, and it checks every byte of every reply. What a reply has to be follows from the observation ([`reply`]), so
//! that a client can't be right by accident, and so that every client in every language does the same work.

pub mod alloc;
pub mod batches;
pub mod client;
pub mod gateway;
pub mod observation;
pub mod reply;
pub mod strace;
