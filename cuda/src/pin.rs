//! Page-locking a region's slots, so that the device copies from them by itself, at the speed of its bus.
//!
//! It is done in the process that copies: the worker, and a sidecar that copies ahead. A [`PageLock`] holds the mapping and the context: the
//! range is given free before it is unmapped, whatever else ends first. What cannot be locked is used as it is: copies
//! work from any memory, only slower, so that no failure here stops a worker.
//!
//! The slots are registered, not allocated: cudarc's own page-locked memory is write-combined, which a CPU reads at a
//! hundredth of the speed.

use core::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{
    CU_MEMHOSTREGISTER_DEVICEMAP, CU_MEMHOSTREGISTER_PORTABLE, CUdevice_attribute as Attribute,
};
use rustix::process::{Resource, getrlimit};
use sidecar_shm::attach::SeatClaim;
use sidecar_shm::worker::{Observation, SlotMemory, Worker};

use crate::code::{CallError, Code};
use crate::context::{Aftermath, Context, is_end};
use crate::discovery::attribute;
use crate::driver::{Driver, Unavailable, call};
use crate::fence::Fence;
use crate::numa::System;
use crate::ring::{Arrival, RingError, Rings};

/// Why a range is not page-locked.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PinError {
    /// There is no GPU to lock it for.
    #[error("not page-locked: {0}")]
    NoGpu(#[from] Unavailable),
    /// The device has no context for this process.
    #[error("not page-locked: the device gives this process no context: {0}")]
    NoContext(CallError),
    /// The device cannot use memory that was not allocated for it.
    #[error("not page-locked: this device cannot lock memory that it did not allocate")]
    Unsupported,
    /// Somebody in this process did it before.
    #[error(
        "not page-locked again: a part of the {bytes} bytes is locked already, by other code of this process"
    )]
    AlreadyLocked {
        /// The size of the range.
        bytes: usize,
    },
    /// The driver refused.
    #[error("not page-locked: {bytes} bytes were refused: {error}; {limits}{}", after(*.aftermath))]
    Refused {
        /// The size of the range.
        bytes: usize,
        /// What it said.
        error: CallError,
        /// What may be in the way.
        limits: Limits,
        /// Whether the context can still be used.
        aftermath: Aftermath,
    },
}

const fn after(aftermath: Aftermath) -> &'static str {
    match aftermath {
        Aftermath::Clean => "",
        Aftermath::Broken => "; the device's context is broken, every CUDA call of this process will fail",
    }
}

/// Limits on page-locked memory that this process is under.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes that the process may lock (`ulimit -l`); `None`: no limit.
    pub memlock: Option<u64>,
    /// Bytes that its control group may have; `None`: no limit, or not known.
    pub cgroup: Option<u64>,
}

impl Limits {
    /// Those of this process.
    pub fn here(system: &System) -> Self {
        Self { memlock: getrlimit(Resource::Memlock).current, cgroup: system.memory_limit() }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.memlock {
            Some(bytes) => write!(
                f,
                "the limit on locked memory is {bytes} bytes (ulimit -l; docker: --ulimit memlock=-1)"
            )?,
            None => f.write_str("locked memory is not limited")?,
        }
        match self.cgroup {
            Some(bytes) => write!(f, ", the control group may have {bytes} bytes"),
            None => Ok(()),
        }
    }
}

/// Slots of a region, page-locked for as long as this lives.
#[derive(Debug)]
pub struct PageLock {
    context: Arc<Context>,
    /// `None` only while it is dropped, or if the range could not be given free.
    memory: Option<SlotMemory>,
    /// Where the device sees the start of the range.
    device_start: Option<u64>,
}

impl PageLock {
    /// Locks the slots, for all contexts of the process, and mapped into the device's memory where it can do that.
    ///
    /// # Errors
    /// See [`PinError`]; nothing is left of the attempt.
    pub fn new(context: Arc<Context>, memory: SlotMemory) -> Result<Self, PinError> {
        let driver = context.driver;
        let can = |what| attribute(&driver, what, context.device).is_ok_and(|answer| answer != 0);
        if !can(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED) {
            return Err(PinError::Unsupported);
        }
        let maps = can(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
        let flags = CU_MEMHOSTREGISTER_PORTABLE | if maps { CU_MEMHOSTREGISTER_DEVICEMAP } else { 0 };
        let bytes = memory.len();
        let entered = context.enter().map_err(PinError::NoContext)?;
        // SAFETY: the range is mapped (and never empty) for as long as `memory` lives, which goes into the value that
        // gives it free; locking changes nothing about what may be read and written.
        let locked = unsafe { call!(driver, cuMemHostRegister_v2(memory.start().cast(), bytes, flags)) };
        drop(entered);
        if let Err(error) = locked {
            let aftermath = context.settle();
            if error.code == Code::ALREADY_REGISTERED && aftermath == Aftermath::Clean {
                return Err(PinError::AlreadyLocked { bytes });
            }
            let limits = Limits::here(&System::here());
            return Err(PinError::Refused { bytes, error, limits, aftermath });
        }
        let mut lock = Self { context, memory: Some(memory), device_start: None };
        if maps {
            lock.device_start = lock.ask_device_start();
        }
        Ok(lock)
    }

    fn ask_device_start(&self) -> Option<u64> {
        let start = self.memory.as_ref()?.start();
        let mut pointer = 0;
        let asked = self.context.enter().and_then(|entered| {
            // SAFETY: the pointer is valid for an address, and the range is registered.
            unsafe {
                call!(entered.driver(), cuMemHostGetDevicePointer_v2(&raw mut pointer, start.cast(), 0))
            }
        });
        match asked {
            Ok(()) => Some(pointer),
            Err(_) => {
                self.context.settle();
                None
            }
        }
    }

    /// What is locked. `None` only once it is given free.
    pub(crate) const fn memory(&self) -> Option<&SlotMemory> {
        self.memory.as_ref()
    }

    /// How many bytes are locked.
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, SlotMemory::len)
    }

    /// It never is; here for those who look for it beside `len`.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where a kernel on the device sees the host address, such as a payload's; `None` if it is not in the range, or
    /// the device cannot see host memory.
    pub fn device_address(&self, host: *const u8) -> Option<u64> {
        let memory = self.memory.as_ref()?;
        let offset =
            host.addr().checked_sub(memory.start().addr()).filter(|offset| *offset < memory.len())?;
        self.device_start.map(|start| start + offset as u64)
    }
}

