//! The ring from a worker to its sidecar, and the action slots that go with it.
//!
//! Behind a lock in private memory, since an [`Observation`] may be dropped by any thread. The lock is never held
//! while something is waited for.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use sidecar_core::record::{self, MAX_RECORD, ToSidecar};

use super::attachment::Attachment;
use super::observation::Observation;
use crate::cells::{MappedCells, RECORD};
use crate::clock::Stamps;
use crate::crash::{Point, point};
use crate::descriptor::{Descriptor, Kind};
use crate::eventcount::EventCount;
use crate::layout::{Layout, block, seat_block, worker_page};
use crate::map::Map;
use crate::owner::doorbell;
use crate::ring::Producer;
use crate::sync::Ordering;

/// See the module's text.
#[derive(Debug)]
pub(super) struct Uplink {
    map: Arc<Map>,
    layout: Layout,
    seat: usize,
    origin: (u64, u32),
    up: Producer<MappedCells>,
    doorbell: Option<OwnedFd>,
    /// Action slots that nobody uses.
    free: Vec<u32>,
    /// Action slots that the sidecar has, with the ring positions of their actions, in order.
    sent: VecDeque<(u32, u32)>,
    /// Slots given back when the ring had no room.
    releases: Vec<(u32, u32)>,
    stamps: Stamps,
    /// The process that has it: a forked child has the value, and not the mapping.
    process: u32,
    /// It says when it leaves.
    says_goodbye: bool,
}

/// Whoever drops it last, of the worker, its observations and its reservations, says that this process has done with
/// its seat: nothing that any of them could write comes after.
impl Drop for Uplink {
    fn drop(&mut self) {
        #[cfg(feature = "simulation")]
        if crate::simulation::is_dying() {
            return;
        }
        if !self.says_goodbye || std::process::id() != self.process || self.is_superseded() {
            return;
        }
        let left = self.layout.seat_area(self.seat) + worker_page::LEFT;
        // Partner: the owner's look when the connection has ended.
        self.map.word32(left).store(1, Ordering::Release);
        self.post();
    }
}

/// What came of asking for an action slot.
pub(super) enum Reserved {
    Slot(Reservation),
    /// The sidecar has them all; it will give some back.
    Later,
    /// The caller has them all.
    Never {
        slots: u32,
    },
}

/// An action slot to be written by the caller. Dropping it gives it back unused.
#[derive(Debug)]
pub struct Reservation {
    #[expect(dead_code, reason = "keeps `start` mapped")]
    map: Arc<Map>,
    uplink: Arc<Mutex<Uplink>>,
    origin: (u64, u32),
    slot: u32,
    start: *mut u8,
    length: usize,
    published: bool,
}

// SAFETY: the pointer goes into the mapping that `map` keeps alive, and the slot behind it is this value's alone.
unsafe impl Send for Reservation {}

impl Reservation {
    /// The bytes to write the action into. They hold whatever was there before.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the bytes lie in the mapping (checked by `range` when this was made), which `map` keeps alive. The
        // slot was taken off the free list for this value alone, and the sidecar reads it only after it was published,
        // which consumes the value.
        unsafe { core::slice::from_raw_parts_mut(self.start, self.length) }
    }

    /// How many bytes were reserved.
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Whether no byte was reserved.
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub(super) fn is_of(&self, attachment: &Attachment) -> bool {
        self.origin == (attachment.region_id(), attachment.generation())
    }

    pub(super) const fn origin(&self) -> (u64, u32) {
        self.origin
    }

    pub(super) fn is_from(&self, uplink: &Arc<Mutex<Uplink>>) -> bool {
        Arc::ptr_eq(&self.uplink, uplink)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        #[cfg(feature = "simulation")]
        if crate::simulation::is_dying() {
            return;
        }
        if !self.published {
            let mut uplink = self.uplink.lock().unwrap_or_else(PoisonError::into_inner);
            if uplink.origin == self.origin {
                uplink.free.push(self.slot);
            }
        }
    }
}

