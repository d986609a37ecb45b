//! `agent`: one whole life of it against a gateway that says what it is told, then its ways to end.

use core::time::Duration;

use heapless::{String, Vec};
use sidecar_core::agent::{
    Agent, Config, DialFailure, End, Endpoint, Event, HEADROOM, HangUp, Limits, MAX_HEAD, MAX_TRANSMIT,
    Memory, Outcome, Phase, Place, Read, Refused, Resume, Shutdown, Timers,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::data::{MAX_DATA_HEAD, encode_data_head};
use sidecar_core::tunnel::{AgentId, Epoch, JobId, SessionId, clip};
use sidecar_core::ws::frame::{Header, MAX_HEADER, Opcode, encode};
use sidecar_core::ws::handshake::accept_for;

use crate::Proof;
use crate::codec::write_answer;

const SLOT: usize = 4096;
const ROOM: usize = HEADROOM as usize + SLOT;
const KEY_FIELD: &[u8] = b"Sec-WebSocket-Key: ";

pub(crate) fn run() -> Proof {
    one_life()?;
    failures()?;
    worker_failure()
}

/// The caller's memory.
struct Places {
    scratch: [u8; ROOM],
    slot: [u8; ROOM],
}

impl Places {
    fn of(&mut self, place: Place) -> &mut [u8; ROOM] {
        match place {
            Place::Scratch => &mut self.scratch,
            Place::Slot => &mut self.slot,
        }
    }
}

impl Memory for Places {
    fn peek(&self, place: Place, offset: u32, into: &mut [u8]) {
        let from = match place {
            Place::Scratch => &self.scratch,
            Place::Slot => &self.slot,
        };
        into.copy_from_slice(&from[offset as usize..][..into.len()]);
    }

    fn relocate(&mut self, from: Place, from_offset: u32, to: Place, to_offset: u32, length: u32) {
        let (from_offset, to_offset, length) = (from_offset as usize, to_offset as usize, length as usize);
        if from == to {
            self.of(to).copy_within(from_offset..from_offset + length, to_offset);
        } else {
            let Self { scratch, slot } = self;
            let (source, target) = if from == Place::Slot { (slot, scratch) } else { (scratch, slot) };
            target[to_offset..][..length].copy_from_slice(&source[from_offset..][..length]);
        }
    }
}

/// An agent with a clock and memory.
struct Stage {
    agent: Agent,
    now: Instant,
    places: Places,
}

impl Stage {
    fn new(resume: Option<Resume>) -> Result<Self, u32> {
        let config = Config {
            endpoint: Endpoint { host: clip("gateway"), path: clip("/tunnel") },
            job: JobId::new("job").map_err(|_| line!())?,
            agent: AgentId::new("agent").map_err(|_| line!())?,
            timers: Timers::default().scaled(20),
            limits: Limits { slot_bytes: SLOT as u32, ..Limits::default() },
            unfreeze: Some(Duration::from_secs(60)),
            wedge_after: Some(Duration::from_secs(120)),
            fresh_agent_on_wedge: true,
            wait_for_slot: false,
        };
        let now = Instant::from_nanos(1);
        let agent = match resume {
            None => Agent::new(config, [7; 32], now),
            Some(resume) => Agent::resume(config, resume, [7; 32], now),
        };
        Ok(Self { agent, now, places: Places { scratch: [0; ROOM], slot: [0; ROOM] } })
    }

    /// Drains the events; whether one of them is wanted.
    fn saw(&mut self, wanted: impl Fn(&Event) -> bool) -> bool {
        let mut seen = false;
        while let Some(event) = self.agent.poll_event() {
            seen |= wanted(&event);
        }
        seen
    }

    /// Receives all of `bytes`; whether a wanted event came of it.
    fn receive(&mut self, mut bytes: &[u8], wanted: impl Fn(&Event) -> bool) -> bool {
        let mut seen = false;
        while !bytes.is_empty() {
            if self.agent.wants_slot() {
                self.agent.offer_slot();
            }
            let Read::At { place, offset, max, .. } = self.agent.poll_read() else { return seen };
            let (piece, rest) = bytes.split_at(bytes.len().min(max as usize));
            self.places.of(place)[offset as usize..][..piece.len()].copy_from_slice(piece);
            self.agent.handle_received(self.now, piece.len() as u32);
            bytes = rest;
            while self.agent.process(self.now, &mut self.places) {
                seen |= self.saw(&wanted);
            }
            seen |= self.saw(&wanted);
        }
        seen
    }

    fn receive_frame(&mut self, opcode: Opcode, payload: &[u8], wanted: impl Fn(&Event) -> bool) -> bool {
        let mut head = [0; MAX_HEADER];
        let header = Header { fin: true, opcode, masked: None, length: payload.len() as u64 };
        let size = encode(&header, &mut head);
        let mut bytes: Vec<u8, 512> = Vec::new();
        let fits = bytes.extend_from_slice(&head[..size]).is_ok() && bytes.extend_from_slice(payload).is_ok();
        fits && self.receive(&bytes, wanted)
    }

    fn transmit(&mut self) -> bool {
        let mut out = [0; MAX_TRANSMIT];
        let mut sent = false;
        while self.agent.poll_transmit(self.now, &mut out).is_some() {
            self.agent.handle_sent(self.now);
            sent = true;
        }
        sent
    }

    /// Answers the dial that was asked for, up to the 101.
    fn connect(&mut self) -> Proof {
        ensure!(self.saw(|event| matches!(event, Event::Dial { .. })));
        let mut request = [0; 4096];
        let length = self.agent.handle_connected(self.now, "token", &mut request).map_err(|_| line!())?;
        self.agent.handle_sent(self.now);
        let place = request[..length].windows(KEY_FIELD.len()).position(|window| window == KEY_FIELD);
        let start = place.ok_or(line!())? + KEY_FIELD.len();
        let key = request[start..].first_chunk().ok_or(line!())?;
        let mut answer: String<256> = String::new();
        ensure!(write_answer(&mut answer, &accept_for(key)).is_ok());
        ensure!(self.receive(answer.as_bytes(), |event| matches!(event, Event::Upgraded { .. })));
        ensure!(self.agent.is_open());
        Ok(())
    }
}

fn one_life() -> Proof {
    let mut stage = Stage::new(None)?;
    ensure!(stage.agent.agent_id().as_str() == "agent" && stage.agent.config().job.as_str() == "job");
    stage.connect()?;
    ensure!(stage.receive_frame(Opcode::Ping, b"?", |_| true) && stage.transmit());
    ensure!(stage.agent.connected_once() && stage.agent.last_byte().is_some());
    let warmup = br#"{"type":"warmup"}"#;
    ensure!(stage.receive_frame(Opcode::Text, warmup, |event| *event == Event::Warmup));
    stage.agent.worker_ready(stage.now);
    ensure!(stage.transmit() && stage.agent.is_warm() && stage.saw(|event| *event == Event::ReadySent));
    let open = br#"{"type":"session_open","session_id":"s"}"#;
    ensure!(stage.receive_frame(Opcode::Text, open, |event| matches!(event, Event::SessionOpened { .. })));
    ensure!(stage.agent.phase() == Phase::Running);
    let epoch = stage.agent.session().map(|(_, epoch)| epoch).ok_or(line!())?;
    ensure!(stage.agent.is_session_open(epoch) && stage.agent.longest_wait().is_zero());
    exchange(&mut stage, epoch)?;

    stage.agent.close_session(stage.now, epoch, "done");
    ensure!(stage.transmit() && stage.agent.session().is_none());
    ensure!(stage.agent.may_send(epoch) == Err(Refused::Gone));
    let drain = br#"{"type":"drain"}"#;
    ensure!(stage.receive_frame(Opcode::Text, drain, |event| matches!(event, Event::Drain { .. })));
    stage.agent.finish_drain(stage.now);
    ensure!(stage.transmit());
    let hang_up = |event: &Event| matches!(event, Event::HangUp(HangUp::Orderly));
    let drained = |event: &Event| *event == Event::Finished(Outcome::Drained);
    ensure!(stage.receive_frame(Opcode::Close, &[3, 232], |event| hang_up(event) || drained(event)));
    Ok(())
}

fn exchange(stage: &mut Stage, epoch: Epoch) -> Proof {
    let session = SessionId::new("s").map_err(|_| line!())?;
    let mut message = [0; MAX_DATA_HEAD + 64];
    let length = encode_data_head(&session, &mut message) + 64;
    let observed = |event: &Event| matches!(event, Event::Observation { length: 64, .. });
    ensure!(stage.receive_frame(Opcode::Binary, &message[..length], observed));
    stage.agent.set_unanswered(1);
    ensure!(stage.agent.may_send(epoch).is_ok());
    let mut head = [0; MAX_HEAD];
    let action = stage.agent.begin_action(stage.now, epoch, 1, 7, &mut head).map_err(|_| line!())?;
    ensure!(action.len == 2 + 4 + 5 && action.mask_offset == 5);
    stage.agent.handle_action_sent(stage.now, epoch, 1);
    stage.agent.set_unanswered(0);
    ensure!(stage.agent.carried() == 0 && stage.agent.filling().is_none());
    ensure!(stage.agent.take_sequence() < stage.agent.take_sequence());
    stage.agent.offer_slot();
    ensure!(stage.agent.take_back_slot());
    Ok(())
}

fn failures() -> Proof {
    let resume = Resume { connected_once: true, ready_sent: true, ..Resume::default() };
    let mut stage = Stage::new(Some(resume))?;
    ensure!(stage.saw(|event| matches!(event, Event::Dial { .. })));
    stage.agent.handle_dial_failed(stage.now, DialFailure::Refused);
    ensure!(stage.saw(|event| matches!(event, Event::Disconnected { .. })));
    stage.now = stage.agent.poll_timeout().ok_or(line!())?;
    stage.agent.handle_timeout(stage.now);
    stage.connect()?;
    stage.agent.handle_end(stage.now, End::Reset);
    ensure!(stage.agent.has_event());
    ensure!(stage.saw(|event| matches!(event, Event::Disconnected { .. })));
    stage.agent.replace_agent(stage.now, AgentId::new("other").map_err(|_| line!())?);
    ensure!(stage.agent.agent_id().as_str() == "other");
    stage.agent.shutdown(stage.now, Shutdown::Close);
    ensure!(stage.saw(|event| *event == Event::Finished(Outcome::Closed)));
    Ok(())
}

fn worker_failure() -> Proof {
    let mut stage = Stage::new(None)?;
    stage.agent.worker_failed(stage.now);
    ensure!(stage.saw(|event| *event == Event::Finished(Outcome::WorkerFailed)));
    Ok(())
}
