//! The socket side of the sidecar alone: its drivers, its codec, its way to wait, and no worker.

use std::io;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;

use rustix::event::{EventfdFlags, eventfd};
use sidecar::driver::{
    Completion, Completions, DOORBELLS, Driver, Epoll, Expect, RingMode, SocketOptions, Tell, Uring, Wait,
};
use sidecar_benches::client::{self, READY};
use sidecar_benches::reply;
use sidecar_core::ws::frame::{Decoded, Header, MAX_HEADER, Opcode, decode, encode};
use sidecar_core::ws::mask;
use sidecar_shm::spin::{Mode, Spin};

use crate::DialArgs;

const MOST_REPLY: usize = 4 + 256 + reply::LARGE;
const KEY: [u8; 4] = [0x9d, 0x31, 0x70, 0x0e];
/// A send that takes longer has no peer any more.
const OPTIONS: SocketOptions =
    SocketOptions { user_timeout: core::time::Duration::from_secs(40), busy_poll: None };

/// Which driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Io {
    Uring,
    Epoll,
}

/// Answers until `drain`.
///
/// # Errors
/// The driver or the connection broke.
pub(crate) fn run(args: &DialArgs, io: Io, spin: Mode, ring: RingMode) -> io::Result<()> {
    // Nobody rings them.
    let mut bells = Vec::new();
    for _ in 0..DOORBELLS {
        bells.push(eventfd(0, EventfdFlags::CLOEXEC)?);
    }
    let bells = core::array::from_fn(|index| bells[index].as_fd());
    let driver: Box<dyn Driver> = match io {
        Io::Uring => Box::new(Uring::new(bells, ring)?),
        Io::Epoll => Box::new(Epoll::new(bells)?),
    };
    let mut client = Client {
        driver,
        spin: Spin::measure(spin, 1),
        came: Completions::with_capacity(4),
        buffer: vec![0; client::MOST_FRAME].into_boxed_slice(),
        filled: 0,
        out: Box::new([0; MAX_HEADER + MOST_REPLY]),
        sent: true,
    };
    client.upgrade(args)?;
    client.serve()
}

struct Client {
    driver: Box<dyn Driver>,
    spin: Spin,
    came: Completions,
    buffer: Box<[u8]>,
    filled: usize,
    out: Box<[u8; MAX_HEADER + MOST_REPLY]>,
    /// What lies in `out` has left.
    sent: bool,
}

impl Client {
    fn upgrade(&mut self, args: &DialArgs) -> io::Result<()> {
        let rest = args.endpoint.strip_prefix("ws://").unwrap_or(&args.endpoint);
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let address = host.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        self.driver.connect(address, OPTIONS)?;
        self.turn(Wait::Block(None))?;
        let request = format!(
            "GET /{path}?job=bench&agent={} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n\r\n",
            args.agent
        );
        self.out[..request.len()].copy_from_slice(request.as_bytes());
        self.send(0, request.len());
        loop {
            let head = self.buffer[..self.filled].windows(4).position(|end| end == b"\r\n\r\n");
            if let Some(at) = head {
                self.consume(at + 4);
                return Ok(());
            }
            self.receive_more()?;
        }
    }

    fn serve(&mut self) -> io::Result<()> {
        loop {
            let (header, start) = match decode(&self.buffer[..self.filled]).map_err(io::Error::other)? {
                Decoded::Header { header, size } if size + header.length as usize <= self.filled => {
                    (header, size)
                }
                _ => {
                    self.receive_more()?;
                    continue;
                }
            };
            let end = start + header.length as usize;
            let message = &self.buffer[start..end];
            let is = |word: &str| message.windows(word.len()).any(|window| window == word.as_bytes());
            match header.opcode {
                Opcode::Binary => {
                    let payload = client::payload(message);
                    let (head, length) = (message.len() - payload.len(), reply::length(payload.len()));
                    let echo = reply::echo(payload);
                    let body = &mut self.out[MAX_HEADER..MAX_HEADER + head + length];
                    body[..head].copy_from_slice(&message[..head]);
                    body[head..].copy_from_slice(&reply::PATTERN[..length]);
                    body[head..head + echo.len()].copy_from_slice(&echo);
                    self.send_frame(Opcode::Binary, head + length);
                }
                Opcode::Text if is("\"drain\"") => return Ok(()),
                Opcode::Text if is("\"warmup\"") => {
                    self.out[MAX_HEADER..MAX_HEADER + READY.len()].copy_from_slice(READY.as_bytes());
                    self.send_frame(Opcode::Text, READY.len());
                }
                _ => {}
            }
            self.consume(end);
        }
    }

    /// What lies behind the room for a header in `out`, masked.
    fn send_frame(&mut self, opcode: Opcode, length: usize) {
        let mut header = [0; MAX_HEADER];
        let header_of = Header { fin: true, opcode, masked: Some(KEY), length: length as u64 };
        let size = encode(&header_of, &mut header);
        self.out[MAX_HEADER - size..MAX_HEADER].copy_from_slice(&header[..size]);
        mask::apply(KEY, 0, &mut self.out[MAX_HEADER..MAX_HEADER + length]);
        self.send(MAX_HEADER - size, size + length);
    }

    fn send(&mut self, start: usize, length: usize) {
        assert!(self.sent, "a gateway in lockstep has the last reply before it asks for the next");
        self.sent = false;
        // SAFETY: `out` is written again only when `sent` is true, which is set with the completion; it lives longer
        // than the driver's connection, which is dropped with the driver, the first field.
        unsafe { self.driver.send(self.out[start..].as_ptr(), length, Tell::AtTurnEnd) };
    }

    fn receive_more(&mut self) -> io::Result<()> {
        let free = &mut self.buffer[self.filled..];
        // SAFETY: nothing touches `buffer` before the completion below; it lives longer than the driver's connection.
        unsafe { self.driver.receive(free.as_mut_ptr(), free.len(), Expect::Bytes) };
        let before = self.filled;
        while self.filled == before || !self.sent {
            let Self { driver, spin, came, .. } = self;
            let mut failed = None;
            let found = spin.wait(|| {
                failed = driver.turn(Wait::Poll, came).err();
                failed.is_some() || !came.is_empty()
            });
            if let Some(error) = failed {
                return Err(error);
            }
            if found {
                self.take()?;
            } else {
                let started = sidecar_shm::clock::now();
                self.turn(Wait::Block(None))?;
                self.spin.slept(sidecar_shm::clock::now().since(started));
            }
        }
        Ok(())
    }

    fn turn(&mut self, wait: Wait) -> io::Result<()> {
        self.driver.turn(wait, &mut self.came)?;
        self.take()
    }

    fn take(&mut self) -> io::Result<()> {
        for completion in self.came.drain(..) {
            match completion {
                Completion::Connected(result) => result?,
                Completion::Received(result) => match result? {
                    0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                    length => self.filled += length,
                },
                Completion::Sent(result) => {
                    result?;
                    self.sent = true;
                }
                Completion::Doorbell => {}
            }
        }
        Ok(())
    }

    fn consume(&mut self, end: usize) {
        self.buffer.copy_within(end..self.filled, 0);
        self.filled -= end;
    }
}