/// An answer on its way into the ring.
#[derive(Debug)]
pub(super) struct Action {
    observation: Observation,
    reservation: Reservation,
    length: usize,
}

impl Action {
    pub(super) const fn new(observation: Observation, reservation: Reservation, length: usize) -> Self {
        Self { observation, reservation, length }
    }

    pub(super) fn into_parts(self) -> (Observation, Reservation) {
        (self.observation, self.reservation)
    }
}

impl Uplink {
    pub(super) fn new(attachment: &Attachment, stamps: Stamps) -> Self {
        let (map, layout, seat) = (attachment.map_handle(), attachment.layout(), attachment.seat());
        let cells = MappedCells::up(map, &layout, seat);
        Self {
            map: Arc::clone(map),
            layout,
            seat,
            origin: (attachment.region_id(), attachment.generation()),
            up: Producer::new(cells),
            doorbell: attachment.doorbell().ok(),
            free: (0..layout.geometry().action_slots).rev().collect(),
            sent: VecDeque::with_capacity(layout.geometry().action_slots as usize),
            releases: Vec::with_capacity(layout.geometry().observation_slots as usize),
            stamps,
            process: std::process::id(),
            says_goodbye: true,
        }
    }

    /// Makes this the ring of another seat. Observations and reservations of the old one may still be about, so that
    /// nothing is said there.
    pub(super) fn move_to(&mut self, attachment: &Attachment) {
        self.says_goodbye = false;
        *self = Self::new(attachment, self.stamps);
    }

    /// Whether its seat is another worker's by now.
    fn is_superseded(&self) -> bool {
        let generation = block(self.seat) + seat_block::GENERATION;
        self.map.word32(generation).load(Ordering::Acquire) != self.origin.1
    }

    /// A new sidecar has another doorbell.
    pub(super) fn doorbell(&mut self, doorbell: OwnedFd) {
        self.doorbell = Some(doorbell);
    }

    pub(super) fn reserve(this: &Arc<Mutex<Self>>, length: usize) -> Reserved {
        let mut uplink = this.lock().unwrap_or_else(PoisonError::into_inner);
        let free = uplink.free_slot();
        let Some(slot) = free else {
            if uplink.sent.is_empty() {
                return Reserved::Never { slots: uplink.layout.geometry().action_slots };
            }
            return Reserved::Later;
        };
        let start = uplink.map.range(uplink.layout.action(uplink.seat, slot as usize), length);
        Reserved::Slot(Reservation {
            map: Arc::clone(&uplink.map),
            uplink: Arc::clone(this),
            origin: uplink.origin,
            slot,
            start,
            length,
            published: false,
        })
    }

