//! When a device is done with a slot: an event behind the last copy, waited for before the slot is given back.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use cudarc::driver::sys::{CUevent, CUstream};

use crate::code::{CallError, Code};
use crate::context::{Context, Entered};
use crate::device::read_back;
use crate::driver::call;
use crate::pin::Locks;

/// `CU_EVENT_BLOCKING_SYNC` (the waiting thread sleeps) and `CU_EVENT_DISABLE_TIMING` (cheaper), cuda.h.
const FLAGS: u32 = 1 | 2;

/// A stream of the process, as its owner knows it: `torch.cuda.Stream.cuda_stream`, a `cudaStream_t` or a `CUstream`,
/// which are the same. 0 is the default stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream(usize);

impl Stream {
    /// The stream that every context has.
    pub const DEFAULT: Self = Self(0);

    /// A stream by its handle.
    ///
    /// # Safety
    /// It is 0, or the handle of a stream of the context that it is used with, and not destroyed before the device is
    /// done with what was put on it.
    pub const unsafe fn from_raw(handle: usize) -> Self {
        Self(handle)
    }

    /// As its owner knows it.
    pub const fn handle(self) -> usize {
        self.0
    }

    pub(crate) fn raw(self) -> CUstream {
        core::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// A CUDA event in raw form; whoever has it destroys it.
#[derive(Debug)]
pub(crate) struct Event(CUevent, PhantomData<()>);

impl Event {
    pub(crate) fn make(entered: &Entered<'_>) -> Result<Self, CallError> {
        let mut event = core::ptr::null_mut();
        // SAFETY: the pointer is valid for a handle, and a context is current.
        unsafe { call!(entered.driver(), cuEventCreate(&raw mut event, FLAGS)) }?;
        Ok(Self(event, PhantomData))
    }

    pub(crate) fn destroy(self, entered: &Entered<'_>) -> Result<(), CallError> {
        // SAFETY: the event is ours, and this is its end.
        unsafe { call!(entered.driver(), cuEventDestroy_v2(self.0)) }
    }
}

/// The device's last use of something on the host. Waits when dropped, so that what is given back behind it is free.
///
/// The fence itself promises nothing about the memory: it belongs next to the observation whose slot was copied from,
/// and in front of it in the order of drops.
pub struct Fence {
    context: Arc<Context>,
    /// One behind the last use on each stream.
    events: Vec<(Stream, Event)>,
    /// What the device reads stays locked until it is done: fields are dropped after the wait.
    locks: Locks,
}

// SAFETY: events are handles that any thread may use at the same time as others.
unsafe impl Send for Fence {}
// SAFETY: as above; what changes takes `&mut self`.
unsafe impl Sync for Fence {}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence").field("streams", &self.events.len()).finish_non_exhaustive()
    }
}

impl Fence {
    /// One that nothing is behind yet; it keeps the lock of the memory that will be read.
    pub(crate) const fn new(context: Arc<Context>, locks: Locks) -> Self {
        Self { context, events: Vec::new(), locks }
    }

    /// What an action for the same observation is copied back by, wherever and whenever that is done.
    pub fn back(&self) -> Back {
        Back { context: Arc::clone(&self.context), _locks: self.locks.clone() }
    }

    /// Nothing was recorded since the last wait: there is nothing to wait for.
    pub const fn is_idle(&self) -> bool {
        self.events.is_empty()
    }

    /// Where the device sees a host address of the page-locked slots; `None` if it does not.
    pub fn device_address(&self, host: *const u8) -> Option<u64> {
        self.locks.observations.as_ref()?.device_address(host)
    }

    /// Starts the copy of `from` to device memory, and is done after it. No bytes are copied without asking anybody.
    ///
    /// # Errors
    /// The driver refuses; then nothing is on its way.
    ///
    /// # Safety
    /// The bytes stay as they are until this fence is done. The device memory from `to` on has room for them, belongs
    /// to the caller, and is not freed before the stream is done with it.
    pub unsafe fn copy(&mut self, from: &[u8], to: u64, stream: Stream) -> Result<(), CallError> {
        if from.is_empty() {
            return Ok(());
        }
        let entered = self.context.enter()?;
        let start = from.as_ptr().cast();
        // SAFETY: source, target and their lives are the caller's promise.
        unsafe { call!(entered.driver(), cuMemcpyHtoDAsync_v2(to, start, from.len(), stream.raw())) }?;
        drop(entered);
        self.record(stream)
    }

    /// The device is done only after everything that was put on `stream` so far, and on those named before.
    ///
    /// # Errors
    /// The driver refuses; then what was put on the stream so far was waited for.
    pub fn record(&mut self, stream: Stream) -> Result<(), CallError> {
        let recorded = self.try_record(stream);
        if recorded.is_err() {
            // Nothing says when that work is over: it is waited for now.
            self.wait_for_stream(stream);
        }
        recorded
    }

    fn try_record(&mut self, stream: Stream) -> Result<(), CallError> {
        let entered = self.context.enter()?;
        let known = self.events.iter().position(|(other, _)| *other == stream);
        let at = match known {
            Some(at) => at,
            None => {
                self.events.push((stream, Event::make(&entered)?));
                self.events.len() - 1
            }
        };
        let event = self.events[at].1.0;
        // SAFETY: the event is ours and of this context, and the stream is, by the promise of `Stream::from_raw`.
        unsafe { call!(entered.driver(), cuEventRecord(event, stream.raw())) }
    }

    /// Waits for a stream as a whole, where no event could be put on it.
    fn wait_for_stream(&self, stream: Stream) {
        if let Ok(entered) = self.context.enter() {
            // SAFETY: the stream is of this context, by the promise of `Stream::from_raw`. If even that fails the
            // context is broken, and with it every copy.
            let _ = unsafe { call!(entered.driver(), cuStreamSynchronize(stream.raw())) };
        }
    }

    /// Whether the device is done.
    ///
    /// # Errors
    /// What went wrong with the work on a stream.
    pub fn is_done(&self) -> Result<bool, CallError> {
        if self.events.is_empty() {
            return Ok(true);
        }
        let entered = self.context.enter()?;
        for (_, event) in &self.events {
            // SAFETY: the event is ours.
            match unsafe { call!(entered.driver(), cuEventQuery(event.0)) } {
                Ok(()) => {}
                Err(error) if error.code == Code::NOT_READY => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Waits until the device is done. After an error it is not coming back to the memory either: a context that
    /// reports one has stopped.
    ///
    /// # Errors
    /// What went wrong first with the work on the streams.
    pub fn wait(&mut self) -> Result<(), CallError> {
        if self.events.is_empty() {
            return Ok(());
        }
        let entered = self.context.enter()?;
        let mut waited = Ok(());
        for (_, event) in self.events.drain(..) {
            // SAFETY: the event is ours.
            let this = unsafe { call!(entered.driver(), cuEventSynchronize(event.0)) };
            waited = waited.and(this);
            // What went wrong in the stream is told by the wait.
            let _ = event.destroy(&entered);
        }
        waited
    }
}

/// Copies from the device into action slots, which stay locked for as long as this lives.
#[derive(Clone, Debug)]
pub struct Back {
    context: Arc<Context>,
    _locks: Locks,
}

impl Back {
    /// As [`read_back`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Safety
    /// As there.
    pub unsafe fn read(&self, from: u64, into: &mut [u8], stream: Stream) -> Result<(), CallError> {
        // SAFETY: by this function's own contract.
        unsafe { read_back(&self.context, from, into, stream) }
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if self.context.is_home() {
            // Nobody is left to be told; what matters is that the device has stopped reading.
            let _ = self.wait();
        }
    }
}
