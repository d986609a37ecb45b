//! The smallest client of the tunnel: the agent over a blocking socket, answering every observation with nothing. It
//! shows who does what: the agent says what to do next, and everything that touches the world is here.
//!
//! ```text
//! cargo run --package sidecar-core --example noop -- HOST:PORT/PATH TOKEN
//! ```
//!
//! Given the address of an Autobahn fuzzing server it plays those of its cases that are about the connection and not
//! about messages, since the tunnel's client echoes none: `cargo xtask test --only conformance` compares them with
//! `core/tests/autobahn/agent.txt`.
//!
//! What it leaves out: the sidecar's whole other half. One thread blocks in a read, so timers are as coarse as the
//! read's timeout, and a write that blocks stops everything.

#![allow(missing_docs, reason = "a program has no readers of documentation")]

mod memory;

use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::ExitCode;

use sidecar_core::agent::{
    Agent, Config, DialFailure, End, Endpoint, Event, Limits, MAX_HEAD, MAX_TRANSMIT, Outcome, Read, Timers,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, JobId};

use memory::Places;

/// How coarse the timers are.
const TICK: Duration = Duration::from_millis(50);
/// How long an orderly end waits for the server's FIN.
const LINGER: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let played = match arguments.as_slice() {
        [target] => cases(target),
        [target, token] => target
            .split_once('/')
            .ok_or_else(|| io::Error::other("HOST:PORT/PATH has no path"))
            .and_then(|(address, path)| play(address, &format!("/{path}"), token, Until::Finished)),
        _ => {
            eprintln!("usage: noop HOST:PORT/PATH TOKEN, or noop HOST:PORT of a fuzzing server");
            return ExitCode::FAILURE;
        }
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// When a run is over.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Until {
    /// The agent says so.
    Finished,
    /// The first connection has ended, however that was.
    Disconnected,
}

/// Plays every case of a fuzzing server. How many there are is not asked: that is a text message, which the tunnel's
/// client does not hand out. The server refuses the first number that it does not have.
fn cases(address: &str) -> io::Result<()> {
    let mut case = 1;
    while play(address, &format!("/runCase?case={case}"), "conformance", Until::Disconnected).is_ok() {
        case += 1;
    }
    play(address, "/updateReports", "conformance", Until::Disconnected)
}

fn config(address: &str, path: &str) -> io::Result<Config> {
    let long = |_| io::Error::other("the endpoint is too long");
    Ok(Config {
        endpoint: Endpoint { host: address.try_into().map_err(long)?, path: path.try_into().map_err(long)? },
        job: JobId::new("7b9f1c1e-0000-4000-8000-000000000001").map_err(io::Error::other)?,
        agent: AgentId::new("sidecar-agent").map_err(io::Error::other)?,
        timers: Timers::default(),
        limits: Limits { slot_bytes: 1 << 20, text_bytes: 16 << 20, ..Limits::default() },
        unfreeze: None,
        wedge_after: None,
        fresh_agent_on_wedge: false,
        wait_for_slot: false,
    })
}

/// One run of the agent.
fn play(address: &str, path: &str, token: &str, until: Until) -> io::Result<()> {
    // Mask keys grow from it: it has to be unpredictable.
    let mut seed = [0; 32];
    File::open("/dev/urandom")?.read_exact(&mut seed)?;
    let config = config(address, path)?;
    let memory = Places::new(config.limits.slot_bytes);
    let agent = Agent::new(config, seed, now());
    let mut client = Client { agent, memory, stream: None, slot_is_free: true, upgraded: false };
    loop {
        if let Some(ended) = client.turn(address, token)? {
            match (ended, until) {
                (Ended::Finished(outcome), Until::Finished) if *outcome == Outcome::Drained => return Ok(()),
                (Ended::Finished(outcome), Until::Finished) => {
                    return Err(io::Error::other(format!("{outcome:?}")));
                }
                (_, Until::Disconnected) if client.upgraded => return Ok(()),
                (_, Until::Disconnected) => return Err(io::Error::other("the upgrade came to nothing")),
                (Ended::Disconnected, Until::Finished) => {}
            }
        }
    }
}

enum Ended {
    Disconnected,
    Finished(Box<Outcome>),
}

struct Client {
    agent: Agent,
    memory: Places,
    stream: Option<TcpStream>,
    slot_is_free: bool,
    upgraded: bool,
}

