//! Everything around the frame loop: time, what happens when, and whose turn it is.
//!
//! The frame loop is the real one, and so is its call into the driver. The driver's wait is where the world turns: it
//! goes on from event to event until one of them is something that a kernel would have woken the frame loop for.

use core::cmp::Ordering;
use std::collections::BinaryHeap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use crossbeam_channel::Sender;
use sidecar::config::Token;
use sidecar::frame_loop::{Command, Request};
use sidecar_core::agent::{DialFailure, Shutdown};
use sidecar_core::time::Instant;
use sidecar_shm::simulation;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::coverage::Coverage;
use crate::fault::Fault;
use crate::gateway::{Gateway, ServerConn};
use crate::net::{Conn, Ended};
use crate::oracle::Oracle;
use crate::plan::{FirstDial, MILLI, Plan, SECOND};
use crate::random::Random;
use crate::workers::{Join, Process};

/// The job of all simulations.
pub(crate) const JOB: &str = "11111111-2222-4333-8444-555555555555";
/// The token at first, and after a rotation.
pub(crate) const TOKENS: [&str; 2] = ["first-token", "second-token"];

/// What a gateway does next for a tunnel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Do {
    Warmup,
    Queued,
    RoundTrip,
    NextSession,
    OpenAgain,
    Observe,
    Reask,
    CloseSession,
    Drain,
}

/// Something that happens at a time.
#[derive(Debug)]
pub(crate) enum Event {
    Connected(usize),
    ToGateway(usize, Vec<u8>),
    GatewayEnd(usize, Ended),
    ToSidecar(usize, Vec<u8>),
    SidecarEnd(usize, Ended),
    Gate(usize, u64, Do),
    Ping(usize),
    Deadline(usize),
    Window(usize, u64),
    CaseTimeout(usize, usize),
    DialAnswer { incarnation: u32, dial: u64, reread: bool },
    Worker(usize),
    Join(usize),
    Proof(usize),
    Start,
    ConnectionEnded(u32, u8, u32),
    ProvedDead(u32, u8, u32),
    Shutdown(u32, Shutdown),
}

#[derive(Debug)]
struct Timed {
    at: u64,
    number: u64,
    event: Event,
}

impl PartialEq for Timed {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Timed {}

impl PartialOrd for Timed {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timed {
    /// The earliest is the greatest, since a heap gives the greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

/// The sidecar's process, from outside.
#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    pub(crate) alive: bool,
    pub(crate) killed: bool,
    /// Points that the next turn passes before it dies.
    pub(crate) fuse: Option<u32>,
    pub(crate) incarnation: u32,
    pub(crate) since: u64,
    /// When the last one that had come up ended.
    pub(crate) gone_since: u64,
    pub(crate) commands: Option<Sender<Command>>,
    pub(crate) requests: Option<UnboundedReceiver<Request>>,
    pub(crate) doorbells: Vec<OwnedFd>,
    /// The doorbell was rung.
    pub(crate) rung: bool,
    /// The frame loop has said that it sleeps.
    pub(crate) sleeps: bool,
    /// Since when it has slept without listening to a connection that has something to say.
    pub(crate) deaf_since: Option<u64>,
    /// When the last byte of the gateway was read, and when the last connection was closed.
    pub(crate) last_byte: u64,
    /// The same, as far as it is certainly on record.
    pub(crate) recorded_byte: u64,
    pub(crate) disconnected: u64,
    /// SIGTERM, or SIGUSR2.
    pub(crate) signalled: Option<Fault>,
    pub(crate) bad_model: bool,
    /// Turn in which `ready` was sent; from the turn after the next on it is on record.
    pub(crate) ready_turn: Option<u64>,
    pub(crate) ready_known: bool,
    /// Starts of a process that could not know that a worker was warm.
    pub(crate) cold_starts: u32,
    token: usize,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) now: u64,
    events: BinaryHeap<Timed>,
    numbers: u64,
    pub(crate) random: Random,
    pub(crate) plan: Plan,
    pub(crate) conns: Vec<Conn>,
    /// The connection that the driver has.
    pub(crate) current: Option<usize>,
    pub(crate) gateway: Gateway,
    pub(crate) workers: Vec<Process>,
    pub(crate) worker_deaths: u32,
    pub(crate) joins: Vec<(usize, Join)>,
    pub(crate) oracle: Oracle,
    pub(crate) sidecar: Sidecar,
    pub(crate) refused_until: u64,
    pub(crate) unanswered_until: u64,
    pub(crate) unresolved_until: u64,
    pub(crate) faults_left: u32,
    pub(crate) last_fault: u64,
    pub(crate) next_is_late: bool,
    pub(crate) next_fails: bool,
    pub(crate) coverage: Coverage,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) path: PathBuf,
    pub(crate) tokens: Vec<Token>,
    /// The run is over; nobody starts anything any more.
    pub(crate) ended: bool,
    /// SIGTERM was sent, perhaps to a process that died of something else.
    pub(crate) terminated: bool,
    pushed_down: u64,
    /// Turns since time went on.
    idle_turns: u32,
}

