//! The sidecar's ring on the device, in the worker's process: opened once, and where an observation lies in it.
//!
//! Whatever keeps it from being opened (another device, a container of its own, a driver that does not pass memory
//! on) is said, and the slots on the host are there all the same.

use std::sync::Arc;

use sidecar_shm::device::Announced;
use sidecar_shm::worker::{Observation, Worker};

use crate::code::CallError;
use crate::context::Context;
use crate::discovery::{Uuid, uuid_bytes};
use crate::ipc::{OpenedMemory, SharedEvent};

/// Why a sidecar's ring on the device cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// It lies on another device.
    #[error(
        "the sidecar copies to {theirs}, this worker is on {ours}: choose that device, or another --gpu for the sidecar"
    )]
    OtherDevice {
        /// Where it lies.
        theirs: Uuid,
        /// Where the worker is.
        ours: Uuid,
    },
    /// The driver refused.
    #[error(
        "what the sidecar copied to the device cannot be opened here: {0}; \
         run both in one container, or with the same --ipc and --pid"
    )]
    Refused(CallError),
}

/// A ring that is open. Closed when the worker has moved on and nothing of it is held any more.
#[derive(Debug)]
struct OpenedRing {
    event: SharedEvent,
    memory: OpenedMemory,
    announced: Announced,
}

impl OpenedRing {
    fn new(context: &Arc<Context>, announced: Announced) -> Result<Self, RingError> {
        let ours = uuid_bytes(&context.driver, context.device).map_err(RingError::Refused)?;
        let theirs = announced.ring.gpu;
        if ours != theirs {
            let [theirs, ours] = [theirs, ours].map(|bytes| Uuid::new("GPU", bytes));
            return Err(RingError::OtherDevice { theirs, ours });
        }
        Self::open(context, announced).map_err(|error| {
            // No innocent call shall meet what it left.
            context.settle();
            RingError::Refused(error)
        })
    }

    fn open(context: &Arc<Context>, announced: Announced) -> Result<Self, CallError> {
        let memory = OpenedMemory::new(Arc::clone(context), &announced.ring.memory)?;
        let event = SharedEvent::open(Arc::clone(context), &announced.ring.event)?;
        Ok(Self { event, memory, announced })
    }
}

/// The ring that a worker's sidecar has now.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    /// Region and number of the one that was tried last: each new region counts from the start.
    tried: Option<(u64, u64)>,
    opened: Option<Arc<OpenedRing>>,
    trouble: Option<RingError>,
}

impl Rings {
    /// Opens the ring that there is now. Where nothing changed it costs a load.
    pub(crate) fn follow(&mut self, context: &Arc<Context>, worker: &Worker) {
        let (region, number) = (worker.region_id(), worker.device_ring_number());
        if self.tried == Some((region, number)) {
            return;
        }
        // Who still reads the old one has a hold of its own.
        *self = Self::default();
        // Just being replaced: the next look finds it.
        let Some(announced) = worker.device_ring() else { return };
        self.tried = Some((region, announced.number));
        match OpenedRing::new(context, announced) {
            Ok(opened) => self.opened = Some(Arc::new(opened)),
            Err(error) => self.trouble = Some(error),
        }
    }

    pub(crate) const fn trouble(&self) -> Option<&RingError> {
        self.trouble.as_ref()
    }

    pub(crate) fn arrival(&self, observation: &Observation) -> Option<Arrival> {
        let ring = self.opened.as_ref()?;
        if self.tried != Some((observation.region_id(), observation.device_ring()?)) {
            return None;
        }
        let offset = ring.announced.slots.offset(observation.slot());
        Some(Arrival {
            address: ring.memory.start() + offset as u64,
            length: observation.payload().len(),
            ring: Arc::clone(ring),
        })
    }
}

/// An observation on the device. The bytes are there, for every stream, once [`Arrival::wait`] returned; and until the
/// observation is answered or released, or its sidecar ends.
#[derive(Debug, Clone)]
pub struct Arrival {
    ring: Arc<OpenedRing>,
    address: u64,
    length: usize,
}

impl Arrival {
    /// What CUDA calls the device in this process.
    pub fn device(&self) -> i32 {
        self.ring.event.device()
    }

    /// Where its payload starts, as this process's device sees it.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// Bytes of the payload.
    #[expect(clippy::len_without_is_empty, reason = "an empty one lies nowhere")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Waits until the bytes are there.
    ///
    /// # Errors
    /// What went wrong with the copy; `CUDA_ERROR_NOT_READY` if the sidecar died over it.
    pub fn wait(&self) -> Result<(), CallError> {
        self.ring.event.wait()
    }
}
