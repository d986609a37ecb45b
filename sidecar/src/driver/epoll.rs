//! The frame loop's I/O over epoll: where io_uring is missing or forbidden, equal in function.
//!
//! Edge-triggered throughout. A receive is tried when the socket is known to be readable; a short receive or
//! `EAGAIN` ends that knowledge (epoll(7), question 9), unless the peer's FIN has been announced.

use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{
    Calls, Close, Completion, Completions, Doorbells, Driver, Expect, SocketOptions, Taken, Tell, Wait,
    socket,
};

const SOCKET: Token = Token(0);
const DOORBELL: Token = Token(1);

#[derive(Debug)]
struct Receive {
    into: *mut u8,
    length: usize,
}

#[derive(Debug)]
struct Send {
    from: *const u8,
    length: usize,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    connecting: bool,
    readable: bool,
    writable: bool,
    /// The peer's FIN was announced: a short receive no longer means that nothing is left.
    read_closed: bool,
    receive: Option<Receive>,
    send: Option<Send>,
}

/// See the module.
#[derive(Debug)]
pub struct Epoll {
    poll: Poll,
    events: Events,
    connection: Option<Connection>,
    rung: bool,
    calls: Calls,
}

impl Epoll {
    /// Makes an epoll instance that also listens to `doorbells`, which must outlive it.
    ///
    /// # Errors
    /// No epoll instance could be made, or a doorbell could not be added.
    pub fn new(doorbells: Doorbells<'_>) -> io::Result<Self> {
        let poll = Poll::new()?;
        for doorbell in doorbells {
            poll.registry().register(&mut SourceFd(&doorbell.as_raw_fd()), DOORBELL, Interest::READABLE)?;
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(4),
            connection: None,
            rung: false,
            calls: Calls::default(),
        })
    }

    fn note_events(&mut self) {
        for event in &self.events {
            match (event.token(), &mut self.connection) {
                (DOORBELL, _) => self.rung = true,
                (SOCKET, Some(connection)) => {
                    connection.readable |= event.is_readable() || event.is_read_closed() || event.is_error();
                    connection.writable |= event.is_writable() || event.is_write_closed() || event.is_error();
                    connection.read_closed |= event.is_read_closed() || event.is_error();
                }
                _ => {}
            }
        }
    }

    fn take_ready(&mut self, completions: &mut Completions) {
        if core::mem::take(&mut self.rung) {
            completions.push(Completion::Doorbell);
        }
        if let Some(connection) = &mut self.connection {
            connection.take_ready(completions, &mut self.calls);
        }
    }
}

impl Connection {
    fn take_ready(&mut self, completions: &mut Completions, calls: &mut Calls) {
        if self.connecting {
            if self.writable {
                self.connecting = false;
                completions.push(Completion::Connected(socket::connected(&self.socket)));
            }
            return;
        }
        if self.writable
            && let Some(send) = &mut self.send
            && let Some(result) = send.advance(&self.socket, &mut self.writable, calls)
        {
            self.send = None;
            completions.push(Completion::Sent(result.map(|()| Taken::Now)));
        }
        if self.readable
            && let Some(receive) = &self.receive
            && let Some(result) = receive.attempt(&self.socket, calls)
        {
            let filled = result.as_ref().is_ok_and(|&length| length == receive.length);
            self.readable = filled || self.read_closed;
            self.receive = None;
            completions.push(Completion::Received(result));
        } else if self.receive.is_some() {
            self.readable = false;
        }
    }
}

impl Receive {
    /// `None` when nothing is there.
    fn attempt(&self, socket: &OwnedFd, calls: &mut Calls) -> Option<io::Result<usize>> {
        loop {
            calls.made += 1;
            // By pointer and length, as io_uring has it: of a slot that a worker may be writing at this moment no
            // reference is made, not even one to bytes without a value.
            // SAFETY: `Driver::receive` has the caller keep `into..into + length` valid for writes until the
            // completion, and the kernel alone writes here. The descriptor is open for as long as it is borrowed.
            let received =
                unsafe { libc::recv(socket.as_raw_fd(), self.into.cast(), self.length, libc::MSG_DONTWAIT) };
            if let Ok(length) = usize::try_from(received) {
                return Some(Ok(length));
            }
            let error = io::Error::last_os_error();
            match error.kind() {
                io::ErrorKind::WouldBlock => return None,
                io::ErrorKind::Interrupted => {}
                _ => return Some(Err(error)),
            }
        }
    }
}

impl Send {
    /// Sends on; `None` when the kernel's buffer is full.
    fn advance(
        &mut self,
        socket: &OwnedFd,
        writable: &mut bool,
        calls: &mut Calls,
    ) -> Option<io::Result<()>> {
        while self.length > 0 {
            // SAFETY: `Driver::send` has the caller keep `from..from + length` valid and unchanged until the
            // completion.
            let bytes = unsafe { core::slice::from_raw_parts(self.from, self.length) };
            calls.made += 1;
            match rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.from = self.from.wrapping_add(sent);
                    self.length -= sent;
                }
                Err(Errno::AGAIN) => {
                    *writable = false;
                    return None;
                }
                Err(Errno::INTR) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
        Some(Ok(()))
    }
}

impl Driver for Epoll {
    fn name(&self) -> &'static str {
        "epoll"
    }

    fn connect(&mut self, address: SocketAddr, options: SocketOptions) -> io::Result<()> {
        self.close(Close::Abort);
        let (socket, _) = socket::start(address, options)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut SourceFd(&socket.as_raw_fd()), SOCKET, interest)?;
        // A connection that is there at once is announced by the first edge like any other.
        self.connection = Some(Connection {
            socket,
            connecting: true,
            readable: false,
            writable: false,
            read_closed: false,
            receive: None,
            send: None,
        });
        Ok(())
    }

    unsafe fn receive(&mut self, into: *mut u8, length: usize, _expect: Expect) {
        let connection = self.connection.as_mut().expect("the caller has a connection");
        assert!(connection.receive.is_none(), "one receive at a time");
        connection.receive = Some(Receive { into, length });
    }

    unsafe fn send(&mut self, from: *const u8, length: usize, _tell: Tell) {
        let connection = self.connection.as_mut().expect("the caller has a connection");
        assert!(connection.send.is_none(), "one send at a time");
        connection.send = Some(Send { from, length });
    }

    fn is_receiving(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.receive.is_some())
    }

    fn is_sending(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.send.is_some())
    }

    fn take_calls(&mut self) -> Calls {
        core::mem::take(&mut self.calls)
    }

    fn turn(&mut self, wait: Wait, completions: &mut Completions) -> io::Result<()> {
        let before = completions.len();
        self.take_ready(completions);
        if completions.len() > before {
            return Ok(());
        }
        let timeout = match wait {
            Wait::Poll => Some(core::time::Duration::ZERO),
            Wait::Block(timeout) => timeout,
        };
        self.calls.made += 1;
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        self.calls.empty += u32::from(wait == Wait::Poll && self.events.is_empty());
        self.note_events();
        self.take_ready(completions);
        Ok(())
    }

    fn close(&mut self, how: Close) {
        let Some(connection) = self.connection.take() else { return };
        // Deregistering cannot fail for a descriptor that was registered and is still open.
        let _ = self.poll.registry().deregister(&mut SourceFd(&connection.socket.as_raw_fd()));
        if how == Close::Orderly && !connection.connecting {
            socket::linger(connection.socket.as_fd());
        }
    }
}