/// When a simulation starts: late enough that nothing is before the boot.
pub(crate) const START: u64 = 1000 * SECOND;
/// So many turns of the frame loop without any time passing are a busy loop.
const BUSY: u32 = 20_000;
/// No schedule needs a tenth of this.
const MOST_STEPS: u64 = 500_000;

/// Stores of sidecars so far that a worker may want to see.
fn pushed_down() -> u64 {
    let passed = simulation::passed();
    passed[simulation::Point::DownAfter as usize] + passed[simulation::Point::CommitAfter as usize]
}

/// A time as a trace shows it: seconds since the start.
pub(crate) fn shown(now: u64) -> String {
    let now = now.saturating_sub(START);
    format!("{:>6}.{:06}", now / SECOND, now % SECOND / 1000)
}

impl World {
    pub(crate) fn new(seed: u64, path: PathBuf, tokens: Vec<Token>, traced: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::new(&mut random);
        let mut world = Self {
            now: START,
            events: BinaryHeap::with_capacity(64),
            numbers: 0,
            conns: Vec::new(),
            current: None,
            gateway: Gateway::new(&plan),
            workers: Vec::new(),
            worker_deaths: 0,
            joins: Vec::new(),
            oracle: Oracle::new(),
            sidecar: Sidecar { last_byte: START, recorded_byte: START, ..Sidecar::default() },
            refused_until: 0,
            unanswered_until: 0,
            unresolved_until: 0,
            faults_left: plan.faults,
            last_fault: START,
            next_is_late: false,
            next_fails: false,
            coverage: Coverage::default(),
            violation: None,
            trace: traced.then(Vec::new),
            path,
            tokens,
            ended: false,
            terminated: false,
            pushed_down: pushed_down(),
            idle_turns: 0,
            random,
            plan,
        };
        if let FirstDial::Absent(seconds) = world.plan.first_dial {
            world.refused_until = START + u64::from(seconds) * SECOND;
        }
        if world.plan.worker_timeout.is_some() {
            // Any answer may be late.
            world.oracle.replies_due = u32::MAX / 2;
        }
        simulation::set_time(Some(Instant::from_nanos(START)));
        world.after(1, Event::Start);
        let plan = format!("{:?}", world.plan);
        world.note(|| plan);
        world
    }

    pub(crate) fn at(&mut self, at: u64, event: Event) {
        self.numbers += 1;
        self.events.push(Timed { at: at.max(self.now), number: self.numbers, event });
    }

    pub(crate) fn after(&mut self, delay: u64, event: Event) {
        self.at(self.now + delay, event);
    }

    pub(crate) fn note(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(trace) = &mut self.trace {
            trace.extend(crate::trace::logged());
            trace.push(format!("{}  {}", shown(now), line()));
        }
    }

    /// A promise is broken. The first one counts.
    pub(crate) fn fail(&mut self, what: String) {
        self.note(|| format!("BROKEN  {what}"));
        self.violation.get_or_insert(what);
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        if now > self.now {
            self.now = now;
            self.idle_turns = 0;
            simulation::set_time(Some(Instant::from_nanos(now)));
        }
    }

    /// When the next event is due.
    pub(crate) fn next_event(&self) -> Option<u64> {
        self.events.peek().map(|timed| timed.at)
    }

    /// Lets the next event happen.
    pub(crate) fn step(&mut self) {
        let Some(Timed { at, event, .. }) = self.events.pop() else { return };
        self.set_time(at);
        self.coverage.steps += 1;
        if self.coverage.steps > MOST_STEPS {
            return self.fail("no end in sight, after so many steps".into());
        }
        self.happen(event);
        self.perhaps_a_fault();
        self.look_for_the_end();
    }

    /// Whether it goes on for too long, with events or without: a sidecar that only ever wakes itself makes none.
    pub(crate) fn look_for_the_end(&mut self) {
        let last =
            self.last_fault.max(self.refused_until).max(self.unanswered_until).max(self.unresolved_until);
        if self.now > last + self.patience() && self.plan.wait_for_slot && self.sidecar.alive {
            // Told to wait for a place it waits for ever: the user gives up.
            self.last_fault = self.now;
            self.signal(Fault::Terminate);
        } else if self.now > last + self.patience() {
            self.fail("no end in sight, long after the last fault".into());
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Connected(at) => self.dial_ends(at),
            Event::ToGateway(at, bytes) => self.bytes_for_gateway(at, &bytes),
            Event::GatewayEnd(at, how) => {
                self.note(|| format!("gateway sees {how:?}"));
                self.conns[at].gateway = false;
                self.gateway_lost(at, "end of stream");
            }
            Event::ToSidecar(at, bytes) => self.bytes_for_sidecar(at, &bytes),
            Event::SidecarEnd(at, how) => self.end_for_sidecar(at, how),
            Event::Gate(tunnel, generation, what) => self.gateway_does(tunnel, generation, what),
            Event::Ping(at) => self.ping_is_due(at),
            Event::Deadline(at) => self.deadline_is_due(at),
            Event::Window(tunnel, generation) => self.window_is_over(tunnel, generation),
            Event::CaseTimeout(tunnel, session) => self.case_may_be_stuck(tunnel, session),
            Event::DialAnswer { incarnation, dial, reread } => {
                self.dial_is_prepared(incarnation, dial, reread)
            }
            Event::Worker(at) => self.step_worker(at),
            Event::Join(at) => self.join(at),
            Event::Proof(at) => self.worker_is_gone(at),
            Event::Start => self.start_worker(),
            Event::ConnectionEnded(incarnation, seat, generation) => {
                self.command(incarnation, Command::ConnectionEnded { seat, generation });
            }
            Event::ProvedDead(incarnation, seat, generation) => {
                self.command(incarnation, Command::ProvedDead { seat, generation });
            }
            Event::Shutdown(incarnation, how) => self.command(incarnation, Command::Shutdown(how)),
        }
    }

