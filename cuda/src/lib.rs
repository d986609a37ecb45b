//! The GPU, as far as a sidecar and its worker have to know it.
//!
//! ```text
//!  discovery   which GPUs there are, in nvidia-smi's order     pin         the region's slots, page-locked
//!  lock        one sidecar per GPU                             context     a device's primary context, made current
//!  numa        where the GPU's memory bus is                   ahead       what arrives, copied to a ring on the device
//!                                                              ring        that ring, opened by the worker
//!  └──────┬──────────────────────────────────────────────────────┘
//!   driver, nvml   the two libraries, opened at run time: the same program runs where there are none
//! ```
//!
//! Nothing here panics because a driver is missing, too old or broken: [`driver::Unavailable`] says which, and the
//! program goes on without a GPU where it can.
//!
//! It refuses to know tunnels, sessions, kernels, or the CUDA runtime.

pub mod ahead;
pub mod code;
pub mod context;
pub mod device;
pub mod discovery;
pub mod driver;
pub mod fence;
pub mod host;
mod ipc;
pub mod lock;
pub mod numa;
pub mod nvml;
pub mod pin;
pub mod pinned;
pub mod ring;
#[cfg(feature = "simulated-driver")]
mod simulated;
pub mod worker;
