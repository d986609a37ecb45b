//! What has to be true, whatever happens: the promises of the design, checked at the places where they show.
//!
//! The oracle sees both ends of everything: each byte that the gateway wrote, each byte that the sidecar was given,
//! each send that the sidecar started, each observation that a worker took. Where it can't know (a sidecar that died
//! between a receive and its journal, slots that are all taken) it keeps silent rather than guess.

use crate::plan::{Lost, Policy, SECOND, SLOT_BYTES};
use crate::wire;
use crate::world::World;

/// What bytes of the gateway end with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Observation(usize),
    SessionOpen(usize),
    SessionClose(usize),
    Warmup,
    Drain,
}

/// An observation as it was sent, once: the same step asked again is another one.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) session: usize,
    pub(crate) step: u32,
    pub(crate) length: usize,
    /// Connection that it was sent on.
    conn: usize,
    /// The sidecar's process has all of its bytes.
    pub(crate) consumed: bool,
    /// Since when.
    consumed_at: u64,
    /// ... and has dealt with them: from here on it may not be lost.
    sealed: bool,
    /// It needs no answer: too large, or a worker gave it up.
    pub(crate) excused: bool,
    /// It is for the failure policy to decide.
    given_up: bool,
    /// Its receiver died before the next turn.
    doubtful: bool,
    /// It may be what a crash cost.
    in_flight: bool,
    /// A worker has answered it.
    pub(crate) answered: bool,
    /// Workers that took it, by number.
    takers: Vec<u32>,
    /// Workers that may still look at it.
    pub(crate) views: u32,
    /// Sends of an action for it that were started, and where the last one was.
    started: u32,
    started_on: usize,
    /// Actions for it that the gateway got.
    received: u32,
}

impl Delivery {
    pub(crate) fn new(session: usize, step: u32, length: usize, conn: usize) -> Self {
        Self {
            session,
            step,
            length,
            conn,
            consumed: false,
            consumed_at: 0,
            sealed: false,
            excused: length > SLOT_BYTES as usize,
            given_up: length > SLOT_BYTES as usize,
            doubtful: false,
            in_flight: false,
            answered: false,
            takers: Vec::new(),
            views: 0,
            started: 0,
            started_on: 0,
            received: 0,
        }
    }
}

/// A session, from all sides.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) name: String,
    pub(crate) case: usize,
    pub(crate) answered: Vec<bool>,
    /// Steps that were asked.
    pub(crate) asked: u32,
    /// Actions that the gateway got.
    pub(crate) answers: u32,
    pub(crate) progress: u64,
    /// The last observation without payload.
    pub(crate) empty: Option<usize>,
    /// The sidecar has been told that it is over.
    closed: bool,
    closed_for_sure: bool,
    /// Numbers that workers know it by.
    epochs: Vec<u32>,
    /// The sidecar had reason to start it anew.
    pub(crate) forfeited: bool,
    /// Connection on which the sidecar said last that it closes it.
    close_said_on: Option<usize>,
    /// Connections on which the failure policy answered.
    replied_on: Vec<usize>,
    /// The gateway may have opened another one of its name, having heard that.
    may_be_new: bool,
}

impl Session {
    pub(crate) fn new(name: String, case: usize, steps: u32, now: u64) -> Self {
        Self {
            name,
            case,
            answered: vec![false; steps as usize],
            asked: 0,
            answers: 0,
            progress: now,
            empty: None,
            closed: false,
            closed_for_sure: false,
            epochs: Vec::new(),
            forfeited: false,
            close_said_on: None,
            replied_on: Vec::new(),
            may_be_new: false,
        }
    }
}

