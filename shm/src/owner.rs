//! The sidecar's side of the region: what the frame loop calls. One thread has it.
//!
//! ```text
//! claim_slot -> (receive into slot_base) -> publish ----> worker ----> poll_worker -> Action
//!                                                                        copy it out, finish_action
//!                                  journal().action_started, (send), journal().action_sent, answered
//! ```
//!
//! `poll_worker` gives one thing at a time; after an action it gives nothing more until [`Owner::finish_action`].
//! Before it sleeps, the loop calls [`Owner::arm`], and sleeps on [`Owner::doorbells`] only if that says so; afterwards
//! [`Owner::disarm`]. Seats change by the `seat_*` functions, which the control thread asks for through the loop.
//!
//! Nothing here believes what a worker wrote: see [`crate::slots`] for who owns what, and `uplink` for what is
//! checked. It blocks nowhere.

mod delivery;
pub(crate) mod doorbell;
mod link;
mod orphan;
mod seats;
mod uplink;

use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecar_core::agent::HEADROOM;
use sidecar_core::record::MAX_RECORD;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;

use crate::clock::{self, Stamps};
use crate::device::{self, Announcement, DeviceRing, DeviceSlots};
use crate::errors::ErrorLog;
use crate::journal::{Journal, SeatRecord, Standing};
use crate::layout::{Geometry, Layout, SEATS, block, control, seat_block};
use crate::map::Map;
use crate::region;
use crate::region::Header;
use crate::slots::{Asker, Copied, Fate, Held, Ledger, Observed, SlotIndex, Taken, Tally};
use crate::stats::{Gauge, Stats};
use crate::sync::Ordering;
use crate::worker::SlotMemory;
pub use delivery::NotSent;
pub use doorbell::DoorbellHandle;
use doorbell::Doorbells;
#[cfg(sidecar_loom)]
pub use doorbell::Sleep;
pub use orphan::{Orphan, Whereabouts};
use seats::Seat;
pub use seats::{SeatGrant, SeatInfo, SeatRefused};
pub use uplink::{FromWorker, SeatPoisoned};

/// How often an owner looks at a worker that can't ring its doorbell yet (see [`Owner::must_poll`]).
const SURVIVOR_POLL: Duration = Duration::from_millis(1);
/// How often it looks whether a worker whose ring was full has read on: nobody rings for that.
const CRAMMED_POLL: Duration = Duration::from_millis(5);

/// What a region consists of, before it has an owner.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) path: PathBuf,
    /// Holds the lock for as long as it is open; neither mapped nor passed on.
    #[expect(dead_code, reason = "only its being open matters")]
    pub(crate) lock: File,
    /// A description of its own, which is.
    pub(crate) shared: File,
    pub(crate) map: Arc<Map>,
    pub(crate) layout: Layout,
    pub(crate) region: u64,
}

/// Slots that no observation needs any more, and that are not free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lent {
    /// The worker that is attached has not given them back.
    pub to_live: u32,
    /// A worker whose connection has ended has them, until its process is proved gone.
    pub to_gone: u32,
}

/// What somebody did to the file of a region that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Damage {
    /// It has another size than its owner gave it.
    #[error("its file has {bytes} bytes now and needs {needed}: another process cut or extended it")]
    Size {
        /// Bytes now.
        bytes: u64,
        /// Bytes of the region.
        needed: u64,
    },
    /// Its size is right, but pages were missing a moment ago.
    #[error("pages of its file were missing: another process cut it, or the file system is full")]
    Lost,
    /// Its header is not the one that its owner wrote.
    #[error("its header was overwritten by another process")]
    Header,
}