impl Drop for PageLock {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        if !self.context.is_home() {
            // A forked child has neither the mapping nor a driver.
            return core::mem::forget(memory);
        }
        let freed = self.context.enter().and_then(|entered| {
            // SAFETY: the range was registered by `new`, and nobody else gives it free.
            unsafe { call!(entered.driver(), cuMemHostUnregister(memory.start().cast())) }
        });
        match freed {
            Ok(()) => {}
            // Gone with the driver, with its context, or by somebody's hand: the range is locked no more.
            Err(error) if is_end(error.code) || error.code == Code::NOT_REGISTERED => {}
            // Locked still, for all that is known: then it stays mapped, too.
            Err(_) => {
                core::mem::forget(memory);
                self.context.settle();
            }
        }
    }
}

/// Keeps the slots of a worker page-locked, also when a sidecar made the region anew or gave it another seat.
#[derive(Debug)]
pub struct Pin {
    context: Arc<Context>,
    /// The seat that was tried last: another one, also in the same region, is another mapping.
    tried: Option<SeatClaim>,
    locks: Locks,
    rings: Rings,
}

/// The locks that there are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Locks {
    /// Of the observation slots.
    pub(crate) observations: Option<Arc<PageLock>>,
    /// Of the seat's action slots: actions from the device are copied there.
    pub(crate) actions: Option<Arc<PageLock>>,
}

impl Pin {
    /// For the device that CUDA calls `device` in this process; 0 under a sidecar, which shows its worker one.
    ///
    /// # Errors
    /// There is no such device, or it gives no context.
    pub fn new(device: u32) -> Result<Self, PinError> {
        Self::with(Driver::open()?, device)
    }

    /// As [`Pin::new`], with a driver that is open already.
    ///
    /// # Errors
    /// As there.
    pub fn with(driver: Driver, device: u32) -> Result<Self, PinError> {
        // A number that is no device's is refused by the driver.
        let device = i32::try_from(device).unwrap_or(i32::MAX);
        let context = Context::primary(driver, device).map_err(PinError::NoContext)?;
        Ok(Self { context: Arc::new(context), tried: None, locks: Locks::default(), rings: Rings::default() })
    }

    /// Locks the slots that the worker has now: for observations, and its seat's for actions. To be called after it
    /// attached and after each of its events: where nothing changed it costs a comparison.
    ///
    /// # Errors
    /// See [`PinError`]: said once for a seat. The slots that it is about, and those that come after, stay as they are.
    pub fn follow(&mut self, worker: &Worker) -> Result<(), PinError> {
        let seat = worker.seat_claim();
        if self.tried == Some(seat) {
            return Ok(());
        }
        self.tried = Some(seat);
        // The old ones go first: what uses them still has a hold of its own.
        self.locks = Locks::default();
        self.locks.observations = Some(self.lock_slots(worker.slot_memory())?);
        self.locks.actions = Some(self.lock_slots(worker.action_memory())?);
        Ok(())
    }

    fn lock_slots(&self, memory: SlotMemory) -> Result<Arc<PageLock>, PinError> {
        PageLock::new(Arc::clone(&self.context), memory).map(Arc::new)
    }

    /// Whether all slots of the worker are locked.
    pub(crate) const fn is_locked(&self) -> bool {
        self.locks.observations.is_some() && self.locks.actions.is_some()
    }

    /// Opens the ring on the device that the worker's sidecar copies to, if there is another one than before. As
    /// [`Pin::follow`].
    pub fn follow_ring(&mut self, worker: &Worker) {
        self.rings.follow(&self.context, worker);
    }

    /// Where an observation lies on the device already; `None` if it does not, or not where this process can see it.
    pub fn arrival(&self, observation: &Observation) -> Option<Arrival> {
        self.rings.arrival(observation)
    }

    /// Why the sidecar's ring cannot be used here; `None` also if there is none.
    pub const fn ring_trouble(&self) -> Option<&RingError> {
        self.rings.trouble()
    }

    /// The lock of the worker's observation slots; `None` if there is none.
    pub const fn lock(&self) -> Option<&Arc<PageLock>> {
        self.locks.observations.as_ref()
    }

    /// The lock of its seat's action slots.
    pub const fn action_lock(&self) -> Option<&Arc<PageLock>> {
        self.locks.actions.as_ref()
    }

    /// A fence for an observation that the worker has now: it holds the locks until the device is done.
    pub fn fence(&self) -> Fence {
        Fence::new(Arc::clone(&self.context), self.locks.clone())
    }

    /// The context that the slots are locked in.
    pub const fn context(&self) -> &Arc<Context> {
        &self.context
    }
}