/// What the sidecar was given, and has not turned since.
#[derive(Clone, Copy, Debug)]
struct Fresh {
    mark: Mark,
    /// The session that it closes.
    closes: Option<usize>,
    /// It was sure to find a slot.
    room: bool,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Oracle {
    pub(crate) deliveries: Vec<Delivery>,
    pub(crate) sessions: Vec<Session>,
    /// The session that the sidecar has open, if that is known.
    open: Option<usize>,
    open_known: bool,
    /// Given to the sidecar since its last turn.
    fresh: Vec<Fresh>,
    /// Observations without payload, by epoch and sequence.
    empties: Vec<(u32, u64, usize)>,
    /// Sequences that workers saw, and the places of their observations in `order`.
    seen: Vec<(u64, usize)>,
    /// Observations in the order in which the sidecar was given them.
    order: Vec<usize>,
    /// Looks of workers at the warm-up's observation.
    rehearsals: usize,
    /// Replies of the failure policy that are due at most.
    pub(crate) replies_due: u32,
    replied: bool,
    /// The sidecar has read `drain` for certain: it never dials again (A.5).
    pub(crate) drained: bool,
    drained_at: u64,
    agent: Option<String>,
}

/// The bytes of an observation: its number, and a pattern that follows from it.
pub(crate) fn observation(number: usize, length: usize) -> Vec<u8> {
    let mut payload = Vec::with_capacity(length);
    if length >= 12 {
        payload.extend_from_slice(b"OBS\0");
        payload.extend_from_slice(&(number as u64).to_le_bytes());
    }
    payload.extend((payload.len()..length).map(|index| pattern(number, index)));
    payload
}

/// The bytes of an action for it.
pub(crate) fn action(number: usize, worker: u32, length: usize) -> Vec<u8> {
    let mut payload = b"ACT\0".to_vec();
    payload.extend_from_slice(&(number as u64).to_le_bytes());
    payload.extend_from_slice(&worker.to_le_bytes());
    payload.extend((payload.len()..length).map(|index| pattern(number ^ worker as usize, index)));
    payload
}

/// What `--on-failure reply` says.
pub(crate) const REPLY: &[u8] = b"RPL no action";

/// What `--warmup-payload` holds, and what a worker answers it with.
pub(crate) const WARMUP: &[u8] = b"WRM a first pass";

const fn pattern(number: usize, index: usize) -> u8 {
    (number.wrapping_mul(31) ^ index.wrapping_mul(7) ^ index >> 8) as u8
}

fn number_in(payload: &[u8]) -> Option<usize> {
    Some(u64::from_le_bytes(*payload.get(4..)?.first_chunk::<8>()?) as usize)
}

impl Oracle {
    pub(crate) fn new() -> Self {
        // The empty session id is the warm-up's.
        let warmup = Session::new(String::new(), usize::MAX, 1, 0);
        Self {
            deliveries: Vec::new(),
            sessions: vec![warmup],
            open: None,
            open_known: true,
            fresh: Vec::new(),
            empties: Vec::new(),
            seen: Vec::new(),
            order: Vec::new(),
            rehearsals: 0,
            replies_due: 0,
            replied: false,
            drained: false,
            drained_at: 0,
            agent: None,
        }
    }

    /// Observations that may hold a slot, at most. Behind one that a worker is at, others may lie in its ring, whatever
    /// has become of their session.
    fn pressure(&self) -> usize {
        let busy = self.rehearsals > 0 || self.deliveries.iter().any(|it| it.views > 0);
        self.held(busy)
    }

    /// Observations that may hold a slot; with `in_rings` also those that no worker has taken yet and none will answer.
    fn held(&self, in_rings: bool) -> usize {
        let holds = |it: &&Delivery| {
            let lent = in_rings && it.takers.is_empty();
            let waits = it.started == 0 && (lent || !self.sessions[it.session].closed_for_sure);
            it.consumed && it.length <= SLOT_BYTES as usize && (it.views > 0 || waits)
        };
        self.deliveries.iter().filter(holds).count() + self.rehearsals
    }

    /// A worker looks at it no more; `None`: at the warm-up's.
    pub(crate) fn looks_away(&mut self, delivery: Option<usize>) {
        match delivery {
            Some(delivery) => self.deliveries[delivery].views -= 1,
            None => self.rehearsals -= 1,
        }
    }
}

impl World {
    /// Whether what was received last has found a slot, or needs none.
    fn has_slot_for_sure(&self) -> bool {
        // A slot is free once its action's last byte has left and the sidecar has heard of it.
        let sending = self.current.is_some_and(|at| self.conns[at].is_sending());
        self.oracle.pressure() + usize::from(sending) <= self.plan.slots as usize
    }

