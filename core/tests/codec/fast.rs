//! fastwebsockets as a receiver and an encoder.

use fastwebsockets::{FragmentCollector, Frame, OpCode, Payload, Role, WebSocket};
use sidecar_core::ws::frame::Opcode;

use crate::chunks::Chunks;
use crate::stream::Plain;
use crate::{LIMIT, Seen, Side};

/// Reads until the end, a close or an error; it is only shown valid streams.
pub(crate) fn read(chunks: Chunks<'_>, side: Side) -> Vec<Seen> {
    let role = match side {
        Side::Client => Role::Client,
        Side::Server => Role::Server,
    };
    let runtime =
        tokio::runtime::Builder::new_current_thread().build().expect("a runtime without I/O needs nothing");
    runtime.block_on(async {
        let mut socket = WebSocket::after_handshake(chunks, role);
        socket.set_auto_pong(false);
        socket.set_auto_close(false);
        socket.set_max_message_size(LIMIT);
        let mut messages = FragmentCollector::new(socket);
        let mut seen = vec![];
        while let Ok(frame) = messages.read_frame().await {
            let payload = frame.payload.to_vec();
            seen.push(match frame.opcode {
                OpCode::Text => Seen::Text(String::from_utf8(payload).expect("it promises UTF-8")),
                OpCode::Binary => Seen::Binary(payload),
                OpCode::Ping => Seen::Ping(payload),
                OpCode::Pong => Seen::Pong(payload),
                OpCode::Close => close(&payload),
                OpCode::Continuation => unreachable!("the collector gives messages"),
            });
        }
        seen
    })
}

fn close(payload: &[u8]) -> Seen {
    match payload {
        [high, low, reason @ ..] => {
            Seen::Close(Some(u16::from_be_bytes([*high, *low])), String::from_utf8_lossy(reason).into_owned())
        }
        _ => Seen::Close(None, String::new()),
    }
}

/// The frame on the wire.
pub(crate) fn write(frame: &Plain, mask: Option<[u8; 4]>) -> Vec<u8> {
    let opcode = match frame.opcode {
        Opcode::Continuation => OpCode::Continuation,
        Opcode::Text => OpCode::Text,
        Opcode::Binary => OpCode::Binary,
        Opcode::Close => OpCode::Close,
        Opcode::Ping => OpCode::Ping,
        Opcode::Pong => OpCode::Pong,
    };
    let mut frame = Frame::new(frame.fin, opcode, mask, Payload::Owned(frame.payload.clone()));
    if let Some(key) = mask {
        // It writes the payload as it is and leaves masking to the caller.
        let mut payload = frame.payload.to_vec();
        for (index, byte) in payload.iter_mut().enumerate() {
            *byte ^= key[index % 4];
        }
        frame.payload = Payload::Owned(payload);
    }
    // The buffer may grow longer than the frame is.
    frame.write(&mut vec![]).to_vec()
}
