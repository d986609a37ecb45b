//! What goes to the worker: observations, oldest first, and records.

use sidecar_core::agent::HEADROOM;
use sidecar_core::record::{self, MAX_RECORD, ToWorker};

use super::Owner;
use super::seats::Seat;
use crate::cells::RECORD;
use crate::descriptor::{self, Descriptor, Kind};
use crate::slots::{Delivery, SlotIndex};
use crate::stats::{Counter, Gauge};

/// Why a record did not reach a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NotSent {
    /// None is attached.
    #[error("no worker is attached")]
    NoWorker,
    /// It does not read: try again when it has.
    #[error("the worker's ring is full")]
    Full,
}

impl Owner {
    /// Opens deliveries to the attached worker, if they were not, and hands it everything that waits for an action and
    /// that it does not have: oldest first, what another worker may have seen flagged as redelivered. What finds no
    /// room in the ring follows by itself. Returns how many were delivered now.
    pub fn deliver_pending(&mut self) -> u32 {
        if let Some(live) = self.live()
            && !self.seats[live].record.open
        {
            self.seats[live].record.open = true;
            let record = self.seats[live].record;
            self.journal.seat(live, &record);
            self.behind = true;
        }
        // Who calls this has said all that has to come before.
        self.crammed = false;
        self.deliver()
    }

    /// Closes deliveries to the attached worker until [`Owner::deliver_pending`]: a record that has to come before
    /// the next observation found no room.
    pub fn hold_deliveries(&mut self) {
        if let Some(live) = self.live()
            && self.seats[live].record.open
        {
            self.seats[live].record.open = false;
            let record = self.seats[live].record;
            self.journal.seat(live, &record);
        }
    }

    /// Says something to the attached worker.
    ///
    /// # Errors
    /// See [`NotSent`].
    pub fn send(&mut self, record: &ToWorker) -> Result<(), NotSent> {
        let live = self.live().ok_or(NotSent::NoWorker)?;
        let mut bytes = [0; MAX_RECORD];
        // MAX_RECORD is enough for every record, by its definition; no room is the only thing left that can be said.
        let length = record::encode(record, &mut bytes).map_err(|_| NotSent::Full)?;
        let seat = &mut self.seats[live];
        if seat.link.push(&RECORD, &bytes[..length]).is_err() {
            self.crammed = true;
            return Err(NotSent::Full);
        }
        seat.link.post(seat.wake.as_ref(), &self.stats);
        Ok(())
    }

    /// Wakes the worker if it sleeps. Publishing and sending do it themselves.
    pub fn wake_worker(&mut self) {
        for seat in self.seats.iter_mut().filter(|seat| seat.is_read()) {
            seat.link.post(seat.wake.as_ref(), &self.stats);
        }
    }

    /// Delivers what can be delivered, and remembers whether something is left.
    pub(super) fn deliver(&mut self) -> u32 {
        if !self.behind {
            return 0;
        }
        let Some(live) = self.taker() else { return 0 };
        self.behind = false;
        let mut delivered = 0;
        while let Some(delivery) = self.ledger.undelivered(live) {
            if !self.seats[live].link.has_room() {
                (self.behind, self.crammed) = (true, true);
                break;
            }
            self.hand_over(live, &delivery);
            delivered += 1;
        }
        if delivered > 0 {
            let seat = &mut self.seats[live];
            seat.link.post(seat.wake.as_ref(), &self.stats);
            self.stats.set(Gauge::Unanswered, self.ledger.unanswered().into());
        }
        delivered
    }

    /// The seat whose worker takes deliveries now.
    fn taker(&self) -> Option<usize> {
        // A predecessor's finished actions come first: they may answer what would be delivered again.
        let unread = |seat: &Seat| seat.drain_to.is_some_and(|to| !seat.link.has_read_up_to(to));
        self.live().filter(|live| self.seats[*live].record.open && !self.seats.iter().any(unread))
    }

    /// Delivers an observation that was just held and not journalled yet, if nothing stands before it. `false`: something
    /// does, and nothing was done.
    pub(super) fn deliver_straight(&mut self, slot: SlotIndex) -> bool {
        let Some(live) = self.taker().filter(|_| !self.behind) else { return false };
        if !self.seats[live].link.has_room() {
            return false;
        }
        let delivery = self.ledger.delivery(slot);
        self.hand_over(live, &delivery);
        let seat = &mut self.seats[live];
        seat.link.post(seat.wake.as_ref(), &self.stats);
        true
    }

    fn hand_over(&mut self, live: usize, delivery: &Delivery) {
        let Delivery { slot, generation, observed, again, copied } = *delivery;
        // A worker that had it may have written there, and may go on doing so until its process is gone.
        let device_ring = if copied && !again { self.device_ring_number() } else { 0 };
        let link = &mut self.seats[live].link;
        // Journalled before the push, with the position: a crash in between is seen from the ring's tail.
        self.ledger.lend(slot, live, link.down_tail(), &mut self.journal);
        let mut flags = 0;
        if again {
            flags |= descriptor::REDELIVERED;
            self.stats.count(Counter::Redelivered);
        }
        if observed.length == 0 {
            flags |= descriptor::EMPTY;
        }
        let descriptor = Descriptor {
            kind: Kind::Observation,
            flags,
            epoch: observed.epoch.0,
            sequence: observed.sequence,
            slot: slot.number(),
            generation,
            offset: HEADROOM,
            length: observed.length,
            stamps: [
                observed.first_byte.as_nanos(),
                observed.last_byte.as_nanos(),
                self.stamps.now().as_nanos(),
            ],
        };
        // Beside the descriptor, since most have none.
        let number = device_ring.to_ne_bytes();
        let pushed = link.push(&descriptor, if device_ring == 0 { &[] } else { &number });
        debug_assert!(pushed.is_ok(), "room was there, and nobody else pushes");
    }
}
