//! An agent against whatever a gateway sends, in any pieces: nothing panics, every access stays inside of the place that
//! it names, each frame of ours is masked and well-formed, the agent comes to rest, and the pieces make no difference.

use sidecar_core::agent::{
    Agent, Config, End, Endpoint, Event, HEADROOM, Limits, MAX_TRANSMIT, Memory, Place, Read, Timers,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, JobId};
use sidecar_core::ws::frame::{self, Decoded, Opcode};
use sidecar_core::ws::handshake::accept_for;
use sidecar_core::ws::mask;

use crate::split::pieces;

/// Small, so that "too large" is within a fuzzer's reach.
const SLOT_BYTES: u32 = 3000;

/// The target's body. The first byte chooses the state in which the bytes arrive (1: a session `s` is open, else right
/// behind the 101), the second one how they are cut.
pub fn run(bytes: &[u8]) {
    let [state, seed, stream @ ..] = bytes else { return };
    let whole = play(*state, [stream].into_iter());
    let cut = play(*state, pieces(stream, *seed));
    let bytes = play(*state, pieces(stream, 0));
    assert_eq!(whole.seen, cut.seen, "cut with seed {seed}");
    assert_eq!(whole.seen, bytes.seen, "byte by byte");
    // Byte by byte each ping is alone. Of several that come together the last is answered (RFC 6455 section 5.5.3).
    for some in [&whole, &cut] {
        let mut all = bytes.pongs.iter();
        let are_among = some.pongs.iter().all(|pong| all.any(|other| other == pong));
        assert!(are_among, "pongs that nobody asked for: {:?}, of {:?}", some.pongs, bytes.pongs);
        if !some.closes {
            assert_eq!(some.pongs.last(), bytes.pongs.last(), "the last ping is answered");
        }
    }
}

/// A run against one way to cut the stream.
struct Played {
    seen: Seen,
    /// What pongs carried, in order.
    pongs: Vec<Vec<u8>>,
    /// A close frame was sent: what was owed besides is dropped for it.
    closes: bool,
}

/// What the world saw of an agent: payloads of observations, control payloads sent, how it ended.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    observations: Vec<(Epoch, u64, Vec<u8>)>,
    oversized: Vec<u64>,
    sent: Vec<(Opcode, usize)>,
    ended: Option<String>,
}

