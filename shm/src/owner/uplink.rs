//! What comes from workers, and what is checked before any of it is used.
//!
//! A descriptor was loaded word by word into private memory ([`crate::ring`] checks positions and kinds). Here:
//! indices and lengths against the geometry, generations against those issued, records against their wire form,
//! releases against the ledger. Nonsense poisons that worker's seat; nothing more is read from it. An action that fits
//! no waiting observation is no nonsense, since sessions end at any time: it is counted and dropped.

use sidecar_core::record::{self, ToSidecar};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;

use super::Owner;
use crate::descriptor::{Descriptor, Kind};
use crate::journal::Standing;
use crate::layout::{RING_CAPACITY, SEATS};
use crate::slots::Taken;
use crate::stats::Counter;

/// So many messages of one seat are dealt with in one call: all that can lie in its ring at once. A worker that writes
/// on meanwhile can't keep the caller here.
const PATIENCE: u32 = RING_CAPACITY;

/// Something that a worker said.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nothing is allocated in the frame loop")]
pub enum FromWorker {
    /// A record. Releases are handled before they get here.
    Record {
        /// Of which seat ([`Owner::seat`]).
        seat: u8,
        /// What it says.
        record: ToSidecar,
    },
    /// An action for an observation that waits for one. [`Owner::finish_action`] is due once it was copied.
    Action {
        /// Of which seat.
        seat: u8,
        /// Of the observation.
        epoch: Epoch,
        /// Of the observation.
        sequence: u64,
        /// Start of its payload. Valid until [`Owner::finish_action`]; the worker may be writing there all the same:
        /// copy it, make no reference of it.
        base: *const u8,
        /// Payload bytes.
        length: u32,
        /// When the worker took the observation, by its own word.
        taken: Instant,
        /// When it published the action, by its own word.
        published: Instant,
    },
}

/// A worker was detached because of what it wrote.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the worker with pid {pid} was detached: {why}; it has to be restarted")]
pub struct SeatPoisoned {
    /// Its seat.
    pub seat: u8,
    /// Generation that it was granted with.
    pub generation: u32,
    /// Its pid, for messages; 0 across pid namespaces.
    pub pid: u32,
    /// What was wrong.
    pub why: String,
}

/// What became of a descriptor.
#[expect(clippy::large_enum_variant, reason = "nothing is allocated in the frame loop")]
enum Handled {
    /// Nothing for the caller.
    Done,
    /// The caller gets it.
    Out(FromWorker),
    Nonsense(String),
}

impl Owner {
    /// The next thing that a worker said; a dying worker's last words come before the live one's. `None`: nothing, or
    /// an action waits for [`Owner::finish_action`].
    ///
    /// # Errors
    /// A worker wrote nonsense and has lost its seat. Go on polling: the other one may have something.
    pub fn poll_worker(&mut self) -> Result<Option<FromWorker>, SeatPoisoned> {
        if self.pending.is_some() {
            return Ok(None);
        }
        let mut live = self.live();
        if let Some(seat) = live
            && !self.seats[seat].connected
            && self.seats[seat].link.has_left()
        {
            // It closed while there was no sidecar: no connection of it will come and end.
            self.end_connection(seat);
            live = None;
        }
        if let Some(live) = live
            && core::mem::take(&mut self.seats[live].ready_unheard)
        {
            // There are two.
            return Ok(Some(FromWorker::Record { seat: live as u8, record: ToSidecar::Ready }));
        }
        for seat in (0..SEATS).filter(|seat| Some(*seat) != live).chain(live) {
            let mut patience = PATIENCE;
            while self.seats[seat].is_read() {
                if let Some(poison) = self.seats[seat].link.down_poison() {
                    return Err(self.detach(seat, poison.to_string()));
                }
                if !self.seats[seat].link.has_something() {
                    break;
                }
                if patience == 0 {
                    // It writes as fast as we read. The caller has other things to do, and comes again.
                    break;
                }
                patience -= 1;
                let handled = match self.seats[seat].link.pop(&mut self.record) {
                    Ok(None) => break,
                    Ok(Some((descriptor, length))) => self.handle(seat, &descriptor, length),
                    Err(poison) => Handled::Nonsense(poison.to_string()),
                };
                match handled {
                    Handled::Done => {}
                    Handled::Out(said) => return Ok(Some(said)),
                    Handled::Nonsense(why) => return Err(self.detach(seat, why)),
                }
            }
            if self.seats[seat].record.standing == Standing::Dying && patience > 0 {
                // All that can be read was read, whatever its tail was a moment ago.
                self.seats[seat].drain_to = None;
                self.settle_blame(seat);
                self.seats[seat].gone |= self.seats[seat].link.has_left();
                self.bury(seat);
            }
            if Some(seat) == live && patience > 0 && core::mem::take(&mut self.seats[seat].inherited) {
                self.behind |= self.ledger.ask_again(seat, &mut self.journal);
            }
        }
        self.deliver();
        Ok(None)
    }

