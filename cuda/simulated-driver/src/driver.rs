//! The calls of the driver API that this project uses, under their own names.
#![expect(clippy::missing_safety_doc, reason = "CUDA's own documentation says what its callers promise")]
#![expect(missing_docs, reason = "CUDA's own documentation says what they do")]

use core::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::driver::sys::{
    CUcontext, CUdevice_attribute as Attribute, CUdeviceptr, CUevent, CUipcEventHandle, CUipcMemHandle,
    CUstream, CUuuid,
};

use crate::control;
use crate::state::{
    self, INVALID_DEVICE, INVALID_VALUE, NO_DEVICE, Needs, State, call, machine, pop, push, visible,
};

/// `CU_COMPUTEMODE_EXCLUSIVE_PROCESS`.
const EXCLUSIVE: c_int = 3;
/// `CU_CTX_...` handles: device 0 has this one, so that 0 is none.
const FIRST_CONTEXT: usize = 0xC7C0_0000;

/// Writes a C string, cut where the space ends.
///
/// # Safety
/// `into` is valid for writes of `length` bytes.
pub(crate) unsafe fn write_text(into: *mut c_char, length: usize, text: &str) -> Result<(), u32> {
    let bytes = text.as_bytes();
    let Some(fits) = length.checked_sub(1).map(|most| most.min(bytes.len())) else {
        return Err(INVALID_VALUE);
    };
    // SAFETY: `fits` is below `length`, for which the caller says it is valid.
    unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast::<u8>(), fits) };
    // SAFETY: as above.
    let end = unsafe { into.add(fits) };
    // SAFETY: as above.
    unsafe { end.write(0) };
    Ok(())
}

/// `CU_STREAM_LEGACY` and `CU_STREAM_PER_THREAD` are the default stream here.
fn handle(stream: CUstream) -> usize {
    match stream.addr() {
        1 | 2 => 0,
        handle => handle,
    }
}

/// Writes a result.
///
/// # Safety
/// `into` is valid for a write, says the caller of the driver.
unsafe fn give<T>(into: *mut T, value: T) -> Result<(), u32> {
    if into.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and valid as the caller says.
    unsafe { into.write(value) };
    Ok(())
}

impl State {
    /// Reads the configuration, once.
    pub(crate) fn configure(&mut self) {
        if self.config.is_none() {
            self.config = Some(control::from_environment());
        }
        if let Some(config) = &self.config
            && self.machine.is_empty()
        {
            self.machine = machine(config);
            self.devices = visible(&self.machine, config.visible.as_deref());
        }
    }

    fn known(&mut self, device: c_int, name: &str) -> Result<state::Device, u32> {
        let found = self.device(device).cloned();
        found.ok_or_else(|| {
            self.violation(format!("{name} of device {device}, which is not there"));
            INVALID_DEVICE
        })
    }
}

macro_rules! driver {
    ($(
        $needs:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) |$state:ident| $body:block
    )+) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> u32 {
                call(stringify!($name), Needs::$needs, |$state: &mut State| $body)
            }
            // The signature is CUDA's, but for the code: an enum in Rust may not hold one that it does not know.
            const _: unsafe fn($($type),*) -> cudarc::driver::sys::CUresult = cudarc::driver::sys::$name;
        )+
    };
}

