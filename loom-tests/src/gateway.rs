//! A gateway in a model: one job of one case, played with whoever dials. It takes bytes and gives bytes, and writes down
//! what it heard.

use core::cell::RefCell;
use std::rc::Rc;

use sidecar_core::tunnel::SessionId;
use sidecar_core::tunnel::data::encode_data_head;
use sidecar_core::ws::frame::{self, Decoded, Header, MAX_HEADER, Opcode};
use sidecar_core::ws::{handshake, mask};

/// An action that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Heard {
    /// Of which dial, counted from 1.
    pub(crate) connection: u32,
    pub(crate) session: String,
    pub(crate) payload: Vec<u8>,
    /// The sidecar had been told before that another session is open.
    pub(crate) late: bool,
}

/// What the gateway and its network know when the run is over.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) actions: Vec<Heard>,
    pub(crate) connections: u32,
    /// All bytes of the replacement of the session have been received.
    pub(crate) replaced: bool,
}

/// When the job is over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Until {
    /// The action with this first byte has come: then it drains.
    Action(u8),
    /// Somebody else ends it.
    Told,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Gateway {
    until: Until,
    /// What it says first on a second connection.
    on_redial: Vec<u8>,
    heard: Vec<u8>,
    upgraded: bool,
    /// The first observation is on its way.
    pub(crate) has_asked: bool,
    /// It has closed the connection.
    pub(crate) has_closed: bool,
    pub(crate) record: Rc<RefCell<Record>>,
}

impl Gateway {
    pub(crate) fn new(until: Until, on_redial: Vec<u8>) -> Self {
        let record = Rc::default();
        let (heard, upgraded) = (Vec::new(), false);
        Self { until, on_redial, heard, upgraded, has_asked: false, has_closed: false, record }
    }

    /// Somebody dials.
    pub(crate) fn connected(&mut self) {
        self.record.borrow_mut().connections += 1;
        self.heard.clear();
        self.upgraded = false;
        self.has_closed = false;
    }

    /// What it answers to bytes of the sidecar.
    pub(crate) fn hears(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.heard.extend_from_slice(bytes);
        let mut answer = Vec::new();
        if !self.upgraded {
            answer.extend(self.upgrade());
        }
        while self.upgraded
            && let Some((opcode, payload)) = self.next_frame()
        {
            answer.extend(self.answer(opcode, &payload));
        }
        answer
    }

    fn upgrade(&mut self) -> Vec<u8> {
        let text = core::str::from_utf8(&self.heard).expect("a request is text");
        let Some(end) = text.find("\r\n\r\n") else { return Vec::new() };
        let (_, rest) = text.split_once("Sec-WebSocket-Key: ").expect("a request has a key");
        let key = rest.as_bytes().first_chunk::<24>().expect("of 24 bytes");
        let accept = handshake::accept_for(key);
        let accept = core::str::from_utf8(&accept).expect("base64");
        let mut answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {accept}\r\n\r\n"
        )
        .into_bytes();
        self.heard.drain(..end + 4);
        self.upgraded = true;
        let first = self.record.borrow().connections == 1;
        answer.extend(if first { text_frame(r#"{"type":"warmup"}"#) } else { self.on_redial.clone() });
        answer
    }

    fn next_frame(&mut self) -> Option<(Opcode, Vec<u8>)> {
        let decoded = frame::decode(&self.heard).expect("the sidecar sends frames");
        let Decoded::Header { header, size } = decoded else { return None };
        let end = size + usize::try_from(header.length).expect("it is short");
        if self.heard.len() < end {
            return None;
        }
        let mut payload = self.heard[size..end].to_vec();
        mask::apply(header.masked.expect("clients mask"), 0, &mut payload);
        self.heard.drain(..end);
        Some((header.opcode, payload))
    }

    fn answer(&mut self, opcode: Opcode, payload: &[u8]) -> Vec<u8> {
        match opcode {
            Opcode::Text if payload.windows(7).any(|word| word == b"\"ready\"") && !self.has_asked => {
                self.has_asked = true;
                opened("one", &[1])
            }
            Opcode::Binary => self.take_action(payload),
            Opcode::Close => {
                self.has_closed = true;
                server_frame(Opcode::Close, payload)
            }
            _ => Vec::new(),
        }
    }

    fn take_action(&mut self, data: &[u8]) -> Vec<u8> {
        let mut record = self.record.borrow_mut();
        let (length, rest) = data.split_first_chunk().expect("an action has a head");
        let (session, payload) = rest.split_at(u32::from_be_bytes(*length) as usize);
        let session = String::from_utf8(session.to_vec()).expect("a session id is text");
        let late = record.replaced && session == "one";
        let connection = record.connections;
        record.actions.push(Heard { connection, session, payload: payload.to_vec(), late });
        if self.until == Until::Action(payload[0]) { text_frame(r#"{"type":"drain"}"#) } else { Vec::new() }
    }
}

/// A session is opened, with a first observation.
pub(crate) fn opened(session: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = text_frame(&format!(r#"{{"type":"session_open","session_id":"{session}"}}"#));
    bytes.extend(observation(session, payload));
    bytes
}

/// An observation.
pub(crate) fn observation(session: &str, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; sidecar_core::tunnel::data::MAX_DATA_HEAD];
    let length = encode_data_head(&SessionId::new(session).expect("it is short"), &mut head);
    server_frame(Opcode::Binary, &[&head[..length], payload].concat())
}

/// A sign of life.
pub(crate) fn ping() -> Vec<u8> {
    server_frame(Opcode::Ping, b"")
}

fn text_frame(text: &str) -> Vec<u8> {
    server_frame(Opcode::Text, text.as_bytes())
}

fn server_frame(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut header = [0; MAX_HEADER];
    let length = payload.len() as u64;
    let size = frame::encode(&Header { fin: true, opcode, masked: None, length }, &mut header);
    [&header[..size], payload].concat()
}