    /// The action that was given out last has been copied: its slot is the worker's again.
    pub fn finish_action(&mut self) {
        let Some(action) = self.pending.take() else { return };
        self.ledger.take(&action, &mut self.journal);
        let Taken { seat, .. } = action;
        let entry = &mut self.seats[seat];
        entry.link.commit(entry.wake.as_ref(), &self.stats);
        self.bury(seat);
    }

    /// `length`: bytes of [`Owner::record`] that came with it.
    fn handle(&mut self, seat: usize, descriptor: &Descriptor, length: usize) -> Handled {
        match descriptor.kind {
            Kind::Observation => Handled::Nonsense("it sent an observation".into()),
            Kind::Record => match record::decode(&self.record[..length]) {
                Ok(record) => self.handle_record(seat, record),
                Err(error) => Handled::Nonsense(format!("it sent a record that is none: {error}")),
            },
            Kind::Action => self.handle_action(seat, descriptor),
        }
    }

    fn handle_record(&mut self, seat: usize, record: ToSidecar) -> Handled {
        let mut out = Handled::Done;
        match record {
            ToSidecar::Released { slot, generation } => {
                let position = self.seats[seat].link.position();
                if let Err(bad) = self.ledger.release(slot, generation, seat, position, &mut self.journal) {
                    return Handled::Nonsense(bad.to_string());
                }
                self.set_gauges();
            }
            // What a worker that is gone said about being ready is no longer so, unless only its connection broke and
            // it comes back; why it failed is worth hearing.
            ToSidecar::Ready if self.seats[seat].record.standing == Standing::Dying => {
                self.seats[seat].ready_unheard = true;
            }
            // There are two.
            record => out = Handled::Out(FromWorker::Record { seat: seat as u8, record }),
        }
        let entry = &mut self.seats[seat];
        entry.link.commit(entry.wake.as_ref(), &self.stats);
        out
    }

    fn handle_action(&mut self, seat: usize, descriptor: &Descriptor) -> Handled {
        let Descriptor { slot, generation, offset, length, epoch, sequence, stamps, .. } = *descriptor;
        let geometry = self.geometry();
        if slot >= geometry.action_slots {
            return Handled::Nonsense(format!("it named action slot {slot}, of {}", geometry.action_slots));
        }
        if generation != self.seats[seat].record.generation {
            return Handled::Nonsense(format!("it sent an action of generation {generation}"));
        }
        if offset.checked_add(length).is_none_or(|end| end > geometry.action_bytes) {
            return Handled::Nonsense(format!(
                "it sent {length} bytes at {offset} of an action slot of {} bytes",
                geometry.action_bytes
            ));
        }
        let epoch = Epoch(epoch);
        let returned = descriptor.returned();
        let position = self.seats[seat].link.position();
        let Some((answered, lent)) = self.ledger.accepts(epoch, sequence, seat) else {
            if let Some((slot, generation)) = returned
                && let Err(bad) = self.ledger.release(slot, generation, seat, position, &mut self.journal)
            {
                return Handled::Nonsense(bad.to_string());
            }
            self.stats.count(Counter::DroppedActions);
            self.set_gauges();
            let entry = &mut self.seats[seat];
            entry.link.commit(entry.wake.as_ref(), &self.stats);
            return Handled::Done;
        };
        if let Some((slot, generation)) = returned {
            if slot != answered.number() {
                let (sequence, answered) = (sequence, answered.number());
                return Handled::Nonsense(format!(
                    "it answered observation {sequence} in slot {answered} and gave back slot {slot}"
                ));
            }
            if let Err(bad) = self.ledger.may_release(slot, generation, seat) {
                return Handled::Nonsense(bad.to_string());
            }
        }
        let start = self.parts.layout.action(seat, slot as usize) + offset as usize;
        let base = self.parts.map.range(start, length as usize).cast_const();
        self.pending = Some(Taken {
            slot: answered,
            generation: lent,
            sequence,
            seat,
            position,
            returned: returned.is_some(),
        });
        Handled::Out(FromWorker::Action {
            // There are two.
            seat: seat as u8,
            epoch,
            sequence,
            base,
            length,
            taken: Instant::from_nanos(stamps[0]),
            published: Instant::from_nanos(stamps[1]),
        })
    }

    fn detach(&mut self, seat: usize, why: String) -> SeatPoisoned {
        let record = self.seats[seat].record;
        self.poison(seat, &why);
        // There are two seats.
        SeatPoisoned { seat: seat as u8, generation: record.generation, pid: record.pid, why }
    }
}
