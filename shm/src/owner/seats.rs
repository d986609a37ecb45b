//! Seats: who is attached, who has gone, and what is proved about it.
//!
//! A seat goes empty -> live -> dying -> empty. It is dying from the end of its connection on, or from nonsense in its
//! pages; and empty again only once the worker's process is proved gone, since until then that process can write the
//! seat's pages and the slots it was given. Meanwhile a successor takes the other seat.
//!
//! A worker that closes its handle and drops what it was given says so in its page, and then the end of its connection
//! is enough: a process may attach as often as it likes. Its word is no proof, and need not be one. A worker that lies
//! has given up its own slots, and can spoil its successor's pages as any process of this user could; the successor is
//! detached for it, and the sidecar believes neither.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::doorbell;
use super::link::Link;
use super::orphan::{Orphan, may_run};
use super::{Owner, Parts};
use crate::attach::{Candidate, Refusal};
use crate::journal::{SeatRecord, Standing};
use crate::layout::{Layout, SEATS, block, control, seat_block, worker_page};
use crate::map::Map;
use crate::slots::{Held, Ledger};
use crate::stats::{Counter, Gauge};
use crate::sync::Ordering;
use crate::sys;
use core::time::Duration;

/// A worker that survived a sidecar has this long to come back before another may take its place.
const SURVIVOR_RETURNS_WITHIN: Duration = Duration::from_secs(2);

/// What a worker gets with its seat; the control thread hands it on.
#[derive(Debug)]
pub struct SeatGrant {
    /// Number of the seat.
    pub seat: u8,
    /// Issued anew for each worker of a seat.
    pub generation: u32,
    /// The same worker had it before a restart of the sidecar: it is warm, and its observations are still its own.
    pub resumed: bool,
    /// Counts the owners of this region.
    pub owner_generation: u32,
    /// Id of the region.
    pub region_id: u64,
    /// Its size.
    pub total_bytes: u64,
    /// The region, by a description that carries no lock.
    pub region: OwnedFd,
    /// The seat's doorbell, which wakes the frame loop.
    pub doorbell: OwnedFd,
    /// What becomes readable to wake this worker, if it waits on that.
    pub wake: OwnedFd,
}

/// Why a worker gets no seat now.
#[derive(Debug, thiserror::Error)]
pub enum SeatRefused {
    /// One is attached already.
    #[error("{} is attached; stop it first, a region serves one worker", Who(*pid))]
    Live {
        /// Its pid; 0 across pid namespaces.
        pid: u32,
    },
    /// Both seats belong to workers that were given up and whose processes have not ended.
    #[error("{} and {} were detached and still run; end them first", Who(pids[0]), Who(pids[1]))]
    NotYet {
        /// Their pids; 0 across pid namespaces.
        pids: [u32; SEATS],
    },
    /// The system refused.
    #[error("no descriptor for the worker: {0}")]
    Failed(#[from] io::Error),
}

impl SeatRefused {
    /// The same for the wire, and whom it is about.
    pub(crate) fn reason(&self) -> (Refusal, u32) {
        match self {
            // Nobody can see from here whether that one is dying; its end will be seen.
            Self::Live { pid: 0 } => (Refusal::NotYet, 0),
            Self::Live { pid } => (Refusal::Taken, *pid),
            Self::NotYet { pids } => (Refusal::NotYet, pids[0]),
            Self::Failed(_) => (Refusal::Other, 0),
        }
    }
}

/// A worker, in a message.
struct Who(u32);

impl core::fmt::Display for Who {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.0 {
            0 => f.write_str("a worker of another pid namespace"),
            pid => write!(f, "the worker with pid {pid}"),
        }
    }
}

/// The worker that has a seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SeatInfo {
    /// Number of the seat.
    pub seat: u8,
    /// Generation that it was granted with.
    pub generation: u32,
    /// Pid of the worker, for messages; 0 across pid namespaces.
    pub pid: u32,
    /// Its connection stands. `false` only after a take-over, until the survivor has come back.
    pub connected: bool,
    /// It takes deliveries.
    pub open: bool,
}

/// A seat's private side.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) record: SeatRecord,
    pub(super) connected: bool,
    pub(super) link: Link,
    /// While dying: actions before this ring position are taken before anything of this seat is given to another.
    pub(super) drain_to: Option<u32>,
    /// It has died on something, and on what is known when its last words are read: how far it had read its ring.
    pub(super) blame: Option<u32>,
    /// The process is proved gone, or has left; the seat becomes empty when its ring has been read.
    pub(super) gone: bool,
    /// Its worker had it under a dead sidecar, and what it said then has not been read to the end.
    pub(super) inherited: bool,
    /// Its worker said that it is ready when its connection had broken: true again if it comes back.
    pub(super) ready_unheard: bool,
    pub(super) wake: Option<OwnedFd>,
}

