//! The bridge between the tunnel (the protocol core's agent) and the worker (the shared region).
//!
//! It decides everything that concerns both: which slot the next observation is received into, when an answer may
//! leave, what a worker's death or failure means. It does no I/O and reads no clock: a driver tells it what
//! happened and asks it what to do next, so that a test can put it through anything.
//!
//! Call order, one turn:
//!
//! ```text
//! received / sent / connected / ended / worker_*      what happened
//! advance(now)                                        until it returns false
//! poll_effect()                                       what the caller must do outside
//! next_send(now) -> send -> sent(now)                 while the wire is free
//! next_receive() -> receive -> received(now)          while no receive is under way
//! poll_timeout() -> wait -> advance(now)
//! ```

use core::time::Duration;
use std::collections::VecDeque;

use sidecar_core::agent::{
    Agent, DialFailure, End, HEADROOM, MAX_TRANSMIT, Outcome, Read, RequestError, Shutdown,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::AgentId;
use sidecar_shm::attach::Candidate;
use sidecar_shm::journal::LastAction;
use sidecar_shm::layout::RING_CAPACITY;
use sidecar_shm::owner::{Owner, SeatGrant, SeatInfo, SeatRefused};
use sidecar_shm::slots::{Asker, Held, SlotIndex};

use crate::driver::{Expect, Tell};

mod ahead;
mod announce;
mod events;
mod failure;
mod memory;
mod outbox;
mod policy;
mod standing;
mod warmup;
mod worker;

pub use ahead::LastingCopier;
pub use policy::{FailurePolicy, Rules};
pub use standing::Standing;

use announce::Announcer;
use memory::{Places, Scratch};
use outbox::{Outbox, State};
use warmup::Warmup;

/// Something that the bridge cannot do itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Resolve the endpoint and connect, then call `connected` or `dial_failed`. With `reread_token` the token
    /// sources are read again first.
    Dial {
        /// How many dials came before this one in a row.
        attempt: u32,
        /// Read the token sources again: the last one was refused.
        reread_token: bool,
    },
    /// End the connection with a FIN once what is being sent has left, and read on until the peer's.
    HangUpOrderly,
    /// Drop the connection.
    HangUpAbort,
    /// The worker is warm.
    WorkerReady,
    /// A worker lost its seat for what it did: end its attachment, and the process if it is our child.
    DropWorker {
        /// Who.
        worker: SeatInfo,
        /// What it did, in words.
        why: String,
    },
    /// A worker is of no more use as it is: end its process if it is our child, so that it is started again. Anybody
    /// else's is left alone.
    RestartWorker {
        /// Who.
        worker: SeatInfo,
        /// Why, in words.
        why: String,
    },
    /// Put a fresh agent id into `replace_agent`: the tunnel is wedged, and the user allowed it.
    FreshAgent,
    /// It is over.
    Finished(Box<Outcome>),
}

/// Where the next bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receive {
    /// Start of the memory, valid for writes until the bridge is told of the receive's end.
    pub into: *mut u8,
    /// At most this many bytes.
    pub length: usize,
    /// What it is likely to meet.
    pub expect: Expect,
}

/// What the wire is busy with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OnWire {
    Nothing,
    /// A request or a control frame in `control`.
    Control,
    /// The action that is `Sending` in the outbox.
    Action,
}

/// What the region's log of distinct errors files a text under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Incident {
    /// The connection ended other than by our wish.
    ConnectionLost = 1,
    /// A data frame was dropped.
    DroppedFrame = 2,
    /// Something else that the agent found worth a line.
    Notice = 3,
    /// An observation that no slot can hold.
    TooLarge = 4,
    /// The tunnel is up and silent.
    Wedged = 5,
    /// An action was sent a second time.
    Unfreeze = 6,
    /// The worker reported a failure.
    WorkerFailed = 7,
    /// The worker wrote nonsense into the region.
    Poisoned = 8,
    /// Workers died one after the other on one observation.
    WorkersDie = 9,
    /// The worker took too long.
    WorkerTimeout = 10,
    /// Nothing is copied to the device any more.
    DeviceCopy = 11,
}

