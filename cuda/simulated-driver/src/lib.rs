//! A CUDA driver that is none: the calls that this project uses, on host memory, each of them checked.
//!
//! It stands in for `libcuda.so.1` and `libnvidia-ml.so.1` where a test loads it by its path. It is never shipped.
//!
//! - **Memory.** A device pointer is a number that no host address has; the bytes behind it are kept on the host.
//! - **Time.** Work on a stream is queued, and done when somebody waits for it or asks often enough, never earlier: what
//!   is given back before its copy is over holds other bytes when the copy reads it.
//! - **Processes.** Memory and events that are passed to another process are shared with it for as long as this one
//!   lives. What the other one waits for is done by and by, by a thread. Two copies of this library in one process are
//!   two processes to each other.
//! - **Checks.** What no correct program does is noted as a violation: unregistered ranges, double frees, a missing or
//!   wrong context, lengths of zero, memory that was unmapped or unregistered under a queued copy, handles that are
//!   none, memory and events that end while another process has them open. What is still held at the end is a leak.
//! - **Failures.** Each call can be told to fail ([`config`]): once or always, with an error that the next call reports
//!   again, or with one that breaks the context for good.
//!
//! What a user can meet (memory that is registered already, a device that cannot map) is an error code and no violation.
//!
//! Tests talk to it through two more symbols ([`control`]), processes through `SIMULATED_CUDA` (the configuration) and
//! `SIMULATED_CUDA_REPORT` (a file that gets the report when the process ends in order).
//!
//! It refuses to know kernels, the runtime API, and time: nothing measured here says anything about a GPU.

pub mod config;
pub mod control;
pub mod driver;
mod host;
mod ipc;
mod memory;
pub mod nvml;
mod shared;
mod state;
mod streams;