    /// The frame loop is about to sleep, or has slept: on an open connection it listens meanwhile, unless what came last
    /// finds no slot. What lies with a worker that is gone comes back within 8 s; with one that is stopped, some time.
    pub(crate) fn oracle_sleeps(&mut self) {
        let listens = self.current.is_none_or(|at| {
            let conn = &self.conns[at];
            let open =
                conn.established && conn.connected.is_none() && !conn.sidecar_closing && !self.terminated;
            !open || conn.receive.is_some() || self.oracle.held(true) >= self.plan.slots as usize
        });
        if listens {
            self.sidecar.deaf_since = None;
        } else if self.now - *self.sidecar.deaf_since.get_or_insert(self.now) > 10 * SECOND {
            self.fail("the sidecar sleeps and does not listen, though it has a slot".into());
        }
    }

    /// The sidecar was given the bytes up to a mark.
    pub(crate) fn oracle_consumed(&mut self, at: usize, mark: Mark) {
        if self.conns[at].sidecar_closing {
            return;
        }
        // Behind a frame that finds no slot nothing is read.
        let room = self.has_slot_for_sure();
        let now = self.now;
        let mut closes = None;
        let oracle = &mut self.oracle;
        match mark {
            Mark::Observation(delivery) => {
                let session = oracle.deliveries[delivery].session;
                if session != 0 && oracle.open_known && oracle.open != Some(session) {
                    return;
                }
                oracle.deliveries[delivery].consumed = true;
                oracle.deliveries[delivery].consumed_at = now;
                oracle.order.push(delivery);
                if oracle.deliveries[delivery].excused {
                    // Larger than a slot: the failure policy answers it.
                    oracle.replies_due = oracle.replies_due.saturating_add(1);
                }
            }
            Mark::SessionOpen(session) => {
                let it = &mut oracle.sessions[session];
                it.may_be_new |= it.close_said_on == Some(at);
                let before = oracle.open.replace(session).filter(|before| *before != session);
                oracle.open_known = true;
                if let Some(before) = before {
                    oracle.sessions[before].closed = true;
                    oracle.sessions[before].closed_for_sure = room;
                }
                closes = before;
            }
            Mark::SessionClose(session) => {
                if oracle.open == Some(session) {
                    oracle.open = None;
                }
                oracle.sessions[session].closed = true;
                oracle.sessions[session].closed_for_sure = room;
                closes = Some(session);
            }
            Mark::Drain => {
                self.gateway.drain = true;
                self.coverage.row("drain");
            }
            Mark::Warmup => return,
        }
        // With itself counted, if it is an observation.
        let room = room && self.has_slot_for_sure();
        self.oracle.fresh.push(Fresh { mark, closes, room });
    }

    /// The sidecar has turned: what it was given before has been dealt with, if there was room for it.
    pub(crate) fn oracle_turned(&mut self) {
        if self.oracle.fresh.is_empty() {
            return;
        }
        let room_now = self.has_slot_for_sure();
        for Fresh { mark, room, .. } in core::mem::take(&mut self.oracle.fresh) {
            let room = room && room_now;
            if let Mark::Observation(delivery) = mark
                && room
            {
                self.oracle.deliveries[delivery].sealed = true;
            }
            if room && mark == Mark::Drain && !core::mem::replace(&mut self.oracle.drained, true) {
                self.oracle.drained_at = self.now;
            }
            if !room {
                self.coverage.row("all slots taken");
            }
        }
    }

    /// The sidecar has died: what it was given last may be lost, and what it had closed may be open.
    pub(crate) fn oracle_died(&mut self, at_a_store: bool) {
        self.sidecar.ready_turn = None;
        if at_a_store {
            self.sidecar.last_byte = self.sidecar.recorded_byte;
        }
        // Between the record that an action is started and its first byte it counts as sent: the one frame in flight.
        let oracle = &mut self.oracle;
        let in_flight = |it: &Delivery| {
            let waits =
                !oracle.sessions[it.session].closed && it.started == 0 && !it.excused && !it.in_flight;
            it.answered && it.sealed && waits
        };
        if at_a_store && let Some(number) = oracle.deliveries.iter().position(in_flight) {
            oracle.deliveries[number].in_flight = true;
        }
        for Fresh { mark, closes, .. } in core::mem::take(&mut self.oracle.fresh) {
            if let Mark::Observation(delivery) = mark {
                self.oracle.deliveries[delivery].doubtful = true;
            }
            self.oracle.open_known &= matches!(mark, Mark::Observation(_) | Mark::Drain);
            if let Some(closed) = closes {
                // Its observations may be off the record already.
                for delivery in self.oracle.deliveries.iter_mut().filter(|it| it.session == closed) {
                    delivery.in_flight = true;
                }
                self.oracle.sessions[closed].closed = false;
                self.oracle.sessions[closed].closed_for_sure = false;
            }
        }
    }

