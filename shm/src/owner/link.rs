//! The two rings of a seat and their wake-ups, from the sidecar's end.
//!
//! The ring from the worker is read with a private head: the worker sees its cells as taken only at
//! [`Link::commit`], after the effect of a record was journalled or an action was copied out. So a crash in between
//! loses nothing: the successor reads it again, and what was journalled already is skipped by position.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::doorbell;
use crate::cells::MappedCells;
use crate::crash::{Point, point};
use crate::descriptor::Descriptor;
use crate::eventcount::{EventCount, Wish};
use crate::futex;
use crate::layout::{Layout, RING_CAPACITY, block, seat_block, worker_page};
use crate::map::Map;
use crate::ring::{self, Consumer, Full, Poison, Producer, published_up_to};
use crate::slots::Ledger;
use crate::stats::{Counter, Stats};
use crate::sync::{AtomicU32, Ordering};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Link {
    map: Arc<Map>,
    block: usize,
    page: usize,
    down: Producer<MappedCells>,
    up: Consumer<MappedCells>,
    /// Where the next record is read.
    head: Arc<AtomicU32>,
}

impl Link {
    /// Goes on where the words of the seat say; a seat that was reset starts at 0.
    pub(super) fn open(map: &Arc<Map>, layout: &Layout, seat: usize, ledger: &Ledger) -> Self {
        let (block, page) = (block(seat), layout.seat_area(seat));
        let down = MappedCells::down(map, layout, seat);
        let shared = map.word32(block + seat_block::UP_HEAD).load(Ordering::Relaxed);
        let head = ledger.applied_up_to(seat, shared);
        map.word32(block + seat_block::UP_HEAD).store(head, Ordering::Release);
        let head = Arc::new(AtomicU32::new(head));
        let up = MappedCells::up_ahead(map, layout, seat, &head);
        Self { map: Arc::clone(map), block, page, down: Producer::new(down), up: Consumer::new(up), head }
    }

    /// Takes the marks off both rings of a seat that nobody has; its positions are wiped as well.
    pub(super) fn wipe(&self) {
        ring::wipe(self.down.cells());
        ring::wipe(self.up.cells());
    }

    pub(super) fn push(&mut self, descriptor: &Descriptor, record: &[u8]) -> Result<(), Full> {
        point(Point::DownBefore);
        let pushed = self.down.try_push(descriptor, record);
        point(Point::DownAfter);
        pushed
    }

    /// Whether one more can be pushed.
    pub(super) fn has_room(&mut self) -> bool {
        self.down.has_room(1)
    }

    /// What nonsense the worker wrote about how far it has read, if it did.
    pub(super) const fn down_poison(&self) -> Option<Poison> {
        self.down.poison()
    }

    /// Position of the next push.
    pub(super) const fn down_tail(&self) -> u32 {
        self.down.position()
    }

    /// How far the worker says that it has read.
    pub(super) fn down_head(&self) -> u32 {
        self.map.word32(self.page + worker_page::DOWN_HEAD).load(Ordering::Acquire)
    }

    pub(super) fn pop(&mut self, record: &mut [u8; 384]) -> Result<Option<(Descriptor, usize)>, Poison> {
        self.up.try_pop(record)
    }

    /// Position of what was popped last.
    pub(super) fn position(&self) -> u32 {
        self.head.load(Ordering::Relaxed).wrapping_sub(1)
    }

    /// Where the worker says that its next record goes, at most a ring ahead: one that lies would be waited for.
    pub(super) fn up_tail(&self) -> u32 {
        let head = self.head.load(Ordering::Relaxed);
        let ahead = published_up_to(self.up.cells()).wrapping_sub(head);
        head.wrapping_add(ahead.min(RING_CAPACITY))
    }

    /// The worker knows that it has this seat.
    pub(super) fn is_taken_up(&self) -> bool {
        self.map.word32(self.page + worker_page::TAKEN_UP).load(Ordering::Acquire) != 0
    }

    /// The worker says that it is done with this seat and every slot. Who believes it before the end of its connection
    /// gives away what the worker may still use, and nothing else: it could write there anyway. Partner: the release
    /// store when a worker's uplink is dropped, after its last message.
    pub(super) fn has_left(&self) -> bool {
        self.map.word32(self.page + worker_page::LEFT).load(Ordering::Acquire) != 0
    }

    pub(super) fn has_something(&self) -> bool {
        self.up.has_something()
    }

    /// Whether everything before a position was read.
    pub(super) fn has_read_up_to(&self, position: u32) -> bool {
        position.wrapping_sub(self.head.load(Ordering::Relaxed)).cast_signed() <= 0
    }

    /// Everything popped so far is dealt with: its cells, and the slots that its actions lay in, are the worker's.
    pub(super) fn commit(&mut self, wake: Option<&OwnedFd>, stats: &Stats) {
        let head = self.head.load(Ordering::Relaxed);
        point(Point::CommitBefore);
        self.map.word32(self.block + seat_block::UP_HEAD).store(head, Ordering::Release);
        point(Point::CommitAfter);
        // Partner: the worker's wait for room.
        if Wish::new(self.map.word32(self.page + worker_page::WANTS_ROOM)).is_made() {
            self.post(wake, stats);
        }
    }

    /// Tells the worker that there is something, with a system call only if it sleeps.
    pub(super) fn post(&mut self, wake: Option<&OwnedFd>, stats: &Stats) {
        if self.down_events().post() {
            stats.count(Counter::Wakes);
            self.ring(wake);
        }
    }

    /// Wakes the worker whether it says that it sleeps or not.
    pub(super) fn wake(&mut self, wake: Option<&OwnedFd>, stats: &Stats) {
        let _ = self.down_events().post();
        stats.count(Counter::Wakes);
        self.ring(wake);
    }

    pub(super) fn arm(&self) {
        self.up_events().announce();
    }

    pub(super) fn disarm(&self) {
        self.up_events().cancel();
    }

    fn ring(&self, wake: Option<&OwnedFd>) {
        match wake {
            Some(wake)
                if self.map.word32(self.page + worker_page::BY_DESCRIPTOR).load(Ordering::Relaxed) != 0 =>
            {
                doorbell::call(wake.as_fd());
            }
            _ => futex::wake(self.map.word32(self.block + seat_block::DOWN_SEQUENCE)),
        }
    }

    fn down_events(&self) -> EventCount<'_> {
        EventCount::new(
            self.map.word32(self.block + seat_block::DOWN_SEQUENCE),
            self.map.word32(self.page + worker_page::DOWN_WAITERS),
        )
    }

    fn up_events(&self) -> EventCount<'_> {
        EventCount::new(
            self.map.word32(self.page + worker_page::UP_SEQUENCE),
            self.map.word32(self.block + seat_block::UP_WAITERS),
        )
    }
}
