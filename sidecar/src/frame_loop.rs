//! The frame loop: bridge and driver turned together, on a thread of their own.
//!
//! Everything slow (name resolution, child processes, attach handshakes) happens on the control thread and comes
//! in through a channel whose other end rings the doorbell.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::VecDeque;

use sidecar_core::agent::{DialFailure, End, Outcome, Shutdown};
use sidecar_core::time::Instant;
use sidecar_shm::attach::Candidate;
use sidecar_shm::clock;
use sidecar_shm::owner::{SeatGrant, SeatInfo, SeatRefused};
use sidecar_shm::spin::Spin;
use sidecar_shm::stats::Counter;

use crate::bridge::{Bridge, Effect};
use crate::channel::{Receiver, TryRecvError};
use crate::config::Token;
use crate::driver::{Close, Completion, Completions, Driver, SocketOptions, Taken, Tell, Wait};
use crate::explain::Code;
use crate::report::Failure;

/// What the control thread tells the frame loop.
#[derive(Debug)]
pub enum Command {
    /// The answer to [`Request::Dial`].
    Dial {
        /// Which request.
        dial: u64,
        /// Where to connect to, and as whom.
        answer: Result<(Vec<SocketAddr>, Token), DialFailure>,
    },
    /// A worker asks for a seat; its process was verified.
    Join {
        /// Who it is.
        candidate: Candidate,
        /// Where the grant goes.
        reply: tokio::sync::oneshot::Sender<Result<SeatGrant, SeatRefused>>,
    },
    /// A worker's connection ended.
    ConnectionEnded {
        /// Its seat.
        seat: u8,
        /// The seat's generation that it was granted.
        generation: u32,
    },
    /// A worker's process is gone for certain.
    ProvedDead {
        /// Its seat.
        seat: u8,
        /// The seat's generation that it was granted.
        generation: u32,
    },
    /// The user wants an end.
    Shutdown(Shutdown),
    /// The child worker failed for good before it was ever ready.
    WorkerLost {
        /// How, in words.
        why: String,
    },
}

/// What the frame loop asks of the control thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Resolve the endpoint; read the token sources again first when told so.
    Dial {
        /// Comes back with the answer.
        dial: u64,
        /// The last token was refused.
        reread_token: bool,
    },
    /// The worker is warm.
    WorkerReady,
    /// End a worker's attachment, and its process if it is our child.
    DropWorker {
        /// Who.
        worker: SeatInfo,
        /// What it did.
        why: String,
    },
    /// End a worker's process if it is our child; it is started again then.
    RestartWorker {
        /// Who.
        worker: SeatInfo,
        /// Why.
        why: String,
    },
}

/// How the frame loop reaches the control thread.
pub type Requests = tokio::sync::mpsc::UnboundedSender<Request>;

/// See the module.
pub struct FrameLoop {
    bridge: Bridge,
    driver: Box<dyn Driver>,
    commands: Receiver<Command>,
    requests: Requests,
    socket_options: SocketOptions,
    waiting: Waiting,
    token: Option<Token>,
    addresses: VecDeque<SocketAddr>,
    /// Dials asked for so far.
    dials: u64,
    /// The dial whose answer is awaited; an answer to another one comes too late.
    awaited: Option<u64>,
    hang_up: Option<Instant>,
    /// When the last send was given to the driver.
    send_began: Instant,
    outcome: Option<Outcome>,
    connected: bool,
    /// A send failed: the connection is as good as gone, and nothing more may be started on it, since whatever was
    /// started counts as sent.
    sends_fail: bool,
    /// Something happened that a damaged region explains: look at it.
    suspicious: bool,
    /// The control thread is gone: no signal, no worker and no dial is heard of any more.
    headless: bool,
}

/// How the loop passes the time.
#[derive(Debug)]
pub struct Waiting {
    /// How long to spin before a sleep.
    pub spin: Spin,
    /// Never sleep.
    pub busy: bool,
}

/// How long an orderly end waits for the last send to be taken by the kernel.
const LAST_SEND: Duration = Duration::from_secs(1);

impl core::fmt::Debug for FrameLoop {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FrameLoop").field("driver", &self.driver.name()).finish_non_exhaustive()
    }
}