/// See the module's text.
#[derive(Debug)]
pub struct Owner {
    parts: Parts,
    journal: Journal,
    ledger: Ledger,
    seats: [Seat; SEATS],
    stats: Stats,
    errors: ErrorLog,
    doorbells: Doorbells,
    /// An action was given out and [`Owner::finish_action`] is due.
    pending: Option<Taken>,
    /// What came with a worker's message, in private memory.
    record: [u8; MAX_RECORD],
    /// Something waits for delivery that could not be delivered yet.
    behind: bool,
    /// Something found no room in the worker's ring, and nothing has shown since that all of it was said.
    crammed: bool,
    since: Instant,
    stamps: Stamps,
}

impl Owner {
    /// `past`: the seats as a dead sidecar left them.
    pub(crate) fn new(
        parts: Parts,
        journal: Journal,
        ledger: Ledger,
        past: [Option<SeatRecord>; SEATS],
        doorbells: Doorbells,
    ) -> Self {
        let map = &parts.map;
        let since = journal.main().owner_since;
        map.word32(control::OWNER_GENERATION).store(journal.main().owner_generation, Ordering::Release);
        let seats = core::array::from_fn(|index| {
            Seat::new(map, &parts.layout, &ledger, index, past[index].unwrap_or(SeatRecord::EMPTY))
        });
        let mut owner = Self {
            stats: Stats::new(Arc::clone(map)),
            errors: ErrorLog::new(Arc::clone(map)),
            doorbells,
            parts,
            journal,
            ledger,
            seats,
            pending: None,
            record: [0; MAX_RECORD],
            behind: true,
            crammed: false,
            since,
            stamps: Stamps::On,
        };
        // A dead owner's ring went with it.
        device::clear(&owner.parts.map);
        owner.settle_past_seats();
        owner.wake_worker();
        owner.set_gauges();
        owner
    }

    /// Number and size of the slots.
    pub const fn geometry(&self) -> Geometry {
        self.parts.layout.geometry()
    }

    /// Whether descriptors of observations are stamped with the time of their delivery. They are unless this was called.
    pub const fn stamp_by(&mut self, stamps: Stamps) {
        self.stamps = stamps;
    }

    /// The path of the region.
    pub fn path(&self) -> &Path {
        &self.parts.path
    }

    /// Bytes of a slot, headroom included: what may be written at [`Owner::slot_base`].
    pub const fn slot_bytes(&self) -> usize {
        HEADROOM as usize + self.geometry().observation_bytes as usize
    }

    /// Start of a slot's headroom; [`Owner::slot_bytes`] may be written there while the slot is claimed. The address
    /// stays valid for as long as this owner lives. A worker may be writing there too: make no reference of it.
    pub fn slot_base(&self, slot: SlotIndex) -> *mut u8 {
        self.parts.map.range(self.parts.layout.slot(slot.at()), self.slot_bytes())
    }

    /// Number of this file among all regions there ever were; a successor that takes it over as it is finds the same.
    pub const fn region_id(&self) -> u64 {
        self.parts.region
    }

    /// A free slot, for receiving into. `None`: all are taken.
    pub fn claim_slot(&mut self) -> Option<SlotIndex> {
        self.ledger.claim()
    }

    /// Gives back a claimed slot that was not published. No receive into it may be under way.
    pub fn unclaim(&mut self, slot: SlotIndex) {
        self.ledger.unclaim(slot);
    }

    /// The observation slots as one range, mapped for as long as what this returns lives.
    pub fn slot_memory(&self) -> SlotMemory {
        SlotMemory::observations(&self.parts.map, &self.parts.layout)
    }

    /// How a ring on a device is cut into slots that stand for those of the region.
    pub const fn device_slots(&self) -> DeviceSlots {
        DeviceSlots::of(&self.parts.layout)
    }

    /// There is a ring on a device, and this is how to open it, for as long as what this returns lives. To be said before
    /// workers attach.
    pub fn announce_device_ring(&self, ring: &DeviceRing) -> Announcement {
        Announcement::new(&self.parts.map, self.device_ring_number(), ring)
    }

