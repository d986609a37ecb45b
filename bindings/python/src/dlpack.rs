//! DLPack, both ways: a slot as a tensor of bytes, and an action out of a tensor.
//!
//! The structs are those of dlpack.h 1.0 (<https://github.com/dmlc/dlpack>), which are frozen for its major version 1;
//! the unversioned one is what everybody spoke before. A capsule whose name does not begin with `used_` still owns its
//! tensor.

use core::ffi::{CStr, c_void};
use core::ptr::{self, NonNull};

use pyo3::exceptions::{PyBufferError, PyTypeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{IntoPyDict, PyCapsule, PyCapsuleMethods};

const PLAIN: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const MAJOR: u32 = 1;
/// Flags of the versioned struct.
#[derive(Clone, Copy)]
pub(crate) struct Flags(u64);

impl Flags {
    pub(crate) const NONE: Self = Self(0);
    pub(crate) const READ_ONLY: Self = Self(1);
    pub(crate) const IS_COPIED: Self = Self(2);
}

/// Type and number of a device.
pub(crate) type Place = (i32, i32);
/// Device types whose memory a CPU reads: kDLCPU, and page-locked memory of CUDA and ROCm.
pub(crate) const CPU: i32 = 1;
const HOST_MEMORY: [i32; 3] = [CPU, 3, 11];
/// kDLCUDA.
pub(crate) const CUDA: i32 = 2;
/// kDLUInt.
const UNSIGNED: u8 = 1;

#[derive(Clone, Copy)]
#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct DataType {
    code: u8,
    bits: u8,
    lanes: u16,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    kind: DataType,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// What keeps exported bytes where they are.
pub(crate) trait Hold: Send + 'static {
    /// The bytes are not needed any more.
    fn release(self: Box<Self>, py: Python<'_>);
}

/// A copy of its own.
impl Hold for Vec<u8> {
    fn release(self: Box<Self>, _py: Python<'_>) {}
}

/// Bytes to be exported.
pub(crate) struct Export {
    pub(crate) bytes: *mut u8,
    pub(crate) place: Place,
    pub(crate) length: usize,
    pub(crate) flags: Flags,
    pub(crate) hold: Box<dyn Hold>,
}

/// The managed struct, first, so that a pointer to one is a pointer to the other; and what it points to.
#[repr(C)]
struct Exported<M> {
    managed: M,
    shape: [i64; 1],
    strides: [i64; 1],
    hold: Option<Box<dyn Hold>>,
}

impl<M> Exported<M> {
    fn make(
        export: Export,
        managed: impl FnOnce(DlTensor) -> M,
        tensor: fn(&mut M) -> &mut DlTensor,
    ) -> NonNull<Self> {
        // A slice never has more bytes than an isize can count.
        let length = export.length as i64;
        let empty = DlTensor {
            data: export.bytes.cast(),
            device: Device { kind: export.place.0, id: export.place.1 },
            dimensions: 1,
            kind: DataType { code: UNSIGNED, bits: 8, lanes: 1 },
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            byte_offset: 0,
        };
        let exported =
            Self { managed: managed(empty), shape: [length], strides: [1], hold: Some(export.hold) };
        let exported = Box::leak(Box::new(exported));
        let (shape, strides) = (exported.shape.as_mut_ptr(), exported.strides.as_mut_ptr());
        let tensor = tensor(&mut exported.managed);
        tensor.shape = shape;
        tensor.strides = strides;
        NonNull::from(exported)
    }

    /// The deleter of either struct.
    ///
    /// # Safety
    /// `managed` is the first field of a leaked `Exported<M>`, which nobody uses any more.
    unsafe extern "C" fn delete(managed: *mut M) {
        // SAFETY: by the contract above; `repr(C)` puts the field at the start of the struct.
        let mut exported = unsafe { Box::from_raw(managed.cast::<Self>()) };
        let Some(hold) = exported.hold.take() else { return };
        let mut hold = Some(hold);
        // Consumers call this from any thread. An interpreter that is being shut down takes its objects along.
        Python::try_attach(|py| {
            if let Some(hold) = hold.take() {
                hold.release(py);
            }
        });
        core::mem::forget(hold);
    }
}

/// A capsule for `__dlpack__`; a versioned one if the consumer understands those.
pub(crate) fn export(
    py: Python<'_>,
    export: Export,
    max_version: Option<(u32, u32)>,
) -> PyResult<Bound<'_, PyCapsule>> {
    if max_version.is_some_and(|(major, _)| major >= MAJOR) {
        let Flags(flags) = export.flags;
        let deleter = Some(Exported::<ManagedVersioned>::delete as unsafe extern "C" fn(_));
        let managed = |tensor| ManagedVersioned {
            major: MAJOR,
            minor: 0,
            context: ptr::null_mut(),
            deleter,
            flags,
            tensor,
        };
        let exported = Exported::make(export, managed, |managed| &mut managed.tensor);
        // SAFETY: the struct was leaked for the capsule, whose name says what it is and whose destructor frees it.
        return unsafe {
            PyCapsule::new_with_pointer_and_destructor(py, exported.cast(), VERSIONED, Some(drop_versioned))
        };
    }
    let deleter = Some(Exported::<Managed>::delete as unsafe extern "C" fn(_));
    let managed = |tensor| Managed { tensor, context: ptr::null_mut(), deleter };
    let exported = Exported::make(export, managed, |managed| &mut managed.tensor);
    // SAFETY: as above.
    unsafe { PyCapsule::new_with_pointer_and_destructor(py, exported.cast(), PLAIN, Some(drop_plain)) }
}

/// # Safety
/// Called by the interpreter with a capsule made by [`export`].
unsafe extern "C" fn drop_plain(capsule: *mut ffi::PyObject) {
    // SAFETY: the capsule is alive; one that was consumed has another name, and is its consumer's business.
    if unsafe { ffi::PyCapsule_IsValid(capsule, PLAIN.as_ptr()) } == 1 {
        // SAFETY: it was found valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, PLAIN.as_ptr()) };
        // SAFETY: nobody consumed it, so it is still the leaked struct and nobody else's.
        unsafe { Exported::<Managed>::delete(managed.cast()) };
    }
}

/// # Safety
/// As [`drop_plain`].
unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: as in `drop_plain`.
    if unsafe { ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) } == 1 {
        // SAFETY: it was found valid under this name.
        let managed = unsafe { ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()) };
        // SAFETY: as in `drop_plain`.
        unsafe { Exported::<ManagedVersioned>::delete(managed.cast()) };
    }
}