impl Seat {
    pub(super) fn new(
        map: &Arc<Map>,
        layout: &Layout,
        ledger: &Ledger,
        index: usize,
        record: SeatRecord,
    ) -> Self {
        let link = Link::open(map, layout, index, ledger);
        let drain_to = (record.standing == Standing::Dying).then(|| link.up_tail());
        Self {
            record,
            connected: false,
            link,
            drain_to,
            blame: None,
            gone: false,
            inherited: matches!(record.standing, Standing::Live | Standing::Dying),
            ready_unheard: false,
            wake: None,
        }
    }

    /// Whether anything that its worker wrote is still read.
    pub(super) const fn is_read(&self) -> bool {
        matches!(self.record.standing, Standing::Live | Standing::Dying)
    }

    /// A message waits to be read, or the word that none will follow.
    pub(super) fn has_something(&self) -> bool {
        match self.record.standing {
            Standing::Live => self.link.has_something(),
            Standing::Dying => self.link.has_something() || (!self.gone && self.link.has_left()),
            Standing::Empty | Standing::Poisoned => false,
        }
    }
}

impl Owner {
    /// A worker said hello: gives it a seat, or the one it already has.
    ///
    /// After this the bridge tells the worker what it must know ([`Owner::send`]), and opens deliveries with
    /// [`Owner::deliver_pending`] when the worker is ready for them. A grant with `resumed` is open as it was.
    ///
    /// # Errors
    /// See [`SeatRefused`].
    pub fn seat_join(&mut self, candidate: &Candidate) -> Result<SeatGrant, SeatRefused> {
        if let Some(seat) = self.seat_to_return_to(candidate) {
            return self.grant(seat, true, candidate);
        }
        self.forget_unheard(candidate);
        if let Some(live) = self.live() {
            if !self.is_ending(live) {
                return Err(SeatRefused::Live { pid: self.seats[live].record.pid });
            }
            self.end_connection(live);
            // A successor that is there within a moment finds what this one has left.
            self.seats[live].gone |= self.seats[live].link.has_left();
            self.bury(live);
        }
        let Some(free) = (0..SEATS).find(|seat| self.seats[*seat].record.standing == Standing::Empty) else {
            return Err(SeatRefused::NotYet { pids: self.seats.each_ref().map(|seat| seat.record.pid) });
        };
        self.reset(free);
        self.grant(free, false, candidate)
    }

    /// Whether another worker may take the place of the live one, though nobody has told that its connection ended: it
    /// said that it left, or its process ends, which takes long with much memory and comes before the connection's
    /// end; or it is a survivor of the last sidecar that does not come back.
    fn is_ending(&self, live: usize) -> bool {
        let Seat { record, connected, link, .. } = &self.seats[live];
        let known = record.pid != 0 && record.start_time != 0;
        let late = Self::now().since(self.since) > SURVIVOR_RETURNS_WITHIN;
        link.has_left()
            || !connected && late
            || !may_run(record)
            || known && sys::is_ending(record.pid) == Some(true)
    }

    /// A process that says hello anew, and for which a seat was kept of which it never heard (its answer was lost with a
    /// sidecar, or came too late), will never use that seat. What was delivered there
    /// is free for the one that it gets now.
    fn forget_unheard(&mut self, candidate: &Candidate) {
        for seat in 0..SEATS {
            let Seat { record, connected, link, .. } = &self.seats[seat];
            let same = record.pid != 0
                && record.start_time != 0
                && (record.pid, record.start_time) == (candidate.pid, candidate.start_time);
            let waits = matches!(record.standing, Standing::Live | Standing::Dying) && !connected;
            if same && waits && !link.is_taken_up() {
                // There are two.
                self.seat_proved_dead(seat as u8, record.generation);
            }
        }
    }

    /// The connection of a worker ended: a successor may come. A late word about an earlier worker changes nothing.
    pub fn seat_connection_ended(&mut self, seat: u8, generation: u32) {
        if let Some(seat) = self.named(seat, generation)
            && self.seats[seat].record.standing == Standing::Live
        {
            self.end_connection(seat);
        }
    }

