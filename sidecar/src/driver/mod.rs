//! I/O drivers of the frame loop: one socket, a few doorbells, one wait.
//!
//! The interface is completion-shaped, because that is what io_uring is and what epoll can imitate: an operation
//! is started with memory that stays the kernel's until its completion has been taken, at most one receive and
//! one send at a time. Both drivers pass the suite in `conformance`.
//!
//! A driver knows no WebSocket, no slot and no time of day.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;

mod epoll;
mod probe;
mod socket;
mod uring;

#[cfg(test)]
mod conformance;

pub use epoll::Epoll;
pub use probe::{Choice, Preference, check_busy_poll, choose};
pub use uring::{RingMode, Uring};

/// What came of an operation, or of a doorbell.
#[derive(Debug)]
pub enum Completion {
    /// The connect started last is through, or failed.
    Connected(io::Result<()>),
    /// Bytes that lie at the start of the memory given; 0 is the peer's FIN.
    Received(io::Result<usize>),
    /// Everything given to `send` was taken by the kernel, or the connection broke.
    Sent(io::Result<Taken>),
    /// A doorbell was rung at least once since the last turn.
    Doorbell,
}

/// What a receive is likely to meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// The next bytes, at any time.
    Bytes,
    /// All of its length, a known remainder: the driver may wait for that.
    Remainder,
    /// Nothing before the next send: the driver need not hurry to start it.
    Silence,
}

/// When the kernel took what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// When the turn submitted it, which may be long before the turn ended.
    Submitted,
    /// Just before the turn ended.
    Now,
}

/// When the end of a send is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    /// As soon as it is known: somebody waits for it.
    AtOnce,
    /// At the end of the turn that submits it, whatever ends that; a failure is told at once all the same. Spares the
    /// turn that would only hear of a success.
    AtTurnEnd,
}

/// Completions of one turn: at most one of each kind.
pub type Completions = Vec<Completion>;

/// How long a turn may wait for the first completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: take what is there.
    Poll,
    /// At most this long; `None` is until something happens.
    Block(Option<Duration>),
}

/// One connection's I/O.
pub trait Driver {
    /// The name that `--io` takes.
    fn name(&self) -> &'static str;

    /// Starts a connection; a `Connected` completion follows. A connection that is still there is closed.
    ///
    /// # Errors
    /// The socket could not be made, or the address was refused at once.
    fn connect(&mut self, address: SocketAddr, options: SocketOptions) -> io::Result<()>;

    /// Starts the one receive, of at most `length` bytes.
    ///
    /// # Safety
    /// `into..into + length` stays valid for writes, and nobody reads meaning into it, until the `Received`
    /// completion was taken or `close` returned.
    ///
    /// # Panics
    /// When there is no connection, or a receive is under way.
    unsafe fn receive(&mut self, into: *mut u8, length: usize, expect: Expect);

    /// Starts the one send, of all bytes. Whether `tell` makes a difference is the driver's choice.
    ///
    /// # Safety
    /// `from..from + length` stays valid and unchanged until the `Sent` completion was taken or `close` returned.
    ///
    /// # Panics
    /// When there is no connection, or a send is under way.
    unsafe fn send(&mut self, from: *const u8, length: usize, tell: Tell);

    /// A receive is under way.
    fn is_receiving(&self) -> bool;

    /// A send is under way.
    fn is_sending(&self) -> bool;

    /// System calls since this was asked last.
    fn take_calls(&mut self) -> Calls;

    /// Submits what was started, waits as told, and appends what came.
    ///
    /// # Errors
    /// The ring or the epoll instance itself failed: nothing a redial could mend.
    fn turn(&mut self, wait: Wait, completions: &mut Completions) -> io::Result<()>;

    /// Ends the connection. When this returns the kernel holds no memory of ours any more, and no completion of
    /// the connection follows.
    fn close(&mut self, how: Close);
}

/// System calls of a driver.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Calls {
    /// All of them.
    pub made: u32,
    /// Those that looked without waiting and found nothing.
    pub empty: u32,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Close {
    /// FIN, then read and discard until the peer's FIN (one second at most): a reset would take back bytes that
    /// the peer has not read yet.
    Orderly,
    /// At once.
    Abort,
}

/// Socket options that come from the configuration.
#[derive(Debug, Clone, Copy)]
pub struct SocketOptions {
    /// `TCP_USER_TIMEOUT`: how long sent bytes may stay unacknowledged.
    pub user_timeout: Duration,
    /// `SO_BUSY_POLL`: how long a blocking receive polls the network card's queue itself before it sleeps.
    pub busy_poll: Option<Duration>,
}

/// The doorbells of a driver: eventfds that it never reads, so that each ring is one edge. One is the control thread's,
/// the others are those of the seats.
pub type Doorbells<'a> = [BorrowedFd<'a>; DOORBELLS];

/// How many they are.
pub const DOORBELLS: usize = 1 + sidecar_shm::layout::SEATS;
