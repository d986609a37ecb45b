//! Where a test build takes its driver and its machine from. Not compiled into a product.

use std::path::PathBuf;

/// The simulated driver's library.
const DRIVER: &str = "SIDECAR_SIMULATED_CUDA_DRIVER";
/// A directory with `sys` and `proc` as the test wants them.
const ROOT: &str = "SIDECAR_SIMULATED_ROOT";

/// The library to load in place of the system's, if the test names one.
pub(crate) fn driver() -> Option<PathBuf> {
    std::env::var_os(DRIVER).map(PathBuf::from)
}

/// What stands for `/`.
pub(crate) fn root() -> Option<PathBuf> {
    std::env::var_os(ROOT).map(PathBuf::from)
}