    /// The process of a worker is proved gone: what it held is free, its seat will be as soon as its last words are
    /// read. Returns the observations that it had and did not answer; they go to the worker that is there, or comes.
    pub fn seat_proved_dead(&mut self, seat: u8, generation: u32) -> Vec<Held> {
        let Some(seat) = self.named(seat, generation) else { return Vec::new() };
        if self.seats[seat].record.standing == Standing::Live {
            self.end_connection(seat);
        }
        self.seats[seat].gone = true;
        let had = self.ledger.in_hands(seat);
        self.bury(seat);
        self.deliver();
        self.set_gauges();
        had
    }

    /// Detaches the live worker because of nonsense that it said; nothing more is read from it.
    pub fn seat_poison(&mut self, why: &str) {
        if let Some(live) = self.live() {
            self.poison(live, why);
        }
    }

    /// The worker that is attached, if there is one.
    pub fn live_seat(&self) -> Option<SeatInfo> {
        // There are two.
        self.live().and_then(|seat| self.seat(seat as u8))
    }

    /// Who has a seat, attached or not; `None`: nobody.
    pub fn seat(&self, seat: u8) -> Option<SeatInfo> {
        let Seat { record, connected, .. } = self.seats.get(usize::from(seat))?;
        (record.standing != Standing::Empty).then_some(SeatInfo {
            seat,
            generation: record.generation,
            pid: record.pid,
            connected: *connected,
            open: record.open,
        })
    }

    /// The seats that a take-over found with workers of which nothing has been heard since. The control thread watches
    /// their processes ([`Orphan::look`]) and says [`Owner::seat_proved_dead`]; those that return say hello.
    pub fn orphans(&self) -> Vec<Orphan> {
        let orphan = |(index, seat): (usize, &Seat)| {
            let record = seat.record;
            let orphaned = record.standing != Standing::Empty && !seat.connected && !seat.gone;
            // There are two.
            orphaned.then(|| Orphan::new(index as u8, &record))
        };
        self.seats.iter().enumerate().filter_map(orphan).collect()
    }

    pub(super) fn live(&self) -> Option<usize> {
        self.seats.iter().position(|seat| seat.record.standing == Standing::Live)
    }

    /// After a take-over: seats of which the process is gone for certain, or has left.
    pub(super) fn settle_past_seats(&mut self) {
        for seat in 0..SEATS {
            let record = self.seats[seat].record;
            let left = self.seats[seat].is_read() && self.seats[seat].link.has_left();
            if record.standing == Standing::Empty || (may_run(&record) && !left) {
                continue;
            }
            // There are two.
            self.seat_proved_dead(seat as u8, record.generation);
        }
    }

    pub(super) fn poison(&mut self, seat: usize, why: &str) {
        self.seats[seat].drain_to = None;
        self.seats[seat].blame = None;
        let record = &mut self.seats[seat].record;
        record.standing = Standing::Poisoned;
        record.open = false;
        let record = *record;
        self.journal.seat(seat, &record);
        self.parts.map.word32(block(seat) + seat_block::POISONED).store(1, Ordering::Release);
        self.seats[seat].link.wake(self.seats[seat].wake.as_ref(), &self.stats);
        self.ledger.blame(seat, self.seats[seat].link.down_head(), &mut self.journal);
        self.stats.count(Counter::Poisoned);
        self.stats.set(Gauge::WorkerPid, 0);
        self.errors.note(crate::errors::KIND_POISONED, &format!("worker detached: {why}"), Self::now());
        if self.pending.as_ref().is_some_and(|pending| pending.seat == seat) {
            // Its action has not been copied out and will not be trusted.
            self.pending = None;
        }
        self.behind = true;
        self.bury(seat);
    }

    /// Makes a seat empty once its process is gone and its last words are read.
    pub(super) fn bury(&mut self, seat: usize) {
        let Seat { record, gone, link, .. } = &self.seats[seat];
        let unread = record.standing == Standing::Dying && link.has_something();
        let pending = self.pending.as_ref().is_some_and(|pending| pending.seat == seat);
        if !gone || unread || pending {
            return;
        }
        self.settle_blame(seat);
        self.ledger.forget_seat(seat, &mut self.journal);
        let entry = &mut self.seats[seat];
        entry.record = SeatRecord { generation: entry.record.generation, ..SeatRecord::EMPTY };
        entry.connected = false;
        entry.drain_to = None;
        entry.blame = None;
        entry.gone = false;
        entry.wake = None;
        self.journal.seat(seat, &entry.record);
        self.behind = true;
    }

