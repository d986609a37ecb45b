//! tungstenite as a receiver and an encoder.

use sidecar_core::ws::frame::Opcode;
use tungstenite::error::{Error, ProtocolError};
use tungstenite::protocol::frame::coding::{Control, Data, OpCode};
use tungstenite::protocol::frame::{Frame, FrameHeader};
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Message, WebSocket};

use crate::chunks::Chunks;
use crate::stream::Plain;
use crate::{LIMIT, Seen, Side};

/// What was read.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seen: Vec<Seen>,
    /// Why it stopped, if not for the end of the stream or a close.
    pub(crate) refused: Option<String>,
}

/// Reads until the end, a close or an error.
pub(crate) fn read(chunks: Chunks<'_>, side: Side) -> Outcome {
    let role = match side {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    let config = WebSocketConfig::default()
        .read_buffer_size(4096)
        .write_buffer_size(0)
        .max_frame_size(Some(LIMIT))
        .max_message_size(Some(LIMIT));
    let mut socket = WebSocket::from_raw_socket(chunks, role, Some(config));
    let mut seen = vec![];
    loop {
        match socket.read() {
            Ok(Message::Text(text)) => seen.push(Seen::Text(text.as_str().to_string())),
            Ok(Message::Binary(bytes)) => seen.push(Seen::Binary(bytes.to_vec())),
            Ok(Message::Ping(bytes)) => seen.push(Seen::Ping(bytes.to_vec())),
            Ok(Message::Pong(bytes)) => seen.push(Seen::Pong(bytes.to_vec())),
            Ok(Message::Frame(frame)) => unreachable!("{frame:?} is never read"),
            Ok(Message::Close(close)) => {
                seen.push(close.map_or_else(
                    || Seen::Close(None, String::new()),
                    |close| Seen::Close(Some(close.code.into()), close.reason.as_str().to_string()),
                ));
                return Outcome { seen, refused: None };
            }
            Err(Error::Protocol(ProtocolError::ResetWithoutClosingHandshake)) => {
                return Outcome { seen, refused: None };
            }
            Err(error) => return Outcome { seen, refused: Some(error.to_string()) },
        }
    }
}

/// The frame on the wire.
pub(crate) fn write(frame: &Plain, mask: Option<[u8; 4]>) -> Vec<u8> {
    let opcode = match frame.opcode {
        Opcode::Continuation => OpCode::Data(Data::Continue),
        Opcode::Text => OpCode::Data(Data::Text),
        Opcode::Binary => OpCode::Data(Data::Binary),
        Opcode::Close => OpCode::Control(Control::Close),
        Opcode::Ping => OpCode::Control(Control::Ping),
        Opcode::Pong => OpCode::Control(Control::Pong),
    };
    let header = FrameHeader { is_final: frame.fin, opcode, mask, ..FrameHeader::default() };
    let mut bytes = vec![];
    Frame::from_payload(header, frame.payload.clone().into())
        .format(&mut bytes)
        .expect("a vector takes all that is written");
    bytes
}
