//! The ownership ledger of the observation slots: who may touch which slot, decided from private memory alone.
//!
//! Nothing that a worker can write decides here what is free. Each change is journalled before it takes effect towards
//! a worker, so that a sidecar which takes over knows what the dead one knew.
//!
//! A slot is free when its observation is (answered, or its session over) and (given back by every worker that got
//! it, or that worker's process proved gone). It has a new generation for each observation, so that a late word about
//! an earlier one is told apart.

use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;

use crate::journal::{Journal, Past, SlotRecord};
use crate::layout::{RING_CAPACITY, SEATS};

/// Names an observation slot, `0..Geometry::observation_slots`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SlotIndex(pub(crate) u32);

impl SlotIndex {
    /// Its number.
    pub const fn number(self) -> u32 {
        self.0
    }

    pub(crate) const fn at(self) -> usize {
        self.0 as usize
    }
}

/// An observation whose payload has arrived complete.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observed {
    /// Of its session.
    pub epoch: Epoch,
    /// Counts observations; an action is for the sequence of its observation.
    pub sequence: u64,
    /// Payload bytes, from the end of the headroom on.
    pub length: u32,
    /// When its first byte was received.
    pub first_byte: Instant,
    /// When its last byte was received.
    pub last_byte: Instant,
}

/// Who wants an observation answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Asker {
    /// The gateway.
    #[default]
    Gateway,
    /// The sidecar itself, to warm its worker up: the answer goes no further.
    Sidecar,
}

/// Whether an observation also lies in the device ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Copied {
    /// It does, or will by the time the ring's event is reached.
    Yes,
    /// It lies on the host alone.
    No,
}

/// An observation that waits for its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Held {
    /// Where it lies.
    pub slot: SlotIndex,
    /// Of its session.
    pub epoch: Epoch,
    /// Which one it is.
    pub sequence: u64,
    /// Payload bytes.
    pub length: u32,
    /// Workers that died while this was the observation they worked on.
    pub deaths: u32,
    /// Who wants the answer.
    pub asker: Asker,
}

/// An observation that a sidecar found waiting for its answer when it took the region over.
pub type KeptSlot = Held;

/// A worker gave back something that it does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BadRelease {
    #[error("it gave back slot {slot}, of {slots}")]
    NoSuchSlot { slot: u32, slots: u32 },
    #[error("it gave back generation {generation} of slot {slot}, which it does not have")]
    NotLent { slot: u32, generation: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    record: SlotRecord,
    /// Offered to the socket; its payload is still coming.
    receiving: bool,
    /// What lies in it, or is about to, lies in this owner's device ring, too.
    copied: bool,
}

impl Slot {
    const fn is_free(&self) -> bool {
        !self.record.held && !self.receiving
    }

    const fn waits(&self) -> bool {
        self.record.held && !self.record.answered
    }

    /// No action has come for it yet.
    const fn is_unanswered(&self) -> bool {
        self.waits() && !self.record.taken
    }

    /// Taken only because a worker still has a view of it.
    const fn is_held_after_answer(&self) -> bool {
        self.record.held && self.record.answered
    }

    /// Frees it if nobody needs it any more.
    fn settle(&mut self) {
        if self.record.answered && self.record.lent == [0; SEATS] {
            self.record.held = false;
        }
    }
}

/// What workers did with an observation in another region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Fate {
    /// How many died on it.
    pub(crate) deaths: u16,
    /// One may have seen it.
    pub(crate) seen: bool,
}

/// An observation about to be delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delivery {
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u32,
    pub(crate) observed: Observed,
    /// A worker may have seen it before.
    pub(crate) again: bool,
    /// It lies in this owner's device ring, too.
    pub(crate) copied: bool,
}

/// An action that was given out, and has been copied since.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Taken {
    /// Where its observation lies, and the generation of that.
    pub(crate) slot: SlotIndex,
    pub(crate) generation: u32,
    pub(crate) sequence: u64,
    pub(crate) seat: usize,
    /// Of the action in the seat's ring.
    pub(crate) position: u32,
    /// The slot came back with it.
    pub(crate) returned: bool,
}

/// How many slots there are of what users watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) unanswered: u32,
    pub(crate) free: u32,
    pub(crate) lent_after_answer: u32,
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Ledger {
    slots: Vec<Slot>,
}

impl Ledger {
    pub(crate) fn new(slots: u32) -> Self {
        Self {
            slots: vec![Slot { record: SlotRecord::FREE, receiving: false, copied: false }; slots as usize],
        }
    }