    /// Says, before it is published, whether an observation lies in the device ring, too. It holds until it is said
    /// again for the slot; without a ring it is never said.
    pub fn set_copied(&mut self, slot: SlotIndex, copied: Copied) {
        self.ledger.set_copied(slot, copied);
    }

    fn device_ring_number(&self) -> u64 {
        self.journal.main().owner_generation.into()
    }

    /// An observation has arrived in a claimed slot, its payload right behind the headroom. It is kept until answered,
    /// and delivered at once to a worker that takes deliveries ([`Owner::deliver_pending`]).
    pub fn publish(&mut self, slot: SlotIndex, observed: &Observed) {
        self.publish_for(Asker::Gateway, slot, observed);
    }

    /// As [`Owner::publish`], for an observation that the sidecar made up itself: a successor that finds it unanswered
    /// must not send its answer to the gateway ([`Held::asker`]).
    pub fn publish_rehearsal(&mut self, slot: SlotIndex, observed: &Observed) {
        self.publish_for(Asker::Sidecar, slot, observed);
    }

    fn publish_for(&mut self, asker: Asker, slot: SlotIndex, observed: &Observed) {
        debug_assert!(observed.length <= self.geometry().observation_bytes);
        self.ledger.hold(slot, observed, asker, Fate::default(), &mut self.journal);
        // What is delivered at once is journalled once, as held and lent.
        if !self.deliver_straight(slot) {
            self.ledger.journal(slot, &mut self.journal);
            self.behind = true;
            self.deliver();
        }
        self.set_gauges();
    }

    /// An action for this observation was sent, or it needs none any more.
    pub fn answered(&mut self, sequence: u64) {
        self.ledger.answered(sequence, &mut self.journal);
        self.set_gauges();
    }

    /// The session is over: its observations need no answer, and the worker can see it.
    pub fn close_epoch(&mut self, epoch: Epoch) {
        self.ledger.close_epoch(epoch, &mut self.journal);
        self.parts.map.word32(control::EPOCH).store(epoch.0, Ordering::Release);
        self.set_gauges();
    }

    /// The oldest observation for which no action has come yet.
    pub fn oldest_unanswered(&self) -> Option<Held> {
        self.ledger.oldest_unanswered()
    }

    /// How many observations wait for an action.
    pub fn unanswered(&self) -> u32 {
        self.ledger.unanswered()
    }

    /// Slots that can be claimed.
    pub fn free_slots(&self) -> u32 {
        self.ledger.free_slots()
    }

    /// Slots that are taken only because a worker still holds a view of an answered observation. If no slot is free,
    /// they are what starves the tunnel: say so.
    pub fn lent_after_answer(&self) -> Lent {
        let to_live = self.live().map_or(0, |live| self.ledger.lent_after_answer_to(live));
        Lent { to_live, to_gone: self.ledger.lent_after_answer() - to_live }
    }

    /// The journal, for what the frame loop alone knows.
    pub const fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// The statistics pages.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The log of distinct errors.
    pub const fn errors(&self) -> &ErrorLog {
        &self.errors
    }

    /// Announces that the frame loop is about to sleep on the doorbell. `false`: something has come already; don't
    /// sleep. Either way [`Owner::disarm`] follows.
    pub fn arm(&mut self) -> bool {
        for seat in self.seats.iter().filter(|seat| seat.is_read()) {
            seat.link.arm();
        }
        !self.has_something()
    }

    /// Whether [`Owner::poll_worker`] would find something: for a spinning loop.
    pub fn has_something(&self) -> bool {
        // Before finish_action nothing more is given out, so nothing that comes is a reason to look.
        self.pending.is_none() && self.seats.iter().any(Seat::has_something)
    }

    /// The frame loop is awake again.
    pub fn disarm(&mut self) {
        for seat in self.seats.iter().filter(|seat| seat.is_read()) {
            seat.link.disarm();
        }
    }

