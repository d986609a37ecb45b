//! The client's side of the tunnel for floors and peers: the dial, and bytes as they lie on the wire.
//!
//! Nothing here is measured but [`Replies`], which is as little as a client can do.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use crate::observation::SESSION;
use crate::reply::{self, ECHOED, LARGE, SMALL};

/// Where to dial, and as whom.
#[derive(Debug, Clone)]
pub struct Dial {
    /// The gateway.
    pub endpoint: String,
    /// The agent id, by which the harness knows the client.
    pub agent: String,
}

/// Opcode of a text frame (RFC 6455 5.2).
pub const TEXT: u8 = 1;
/// Opcode of a binary frame.
pub const BINARY: u8 = 2;
/// What a client says after `warmup`.
pub const READY: &str = "{\"type\":\"ready\"}";
/// A frame of the gateway's is no longer than this.
pub const MOST_FRAME: usize = (8 << 20) + 4096;

/// Any key is as good as another for who is measured.
const KEY: [u8; 4] = [0x5a, 0xc3, 0x17, 0x88];

/// Connects and upgrades.
///
/// # Errors
/// If the gateway does not answer with a 101.
pub fn dial(dial: &Dial) -> io::Result<TcpStream> {
    let rest = dial.endpoint.strip_prefix("ws://").ok_or_else(|| invalid("the endpoint is no ws:// URL"))?;
    let (host, path) = rest.split_once('/').ok_or_else(|| invalid("the endpoint has no path"))?;
    let mut socket = TcpStream::connect(host)?;
    socket.set_nodelay(true)?;
    let agent = &dial.agent;
    write!(
        socket,
        "GET /{path}?job=bench&agent={agent} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer bench\r\n\
         Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
         Sec-WebSocket-Key: AAECAwQFBgcICQoLDA0ODw==\r\n\r\n"
    )?;
    let mut head = Vec::new();
    let mut byte = [0];
    // Byte by byte: nothing that follows may be taken along.
    while !head.ends_with(b"\r\n\r\n") {
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    if head.starts_with(b"HTTP/1.1 101") { Ok(socket) } else { Err(invalid("no 101 from the gateway")) }
}

/// A frame of the gateway's, by its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub opcode: u8,
    /// Where its payload starts.
    pub start: usize,
    /// Where it ends.
    pub end: usize,
}

impl Frame {
    /// The frame at the start of `bytes`, as soon as its header is there.
    #[must_use]
    pub fn at(bytes: &[u8]) -> Option<Self> {
        let &[first, second, ..] = bytes else { return None };
        let (length, start) = match second & 0x7f {
            126 => (usize::from(u16::from_be_bytes(*bytes[2..].first_chunk()?)), 4),
            127 => (usize::try_from(u64::from_be_bytes(*bytes[2..].first_chunk()?)).ok()?, 10),
            short => (usize::from(short), 2),
        };
        Some(Self { opcode: first & 0x0f, start, end: start + length })
    }
}

/// A masked frame with a short text.
///
/// # Panics
/// If it is longer than 125 bytes.
#[must_use]
pub fn text(text: &str) -> Vec<u8> {
    masked(TEXT, &[text.as_bytes()])
}

/// Both replies as frames, made once; each one sent differs from the last in the bytes that it echoes.
#[derive(Debug)]
pub struct Replies {
    small: Vec<u8>,
    large: Vec<u8>,
}

impl Default for Replies {
    fn default() -> Self {
        Self { small: whole(SMALL), large: whole(LARGE) }
    }
}

impl Replies {
    /// The frame that answers a data message (session id and payload).
    pub fn to(&mut self, message: &[u8]) -> &[u8] {
        let payload = payload(message);
        let length = reply::length(payload.len());
        let frame = if length == SMALL { &mut self.small } else { &mut self.large };
        let at = frame.len() - length;
        let echo = reply::echo(payload);
        for (index, byte) in echo.iter().enumerate() {
            // The tunnel header is a multiple of four bytes long, so the key starts anew with the reply.
            frame[at + index] = byte ^ KEY[index % 4];
        }
        frame
    }
}

/// A reply as a message, for libraries that make the frame.
pub fn reply_message(message: &[u8], into: &mut Vec<u8>) {
    let payload = payload(message);
    into.clear();
    into.extend_from_slice(&message[..message.len() - payload.len()]);
    let head = into.len();
    into.extend_from_slice(&reply::PATTERN[..reply::length(payload.len())]);
    into[head..head + ECHOED].copy_from_slice(&reply::echo(payload));
}

/// What follows the session id of a data message; all of one that is shorter than it says.
#[must_use]
pub fn payload(message: &[u8]) -> &[u8] {
    let Some((length, rest)) = message.split_first_chunk() else { return message };
    rest.get(u32::from_be_bytes(*length) as usize..).unwrap_or(message)
}

fn whole(length: usize) -> Vec<u8> {
    const { assert!((4 + SESSION.len()).is_multiple_of(KEY.len())) };
    masked(BINARY, &[&(SESSION.len() as u32).to_be_bytes(), SESSION.as_bytes(), &reply::PATTERN[..length]])
}

fn masked(opcode: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut frame = vec![0x80 | opcode];
    match u8::try_from(length).ok().filter(|length| *length < 126) {
        Some(short) => frame.push(0x80 | short),
        None => {
            frame.push(0x80 | 126);
            frame.extend(u16::try_from(length).expect("a reply is shorter than 64 KiB").to_be_bytes());
        }
    }
    frame.extend(KEY);
    frame.extend(parts.iter().copied().flatten().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
    frame
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observation::Observation;

    #[test]
    fn headers_of_each_length_are_found_as_soon_as_they_are_there() {
        for length in [0, 64, 16 << 10, 2 << 20] {
            let observation = Observation::new(length);
            let bytes = observation.frame();
            let frame = Frame::at(bytes).unwrap();
            assert_eq!((frame.opcode, frame.end), (BINARY, bytes.len()));
            assert_eq!(payload(&bytes[frame.start..]), observation.payload());
            assert!((0..frame.start).all(|cut| Frame::at(&bytes[..cut]).is_none()));
        }
    }

    #[test]
    fn a_frame_made_before_is_the_reply_that_is_asked_for() {
        let mut replies = Replies::default();
        for length in [0, 64, reply::CONTEST[0]] {
            let mut observation = Observation::new(length);
            for _ in 0..2 {
                observation.stamp();
                let message = &observation.frame()[Frame::at(observation.frame()).unwrap().start..];
                let mut expected = Vec::new();
                reply_message(message, &mut expected);
                let mut body = vec![0; reply::length(length)];
                reply::write(observation.payload(), &mut body);
                assert!(expected.ends_with(&body));
                assert_eq!(replies.to(message), masked(BINARY, &[&expected]));
            }
        }
    }
}