    /// Takes up what a dead sidecar left. `tails` are the producer positions of the rings to the seats: a delivery
    /// that was journalled but never pushed did not happen.
    pub(crate) fn resume(
        slots: u32,
        past: &Past,
        kept: SessionKept,
        tails: [u32; SEATS],
        journal: &mut Journal,
    ) -> Self {
        let mut ledger = Self::new(slots);
        for (index, slot) in ledger.slots.iter_mut().enumerate() {
            slot.record = past.slots[index];
            let record = &mut slot.record;
            if !record.held {
                continue;
            }
            if let Some((seat, position)) = record.delivered {
                let seat = usize::from(seat);
                let pushed = seat < SEATS && tails[seat].wrapping_sub(position).cast_signed() > 0;
                if !pushed {
                    record.delivered = None;
                    if seat < SEATS {
                        record.lent[seat] = record.lent[seat].saturating_sub(1);
                    }
                }
            }
            record.answered |= kept == SessionKept::No || past.started(record.sequence);
            if record.taken && !record.answered {
                // Its action was in the dead sidecar's memory only: it has to be computed once more.
                record.taken = false;
                record.delivered = None;
            }
            slot.settle();
            journal.slot(index, &slot.record);
        }
        ledger
    }

    /// The first that is free, and not each in its turn: in lockstep two slots are in use, whose lines stay in the cache.
    pub(crate) fn claim(&mut self) -> Option<SlotIndex> {
        let found = self.slots.iter().position(Slot::is_free)?;
        self.slots[found].receiving = true;
        // At most MAX_OBSERVATION_SLOTS.
        Some(SlotIndex(found as u32))
    }

    pub(crate) fn unclaim(&mut self, slot: SlotIndex) {
        self.slots[slot.at()].receiving = false;
    }

    /// Whether what is about to be held there lies on the device, too.
    pub(crate) fn set_copied(&mut self, slot: SlotIndex, copied: Copied) {
        self.slots[slot.at()].copied = copied == Copied::Yes;
    }

    /// receiving -> held, in private memory: [`Ledger::journal`] or [`Ledger::lend`] follows at once.
    pub(crate) fn hold(
        &mut self,
        slot: SlotIndex,
        observed: &Observed,
        asker: Asker,
        fate: Fate,
        journal: &mut Journal,
    ) {
        let entry = &mut self.slots[slot.at()];
        debug_assert!(entry.receiving, "slot {} was not claimed", slot.0);
        entry.receiving = false;
        entry.record = SlotRecord {
            held: true,
            asker,
            generation: entry.record.generation.wrapping_add(1),
            epoch: observed.epoch,
            sequence: observed.sequence,
            length: observed.length,
            first_byte: observed.first_byte,
            last_byte: observed.last_byte,
            deaths: fate.deaths,
            seen: fate.seen,
            applied: entry.record.applied,
            ..SlotRecord::FREE
        };
        journal.next_sequence(observed.sequence.saturating_add(1));
    }

    /// Journals what a slot holds.
    pub(crate) fn journal(&self, slot: SlotIndex, journal: &mut Journal) {
        journal.slot(slot.at(), &self.slots[slot.at()].record);
    }

    /// The oldest observation that the seat's worker has to get and did not get yet.
    pub(crate) fn undelivered(&self, seat: usize) -> Option<Delivery> {
        let missing = |slot: &&(usize, &Slot)| {
            slot.1.waits()
                && !slot.1.record.taken
                && slot.1.record.delivered.is_none_or(|(to, _)| usize::from(to) != seat)
        };
        let (at, _) = self
            .slots
            .iter()
            .enumerate()
            .filter(|slot| missing(&slot))
            .min_by_key(|slot| slot.1.record.sequence)?;
        // At most MAX_OBSERVATION_SLOTS.
        Some(self.delivery(SlotIndex(at as u32)))
    }

    /// What is delivered of a held slot.
    pub(crate) fn delivery(&self, slot: SlotIndex) -> Delivery {
        let record = &self.slots[slot.at()].record;
        Delivery {
            slot,
            generation: record.generation,
            observed: Observed {
                epoch: record.epoch,
                sequence: record.sequence,
                length: record.length,
                first_byte: record.first_byte,
                last_byte: record.last_byte,
            },
            again: record.seen,
            copied: self.slots[slot.at()].copied,
        }
    }

    /// The observation is about to be pushed at `position` of the ring to `seat`.
    pub(crate) fn lend(&mut self, slot: SlotIndex, seat: usize, position: u32, journal: &mut Journal) {
        let record = &mut self.slots[slot.at()].record;
        record.lent[seat] = record.lent[seat].saturating_add(1);
        // There are two seats.
        record.delivered = Some((seat as u8, position));
        record.seen = true;
        journal.slot(slot.at(), record);
    }