driver! {
    Nothing fn cuInit(_flags: c_uint) |state| {
        state.configure();
        match state.config.as_ref().map_or(0, |config| config.init) {
            0 if state.devices.is_empty() => Err(NO_DEVICE),
            0 => {
                state.initialised = true;
                Ok(())
            }
            code => Err(code),
        }
    }

    Nothing fn cuDriverGetVersion(version: *mut c_int) |_state| {
        // SAFETY: valid, says the caller.
        unsafe { give(version, 12_040) }
    }

    Init fn cuDeviceGetCount(count: *mut c_int) |state| {
        // SAFETY: valid, says the caller. There are few devices.
        unsafe { give(count, state.devices.len() as c_int) }
    }

    Init fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |state| {
        state.known(ordinal, "cuDeviceGet")?;
        // SAFETY: valid, says the caller.
        unsafe { give(device, ordinal) }
    }

    Init fn cuDeviceGetName(name: *mut c_char, length: c_int, device: c_int) |state| {
        let known = state.known(device, "cuDeviceGetName")?;
        let length = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
        // SAFETY: valid for `length` bytes, says the caller.
        unsafe { write_text(name, length, &known.name) }
    }

    Init fn cuDeviceGetUuid(uuid: *mut CUuuid, device: c_int) |state| {
        let mut bytes = state.known(device, "cuDeviceGetUuid")?.uuid;
        if state.config.as_ref().is_some_and(|config| config.mig) {
            // The GPU that the instance is a part of.
            bytes[2] = 0xFF;
        }
        // SAFETY: valid, says the caller.
        unsafe { give(uuid, CUuuid { bytes: bytes.map(u8::cast_signed) }) }
    }

    Init fn cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: c_int) |state| {
        let bytes = state.known(device, "cuDeviceGetUuid_v2")?.uuid;
        // SAFETY: valid, says the caller.
        unsafe { give(uuid, CUuuid { bytes: bytes.map(u8::cast_signed) }) }
    }

    Init fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |state| {
        let total = state.known(device, "cuDeviceTotalMem_v2")?.total;
        // SAFETY: valid, says the caller.
        unsafe { give(bytes, total) }
    }

    Init fn cuDeviceGetAttribute(value: *mut c_int, attribute: Attribute, device: c_int) |state| {
        state.known(device, "cuDeviceGetAttribute")?;
        let maps = state.config.as_ref().is_some_and(|config| config.map);
        let found = match attribute {
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => 8,
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => 9,
            Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
            | Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED => c_int::from(maps),
            Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_MODE => {
                if state.config.as_ref().is_some_and(|config| config.exclusive) { EXCLUSIVE } else { 0 }
            }
            _ => return state.refuse(format!("attribute {} is not simulated", attribute as u32), INVALID_VALUE),
        };
        // SAFETY: valid, says the caller.
        unsafe { give(value, found) }
    }

    Init fn cuDeviceGetPCIBusId(id: *mut c_char, length: c_int, device: c_int) |state| {
        let known = state.known(device, "cuDeviceGetPCIBusId")?;
        let length = usize::try_from(length).map_err(|_| INVALID_VALUE)?;
        // SAFETY: valid for `length` bytes, says the caller.
        unsafe { write_text(id, length, &known.bus) }
    }

    Init fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: c_int) |state| {
        state.known(device, "cuDevicePrimaryCtxRetain")?;
        *state.retained.entry(device).or_insert(0) += 1;
        // SAFETY: valid, says the caller. `known` said that the number is not negative.
        unsafe { give(context, core::ptr::without_provenance_mut(FIRST_CONTEXT + device as usize)) }
    }

    Init fn cuDevicePrimaryCtxRelease_v2(device: c_int) |state| {
        match state.retained.get_mut(&device) {
            Some(holds) if *holds > 0 => {
                *holds -= 1;
                Ok(())
            }
            _ => state.refuse(
                format!("cuDevicePrimaryCtxRelease of device {device}, which nobody retains"),
                state::INVALID_CONTEXT,
            ),
        }
    }

    Init fn cuCtxPushCurrent_v2(context: CUcontext) |state| {
        let device = context.addr().checked_sub(FIRST_CONTEXT).and_then(|it| c_int::try_from(it).ok());
        match device.filter(|device| state.retained.get(device).is_some_and(|holds| *holds > 0)) {
            Some(device) => {
                push(device);
                Ok(())
            }
            None => state.refuse(format!("{context:?} is no context that lives"), state::INVALID_CONTEXT),
        }
    }

    Init fn cuCtxPopCurrent_v2(context: *mut CUcontext) |state| {
        let Some(device) = pop() else {
            return state.refuse("cuCtxPopCurrent where none is current".into(), state::INVALID_CONTEXT);
        };
        // SAFETY: valid, says the caller. Only numbers from 0 on are pushed.
        unsafe { give(context, core::ptr::without_provenance_mut(FIRST_CONTEXT + device as usize)) }
    }

    Context fn cuMemHostRegister_v2(address: *mut c_void, length: usize, flags: c_uint) |state| {
        state.register(address.expose_provenance(), length, flags)
    }

    Context fn cuMemHostUnregister(address: *mut c_void) |state| {
        state.unregister(address.addr())
    }

    Context fn cuMemHostGetDevicePointer_v2(pointer: *mut CUdeviceptr, address: *mut c_void, _flags: c_uint) |state| {
        let found = state.device_pointer(address.addr())?;
        // SAFETY: valid, says the caller.
        unsafe { give(pointer, found) }
    }

    Context fn cuMemHostAlloc(pointer: *mut *mut c_void, length: usize, flags: c_uint) |state| {
        let made = state.allocate_host(length, flags)?;
        // SAFETY: valid, says the caller.
        unsafe { give(pointer, core::ptr::with_exposed_provenance_mut(made)) }
    }

    Context fn cuMemFreeHost(address: *mut c_void) |state| {
        state.free_host(address.addr())
    }

    Context fn cuMemAlloc_v2(pointer: *mut CUdeviceptr, length: usize) |state| {
        let device = state.current().unwrap_or(0);
        let made = state.allocate(device, length)?;
        // SAFETY: valid, says the caller.
        unsafe { give(pointer, made) }
    }

    Context fn cuMemFree_v2(pointer: CUdeviceptr) |state| {
        state.free(pointer)
    }

    Context fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, length: usize, stream: CUstream) |state| {
        state.copy_to_device(to, from.expose_provenance(), length, handle(stream))
    }

    Context fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, length: usize, stream: CUstream) |state| {
        state.copy_to_host(to.expose_provenance(), from, length, handle(stream))
    }

    Context fn cuStreamCreate(stream: *mut CUstream, _flags: c_uint) |state| {
        let made = state.make_stream();
        // SAFETY: valid, says the caller.
        unsafe { give(stream, core::ptr::without_provenance_mut(made)) }
    }

    Context fn cuStreamDestroy_v2(stream: CUstream) |state| {
        state.destroy_stream(handle(stream))
    }

    Context fn cuStreamQuery(stream: CUstream) |state| {
        state.query_stream(handle(stream))
    }

    Context fn cuStreamSynchronize(stream: CUstream) |state| {
        state.finish_stream(handle(stream), "cuStreamSynchronize")
    }

    Context fn cuStreamWaitEvent(stream: CUstream, event: CUevent, _flags: c_uint) |state| {
        state.wait(handle(stream), event.addr())
    }

    Context fn cuEventCreate(event: *mut CUevent, flags: c_uint) |state| {
        let made = state.make_event(flags);
        // SAFETY: valid, says the caller.
        unsafe { give(event, core::ptr::without_provenance_mut(made)) }
    }

    Context fn cuEventDestroy_v2(event: CUevent) |state| {
        state.destroy_event(event.addr())
    }

    Context fn cuEventRecord(event: CUevent, stream: CUstream) |state| {
        state.record(event.addr(), handle(stream))
    }

    Context fn cuEventQuery(event: CUevent) |state| {
        state.query_event(event.addr())
    }

    Context fn cuEventSynchronize(event: CUevent) |state| {
        state.finish_event(event.addr())
    }

    Context fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, pointer: CUdeviceptr) |state| {
        let reserved = state.export_memory(pointer)?.map(u8::cast_signed);
        // SAFETY: valid, says the caller.
        unsafe { give(handle, CUipcMemHandle { reserved }) }
    }

    Context fn cuIpcOpenMemHandle_v2(pointer: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) |state| {
        let opened = state.import_memory(&handle.reserved.map(i8::cast_unsigned), flags)?;
        // SAFETY: valid, says the caller.
        unsafe { give(pointer, opened) }
    }

    Context fn cuIpcCloseMemHandle(pointer: CUdeviceptr) |state| {
        state.close_memory(pointer)
    }

    Context fn cuIpcGetEventHandle(handle: *mut CUipcEventHandle, event: CUevent) |state| {
        let reserved = state.export_event(event.addr())?.map(u8::cast_signed);
        // SAFETY: valid, says the caller.
        unsafe { give(handle, CUipcEventHandle { reserved }) }
    }

    Context fn cuIpcOpenEventHandle(event: *mut CUevent, handle: CUipcEventHandle) |state| {
        let opened = state.import_event(&handle.reserved.map(i8::cast_unsigned))?;
        // SAFETY: valid, says the caller.
        unsafe { give(event, core::ptr::without_provenance_mut(opened)) }
    }
}