impl Client {
    /// One turn, in the order that the agent's page names.
    fn turn(&mut self, address: &str, token: &str) -> io::Result<Option<Ended>> {
        if self.agent.poll_timeout().is_some_and(|due| due <= now()) {
            self.agent.handle_timeout(now());
        }
        loop {
            if self.slot_is_free && self.agent.wants_slot() {
                self.slot_is_free = false;
                self.agent.offer_slot();
            }
            let went = self.agent.process(now(), &mut self.memory);
            let event = self.agent.poll_event();
            if !went && event.is_none() {
                break;
            }
            if let Some(event) = event
                && let Some(ended) = self.handle(event, address, token)?
            {
                // What comes after an end, a redial perhaps, is for the next turn.
                return Ok(Some(ended));
            }
        }
        self.send()?;
        self.receive();
        Ok(None)
    }

    fn handle(&mut self, event: Event, address: &str, token: &str) -> io::Result<Option<Ended>> {
        match event {
            Event::Dial { .. } => self.dial(address, token)?,
            // The last frame left with the write that it was handed to.
            Event::HangUp(_) => self.hang_up(),
            Event::Upgraded { .. } => self.upgraded = true,
            Event::Warmup => self.agent.worker_ready(now()),
            Event::Observation { epoch, sequence, .. } => {
                self.slot_is_free = true;
                self.answer(epoch, sequence)?;
            }
            Event::Drain { .. } => self.agent.finish_drain(now()),
            Event::Disconnected { .. } => return Ok(Some(Ended::Disconnected)),
            Event::Finished(outcome) => return Ok(Some(Ended::Finished(Box::new(outcome)))),
            // Worth a line in a log, or nothing that a policy without a model has to know.
            _ => {}
        }
        Ok(None)
    }

    fn dial(&mut self, address: &str, token: &str) -> io::Result<()> {
        let Ok(mut stream) = TcpStream::connect(address) else {
            self.agent.handle_dial_failed(now(), DialFailure::Refused);
            return Ok(());
        };
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TICK))?;
        let mut request = [0; 4096];
        let length = self.agent.handle_connected(now(), token, &mut request).map_err(io::Error::other)?;
        stream.write_all(&request[..length])?;
        self.agent.handle_sent(now());
        self.stream = Some(stream);
        Ok(())
    }

    /// FIN, then the server's FIN: a reset would take back what it has not read.
    fn hang_up(&mut self) {
        let Some(mut stream) = self.stream.take() else { return };
        if stream.shutdown(Shutdown::Write).is_ok() && stream.set_read_timeout(Some(LINGER)).is_ok() {
            while let Ok(1..) = stream.read(&mut [0; 4096]) {}
        }
    }

    /// The action with nothing in it: its whole frame is what stands in front of the payload.
    fn answer(&mut self, epoch: sidecar_core::tunnel::Epoch, sequence: u64) -> io::Result<()> {
        let mut head = [0; MAX_HEAD];
        let Ok(action) = self.agent.begin_action(now(), epoch, sequence, 0, &mut head) else { return Ok(()) };
        if let Some(stream) = &mut self.stream {
            stream.write_all(&head[..action.len])?;
        }
        self.agent.handle_action_sent(now(), epoch, sequence);
        Ok(())
    }

    /// Control frames, pongs first.
    fn send(&mut self) -> io::Result<()> {
        let mut frame = [0; MAX_TRANSMIT];
        while let Some(stream) = &mut self.stream
            && let Some(length) = self.agent.poll_transmit(now(), &mut frame)
        {
            // A peer that is gone is noticed by the next read.
            let _ = stream.write_all(&frame[..length]);
            self.agent.handle_sent(now());
        }
        Ok(())
    }

    /// Receives to where the agent wants the next bytes, or lets a moment pass.
    fn receive(&mut self) {
        let (Some(stream), Read::At { place, offset, max, .. }) = (&mut self.stream, self.agent.poll_read())
        else {
            return std::thread::sleep(TICK.min(Duration::from_millis(1)));
        };
        match stream.read(self.memory.at(place, offset, max)) {
            Ok(0) => self.agent.handle_end(now(), End::Eof),
            // At most `max`, which is a u32.
            Ok(length) => self.agent.handle_received(now(), length as u32),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            Err(_) => self.agent.handle_end(now(), End::Reset),
        }
    }
}

/// The time as the agent counts it: from the first call on.
#[expect(clippy::disallowed_methods, reason = "the one place of this program that reads a clock")]
fn now() -> Instant {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let since = START.get_or_init(std::time::Instant::now).elapsed();
    Instant::from_nanos(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
