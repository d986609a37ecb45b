//! Loom models of the concurrent code in `sidecar-shm`, and of the handoffs in `sidecar`: of the code itself, over loom's
//! atomics and cells.
//!
//! A module for each race. Beside the models of each, its *teeth*: the same model with one memory order or fence of the
//! real code weakened (`sidecar_shm::sync::orders::Orders`), which has to fail. So a model that could not see the
//! mistake is noticed, and so is an order that nobody needs. README.md has the list.
//!
//! Without `--cfg sidecar_loom` there is nothing here.

#[cfg(all(test, sidecar_loom))]
mod doorbell;
#[cfg(all(test, sidecar_loom))]
mod gateway;
#[cfg(all(test, sidecar_loom))]
mod handoff;
#[cfg(all(test, sidecar_loom))]
mod memory;
#[cfg(all(test, sidecar_loom))]
mod reuse;
#[cfg(all(test, sidecar_loom))]
mod ring;
#[cfg(all(test, sidecar_loom))]
mod room;
#[cfg(all(test, sidecar_loom))]
mod seats;
#[cfg(all(test, sidecar_loom))]
mod stage;
#[cfg(all(test, sidecar_loom))]
mod support;
#[cfg(all(test, sidecar_loom))]
mod takeover;
#[cfg(all(test, sidecar_loom))]
mod wakeup;
