//! A client on tokio-uring: its runtime and its buffers, and as little of WebSocket as the floor has.

use sidecar_benches::client::{self, BINARY, Dial, Frame, MOST_FRAME, READY, Replies, TEXT};
use tokio_uring::buf::BoundedBuf;
use tokio_uring::net::TcpStream;

use crate::{Control, Failure};

pub(crate) async fn run(dial: &Dial) -> Result<(), Failure> {
    let socket = TcpStream::from_std(client::dial(dial)?);
    let mut buffer = vec![0_u8; MOST_FRAME];
    let mut filled = 0;
    let mut replies = Replies::default();
    // Reused, since a write takes its buffer.
    let mut out = Vec::new();
    loop {
        let frame = match Frame::at(&buffer[..filled]) {
            Some(frame) if frame.end <= filled => frame,
            _ => {
                let (result, slice) = socket.read(buffer.slice(filled..)).await;
                buffer = slice.into_inner();
                match result? {
                    0 => return Err("the connection ended".into()),
                    length => filled += length,
                }
                continue;
            }
        };
        let message = &buffer[frame.start..frame.end];
        out.clear();
        match (frame.opcode, Control::of(if frame.opcode == TEXT { message } else { b"" })) {
            (BINARY, _) => out.extend_from_slice(replies.to(message)),
            (TEXT, Control::SayReady) => out = client::text(READY),
            (TEXT, Control::Leave) => return Ok(()),
            _ => {}
        }
        if !out.is_empty() {
            let (result, back) = socket.write_all(out).await;
            result?;
            out = back;
        }
        buffer.copy_within(frame.end..filled, 0);
        filled -= frame.end;
    }
}
