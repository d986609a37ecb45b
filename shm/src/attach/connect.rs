//! The worker's side of the handshake.

use core::mem::MaybeUninit;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use core::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::PidfdFlags;
use sidecar_core::time::Instant;

use super::wire::{self, ANSWER, ANSWER_FDS, Refusal, Reply};
use super::{Candidate, HANDSHAKE, SeatClaim, socket_path};
use crate::crash::step;
use crate::{clock, sys};

/// What a sidecar answered.
#[derive(Debug)]
pub(crate) enum Answer {
    Granted(Box<Granted>),
    Refused { why: Refusal, pid: u32, text: String },
}

/// A seat, and everything that comes with it.
#[derive(Debug)]
pub(crate) struct Granted {
    pub(crate) connection: OwnedFd,
    pub(crate) region: OwnedFd,
    pub(crate) doorbell: OwnedFd,
    pub(crate) wake: OwnedFd,
    pub(crate) seat: u8,
    pub(crate) generation: u32,
    pub(crate) owner_generation: u32,
    pub(crate) resumed: bool,
    pub(crate) region_id: u64,
    pub(crate) total_bytes: u64,
}

/// Asks the owner of a region for a seat, and waits for the answer at most [`HANDSHAKE`].
///
/// # Errors
/// As [`Call::start`] and [`Call::answer`].
pub(crate) fn connect(region: &Path, claim: Option<SeatClaim>) -> io::Result<Answer> {
    let mut call = Call::start(region, claim)?;
    loop {
        match call.answer(HANDSHAKE)? {
            Answered::Yes(answer) => return Ok(answer),
            Answered::NotYet(waiting) => call = waiting,
        }
    }
}

/// A worker that said hello and waits for its answer.
#[derive(Debug)]
pub(crate) enum Call {
    /// Over a connected socket, since then.
    Waiting(OwnedFd, Instant),
    /// A simulation has answered already.
    #[cfg(feature = "simulation")]
    Simulated(Answer),
}

/// What a look for the answer found.
#[derive(Debug)]
pub(crate) enum Answered {
    Yes(Answer),
    NotYet(Call),
}

impl Call {
    /// Connects and says hello; blocks nowhere.
    ///
    /// # Errors
    /// `NotFound` or `ConnectionRefused` if no sidecar listens, `WouldBlock` if too many workers wait already.
    pub(crate) fn start(region: &Path, claim: Option<SeatClaim>) -> io::Result<Self> {
        #[cfg(feature = "simulation")]
        if let Some(answer) = crate::simulation::connect(claim) {
            return answer.map(Self::Simulated);
        }
        let address = SocketAddrUnix::new(socket_path(region))?;
        // Nonblocking: with a full backlog `connect` would wait for a sidecar that may be stopped.
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::connect(&socket, &address)?;
        step();

        let pid = std::process::id();
        let start_time = sys::start_time(pid).unwrap_or(0);
        let hello = wire::write_hello(&Candidate { pid, start_time, seat: claim });
        let pidfd = match rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty()) {
            Ok(pidfd) => Some(pidfd),
            // Under Valgrind or a sandbox's kernel; where the sidecar has SO_PEERPIDFD it needs none from us.
            Err(Errno::NOSYS) => None,
            Err(error) => return Err(error.into()),
        };
        let fds: Vec<_> = pidfd.iter().map(AsFd::as_fd).collect();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        rustix::net::sendmsg(&socket, &[IoSlice::new(&hello)], &mut control, SendFlags::NOSIGNAL)?;
        step();
        Ok(Self::Waiting(socket, clock::now()))
    }

    /// Waits for the answer, at most `wait` and what is left of [`HANDSHAKE`].
    ///
    /// # Errors
    /// `TimedOut` once [`HANDSHAKE`] is over, `UnexpectedEof` if the sidecar hung up, `InvalidData` if it speaks
    /// something else.
    pub(crate) fn answer(self, wait: Duration) -> io::Result<Answered> {
        let (socket, started) = match self {
            Self::Waiting(socket, started) => (socket, started),
            #[cfg(feature = "simulation")]
            Self::Simulated(answer) => return Ok(Answered::Yes(answer)),
        };
        let left = HANDSHAKE.saturating_sub(clock::now().since(started));
        if sys::poll_in(&socket, wait.min(left))? {
            return read(socket).map(Answered::Yes);
        }
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(Answered::NotYet(Self::Waiting(socket, started)))
    }
}

fn read(socket: OwnedFd) -> io::Result<Answer> {
    let mut message = [0; ANSWER + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(ANSWER_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        &socket,
        &mut [IoSliceMut::new(&mut message)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let fds: Vec<OwnedFd> = control
        .drain()
        .filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        })
        .flatten()
        .collect();
    if received.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    step();
    let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
    let reply = wire::read_reply(&message[..received.bytes]).map_err(|error| invalid(error.to_string()))?;
    match reply {
        Reply::Refused { why, pid, text } => Ok(Answer::Refused { why, pid, text }),
        Reply::Granted { seat, generation, owner_generation, resumed, region, total } => {
            let count = fds.len();
            let Ok([region_fd, doorbell, wake]) = <[OwnedFd; ANSWER_FDS]>::try_from(fds) else {
                return Err(invalid(format!(
                    "{count} descriptors came with the seat, {ANSWER_FDS} were due"
                )));
            };
            Ok(Answer::Granted(Box::new(Granted {
                connection: socket,
                region: region_fd,
                doorbell,
                wake,
                seat,
                generation,
                owner_generation,
                resumed,
                region_id: region,
                total_bytes: total,
            })))
        }
    }
}
