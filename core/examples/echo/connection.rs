//! A WebSocket connection over a blocking TCP socket: the handshake, then frames both ways, then the end.
//!
//! One thread, one buffer. Every frame that is sent is masked with a fresh key; every rule of the closing handshake is
//! applied here, since the codec only reads and writes its frames.

use core::time::Duration;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use sidecar_core::ws::close::{CloseCode, MAX_CLOSE_PAYLOAD, write_close};
use sidecar_core::ws::frame::{self, Header, MAX_HEADER, Opcode};
use sidecar_core::ws::handshake::{RequestParts, Response, encode_key, parse_response, write_request};
use sidecar_core::ws::mask;
use sidecar_core::ws::message::MessageLimits;

use crate::receiver::{Message, Receiver};

/// As the agent has them, but for the length of a text: the suite sends up to 16 MiB.
const LIMITS: MessageLimits =
    MessageLimits { text_bytes: 16 << 20, binary_bytes: 16 << 20, fragments: 65_536 };
/// Nothing in the suite takes this long; what does is lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the server has to close the connection after the closing handshake (RFC 6455, section 7.1.1).
const LAST_WAIT: Duration = Duration::from_secs(5);
/// The suite asks for none, but a request without a token is not the tunnel's.
const TOKEN: &str = "conformance";

/// See the module.
pub(crate) struct Connection {
    stream: TcpStream,
    receiver: Receiver,
    /// `buffer[from..to]` was received and not parsed.
    buffer: Box<[u8]>,
    from: usize,
    to: usize,
    entropy: ChaCha8Rng,
    /// The frame that is being sent.
    out: Vec<u8>,
}

impl Connection {
    /// Dials `address` and asks for an upgrade on `path_and_query`.
    ///
    /// # Errors
    /// No connection comes about, or the server answers with anything but an upgrade.
    pub(crate) fn open(address: &str, path_and_query: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        // The mask has to be unpredictable for whoever chose the payload (RFC 6455, section 10.3).
        let mut seed = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut seed)?;
        let mut connection = Self {
            stream,
            receiver: Receiver::new(LIMITS),
            buffer: vec![0; 64 << 10].into(),
            from: 0,
            to: 0,
            entropy: ChaCha8Rng::from_seed(seed),
            out: Vec::new(),
        };
        connection.upgrade(address, path_and_query)?;
        Ok(connection)
    }

    fn upgrade(&mut self, host: &str, path_and_query: &str) -> io::Result<()> {
        let mut nonce = [0; 16];
        self.entropy.fill_bytes(&mut nonce);
        let key = encode_key(nonce);
        let parts = RequestParts { host, path_and_query, key: &key, token: TOKEN };
        let mut request = [0; 1024];
        let length = write_request(&parts, &mut request).map_err(io::Error::other)?;
        self.stream.write_all(&request[..length])?;
        loop {
            match parse_response(&self.buffer[..self.to], &key).map_err(io::Error::other)? {
                Response::Accepted { consumed } => {
                    // What came along with the answer are frames already.
                    self.from = consumed;
                    return Ok(());
                }
                Response::Refused { status, .. } => {
                    return Err(io::Error::other(format!(
                        "{path_and_query} was refused with status {status}"
                    )));
                }
                Response::Incomplete => {
                    let room = &mut self.buffer[self.to..];
                    match self.stream.read(room)? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        count => self.to += count,
                    }
                }
            }
        }
    }

    /// The next message of the peer; `None` once the connection is over. A close frame is answered here, and so is a
    /// broken rule: with the close code that it calls for.
    ///
    /// # Errors
    /// The socket failed in another way than by a reset, which is an end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            let mut bytes = &self.buffer[self.from..self.to];
            let received = self.receiver.receive(&mut bytes);
            self.from = self.to - bytes.len();
            match received {
                Ok(Some(Message::Close(code, _))) => {
                    let code = code.and_then(CloseCode::new);
                    self.close(code, "")?;
                    return Ok(None);
                }
                Ok(Some(message)) => return Ok(Some(message)),
                Err(violation) => {
                    self.close(Some(violation.close_code()), &violation.to_string())?;
                    return Ok(None);
                }
                Ok(None) => {}
            }
            match self.stream.read(&mut self.buffer) {
                // An end without a close frame is an end all the same.
                Ok(0) => return Ok(None),
                Ok(count) => (self.from, self.to) = (0, count),
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Sends one frame that is a message of its own.
    ///
    /// # Errors
    /// The socket's.
    pub(crate) fn send(&mut self, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
        let key = self.entropy.next_u32().to_ne_bytes();
        let header = Header { fin: true, opcode, masked: Some(key), length: payload.len() as u64 };
        let mut head = [0; MAX_HEADER];
        let size = frame::encode(&header, &mut head);
        self.out.clear();
        self.out.extend_from_slice(&head[..size]);
        self.out.extend_from_slice(payload);
        mask::apply(key, 0, &mut self.out[size..]);
        // Header and payload in one write: two would meet Nagle's algorithm and a delayed acknowledgement.
        self.stream.write_all(&self.out)
    }

    /// Sends the close frame, then waits for the server to close the connection, as it is the server's to do first.
    /// What arrives meanwhile is read past, so that the close frame is not lost to a reset.
    fn close(&mut self, code: Option<CloseCode>, reason: &str) -> io::Result<()> {
        let mut payload = [0; MAX_CLOSE_PAYLOAD];
        let length = code.map_or(0, |code| write_close(code, reason, &mut payload));
        // A peer that is gone has no use for it.
        if self.send(Opcode::Close, &payload[..length]).is_err() {
            return Ok(());
        }
        self.stream.set_read_timeout(Some(LAST_WAIT))?;
        while let Ok(1..) = self.stream.read(&mut self.buffer) {}
        // Closed already, as a rule.
        let _ = self.stream.shutdown(Shutdown::Both);
        Ok(())
    }
}