/// Somebody else's tensor in memory that a CPU reads, kept alive by its capsule.
pub(crate) struct Tensor<'py> {
    #[expect(dead_code, reason = "its destructor frees the tensor, since nobody consumed it")]
    capsule: Bound<'py, PyCapsule>,
    data: *const u8,
    item: usize,
    shape: Vec<usize>,
    /// In bytes.
    strides: Vec<isize>,
}

impl<'py> Tensor<'py> {
    /// `None`: the object has no DLPack.
    ///
    /// # Errors
    /// `TypeError` for a tensor that is elsewhere or of a type that has no whole bytes; what the object raises.
    pub(crate) fn of(object: &Bound<'py, PyAny>) -> PyResult<Option<Self>> {
        if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
            return Ok(None);
        }
        let (kind, id): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if !HOST_MEMORY.contains(&kind) {
            return Err(PyTypeError::new_err(format!(
                "the action lies on DLPack device ({kind}, {id}); move it to the CPU first, for example with .cpu()"
            )));
        }
        let py = object.py();
        let newest = [("max_version", (MAJOR, 0_u32))].into_py_dict(py)?;
        let capsule = match object.call_method("__dlpack__", (), Some(&newest)) {
            Ok(capsule) => capsule,
            // From before there were versions.
            Err(error) if error.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
            Err(error) => return Err(error),
        };
        let capsule = capsule.cast_into::<PyCapsule>()?;
        Self::read(capsule).map(Some)
    }

    fn read(capsule: Bound<'py, PyCapsule>) -> PyResult<Self> {
        let tensor: NonNull<DlTensor> = if capsule.is_valid_checked(Some(VERSIONED)) {
            let managed = capsule.pointer_checked(Some(VERSIONED))?.cast::<ManagedVersioned>();
            // SAFETY: a capsule of this name holds this struct; the version comes first in every version of it.
            let major = unsafe { (*managed.as_ptr()).major };
            if major != MAJOR {
                return Err(PyBufferError::new_err(format!(
                    "a DLPack tensor of version {major}; this reads {MAJOR}"
                )));
            }
            // SAFETY: the place of a field of the struct that the capsule holds.
            NonNull::from(unsafe { &(*managed.as_ptr()).tensor })
        } else {
            // The plain struct begins with its tensor.
            capsule.pointer_checked(Some(PLAIN))?.cast()
        };
        // SAFETY: the capsule holds it, and is alive.
        let DlTensor { data, dimensions, kind, shape, strides, byte_offset, .. } =
            unsafe { ptr::read(tensor.as_ptr()) };
        let bits = usize::from(kind.bits) * usize::from(kind.lanes);
        if bits == 0 || !bits.is_multiple_of(8) {
            return Err(PyTypeError::new_err(format!("elements of {bits} bits are no whole bytes")));
        }
        let item = bits / 8;
        let bad = || PyBufferError::new_err("a DLPack tensor with a shape that can't be");
        let dimensions = usize::try_from(dimensions).map_err(|_| bad())?;
        let read = |array: *const i64| {
            (0..dimensions).map(move |at| {
                // Within the array, which has as many elements as there are dimensions.
                let element = array.wrapping_add(at);
                // SAFETY: shape and strides, where given, are arrays that live as long as the tensor.
                unsafe { *element }
            })
        };
        let shape: Vec<usize> = if dimensions == 0 {
            Vec::new()
        } else {
            read(shape).map(|extent| usize::try_from(extent).map_err(|_| bad())).collect::<PyResult<_>>()?
        };
        let mut length = item;
        // Contiguous, if nothing else is said.
        let mut dense = vec![0; dimensions];
        for at in (0..dimensions).rev() {
            dense[at] = length.cast_signed();
            length = length
                .checked_mul(shape[at].max(1))
                .filter(|length| length.cast_signed() > 0)
                .ok_or_else(bad)?;
        }
        let strides = if strides.is_null() || dimensions == 0 {
            dense
        } else {
            // What lies in memory can be counted by an isize.
            read(strides).map(|stride| stride as isize * item.cast_signed()).collect()
        };
        // An offset within one allocation.
        let data = data.cast::<u8>().cast_const().wrapping_add(byte_offset as usize);
        Ok(Self { capsule, data, item, shape, strides })
    }

    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product::<usize>() * self.item
    }

    /// Copies all elements in C order; `into` is as long.
    pub(crate) fn copy(&self, into: &mut [u8]) {
        debug_assert_eq!(into.len(), self.len());
        if !into.is_empty() {
            self.copy_from(self.data, 0, into);
        }
    }

    fn copy_from(&self, from: *const u8, dimension: usize, into: &mut [u8]) {
        let mut dense = self.item.cast_signed();
        let is_dense = (dimension..self.shape.len()).rev().all(|at| {
            let fits = self.strides[at] == dense || self.shape[at] == 1;
            dense *= self.shape[at].cast_signed();
            fits
        });
        if is_dense {
            // SAFETY: all elements from this dimension on lie one after the other from here, and the capsule keeps
            // them; `into` is private and as long.
            unsafe { ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
            return;
        }
        let part = into.len() / self.shape[dimension];
        for (index, into) in into.chunks_exact_mut(part).enumerate() {
            let from = from.wrapping_offset(self.strides[dimension] * index.cast_signed());
            self.copy_from(from, dimension + 1, into);
        }
    }
}