    /// A record at `position` of the ring from `seat` gives a slot back.
    pub(crate) fn release(
        &mut self,
        slot: u32,
        generation: u32,
        seat: usize,
        position: u32,
        journal: &mut Journal,
    ) -> Result<(), BadRelease> {
        self.may_release(slot, generation, seat)?;
        let entry = &mut self.slots[slot as usize];
        entry.record.lent[seat] -= 1;
        entry.record.applied[seat] = Some(position);
        entry.settle();
        journal.slot(slot as usize, &entry.record);
        Ok(())
    }

    /// Whether this seat's worker has this slot to give back.
    pub(crate) fn may_release(&self, slot: u32, generation: u32, seat: usize) -> Result<(), BadRelease> {
        // At most MAX_OBSERVATION_SLOTS.
        let slots = self.slots.len() as u32;
        let Some(entry) = self.slots.get(slot as usize) else {
            return Err(BadRelease::NoSuchSlot { slot, slots });
        };
        if !entry.record.held || entry.record.generation != generation || entry.record.lent[seat] == 0 {
            return Err(BadRelease::NotLent { slot, generation });
        }
        Ok(())
    }

    /// Slot and generation of the observation that an action answers, if it is the first action and the session is still
    /// open.
    pub(crate) fn accepts(&self, epoch: Epoch, sequence: u64, seat: usize) -> Option<(SlotIndex, u32)> {
        let at = self.waiting(sequence)?;
        let record = &self.slots[at].record;
        let accepted = record.epoch == epoch
            && !record.taken
            && record.seen
            && (record.delivered_to(seat) || record.lent[seat] > 0);
        // At most MAX_OBSERVATION_SLOTS.
        accepted.then_some((SlotIndex(at as u32), record.generation))
    }

    /// An action that [`Ledger::accepts`] allowed was copied out. If the slot came back with it, one record says both, so
    /// that no crash comes in between. Its session may have ended since: then nobody waits for the action any more, and
    /// the slot has come back all the same.
    pub(crate) fn take(&mut self, action: &Taken, journal: &mut Journal) {
        let Taken { slot: at, generation, sequence, seat, position, returned } = *action;
        let slot = &mut self.slots[at.at()];
        let waits = slot.waits() && slot.record.sequence == sequence;
        let returned = returned && slot.record.held && slot.record.generation == generation;
        if !waits && !returned {
            return;
        }
        slot.record.taken |= waits;
        slot.record.applied[seat] = Some(position);
        if returned {
            slot.record.lent[seat] = slot.record.lent[seat].saturating_sub(1);
            slot.settle();
        }
        journal.slot(at.at(), &slot.record);
    }

    /// An action for it was sent, or it needs none.
    pub(crate) fn answered(&mut self, sequence: u64, journal: &mut Journal) {
        if let Some(at) = self.waiting(sequence) {
            self.answer(at, journal);
        }
    }

    /// The session is over: none of its observations needs an answer.
    pub(crate) fn close_epoch(&mut self, epoch: Epoch, journal: &mut Journal) {
        for at in 0..self.slots.len() {
            if self.slots[at].waits() && self.slots[at].record.epoch == epoch {
                self.answer(at, journal);
            }
        }
    }

    /// The worker in this seat ended; `head` is how far it had read its ring, which it wrote itself and which only
    /// decides whom to blame. Whatever it had taken first and not answered gets a death.
    pub(crate) fn blame(&mut self, seat: usize, head: u32, journal: &mut Journal) {
        let worked_on = |slot: &Slot| {
            slot.waits()
                && !slot.record.taken
                && slot.record.delivered.is_some_and(|(to, position)| {
                    usize::from(to) == seat && head.wrapping_sub(position).cast_signed() > 0
                })
        };
        let oldest = (0..self.slots.len())
            .filter(|at| worked_on(&self.slots[*at]))
            .min_by_key(|at| self.slots[*at].record.sequence);
        if let Some(at) = oldest {
            let record = &mut self.slots[at].record;
            record.deaths = record.deaths.saturating_add(1);
            journal.slot(at, record);
        }
    }

