//! Host memory that the driver allocated for its copies: with it a measurement shows what the bus can do.
//!
//! Nothing else wants it. A region's slots are registered ([`crate::pin`]): two processes have them mapped.

use core::ffi::c_void;
use std::sync::Arc;

use crate::code::CallError;
use crate::context::Context;
use crate::device::{DeviceMemory, OwnedStream};
use crate::driver::call;

/// Page-locked by birth, and not write-combined.
#[derive(Debug)]
pub struct HostMemory {
    context: Arc<Context>,
    start: *mut c_void,
    length: usize,
}

impl HostMemory {
    /// `length` bytes of it, all of them 0.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If no bytes are asked for, which CUDA does not have.
    pub fn new(context: Arc<Context>, length: usize) -> Result<Self, CallError> {
        assert!(length > 0, "0 bytes of host memory were asked for");
        let mut start = core::ptr::null_mut();
        let entered = context.enter()?;
        // SAFETY: the pointer is valid for an address, and a context is current.
        unsafe { call!(entered.driver(), cuMemHostAlloc(&raw mut start, length, 0)) }?;
        drop(entered);
        // SAFETY: the driver allocated as many bytes there, and nobody else knows of them.
        unsafe { start.cast::<u8>().write_bytes(0, length) };
        Ok(Self { context, start, length })
    }

    /// Copies the first `length` bytes to a device, `times` in a row, and waits until all of it is there.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Panics
    /// If either memory has fewer bytes.
    pub fn send(
        &self,
        length: usize,
        times: usize,
        to: &DeviceMemory,
        stream: &OwnedStream,
    ) -> Result<(), CallError> {
        let most = self.length.min(to.len());
        assert!(length <= most, "{length} bytes of {most}");
        let entered = self.context.enter()?;
        let queue = || {
            let handle = stream.stream().raw();
            // SAFETY: both have as many bytes (asserted above), and live until the stream was waited for, see below.
            unsafe { call!(entered.driver(), cuMemcpyHtoDAsync_v2(to.start(), self.start, length, handle)) }
        };
        let queued = (0..times).try_for_each(|_| queue());
        // Also after an error: nothing may be on its way when the borrows end. Where waiting fails the context has
        // stopped, and copies nothing any more.
        let finished = stream.synchronize();
        queued.and(finished)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if !self.context.is_home() {
            return;
        }
        if let Ok(entered) = self.context.enter() {
            // SAFETY: the memory is ours, no copy out of it is queued (see `send`), and this is its end.
            let _ = unsafe { call!(entered.driver(), cuMemFreeHost(self.start)) };
        }
    }
}
