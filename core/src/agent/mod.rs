//! The whole client: dial, phases, sessions, heartbeat, reconnect, drain. It does no I/O, keeps no payload, reads no
//! clock: the caller carries bytes and time in, and bytes and events out.
//!
//! Methods come in four kinds: `handle_*` tells the agent what happened, commands (`worker_ready`, `shutdown`, ...)
//! what is wanted, `poll_*` asks what to do next, and a noun is a getter.
//!
//! One turn of a caller:
//!
//! ```text
//! handle_received / handle_sent / handle_end / ...      what happened since the last turn
//! handle_timeout            when poll_timeout is due
//! offer_slot                when wants_slot says so and one is free
//! process, poll_event       in turn, until neither has anything more
//! poll_transmit             while the wire is free; then may_send and begin_action for the oldest answer
//! poll_read                 when no read is outstanding
//! sleep until poll_timeout
//! ```
//!
//! Where the tunnel contract is silent, the rules are those of the design's section on it; each stands where it is
//! applied: budgets and backoff in `link`, closing in `ending`, meaning of frames in `flow`, placement in `inbound` and
//! `reading`, deadlines in `timer`.

mod config;
mod ending;
mod entropy;
mod event;
mod expect;
mod flow;
mod inbound;
mod link;
mod outbox;
mod phase;
mod place;
mod queue;
mod reading;
mod request;
mod sending;
mod sessions;
mod timer;

use core::fmt;
use core::time::Duration;

pub use config::{Config, Endpoint, Limits, MAX_HOST, MAX_PATH, Resume, ResumeAction, Timers};
pub use event::{
    CloseBy, DialFailure, Disconnect, DropKind, End, Event, HangUp, Kind, Notice, Outcome, Refused, Shutdown,
};
pub use outbox::MAX_TRANSMIT;
pub use phase::Phase;
pub use place::{Filling, HEADROOM, Memory, Place, Read};
pub use request::RequestError;
pub use sending::{ActionHead, MAX_HEAD};

use crate::time::Instant;
use crate::tunnel::{AgentId, Epoch, SessionId, clip};
use entropy::Entropy;
use inbound::Inbound;
use link::{Link, State, Wait};
use outbox::Outbox;
use phase::Progress;
use queue::Events;
use reading::Outlook;
use sessions::Sessions;

/// The client. See the module for the order of calls.
pub struct Agent {
    config: Config,
    entropy: Entropy,
    link: Link,
    inbound: Inbound,
    outbox: Outbox,
    sessions: Sessions,
    progress: Progress,
    events: Events,
    unanswered: u32,
    /// The connection ended; what came before the end is parsed first.
    ended: Option<End>,
    blocked: Option<Blocked>,
}

/// All slots are taken, and nothing is read.
#[derive(Copy, Clone, Debug)]
struct Blocked {
    next_pong: Instant,
    told: bool,
}

impl Agent {
    /// An agent that was never connected. It wants to dial at once.
    ///
    /// `seed` has to be unpredictable: mask keys come from it (RFC 6455 10.3).
    #[must_use]
    pub fn new(config: Config, seed: [u8; 32], now: Instant) -> Self {
        Self::resume(config, Resume::default(), seed, now)
    }

    /// An agent that goes on where a dead predecessor stopped.
    #[must_use]
    pub fn resume(config: Config, resume: Resume, seed: [u8; 32], now: Instant) -> Self {
        let mut agent = Self {
            entropy: Entropy::new(seed),
            link: Link::new(&config.timers, config.wait_for_slot, now),
            inbound: Inbound::new(config.limits, now),
            outbox: Outbox::default(),
            sessions: Sessions::resume(&resume, now),
            progress: Progress::new(),
            events: Events::default(),
            unanswered: 0,
            ended: None,
            blocked: None,
            config,
        };
        if resume.connected_once {
            agent.link.redial_of(&agent.config.timers, resume.last_byte, now);
        }
        if let Some(closed) = resume.closed {
            agent.outbox.session_close(closed, clip("the agent had closed it before it was restarted"));
            agent.outbox.connection_lost();
        }
        if resume.drain_seen {
            agent.progress.phase = Phase::Draining;
            agent.finish(Outcome::Drained);
            return agent;
        }
        if resume.ready_sent {
            // The predecessor's worker kept its model.
            agent.progress.resume_ready(resume.ready_heard || agent.sessions.current().is_some());
        } else if resume.warmup_seen {
            agent.ask_for_warmup(now);
        }
        agent.dial(now);
        agent
    }

    /// TCP (and TLS) is up: writes the upgrade request to `out` and returns its length. Send it; the token is not kept.
    ///
    /// # Errors
    /// No dial was asked for, a part of the request can't be sent, or `out` is too short; 4 KiB and the token's length
    /// are always enough.
    pub fn handle_connected(
        &mut self,
        now: Instant,
        token: &str,
        out: &mut [u8],
    ) -> Result<usize, RequestError> {
        self.begin_upgrade(now, token, out)
    }

    /// The dial came to nothing.
    pub fn handle_dial_failed(&mut self, now: Instant, failure: DialFailure) {
        if matches!(self.link.state, State::Dialing { .. }) && !self.events.is_crowded() {
            self.lost(now, Disconnect::DialFailed(failure));
        }
    }

