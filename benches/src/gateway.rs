//! The other end of every measurement: the server side of the tunnel contract, as little of it as an exchange needs.
//!
//! One thread, blocking or spinning, no buffers but its own, no library: what it costs is a write and some reads. It
//! checks every byte of a reply after the clock has been read. It refuses to be robust: a client that does anything
//! unexpected is an error, since a measurement of it would mean nothing.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};

use base64ct::{Base64, Encoding};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, recv};
use sha1::{Digest, Sha1};
use sidecar_shm::clock;

use crate::observation::{Observation, SESSION};
use crate::reply;

/// Listens for clients.
#[derive(Debug)]
pub struct Gateway {
    listener: TcpListener,
    endpoint: String,
}

/// How a tunnel waits for room and for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// In the kernel.
    Block,
    /// It never sleeps.
    Spin,
}

/// A client that is warm and has a session.
#[derive(Debug)]
pub struct Tunnel {
    agent: String,
    socket: TcpStream,
    waiting: Waiting,
    input: Box<[u8]>,
    filled: usize,
    expected: Vec<u8>,
}

/// The largest thing that a client sends is a reply.
const INPUT_BYTES: usize = 64 << 10;
/// RFC 6455 4.2.2.
const ACCEPT_GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;

impl Gateway {
    /// On a port of its own.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn bind() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let endpoint = format!("ws://{}/api/challenge/tunnel", listener.local_addr()?);
        Ok(Self { listener, endpoint })
    }

    /// What clients dial.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Takes the next client through upgrade, warm-up and `session_open`.
    ///
    /// # Errors
    /// None came within `patience`; it did something else than the contract's.
    pub fn accept(&self, patience: Duration) -> io::Result<Tunnel> {
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        if poll(&mut [PollFd::new(&self.listener, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no client dialled"));
        }
        let (socket, _) = self.listener.accept()?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(patience))?;
        let mut tunnel = Tunnel {
            agent: String::new(),
            socket,
            waiting: Waiting::Block,
            input: vec![0; INPUT_BYTES].into_boxed_slice(),
            filled: 0,
            expected: Vec::with_capacity(reply::LARGE),
        };
        tunnel.upgrade()?;
        tunnel.send_text("{\"type\":\"warmup\"}")?;
        while !tunnel.take_frame(TEXT)?.windows(7).any(|word| word == b"\"ready\"") {}
        tunnel.send_text(&format!("{{\"type\":\"session_open\",\"session_id\":\"{SESSION}\"}}"))?;
        Ok(tunnel)
    }
}