fn play<'a>(state: u8, pieces: impl Iterator<Item = &'a [u8]>) -> Played {
    let mut rig = Rig::new();
    rig.upgrade();
    if state == 1 {
        rig.receive(&text(r#"{"type":"warmup"}"#));
        rig.agent.worker_ready(rig.now);
        rig.receive(&text(r#"{"type":"session_open","session_id":"s"}"#));
        assert!(rig.agent.session().is_some());
    }
    rig.seen = Seen::default();
    rig.pongs.clear();
    for piece in pieces {
        rig.receive(piece);
    }
    if rig.seen.ended.is_none() {
        rig.agent.handle_end(rig.now, End::Eof);
        rig.settle();
    }
    // What else was due when a close came up is dropped for it: what had left by then depends on the pieces.
    let closes = rig.seen.sent.iter().any(|(opcode, _)| *opcode == Opcode::Close);
    if closes {
        rig.seen.sent.retain(|(opcode, _)| *opcode == Opcode::Close);
        assert_eq!(rig.seen.sent.len(), 1, "one close is enough");
    }
    Played { seen: rig.seen, pongs: rig.pongs, closes }
}

/// An unmasked text frame of up to 125 bytes.
fn text(json: &str) -> Vec<u8> {
    let length = u8::try_from(json.len()).expect("short texts only");
    [&[0x81, length], json.as_bytes()].concat()
}

/// The caller's memory, which checks every access.
struct Places {
    scratch: Vec<u8>,
    slot: Vec<u8>,
    offered: bool,
}

impl Places {
    fn of(&mut self, place: Place, offset: u32, length: usize) -> &mut [u8] {
        assert!(place == Place::Scratch || self.offered, "no slot is on offer");
        let bytes = if place == Place::Scratch { &mut self.scratch } else { &mut self.slot };
        &mut bytes[offset as usize..][..length]
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        assert!(place == Place::Scratch || self.offered, "no slot is on offer");
        let bytes = if place == Place::Scratch { &self.scratch } else { &self.slot };
        into.copy_from_slice(&bytes[offset as usize..][..into.len()]);
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        let bytes = self.of(from, from_offset, length as usize).to_vec();
        self.of(to, to_offset, length as usize).copy_from_slice(&bytes);
    }
}

struct Rig {
    agent: Box<Agent>,
    now: Instant,
    places: Places,
    seen: Seen,
    pongs: Vec<Vec<u8>>,
    out: Box<[u8; MAX_TRANSMIT]>,
}

impl Rig {
    fn new() -> Self {
        let now = Instant::from_nanos(1_000_000_000_000);
        let config = Config {
            endpoint: Endpoint {
                host: "gate.example".try_into().expect("a short host"),
                path: "/tunnel".try_into().expect("a short path"),
            },
            job: JobId::new("7b9f1c1e-0000-4000-8000-000000000001").expect("a job id"),
            agent: AgentId::new("agent").expect("an agent id"),
            timers: Timers::default(),
            limits: Limits { slot_bytes: SLOT_BYTES, text_bytes: 1000, fragments: 50 },
            unfreeze: None,
            wedge_after: None,
            fresh_agent_on_wedge: false,
            wait_for_slot: false,
        };
        let bytes = (HEADROOM + SLOT_BYTES) as usize;
        Self {
            agent: Box::new(Agent::new(config, [7; 32], now)),
            now,
            places: Places { scratch: vec![0xa5; bytes], slot: vec![0x5a; bytes], offered: false },
            seen: Seen::default(),
            pongs: Vec::new(),
            out: Box::new([0; MAX_TRANSMIT]),
        }
    }

    fn upgrade(&mut self) {
        self.settle();
        let mut out = [0; 4096];
        let length = self.agent.handle_connected(self.now, "token", &mut out).expect("a request that fits");
        self.agent.handle_sent(self.now);
        let request = core::str::from_utf8(&out[..length]).expect("a request is text");
        let (_, key) = request.split_once("Sec-WebSocket-Key: ").expect("a key");
        let key = key.as_bytes().first_chunk().expect("24 bytes");
        let accept = accept_for(key);
        let accept = core::str::from_utf8(&accept).expect("base64");
        self.receive(
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
                 Sec-WebSocket-Accept: {accept}\r\n\r\n"
            )
            .as_bytes(),
        );
        assert!(self.agent.is_open());
    }

    /// Bytes that came at once; the agent says how many it wants at a time.
    fn receive(&mut self, mut bytes: &[u8]) {
        self.settle();
        while !bytes.is_empty() && self.seen.ended.is_none() {
            let Read::At { place, offset, max, .. } = self.agent.poll_read() else { return };
            assert!(max > 0, "a read of nothing");
            // The whole range has to be ours, not just what comes.
            let _ = self.places.of(place, offset, max as usize);
            let length = bytes.len().min(max as usize);
            self.places.of(place, offset, length).copy_from_slice(&bytes[..length]);
            bytes = &bytes[length..];
            self.agent.handle_received(self.now, u32::try_from(length).expect("at most a slot"));
            self.settle();
        }
    }

    /// Does all there is to do.
    fn settle(&mut self) {
        for _ in 0..100_000 {
            let mut progress = self.agent.process(self.now, &mut self.places);
            while let Some(event) = self.agent.poll_event() {
                self.take(event);
                progress = true;
            }
            if self.agent.wants_slot() && !self.places.offered {
                self.places.offered = true;
                self.agent.offer_slot();
                progress = true;
            }
            while let Some(length) = self.agent.poll_transmit(self.now, &mut self.out[..]) {
                let out = &self.out[..length];
                let Ok(Decoded::Header { header, size }) = frame::decode(out) else {
                    panic!("no frame: {out:?}");
                };
                assert!(header.fin && header.masked.is_some());
                assert_eq!(header.length, (length - size) as u64);
                assert!(
                    !self.seen.sent.iter().any(|(opcode, _)| *opcode == Opcode::Close),
                    "said after a close"
                );
                // How many pongs there are depends on the pieces.
                if header.opcode == Opcode::Pong {
                    let mut payload = out[size..].to_vec();
                    mask::apply(header.masked.unwrap_or_default(), 0, &mut payload);
                    self.pongs.push(payload);
                } else {
                    self.seen.sent.push((header.opcode, length - size));
                }
                self.agent.handle_sent(self.now);
                progress = true;
            }
            if !progress {
                return;
            }
        }
        panic!("the agent never comes to rest");
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Observation { epoch, sequence, length, .. } => {
                assert!(core::mem::take(&mut self.places.offered), "an observation without a slot");
                let payload = self.places.slot[HEADROOM as usize..][..length as usize].to_vec();
                self.seen.observations.push((epoch, sequence, payload));
            }
            Event::ObservationTooLarge { size, .. } => self.seen.oversized.push(size),
            Event::Disconnected { cause, .. } => self.seen.ended = Some(cause.to_string()),
            _ => {}
        }
    }
}
