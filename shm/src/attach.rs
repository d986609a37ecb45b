//! The socket beside the region: how a worker gets its seat, and how either side learns that the other has ended.
//!
//! `<region>.sock` is a unix SEQPACKET socket, mode 0600, bound by the region's owner under the region's lock. One
//! message each way, both of a fixed size and little-endian:
//!
//! 1. the worker says hello: protocol and layout version, its process, the seat it had if it comes back;
//! 2. the sidecar answers with a seat, and three descriptors (the region, the seat's doorbell, the socket that
//!    wakes this worker), or with a reason.
//!
//! After that nothing is said. The end of the connection is the hint that a peer ended; the pidfd, which the sidecar
//! takes from the connection ([`Connection::pidfd`]), is the proof. Pids serve messages only.
//!
//! The listener is for the sidecar's control thread: nonblocking, and each step can be polled. Nothing here touches
//! the region: who gets which seat is decided by [`crate::owner::Owner::seat_join`] on the frame loop's thread.

mod connect;
mod listener;
mod wire;

use core::time::Duration;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

pub(crate) use connect::{Answer, Answered, Call, Granted, connect};
pub use listener::{Connection, HelloError, Listener, Pending};
pub(crate) use wire::Refusal;

/// Both sides give up a handshake after this long.
pub const HANDSHAKE: Duration = Duration::from_secs(2);

/// A worker that said hello. Every number is the worker's word, or 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Pid as the sidecar sees it (SO_PEERCRED); 0 if the worker is in a pid namespace that the sidecar can't see.
    pub pid: u32,
    /// Start time of that process in clock ticks since boot, by the worker's word.
    pub start_time: u64,
    /// The seat it has, if it was attached before.
    pub seat: Option<SeatClaim>,
}

/// The seat that a worker says it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeatClaim {
    /// Id of the region.
    pub region: u64,
    /// Number of the seat.
    pub seat: u8,
    /// Generation that it was granted with.
    pub generation: u32,
}

/// The socket that belongs to a region.
pub fn socket_path(region: &Path) -> PathBuf {
    let mut path = OsString::from(region.as_os_str());
    path.push(".sock");
    path.into()
}

#[cfg(test)]
mod tests;