impl FrameLoop {
    /// Puts the parts together. The driver listens to the bridge's doorbell.
    pub fn new(
        bridge: Bridge,
        driver: Box<dyn Driver>,
        commands: Receiver<Command>,
        requests: Requests,
        socket_options: SocketOptions,
        waiting: Waiting,
    ) -> Self {
        Self {
            bridge,
            driver,
            commands,
            requests,
            socket_options,
            waiting,
            token: None,
            addresses: VecDeque::new(),
            dials: 0,
            awaited: None,
            hang_up: None,
            send_began: Instant::default(),
            outcome: None,
            connected: false,
            sends_fail: false,
            suspicious: false,
            headless: false,
        }
    }

    /// Turns until the agent is finished; gives the bridge back, whose region is then removed or left.
    ///
    /// # Errors
    /// The driver itself failed: the ring or the epoll instance is unusable.
    pub fn run(mut self) -> Result<(Outcome, Bridge), Failure> {
        let mut completions = Completions::with_capacity(4);
        // One look at the clock a turn, when something has come.
        let mut now = clock::now();
        loop {
            self.take_commands(now);
            while self.bridge.advance(now) {}
            if self.is_deaf_and_dumb() {
                self.ended(End::Reset, now);
                while self.bridge.advance(now) {}
            }
            self.take_effects(now);
            self.start_operations(now);
            if let Some(outcome) = self.outcome.take() {
                self.driver.close(Close::Abort);
                self.bridge.connection_closed();
                return Ok((outcome, self.bridge));
            }
            if self.headless {
                return Err(Failure::new(Code::Bug, "the control thread is gone")
                    .because("it panicked; see the lines above")
                    .hint("start the sidecar again at once: the next one takes the session over; report this with the log")
                    .at(self.bridge.standing(clock::now(), None)));
            }
            if self.suspicious && self.bridge.owner().damage().is_some() || self.bridge.owner().is_lost() {
                return Err(self.give_up());
            }
            self.suspicious = false;
            if self.bridge.can_offer_slot() {
                // What has just been sent gave it back, and nothing else may happen before it is asked for.
                continue;
            }
            now = match self.wait(&mut completions) {
                Ok(woken) => woken,
                Err(failure) => return Err(failure.at(self.bridge.standing(clock::now(), None))),
            };
            self.bridge.hear_again();
            for completion in completions.drain(..) {
                self.complete(completion, now);
            }
        }
    }

    /// Somebody damaged the region's file: nothing in it can be believed, so the run ends. The name is removed, so that
    /// the next start makes a new region.
    fn give_up(mut self) -> Failure {
        let path = self.bridge.owner().path().display().to_string();
        let damage = self.bridge.owner().damage();
        let standing = self.bridge.standing(clock::now(), None);
        self.driver.close(Close::Abort);
        self.bridge.connection_closed();
        self.bridge.remove_region();
        let failure = Failure::new(
            Code::RegionDamaged,
            format!("the region at {path} was damaged while it was in use"),
        )
        .at(standing);
        damage.into_iter().fold(failure, Failure::because)
    }

    /// Nothing can be sent any more, and nothing is read since all slots are taken: nobody would ever hear how the
    /// connection ended.
    fn is_deaf_and_dumb(&mut self) -> bool {
        self.connected
            && self.sends_fail
            && !self.driver.is_receiving()
            && self.bridge.next_receive().is_none()
    }

    fn take_commands(&mut self, now: Instant) {
        loop {
            let command = match self.commands.try_recv() {
                Ok(command) => command,
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => return self.headless = true,
            };
            match command {
                Command::Dial { dial, answer } => self.take_dial(dial, answer, now),
                Command::Join { candidate, reply } => {
                    // It maps the file, and would fail on a damaged one without a word to us.
                    self.suspicious = true;
                    // A control thread that went away has no worker waiting.
                    let _ = reply.send(self.bridge.worker_joins(&candidate, now));
                }
                Command::ConnectionEnded { seat, generation } => {
                    self.bridge.worker_connection_ended(seat, generation);
                }
                Command::ProvedDead { seat, generation } => {
                    self.bridge.worker_proved_dead(seat, generation, now);
                }
                Command::Shutdown(how) => self.bridge.shutdown(now, how),
                Command::WorkerLost { why } => self.bridge.worker_lost(why, now),
            }
        }
    }