    /// A successor did not go on with the session: too late, or nothing was there to go on with.
    pub(crate) fn oracle_forfeited(&mut self) {
        for delivery in &mut self.oracle.deliveries {
            delivery.excused = true;
        }
        for session in &mut self.oracle.sessions {
            session.forfeited = true;
        }
        self.oracle.open = None;
        self.oracle.open_known = true;
        self.oracle.agent = None;
        self.oracle.drained = false;
        self.sidecar.ready_known = false;
        self.sidecar.cold_starts += 1;
    }

    /// A gateway sees a redial: under the same agent id, always.
    pub(crate) fn oracle_dialled(&mut self, agent: &str) {
        let before = self.oracle.agent.replace(agent.to_owned());
        if before.is_some_and(|before| before != agent) {
            if !self.plan.fresh_agent {
                return self.fail(format!("promise 4: dialled as {agent}, another agent than before"));
            }
            self.coverage.row("fresh agent id on a wedge");
            self.oracle_forfeited();
        }
    }

    /// The sidecar starts to send: whole frames, or the request.
    pub(crate) fn oracle_sends(&mut self, at: usize, bytes: &[u8]) {
        if bytes.starts_with(b"GET ") {
            return;
        }
        let frame = match wire::client_frame(bytes) {
            Ok(Some((frame, length))) if length == bytes.len() => frame,
            other => return self.fail(format!("the sidecar sends something else than one frame: {other:?}")),
        };
        if frame.opcode == wire::CLOSE {
            self.conns[at].sidecar_closing = true;
            self.closed_after_drain(&frame.payload);
        }
        if frame.opcode == wire::TEXT && frame.payload.windows(7).any(|bytes| bytes == b"\"ready\"") {
            self.sidecar.ready_turn.get_or_insert(self.coverage.turns);
        }
        if frame.opcode == wire::TEXT
            && let Some(session) = self.closed_by(&String::from_utf8_lossy(&frame.payload))
        {
            self.oracle.sessions[session].close_said_on = Some(at);
        }
        if frame.opcode != wire::BINARY {
            return;
        }
        let (name, payload) = match wire::split_data(&frame.payload) {
            Ok((name, payload)) => (name.to_owned(), payload),
            Err(why) => return self.fail(format!("the sidecar sends {why}")),
        };
        if payload == WARMUP {
            return self.fail("the answer to --warmup-payload leaves for the gateway".into());
        }
        if payload == REPLY {
            // One may be sent again to unfreeze the simulator, like any action.
            let since = self.now - self.conns[at].since;
            let unfrozen = self.plan.unfreeze.is_some_and(|least| since >= least.as_nanos() as u64);
            if self.oracle.replies_due > 0 {
                self.oracle.replies_due -= 1;
                self.oracle.replied = true;
            } else if !unfrozen || !core::mem::replace(&mut self.oracle.replied, false) {
                return self.fail("a reply of the failure policy without a failure".into());
            }
            self.coverage.row("failure policy: reply");
            if let Some(session) = self.oracle.sessions.iter_mut().rfind(|session| session.name == name) {
                session.replied_on.push(at);
            }
            return;
        }
        let Some(number) = number_in(payload).filter(|_| payload.starts_with(b"ACT\0")) else {
            return self.fail("an action that no worker made".into());
        };
        self.note(|| format!("sidecar sends the action for observation {number}"));
        self.action_started(at, number, &name, payload);
    }

    /// Our own close after `drain`: what had to be answered was, within the time for it.
    fn closed_after_drain(&mut self, payload: &[u8]) {
        let ours = payload == 1000_u16.to_be_bytes();
        // It was read, though perhaps in this very turn.
        let waited = if self.oracle.drained { self.now - self.oracle.drained_at } else { 0 };
        if !ours || !self.gateway.drain || self.terminated || waited >= 60 * SECOND {
            return;
        }
        let owed = |it: &Delivery| {
            let session = &self.oracle.sessions[it.session];
            let done = it.started > 0 || it.excused || it.in_flight || session.closed || session.forfeited;
            it.sealed && !done
        };
        // What the failure policy answered is not told apart from what a worker would have.
        if self.plan.policy == Policy::Hold
            && let Some(number) = self.oracle.deliveries.iter().position(owed)
        {
            self.fail(format!("closed after drain, and observation {number} was never answered"));
        }
    }

