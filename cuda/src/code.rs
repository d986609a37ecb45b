//! Error codes of the driver API, as numbers: a driver that is newer than this program may give others.

use core::fmt;

/// A `CUresult` that is not success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code(pub u32);

impl Code {
    /// Out of memory; also what a host without memory to page-lock gives.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// The driver is shutting down: the process ends.
    pub const DEINITIALIZED: Self = Self(4);
    /// No device, or `CUDA_VISIBLE_DEVICES` hides them.
    pub const NO_DEVICE: Self = Self(100);
    /// No context is current, or it is gone.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// The work is not done yet: no error.
    pub const NOT_READY: Self = Self(600);
    /// The range is page-locked already.
    pub const ALREADY_REGISTERED: Self = Self(712);
    /// The range is not page-locked.
    pub const NOT_REGISTERED: Self = Self(713);
}

/// Names from `cuda.h` (driver API, `CUresult`) of the codes that a user of this crate can meet.
const NAMES: [(u32, &str); 26] = [
    (1, "CUDA_ERROR_INVALID_VALUE"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY"),
    (3, "CUDA_ERROR_NOT_INITIALIZED"),
    (4, "CUDA_ERROR_DEINITIALIZED"),
    (34, "CUDA_ERROR_STUB_LIBRARY"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    (100, "CUDA_ERROR_NO_DEVICE"),
    (101, "CUDA_ERROR_INVALID_DEVICE"),
    (201, "CUDA_ERROR_INVALID_CONTEXT"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM"),
    (400, "CUDA_ERROR_INVALID_HANDLE"),
    (600, "CUDA_ERROR_NOT_READY"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"),
    (719, "CUDA_ERROR_LAUNCH_FAILED"),
    (800, "CUDA_ERROR_NOT_PERMITTED"),
    (801, "CUDA_ERROR_NOT_SUPPORTED"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE"),
    (999, "CUDA_ERROR_UNKNOWN"),
];

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(code, _)| *code == self.0) {
            Some((code, name)) => write!(f, "{name} ({code})"),
            None => write!(f, "CUDA error {}", self.0),
        }
    }
}

/// A call of the driver that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call}: {code}")]
pub struct CallError {
    /// The driver's function.
    pub call: &'static str,
    /// What it gave.
    pub code: Code,
}
