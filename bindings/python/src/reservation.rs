//! An action slot that Python writes in place: `obs.reserve(n)`, then `obs.answer(reservation)`.

use core::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use sidecar_shm::worker;

use crate::errors::{self, Home, no_pickle};
use crate::payload::{Access, fill_view};
use crate::workers::Shared;

/// An action slot, written in place: `numpy.frombuffer(reservation, dtype)[:] = ...`.
///
/// All views of it have to be gone before it is given to `answer`: the sidecar reads it from then on.
#[pyclass(frozen, weakref, module = "sidecar")]
pub(crate) struct Reservation {
    state: Mutex<State>,
    nbytes: usize,
    /// The observation that it was made for: its worker, its sidecar, its number there.
    shared: Arc<Shared>,
    member: usize,
    sequence: u64,
    home: Home,
}

struct State {
    /// `None`: answered with, or given back.
    slot: Option<worker::Reservation>,
    views: usize,
}

impl Reservation {
    pub(crate) fn new(
        slot: worker::Reservation,
        shared: Arc<Shared>,
        member: usize,
        sequence: u64,
        home: Home,
    ) -> Self {
        let nbytes = slot.len();
        let state = Mutex::new(State { slot: Some(slot), views: 0 });
        Self { state, nbytes, shared, member, sequence, home }
    }

    /// Takes the slot, to answer the observation `sequence` of that worker's sidecar `member` with it.
    ///
    /// # Errors
    /// It is another observation's, was used already, or somebody could still write it.
    pub(crate) fn take(
        &self,
        shared: &Arc<Shared>,
        member: usize,
        sequence: u64,
    ) -> PyResult<worker::Reservation> {
        if !Arc::ptr_eq(shared, &self.shared) {
            return Err(errors::mismatch("the reservation is of another Worker"));
        }
        if (member, sequence) != (self.member, self.sequence) {
            return Err(errors::mismatch(&format!(
                "reserved by observation {} of sidecar {}, not by {sequence} of {member}",
                self.sequence, self.member
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