    /// The worker in this seat is proved gone: it has nothing any more.
    pub(crate) fn forget_seat(&mut self, seat: usize, journal: &mut Journal) {
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let had = slot.record.delivered_to(seat);
            if slot.record.lent[seat] == 0 && slot.record.applied[seat].is_none() && !had {
                continue;
            }
            slot.record.lent[seat] = 0;
            slot.record.applied[seat] = None;
            if had {
                slot.record.delivered = None;
            }
            slot.settle();
            journal.slot(at, &slot.record);
        }
    }

    /// After a take-over, with everything read that the seat's worker had said: what it gave back without an answer goes
    /// to it once more. Whether it had reported a failure only the dead sidecar knew, and what that did about it is lost.
    /// `true`: there is something.
    pub(crate) fn ask_again(&mut self, seat: usize, journal: &mut Journal) -> bool {
        let mut any = false;
        for (at, slot) in self.slots.iter_mut().enumerate() {
            let record = &slot.record;
            if slot.waits() && !record.taken && record.delivered_to(seat) && record.lent[seat] == 0 {
                slot.record.delivered = None;
                journal.slot(at, &slot.record);
                any = true;
            }
        }
        any
    }

    /// The observations that this seat's worker got last and did not answer, oldest first.
    pub(crate) fn in_hands(&self, seat: usize) -> Vec<Held> {
        let mut had: Vec<_> = self
            .slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.waits() && !slot.record.taken && slot.record.delivered_to(seat))
            .map(|(at, slot)| held(at, &slot.record))
            .collect();
        had.sort_unstable_by_key(|held| held.sequence);
        had
    }

    pub(crate) fn oldest_unanswered(&self) -> Option<Held> {
        self.unanswered_slots().min_by_key(|held| held.sequence)
    }

    pub(crate) fn unanswered(&self) -> u32 {
        self.tally().unanswered
    }

    /// Oldest first.
    pub(crate) fn kept(&self) -> Vec<KeptSlot> {
        let mut kept: Vec<_> = self.unanswered_slots().collect();
        kept.sort_unstable_by_key(|held| held.sequence);
        kept
    }

    pub(crate) fn free_slots(&self) -> u32 {
        self.tally().free
    }

    /// All of them, counted in one go: for each frame.
    pub(crate) fn tally(&self) -> Tally {
        self.slots.iter().fold(Tally::default(), |tally, slot| Tally {
            unanswered: tally.unanswered + u32::from(slot.is_unanswered()),
            free: tally.free + u32::from(slot.is_free()),
            lent_after_answer: tally.lent_after_answer + u32::from(slot.is_held_after_answer()),
        })
    }

    /// Slots that are taken only because a worker still has a view of them.
    pub(crate) fn lent_after_answer(&self) -> u32 {
        self.tally().lent_after_answer
    }

    /// Those of them that the worker of this seat has.
    pub(crate) fn lent_after_answer_to(&self, seat: usize) -> u32 {
        let lent = |slot: &&Slot| slot.is_held_after_answer() && slot.record.lent[seat] > 0;
        // At most MAX_OBSERVATION_SLOTS.
        self.slots.iter().filter(lent).count() as u32
    }

    /// How far the records of this seat's worker were read for certain, at least: `head`, or a position behind it
    /// whose effect was journalled before a crash kept `head` from being moved. A slot that was not used for long has
    /// a position of long ago, which may look like one to come: only what a ring can hold is believed.
    pub(crate) fn applied_up_to(&self, seat: usize, head: u32) -> u32 {
        let ahead = |position: u32| position.wrapping_add(1).wrapping_sub(head);
        let applied = self.slots.iter().filter_map(|slot| slot.record.applied[seat]).map(ahead);
        head.wrapping_add(applied.filter(|ahead| *ahead <= RING_CAPACITY).max().unwrap_or(0))
    }

    fn answer(&mut self, at: usize, journal: &mut Journal) {
        let slot = &mut self.slots[at];
        slot.record.answered = true;
        slot.settle();
        journal.slot(at, &slot.record);
    }

    fn waiting(&self, sequence: u64) -> Option<usize> {
        self.slots.iter().position(|slot| slot.waits() && slot.record.sequence == sequence)
    }

    fn unanswered_slots(&self) -> impl Iterator<Item = Held> {
        self.slots
            .iter()
            .enumerate()
            .filter(|(_, slot)| slot.is_unanswered())
            .map(|(at, slot)| held(at, &slot.record))
    }
}

fn held(at: usize, record: &SlotRecord) -> Held {
    Held {
        // At most MAX_OBSERVATION_SLOTS.
        slot: SlotIndex(at as u32),
        epoch: record.epoch,
        sequence: record.sequence,
        length: record.length,
        deaths: u32::from(record.deaths),
        asker: record.asker,
    }
}

/// Whether a take-over goes on with the session that the dead sidecar had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SessionKept {
    /// Its observations still want answers.
    Yes,
    /// They count as answered.
    No,
}