    pub(super) fn end_connection(&mut self, seat: usize) {
        let entry = &mut self.seats[seat];
        entry.connected = false;
        entry.record.standing = Standing::Dying;
        entry.drain_to = Some(entry.link.up_tail());
        let record = entry.record;
        self.journal.seat(seat, &record);
        self.seats[seat].blame = Some(self.seats[seat].link.down_head());
        self.stats.count(Counter::Detached);
        self.stats.set(Gauge::WorkerPid, 0);
        self.behind = true;
        self.settle_blame(seat);
    }

    /// Counts a death on what the worker of a dying seat was at, once its finished actions are known.
    pub(super) fn settle_blame(&mut self, seat: usize) {
        let pending = self.pending.as_ref().is_some_and(|pending| pending.seat == seat);
        if pending || self.seats[seat].link.has_something() {
            return;
        }
        if let Some(head) = self.seats[seat].blame.take() {
            self.ledger.blame(seat, head, &mut self.journal);
        }
    }

    /// The seat that this worker has and may go on with.
    fn seat_to_return_to(&self, candidate: &Candidate) -> Option<usize> {
        let claim = candidate.seat.filter(|claim| claim.region == self.parts.region)?;
        let seat = self.named(claim.seat, claim.generation)?;
        let entry = &self.seats[seat];
        match entry.record.standing {
            Standing::Live => (!entry.connected).then_some(seat),
            // Its connection broke, and nobody has taken its place.
            Standing::Dying => (!entry.gone && self.live().is_none()).then_some(seat),
            Standing::Empty | Standing::Poisoned => None,
        }
    }

    fn named(&self, seat: u8, generation: u32) -> Option<usize> {
        let seat = usize::from(seat);
        let record = self.seats.get(seat)?.record;
        (record.standing != Standing::Empty && record.generation == generation).then_some(seat)
    }

    /// Wipes the pages of an empty seat for its next worker.
    fn reset(&mut self, seat: usize) {
        self.seats[seat].link.wipe();
        let Parts { map, layout, .. } = &self.parts;
        let page = layout.seat_area(seat);
        for word in [
            page + worker_page::DOWN_HEAD,
            page + worker_page::UP_TAIL,
            page + worker_page::UP_SEQUENCE,
            page + worker_page::DOWN_WAITERS,
            page + worker_page::WANTS_ROOM,
            page + worker_page::BY_DESCRIPTOR,
            page + worker_page::TAKEN_UP,
            page + worker_page::LEFT,
            block(seat) + seat_block::POISONED,
            block(seat) + seat_block::DOWN_TAIL,
            block(seat) + seat_block::UP_HEAD,
            block(seat) + seat_block::UP_WAITERS,
        ] {
            map.word32(word).store(0, Ordering::Relaxed);
        }
        self.seats[seat].link = Link::open(map, layout, seat, &self.ledger);
        self.seats[seat].ready_unheard = false;
        self.seats[seat].inherited = false;
        let generation = self.seats[seat].record.generation.wrapping_add(1);
        map.word32(self.generation_word(seat)).store(generation, Ordering::Release);
        self.seats[seat].record.generation = generation;
    }

    fn grant(&mut self, seat: usize, resumed: bool, candidate: &Candidate) -> Result<SeatGrant, SeatRefused> {
        let (wake, theirs) = doorbell::bell()?;
        let grant = SeatGrant {
            // There are two.
            seat: seat as u8,
            generation: self.seats[seat].record.generation,
            resumed,
            owner_generation: self.parts.map.word32(control::OWNER_GENERATION).load(Ordering::Relaxed),
            region_id: self.parts.region,
            total_bytes: self.parts.layout.total() as u64,
            region: File::try_clone(&self.parts.shared)?.into(),
            doorbell: self.doorbells.hand_out(seat)?,
            wake: theirs,
        };
        let entry = &mut self.seats[seat];
        entry.wake = Some(wake);
        entry.connected = true;
        entry.drain_to = None;
        entry.blame = None;
        entry.record = SeatRecord {
            standing: Standing::Live,
            open: resumed && entry.record.open,
            generation: entry.record.generation,
            pid: candidate.pid,
            start_time: if candidate.pid == 0 { 0 } else { sys::start_time(candidate.pid).unwrap_or(0) },
        };
        let record = entry.record;
        self.journal.seat(seat, &record);
        self.stats.count(Counter::Attached);
        self.stats.set(Gauge::WorkerPid, candidate.pid.into());
        self.behind = true;
        if resumed {
            self.deliver();
        }
        Ok(grant)
    }
}
