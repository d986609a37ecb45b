//! `--device-copy`: what arrives in a slot is copied to the device while the rest of it is still coming.
//!
//! ```text
//!  socket ──receive──▶ slot (page-locked here) ──a part at a time──▶ slot of the same number in the ring on the device
//!                      landed(), landed(), ...                       finish(): the rest, then the event
//! ```
//!
//! The ring and its event can be opened by the worker ([`crate::ring`]). A slot of the ring is the worker's for as long
//! as the slot of the region is: nothing is copied to it before its observation was answered and given back.
//!
//! On the way of a frame nothing here allocates or waits. The driver is asked for copies out of page-locked memory,
//! which it only queues. After its first error nothing is asked of it any more: observations then lie on the host
//! alone, and everything else goes on.
//!
//! It refuses to know where bytes come from: who calls says how many of a message have landed where they stay.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use sidecar_core::time::Instant;
use sidecar_shm::device::{Announcement, DeviceRing, DeviceSlots};
use sidecar_shm::owner::Owner;
use sidecar_shm::slots::{Copied, SlotIndex};

use crate::code::CallError;
use crate::context::Context;
use crate::device::{AllocationError, DeviceMemory, OwnedStream};
use crate::discovery::{attribute, uuid_bytes};
use crate::driver::{Driver, Unavailable, call};
use crate::ipc::{SharedEvent, memory_handle};
use crate::pin::{PageLock, PinError};

/// So many bytes are copied at once while more are coming. To be chosen by measurement on a GPU, which has not been made
/// (`cargo xtask bench --gpu` does it): small enough for the copy of the last part to be short, large enough for
/// its start not to count.
pub const PART: u32 = 128 << 10;

/// `CU_COMPUTEMODE_EXCLUSIVE_PROCESS` (cuda.h).
const EXCLUSIVE: i32 = 3;

/// Why nothing is copied ahead.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AheadError {
    /// There is no driver any more.
    #[error(transparent)]
    NoGpu(#[from] Unavailable),
    /// The device gives this process no context, stream or event.
    #[error("the device refuses: {0}")]
    Refused(CallError),
    /// A second process beside the worker is not let in.
    #[error(
        "the device lets one process in (exclusive compute mode), which has to be the worker; nvidia-smi -c DEFAULT lets more in"
    )]
    Exclusive,
    /// Copies would not be asynchronous.
    #[error(transparent)]
    NotLocked(PinError),
    /// There is no memory for the ring.
    #[error(transparent)]
    NoMemory(AllocationError),
    /// The driver passes nothing to another process.
    #[error("the device's memory cannot be passed to the worker: {0}")]
    NoIpc(CallError),
}

/// See the module's text.
#[derive(Debug)]
pub struct AheadCopier {
    // In the order in which they end: nobody is told of it any more, and what is queued is done before what it uses goes.
    _announced: Announcement,
    stream: OwnedStream,
    event: SharedEvent,
    ring: DeviceMemory,
    lock: PageLock,
    context: Arc<Context>,
    slots: DeviceSlots,
    part: u32,
    begun: Option<Begun>,
    state: State,
}

/// A message that is arriving.
#[derive(Clone, Copy, Debug)]
struct Begun {
    slot: SlotIndex,
    /// When its first byte came: tells it from another one in the same slot.
    first_byte: Instant,
    /// Bytes of it that were given to the driver.
    copied: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Works,
    /// Nothing is copied any more; why was not told yet.
    Failed(CallError),
    Told,
}

impl AheadCopier {
    /// Makes the ring on the device that CUDA calls `device` in this process, locks the slots, and says in the region how
    /// a worker gets at the ring. To be called before workers attach.
    ///
    /// # Errors
    /// See [`AheadError`]; nothing is left behind then.
    pub fn new(device: i32, owner: &Owner) -> Result<Self, AheadError> {
        Self::with(Driver::open()?, device, owner)
    }

