//! The driver library, opened at run time, as a table of the functions that are used.
//!
//! cudarc gives types and signatures; the library is opened here and not by cudarc, which panics where it is missing,
//! looks for `libcuda.so` before `libcuda.so.1` (a toolkit's link-time stub has the first name), and reads codes into
//! an enum that may not hold a newer driver's.

mod table;

use core::ffi::{c_char, c_int};
use core::fmt;

use crate::code::{CallError, Code};
use table::Table;

/// What the driver's package installs, in the order in which it is looked for.
const NAMES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

/// Why there is no GPU to be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unavailable {
    /// No driver is installed, or this process may not see it.
    #[error("no NVIDIA driver: {text}")]
    NoLibrary {
        /// What the loader said.
        text: String,
    },
    /// The library is no CUDA driver, or one from before 2021.
    #[error("the NVIDIA driver has no {symbol}: it is older than 470, or no driver at all")]
    TooOld {
        /// The function that is missing.
        symbol: &'static str,
    },
    /// The driver is there, and says that nothing can be used.
    #[error("{}", no_device(visible.as_deref()))]
    NoDevice {
        /// `CUDA_VISIBLE_DEVICES`, where it is set.
        visible: Option<String>,
    },
    /// The driver could not be started.
    #[error("the NVIDIA driver does not start: {0}{hint}", hint = start_hint(.0.code))]
    Broken(#[from] CallError),
}

fn no_device(visible: Option<&str>) -> String {
    match visible {
        None => "the NVIDIA driver sees no GPU".to_owned(),
        Some(list) => format!("the NVIDIA driver sees no GPU, with CUDA_VISIBLE_DEVICES=\"{list}\""),
    }
}

fn start_hint(code: Code) -> &'static str {
    match code.0 {
        34 => "; this is a toolkit's stub, take its directory out of LD_LIBRARY_PATH",
        803 | 804 => {
            "; its library and its kernel module have different versions, a reboot loads the installed one"
        }
        802 => "; the machine's fabric manager is not up yet",
        999 => "; the module nvidia_uvm may not be loaded, or this container was not given the device",
        _ => "",
    }
}

/// A started driver that shows at least one device. Never unloaded: other code of the process may be using it.
#[derive(Clone, Copy)]
pub struct Driver {
    pub(crate) table: Table,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Calls a driver function inside an `unsafe` block of the caller, and gives its code a meaning.
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        $crate::driver::check(stringify!($name), ($driver.table.$name)($($argument),*))
    };
}
pub(crate) use call;

/// 0 is success.
pub(crate) fn check(call: &'static str, code: u32) -> Result<(), CallError> {
    if code == 0 { Ok(()) } else { Err(CallError { call, code: Code(code) }) }
}

impl Driver {
    /// Opens the installed driver and starts it. Makes no context.
    ///
    /// # Errors
    /// See [`Unavailable`].
    pub fn open() -> Result<Self, Unavailable> {
        #[cfg(feature = "simulated-driver")]
        if let Some(path) = crate::simulated::driver() {
            return Self::open_at(&path);
        }
        let mut text = String::new();
        for name in NAMES {
            match open_library(name.as_ref()) {
                Ok(library) => return Self::start(library),
                // The first name's reason is the one that counts.
                Err(error) if text.is_empty() => text = error,
                Err(_) => {}
            }
        }
        Err(Unavailable::NoLibrary { text })
    }

    /// Opens the library under a path, for tests.
    ///
    /// # Errors
    /// See [`Unavailable`].
    #[cfg(feature = "simulated-driver")]
    pub fn open_at(path: &std::path::Path) -> Result<Self, Unavailable> {
        let library = open_library(path.as_os_str()).map_err(|text| Unavailable::NoLibrary { text })?;
        Self::start(library)
    }

    fn start(library: libloading::Library) -> Result<Self, Unavailable> {
        let table = Table::of(library).map_err(|symbol| Unavailable::TooOld { symbol })?;
        let driver = Self { table };
        // SAFETY: the function takes flags alone; 0 is the only value that it knows.
        let started = unsafe { call!(driver, cuInit(0)) };
        let nothing = || Unavailable::NoDevice { visible: std::env::var("CUDA_VISIBLE_DEVICES").ok() };
        match started {
            Err(error) if error.code == Code::NO_DEVICE => return Err(nothing()),
            other => other?,
        }
        if driver.device_count()? == 0 { Err(nothing()) } else { Ok(driver) }
    }

    /// How many devices there are.
    pub(crate) fn device_count(&self) -> Result<c_int, CallError> {
        let mut count = 0;
        // SAFETY: the pointer is valid for a number.
        unsafe { call!(self, cuDeviceGetCount(&raw mut count)) }?;
        Ok(count)
    }

    /// The version of CUDA that the driver speaks, as major and minor.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn cuda_version(&self) -> Result<(u32, u32), CallError> {
        let mut version = 0;
        // SAFETY: the pointer is valid for a number.
        unsafe { call!(self, cuDriverGetVersion(&raw mut version)) }?;
        // 1000 x major + 10 x minor (cuDriverGetVersion).
        let version = version.unsigned_abs();
        Ok((version / 1000, version % 1000 / 10))
    }
}

/// Opens a library for good.
pub(crate) fn open_library(name: &std::ffi::OsStr) -> Result<libloading::Library, String> {
    // SAFETY: opening runs the library's initialisers. It is the driver that the system's administrator installed, or
    // in a test build the simulated one; both may be loaded at any time from any thread.
    unsafe { libloading::Library::new(name) }.map_err(|error| {
        // The loader's own words, which name the file, are one level down.
        core::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// The text in a buffer that a C function wrote.
pub(crate) fn text(buffer: &[c_char]) -> String {
    let bytes: Vec<u8> =
        buffer.iter().map(|byte| byte.cast_unsigned()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}