impl Tunnel {
    /// The `agent` of its dial.
    #[must_use]
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// How exchanges wait from now on.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn wait_by(&mut self, waiting: Waiting) -> io::Result<()> {
        self.waiting = waiting;
        self.socket.set_nonblocking(waiting == Waiting::Spin)
    }

    /// Sends an observation and waits for its reply, which has to be right. The time is from before the first byte is
    /// written until the last byte of the reply was read.
    ///
    /// # Errors
    /// A wrong reply, anything else than a reply or a ping, none within the patience of `accept`, or the end of the
    /// connection.
    pub fn exchange(&mut self, observation: &mut Observation) -> io::Result<Duration> {
        observation.stamp();
        let started = clock::now();
        self.write(observation.frame())?;
        let (start, end) = self.await_frame(BINARY)?;
        let took = clock::now().since(started);
        self.expected.clear();
        self.expected.extend((SESSION.len() as u32).to_be_bytes());
        self.expected.extend(SESSION.as_bytes());
        let head = self.expected.len();
        self.expected.resize(head + reply::length(observation.payload().len()), 0);
        reply::write(observation.payload(), &mut self.expected[head..]);
        let right = self.input[start..end] == self.expected[..];
        self.consume(end);
        if right { Ok(took) } else { Err(broken("the reply is not what the observation asks for")) }
    }

    /// Sends observations without waiting for replies in between, at most `ahead` unanswered; the time is from the first
    /// byte written until the last reply was read. Replies are checked by their length, and the last one byte by byte.
    ///
    /// # Errors
    /// As [`Tunnel::exchange`].
    pub fn stream(&mut self, observation: &mut Observation, count: u32, ahead: u32) -> io::Result<Duration> {
        let started = clock::now();
        let length = 4 + SESSION.len() + reply::length(observation.payload().len());
        let (mut sent, mut answered) = (0, 0);
        while answered < count - 1 {
            while sent < count - 1 && sent - answered < ahead {
                self.write(observation.frame())?;
                sent += 1;
            }
            let (start, end) = self.await_frame(BINARY)?;
            if end - start != length {
                return Err(broken("a reply has another length than the observation asks for"));
            }
            self.consume(end);
            answered += 1;
        }
        self.exchange(observation)?;
        Ok(clock::now().since(started))
    }

    /// Answers pings that came meanwhile, so that an idle client stays.
    ///
    /// # Errors
    /// As [`Tunnel::exchange`].
    pub fn serve_idle(&mut self) -> io::Result<()> {
        let free = &mut self.input[self.filled..];
        match recv(&self.socket, free, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok((_, length)) => self.filled += length,
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        while let Some((opcode, start, end)) = self.front()? {
            match opcode {
                PING => self.answer_ping(start, end)?,
                PONG => self.consume(end),
                _ => return Err(broken("an idle client sent a message")),
            }
        }
        Ok(())
    }

    /// Drains the tunnel and waits for the client's end.
    ///
    /// # Errors
    /// If the client does not close in time.
    pub fn drain(mut self) -> io::Result<()> {
        self.wait_by(Waiting::Block)?;
        self.send_text("{\"type\":\"drain\"}")?;
        let mut rest = [0; 1024];
        // A close frame, then the end; a client that only ends is as good.
        while self.socket.read(&mut rest)? > 0 {
            // A close frame in answer, so that no client waits for one.
            let _ = self.socket.write_all(&[0x88, 2, 0x03, 0xe8]);
        }
        Ok(())
    }

    fn upgrade(&mut self) -> io::Result<()> {
        let end = loop {
            if let Some(at) = self.input[..self.filled].windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break at + 4;
            }
            self.read_more()?;
        };
        let head = String::from_utf8_lossy(&self.input[..end]).into_owned();
        let header = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim().to_owned())
        };
        let key = header("sec-websocket-key").ok_or_else(|| broken("no Sec-WebSocket-Key"))?;
        let target = head.split(' ').nth(1).unwrap_or_default();
        self.agent = target
            .split(['?', '&'])
            .find_map(|pair| pair.strip_prefix("agent="))
            .ok_or_else(|| broken("no agent in the dial"))?
            .to_owned();
        let digest = Sha1::digest(format!("{key}{ACCEPT_GUID}"));
        let mut text = [0; 28];
        let accept = Base64::encode(&digest, &mut text).expect("20 bytes are 28 letters");
        self.consume(end);
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        );
        self.socket.write_all(answer.as_bytes())
    }

    fn send_text(&mut self, text: &str) -> io::Result<()> {
        let length = u8::try_from(text.len()).ok().filter(|length| *length < 126);
        let length = length.ok_or_else(|| broken("a control text of 126 bytes or more"))?;
        let mut frame = vec![0x80 | TEXT, length];
        frame.extend(text.as_bytes());
        self.write(&frame)
    }

    /// Waits for a message of this kind and takes it.
    fn take_frame(&mut self, wanted: u8) -> io::Result<Vec<u8>> {
        let (start, end) = self.await_frame(wanted)?;
        let bytes = self.input[start..end].to_vec();
        self.consume(end);
        Ok(bytes)
    }

    /// Waits until a message of this kind is at the front, unmasked; where its payload starts and ends.
    fn await_frame(&mut self, wanted: u8) -> io::Result<(usize, usize)> {
        loop {
            match self.front()? {
                None => self.read_more()?,
                Some((opcode, start, end)) if opcode == wanted => return Ok((start, end)),
                Some((PING, start, end)) => self.answer_ping(start, end)?,
                Some((PONG, _, end)) => self.consume(end),
                Some((opcode, ..)) => return Err(broken(&format!("opcode {opcode} instead of {wanted}"))),
            }
        }
    }

    /// The frame at the front, if all of it is there: opcode, start and end of its payload, which is unmasked here.
    fn front(&mut self) -> io::Result<Option<(u8, usize, usize)>> {
        let input = &self.input[..self.filled];
        let &[first, second, ..] = input else { return Ok(None) };
        if first & 0xf0 != 0x80 || second & 0x80 == 0 {
            return Err(broken("a frame that is fragmented, has RSV bits, or is not masked"));
        }
        let (length, mask_at) = match second & 0x7f {
            126 if input.len() < 4 => return Ok(None),
            126 => (usize::from(u16::from_be_bytes([input[2], input[3]])), 4),
            127 => return Err(broken("a frame of 64 KiB or more")),
            short => (usize::from(short), 2),
        };
        let start = mask_at + 4;
        let end = start + length;
        if input.len() < end {
            return Ok(None);
        }
        let mask: [u8; 4] = input[mask_at..start].try_into().expect("four bytes lie between the two");
        self.input[start..end].iter_mut().zip(mask.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        // Looked at once: whoever gets it consumes it.
        Ok(Some((first & 0x0f, start, end)))
    }

    fn answer_ping(&mut self, start: usize, end: usize) -> io::Result<()> {
        let mut pong = vec![0x80 | PONG, (end - start) as u8];
        pong.extend(&self.input[start..end]);
        self.consume(end);
        self.write(&pong)
    }

    fn consume(&mut self, end: usize) {
        self.input.copy_within(end..self.filled, 0);
        self.filled -= end;
    }

    fn read_more(&mut self) -> io::Result<()> {
        loop {
            match self.socket.read(&mut self.input[self.filled..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    self.filled += length;
                    return Ok(());
                }
                Err(error) if self.goes_on(&error) => core::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(length) => bytes = &bytes[length..],
                Err(error) if self.goes_on(&error) => core::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn goes_on(&self, error: &io::Error) -> bool {
        let spins = self.waiting == Waiting::Spin && error.kind() == io::ErrorKind::WouldBlock;
        spins || error.kind() == io::ErrorKind::Interrupted
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}
