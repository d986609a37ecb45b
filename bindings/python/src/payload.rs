//! Bytes out of whatever Python calls bytes: `bytes`, anything with the buffer protocol (bytearray, memoryview, numpy),
//! anything with DLPack in memory that a CPU reads (torch, jax). They are copied once, into the action slot.

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::dlpack::Tensor;

/// An action before it is copied.
pub(crate) enum Payload<'py> {
    Bytes(Bound<'py, PyBytes>),
    Buffer(View<'py>),
    Tensor(Tensor<'py>),
}

impl<'py> Payload<'py> {
    /// # Errors
    /// `TypeError`, which says what would do; whatever the object itself raises.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self::Bytes(bytes.clone()));
        }
        // SAFETY: the interpreter is attached, and the object is alive.
        if unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) } != 0 {
            return Ok(Self::Buffer(View::of(object)?));
        }
        if let Some(tensor) = Tensor::of(object)? {
            return Ok(Self::Tensor(tensor));
        }
        Err(PyTypeError::new_err(format!(
            "an action is bytes, or has the buffer protocol (bytearray, memoryview, numpy.ndarray) or DLPack \
             (torch.Tensor on the CPU), not {}",
            object.get_type().name()?
        )))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.as_bytes().len(),
            Self::Buffer(view) => view.len(),
            Self::Tensor(tensor) => tensor.len(),
        }
    }

    /// Copies all bytes in C order; `into` is as long.
    pub(crate) fn copy(&self, into: &mut [u8]) -> PyResult<()> {
        match self {
            Self::Bytes(bytes) => into.copy_from_slice(bytes.as_bytes()),
            Self::Buffer(view) => view.copy(into)?,
            Self::Tensor(tensor) => tensor.copy(into),
        }
        Ok(())
    }
}

/// A view that was asked for by the buffer protocol. While it exists the object keeps its memory and its size.
pub(crate) struct View<'py> {
    // In a box: its owner may keep pointers into it (`shape` often points to `len`).
    view: Box<ffi::Py_buffer>,
    py: Python<'py>,
}

impl<'py> View<'py> {
    fn of(object: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = object.py();
        let mut view = Box::new(MaybeUninit::<ffi::Py_buffer>::zeroed());
        // SAFETY: the interpreter is attached, the object is alive, and `view` is valid for writing.
        let result =
            unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), view.as_mut_ptr(), ffi::PyBUF_FULL_RO) };
        if result != 0 {
            return Err(PyErr::fetch(py));
        }
        // SAFETY: the call succeeded, which filled it in (and zeroed bytes are a value of the struct, too).
        let view = Self { view: unsafe { view.assume_init() }, py };
        if !view.view.format.is_null() {
            let format: *const c_char = view.view.format;
            // SAFETY: a format is a C string that lives as long as the view.
            let format = unsafe { CStr::from_ptr(format) };
            if format.to_bytes().contains(&b'O') {
                return Err(PyBufferError::new_err(
                    "an array of Python objects is no action; give it a number type",
                ));
            }
        }
        Ok(view)
    }

    fn len(&self) -> usize {
        // Never negative, by the protocol.
        self.view.len.cast_unsigned()
    }

    fn copy(&self, into: &mut [u8]) -> PyResult<()> {
        debug_assert_eq!(into.len(), self.len());
        // SAFETY: the view is filled in and not released, and `into` is valid for writing of as many bytes.
        let result = unsafe {
            ffi::PyBuffer_ToContiguous(
                into.as_mut_ptr().cast(),
                (&raw const *self.view).cast_mut(),
                self.view.len,
                b'C' as c_char,
            )
        };
        if result != 0 {
            return Err(PyErr::fetch(self.py));
        }
        Ok(())
    }
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        // SAFETY: `py` says that the interpreter is attached; the view was filled in, and is released only here.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.view) };
    }
}

/// Fills in a view of `length` bytes for the buffer protocol.
///
/// # Errors
/// `BufferError` if a writable view of read-only bytes was asked for.
///
/// # Safety
/// `view` is the one that the interpreter gave to `__getbuffer__` of `owner`; the bytes stay valid, and are written by
/// others in no way that matters to the reader, until the matching `__releasebuffer__`.
pub(crate) unsafe fn fill_view(
    view: *mut ffi::Py_buffer,
    owner: &Bound<'_, PyAny>,
    bytes: *mut u8,
    length: usize,
    access: Access,
    flags: core::ffi::c_int,
) -> PyResult<()> {
    let read_only = core::ffi::c_int::from(access == Access::ReadOnly);
    // A slice never has more bytes than an isize can count.
    let length = length.cast_signed();
    // SAFETY: the interpreter is attached (`owner` is bound); the rest is this function's own contract.
    let result =
        unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), bytes.cast(), length, read_only, flags) };
    if result != 0 {
        return Err(PyErr::fetch(owner.py()));
    }
    Ok(())
}

/// What a view allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    ReadOnly,
    Writable,
}