    /// The control thread tells the frame loop something.
    fn command(&mut self, incarnation: u32, command: Command) {
        if self.sidecar.alive
            && self.sidecar.incarnation == incarnation
            && let Some(commands) = &self.sidecar.commands
            && commands.send(command).is_ok()
        {
            self.sidecar.rung = true;
        }
    }

    /// The frame loop has come back to its driver: what it did since is looked at.
    pub(crate) fn turned(&mut self) {
        self.coverage.turns += 1;
        self.idle_turns += 1;
        if self.idle_turns > BUSY {
            self.fail("the frame loop turns and turns, and no time passes".into());
        }
        self.oracle_turned();
        self.sidecar.recorded_byte = self.sidecar.last_byte;
        if self.sidecar.ready_turn.is_some_and(|turn| self.coverage.turns > turn + 2) {
            self.sidecar.ready_known = true;
        }
        self.answer_joins();
        let down = pushed_down();
        if down != self.pushed_down {
            self.pushed_down = down;
            self.wake_workers();
        }
        self.take_requests();
    }

    fn take_requests(&mut self) {
        while let Some(request) = self.sidecar.requests.as_mut().and_then(|requests| requests.try_recv().ok())
        {
            match request {
                Request::Dial { dial, reread_token } => {
                    let delay = self.random.below(MILLI);
                    let incarnation = self.sidecar.incarnation;
                    self.after(delay, Event::DialAnswer { incarnation, dial, reread: reread_token });
                }
                // The workers are nobody's children.
                Request::WorkerReady | Request::RestartWorker { .. } => {}
                Request::DropWorker { why, .. } => self.fail(format!("a worker was poisoned: {why}")),
            }
        }
    }

    fn dial_is_prepared(&mut self, incarnation: u32, dial: u64, reread: bool) {
        if reread {
            self.coverage.row("token read again");
            self.sidecar.token = self.gateway.token as usize;
        }
        let answer = if self.now < self.unresolved_until {
            Err(DialFailure::Dns)
        } else {
            let addresses = vec![([127, 0, 0, 1], 443).into()];
            Ok((addresses, self.tokens[self.sidecar.token].clone()))
        };
        self.command(incarnation, Command::Dial { dial, answer });
    }

    /// The driver connects.
    pub(crate) fn dial(&mut self) {
        if self.oracle.drained {
            self.fail("dialled again after drain".into());
        }
        let at = self.conns.len();
        self.conns.push(Conn::dialled());
        self.gateway.conns.push(ServerConn::default());
        self.current = Some(at);
        if self.now >= self.unanswered_until {
            let delay = 2 * self.plan.latency + self.random.below(self.plan.jitter + 1);
            self.after(delay, Event::Connected(at));
        }
        self.note(|| "sidecar dials".into());
    }

    fn dial_ends(&mut self, at: usize) {
        let now = self.now;
        if !self.conns[at].sidecar {
            return;
        }
        if now < self.refused_until {
            self.note(|| "dial refused".into());
            self.conns[at].connected = Some(Err(std::io::ErrorKind::ConnectionRefused.into()));
            return;
        }
        let conn = &mut self.conns[at];
        conn.established = true;
        conn.gateway = true;
        conn.since = now;
        conn.connected = Some(Ok(()));
    }

    /// A worker has pushed: did it ring, if it had to?
    pub(crate) fn look_at_doorbell(&mut self, attached: bool) {
        if !self.sidecar.alive {
            return;
        }
        // An edge-triggered poll sees a ring once; so does who takes the count away.
        let rung = |doorbell: &OwnedFd| rustix::io::read(doorbell, &mut [0; 8]).is_ok();
        let readable = self.sidecar.doorbells.iter().filter(|doorbell| rung(doorbell)).count() > 0;
        if attached && self.sidecar.sleeps && !readable && !self.sidecar.rung {
            self.fail(
                "a wake-up is lost: a worker said something, the sidecar sleeps, and nobody rang".into(),
            );
        }
        self.sidecar.rung |= readable;
    }

    /// A signal arrives.
    pub(crate) fn signal(&mut self, fault: Fault) {
        self.sidecar.signalled = Some(fault);
        self.terminated |= fault == Fault::Terminate;
        let how = if fault == Fault::Upgrade { Shutdown::Leave } else { Shutdown::Close };
        let incarnation = self.sidecar.incarnation;
        self.after(0, Event::Shutdown(incarnation, how));
    }
}
