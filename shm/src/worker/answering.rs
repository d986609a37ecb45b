//! Answers from any thread, while another one is in [`super::Worker::next`], and answers for an observation that is
//! still being read. Nothing here waits: where there is no room, [`super::Worker::wait_a_little_for_room`] does.

use std::sync::{Arc, PoisonError};

use sidecar_core::record::ToSidecar;
use sidecar_core::tunnel::clip;

use super::uplink::{Action, Reservation, Reserved, Uplink};
use super::{Observation, WorkerError};

/// What came of an answer.
#[derive(Debug)]
#[must_use = "what found no room was not sent"]
pub enum Answered<T> {
    /// It is on its way, or goes nowhere because the region of its session is gone.
    Done,
    /// The ring is full: here is everything back.
    NoRoom(T),
}

impl Observation {
    /// A slot to write an action of at most `length` bytes into. `None`: the sidecar has them all for the moment.
    ///
    /// # Errors
    /// [`WorkerError::ActionTooLarge`], [`WorkerError::AllReserved`].
    pub fn try_reserve(&self, length: usize) -> Result<Option<Reservation>, WorkerError> {
        let most = self.lock().action_bytes();
        if length > most {
            return Err(WorkerError::ActionTooLarge { size: length, most });
        }
        match Uplink::reserve(self.uplink(), length) {
            Reserved::Slot(reservation) => Ok(Some(reservation)),
            Reserved::Never { slots } => Err(WorkerError::AllReserved { slots }),
            Reserved::Later => Ok(None),
        }
    }

    /// Answers with the first `length` bytes of a reservation, and gives the slot back with the same wake-up.
    ///
    /// # Panics
    /// If `length` is more than was reserved, or the reservation is another worker's.
    pub fn try_answer(self, reservation: Reservation, length: usize) -> Answered<(Self, Reservation)> {
        self.check(&reservation, length);
        let uplink = Arc::clone(self.uplink());
        let mut uplink = uplink.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stale(&reservation, &uplink) {
            // Dropping them takes the lock.
            drop(uplink);
            return Answered::Done;
        }
        let unsent = uplink.publish(Action::new(self, reservation, length)).err();
        unsent.map_or(Answered::Done, |action| Answered::NoRoom(action.into_parts()))
    }

    /// Answers with the first `length` bytes of a reservation. The payload stays readable, and the slot taken, until
    /// the observation is dropped.
    ///
    /// # Panics
    /// If `length` is more than was reserved, or the reservation is another worker's.
    pub fn try_answer_and_keep(&self, reservation: Reservation, length: usize) -> Answered<Reservation> {
        self.check(&reservation, length);
        let mut uplink = self.lock();
        if self.is_stale(&reservation, &uplink) {
            // Dropping it takes the lock.
            drop(uplink);
            return Answered::Done;
        }
        uplink.publish_alone(self, reservation, length).err().map_or(Answered::Done, Answered::NoRoom)
    }

    /// Says that no action comes; the sidecar's failure policy decides. `false`: no room, it was not said.
    pub fn try_failed(&self, message: &str) -> bool {
        let mut uplink = self.lock();
        let said = ToSidecar::Failed { sequence: self.sequence(), message: clip(message) };
        self.origin() != uplink.origin() || uplink.say(&said)
    }

    fn check(&self, reservation: &Reservation, length: usize) {
        assert!(length <= reservation.len(), "{length} bytes of a reservation of {}", reservation.len());
        assert!(reservation.is_from(self.uplink()), "a reservation of another worker");
    }

    /// The region of its session is gone, and the session with it.
    fn is_stale(&self, reservation: &Reservation, uplink: &Uplink) -> bool {
        self.origin() != uplink.origin() || reservation.origin() != uplink.origin()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Uplink> {
        self.uplink().lock().unwrap_or_else(PoisonError::into_inner)
    }
}
