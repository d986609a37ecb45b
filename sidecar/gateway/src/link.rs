//! One live connection: a task that reads, and an outlet that writes.
//!
//! The reading task owns the read deadline. As with gorilla/websocket gateways, it is absolute and only pongs move
//! it (solicited or not): an agent that sends actions but answers no pings is cut.

use core::fmt;
use core::time::Duration;
use std::io;

use bytes::Bytes;
use fastwebsockets::{FragmentCollector, OpCode, Role, WebSocket, WebSocketError};
use tokio::io::{AsyncRead, AsyncReadExt, Join, Sink};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use crate::inspect::{Inspector, Violation};
use crate::options::Options;
use crate::outlet::Outlet;

/// Largest message of an agent: a hundred times what the contest's replies have.
const MESSAGE_LIMIT: u64 = 16 << 20;
/// Messages read ahead of the tunnel.
const AHEAD: usize = 1024;
/// How long what a peer still sends is thrown away before the socket is closed under it.
const LET_GO: Duration = Duration::from_secs(1);

/// What came from the agent.
#[derive(Debug)]
pub(crate) enum Inbound {
    Text(Vec<u8>),
    Data { frame: Vec<u8>, at: Instant },
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close { code: Option<u16>, reason: String },
    Ended(End),
}

/// How reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    Eof,
    Failed(io::ErrorKind),
    /// The read deadline passed without a pong.
    Silent,
    Violation(Violation),
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Eof => f.write_str("end of file without a close frame"),
            Self::Failed(kind) => write!(f, "{kind}"),
            Self::Silent => f.write_str("no pong within the read deadline"),
            Self::Violation(violation) => write!(f, "{violation}"),
        }
    }
}

/// A connection after its upgrade. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) inbound: mpsc::Receiver<Inbound>,
    pub(crate) outlet: Outlet,
    reader: Reader,
}

#[derive(Debug)]
struct Reader(Option<JoinHandle<()>>);

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

impl Link {
    pub(crate) fn start(stream: TcpStream, leftover: Bytes, options: &Options) -> Self {
        let (read, write) = stream.into_split();
        let (sender, inbound) = mpsc::channel(AHEAD);
        let (ended, watcher) = watch::channel(false);
        let inspector = Inspector::new(leftover, read, MESSAGE_LIMIT);
        let deadline = options.timers.read_deadline;
        let task = tokio::spawn(async move {
            read_messages(inspector, &sender, deadline, ended).await;
        });
        let outlet = Outlet::new(write, options.framing, watcher);
        Self { inbound, outlet, reader: Reader(Some(task)) }
    }

    /// Closes the socket with a reset.
    pub(crate) fn reset(self) {
        self.outlet.reset();
    }

    /// Ends the write side and leaves the read side to run out, so that nothing we sent is lost to a reset.
    pub(crate) fn retire(mut self) {
        self.reader.0 = None;
    }
}

type Stream = FragmentCollector<Join<Inspector<OwnedReadHalf>, Sink>>;

async fn read_messages(
    inspector: Inspector<OwnedReadHalf>,
    sender: &mpsc::Sender<Inbound>,
    patience: Duration,
    ended: watch::Sender<bool>,
) {
    // Pongs and closes are the tunnel's to write, so this end writes nothing.
    let mut socket = WebSocket::after_handshake(tokio::io::join(inspector, tokio::io::sink()), Role::Server);
    socket.set_auto_pong(false);
    socket.set_auto_close(false);
    // Fastwebsockets refuses a frame that is as long as its limit; the inspector's is the one that counts.
    socket.set_max_message_size(MESSAGE_LIMIT as usize + 1);
    let mut stream = FragmentCollector::new(socket);
    let last = read_until_end(&mut stream, sender, patience).await;
    ended.send_replace(true);
    // A tunnel that does not listen any more has dropped the connection itself.
    let _ = sender.send(last).await;
    let_go(stream.into_inner().into_inner().0.into_inner()).await;
}

/// Throws away what still comes, for a while, so that closing does not reset what was sent last.
pub(crate) async fn let_go(mut read: impl AsyncRead + Unpin) {
    let mut waste = vec![0; 16 << 10];
    let drain = async { while let Ok(1..) = read.read(&mut waste).await {} };
    // Either the end came, or it was waited for long enough.
    let _ = timeout(LET_GO, drain).await;
}

async fn read_until_end(stream: &mut Stream, sender: &mpsc::Sender<Inbound>, patience: Duration) -> Inbound {
    let mut deadline = Instant::now() + patience;
    loop {
        let frame = match timeout_at(deadline, stream.read_frame()).await {
            Err(_) => return Inbound::Ended(End::Silent),
            Ok(Err(error)) => return Inbound::Ended(end_of(&error)),
            Ok(Ok(frame)) => frame,
        };
        let at = Instant::now();
        let payload = Vec::from(frame.payload);
        let inbound = match frame.opcode {
            OpCode::Text => Inbound::Text(payload),
            OpCode::Binary => Inbound::Data { frame: payload, at },
            OpCode::Ping => Inbound::Ping(payload),
            OpCode::Pong => {
                deadline = at + patience;
                Inbound::Pong(payload)
            }
            OpCode::Close => return close_of(&payload),
            // The collector gives whole messages; a continuation cannot come out of it.
            OpCode::Continuation => continue,
        };
        match timeout_at(deadline, sender.send(inbound)).await {
            Err(_) => return Inbound::Ended(End::Silent),
            Ok(Err(_)) => return Inbound::Ended(End::Eof),
            Ok(Ok(())) => {}
        }
    }
}

fn end_of(error: &WebSocketError) -> End {
    match error {
        WebSocketError::UnexpectedEOF => End::Eof,
        WebSocketError::IoError(error) => {
            match error.get_ref().and_then(|inner| inner.downcast_ref::<Violation>()) {
                Some(violation) => End::Violation(*violation),
                None => End::Failed(error.kind()),
            }
        }
        WebSocketError::InvalidUTF8 => {
            End::Violation(Violation { code: 1007, what: "text that is not UTF-8" })
        }
        _ => End::Violation(Violation { code: 1002, what: "a frame that fastwebsockets refuses" }),
    }
}

/// The close frame, or the breach that it is (RFC 6455 sections 5.5.1 and 7.4).
fn close_of(payload: &[u8]) -> Inbound {
    let bad = |what| Inbound::Ended(End::Violation(Violation { code: 1002, what }));
    let Some((code, reason)) = payload.split_first_chunk() else {
        return if payload.is_empty() {
            Inbound::Close { code: None, reason: String::new() }
        } else {
            bad("a close frame of one byte")
        };
    };
    let code = u16::from_be_bytes(*code);
    if !matches!(code, 1000..=1003 | 1007..=1014 | 3000..=4999) {
        return bad("a close code that may not be sent");
    }
    match core::str::from_utf8(reason) {
        Ok(reason) => Inbound::Close { code: Some(code), reason: reason.to_owned() },
        Err(_) => {
            Inbound::Ended(End::Violation(Violation { code: 1007, what: "a close reason that is not UTF-8" }))
        }
    }
}
