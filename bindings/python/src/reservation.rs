//! An action slot that Python writes in place: `obs.reserve(n)`, then `obs.answer(reservation)`.

use core::ffi::c_int;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyRuntimeError};
use pyo3::ffi;
use pyo3::prelude::*;
use sidecar_shm::worker;

use crate::errors::{Home, no_pickle};
use crate::payload::{Access, fill_view};

/// Writable bytes of an action slot. Whoever answers with it must have let go of all views: the sidecar reads it then.
#[pyclass(frozen, weakref, module = "sidecar")]
pub(crate) struct Reservation {
    state: Mutex<State>,
    nbytes: usize,
    /// Of the observation that it was made for.
    sequence: u64,
    home: Home,
}

struct State {
    /// `None`: answered with, or given back.
    slot: Option<worker::Reservation>,
    views: usize,
}

impl Reservation {
    pub(crate) fn new(slot: worker::Reservation, sequence: u64, home: Home) -> Self {
        let nbytes = slot.len();
        Self { state: Mutex::new(State { slot: Some(slot), views: 0 }), nbytes, sequence, home }
    }

    /// Takes the slot, to answer the observation `sequence` with it.
    ///
    /// # Errors
    /// It is another observation's, was used already, or somebody could still write it.
    pub(crate) fn take(&self, sequence: u64) -> PyResult<worker::Reservation> {
        if sequence != self.sequence {
            let mine = self.sequence;
            return Err(PyRuntimeError::new_err(format!(
                "reserved by observation {mine}, not by {sequence}"
            )));
        }
        let mut state = self.lock();
        if state.views > 0 {
            return Err(in_use(state.views));
        }
        state.slot.take().ok_or_else(gone)
    }

    /// What [`Reservation::take`] took.
    pub(crate) fn put_back(&self, slot: worker::Reservation) {
        self.lock().slot = Some(slot);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn in_use(views: usize) -> PyErr {
    PyBufferError::new_err(format!(
        "{views} views of the reservation are alive and could still write it; delete them"
    ))
}

fn gone() -> PyErr {
    PyBufferError::new_err("the reservation was used already")
}

#[pymethods]
impl Reservation {
    /// How many bytes there are.
    #[getter]
    fn nbytes(&self) -> usize {
        self.nbytes
    }

    /// Gives the slot back unused.
    fn release(&self) -> PyResult<()> {
        self.home.check("Reservation")?;
        let slot = {
            let mut state = self.lock();
            if state.views > 0 {
                return Err(in_use(state.views));
            }
            state.slot.take()
        };
        drop(slot);
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        _type: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        self.release()
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        this.home.check("Reservation")?;
        let mut state = this.lock();
        let slot = state.slot.as_mut().ok_or_else(gone)?;
        let bytes = slot.as_mut_slice().as_mut_ptr();
        // SAFETY: the view is the interpreter's. The slot stays this object's while views are counted (`take`), and
        // the view holds the object.
        unsafe { fill_view(view, slf.as_any(), bytes, this.nbytes, Access::Writable, flags)? };
        state.views += 1;
        Ok(())
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.lock().views -= 1;
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("Reservation"))
    }

    fn __repr__(&self) -> String {
        let state = self.lock();
        let used = if state.slot.is_some() { "" } else { ", used" };
        format!("<sidecar.Reservation of {} bytes, {} views{used}>", self.nbytes, state.views)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if !self.home.is_here() {
            core::mem::forget(self.lock().slot.take());
        }
    }
}
