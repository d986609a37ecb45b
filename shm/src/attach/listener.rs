//! The sidecar's side of the handshake.

use core::mem::MaybeUninit;
use core::time::Duration;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, PidfdFlags};

use super::wire::{self, HELLO, Malformed, Refusal, Reply};
use super::{Candidate, socket_path};
use crate::clock;
use crate::crash::step;
use crate::owner::{SeatGrant, SeatRefused};
use crate::sys;

/// The socket that workers connect to. Dropping it removes its name.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
}

/// Why a hello got no seat. Each is that connection's fault or misfortune; the listener goes on.
#[derive(Debug, thiserror::Error)]
pub enum HelloError {
    /// The process at the other end runs as another user.
    #[error("a process of uid {uid} wanted to attach; run the worker as the sidecar's user, uid {ours}")]
    OtherUser {
        /// Its user.
        uid: u32,
        /// Ours.
        ours: u32,
    },
    /// It speaks another protocol or layout, or none at all.
    #[error(
        "a process that wanted to attach sent something else than a hello: {0}; are both of one version?"
    )]
    Malformed(String),
    /// It said nothing in time, or hung up.
    #[error("a process connected to the attach socket and did not say hello: {0}")]
    Silent(io::Error),
    /// There is no way to learn when it ends.
    #[error(
        "no pidfd of the worker with pid {pid}: {source}; is it in another pid namespace on a kernel before 6.5?"
    )]
    NoProof {
        /// Its pid as seen from here.
        pid: u32,
        /// What the system said.
        source: io::Error,
    },
}