    fn action_started(&mut self, at: usize, number: usize, name: &str, payload: &[u8]) {
        let room = self.oracle.pressure() < self.plan.slots as usize;
        let Some(delivery) = self.oracle.deliveries.get(number) else {
            return self.fail(format!("an action for observation {number}, which does not exist"));
        };
        let session = &self.oracle.sessions[delivery.session];
        if !delivery.consumed {
            return self.fail(format!("an action for observation {number}, which has not arrived"));
        }
        if session.name != name {
            return self.fail(format!("promise 1: observation {number} is answered under session {name:?}"));
        }
        if session.closed && session.closed_for_sure && room {
            return self
                .fail(format!("promise 1: observation {number} is answered though its session is closed"));
        }
        let worker = payload.get(12..16).and_then(|bytes| bytes.first_chunk::<4>());
        let worker = worker.map_or(0, |bytes| u32::from_le_bytes(*bytes));
        if payload != action(number, worker, payload.len()) {
            return self.fail(format!("the action for observation {number} is not what the worker wrote"));
        }
        if !delivery.takers.contains(&worker) {
            return self.fail(format!("worker {worker} answered observation {number}, which it never took"));
        }
        if delivery.started > 0 {
            let since = self.now - self.conns[at].since;
            let unfrozen = self.plan.unfreeze.is_some_and(|least| since >= least.as_nanos() as u64);
            if !unfrozen || delivery.started > 1 || delivery.started_on == at {
                return self.fail(format!("promise 1: the action for observation {number} is sent again"));
            }
            self.coverage.row("unfreeze");
        }
        let delivery = &mut self.oracle.deliveries[number];
        delivery.started += 1;
        delivery.started_on = at;
    }

    /// The gateway got an action: for which observation?
    pub(crate) fn oracle_received(&mut self, session: &str, payload: &[u8]) -> Option<usize> {
        if payload == REPLY {
            let open = |it: &Delivery| {
                let session_of = &self.oracle.sessions[it.session];
                it.consumed && session_of.name == session && !session_of.answered[it.step as usize]
            };
            return self.oracle.deliveries.iter().position(open);
        }
        let Some(number) = number_in(payload).filter(|number| *number < self.oracle.deliveries.len()) else {
            self.fail("the gateway got an action that no worker made".into());
            return None;
        };
        let delivery = &mut self.oracle.deliveries[number];
        delivery.received += 1;
        if delivery.received > delivery.started {
            self.fail(format!("promise 1: the gateway got the action for observation {number} twice"));
            return None;
        }
        self.note(|| format!("gateway <- action for observation {number}"));
        Some(number)
    }

    /// A worker takes an observation: which, and is it whole?
    pub(crate) fn oracle_taken(
        &mut self,
        worker: u32,
        epoch: u32,
        sequence: u64,
        redelivered: bool,
        last_byte: u64,
        payload: &[u8],
    ) -> Option<usize> {
        let number =
            if payload.is_empty() { self.empty(epoch, sequence, last_byte) } else { number_in(payload) };
        let Some(number) = number.filter(|number| *number < self.oracle.deliveries.len()) else {
            self.fail(format!("worker {worker} got an observation that nobody sent (sequence {sequence})"));
            return None;
        };
        if let Some(place) = self.oracle.order.iter().position(|it| *it == number) {
            self.oracle.seen.push((sequence, place));
        }
        let delivery = &mut self.oracle.deliveries[number];
        let again = !delivery.takers.is_empty();
        delivery.takers.push(worker);
        delivery.views += 1;
        let (consumed, length, session) = (delivery.consumed, delivery.length, delivery.session);
        self.note(|| {
            let again = if redelivered { ", redelivered" } else { "" };
            format!("worker {worker} takes observation {number} (sequence {sequence}, epoch {epoch}{again})")
        });
        if !consumed && self.oracle.open_known {
            self.fail(format!("worker {worker} got observation {number}, which has not arrived"));
        } else if payload != observation(number, length) {
            self.fail(format!("promise 2: observation {number} is damaged in its slot"));
        } else if again && !redelivered {
            self.fail(format!(
                "promise 2: observation {number} comes again, and is not marked as redelivered"
            ));
        }
        if again {
            self.coverage.row("redelivered to a successor");
        }
        self.known_by(session, epoch);
        Some(number)
    }

