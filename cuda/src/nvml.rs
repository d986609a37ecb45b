//! NVIDIA's management library, for what CUDA only tells inside of a context: free memory, and nvidia-smi's numbers.
//!
//! It comes with the driver, but may be missing in a container; then those facts are unknown, and nothing else changes.

use core::ffi::{CStr, c_char, c_void};
use core::fmt;
use std::ffi::CString;

use crate::driver::{open_library, text};

/// What the driver's package installs.
const NAME: &str = "libnvidia-ml.so.1";

/// `nvmlMemory_t`: bytes.
#[repr(C)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// NVML, initialised; shut down when dropped.
pub struct Nvml {
    shutdown: unsafe extern "C" fn() -> u32,
    driver_version: unsafe extern "C" fn(*mut c_char, u32) -> u32,
    handle_by_uuid: unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> u32,
    index: unsafe extern "C" fn(*mut c_void, *mut u32) -> u32,
    memory: unsafe extern "C" fn(*mut c_void, *mut Memory) -> u32,
}

impl fmt::Debug for Nvml {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Nvml").finish_non_exhaustive()
    }
}

/// A device as NVML calls it.
#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

impl Nvml {
    /// Opens the library and starts it.
    ///
    /// # Errors
    /// What is missing, for people.
    pub fn open() -> Result<Self, String> {
        #[cfg(feature = "simulated-driver")]
        if let Some(path) = crate::simulated::driver() {
            return Self::start(open_library(path.as_os_str())?);
        }
        Self::start(open_library(NAME.as_ref())?)
    }

    /// Opens the library under a path, for tests.
    ///
    /// # Errors
    /// As [`Nvml::open`].
    #[cfg(feature = "simulated-driver")]
    pub fn open_at(path: &std::path::Path) -> Result<Self, String> {
        Self::start(open_library(path.as_os_str())?)
    }

    fn start(library: libloading::Library) -> Result<Self, String> {
        /// A function of the signature that `T` says.
        fn function<T: Copy>(library: &libloading::Library, name: &str) -> Result<T, String> {
            // SAFETY: each caller names the type that nvml.h gives the function.
            let symbol = unsafe { library.get::<T>(name) };
            symbol.map(|symbol| *symbol).map_err(|_| format!("{NAME} has no {name}"))
        }
        let init: unsafe extern "C" fn() -> u32 = function(&library, "nvmlInit_v2")?;
        let nvml = Self {
            shutdown: function(&library, "nvmlShutdown")?,
            driver_version: function(&library, "nvmlSystemGetDriverVersion")?,
            handle_by_uuid: function(&library, "nvmlDeviceGetHandleByUUID")?,
            index: function(&library, "nvmlDeviceGetIndex")?,
            memory: function(&library, "nvmlDeviceGetMemoryInfo")?,
        };
        // SAFETY: takes nothing, may be called more than once.
        let code = unsafe { init() };
        if code != 0 {
            // It was not started: nothing is to be shut down.
            core::mem::forget(nvml);
            return Err(format!("nvmlInit: error {code}"));
        }
        // Its functions are kept as plain pointers, so that it has to stay.
        core::mem::forget(library);
        Ok(nvml)
    }

    /// The driver's version, such as `550.54.15`.
    pub fn driver_version(&self) -> Option<String> {
        let mut buffer = [0; 96];
        // SAFETY: valid for the length told.
        let code = unsafe { (self.driver_version)(buffer.as_mut_ptr(), buffer.len() as u32) };
        (code == 0).then(|| text(&buffer))
    }

    /// Free bytes of the device with this UUID.
    pub fn free_memory(&self, uuid: &str) -> Option<u64> {
        let handle = self.handle(uuid)?;
        let mut memory = Memory { total: 0, free: 0, used: 0 };
        // SAFETY: the handle came from this library, the pointer is valid for the struct.
        let code = unsafe { (self.memory)(handle.0, &raw mut memory) };
        (code == 0).then_some(memory.free)
    }

    /// What nvidia-smi calls the device with this UUID.
    pub fn index(&self, uuid: &str) -> Option<u32> {
        let handle = self.handle(uuid)?;
        let mut index = 0;
        // SAFETY: the handle came from this library, the pointer is valid for a number.
        let code = unsafe { (self.index)(handle.0, &raw mut index) };
        (code == 0).then_some(index)
    }

    fn handle(&self, uuid: &str) -> Option<Handle> {
        let uuid = CString::new(uuid).ok()?;
        let uuid: &CStr = &uuid;
        let mut handle = core::ptr::null_mut();
        // SAFETY: a C string that lives through the call, and a pointer that is valid for a handle.
        let code = unsafe { (self.handle_by_uuid)(uuid.as_ptr(), &raw mut handle) };
        (code == 0).then_some(Handle(handle))
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: it was started once by us. What it says is of no use to anybody any more.
        let _ = unsafe { (self.shutdown)() };
    }
}
