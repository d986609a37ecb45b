//! A device's primary context: the one that the CUDA runtime, and with it PyTorch and JAX, use in the same process.

use core::ffi::c_int;
use core::fmt;
use core::marker::PhantomData;

use cudarc::driver::sys::CUcontext;

use crate::code::{CallError, Code};
use crate::driver::{Driver, call};
use crate::fence::Event;

/// How often is asked before what is reported counts as broken: a failure that was left, one that asking met, and a
/// clean answer.
const PENDING: u32 = 3;

/// A hold on a primary context. The context is made by the first hold of the process and goes with the last.
pub struct Context {
    pub(crate) driver: Driver,
    pub(crate) device: c_int,
    handle: CUcontext,
    /// CUDA does not work in a forked child; what is dropped there must not call it.
    process: u32,
}

// SAFETY: a context is a handle that the driver lets any thread make current, at the same time as others.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.device).finish_non_exhaustive()
    }
}

/// Whether a failure of a call left anything behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aftermath {
    /// The next call is a new start.
    Clean,
    /// The context is broken for good: every call that uses it fails from here on, also other code's.
    Broken,
}

impl Context {
    /// Holds the primary context of a device, which is made if it is not there.
    ///
    /// # Errors
    /// The driver refuses: no such device, no memory on it, used exclusively by another process.
    pub fn primary(driver: Driver, device: c_int) -> Result<Self, CallError> {
        let mut handle = core::ptr::null_mut();
        // SAFETY: the pointer is valid for a handle.
        unsafe { call!(driver, cuDevicePrimaryCtxRetain(&raw mut handle, device)) }?;
        Ok(Self { driver, device, handle, process: std::process::id() })
    }

    /// Makes it current on this thread for as long as what this returns lives; then the one of before is again.
    pub(crate) fn enter(&self) -> Result<Entered<'_>, CallError> {
        // SAFETY: the handle is of a context that this holds.
        unsafe { call!(self.driver, cuCtxPushCurrent_v2(self.handle)) }?;
        Ok(Entered { context: self, _this_thread: PhantomData })
    }

    /// Whether this is still the process that it was made in.
    pub(crate) fn is_home(&self) -> bool {
        std::process::id() == self.process
    }

    /// Takes what a failed call may have left for the next one, so that no innocent call reports it.
    ///
    /// Making an event is the question: it changes nothing, is allowed while a graph is captured, and reports what is
    /// pending (cuEventCreate).
    pub fn settle(&self) -> Aftermath {
        let Ok(entered) = self.enter() else { return Aftermath::Broken };
        for _ in 0..PENDING {
            if Event::make(&entered).is_ok_and(|event| event.destroy(&entered).is_ok()) {
                return Aftermath::Clean;
            }
        }
        Aftermath::Broken
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_home() {
            // SAFETY: this is one hold, given back once. At the end of the process the driver may be gone before us.
            let _ = unsafe { call!(self.driver, cuDevicePrimaryCtxRelease_v2(self.device)) };
        }
    }
}

/// A context that is current on this thread.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    pub(crate) context: &'a Context,
    _this_thread: PhantomData<*mut ()>,
}

impl Entered<'_> {
    pub(crate) fn driver(&self) -> &Driver {
        &self.context.driver
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut popped = core::ptr::null_mut();
        // SAFETY: the pointer is valid for a handle; the context was pushed on this thread, which cannot have changed.
        let _ = unsafe { call!(self.context.driver, cuCtxPopCurrent_v2(&raw mut popped)) };
    }
}

/// Whether an error only says that the process ends and the driver went first.
pub(crate) const fn is_end(code: Code) -> bool {
    code.0 == Code::DEINITIALIZED.0
}
