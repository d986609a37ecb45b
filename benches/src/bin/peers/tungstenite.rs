//! tungstenite as a client, on tokio.

use futures_util::{SinkExt, StreamExt};
use sidecar_benches::client::{self, Dial, READY};
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::{Control, Failure};

pub(crate) async fn run(dial: &Dial) -> Result<(), Failure> {
    let socket = client::dial(dial)?;
    socket.set_nonblocking(true)?;
    let config = WebSocketConfig::default().max_message_size(None).max_frame_size(None);
    let mut socket =
        WebSocketStream::from_raw_socket(TcpStream::from_std(socket)?, Role::Client, Some(config)).await;
    loop {
        match socket.next().await.ok_or("the connection ended")?? {
            Message::Binary(message) => {
                let mut reply = Vec::new();
                client::reply_message(&message, &mut reply);
                socket.send(Message::binary(reply)).await?;
            }
            Message::Text(text) => match Control::of(text.as_bytes()) {
                Control::SayReady => socket.send(Message::text(READY)).await?,
                Control::Leave => return Ok(()),
                Control::Nothing => {}
            },
            Message::Close(_) => return Err("the gateway closed".into()),
            _ => {}
        }
    }
}