    fn take_dial(&mut self, dial: u64, answer: Result<(Vec<SocketAddr>, Token), DialFailure>, now: Instant) {
        if self.awaited != Some(dial) {
            return;
        }
        self.awaited = None;
        match answer {
            Ok((addresses, token)) => {
                self.addresses = addresses.into();
                // Each dial begins with another address: one that swallows packets takes a whole dial's time.
                let start = (dial as usize).wrapping_sub(1) % self.addresses.len().max(1);
                self.addresses.rotate_left(start);
                self.token = Some(token);
                self.connect_next(now);
            }
            Err(failure) => self.bridge.dial_failed(now, failure),
        }
    }

    /// Tries the addresses of one dial in turn; the agent's own timer bounds all of them together.
    fn connect_next(&mut self, now: Instant) {
        let mut failure = DialFailure::Dns;
        while let Some(address) = self.addresses.pop_front() {
            match self.driver.connect(address, self.socket_options) {
                Ok(()) => return,
                Err(error) => failure = dial_failure(&error),
            }
        }
        self.bridge.dial_failed(now, failure);
    }

    /// In order: what follows a hang-up (a redial) waits until that is done.
    fn take_effects(&mut self, now: Instant) {
        while self.finish_hang_up(now)
            && let Some(effect) = self.bridge.poll_effect()
        {
            match effect {
                Effect::Dial { reread_token, .. } => {
                    self.dials += 1;
                    self.awaited = Some(self.dials);
                    self.request(Request::Dial { dial: self.dials, reread_token });
                }
                Effect::HangUpOrderly => self.hang_up = Some(now + LAST_SEND),
                Effect::HangUpAbort => self.close(Close::Abort),
                Effect::WorkerReady => self.request(Request::WorkerReady),
                Effect::DropWorker { worker, why } => {
                    self.suspicious = true;
                    self.request(Request::DropWorker { worker, why });
                }
                Effect::RestartWorker { worker, why } => self.request(Request::RestartWorker { worker, why }),
                Effect::FreshAgent => {
                    let agent = crate::config::fresh_agent_id();
                    tracing::warn!(agent = agent.as_str(), "going on under a fresh agent id");
                    self.bridge.replace_agent(now, agent);
                }
                Effect::Finished(outcome) => self.outcome = Some(*outcome),
            }
        }
    }

    fn request(&self, request: Request) {
        // The control thread outlives the frame loop; when it is gone the process is ending.
        let _ = self.requests.send(request);
    }

    fn close(&mut self, how: Close) {
        self.driver.close(how);
        self.bridge.connection_closed();
        self.hang_up = None;
        self.connected = false;
        self.sends_fail = false;
        self.awaited = None;
        self.addresses.clear();
    }

    /// Ends the connection once what is queued behind the last send (a close frame) has left; `false` while it has
    /// not.
    fn finish_hang_up(&mut self, now: Instant) -> bool {
        let Some(deadline) = self.hang_up else { return true };
        if deadline > now && self.connected && (self.driver.is_sending() || self.start_send(now)) {
            return false;
        }
        self.close(Close::Orderly);
        true
    }

    fn start_operations(&mut self, now: Instant) {
        if !self.connected {
            return;
        }
        if !self.driver.is_sending() {
            self.start_send(now);
        }
        if !self.driver.is_receiving()
            && let Some(receive) = self.bridge.next_receive()
        {
            // SAFETY: the memory belongs to the bridge's scratch or region, which outlive the driver's
            // connection; the bridge does not use it before `received`, `ended` or `connection_closed`.
            unsafe { self.driver.receive(receive.into, receive.length, receive.expect) };
        }
    }

    fn start_send(&mut self, now: Instant) -> bool {
        if self.sends_fail {
            return false;
        }
        let Some(bytes) = self.bridge.next_send(now) else { return false };
        let (from, length) = (bytes.as_ptr(), bytes.len());
        let tell = if self.hang_up.is_some() { Tell::AtOnce } else { self.bridge.tell_sent() };
        // SAFETY: the bridge keeps these bytes in place and unchanged until `sent` or `connection_closed`.
        unsafe { self.driver.send(from, length, tell) };
        self.send_began = now;
        true
    }