/// An observation that waits for its answer.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    epoch: sidecar_core::tunnel::Epoch,
    sequence: u64,
    last_byte: Instant,
    /// Since when a worker may be at it; the take-over for what a predecessor left, `None` until the first turn.
    since: Option<Instant>,
    /// The failure policy has decided about it; what a worker says later is ignored.
    failed: bool,
    /// `--worker-timeout` has passed, and the policy was asked once.
    timed_out: bool,
    /// Seat and generation of the worker that told last of a failure on it: once is enough.
    told: Option<(u8, u32)>,
}

/// See the module.
pub struct Bridge {
    agent: Box<Agent>,
    owner: Owner,
    rules: Rules,
    scratch: Scratch,
    slot: Option<SlotIndex>,
    slot_length: usize,
    outbox: Outbox,
    waiting: Vec<Waiting>,
    announcer: Announcer,
    warmup: Warmup,
    /// How much was heard from the worker since it had nothing to say, or since [`Bridge::hear_again`].
    heard: u32,
    wire: OnWire,
    control: Box<[u8; CONTROL_BYTES]>,
    draining: bool,
    /// It was said that an action is too long for a successor.
    told_unkept: bool,
    dialled_before: bool,
    /// After a loss: the gateway's window is over then at the latest.
    window_until: Option<Instant>,
    /// `--device-copy`.
    ahead: Option<LastingCopier>,
    /// The agent's count of carried bytes, as far as it is in the statistics.
    carried: u64,
    effects: VecDeque<Effect>,
}

impl core::fmt::Debug for Bridge {
    /// Not what lies ready to be sent: an upgrade request holds the token.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bridge").field("agent", &self.agent).field("wire", &self.wire).finish_non_exhaustive()
    }
}

/// So much is heard from the worker in one turn; a ring holds less. One that talks without end can't keep the loop from
/// the tunnel.
const HEARD_IN_A_TURN: u32 = 2 * RING_CAPACITY;

/// The largest thing sent besides actions: an upgrade request with endpoint, ids and token.
const CONTROL_BYTES: usize = 8192;

impl Bridge {
    /// Puts an agent and a region together. `kept`: observations that a dead predecessor left unanswered.
    pub fn new(agent: Agent, owner: Owner, rules: Rules, kept: &[Held]) -> Self {
        let geometry = owner.geometry();
        let slots = geometry.observation_slots as usize;
        let slot_length = (HEADROOM + geometry.observation_bytes) as usize;
        let asked = kept.iter().filter(|held| held.asker == Asker::Gateway);
        let (asked, over): (Vec<&Held>, Vec<&Held>) =
            asked.partition(|held| agent.is_session_open(held.epoch));
        let waiting = asked.into_iter().map(Waiting::from).collect::<Vec<_>>();
        let mut bridge = Self {
            agent: Box::new(agent),
            owner,
            rules,
            scratch: Scratch::new(geometry.observation_bytes),
            slot: None,
            slot_length,
            // One for each observation that can wait, and the one that was sent last.
            outbox: Outbox::new(slots + 1, geometry.action_bytes as usize),
            waiting,
            announcer: Announcer::default(),
            warmup: Warmup::default(),
            heard: 0,
            wire: OnWire::Nothing,
            control: Box::new([0; CONTROL_BYTES]),
            draining: false,
            told_unkept: false,
            dialled_before: false,
            window_until: None,
            ahead: None,
            carried: 0,
            effects: VecDeque::with_capacity(8),
        };
        for held in over {
            // The predecessor died while it closed their session.
            bridge.owner.close_epoch(held.epoch);
        }
        bridge.take_up_state();
        bridge.take_up_warmup(kept);
        bridge
    }

    /// What a dead predecessor sent last, in case that it has to be sent again.
    pub fn keep_last_action(&mut self, action: &LastAction) {
        self.outbox.keep_sent(action);
    }

    /// Does what can be done now; `true`: that made something else possible, so the caller asks again.
    pub fn advance(&mut self, now: Instant) -> bool {
        self.agent.handle_timeout(now);
        self.hear_gateway(now);
        while self.poll_worker(now) {}
        // A slot that came back without another word: nothing else would ask for it before the next timer.
        let offered = self.offer_slot();
        self.check_worker_timeout(now);
        self.tell_worker();
        self.agent.set_unanswered(self.owner.unanswered());
        if self.draining && self.waiting.is_empty() && !self.outbox.is_busy() && self.wire == OnWire::Nothing
        {
            self.draining = false;
            self.agent.finish_drain(now);
        }
        offered || self.agent.has_event()
    }