    /// A worker takes the warm-up's observation.
    pub(crate) fn oracle_rehearses(&mut self, worker: u32, sequence: u64) {
        self.note(|| format!("worker {worker} takes the warm-up's observation (sequence {sequence})"));
        self.oracle.rehearsals += 1;
        self.coverage.row("--warmup-payload");
    }

    /// A worker is told of a session.
    pub(crate) fn oracle_opened(&mut self, name: &str, epoch: u32) {
        match self.oracle.sessions.iter().rposition(|session| session.name == name) {
            Some(session) => self.known_by(session, epoch),
            None => self.fail(format!("a worker is told of session {name:?}, which no gateway opened")),
        }
    }

    /// The session that this text of the sidecar closes.
    pub(crate) fn closed_by(&self, text: &str) -> Option<usize> {
        let text = text.contains("\"session_close\"").then(|| text.replace("\\u000a", "\\n"))?;
        self.oracle.sessions.iter().rposition(|session| text.contains(&crate::server::json(&session.name)))
    }

    /// A session keeps its number, whatever happens to connections and sidecars. What was closed by the sidecar is not
    /// opened again before the gateway can have heard that.
    fn known_by(&mut self, session: usize, epoch: u32) {
        let it = &mut self.oracle.sessions[session];
        if it.epochs.contains(&epoch) {
            return;
        }
        it.epochs.push(epoch);
        if it.epochs.len() > 1 && !it.forfeited && !it.may_be_new && !it.name.is_empty() {
            let text = format!("promise 3: session {:?} is known by epochs {:?}", it.name, it.epochs);
            self.fail(text);
        }
    }

    /// The observation without payload that a worker knows by these numbers: one of those that the sidecar had then.
    fn empty(&mut self, epoch: u32, sequence: u64, last_byte: u64) -> Option<usize> {
        let oracle = &mut self.oracle;
        if let Some((_, _, number)) = oracle.empties.iter().find(|it| (it.0, it.1) == (epoch, sequence)) {
            return Some(*number);
        }
        // The sidecar looks at its clock after a receive, whether or not that has moved on by then.
        let received = oracle.order.iter().map(|number| oracle.deliveries[*number].consumed_at);
        let received = received.filter(|at| *at < last_byte).max().unwrap_or(last_byte);
        let taken = |number: usize| oracle.empties.iter().any(|it| it.2 == number);
        // Sequences follow the order in which the sidecar was given observations.
        let after = oracle.seen.iter().filter(|it| it.0 < sequence).map(|it| it.1 + 1).max().unwrap_or(0);
        let before = oracle.seen.iter().filter(|it| it.0 > sequence).map(|it| it.1).min();
        let before = before.unwrap_or(oracle.order.len()).max(after);
        // The session is known by its epoch, or else is the one that is open, or else any that nobody has seen yet.
        let find = |rank: u32, doubtful: bool| {
            let fits = |it: &Delivery| {
                let session = &oracle.sessions[it.session];
                let unseen = session.epochs.is_empty() || session.forfeited;
                let fits = match rank {
                    0 => session.epochs.contains(&epoch),
                    1 => unseen && oracle.open == Some(it.session),
                    _ => unseen,
                };
                // A survivor still finds in its ring what belongs to a session that was given up.
                let wanted = !it.excused || (rank == 0 && (session.forfeited || it.given_up));
                let then = it.consumed && (received..=last_byte).contains(&it.consumed_at);
                it.length == 0 && then && wanted && (it.session == 0) == (epoch == 0) && fits
            };
            let place = after..before;
            let mut all = oracle.order.iter().enumerate().filter(|(at, _)| place.contains(at));
            all.find(|(_, number)| {
                let it = &oracle.deliveries[**number];
                fits(it) && it.doubtful == doubtful && !taken(**number)
            })
            .map(|(_, number)| *number)
        };
        // What may have died with a sidecar before it was on record comes last.
        let number = (0..3).find_map(|rank| find(rank, false).or_else(|| find(rank, true)))?;
        oracle.empties.push((epoch, sequence, number));
        Some(number)
    }

