//! A receiver and a sender made of the codec's parts, as a caller would put them together.

use sidecar_core::ws::close::parse_close_payload;
use sidecar_core::ws::frame::{self, Decoded, Header, MAX_HEADER};
use sidecar_core::ws::message::{Assembler, ControlKind, Kind, MessageLimits, Part};
use sidecar_core::ws::utf8::Utf8;
use sidecar_core::ws::{Violation, mask};

use crate::stream::Plain;
use crate::{LIMIT, Seen};

/// Most frames in a message.
pub(crate) const FRAGMENTS: u32 = 64;

/// What was read.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Seen>,
    pub(crate) violation: Option<Violation>,
}

/// Reads until the end, a close or a violation.
pub(crate) fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Outcome {
    let mut receiver = Receiver::new();
    let mut violation = None;
    for piece in pieces {
        violation = receiver.receive(piece).err();
        if violation.is_some() || receiver.closed {
            break;
        }
    }
    Outcome { seen: receiver.seen, violation }
}

struct Receiver {
    assembler: Assembler,
    utf8: Utf8,
    /// The header that is arriving.
    head: Vec<u8>,
    /// The frame whose payload is arriving, and how much of it is missing.
    frame: Option<(Part, u64)>,
    control: Vec<u8>,
    message: Vec<u8>,
    seen: Vec<Seen>,
    closed: bool,
}

impl Receiver {
    fn new() -> Self {
        let limit = LIMIT as u64;
        let limits = MessageLimits { text_bytes: limit, binary_bytes: limit, fragments: FRAGMENTS };
        Self {
            assembler: Assembler::new(limits),
            utf8: Utf8::new(),
            head: vec![],
            frame: None,
            control: vec![],
            message: vec![],
            seen: vec![],
            closed: false,
        }
    }

    fn receive(&mut self, mut bytes: &[u8]) -> Result<(), Violation> {
        while !self.closed && !bytes.is_empty() {
            bytes = match self.frame {
                None => self.receive_head(bytes)?,
                Some((part, missing)) => self.receive_payload(part, missing, bytes)?,
            };
        }
        Ok(())
    }

    fn receive_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Violation> {
        let had = self.head.len();
        let most = bytes.len().min(MAX_HEADER - had);
        self.head.extend_from_slice(&bytes[..most]);
        match frame::decode(&self.head)? {
            Decoded::NeedMore => Ok(&bytes[most..]),
            Decoded::Header { header, size } => {
                self.head.clear();
                let part = self.assembler.handle_frame(&header)?;
                self.frame = Some((part, header.length));
                if header.length == 0 {
                    self.end_of_frame(part)?;
                }
                Ok(&bytes[size - had..])
            }
        }
    }

    fn receive_payload<'a>(
        &mut self,
        part: Part,
        missing: u64,
        bytes: &'a [u8],
    ) -> Result<&'a [u8], Violation> {
        let (payload, rest) = bytes.split_at(bytes.len().min(missing as usize));
        match part {
            Part::Control(_) => self.control.extend_from_slice(payload),
            Part::Data { kind, .. } => {
                if kind == Kind::Text {
                    self.utf8.feed(payload)?;
                }
                self.message.extend_from_slice(payload);
            }
        }
        let missing = missing - payload.len() as u64;
        self.frame = Some((part, missing));
        if missing == 0 {
            self.end_of_frame(part)?;
        }
        Ok(rest)
    }

    fn end_of_frame(&mut self, part: Part) -> Result<(), Violation> {
        self.frame = None;
        let seen = match part {
            Part::Data { last: false, .. } => return Ok(()),
            Part::Data { kind: Kind::Binary, .. } => Seen::Binary(core::mem::take(&mut self.message)),
            Part::Data { kind: Kind::Text, .. } => {
                core::mem::take(&mut self.utf8).finish()?;
                let text = core::mem::take(&mut self.message);
                Seen::Text(String::from_utf8(text).expect("the validator has seen it"))
            }
            Part::Control(kind) => {
                let payload = core::mem::take(&mut self.control);
                match kind {
                    ControlKind::Ping => Seen::Ping(payload),
                    ControlKind::Pong => Seen::Pong(payload),
                    ControlKind::Close => {
                        let close = parse_close_payload(&payload)?;
                        self.closed = true;
                        Seen::Close(close.code.map(|code| code.get()), close.reason.to_string())
                    }
                }
            }
        };
        self.seen.push(seen);
        Ok(())
    }
}

/// The frames as a client sends them, each masked with a key of its own, in pieces of the given size.
pub(crate) fn write_as_client(frames: &[Plain], mask: [u8; 4], piece: usize) -> Vec<u8> {
    let mut bytes = vec![];
    for (turn, Plain { fin, opcode, payload }) in frames.iter().enumerate() {
        let key = mask.map(|byte| byte.wrapping_add(turn as u8));
        let header = Header { fin: *fin, opcode: *opcode, masked: Some(key), length: payload.len() as u64 };
        let mut head = [0; MAX_HEADER];
        let size = frame::encode(&header, &mut head);
        bytes.extend_from_slice(&head[..size]);
        let mut masked = payload.clone();
        for (index, data) in masked.chunks_mut(piece).enumerate() {
            mask::apply(key, index.wrapping_mul(piece), data);
        }
        bytes.extend_from_slice(&masked);
    }
    bytes
}