    /// Parses all that was received, and does what it says.
    fn hear_gateway(&mut self, now: Instant) {
        loop {
            let mut progress = self.offer_slot();
            progress |= self.process(now);
            // Only what was parsed shows whether a byte came from a tunnel that is worth resuming.
            if progress && let Some(last_byte) = self.agent.last_byte() {
                self.owner.journal().note_byte(last_byte);
            }
            while let Some(event) = self.agent.poll_event() {
                self.handle_event(event, now);
                progress = true;
            }
            self.look_ahead(now);
            if !progress {
                return;
            }
        }
    }

    /// The next thing to be done outside.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// When `advance` has to be called although nothing happened.
    pub fn poll_timeout(&self) -> Option<Instant> {
        [self.agent.poll_timeout(), self.worker_deadline()].into_iter().flatten().min()
    }

    /// TCP is up: the upgrade request lies ready for `next_send`. Returns its length.
    ///
    /// # Errors
    /// A part of the request cannot be sent; its text names it.
    pub fn connected(&mut self, now: Instant, token: &str) -> Result<&[u8], RequestError> {
        let length = self.agent.handle_connected(now, token, &mut self.control[..])?;
        self.wire = OnWire::Control;
        Ok(&self.control[..length])
    }

    /// The dial came to nothing.
    pub fn dial_failed(&mut self, now: Instant, failure: DialFailure) {
        self.agent.handle_dial_failed(now, failure);
    }

    /// Where the next bytes shall go; `None` while nothing is to be read.
    pub fn next_receive(&mut self) -> Option<Receive> {
        match self.agent.poll_read() {
            Read::Idle => None,
            Read::At { place, offset, max, exact } => {
                let max = if exact { self.bound_ahead(max) } else { max };
                let into = self.places().at(place, offset, max);
                let expect = match exact {
                    true => Expect::Remainder,
                    // A gateway in lockstep waits for the action.
                    false if self.owner.unanswered() > 0 => Expect::Silence,
                    false => Expect::Bytes,
                };
                Some(Receive { into, length: max as usize, expect })
            }
        }
    }

    /// `length` bytes were received where `next_receive` said.
    pub fn received(&mut self, now: Instant, length: usize) {
        let length = u32::try_from(length).expect("a receive is bounded by next_receive's u32");
        self.agent.handle_received(now, length);
        if let Some(last_byte) = self.agent.last_byte() {
            self.owner.journal().note_byte(last_byte);
        }
    }

    /// The connection ended from outside. Call after the bytes before the end were given and `advance` was called.
    pub fn ended(&mut self, now: Instant, end: End) {
        self.agent.handle_end(now, end);
    }

    /// The next bytes for the wire, valid and unchanged until `sent` or `connection_closed`; `None` while the wire
    /// is busy or nothing may be sent.
    pub fn next_send(&mut self, now: Instant) -> Option<&[u8]> {
        if self.wire != OnWire::Nothing {
            return None;
        }
        if let Some(length) = self.agent.poll_transmit(now, &mut self.control[..]) {
            self.wire = OnWire::Control;
            return Some(&self.control[..length]);
        }
        self.next_action(now)
    }

    /// When the end of what `next_send` gave has to be told: an action's may come with the next thing that happens,
    /// unless something waits for it. Without a slot on offer something may: what was received already is parsed as soon as
    /// one is there, and may be a drain.
    pub fn tell_sent(&mut self) -> Tell {
        let idle = !self.draining && self.slot.is_some() && self.outbox.waiting().is_none();
        if self.wire == OnWire::Action && idle { Tell::AtTurnEnd } else { Tell::AtOnce }
    }

    /// The kernel took all of what `next_send` gave, at `now`.
    pub fn sent(&mut self, now: Instant) {
        match core::mem::replace(&mut self.wire, OnWire::Nothing) {
            OnWire::Nothing => {}
            OnWire::Control => self.agent.handle_sent(now),
            OnWire::Action => self.action_sent(now),
        }
    }

    /// The driver has closed the connection: it holds no memory of ours any more. An action whose bytes were
    /// started counts as sent, whatever became of them.
    pub fn connection_closed(&mut self) {
        if core::mem::replace(&mut self.wire, OnWire::Nothing) == OnWire::Action
            && let Some(kept) = self.outbox.sending()
        {
            kept.state = State::Sent;
        }
    }

