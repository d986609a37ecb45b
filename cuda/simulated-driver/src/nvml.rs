//! The calls of NVML that this project uses.
#![expect(clippy::missing_safety_doc, reason = "NVML's own documentation says what its callers promise")]
#![expect(missing_docs, reason = "NVML's own documentation says what they do")]

use core::ffi::{CStr, c_char, c_void};

use crate::driver::write_text;
use crate::state::{self, Needs, State, call, hyphenated};

const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const DRIVER_NOT_LOADED: u32 = 9;

/// `nvmlMemory_t`.
#[repr(C)]
pub struct Memory {
    pub total: u64,
    pub free: u64,
    pub used: u64,
}

fn usable(state: &State) -> Result<(), u32> {
    if state.nvml_users == 0 { Err(UNINITIALIZED) } else { Ok(()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> u32 {
    call("nvmlInit_v2", Needs::Nothing, |state| {
        state.configure();
        if !state.config.as_ref().is_some_and(|config| config.nvml) {
            return Err(DRIVER_NOT_LOADED);
        }
        state.nvml_users += 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> u32 {
    call("nvmlShutdown", Needs::Nothing, |state| {
        usable(state).inspect_err(|_| state.violation("nvmlShutdown without nvmlInit".into()))?;
        state.nvml_users -= 1;
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(into: *mut c_char, length: u32) -> u32 {
    call("nvmlSystemGetDriverVersion", Needs::Nothing, |state| {
        usable(state)?;
        // SAFETY: valid for `length` bytes, says the caller.
        unsafe { write_text(into, length as usize, "550.54.15") }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut *mut c_void) -> u32 {
    call("nvmlDeviceGetHandleByUUID", Needs::Nothing, |state| {
        usable(state)?;
        // SAFETY: a C string, says the caller.
        let wanted = unsafe { CStr::from_ptr(uuid) }.to_str().map_err(|_| INVALID_ARGUMENT)?;
        let known =
            |it: &&state::Device| ["GPU-", "MIG-"].iter().any(|kind| hyphenated(kind, it.uuid) == wanted);
        let found = state.machine.iter().find(known).ok_or(NOT_FOUND)?;
        // SAFETY: valid for a handle, says the caller. Handles count from 1: 0 is none.
        unsafe { *device = core::ptr::without_provenance_mut(found.smi_index as usize + 1) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: *mut c_void, index: *mut u32) -> u32 {
    call("nvmlDeviceGetIndex", Needs::Nothing, |state| {
        usable(state)?;
        let at =
            device.addr().checked_sub(1).filter(|at| *at < state.machine.len()).ok_or(INVALID_ARGUMENT)?;
        // SAFETY: valid for a number, says the caller.
        unsafe { *index = state.machine[at].smi_index };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: *mut c_void, memory: *mut Memory) -> u32 {
    call("nvmlDeviceGetMemoryInfo", Needs::Nothing, |state| {
        usable(state)?;
        let at =
            device.addr().checked_sub(1).filter(|at| *at < state.machine.len()).ok_or(INVALID_ARGUMENT)?;
        let total = state.machine[at].total as u64;
        let used = 1 << 30;
        // SAFETY: valid for the struct, says the caller.
        unsafe { *memory = Memory { total, free: total - used, used } };
        Ok(())
    })
}
