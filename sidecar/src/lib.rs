//! `sidecar`: the process between a simulation gateway and an inference worker, one per GPU.
//!
//! ```text
//!           WebSocket (RFC 6455)                  shared memory (/dev/shm/obs0)
//! gateway ──────observation─────▶ frame loop ──descriptor + payload slot──▶ worker (the model)
//!         ◀─────action────────── (this crate) ◀──────action slot──────────── C, C++, Python, Rust
//!                                     ▲
//!                                     │ channel + doorbell
//!                               control thread: attach socket, child, signals, name resolution, metrics
//! ```
//!
//! | module | what it is |
//! | --- | --- |
//! | [`run`] | the main job, from settings to exit code |
//! | [`frame_loop`] | bridge and driver turned together |
//! | [`channel`] | how the control thread reaches it |
//! | [`bridge`] | tunnel and region put together; no I/O, no clock |
//! | [`driver`] | sockets over io_uring or epoll |
//! | [`control`] | everything that may be slow |
//! | [`config`] | flags, environment, state file, tokens |
//! | [`supervise`] | `--supervise`: the parent that starts a dead sidecar again |
//! | [`explain`] | what can go wrong, by code |
//! | [`demo`], [`gpus`], [`stat`], [`worker`] | the other subcommands; `sidecar gateway` is a crate of its own |

pub mod bridge;
pub mod channel;
pub mod cli;
pub mod config;
pub mod control;
pub mod demo;
mod descriptors;
pub mod driver;
pub mod exit;
pub mod explain;
pub mod frame_loop;
pub mod gateway;
pub mod gpus;
pub mod log;
pub mod report;
pub mod run;
pub mod stat;
pub mod supervise;
pub mod worker;