    /// An orderly end was asked for by the user.
    pub fn shutdown(&mut self, now: Instant, how: Shutdown) {
        self.agent.shutdown(now, how);
    }

    /// The answer to [`Effect::FreshAgent`].
    pub fn replace_agent(&mut self, now: Instant, agent: AgentId) {
        self.owner.journal().agent(&agent);
        self.agent.replace_agent(now, agent);
        self.show_phase();
    }

    /// A worker asks for a seat.
    ///
    /// # Errors
    /// A live one has it.
    pub fn worker_joins(&mut self, candidate: &Candidate, now: Instant) -> Result<SeatGrant, SeatRefused> {
        // The predecessor's finished actions are taken before anything is delivered again.
        while self.poll_worker(now) {}
        let grant = self.owner.seat_join(candidate)?;
        // A process that closes and attaches again dies on an observation too, and nobody proves it.
        self.check_deaths(now);
        tracing::info!(pid = candidate.pid, seat = grant.seat, resumed = grant.resumed, "worker attached");
        Ok(grant)
    }

    /// The worker's connection ended: a hint that it died.
    pub fn worker_connection_ended(&mut self, seat: u8, generation: u32) {
        self.owner.seat_connection_ended(seat, generation);
    }

    /// The worker's process is gone for certain.
    pub fn worker_proved_dead(&mut self, seat: u8, generation: u32, now: Instant) {
        while self.poll_worker(now) {}
        self.owner.seat_proved_dead(seat, generation);
        self.check_deaths(now);
    }

    /// The child worker ended for good before it was ready: `why` says how.
    pub fn worker_lost(&mut self, why: String, now: Instant) {
        self.warmup.failure.get_or_insert(why);
        self.agent.worker_failed(now);
    }

    /// Why the worker could not be warmed up, if that is what ended the run.
    pub fn warmup_failure(&self) -> Option<&str> {
        self.warmup.failure.as_deref()
    }

    /// The run is over, and nobody will take the region up: tells the worker, which ends by itself.
    pub fn announce_end(&mut self) {
        self.owner.announce_end();
    }

    /// Removes the region: the run is over, and nobody shall take it up.
    pub fn remove_region(self) {
        self.owner.close();
    }

    /// The next turn begins: the worker is heard again, however much it said in the last one.
    pub const fn hear_again(&mut self) {
        self.heard = 0;
    }

    /// How soon to look again although nothing rang.
    pub fn must_poll(&self) -> Option<Duration> {
        self.owner.must_poll()
    }

    /// Whether the worker has put something there: for a spinning loop.
    pub fn has_something(&self) -> bool {
        // Without room for an action nothing is taken from the worker, so nothing is a reason to wake.
        self.outbox.has_room() && self.owner.has_something()
    }

    /// Says that the caller is about to sleep; `false` when the worker has already put something there.
    pub fn arm(&mut self) -> bool {
        self.owner.arm() || !self.outbox.has_room()
    }

    /// The caller is awake again.
    pub fn disarm(&mut self) {
        self.owner.disarm();
    }

    /// The region, for the doorbell.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The agent, for what it knows.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Files an incident; `true` when it is the first of its kind and text, and so worth a line in the log.
    fn note(&self, incident: Incident, text: &str, now: Instant) -> bool {
        self.owner.errors().note(incident as u16, text, now)
    }

    fn places(&mut self) -> Places {
        let slot = self.slot.map_or(core::ptr::null_mut(), |slot| self.owner.slot_base(slot));
        Places { scratch: self.scratch.base(), slot, length: self.slot_length }
    }

    fn process(&mut self, now: Instant) -> bool {
        let mut places = self.places();
        self.agent.process(now, &mut places)
    }

    /// Whether `advance` would find a slot for an observation that waits for one.
    pub fn can_offer_slot(&self) -> bool {
        self.slot.is_none() && self.agent.wants_slot() && self.owner.free_slots() > 0
    }

    fn offer_slot(&mut self) -> bool {
        if self.slot.is_some() || !self.agent.wants_slot() {
            return false;
        }
        self.slot = self.owner.claim_slot();
        if self.slot.is_some() {
            self.agent.offer_slot();
        }
        self.slot.is_some()
    }
}

const _: () = assert!(CONTROL_BYTES >= MAX_TRANSMIT);