    /// Where the next bytes shall go. Call it when no read is outstanding; the answer holds until `handle_received`, or
    /// until the connection is over.
    pub fn poll_read(&mut self) -> Read {
        if !self.parses() || self.ended.is_some() {
            return Read::Idle;
        }
        let outlook = Outlook {
            session: self.sessions.current().map(|(session, _)| session.len()),
            unanswered: self.unanswered,
        };
        let read = self.inbound.plan_read(&outlook);
        if let (Read::Idle, Some(blocked)) = (read, &mut self.blocked)
            && !self.inbound.slot
            && !core::mem::replace(&mut blocked.told, true)
        {
            self.events.note(Notice::Blocked);
        }
        read
    }

    /// `length` bytes were written at the place of the last `poll_read`; 0 takes that read back.
    pub fn handle_received(&mut self, now: Instant, length: u32) {
        self.inbound.received(now, length);
        if length > 0 {
            self.link.heard(now);
        }
    }

    /// The connection ended from outside. Call it after the bytes before the end were given.
    pub fn handle_end(&mut self, now: Instant, end: End) {
        if matches!(self.link.state, State::Upgrading { .. } | State::Open(_)) {
            let unparsed = self.parses() && !self.inbound.window.is_empty();
            self.ended.get_or_insert(end);
            if !unparsed {
                self.settle_end(now);
            }
        }
    }

    /// Parses on. `true` when something was done: drain the events and call again. It stops at each event that has to
    /// be acted on.
    pub fn process(&mut self, now: Instant, memory: &mut impl Memory) -> bool {
        self.parse(now, memory)
    }

    /// A slot would be used if one were offered.
    #[must_use]
    pub fn wants_slot(&self) -> bool {
        let wanted = self.sessions.current().is_some() || self.blocked.is_some();
        wanted && !self.inbound.slot && self.link.is_usable()
    }

    /// The caller chose a slot: [`Place::Slot`] means that one until the event that hands it over.
    pub fn offer_slot(&mut self) {
        self.inbound.slot = true;
    }

    /// Takes the offer back. `false` while bytes of a message lie in the slot, or a read into it is outstanding; then
    /// it stays on offer.
    pub fn take_back_slot(&mut self) -> bool {
        self.inbound.take_back_slot()
    }

    /// The payload that is arriving in the slot on offer; `None`: none is. To be asked after the events of a `process`:
    /// in between no message begins unseen, so that what was of one is told from what is of the next.
    #[must_use]
    pub const fn filling(&self) -> Option<Filling> {
        self.inbound.filling()
    }

    /// A number for an observation of the caller's own making (a warm-up), so that it is nobody else's.
    pub fn take_sequence(&mut self) -> u64 {
        self.sessions.next_sequence()
    }

    /// How many observations wait for an answer: bounds how much of a following message is received along.
    pub fn set_unanswered(&mut self, count: u32) {
        self.unanswered = count;
    }

    /// The worker is warm.
    pub fn worker_ready(&mut self, _now: Instant) {
        if self.progress.worker_ready() {
            self.outbox.ready = true;
        }
    }

    /// The next event, in order. Drain them after each call that may cause some.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop()
    }

    /// Whether [`Agent::poll_event`] has one.
    #[must_use]
    pub fn has_event(&self) -> bool {
        !self.events.is_empty()
    }

    /// When `handle_timeout` has to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.next_deadline()
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.fire_due(now);
    }

    /// Who we are towards the gateway.
    #[must_use]
    pub fn agent_id(&self) -> &AgentId {
        &self.config.agent
    }

    /// Where the tunnel stands.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.progress.phase
    }

    /// The open session.
    #[must_use]
    pub fn session(&self) -> Option<(&SessionId, Epoch)> {
        self.sessions.current()
    }

    /// Whether actions of `epoch` may still be sent, now or after a redial; 0 is the warm-up's round trip.
    #[must_use]
    pub fn is_session_open(&self, epoch: Epoch) -> bool {
        self.sessions.is_open(epoch)
    }

    /// The longest wait from an action to the next observation in the session so far.
    #[must_use]
    pub fn longest_wait(&self) -> Duration {
        self.sessions.longest_wait()
    }

    /// The `101` has come and the connection isn't over.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.link.open().is_some()
    }

    /// The worker said that it is warm, in a predecessor's time perhaps.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.progress.warm
    }

    /// A tunnel of this job and agent was up once, in a predecessor's time perhaps.
    #[must_use]
    pub fn connected_once(&self) -> bool {
        self.link.established
    }

    /// What the agent was told at the start; the agent id is the present one.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// When the last byte of a tunnel that had proved useful was received.
    #[must_use]
    pub fn last_byte(&self) -> Option<Instant> {
        self.link.last_byte
    }

    /// Bytes of following messages that had to be moved out of a finished slot, ever.
    #[must_use]
    pub fn carried(&self) -> u64 {
        self.inbound.carried
    }

    /// Received bytes mean something.
    fn parses(&self) -> bool {
        match &self.link.state {
            State::Upgrading { .. } => true,
            State::Open(open) => open.closing.as_ref().is_none_or(|closing| closing.wait == Wait::Peer),
            _ => false,
        }
    }
}

impl fmt::Debug for Agent {
    /// A line for a log: no buffers, no chance.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent")
            .field("agent", &self.config.agent)
            .field("phase", &self.progress.phase)
            .field("session", &self.sessions.current())
            .field("open", &self.is_open())
            .field("attempt", &self.link.attempt())
            .finish_non_exhaustive()
    }
}
