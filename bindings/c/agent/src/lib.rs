//! The functions of `sidecar.h` that need neither an operating system nor an allocator: status codes, versions, and
//! the protocol core as a sans-I/O agent. `libsidecar` has them next to the worker's functions (crate `sidecar-c`),
//! `libsidecar_agent` has them alone (`freestanding/`).
//!
//! ```text
//!  status    what every function returns         config, event   the structs that cross, and what they mean to core
//!  border    the only place that follows a       agent           the handle: its life, its commands
//!            pointer: NULL, length, size, UTF-8  stream          bytes in, bytes out, the events between
//!  fence     panics stop here                    places          the caller's memory, as core sees it
//! ```
//!
//! What all functions have in common is said once, at the top of the header, and not at each of them: that is where
//! their safety contract stands, too.

#![no_std]
#![allow(clippy::missing_safety_doc, reason = "the contract is said once, at the top of the header")]

#[cfg(feature = "std")]
extern crate std;

pub mod agent;
pub mod border;
pub mod config;
pub mod event;
pub mod fence;
mod places;
pub mod status;
pub mod stream;
