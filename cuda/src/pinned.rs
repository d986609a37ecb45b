//! Whether a worker's slots are page-locked and its sidecar's ring on the device is open, and what came of it: what every
//! worker library keeps beside a worker.

use sidecar_shm::worker::{Observation, Worker};

use crate::fence::Fence;
use crate::pin::{Pin, PinError};
use crate::ring::{Arrival, RingError};

/// What became of the wish for locked slots. No state of it keeps a worker from going on.
#[derive(Debug)]
pub struct Pinned(State);

#[derive(Debug)]
enum State {
    NotAsked,
    Yes(Pin),
    /// The device is there, but locking failed, or there is none.
    No(Option<Pin>, PinError),
}

impl Pinned {
    /// Locks the slots of a worker that has just attached, for a device of this process; `None`: nobody asked for it.
    pub fn new(worker: &Worker, device: Option<u32>) -> Self {
        match device {
            None => Self(State::NotAsked),
            Some(device) => Self::with(worker, Pin::new(device)),
        }
    }

    /// With what came of opening the device.
    pub fn with(worker: &Worker, pin: Result<Pin, PinError>) -> Self {
        Self(match pin {
            Err(error) => State::No(None, error),
            Ok(pin) => State::of(pin, worker),
        })
        .with_ring(worker)
    }

    fn with_ring(mut self, worker: &Worker) -> Self {
        self.follow_ring(worker);
        self
    }

    fn follow_ring(&mut self, worker: &Worker) {
        if let State::Yes(pin) | State::No(Some(pin), _) = &mut self.0 {
            pin.follow_ring(worker);
        }
    }

    /// Locks the slots that the worker has now, if they are others than before. To be called after each of its events:
    /// where nothing changed it costs a comparison.
    pub fn follow(&mut self, worker: &Worker) {
        self.0 = match core::mem::replace(&mut self.0, State::NotAsked) {
            State::NotAsked => State::NotAsked,
            State::No(None, why) => State::No(None, why),
            State::Yes(pin) => State::of(pin, worker),
            State::No(Some(pin), why) => match State::of(pin, worker) {
                // It was tried once for this seat, and is not tried again.
                State::Yes(pin) if !pin.is_locked() => State::No(Some(pin), why),
                now => now,
            },
        };
        self.follow_ring(worker);
    }

    /// Whether the slots are locked.
    pub const fn is_locked(&self) -> bool {
        matches!(self.0, State::Yes(_))
    }

    /// Why they are not, where that was asked for.
    pub const fn trouble(&self) -> Option<&PinError> {
        match &self.0 {
            State::No(_, why) => Some(why),
            State::NotAsked | State::Yes(_) => None,
        }
    }

    /// The device, if there is one, whether or not slots could be locked for it.
    pub const fn pin(&self) -> Option<&Pin> {
        match &self.0 {
            State::Yes(pin) | State::No(Some(pin), _) => Some(pin),
            State::NotAsked | State::No(None, _) => None,
        }
    }

    /// Why the sidecar's ring on the device cannot be used here; `None` also if there is none.
    pub const fn ring_trouble(&self) -> Option<&RingError> {
        match self.pin() {
            Some(pin) => pin.ring_trouble(),
            None => None,
        }
    }

    /// Where an observation lies on the device already.
    pub fn arrival(&self, observation: &Observation) -> Option<Arrival> {
        self.pin()?.arrival(observation)
    }

    /// For an observation that comes now.
    pub fn fence(&self) -> Option<Fence> {
        self.pin().map(Pin::fence)
    }
}

impl State {
    fn of(mut pin: Pin, worker: &Worker) -> Self {
        match pin.follow(worker) {
            Ok(()) => Self::Yes(pin),
            Err(error) => Self::No(Some(pin), error),
        }
    }
}
