//! The codec's parts put together into a receiver: bytes go in as the network cuts them, messages come out.
//!
//! [`frame::decode`] reads headers, the [`Assembler`] says what each frame is within its message and enforces the
//! limits, [`Utf8`] judges text as it arrives, [`parse_close_payload`] reads the close frame. What the codec leaves to
//! its caller is here: to keep the bytes, and to stop at the first violation or close.
//!
//! It does no I/O and sends nothing. The codec's own tests run it against two other implementations.

use sidecar_core::ws::Violation;
use sidecar_core::ws::close::{CloseCode, parse_close_payload};
use sidecar_core::ws::frame::{self, Decoded, MAX_HEADER};
use sidecar_core::ws::message::{Assembler, ControlKind, Kind, MessageLimits, Part};
use sidecar_core::ws::utf8::Utf8;

/// What a peer said, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Message {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    /// The last one: code, if there is one, and reason.
    Close(Option<u16>, String),
}

/// One direction of one connection, as a client receives it.
pub(crate) struct Receiver {
    assembler: Assembler,
    /// Of the text message that is arriving.
    utf8: Utf8,
    /// `head[..have]` is the start of a header whose rest has not come.
    head: [u8; MAX_HEADER],
    have: usize,
    /// The frame whose payload is arriving, and how many bytes of it are missing.
    frame: Option<(Part, u64)>,
    /// Payload of the control frame that is arriving; it may stand between two pieces of a message.
    control: Vec<u8>,
    /// Payload of the data message that is arriving.
    message: Vec<u8>,
}

impl Receiver {
    pub(crate) const fn new(limits: MessageLimits) -> Self {
        Self {
            assembler: Assembler::new(limits),
            utf8: Utf8::new(),
            head: [0; MAX_HEADER],
            have: 0,
            frame: None,
            control: Vec::new(),
            message: Vec::new(),
        }
    }

    /// Takes bytes from the front of `bytes`: up to the end of the next message, or all of them if it has no end yet.
    ///
    /// # Errors
    /// The peer broke a rule. It is owed a close frame with the violation's code, and nothing that follows may be read;
    /// the same is true after [`Message::Close`].
    pub(crate) fn receive(&mut self, bytes: &mut &[u8]) -> Result<Option<Message>, Violation> {
        loop {
            let (part, missing) = match self.frame {
                Some(frame) => frame,
                None => match self.header(bytes)? {
                    Some(frame) => frame,
                    None => return Ok(None),
                },
            };
            let missing = missing - self.payload(part, missing, bytes)? as u64;
            self.frame = Some((part, missing));
            if missing > 0 {
                return Ok(None);
            }
            self.frame = None;
            if let Some(message) = self.end_of_frame(part)? {
                return Ok(Some(message));
            }
        }
    }

    /// The next frame's header; `None` while it is incomplete.
    fn header(&mut self, bytes: &mut &[u8]) -> Result<Option<(Part, u64)>, Violation> {
        let had = self.have;
        let most = bytes.len().min(MAX_HEADER - had);
        self.head[had..had + most].copy_from_slice(&bytes[..most]);
        // What is visibly wrong is said before the rest has come.
        match frame::decode(&self.head[..had + most])? {
            Decoded::NeedMore => {
                self.have = had + most;
                *bytes = &bytes[most..];
                Ok(None)
            }
            Decoded::Header { header, size } => {
                self.have = 0;
                *bytes = &bytes[size - had..];
                Ok(Some((self.assembler.handle_frame(&header)?, header.length)))
            }
        }
    }

    /// Keeps what has come of the payload and says how much that is.
    fn payload(&mut self, part: Part, missing: u64, bytes: &mut &[u8]) -> Result<usize, Violation> {
        let count = usize::try_from(missing).unwrap_or(usize::MAX).min(bytes.len());
        let (payload, rest) = bytes.split_at(count);
        *bytes = rest;
        match part {
            Part::Control(_) => self.control.extend_from_slice(payload),
            Part::Data { kind, .. } => {
                if kind == Kind::Text {
                    // Fails at the first byte that rules out every end, however the text is fragmented.
                    self.utf8.feed(payload)?;
                }
                self.message.extend_from_slice(payload);
            }
        }
        Ok(count)
    }

    fn end_of_frame(&mut self, part: Part) -> Result<Option<Message>, Violation> {
        let message = match part {
            Part::Data { last: false, .. } => return Ok(None),
            Part::Data { kind: Kind::Binary, .. } => Message::Binary(core::mem::take(&mut self.message)),
            Part::Data { kind: Kind::Text, .. } => {
                core::mem::take(&mut self.utf8).finish()?;
                let text = core::mem::take(&mut self.message);
                Message::Text(String::from_utf8(text).expect("the validator has seen every byte of it"))
            }
            Part::Control(kind) => {
                let payload = core::mem::take(&mut self.control);
                match kind {
                    ControlKind::Ping => Message::Ping(payload),
                    ControlKind::Pong => Message::Pong(payload),
                    ControlKind::Close => {
                        let close = parse_close_payload(&payload)?;
                        Message::Close(close.code.map(CloseCode::get), close.reason.to_owned())
                    }
                }
            }
        };
        Ok(Some(message))
    }
}
