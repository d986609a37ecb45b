//! The TCP socket under both drivers.

use core::net::SocketAddr;
use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, connect, recv, shutdown, socket_with,
    sockopt,
};

use super::SocketOptions;

/// How long an orderly end waits for the peer's FIN.
const LINGER: Duration = Duration::from_secs(1);

/// Makes a non-blocking socket and starts its connection. `true` when it was connected at once.
pub(super) fn start(address: SocketAddr, options: SocketOptions) -> io::Result<(OwnedFd, bool)> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Lockstep traffic is the worst case for Nagle against delayed acknowledgements (20 to 40 ms).
    sockopt::set_tcp_nodelay(&socket, true)?;
    let millis = u32::try_from(options.user_timeout.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(&socket, millis)?;
    if let Some(time) = options.busy_poll {
        set_busy_poll(socket.as_fd(), time)?;
    }
    match connect(&socket, &address) {
        Ok(()) => Ok((socket, true)),
        Err(rustix::io::Errno::INPROGRESS) => Ok((socket, false)),
        Err(error) => Err(error.into()),
    }
}

/// Whether the system grants `SO_BUSY_POLL` for that long, tried on a socket that is never connected.
pub(super) fn try_busy_poll(time: Duration) -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    set_busy_poll(socket.as_fd(), time)
}

fn set_busy_poll(socket: BorrowedFd<'_>, time: Duration) -> io::Result<()> {
    let micros = libc::c_int::try_from(time.as_micros()).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option takes an int, and gets the address and the size of one that lives on; the socket is open.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_BUSY_POLL,
            (&raw const micros).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// The result of a connection that became writable.
pub(super) fn connected(socket: impl AsFd) -> io::Result<()> {
    match sockopt::socket_error(socket)? {
        Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Ends our side and reads on until the peer ends its own, for at most `LINGER`.
pub(super) fn linger(socket: impl AsFd) {
    if shutdown(&socket, Shutdown::Write).is_err() {
        return;
    }
    let mut discarded = [0_u8; 4096];
    let mut left = LINGER;
    // Bounded in rounds as well, so that a peer that goes on sending cannot hold us.
    for _ in 0..64 {
        let timeout = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().max(1).into() };
        let timeout = if left >= LINGER { Timespec { tv_sec: 1, tv_nsec: 0 } } else { timeout };
        let before = sidecar_shm::clock::now();
        let mut fds = [PollFd::new(&socket, PollFlags::IN)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        match recv(&socket, &mut discarded[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        left = left.saturating_sub(sidecar_shm::clock::now().since(before));
        if left.is_zero() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn small_writes_leave_at_once_and_a_dead_peer_is_given_up() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = SocketOptions { user_timeout: Duration::from_millis(1500), busy_poll: None };
        let (socket, _) = start(listener.local_addr().unwrap(), options).unwrap();
        assert!(sockopt::tcp_nodelay(&socket).unwrap());
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 1500);
    }
}