    /// How soon to look again although the doorbell did not ring: a worker that survived the last sidecar can't ring
    /// this one's until it has attached again, and one that makes room in its ring rings for nobody. Looking is
    /// [`Owner::poll_worker`], and what [`Owner::send`] refused once more.
    pub fn must_poll(&self) -> Option<Duration> {
        let survivor =
            self.seats.iter().any(|seat| seat.record.standing == Standing::Live && !seat.connected);
        match (survivor, self.crammed && self.live().is_some()) {
            (true, _) => Some(SURVIVOR_POLL),
            (false, true) => Some(CRAMMED_POLL),
            (false, false) => None,
        }
    }

    /// What the frame loop sleeps on: the eventfd that [`Owner::doorbell_handle`] rings, and one for each seat, which its
    /// worker rings while the frame loop is armed. They are not read while they are watched: each ring is one edge, so
    /// watch them edge-triggered (epoll's EPOLLET, io_uring's multishot poll).
    pub fn doorbells(&self) -> [BorrowedFd<'_>; 1 + SEATS] {
        let [first, second] = &self.doorbells.seats;
        [self.doorbells.own.fd.as_fd(), first.as_fd(), second.as_fd()]
    }

    /// For the control thread, which rings at any time.
    pub fn doorbell_handle(&self) -> DoorbellHandle {
        self.doorbells.own.clone()
    }

    /// Puts the region into huge pages as far as the kernel has some. Gives the bytes that lie in huge pages now: what
    /// does not fill one stays in small pages. To be asked for before workers attach, since it takes milliseconds.
    ///
    /// # Errors
    /// No part of it could be: the kernel is older than 6.1, has no huge pages left, or the file system forbids it.
    pub fn use_huge_pages(&self) -> io::Result<usize> {
        self.parts.map.collapse()
    }

    /// Looks whether the region is still what it was: nobody cut its file short, or wiped it. `None`: it is. A worker has
    /// the right to write the file, and so the means; with any damage nothing in the region is of use any more, and
    /// [`Owner::close`] makes room for a new one.
    ///
    /// The mapping notices by itself only with [`crate::guard::install`]. One system call, not for each frame.
    pub fn damage(&self) -> Option<Damage> {
        let Parts { map, layout, shared, region, .. } = &self.parts;
        let bytes = shared.metadata().map_or(0, |info| info.len());
        let needed = layout.total() as u64;
        if bytes != needed {
            return Some(Damage::Size { bytes, needed });
        }
        if map.is_lost() {
            return Some(Damage::Lost);
        }
        let header = Header::read(map, bytes);
        (!header.is_ok_and(|header| header.region == *region)).then_some(Damage::Header)
    }

    /// Pages of the region were found missing: what [`Owner::damage`] says is due. A plain load.
    pub fn is_lost(&self) -> bool {
        self.parts.map.is_lost()
    }

    /// Ends in order: tells workers that nobody follows, and removes the region's name. What is mapped stays mapped.
    /// Dropping an owner instead is like a crash: a successor takes over.
    pub fn close(mut self) {
        self.announce_end();
        region::remove(&self.parts);
    }

    /// Tells workers that nobody follows; [`Owner::close`] is due. They end by themselves.
    pub fn announce_end(&mut self) {
        self.parts.map.word32(control::STATE).store(control::STATE_ENDED, Ordering::Release);
        self.wake_worker();
    }

    fn set_gauges(&self) {
        let Tally { unanswered, free, lent_after_answer } = self.ledger.tally();
        self.stats.set(Gauge::Unanswered, unanswered.into());
        self.stats.set(Gauge::FreeSlots, free.into());
        self.stats.set(Gauge::LentSlots, lent_after_answer.into());
    }

    fn generation_word(&self, seat: usize) -> usize {
        block(seat) + seat_block::GENERATION
    }

    fn now() -> Instant {
        clock::now()
    }
}

#[cfg(test)]
mod tests;