impl Listener {
    /// Binds `<region>.sock`, in place of a stale one. Only the owner of the region may call it: the region's lock is
    /// what makes sure that the socket found there is stale.
    ///
    /// # Errors
    /// If something else than a socket lies there, or the system refuses.
    pub fn bind(region: &Path) -> io::Result<Self> {
        let path = socket_path(region);
        match path.symlink_metadata() {
            Ok(info) if info.file_type().is_socket() => std::fs::remove_file(&path)?,
            Ok(_) => {
                let text = format!("{} is in the way and no socket; remove it", path.display());
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        step();
        let address = SocketAddrUnix::new(&path)?;
        let socket = rustix::net::socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        rustix::net::bind(&socket, &address)?;
        step();
        // Nobody can connect before `listen`, so no one slips in under the umask's mode.
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        let info = path.symlink_metadata()?;
        step();
        rustix::net::listen(&socket, 16)?;
        step();
        Ok(Self { socket, path, identity: (info.dev(), info.ino()) })
    }

    /// The next process that connected; `None` if none waits. Never blocks.
    ///
    /// # Errors
    /// If the system refuses, as when descriptors have run out.
    pub fn accept(&self) -> io::Result<Option<Pending>> {
        match rustix::net::accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(Pending { socket, peer: None })),
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Only our own name: a successor may have bound the path anew.
        if self.path.symlink_metadata().is_ok_and(|info| (info.dev(), info.ino()) == self.identity) {
            step();
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A process that connected and has not got its answer.
#[derive(Debug)]
pub struct Pending {
    socket: OwnedFd,
    /// Known once the hello was read.
    peer: Option<OwnedFd>,
}

impl AsFd for Pending {
    /// Readable when there is something for [`Pending::poll_hello`].
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Pending {
    /// Reads the hello if it has come, checks the peer's user and gets hold of its process. Never blocks.
    ///
    /// # Errors
    /// See [`HelloError`]; a peer that spoke was told the reason already. Drop the connection then.
    pub fn poll_hello(&mut self) -> Result<Option<Candidate>, HelloError> {
        let result = self.read_hello();
        if let Err(error) = &result {
            self.send(&Reply::Refused { why: Refusal::Other, pid: 0, text: error.to_string() }, &[]).ok();
        }
        result
    }

    /// Waits for the hello, at most `timeout`; [`super::HANDSHAKE`] is what workers expect.
    ///
    /// # Errors
    /// As [`Pending::poll_hello`].
    pub fn wait_hello(&mut self, timeout: Duration) -> Result<Candidate, HelloError> {
        let started = clock::now();
        loop {
            if let Some(candidate) = self.poll_hello()? {
                return Ok(candidate);
            }
            let left = timeout.saturating_sub(clock::now().since(started));
            if left.is_zero() {
                return Err(HelloError::Silent(io::ErrorKind::TimedOut.into()));
            }
            sys::poll_in(&self.socket, left).map_err(HelloError::Silent)?;
        }
    }

    /// Readable once the peer's process has ended; known once the hello was read.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.peer.as_ref().map(AsFd::as_fd)
    }

    /// Gives the worker its seat.
    ///
    /// # Errors
    /// If it can't be told any more. The seat was taken nevertheless: say on the frame loop that its connection ended
    /// and that its process is gone, once that is so.
    pub fn grant(self, grant: &SeatGrant) -> io::Result<Connection> {
        let Some(pidfd) = &self.peer else {
            return Err(io::Error::new(
                io::ErrorKind::NotConnected,
                "a seat was granted before the hello was read",
            ));
        };
        let pidfd = pidfd.try_clone()?;
        let reply = Reply::Granted {
            seat: grant.seat,
            generation: grant.generation,
            owner_generation: grant.owner_generation,
            resumed: grant.resumed,
            region: grant.region_id,
            total: grant.total_bytes,
        };
        step();
        self.send(&reply, &[grant.region.as_fd(), grant.doorbell.as_fd(), grant.wake.as_fd()])?;
        step();
        Ok(Connection { socket: self.socket, pidfd, seat: grant.seat, generation: grant.generation })
    }

    /// Tells the worker why there is no seat, and hangs up.
    pub fn refuse(self, refused: &SeatRefused) {
        let (why, pid) = refused.reason();
        self.send(&Reply::Refused { why, pid, text: refused.to_string() }, &[]).ok();
    }

    fn read_hello(&mut self) -> Result<Option<Candidate>, HelloError> {
        let sys::Peer { pid, uid } = sys::peer(&self.socket).map_err(HelloError::Silent)?;
        check_user(uid, rustix::process::geteuid().as_raw())?;
        // One byte more than a hello, so that a longer message is seen as such.
        let mut message = [0; HELLO + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = match rustix::net::recvmsg(
            &self.socket,
            &mut [IoSliceMut::new(&mut message)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => received,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(HelloError::Silent(error.into())),
        };
        // Whatever came along is taken, so that it is closed again if it is of no use.
        let passed = control
            .drain()
            .filter_map(|message| match message {
                RecvAncillaryMessage::ScmRights(fds) => Some(fds),
                _ => None,
            })
            .flatten()
            .next();
        if received.bytes == 0 {
            return Err(HelloError::Silent(io::ErrorKind::UnexpectedEof.into()));
        }
        let mut candidate = wire::read_hello(&message[..received.bytes])
            .map_err(|error: Malformed| HelloError::Malformed(error.to_string()))?;
        let pidfd = match sys::peer_pidfd(&self.socket) {
            Ok(pidfd) => Ok(pidfd),
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                proved(pid, candidate.start_time, passed)
            }
            Err(error) => Err(error),
        };
        self.peer = Some(pidfd.map_err(|source| HelloError::NoProof { pid, source })?);
        // A worker that gave up waiting must not get a seat that nobody then has.
        if has_hung_up(self.socket.as_fd()) {
            return Err(HelloError::Silent(io::ErrorKind::UnexpectedEof.into()));
        }
        candidate.pid = pid;
        Ok(Some(candidate))
    }

    fn send(&self, reply: &Reply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let message = wire::write_reply(reply);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(wire::ANSWER_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // One small message into an empty socket buffer: it never has to wait.
        rustix::net::sendmsg(&self.socket, &[IoSlice::new(&message)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }
}

/// The socket's mode keeps other users out; root passes any mode.
pub(super) const fn check_user(uid: u32, ours: u32) -> Result<(), HelloError> {
    if uid == ours { Ok(()) } else { Err(HelloError::OtherUser { uid, ours }) }
}

/// The pidfd of a worker on a kernel without SO_PEERPIDFD. A pid may have been used again since the connection was
/// made, so the start time that the worker names has to be that of the process found; across pid namespaces, the
/// pidfd that the worker passed has to do, if it is one.
pub(super) fn proved(pid: u32, start_time: u64, passed: Option<OwnedFd>) -> io::Result<OwnedFd> {
    if let Some(known) = Pid::from_raw(pid.cast_signed()) {
        let pidfd = rustix::process::pidfd_open(known, PidfdFlags::empty())?;
        if sys::start_time(pid) == Some(start_time) && !is_readable(pidfd.as_fd()) {
            return Ok(pidfd);
        }
        return Err(io::Error::other("the process with its pid is another one"));
    }
    match passed {
        Some(fd) if sys::is_pidfd(&fd) => Ok(fd),
        Some(_) => Err(io::Error::other("the descriptor that it passed is no pidfd")),
        None => Err(io::Error::other("it passed no pidfd")),
    }
}

fn has_hung_up(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::RDHUP)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|count| count > 0)
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|count| count > 0)
}

/// An attached worker, seen from the control thread.
#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    pidfd: OwnedFd,
    seat: u8,
    generation: u32,
}

impl Connection {
    /// Readable when the worker hung up (see [`Connection::has_ended`]).
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Readable once the worker's process has ended: the proof that nothing of it writes any more.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// The seat that was granted.
    pub const fn seat(&self) -> u8 {
        self.seat
    }

    /// The generation that it was granted with.
    pub const fn generation(&self) -> u32 {
        self.generation
    }

    /// Whether the connection has ended. Never blocks. What a peer sends after its hello is read and thrown away, so
    /// that it can't keep the descriptor readable for ever.
    pub fn has_ended(&self) -> bool {
        let mut byte = [0; 1];
        loop {
            match rustix::net::recv(&self.socket, &mut byte, RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
        }
    }

    /// Whether the worker's process has ended. Never blocks.
    pub fn is_proved_dead(&self) -> bool {
        is_readable(self.pidfd.as_fd())
    }
}
