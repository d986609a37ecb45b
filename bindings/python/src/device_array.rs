//! An observation that lies on the GPU already (`--device-copy`), as an array there.
//!
//! It counts as a view: the slot on the host, and with it the one on the GPU, is given back only when no array is left.

use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};
use sidecar_cuda::code::CallError;
use sidecar_cuda::fence::Stream;
use sidecar_cuda::ring::Arrival;

use crate::device;
use crate::dlpack::{self, Export, Flags, Place};
use crate::errors::{self, Home, no_pickle};
use crate::observation::{Observation, View};

/// The legacy default stream as both protocols have it: there 0 is ambiguous.
const LEGACY: usize = 1;

/// See the module's text.
#[pyclass(frozen, weakref, module = "sidecar")]
pub(crate) struct DeviceArray {
    observation: Py<Observation>,
    arrival: Arrival,
    /// A stream that was told to wait for the bytes.
    waiting: Mutex<Option<Stream>>,
    home: Home,
}

impl DeviceArray {
    /// The observation has counted it as a view.
    pub(crate) const fn new(observation: Py<Observation>, arrival: Arrival, home: Home) -> Self {
        Self { observation, arrival, waiting: Mutex::new(None), home }
    }

    /// Without the interpreter: a callback in a stream may want it.
    fn await_bytes(&self, py: Python<'_>) -> PyResult<()> {
        py.detach(|| self.arrival.wait()).map_err(refused)
    }
}

fn refused(error: CallError) -> PyErr {
    errors::state(&error.to_string())
}

#[pymethods]
impl DeviceArray {
    /// Waits until the bytes are there, for what is put on this stream from now on; two seconds at most, since a sidecar
    /// that died over the copy never finishes it.
    #[pyo3(signature = (stream=None))]
    fn wait(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.home.check("DeviceArray")?;
        let stream = stream.map_or(Ok(Stream::DEFAULT), device::stream)?;
        self.await_bytes(py)?;
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream);
        Ok(())
    }

    /// Where its first byte lies.
    #[getter]
    fn pointer(&self) -> u64 {
        self.arrival.address()
    }

    /// How many bytes it has.
    #[getter]
    fn nbytes(&self) -> usize {
        self.arrival.len()
    }

    /// Version 3, as bytes. Not every consumer looks at the stream that it names, so the bytes are waited for here,
    /// unless a stream was told to.
    #[getter(__cuda_array_interface__)]
    fn cuda_array_interface<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        self.home.check("DeviceArray")?;
        let waiting = *self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.is_none() {
            self.await_bytes(py)?;
        }
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", (self.arrival.len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("strides", py.None())?;
        interface.set_item("data", (self.arrival.address(), false))?;
        interface.set_item("stream", waiting.map(|stream| stream.handle().max(LEGACY)))?;
        Ok(interface)
    }

    /// The payload as a tensor of bytes, for use on the stream that the consumer names.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<isize>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let this = slf.get();
        this.home.check("DeviceArray")?;
        let here = this.__dlpack_device__();
        if dl_device.is_some_and(|device| device != here) {
            return Err(PyBufferError::new_err(format!("the payload lies on DLPack device {here:?}")));
        }
        if copy == Some(true) {
            return Err(PyBufferError::new_err("no copy is made on the GPU; copy the tensor"));
        }
        // Once they are there they are there for every stream, whichever the consumer names.
        let _ = stream;
        this.await_bytes(slf.py())?;
        let observation = this.observation.bind(slf.py());
        let hold = Box::new(View::of(observation)?);
        let bytes = core::ptr::without_provenance_mut(this.arrival.address() as usize);
        let export = Export { bytes, place: here, length: this.arrival.len(), flags: Flags::NONE, hold };
        dlpack::export(slf.py(), export, max_version)
    }

    /// Where the payload lies: on this process's number of the GPU.
    fn __dlpack_device__(&self) -> Place {
        (dlpack::CUDA, self.arrival.device())
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("DeviceArray"))
    }

    fn __repr__(&self) -> String {
        format!(
            "<sidecar.DeviceArray of {} bytes at {:#x} on device {}>",
            self.arrival.len(),
            self.arrival.address(),
            self.arrival.device()
        )
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.observation)
    }
}

impl Drop for DeviceArray {
    fn drop(&mut self) {
        self.observation.get().end_view();
    }
}
