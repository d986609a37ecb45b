//! What a GPU does with slots, as Python says it: arrays, streams, and a slot that is given back only when the GPU is done.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sidecar_cuda::fence::{Fence, Stream};
use sidecar_cuda::ring::Arrival;
use sidecar_shm::worker;

/// A slot on its way back to the sidecar, when nothing of Python needs it any more.
#[must_use = "`end` it once no lock is held"]
pub(crate) struct Parting {
    /// Dropped first: it waits for the device.
    fence: Option<Fence>,
    /// What the device may read until then.
    arrival: Option<Arrival>,
    lent: worker::Observation,
}

impl Parting {
    pub(crate) fn new(lent: worker::Observation, fence: Option<Fence>, arrival: Option<Arrival>) -> Self {
        Self { fence, arrival, lent }
    }

    /// Its session is over.
    pub(crate) fn cancelled(&self) -> bool {
        self.lent.cancelled()
    }

    /// Gives it back, once the device is done with it. Without the interpreter where that has to be waited for: a
    /// callback in the stream may want it.
    pub(crate) fn end(self) {
        if self.fence.as_ref().is_none_or(Fence::is_idle) {
            return drop(self);
        }
        let mut waits = Some(self);
        // At the interpreter's end there is none to be let go of.
        Python::try_attach(|py| {
            let parting = waits.take();
            py.detach(|| drop(parting));
        });
    }

    /// A forked child has nothing to give back.
    pub(crate) fn forget(self) {
        core::mem::forget((self.fence, self.arrival));
        core::mem::forget(self.lent);
    }
}

/// A stream as Python has it: a number, or an object of PyTorch (`cuda_stream`), CuPy (`ptr`), or with NVIDIA's own
/// protocol (`__cuda_stream__`).
///
/// # Errors
/// It is none of these.
pub(crate) fn stream(object: &Bound<'_, PyAny>) -> PyResult<Stream> {
    let handle = if let Ok(number) = object.extract::<usize>() {
        number
    } else if let Ok(of_torch) = object.getattr("cuda_stream") {
        of_torch.extract()?
    } else if let Ok(protocol) = object.getattr("__cuda_stream__") {
        // A version, and the handle.
        protocol.call0()?.extract::<(u32, usize)>()?.1
    } else if let Ok(of_cupy) = object.getattr("ptr") {
        of_cupy.extract()?
    } else {
        return Err(PyTypeError::new_err(
            "a stream is a number, or a stream of PyTorch or CuPy: torch.cuda.current_stream()",
        ));
    };
    // SAFETY: whoever passes a stream from Python says that it is one, as for every library that takes streams there.
    Ok(unsafe { Stream::from_raw(handle) })
}

/// An array on the device, by `__cuda_array_interface__`.
pub(crate) struct Array {
    pub(crate) start: u64,
    pub(crate) bytes: usize,
    /// What it is ready on; `None`: nothing is said.
    pub(crate) stream: Option<Stream>,
}

impl Array {
    /// To be written to.
    ///
    /// # Errors
    /// It is no array on a device, read-only, or has gaps.
    pub(crate) fn target(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let interface = object.getattr("__cuda_array_interface__").map_err(|_| {
            PyTypeError::new_err("the target is no array on a GPU: it has no __cuda_array_interface__")
        })?;
        let (array, read_only) = Self::read(&interface, "the target")?;
        if read_only {
            return Err(PyValueError::new_err("the target is read-only"));
        }
        Ok(array)
    }

    /// To be read from. `None`: it is no array on a device.
    ///
    /// # Errors
    /// It has gaps.
    pub(crate) fn source(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        let Ok(interface) = object.getattr("__cuda_array_interface__") else { return Ok(None) };
        Ok(Some(Self::read(&interface, "the action")?.0))
    }

    fn read(interface: &Bound<'_, PyAny>, what: &str) -> PyResult<(Self, bool)> {
        let interface = interface.cast::<PyDict>()?;
        let field = |name: &str| {
            interface
                .get_item(name)?
                .ok_or_else(|| PyValueError::new_err(format!("__cuda_array_interface__ has no {name}")))
        };
        let (start, read_only) = field("data")?.extract::<(u64, bool)>()?;
        if interface.get_item("strides")?.is_some_and(|strides| !strides.is_none()) {
            return Err(PyValueError::new_err(format!("{what} has gaps: make it contiguous")));
        }
        let shape = field("shape")?.extract::<Vec<usize>>()?;
        // "<f4": byte order, kind, bytes.
        let kind = field("typestr")?.extract::<String>()?;
        let size = kind.get(2..).and_then(|size| size.parse::<usize>().ok());
        let bytes = size.and_then(|size| shape.iter().try_fold(size, |bytes, side| bytes.checked_mul(*side)));
        let bytes = bytes
            .ok_or_else(|| PyValueError::new_err(format!("{what} is of type {kind}, which is not known")))?;
        let handle = interface.get_item("stream")?.filter(|handle| !handle.is_none());
        let handle = handle.map(|handle| handle.extract::<usize>()).transpose()?;
        // SAFETY: whoever names a stream in this protocol says that it is one.
        let stream = handle.map(|handle| unsafe { Stream::from_raw(handle) });
        Ok((Self { start, bytes, stream }, read_only))
    }
}
