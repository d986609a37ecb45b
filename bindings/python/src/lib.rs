//! The extension module behind the Python package `sidecar`: regions, observations and actions. Hooks, iteration and
//! failure handling are written in Python (`py_src/sidecar`).
//!
//! ```text
//!  workers       attaching, waiting (without the interpreter), what came
//!  observation   one slot as a Python object: counts its views, answers, gives itself back
//!  reservation   an action slot that Python writes in place
//!  payload       bytes out of whatever Python calls bytes, into an action slot, once
//!  device        slots page-locked for a GPU, and copied to it
//!  dlpack        the tensor exchange structs, both ways
//!  errors        ours to Python's
//! ```
//!
//! **Views.** A view of a slot (buffer or DLPack) holds the object that owns the slot. The slot goes back to the
//! sidecar when the object has neither views nor further use, never before: no view can see it used again.
//!
//! **Locks** are taken either for a moment, or without the interpreter; nobody waits for the interpreter with one
//! in hand.
//!
//! **Fork.** A forked child has the parent's rings mapped for writing. Every operation there is refused, and what the
//! child drops is forgotten instead of said to the sidecar in the parent's name.

mod device;
mod device_array;
mod dlpack;
mod errors;
mod observation;
mod payload;
mod reservation;
mod workers;

use pyo3::prelude::*;

/// The module. Its objects have locks of their own, but were not tried without the interpreter's.
#[pymodule(gil_used = true)]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::watch_forks()?;
    module.add_class::<workers::Workers>()?;
    module.add_class::<observation::Observation>()?;
    module.add_class::<device_array::DeviceArray>()?;
    module.add_class::<reservation::Reservation>()?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
