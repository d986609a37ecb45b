//! The rig: an agent, its memory, the wire to a scripted gateway, and a clock that moves when told to. It asserts what
//! holds always: reads stay inside their place, a slot is named only while one is on offer, every frame of ours is
//! masked and well-formed, and events have an end.

use core::time::Duration;
use std::collections::VecDeque;

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use sidecar_core::agent::{
    Agent, Config, DialFailure, Disconnect, End, Endpoint, Event, Filling, HEADROOM, HangUp, Limits,
    MAX_HEAD, MAX_TRANSMIT, Memory, Notice, Outcome, Place, Read, Refused, Resume, Timers,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, JobId};
use sidecar_core::ws::frame::{self, Decoded, Header, Opcode};
use sidecar_core::ws::handshake::accept_for;
use sidecar_core::ws::mask;

pub(crate) const SLOT_BYTES: u32 = 200_000;
pub(crate) const TOKEN: &str = "very-secret-token";

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) fn config() -> Config {
    Config {
        endpoint: Endpoint {
            host: "gate.example:8080".try_into().unwrap(),
            path: "/tunnel".try_into().unwrap(),
        },
        job: JobId::new("7b9f1c1e-0000-4000-8000-000000000001").unwrap(),
        agent: AgentId::new("agent-1").unwrap(),
        timers: Timers::default(),
        limits: Limits { slot_bytes: SLOT_BYTES, ..Limits::default() },
        unfreeze: Some(secs(60)),
        wedge_after: Some(secs(120)),
        fresh_agent_on_wedge: false,
        wait_for_slot: false,
    }
}

/// How what lies on the wire is cut into reads.
#[derive(Clone)]
pub(crate) enum Cut {
    Whole,
    One,
    Random(Box<ChaCha8Rng>),
    /// One read that ends here, counted from the start of the connection's frames; then whole.
    At(usize),
}

impl Cut {
    pub(crate) fn random(seed: u64) -> Self {
        Self::Random(Box::new(ChaCha8Rng::seed_from_u64(seed)))
    }

    fn next(&mut self, available: usize) -> usize {
        match self {
            Self::Whole => available,
            Self::One => 1,
            Self::Random(random) => {
                let bound = [1, 3, 20, 300, 5000, 100_000][random.next_u32() as usize % 6];
                1 + random.next_u32() as usize % bound
            }
            Self::At(0) => available,
            Self::At(left) => {
                let taken = (*left).min(available);
                *left -= taken;
                taken
            }
        }
    }
}

/// A frame of ours, unmasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    pub(crate) opcode: Opcode,
    pub(crate) payload: Vec<u8>,
}

impl Sent {
    pub(crate) fn text(&self) -> &str {
        assert_eq!(self.opcode, Opcode::Text);
        core::str::from_utf8(&self.payload).unwrap()
    }

    pub(crate) fn close_code(&self) -> u16 {
        assert_eq!(self.opcode, Opcode::Close);
        u16::from_be_bytes([self.payload[0], self.payload[1]])
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
    pub(crate) payload: Vec<u8>,
    pub(crate) moved: u32,
    pub(crate) first_byte: Instant,
    pub(crate) last_byte: Instant,
}

/// The caller's memory.
pub(crate) struct Places {
    scratch: Vec<u8>,
    slot: Vec<u8>,
    offered: bool,
}

impl Places {
    fn check(&self, place: Place, offset: u32, length: usize) {
        assert!(place == Place::Scratch || self.offered, "no slot is on offer");
        assert!(
            offset as usize + length <= self.scratch.len(),
            "{offset} + {length} is outside of {place:?}"
        );
    }

