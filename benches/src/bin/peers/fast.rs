//! fastwebsockets as a client, on tokio.

use fastwebsockets::{Frame, OpCode, Payload, Role, WebSocket};
use sidecar_benches::client::{self, Dial, MOST_FRAME, READY};
use tokio::net::TcpStream;

use crate::{Control, Failure};

pub(crate) async fn run(dial: &Dial) -> Result<(), Failure> {
    let socket = client::dial(dial)?;
    socket.set_nonblocking(true)?;
    let mut socket = WebSocket::after_handshake(TcpStream::from_std(socket)?, Role::Client);
    socket.set_max_message_size(MOST_FRAME);
    let mut reply = Vec::new();
    loop {
        let frame = socket.read_frame().await?;
        match frame.opcode {
            OpCode::Binary => {
                client::reply_message(&frame.payload, &mut reply);
                drop(frame);
                socket.write_frame(Frame::binary(Payload::BorrowedMut(&mut reply))).await?;
            }
            OpCode::Text => match Control::of(&frame.payload) {
                Control::SayReady => {
                    let mut ready = READY.as_bytes().to_vec();
                    socket.write_frame(Frame::text(Payload::BorrowedMut(&mut ready))).await?;
                }
                Control::Leave => return Ok(()),
                Control::Nothing => {}
            },
            OpCode::Close => return Err("the gateway closed".into()),
            _ => {}
        }
    }
}
