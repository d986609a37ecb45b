//! The codec as the echo client puts it together, and a sender made of its parts.

use sidecar_core::ws::frame::{self, Header, MAX_HEADER};
use sidecar_core::ws::message::MessageLimits;
use sidecar_core::ws::{Violation, mask};

use crate::receiver::Receiver;
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
    let limit = LIMIT as u64;
    let limits = MessageLimits { text_bytes: limit, binary_bytes: limit, fragments: FRAGMENTS };
    let mut receiver = Receiver::new(limits);
    let mut seen = vec![];
    for mut piece in pieces {
        loop {
            match receiver.receive(&mut piece) {
                Ok(None) => break,
                Ok(Some(message)) => seen.push(message),
                Err(violation) => return Outcome { seen, violation: Some(violation) },
            }
            if matches!(seen.last(), Some(Seen::Close(..))) {
                return Outcome { seen, violation: None };
            }
        }
    }
    Outcome { seen, violation: None }
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
