//! A worker whose slots are page-locked, for programs in Rust.
//!
//! ```no_run
//! use sidecar_cuda::fence::Stream;
//! use sidecar_cuda::worker::PinnedWorker;
//! use sidecar_shm::worker::{AttachOptions, Event};
//!
//! # fn infer(_: u64, _: Stream) -> Vec<u8> { Vec::new() }
//! # let (device_pointer, stream) = (0, unsafe { Stream::from_raw(0) });
//! let mut worker = PinnedWorker::attach("/dev/shm/obs0".as_ref(), &AttachOptions::default(), 0)?;
//! if let Some(why) = worker.trouble() {
//!     eprintln!("{why}; copies are slower");
//! }
//! loop {
//!     match worker.next(None)? {
//!         Event::Observation(observation) => {
//!             let mut lent = worker.lend(observation);
//!             // SAFETY: there is room for the payload behind `device_pointer`, and the stream lives.
//!             unsafe { lent.copy_to(device_pointer, stream)? };
//!             let action = infer(device_pointer, stream);
//!             worker.answer(lent, &action)?;
//!         }
//!         Event::Drain => break,
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use core::ops::Deref;
use core::time::Duration;
use std::path::Path;

use sidecar_shm::worker::{AttachError, AttachOptions, Event, Observation, Worker, WorkerError};

use crate::code::CallError;
use crate::device::read_back;
use crate::fence::{Fence, Stream};
use crate::pin::{Pin, PinError};
use crate::pinned::Pinned;
use crate::ring::{Arrival, RingError};

/// See the module's text. Without a GPU, or where locking fails, it works all the same, with slots as they are.
#[derive(Debug)]
pub struct PinnedWorker {
    pinned: Pinned,
    worker: Worker,
}

/// Why an action that lies on the device was not sent.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// It could not be copied back. The sidecar was told that the observation failed.
    #[error("the action was not copied from the device: {0}")]
    NotCopied(#[from] CopyError),
    /// As for every action.
    #[error(transparent)]
    Worker(#[from] WorkerError),
}

/// Why a copy was not made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CopyError {
    /// There is no device to copy to; [`PinnedWorker::trouble`] says why.
    #[error("there is no device to copy to")]
    NoDevice,
    /// The driver refuses.
    #[error(transparent)]
    Refused(#[from] CallError),
}

impl PinnedWorker {
    /// Attaches as [`Worker::attach`] does, and locks the slots for the device that CUDA calls `device` here.
    ///
    /// # Errors
    /// Those of attaching. What keeps the slots from being locked is [`PinnedWorker::trouble`], and no error.
    pub fn attach(path: &Path, options: &AttachOptions, device: u32) -> Result<Self, AttachError> {
        Ok(Self::of(Worker::attach(path, options)?, Pin::new(device)))
    }

    /// Of a worker that is attached.
    pub fn of(worker: Worker, pin: Result<Pin, PinError>) -> Self {
        Self { pinned: Pinned::with(&worker, pin), worker }
    }

    /// Why the slots are not locked.
    pub const fn trouble(&self) -> Option<&PinError> {
        self.pinned.trouble()
    }

    /// The device, if there is one.
    pub const fn pin(&self) -> Option<&Pin> {
        self.pinned.pin()
    }

    /// For everything that has nothing to do with a device.
    pub const fn worker(&mut self) -> &mut Worker {
        &mut self.worker
    }

    /// As [`Worker::next`].
    ///
    /// # Errors
    /// As there.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Event, WorkerError> {
        let event = self.worker.next(timeout)?;
        self.pinned.follow(&self.worker);
        Ok(event)
    }

    /// An observation that the device may read: its slot is given back only when the device is done with it.
    pub fn lend(&self, observation: Observation) -> Lent {
        Lent { arrival: self.pinned.arrival(&observation), fence: self.pinned.fence(), observation }
    }

    /// Why the ring on the device that the sidecar copies to cannot be used here; `None` also if there is none.
    pub const fn ring_trouble(&self) -> Option<&RingError> {
        self.pinned.ring_trouble()
    }

    /// As [`Worker::answer`], once the device is done with the slot.
    ///
    /// # Errors
    /// As there.
    pub fn answer(&mut self, lent: Lent, action: &[u8]) -> Result<(), WorkerError> {
        self.worker.answer(lent.into_observation(), action)
    }

    /// As [`PinnedWorker::answer`], with an action of `length` bytes that lies on the device: it is copied back behind
    /// all that is on the stream, which is waited for, and sent.
    ///
    /// # Errors
    /// See [`AnswerError`].
    ///
    /// # Safety
    /// The device memory at `from` has as many bytes, and like the stream it lives until this returns.
    pub unsafe fn answer_from_device(
        &mut self,
        lent: Lent,
        from: u64,
        length: usize,
        stream: Stream,
    ) -> Result<(), AnswerError> {
        let most = self.worker.action_bytes();
        let failed = if length > most {
            WorkerError::ActionTooLarge { size: length, most }.into()
        } else {
            let mut reservation = self.worker.reserve(length)?;
            let into = reservation.as_mut_slice();
            // SAFETY: by this function's own contract.
            match self.pinned.pin().map(|pin| unsafe { read_back(pin.context(), from, into, stream) }) {
                Some(Ok(())) => {
                    let observation = lent.into_observation();
                    return Ok(self.worker.answer_reserved(observation, reservation, length)?);
                }
                Some(Err(error)) => AnswerError::NotCopied(error.into()),
                None => AnswerError::NotCopied(CopyError::NoDevice),
            }
        };
        self.worker.failed(&lent, &failed.to_string())?;
        Err(failed)
    }
}

/// An observation, and what the device does with it.
#[derive(Debug)]
pub struct Lent {
    /// Dropped first: it waits.
    fence: Option<Fence>,
    arrival: Option<Arrival>,
    observation: Observation,
}

impl Lent {
    /// Where the payload lies on the device already (`--device-copy`), until this is answered or dropped. Work that reads
    /// it then still has to be named to [`Lent::used_by`].
    pub const fn arrival(&self) -> Option<&Arrival> {
        self.arrival.as_ref()
    }

    /// Starts the copy of the payload to device memory. An empty payload is copied without asking anybody.
    ///
    /// # Errors
    /// See [`CopyError`]; nothing was started.
    ///
    /// # Safety
    /// The device memory from `to` on has room for the payload, belongs to the caller, and is not freed before the
    /// stream is done with it.
    pub unsafe fn copy_to(&mut self, to: u64, stream: Stream) -> Result<(), CopyError> {
        let fence = self.fence.as_mut().ok_or(CopyError::NoDevice)?;
        // SAFETY: the payload stays where it is until the fence, which is dropped before the observation, is done; the
        // target is the caller's promise.
        unsafe { fence.copy(self.observation.payload(), to, stream)? };
        Ok(())
    }

    /// The device also uses it in work of the caller's own that is on this stream now.
    ///
    /// # Errors
    /// See [`CopyError`].
    pub fn used_by(&mut self, stream: Stream) -> Result<(), CopyError> {
        Ok(self.fence.as_mut().ok_or(CopyError::NoDevice)?.record(stream)?)
    }

    /// The observation, once the device is done with it.
    pub fn into_observation(self) -> Observation {
        let Self { fence, arrival: _, observation } = self;
        drop(fence);
        observation
    }
}

impl Deref for Lent {
    type Target = Observation;

    fn deref(&self) -> &Observation {
        &self.observation
    }
}
