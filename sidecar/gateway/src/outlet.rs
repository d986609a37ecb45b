//! The write side of a connection: whole messages the normal way through fastwebsockets' frames, and the same bytes
//! in unfriendly ways on request.

use core::time::Duration;
use std::collections::VecDeque;
use std::io;

use fastwebsockets::{Frame, OpCode, Payload};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::faults::Malformed;
use crate::options::Framing;
use crate::wire::{Pace, Paced};

/// Payloads above this leave with a gathering write, as fastwebsockets itself does; below, a copy is cheaper.
const COPY_LIMIT: usize = 1024;
/// Apart enough for two segments to be read apart.
const SEGMENT_GAP: Duration = Duration::from_millis(1);
/// How long a close frame may wait for room in the socket.
const CLOSE_PATIENCE: Duration = Duration::from_secs(1);

/// Writes frames to one connection.
#[derive(Debug)]
pub(crate) struct Outlet {
    half: Paced<OwnedWriteHalf>,
    framing: Framing,
    /// True when the read side has ended: a write that the agent does not take must not wait for ever.
    ended: watch::Receiver<bool>,
    scratch: Vec<u8>,
    /// Payloads of pings that are not answered yet, oldest first.
    asked: VecDeque<[u8; 8]>,
    pings: u64,
}

impl Outlet {
    pub(crate) fn new(half: OwnedWriteHalf, framing: Framing, ended: watch::Receiver<bool>) -> Self {
        let pace = framing.pace();
        let half = Paced { inner: half, pace };
        Self { half, framing, ended, scratch: Vec::new(), asked: VecDeque::new(), pings: 0 }
    }

    pub(crate) async fn text(&mut self, text: &str) -> io::Result<()> {
        self.message(OpCode::Text, text.as_bytes()).await
    }

    /// A data message, its payload being a whole data frame of tunnel contract A.3.
    pub(crate) async fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.message(OpCode::Binary, bytes).await
    }

    async fn message(&mut self, opcode: OpCode, bytes: &[u8]) -> io::Result<()> {
        let Some(size) = self.framing.fragment else {
            return self.frame(Frame::new(true, opcode, None, Payload::Borrowed(bytes))).await;
        };
        let mut pieces = bytes.chunks(size.get()).peekable();
        let mut opcode = opcode;
        while let Some(piece) = pieces.next() {
            let last = pieces.peek().is_none() && !self.framing.empty_final;
            self.frame(Frame::new(last, opcode, None, Payload::Borrowed(piece))).await?;
            opcode = OpCode::Continuation;
            if !last && self.framing.ping_between_fragments {
                self.ping().await?;
            }
        }
        if self.framing.empty_final || bytes.is_empty() {
            self.frame(Frame::new(true, opcode, None, Payload::Borrowed(&[]))).await?;
        }
        Ok(())
    }

    pub(crate) async fn ping(&mut self) -> io::Result<()> {
        let payload = self.pings.to_be_bytes();
        self.pings += 1;
        self.asked.push_back(payload);
        self.frame(Frame::new(true, OpCode::Ping, None, Payload::Borrowed(&payload))).await
    }

    /// Whether a pong answers one of our pings; an answer covers the pings before it (RFC 6455 section 5.5.3).
    pub(crate) fn take_pong(&mut self, payload: &[u8]) -> bool {
        let found = self.asked.iter().position(|asked| asked == payload);
        found.map(|at| self.asked.drain(..=at)).is_some()
    }

    pub(crate) async fn pong(&mut self, payload: &[u8]) -> io::Result<()> {
        self.frame(Frame::pong(Payload::Borrowed(payload))).await
    }

    pub(crate) async fn close(&mut self, code: Option<u16>, reason: &str) -> io::Result<()> {
        let payload = code.map(|code| [&code.to_be_bytes(), reason.as_bytes()].concat()).unwrap_or_default();
        let length = Frame::close_raw(Payload::Owned(payload)).write(&mut self.scratch).len();
        // Not `frame`: the answer to a close is due though the read side has ended.
        timeout(CLOSE_PATIENCE, self.half.write_all(&self.scratch[..length])).await?
    }

    /// The head and half of the payload of a data message, and no more.
    pub(crate) async fn half_data(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut encoded = Vec::new();
        let length = Frame::binary(Payload::Borrowed(bytes)).write(&mut encoded).len();
        self.raw(&encoded[..length - bytes.len().div_ceil(2)]).await
    }

    pub(crate) async fn malformed(&mut self, kind: Malformed) -> io::Result<()> {
        let bytes: &[u8] = match kind {
            // "hello" under the mask of RFC 6455's own example (section 5.7).
            Malformed::Masked => &[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58],
            Malformed::Rsv => &[0xC2, 0x01, 0x00],
            Malformed::Opcode => &[0x83, 0x01, 0x00],
            Malformed::Length => &[0x82, 0x7F, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF],
            Malformed::ShortData => &[0x82, 0x03, 0x00, 0x00, 0x00],
            Malformed::SidOverrun => &[0x82, 0x06, 0x00, 0x00, 0x00, 0x40, b'a', b'b'],
            Malformed::Json => b"\x81\x10{\"type\":\"warmup\"",
        };
        self.raw(bytes).await
    }

    async fn frame(&mut self, mut frame: Frame<'_>) -> io::Result<()> {
        let Self { half, framing, ended, scratch, .. } = self;
        let write = async {
            if framing.split_headers {
                let length = frame.write(scratch).len();
                write_split(half, &scratch[..length], frame.payload.len()).await
            } else if frame.payload.len() > COPY_LIMIT && half.pace == Pace::Whole {
                frame.writev(half).await
            } else {
                half.write_all(frame.write(scratch)).await
            }
        };
        unless_ended(write, ended).await
    }

    async fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        unless_ended(self.half.write_all(bytes), &mut self.ended).await
    }

    /// Makes the end of this connection a reset instead of an end of file.
    pub(crate) fn reset(self) {
        // The socket is going away in any case; without the option it ends with a FIN.
        let _ = self.half.inner.as_ref().set_zero_linger();
        self.half.inner.forget();
    }
}

/// A frame in segments: each byte of its header and of the data frame's length field on its own, as far as there is
/// one, then the rest.
async fn write_split(half: &mut Paced<OwnedWriteHalf>, frame: &[u8], payload: usize) -> io::Result<()> {
    let alone = frame.len() - payload + payload.min(4);
    for byte in &frame[..alone] {
        half.write_all(&[*byte]).await?;
        sleep(SEGMENT_GAP).await;
    }
    half.write_all(&frame[alone..]).await
}

async fn unless_ended<T>(
    write: impl Future<Output = io::Result<T>>,
    ended: &mut watch::Receiver<bool>,
) -> io::Result<T> {
    tokio::select! {
        biased;
        result = write => result,
        _ = ended.wait_for(|ended| *ended) => Err(io::ErrorKind::BrokenPipe.into()),
    }
}