    fn of(&mut self, place: Place) -> &mut Vec<u8> {
        match place {
            Place::Scratch => &mut self.scratch,
            Place::Slot => &mut self.slot,
        }
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        self.check(place, offset, into.len());
        let from = if place == Place::Scratch { &self.scratch } else { &self.slot };
        into.copy_from_slice(&from[offset as usize..][..into.len()]);
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        self.check(from, from_offset, length as usize);
        self.check(to, to_offset, length as usize);
        let bytes = self.of(from)[from_offset as usize..][..length as usize].to_vec();
        self.of(to)[to_offset as usize..][..length as usize].copy_from_slice(&bytes);
    }
}

pub(crate) struct Rig {
    pub(crate) agent: Agent,
    pub(crate) now: Instant,
    pub(crate) places: Places,
    /// Slots that can be offered.
    pub(crate) free: u32,
    /// A slot is given back as soon as its observation was seen.
    pub(crate) release: bool,
    /// Bytes from the gateway that have not been received.
    pub(crate) wire: VecDeque<u8>,
    pub(crate) cut: Cut,
    /// The kernel takes what we send.
    pub(crate) writable: bool,
    pub(crate) sent: Vec<Sent>,
    pub(crate) events: Vec<Event>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) reads: Vec<Read>,
    pub(crate) request: String,
    /// What somebody has who copies payloads while they arrive, from where they lie at that moment.
    pub(crate) ahead: Vec<u8>,
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with(config())
    }

    pub(crate) fn with(config: Config) -> Self {
        Self::resumed(config, Resume::default())
    }

    pub(crate) fn resumed(config: Config, resume: Resume) -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let bytes = (HEADROOM + config.limits.slot_bytes) as usize;
        Self {
            agent: Agent::resume(config, resume, [7; 32], now),
            now,
            places: Places { scratch: vec![0xa5; bytes], slot: vec![0x5a; bytes], offered: false },
            free: 4,
            release: true,
            wire: VecDeque::new(),
            cut: Cut::Whole,
            writable: true,
            sent: Vec::new(),
            events: Vec::new(),
            seen: Vec::new(),
            reads: Vec::new(),
            request: String::new(),
            ahead: Vec::new(),
        }
    }

    /// Dialled, upgraded, with the event of it drained.
    pub(crate) fn open() -> Self {
        let mut rig = Self::new();
        rig.upgrade();
        rig.events.clear();
        rig
    }

    /// Warm, with the session `s` open and everything so far drained.
    pub(crate) fn in_session() -> Self {
        Self::in_session_with(config())
    }

    pub(crate) fn in_session_with(config: Config) -> Self {
        let mut rig = Self::with(config);
        rig.upgrade();
        rig.play(&text(r#"{"type":"warmup"}"#));
        rig.agent.worker_ready(rig.now);
        rig.play(&text(r#"{"type":"session_open","session_id":"s"}"#));
        assert_eq!(
            rig.agent.session().map(|(session, epoch)| (session.to_string(), epoch)),
            Some(("s".into(), Epoch(1)))
        );
        rig.events.clear();
        rig.sent.clear();
        rig
    }

    /// Does all there is to do at this instant.
    pub(crate) fn pump(&mut self) {
        for _ in 0..2_000_000 {
            if self.agent.poll_timeout().is_some_and(|due| due <= self.now) {
                self.agent.handle_timeout(self.now);
            }
            let mut progress = self.agent.process(self.now, &mut self.places);
            while let Some(event) = self.agent.poll_event() {
                self.take(event);
                progress = true;
            }
            self.copy_ahead();
            if self.agent.wants_slot() && !self.places.offered && self.free > 0 {
                self.free -= 1;
                self.places.offered = true;
                self.agent.offer_slot();
                progress = true;
            }
            progress |= self.transmit();
            progress |= self.receive();
            if !progress {
                return;
            }
        }
        panic!("the agent never comes to rest");
    }

    fn copy_ahead(&mut self) {
        match self.agent.filling() {
            None => self.ahead.clear(),
            Some(Filling { filled, .. }) => {
                let payload = &self.places.slot[HEADROOM as usize..][..filled as usize];
                assert!(self.ahead.len() <= payload.len(), "a message shrank");
                self.ahead.extend_from_slice(&payload[self.ahead.len()..]);
            }
        }
    }

    fn take(&mut self, event: Event) {
        if let Event::Observation { epoch, sequence, length, moved, first_byte, last_byte } = event {
            assert!(self.places.offered, "an observation without a slot");
            self.places.offered = false;
            self.free += u32::from(self.release);
            let payload = self.places.slot[HEADROOM as usize..][..length as usize].to_vec();
            assert!(
                payload.starts_with(&self.ahead),
                "bytes that had landed were moved, or are another message's"
            );
            self.ahead.clear();
            self.places.slot[HEADROOM as usize..][..length as usize].fill(0x5a);
            self.seen.push(Seen { epoch, sequence, payload, moved, first_byte, last_byte });
        }
        if matches!(event, Event::HangUp(_)) {
            self.wire.clear();
        }
        self.events.push(event);
    }

    fn transmit(&mut self) -> bool {
        let mut out = [0; MAX_TRANSMIT];
        let mut progress = false;
        while self.writable
            && let Some(length) = self.agent.poll_transmit(self.now, &mut out)
        {
            self.sent.push(unmask(&out[..length]));
            self.agent.handle_sent(self.now);
            progress = true;
        }
        progress
    }

    fn receive(&mut self) -> bool {
        let read = self.agent.poll_read();
        let Read::At { place, offset, max, .. } = read else { return false };
        assert!(max > 0);
        self.places.check(place, offset, max as usize);
        if self.wire.is_empty() {
            return false;
        }
        self.reads.push(read);
        let length = self.cut.next(self.wire.len()).min(self.wire.len()).min(max as usize);
        let bytes: Vec<u8> = self.wire.drain(..length).collect();
        self.places.of(place)[offset as usize..][..length].copy_from_slice(&bytes);
        self.agent.handle_received(self.now, length as u32);
        true
    }

    /// The gateway sends `bytes`, and all that follows from it happens.
    pub(crate) fn play(&mut self, bytes: &[u8]) {
        self.wire.extend(bytes);
        self.pump();
    }

    /// Time passes, each timer at its instant.
    pub(crate) fn pass(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..100_000 {
            match self.agent.poll_timeout().filter(|due| *due <= end) {
                Some(due) => self.now = self.now.max(due),
                None => {
                    self.now = end;
                    return self.pump();
                }
            }
            self.pump();
        }
        panic!("a timer fires for ever");
    }

    /// TCP is up and the request written; returns the answer that accepts it.
    pub(crate) fn connected(&mut self) -> String {
        self.pump();
        let mut out = [0; 4096];
        let length = self.agent.handle_connected(self.now, TOKEN, &mut out).unwrap();
        self.agent.handle_sent(self.now);
        self.request = String::from_utf8(out[..length].to_vec()).unwrap();
        Self::accept(&self.request)
    }

    /// The answer that accepts `request`.
    pub(crate) fn accept(request: &str) -> String {
        let (_, key) = request.split_once("Sec-WebSocket-Key: ").unwrap();
        let key: [u8; 24] = key.as_bytes()[..24].try_into().unwrap();
        let accept = String::from_utf8(accept_for(&key).to_vec()).unwrap();
        format!(
            "HTTP/1.1 101 Switching Protocols\r\nupgrade: WebSocket\r\nconnection: keep-alive, upgrade\r\n\
             sec-websocket-accept: {accept}\r\n\r\n"
        )
    }

    pub(crate) fn upgrade(&mut self) {
        self.upgrade_with(&[]);
    }

    /// Upgraded, with `more` in the same segment as the 101.
    pub(crate) fn upgrade_with(&mut self, more: &[u8]) {
        let answer = self.connected();
        let mut bytes = answer.into_bytes();
        bytes.extend(more);
        self.play(&bytes);
    }

    pub(crate) fn refuse(&mut self, status: u16) {
        self.connected();
        self.play(format!("HTTP/1.1 {status} No\r\nContent-Length: 2\r\n\r\nno").as_bytes());
    }

    pub(crate) fn dial_fails(&mut self, failure: DialFailure) {
        self.pump();
        self.agent.handle_dial_failed(self.now, failure);
        self.pump();
    }

    pub(crate) fn end(&mut self, end: End) {
        self.pump();
        self.agent.handle_end(self.now, end);
        self.pump();
    }

    /// Cut and upgraded again, with everything drained.
    pub(crate) fn cut_and_redial(&mut self) {
        self.pass(secs(5));
        self.end(End::Reset);
        self.upgrade();
        self.events.clear();
        self.sent.clear();
    }

    /// Sends an answer as a caller would.
    pub(crate) fn answer(&mut self, epoch: Epoch, sequence: u64, payload: &[u8]) -> Result<(), Refused> {
        self.begin(epoch, sequence, payload)?;
        self.agent.handle_action_sent(self.now, epoch, sequence);
        self.pump();
        Ok(())
    }

    /// Begins an answer that does not get away yet.
    pub(crate) fn begin(&mut self, epoch: Epoch, sequence: u64, payload: &[u8]) -> Result<(), Refused> {
        let mut head = [0; MAX_HEAD];
        let begun = self.agent.begin_action(self.now, epoch, sequence, payload.len() as u32, &mut head)?;
        let mut frame = head[..begun.len].to_vec();
        let start = frame.len();
        frame.extend_from_slice(payload);
        mask::apply(begun.mask, begun.mask_offset, &mut frame[start..]);
        self.sent.push(unmask(&frame));
        Ok(())
    }

    pub(crate) fn notices(&self) -> Vec<&Notice> {
        self.events
            .iter()
            .filter_map(|event| if let Event::Notice(notice) = event { Some(notice) } else { None })
            .collect()
    }

    /// Events without notices.
    pub(crate) fn flow(&self) -> Vec<&Event> {
        self.events.iter().filter(|event| !matches!(event, Event::Notice(_))).collect()
    }

    pub(crate) fn dials(&self) -> Vec<(u32, bool)> {
        let dial = |event: &Event| match event {
            Event::Dial { attempt, reread_token, .. } => Some((*attempt, *reread_token)),
            _ => None,
        };
        self.events.iter().filter_map(dial).collect()
    }

    pub(crate) fn causes(&self) -> Vec<Disconnect> {
        let cause = |event: &Event| match event {
            Event::Disconnected { cause, .. } => Some(cause.clone()),
            _ => None,
        };
        self.events.iter().filter_map(cause).collect()
    }

    pub(crate) fn hang_ups(&self) -> Vec<HangUp> {
        self.events
            .iter()
            .filter_map(|event| if let Event::HangUp(how) = event { Some(*how) } else { None })
            .collect()
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.events
            .iter()
            .find_map(|event| if let Event::Finished(outcome) = event { Some(outcome.clone()) } else { None })
    }

    pub(crate) fn pongs(&self) -> Vec<&[u8]> {
        self.sent.iter().filter(|sent| sent.opcode == Opcode::Pong).map(|sent| &sent.payload[..]).collect()
    }

    pub(crate) fn take_back_slot(&mut self) -> bool {
        let taken = self.agent.take_back_slot();
        if taken {
            self.places.offered = false;
            self.free += 1;
        }
        taken
    }
}

/// The one frame that `bytes` are.
fn unmask(bytes: &[u8]) -> Sent {
    let Ok(Decoded::Header { header, size }) = frame::decode(bytes) else { panic!("no frame: {bytes:?}") };
    let key = header.masked.expect("a client masks");
    assert!(header.fin);
    assert_eq!(header.length, (bytes.len() - size) as u64);
    let mut payload = bytes[size..].to_vec();
    mask::apply(key, 0, &mut payload);
    Sent { opcode: header.opcode, payload }
}

/// A frame of the gateway's.
pub(crate) fn frame_of(opcode: Opcode, fin: bool, payload: &[u8]) -> Vec<u8> {
    let mut head = [0; 14];
    let size = frame::encode(&Header { fin, opcode, masked: None, length: payload.len() as u64 }, &mut head);
    let mut bytes = head[..size].to_vec();
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn text(json: &str) -> Vec<u8> {
    frame_of(Opcode::Text, true, json.as_bytes())
}

pub(crate) fn ping(payload: &[u8]) -> Vec<u8> {
    frame_of(Opcode::Ping, true, payload)
}

pub(crate) fn close(code: u16, reason: &str) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    frame_of(Opcode::Close, true, &payload)
}

pub(crate) fn message(session: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (session.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(session.as_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

pub(crate) fn data(session: &str, payload: &[u8]) -> Vec<u8> {
    frame_of(Opcode::Binary, true, &message(session, payload))
}

/// A message in fragments of `size`, then an empty final continuation if `empty_end`; `between` after each fragment.
pub(crate) fn fragments(message: &[u8], size: usize, empty_end: bool, between: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let chunks: Vec<&[u8]> = message.chunks(size).collect();
    for (index, chunk) in chunks.iter().enumerate() {
        let opcode = if index == 0 { Opcode::Binary } else { Opcode::Continuation };
        let last = index + 1 == chunks.len();
        bytes.extend(frame_of(opcode, last && !empty_end, chunk));
        if !last || empty_end {
            bytes.extend_from_slice(between);
        }
    }
    if empty_end {
        bytes.extend(frame_of(Opcode::Continuation, true, &[]));
    }
    bytes
}

/// Bytes that differ from place to place and from `salt` to `salt`.
pub(crate) fn pattern(length: usize, salt: u8) -> Vec<u8> {
    (0..length).map(|index| (index.wrapping_mul(31) >> 3) as u8 ^ (index as u8).wrapping_add(salt)).collect()
}
