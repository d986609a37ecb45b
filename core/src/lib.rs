//! The tunnel between a simulation gateway and a robot policy, as a pure state machine.
//!
//! Bytes and time go in; bytes, places for bytes and events come out. Nothing in here blocks, allocates,
//! logs, reads a clock or rolls dice: instants are arguments, randomness grows from one seed. That is what
//! lets the same code run under io_uring, epoll, a C stack's own loop and a seeded simulation.
//!
//! ```text
//!  agent    the whole client: dial, phases, sessions, heartbeat, reconnect, drain
//!  ├─ ws       RFC 6455, client side: handshake, frame header, mask, message assembly, close, UTF-8
//!  ├─ tunnel   the gateway's own contract on top: control frames (A.2), data frames (A.3), identifiers
//!  └─ time     instants as integers
//!  record   what passes between the sidecar and its worker, besides payloads
//! ```
//!
//! Each layer can be used without the ones above it. None of them holds a payload byte: the caller owns all
//! memory that observations are received into and actions are sent from.
//!
//! What it refuses to do: offer an extension or a subprotocol, take the server's part in a handshake, put
//! text together for a log.

#![no_std]
#![forbid(unsafe_code)]

pub mod agent;
mod output;
pub mod record;
pub mod time;
pub mod tunnel;
pub mod ws;

pub use output::Short;
