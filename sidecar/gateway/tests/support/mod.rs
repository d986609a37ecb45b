//! A gateway in this process and two kinds of agents: one on tokio-tungstenite, and one that sees every byte.

#![allow(dead_code, reason = "each test program uses a part of it")]

use core::time::Duration;

use clap::Parser;
use futures_util::{SinkExt, StreamExt};
use serde_json::Value;
use sidecar_gateway::report::{GatewayEvent, Report};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async_with_config};

pub(crate) const TOKEN: &str = "sesame";
pub(crate) const JOB: &str = "6f1f7a52-6f5e-4f43-9d0e-2b6b5f0a9c11";
/// A watchdog, not a measurement.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: sidecar_gateway::Args,
}

/// Waits under the watchdog.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
}

/// A gateway that plays one job.
pub(crate) struct Gateway {
    address: String,
    played: JoinHandle<Report>,
    events: mpsc::UnboundedReceiver<GatewayEvent>,
}

impl Gateway {
    /// With the flags of `sidecar gateway`.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        let token = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(token.path(), format!("{TOKEN}\n")).unwrap();
        let token_file = token.path().to_str().unwrap();
        let mut given = vec!["gateway", "--job", JOB, "--token-file", token_file];
        if !flags.contains(&"--linger") {
            given.extend(["--linger", "0s"]);
        }
        let args =
            Cli::try_parse_from([&given[..], flags].concat()).unwrap_or_else(|error| panic!("{error}")).args;
        let (options, simulators) = args.options().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (sender, events) = mpsc::unbounded_channel();
        let played = tokio::spawn(sidecar_gateway::serve(listener, options, simulators, sender));
        Self { address, played, events }
    }

    pub(crate) async fn dial(&self, agent: &str) -> Agent {
        self.try_dial(JOB, agent, TOKEN).await.unwrap()
    }

    pub(crate) async fn try_dial(&self, job: &str, agent: &str, token: &str) -> Result<Agent, Error> {
        let url = format!("ws://{}/tunnel?job={job}&agent={agent}", self.address);
        let mut request = url.into_client_request().unwrap();
        request.headers_mut().insert("Authorization", format!("Bearer {token}").parse().unwrap());
        let config = WebSocketConfig::default();
        let (socket, _) = soon("the upgrade", connect_async_with_config(request, Some(config), true)).await?;
        Ok(Agent { socket, session: None, sessions: Vec::new() })
    }

    /// The status that a dial is refused with.
    pub(crate) async fn refusal(&self, job: &str, agent: &str, token: &str) -> u16 {
        match self.try_dial(job, agent, token).await {
            Err(Error::Http(response)) => response.status().as_u16(),
            Err(error) => panic!("no HTTP refusal: {error}"),
            Ok(_) => panic!("the dial was not refused"),
        }
    }

    /// The status line that a request which is no entitled upgrade gets.
    pub(crate) async fn status_line(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let answer = read_raw(&mut stream, |bytes| head_end(bytes).is_some()).await;
        String::from_utf8(answer).unwrap().lines().next().unwrap_or_default().to_owned()
    }

    /// An upgraded connection without a WebSocket library.
    pub(crate) async fn dial_raw(&self, agent: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        let request = format!(
            "GET /tunnel?job={JOB}&agent={agent} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {TOKEN}\r\n\
             Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
             Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
            self.address
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// The next event that `wanted` accepts; those before it are dropped.
    pub(crate) async fn event<T>(&mut self, wanted: impl Fn(&GatewayEvent) -> Option<T>) -> T {
        soon("an event", async {
            loop {
                let event = self.events.recv().await.expect("the job ended without the event");
                if let Some(found) = wanted(&event) {
                    return found;
                }
            }
        })
        .await
    }

    /// Waits for a connection to end and says why it did.
    pub(crate) async fn disconnected(&mut self) -> String {
        self.event(|event| match event {
            GatewayEvent::Disconnected { why, .. } => Some(why.clone()),
            _ => None,
        })
        .await
    }

    pub(crate) async fn report(self) -> Report {
        soon("the end of the job", self.played).await.unwrap()
    }
}

/// What an agent got.
#[derive(Debug, PartialEq)]
pub(crate) enum Got {
    Control(Value),
    Data {
        session: String,
        payload: Vec<u8>,
    },
    /// The close code, or `None` where the connection ended without a close frame.
    End(Option<u16>),
    /// The library refused what came.
    Broken(String),
}

pub(crate) struct Agent {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// The session that is open.
    pub(crate) session: Option<String>,
    /// All that were ever opened.
    pub(crate) sessions: Vec<String>,
}

impl Agent {
    /// The next message; pings are answered underneath.
    pub(crate) async fn next(&mut self) -> Got {
        loop {
            let message = match soon("a message", self.socket.next()).await {
                None => return Got::End(None),
                Some(Err(Error::Protocol(error))) if !error.to_string().contains("closing handshake") => {
                    return Got::Broken(error.to_string());
                }
                Some(Err(Error::Capacity(error))) => return Got::Broken(error.to_string()),
                Some(Err(_)) => return Got::End(None),
                Some(Ok(message)) => message,
            };
            match message {
                Message::Text(text) => {
                    let control: Value = match serde_json::from_str(&text) {
                        Ok(control) => control,
                        Err(error) => return Got::Broken(error.to_string()),
                    };
                    let session = control["session_id"].as_str().map(str::to_owned);
                    match control["type"].as_str() {
                        Some("session_open") => {
                            self.session.clone_from(&session);
                            self.sessions.extend(session);
                        }
                        Some("session_close") => self.session = None,
                        _ => {}
                    }
                    return Got::Control(control);
                }
                Message::Binary(bytes) => {
                    let length = u32::from_be_bytes(*bytes.first_chunk().unwrap()) as usize;
                    let session = String::from_utf8(bytes[4..4 + length].to_vec()).unwrap();
                    return Got::Data { session, payload: bytes[4 + length..].to_vec() };
                }
                Message::Close(frame) => return Got::End(frame.map(|frame| frame.code.into())),
                Message::Ping(_) | Message::Pong(_) | Message::Frame(_) => {}
            }
        }
    }

    pub(crate) async fn send(&mut self, message: Message) {
        // A connection that the gateway has just cut is noticed by the next read.
        let _ = self.socket.send(message).await;
    }

    pub(crate) async fn say(&mut self, control: &Value) {
        self.send(Message::text(control.to_string())).await;
    }

    pub(crate) async fn answer(&mut self, session: &str, action: &[u8]) {
        let mut frame = (session.len() as u32).to_be_bytes().to_vec();
        frame.extend_from_slice(session.as_bytes());
        frame.extend_from_slice(action);
        self.send(Message::binary(frame)).await;
    }

    /// Answers and, in the same segment, sends what makes the gateway drop the connection: the tunnel is down before
    /// the next observation is due.
    pub(crate) async fn answer_and_break(mut self, session: &str, action: &[u8]) {
        let head = (session.len() as u32).to_be_bytes();
        let answer = [&head, session.as_bytes(), action].concat();
        self.socket.feed(Message::binary(answer)).await.unwrap();
        self.socket.feed(Message::binary(vec![0])).await.unwrap();
        self.socket.flush().await.unwrap();
        while !matches!(self.next().await, Got::End(_)) {}
    }

    /// Waits for a control frame of this type and answers nothing on the way.
    pub(crate) async fn expect(&mut self, kind: &str) -> Value {
        match self.next().await {
            Got::Control(control) if control["type"] == kind => control,
            other => panic!("{other:?} instead of {kind}"),
        }
    }

    /// Warms up.
    pub(crate) async fn warm_up(&mut self) {
        self.expect("warmup").await;
        self.say(&serde_json::json!({"type": "ready"})).await;
    }

    /// The next observation and its session; control frames on the way are taken.
    pub(crate) async fn observation(&mut self) -> (String, Vec<u8>) {
        loop {
            match self.next().await {
                Got::Data { session, payload } => return (session, payload),
                Got::Control(_) => {}
                other => panic!("{other:?} instead of an observation"),
            }
        }
    }

    /// Answers `count` observations.
    pub(crate) async fn play(&mut self, count: usize) {
        for _ in 0..count {
            let (session, observation) = self.observation().await;
            self.answer(&session, &policy(&observation)).await;
        }
    }

    /// Plays until something else than a control frame or an observation comes, or `drain`.
    pub(crate) async fn play_on(&mut self) -> Got {
        loop {
            match self.next().await {
                Got::Data { session, payload } => self.answer(&session, &policy(&payload)).await,
                Got::Control(control) if control["type"] == "drain" => return Got::Control(control),
                Got::Control(control) => {
                    if control["type"] == "warmup" {
                        self.say(&serde_json::json!({"type": "ready"})).await;
                    }
                }
                other => return other,
            }
        }
    }

    /// Plays to the end of the job.
    pub(crate) async fn play_out(&mut self) {
        match self.play_on().await {
            Got::Control(_) => self.close(1000).await,
            other => panic!("{other:?} instead of drain"),
        }
    }

    /// Closes with a code and waits for the answer.
    pub(crate) async fn close(&mut self, code: u16) {
        let frame =
            tokio_tungstenite::tungstenite::protocol::CloseFrame { code: code.into(), reason: "".into() };
        self.send(Message::Close(Some(frame))).await;
        while !matches!(self.next().await, Got::End(_)) {}
    }
}

/// Pushes to the side to which cart and pole are falling; nothing for nothing.
pub(crate) fn policy(observation: &[u8]) -> Vec<u8> {
    if observation.is_empty() {
        return Vec::new();
    }
    let (numbers, _) = observation[..16].as_chunks::<4>();
    let weights = [0.1, 0.4, 4.0, 1.0];
    let push: f32 =
        numbers.iter().zip(weights).map(|(bytes, weight)| f32::from_le_bytes(*bytes) * weight).sum();
    vec![u8::from(push > 0.0)]
}

/// Reads until `enough` says so or the stream ends; gives what was read.
pub(crate) async fn read_raw(stream: &mut TcpStream, enough: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    soon("bytes", async {
        while !enough(&bytes) {
            // A reset is an end too.
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                break;
            }
        }
    })
    .await;
    bytes
}

/// Where the response head ends.
pub(crate) fn head_end(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}