    /// Spins as long as that pays, then sleeps until something happens or a timer is due.
    fn wait(&mut self, completions: &mut Completions) -> Result<Instant, Failure> {
        let Self { bridge, driver, commands, waiting, hang_up, .. } = self;
        let mut broken = None;
        // Without spinning, one call submits and waits.
        let came = waiting.spin.wait(|| {
            broken = driver.turn(Wait::Poll, completions).err();
            !completions.is_empty() || bridge.has_something() || !commands.is_empty() || broken.is_some()
        });
        let result = match broken {
            Some(error) => Err(error),
            None if came => Ok(clock::now()),
            None => {
                let now = clock::now();
                let due = [bridge.poll_timeout(), *hang_up].into_iter().flatten().min();
                let timeout = [due.map(|due| due.since(now)), bridge.must_poll()].into_iter().flatten().min();
                // One that never sleeps is not rung either: each ring would cost the worker a system call.
                let sleeps = !waiting.busy && bridge.arm() && commands.is_empty();
                let wait = if sleeps { Wait::Block(timeout) } else { Wait::Poll };
                let result = driver.turn(wait, completions);
                bridge.disarm();
                let woken = clock::now();
                if sleeps {
                    bridge.owner().stats().count(Counter::Sleeps);
                    waiting.spin.slept(woken.since(now));
                }
                result.map(|()| woken)
            }
        };
        let calls = driver.take_calls();
        bridge.owner().stats().add(Counter::SystemCalls, calls.made.into());
        bridge.owner().stats().add(Counter::EmptyPolls, calls.empty.into());
        result.map_err(|error| {
            Failure::new(Code::Io, format!("the {} driver failed", self.driver.name()))
                .because(error)
                .hint("start it again at once with --io epoll: the next one takes the session over; report this with the log")
        })
    }

    fn complete(&mut self, completion: Completion, now: Instant) {
        match completion {
            Completion::Doorbell => {}
            Completion::Connected(Ok(())) => self.upgrade(now),
            Completion::Connected(Err(error)) if self.addresses.is_empty() => {
                self.close(Close::Abort);
                self.bridge.dial_failed(now, dial_failure(&error));
            }
            Completion::Connected(Err(_)) => self.connect_next(now),
            Completion::Received(Ok(0)) => self.ended(End::Eof, now),
            Completion::Received(Ok(length)) => self.bridge.received(now, length),
            Completion::Received(Err(error)) => {
                // EFAULT: the kernel found no page to write to.
                self.suspicious |= error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error());
                self.ended(End::Reset, now);
            }
            Completion::Sent(Ok(Taken::Now)) => self.bridge.sent(now),
            Completion::Sent(Ok(Taken::Submitted)) => self.bridge.sent(self.send_began),
            // The receive side says how the connection ended, and may still hold a close frame.
            Completion::Sent(Err(_)) => {
                self.sends_fail = true;
                self.bridge.connection_closed();
            }
        }
    }

    fn upgrade(&mut self, now: Instant) {
        self.addresses.clear();
        let Some(token) = &self.token else { return };
        match self.bridge.connected(now, token.secret()) {
            Ok(request) => {
                let (from, length) = (request.as_ptr(), request.len());
                self.connected = true;
                // SAFETY: the bridge keeps the request in place until `sent` or `connection_closed`.
                unsafe { self.driver.send(from, length, Tell::AtOnce) };
            }
            Err(error) => {
                tracing::error!(%error, "the upgrade request cannot be written");
                self.close(Close::Abort);
                self.bridge.dial_failed(now, DialFailure::Other);
            }
        }
    }

    fn ended(&mut self, end: End, now: Instant) {
        while self.bridge.advance(now) {}
        self.bridge.ended(now, end);
    }
}

fn dial_failure(error: &std::io::Error) -> DialFailure {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => DialFailure::Refused,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => DialFailure::Unreachable,
        ErrorKind::TimedOut => DialFailure::Timeout,
        _ => DialFailure::Other,
    }
}
