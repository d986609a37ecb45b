//! The worker's side of the shared region for C and C++, over [`sidecar_shm::worker`]; with the functions of
//! [`sidecar_c_agent`] it is all of `sidecar.h`.
//!
//! ```text
//!  worker        attach, wait, what is said to the sidecar      failure   why something did not work, in words
//!  observation   what is to be answered, and its payload        answer    how it is answered
//! ```
//!
//! Handles live on the heap here: who attaches to shared memory has one. What owns what is a rule of its own: a call
//! that does not return `OK` has taken nothing over.

#![allow(clippy::missing_safety_doc, reason = "the contract is said once, at the top of the header")]

pub use sidecar_c_agent::{agent, config, event, status, stream};

pub mod answer;
pub mod device;
pub mod failure;
mod handle;
pub mod observation;
pub mod worker;