    /// A case made no progress for a long time: is there an explanation?
    pub(crate) fn oracle_stuck(&mut self, tunnel: usize, session: usize) {
        let it = &self.oracle.sessions[session];
        if it.closed || self.sidecar.bad_model || self.terminated {
            return;
        }
        if let Some(number) = self.never_closed(tunnel, session) {
            return self.fail(format!("observation {number} was given up, and its session is not closed"));
        }
        let it = &self.oracle.sessions[session];
        if it.forfeited {
            return;
        }
        // Which observation such a reply was for cannot be seen in it.
        let mut explained = it.replied_on.iter().any(|at| self.conns[*at].faulted);
        let mut verdict = None;
        for (number, delivery) in self.oracle.deliveries.iter().enumerate() {
            if delivery.session != session || it.answered[delivery.step as usize] {
                continue;
            }
            if delivery.excused {
                explained = true;
            } else if delivery.sealed && delivery.started == 0 && !delivery.in_flight {
                verdict = Some(format!("promises 2 to 4: observation {number} is held, and never answered"));
            } else if delivery.started > 0
                && delivery.received == 0
                && !self.conns[delivery.started_on].faulted
            {
                verdict =
                    Some(format!("the action for observation {number} was lost on a healthy connection"));
            } else if !delivery.consumed && !self.conns[delivery.conn].faulted && self.oracle.open_known {
                verdict = Some(format!("observation {number} was lost on a healthy connection"));
            }
        }
        if explained {
            return;
        }
        if verdict.is_none() && self.plan.lost == Lost::Reask {
            verdict = Some("a gateway that asks again got no answer".into());
        }
        if let Some(verdict) = verdict {
            self.fail(verdict);
        }
        self.coverage.row("stalled for ever, by a loss in flight");
    }

    /// What the policy `close` decided the gateway learns over whatever connection there is, from a successor too.
    fn never_closed(&self, tunnel: usize, session: usize) -> Option<usize> {
        /// Longer than a connection is waited on to prove itself.
        const TOLD_WITHIN: u64 = 60 * SECOND;
        let conn = &self.conns[self.gateway.tunnels[tunnel].live?];
        if self.plan.policy != Policy::Close || conn.faulted || self.now < conn.since + TOLD_WITHIN {
            return None;
        }
        let Session { answered, may_be_new, .. } = &self.oracle.sessions[session];
        if *may_be_new {
            // A second session_open that crossed what we said can't be told from that of a new one, and is followed.
            return None;
        }
        let unclosed = |it: &Delivery| {
            let open = it.session == session && it.started == 0 && !answered[it.step as usize];
            open && it.given_up && it.sealed && !it.in_flight
        };
        self.oracle.deliveries.iter().position(unclosed)
    }

    /// A worker gave up on an observation.
    pub(crate) fn oracle_failed(&mut self, number: usize) {
        self.oracle.deliveries[number].excused = self.plan.policy != Policy::Hold;
        self.oracle.deliveries[number].given_up = true;
        self.perhaps_a_swallowed_close();
        if self.plan.policy == Policy::Reply {
            self.oracle.replies_due += 1;
        }
        let row = match self.plan.policy {
            Policy::Hold => "failure policy: hold",
            Policy::Reply => "worker fails, reply is due",
            Policy::Close => "failure policy: close",
        };
        self.coverage.row(row);
    }

    /// The window closed: could the sidecar have been back?
    pub(crate) fn oracle_window_expired(&mut self) {
        let connected = self.current.is_some_and(|at| self.conns[at].established && self.conns[at].sidecar);
        let usable = [
            self.refused_until,
            self.unanswered_until,
            self.unresolved_until,
            self.sidecar.since,
            self.sidecar.disconnected,
            self.last_fault,
        ];
        let usable = usable.into_iter().max().unwrap_or(0);
        let odd = self.gateway.terminal || self.gateway.instant_closes > 0 || self.gateway.closed_at_once > 0;
        if self.sidecar.alive && !connected && !odd && self.now.saturating_sub(usable) > 20 * SECOND {
            self.fail("promise 3: the window expired though nothing was in the way".into());
        }
    }
}
