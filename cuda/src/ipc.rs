//! Memory and events of one process in another.

use core::time::Duration;
use std::sync::Arc;

use cudarc::driver::sys::{CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle};
use sidecar_shm::clock;
use sidecar_shm::device::HANDLE_BYTES;

use crate::code::{CallError, Code};
use crate::context::{Context, Entered};
use crate::device::{DeviceMemory, OwnedStream};
use crate::driver::call;

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS` (cuda.h; the second wants the first). Who waits for it spins:
/// what is waited for is a part's copy, which a wake-up would outlast.
const FLAGS: u32 = 2 | 4;
/// A part is copied within microseconds, and within milliseconds where the device is busy with others. A process that
/// died over it never records the event.
const PATIENCE: Duration = Duration::from_secs(2);
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag there is.
const LAZY: u32 = 1;

/// An event that other processes can wait for.
#[derive(Debug)]
pub(crate) struct SharedEvent {
    context: Arc<Context>,
    event: CUevent,
}

// SAFETY: an event is a handle that any thread may use at the same time as others.
unsafe impl Send for SharedEvent {}
// SAFETY: as above.
unsafe impl Sync for SharedEvent {}

impl SharedEvent {
    /// A new one, of this process.
    pub(crate) fn new(context: Arc<Context>) -> Result<Self, CallError> {
        let mut event = core::ptr::null_mut();
        let made = context.enter().and_then(|entered| {
            // SAFETY: the pointer is valid for a handle, and a context is current.
            unsafe { call!(entered.driver(), cuEventCreate(&raw mut event, FLAGS)) }
        });
        made.map(|()| Self { context, event })
    }

    /// What opens it in another process.
    pub(crate) fn handle(&self) -> Result<[u8; HANDLE_BYTES], CallError> {
        let mut handle = CUipcEventHandle { reserved: [0; HANDLE_BYTES] };
        let entered = self.context.enter()?;
        // SAFETY: the pointer is valid for a handle, and the event is ours.
        unsafe { call!(entered.driver(), cuIpcGetEventHandle(&raw mut handle, self.event)) }?;
        Ok(handle.reserved.map(i8::cast_unsigned))
    }

    /// Another process's.
    pub(crate) fn open(context: Arc<Context>, handle: &[u8; HANDLE_BYTES]) -> Result<Self, CallError> {
        let handle = CUipcEventHandle { reserved: handle.map(u8::cast_signed) };
        let mut event = core::ptr::null_mut();
        let opened = context.enter().and_then(|entered| {
            // SAFETY: the pointer is valid for a handle; the driver checks the bytes of the other one.
            unsafe { call!(entered.driver(), cuIpcOpenEventHandle(&raw mut event, handle)) }
        });
        opened.map(|()| Self { context, event })
    }

    /// What CUDA calls the device in this process.
    pub(crate) fn device(&self) -> i32 {
        self.context.device
    }

    /// It is reached when everything that is on the stream now is done.
    pub(crate) fn record(&self, stream: &OwnedStream) -> Result<(), CallError> {
        let entered = self.context.enter()?;
        // SAFETY: event and stream are of this context and live.
        unsafe { call!(entered.driver(), cuEventRecord(self.event, stream.stream().raw())) }
    }

    /// Waits for the last record of it, for as long as a process that lives can need. No stream is ever told to wait for
    /// it: if the other process dies over the copy, that would be for ever.
    pub(crate) fn wait(&self) -> Result<(), CallError> {
        let entered = self.context.enter()?;
        let started = clock::now();
        while !self.is_reached(&entered)? {
            if clock::now().since(started) > PATIENCE {
                return Err(CallError { call: "cuEventQuery", code: Code::NOT_READY });
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn is_reached(&self, entered: &Entered<'_>) -> Result<bool, CallError> {
        // SAFETY: the event lives.
        match unsafe { call!(entered.driver(), cuEventQuery(self.event)) } {
            Ok(()) => Ok(true),
            Err(error) if error.code == Code::NOT_READY => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Drop for SharedEvent {
    fn drop(&mut self) {
        if !self.context.is_home() {
            return;
        }
        if let Ok(entered) = self.context.enter() {
            // SAFETY: made or opened by this process, and this is its end here.
            let _ = unsafe { call!(entered.driver(), cuEventDestroy_v2(self.event)) };
        }
    }
}

/// What opens memory of this process in another.
pub(crate) fn memory_handle(
    context: &Context,
    memory: &DeviceMemory,
) -> Result<[u8; HANDLE_BYTES], CallError> {
    let mut handle = CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    let entered = context.enter()?;
    // SAFETY: the pointer is valid for a handle, and the memory is ours.
    unsafe { call!(entered.driver(), cuIpcGetMemHandle(&raw mut handle, memory.start())) }?;
    Ok(handle.reserved.map(i8::cast_unsigned))
}

/// Another process's memory on a device, open here.
#[derive(Debug)]
pub(crate) struct OpenedMemory {
    context: Arc<Context>,
    start: CUdeviceptr,
}

impl OpenedMemory {
    pub(crate) fn new(context: Arc<Context>, handle: &[u8; HANDLE_BYTES]) -> Result<Self, CallError> {
        let handle = CUipcMemHandle { reserved: handle.map(u8::cast_signed) };
        let mut start = 0;
        let opened = context.enter().and_then(|entered| {
            // SAFETY: the pointer is valid for an address; the driver checks the bytes of the handle.
            unsafe { call!(entered.driver(), cuIpcOpenMemHandle_v2(&raw mut start, handle, LAZY)) }
        });
        opened.map(|()| Self { context, start })
    }

    pub(crate) const fn start(&self) -> u64 {
        self.start
    }
}

impl Drop for OpenedMemory {
    fn drop(&mut self) {
        if !self.context.is_home() {
            return;
        }
        if let Ok(entered) = self.context.enter() {
            // SAFETY: opened by this process, and this is its end here.
            let _ = unsafe { call!(entered.driver(), cuIpcCloseMemHandle(self.start)) };
        }
    }
}
