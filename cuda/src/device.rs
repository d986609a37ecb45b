//! A stream and memory on a device, with owners. What copies ahead or measures uses them; a worker's own memory is its
//! framework's.

use core::ffi::c_void;
use core::fmt;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUstream};

use crate::code::CallError;
use crate::context::Context;
use crate::driver::call;
use crate::fence::Stream;

/// `CU_STREAM_NON_BLOCKING`: not ordered with the default stream (cuda.h).
const NON_BLOCKING: u32 = 1;

/// A stream of our own. Dropped, it finishes what is on it.
pub struct OwnedStream {
    context: Arc<Context>,
    handle: CUstream,
}

// SAFETY: streams are handles that any thread may use at the same time as others.
unsafe impl Send for OwnedStream {}
// SAFETY: as above.
unsafe impl Sync for OwnedStream {}

impl fmt::Debug for OwnedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OwnedStream").finish_non_exhaustive()
    }
}

impl OwnedStream {
    /// A new one in a context.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn new(context: Arc<Context>) -> Result<Self, CallError> {
        let mut handle = core::ptr::null_mut();
        let entered = context.enter()?;
        // SAFETY: the pointer is valid for a handle, and a context is current.
        unsafe { call!(entered.driver(), cuStreamCreate(&raw mut handle, NON_BLOCKING)) }?;
        drop(entered);
        Ok(Self { context, handle })
    }

    /// For calls that take any stream. Not to be used longer than this lives.
    pub fn stream(&self) -> Stream {
        // SAFETY: it is the handle of a stream of this context.
        unsafe { Stream::from_raw(self.handle.expose_provenance()) }
    }

    /// As CUDA has it, for calls of others. Not to be used longer than this lives.
    pub const fn raw_handle(&self) -> *mut c_void {
        self.handle.cast()
    }

    /// Waits until everything on it is done.
    ///
    /// # Errors
    /// What went wrong with it.
    pub fn synchronize(&self) -> Result<(), CallError> {
        let entered = self.context.enter()?;
        // SAFETY: the stream is ours.
        unsafe { call!(entered.driver(), cuStreamSynchronize(self.handle)) }
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        if !self.context.is_home() {
            return;
        }
        // What is on it may still read memory that its owner gives back next; nobody is left to be told of errors.
        let _ = self.synchronize();
        if let Ok(entered) = self.context.enter() {
            // SAFETY: the stream is ours, and this is its end.
            let _ = unsafe { call!(entered.driver(), cuStreamDestroy_v2(self.handle)) };
        }
    }
}

/// Memory on a device.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Arc<Context>,
    start: CUdeviceptr,
    length: usize,
}

/// Memory of no bytes was asked for, which CUDA does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AllocationError {
    /// No bytes.
    #[error("0 bytes of device memory were asked for")]
    Empty,
    /// The driver refuses.
    #[error("{bytes} bytes of device memory: {error}")]
    Refused {
        /// How many.
        bytes: usize,
        /// What it said.
        error: CallError,
    },
}

impl DeviceMemory {
    /// `length` bytes of it, with anything in them.
    ///
    /// # Errors
    /// See [`AllocationError`].
    pub fn new(context: Arc<Context>, length: usize) -> Result<Self, AllocationError> {
        if length == 0 {
            return Err(AllocationError::Empty);
        }
        let mut start = 0;
        let allocated = context.enter().and_then(|entered| {
            // SAFETY: the pointer is valid for an address, and a context is current.
            unsafe { call!(entered.driver(), cuMemAlloc_v2(&raw mut start, length)) }
        });
        allocated.map_err(|error| AllocationError::Refused { bytes: length, error })?;
        Ok(Self { context, start, length })
    }

    /// Its address on the device.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// How many bytes it has.
    #[expect(clippy::len_without_is_empty, reason = "it is never empty")]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Copies its first bytes back, and waits for it.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If it has fewer bytes than are asked for.
    pub fn read(&self, into: &mut [u8], stream: &OwnedStream) -> Result<(), CallError> {
        assert!(into.len() <= self.length, "{} bytes of {}", into.len(), self.length);
        // SAFETY: it has as many bytes (asserted above), and the stream lives.
        unsafe { read_back(&self.context, self.start, into, stream.stream()) }
    }
}

/// Copies bytes back from a device, behind all that is on the stream, and waits for it.
///
/// # Errors
/// The driver refuses, or something on the stream went wrong before.
///
/// # Safety
/// The memory at `from` has as many bytes as `into`, and like the stream it lives until this returns.
pub unsafe fn read_back(
    context: &Context,
    from: u64,
    into: &mut [u8],
    stream: Stream,
) -> Result<(), CallError> {
    if into.is_empty() {
        return Ok(());
    }
    let entered = context.enter()?;
    let to = into.as_mut_ptr().cast();
    // SAFETY: the source is the caller's promise; `into` is borrowed until the copy is over, see below.
    let queued = unsafe { call!(entered.driver(), cuMemcpyDtoHAsync_v2(to, from, into.len(), stream.raw())) };
    // Also after an error: nothing may be on its way into `into` when the borrow ends.
    // SAFETY: the stream lives, says the caller.
    let finished = unsafe { call!(entered.driver(), cuStreamSynchronize(stream.raw())) };
    queued.and(finished)
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.context.is_home() {
            return;
        }
        if let Ok(entered) = self.context.enter() {
            // SAFETY: the memory is ours, and this is its end; the driver waits for work that uses it (cuMemFree).
            let _ = unsafe { call!(entered.driver(), cuMemFree_v2(self.start)) };
        }
    }
}