    /// Publishes the action and with it gives the observation's slot back. `Err`: no room yet.
    #[expect(
        clippy::result_large_err,
        reason = "what found no room is given back whole, without an allocation"
    )]
    pub(super) fn publish(&mut self, mut action: Action) -> Result<(), Action> {
        self.flush();
        if !self.up.has_room(1) || !self.releases.is_empty() {
            return Err(action);
        }
        let returned = Some(action.observation.lent());
        self.push_action(&action.observation, &mut action.reservation, action.length, returned);
        action.observation.forget();
        self.post();
        Ok(())
    }

    /// Publishes the action alone: somebody still reads the observation's slot. `Err`: no room yet.
    pub(super) fn publish_alone(
        &mut self,
        observation: &Observation,
        mut reservation: Reservation,
        length: usize,
    ) -> Result<(), Reservation> {
        self.flush();
        if !self.up.has_room(1) || !self.releases.is_empty() {
            return Err(reservation);
        }
        self.push_action(observation, &mut reservation, length, None);
        self.post();
        Ok(())
    }

    /// Seat and region that it belongs to.
    pub(super) const fn origin(&self) -> (u64, u32) {
        self.origin
    }

    /// Largest action in bytes.
    pub(super) const fn action_bytes(&self) -> usize {
        self.layout.geometry().action_bytes as usize
    }

    /// Gives a slot back now, or with the next operation if the ring is full.
    pub(super) fn release(&mut self, origin: (u64, u32), slot: u32, generation: u32) {
        if origin != self.origin {
            return;
        }
        self.releases.push((slot, generation));
        self.flush();
        self.post();
    }

    /// `false`: no room yet.
    pub(super) fn say(&mut self, record: &ToSidecar) -> bool {
        self.flush();
        let said = self.releases.is_empty() && self.push_record(record);
        if said {
            self.post();
        }
        said
    }

    /// Whether an operation that found no room would find some now.
    pub(super) fn has_room(&mut self) -> bool {
        self.take_back();
        self.flush();
        self.up.has_room(1) && (!self.free.is_empty() || self.sent.is_empty())
    }

    /// Its process is no more: whatever is dropped from here on says nothing.
    #[cfg(feature = "simulation")]
    pub(super) fn fall_silent(&mut self) {
        self.origin = (0, 0);
        self.releases.clear();
        self.says_goodbye = false;
    }

    fn flush(&mut self) {
        while let Some((slot, generation)) = self.releases.last().copied() {
            if !self.push_release(slot, generation) {
                return;
            }
            self.releases.pop();
        }
    }

    /// Action slots whose actions the sidecar has copied.
    fn take_back(&mut self) {
        let head = self.map.word32(block(self.seat) + seat_block::UP_HEAD).load(Ordering::Acquire);
        while let Some((position, slot)) = self.sent.front().copied() {
            if head.wrapping_sub(position).cast_signed() <= 0 {
                return;
            }
            self.sent.pop_front();
            self.free.push(slot);
        }
    }

    /// An action slot that nobody uses. Looks how far the sidecar is only when none is left: a look at a word that it
    /// has just written costs as much as a message.
    fn free_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            self.take_back();
        }
        self.free.pop()
    }

    /// There has to be room. The caller posts. `returned`: slot and generation that go back with it.
    fn push_action(
        &mut self,
        observation: &Observation,
        reservation: &mut Reservation,
        length: usize,
        returned: Option<(u32, u32)>,
    ) {
        debug_assert_eq!(observation.origin(), self.origin);
        let action = Descriptor {
            kind: Kind::Action,
            epoch: observation.epoch().0,
            sequence: observation.sequence(),
            slot: reservation.slot,
            generation: self.origin.1,
            offset: 0,
            // At most the action slot, which is a u32.
            length: length as u32,
            stamps: [observation.taken().as_nanos(), self.stamps.now().as_nanos(), 0],
            ..RECORD
        };
        let descriptor = returned.map_or(action, |(slot, generation)| action.returning(slot, generation));
        let position = self.up.position();
        point(Point::UpBefore);
        let pushed = self.up.try_push(&descriptor, &[]);
        point(Point::UpAfter);
        debug_assert!(pushed.is_ok(), "a cell was free, and nobody else pushes");
        reservation.published = true;
        self.sent.push_back((position, reservation.slot));
    }

    fn push_release(&mut self, slot: u32, generation: u32) -> bool {
        self.push_record(&ToSidecar::Released { slot, generation })
    }

    fn push_record(&mut self, record: &ToSidecar) -> bool {
        let mut bytes = [0; MAX_RECORD];
        // MAX_RECORD is enough for every record, by its definition.
        let Ok(length) = record::encode(record, &mut bytes) else { return false };
        point(Point::UpBefore);
        let pushed = self.up.try_push(&RECORD, &bytes[..length]).is_ok();
        point(Point::UpAfter);
        pushed
    }

    fn post(&self) {
        point(Point::PostBefore);
        let page = self.layout.seat_area(self.seat);
        let events = EventCount::new(
            self.map.word32(page + worker_page::UP_SEQUENCE),
            self.map.word32(block(self.seat) + seat_block::UP_WAITERS),
        );
        if events.post()
            && let Some(doorbell) = &self.doorbell
        {
            doorbell::ring(doorbell.as_fd());
        }
    }
}