    /// As [`AheadCopier::new`], with a driver that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn with(driver: Driver, device: i32, owner: &Owner) -> Result<Self, AheadError> {
        let refused = AheadError::Refused;
        let mode =
            attribute(&driver, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device).map_err(refused)?;
        if mode == EXCLUSIVE {
            return Err(AheadError::Exclusive);
        }
        let context = Arc::new(Context::primary(driver, device).map_err(refused)?);
        let lock = PageLock::new(Arc::clone(&context), owner.slot_memory()).map_err(AheadError::NotLocked)?;
        let slots = owner.device_slots();
        let ring = DeviceMemory::new(Arc::clone(&context), slots.total()).map_err(AheadError::NoMemory)?;
        let event = SharedEvent::new(Arc::clone(&context)).map_err(refused)?;
        let stream = OwnedStream::new(Arc::clone(&context)).map_err(refused)?;
        let announced = owner.announce_device_ring(&DeviceRing {
            gpu: uuid_bytes(&driver, device).map_err(refused)?,
            memory: memory_handle(&context, &ring).map_err(AheadError::NoIpc)?,
            event: event.handle().map_err(AheadError::NoIpc)?,
        });
        let state = State::Works;
        Ok(Self {
            _announced: announced,
            stream,
            event,
            ring,
            lock,
            context,
            slots,
            part: PART,
            begun: None,
            state,
        })
    }

    /// Copies parts of another size than [`PART`], for measurements.
    pub const fn set_part(&mut self, bytes: u32) {
        self.part = bytes;
    }

    /// Waits until everything that was given to it so far is on the device.
    ///
    /// # Errors
    /// What went wrong with it.
    pub fn wait(&self) -> Result<(), CallError> {
        self.stream.synchronize()
    }

    /// Bytes of the ring on the device.
    pub const fn bytes(&self) -> usize {
        self.ring.len()
    }

    /// `filled` bytes of a message whose first byte came then lie in the slot where they stay.
    pub fn landed(&mut self, slot: SlotIndex, first_byte: Instant, filled: u32) {
        let copied = self.copied(slot, first_byte);
        if filled.saturating_sub(copied) >= self.part {
            self.copy(slot, first_byte, copied, filled);
        }
    }

    /// So many bytes shall be received at once where more are known to come: else all of them land together. `None`: as
    /// many as there are, since nothing is copied.
    pub const fn most(&self) -> Option<u32> {
        if self.works() { Some(self.part) } else { None }
    }

    /// The message that was arriving does not come any more.
    pub const fn abandon(&mut self) {
        self.begun = None;
    }

    /// All `length` bytes of the message are in the slot: the rest of them is copied, too. An empty one lies nowhere.
    pub fn finish(&mut self, slot: SlotIndex, first_byte: Instant, length: u32) -> Copied {
        let copied = self.copied(slot, first_byte);
        self.begun = None;
        if length == 0 || !self.works() {
            return Copied::No;
        }
        if copied < length {
            self.copy(slot, first_byte, copied, length);
            self.begun = None;
        }
        if !self.works() {
            return Copied::No;
        }
        match self.event.record(&self.stream) {
            Ok(()) => Copied::Yes,
            Err(error) => {
                self.fail(error);
                Copied::No
            }
        }
    }

    /// What the driver refused, once: nothing is copied from then on.
    pub const fn take_trouble(&mut self) -> Option<CallError> {
        match self.state {
            State::Failed(error) => {
                self.state = State::Told;
                Some(error)
            }
            State::Works | State::Told => None,
        }
    }

    const fn works(&self) -> bool {
        matches!(self.state, State::Works)
    }

    /// How much of this very message was copied.
    fn copied(&self, slot: SlotIndex, first_byte: Instant) -> u32 {
        let same = |begun: &Begun| (begun.slot, begun.first_byte) == (slot, first_byte);
        self.begun.filter(same).map_or(0, |begun| begun.copied)
    }

    fn copy(&mut self, slot: SlotIndex, first_byte: Instant, from: u32, to: u32) {
        let Some(memory) = self.lock.memory().filter(|_| self.works()) else { return };
        let source = memory.payload(slot.number(), to as usize).wrapping_add(from as usize);
        let target = self.ring.start() + (self.slots.offset(slot.number()) + from as usize) as u64;
        let bytes = (to - from) as usize;
        let stream = self.stream.stream();
        let queued = self.context.enter().and_then(|entered| {
            // SAFETY: the source lies in a slot (checked by `payload`), mapped and locked until the stream has ended. The
            // worker may be writing there: then its own observation is a mix of bytes. The target is the slot of the same
            // number in the ring, which has room for a slot's payload.
            unsafe {
                call!(entered.driver(), cuMemcpyHtoDAsync_v2(target, source.cast(), bytes, stream.raw()))
            }
        });
        match queued {
            Ok(()) => self.begun = Some(Begun { slot, first_byte, copied: to }),
            Err(error) => self.fail(error),
        }
    }

    fn fail(&mut self, error: CallError) {
        self.begun = None;
        self.state = State::Failed(error);
        // What it may have left would be met by an innocent call at the end.
        self.context.settle();
    }
}
