//! The only place that follows a pointer from the other side. What can be checked is checked here: NULL, alignment,
//! lengths, struct sizes, UTF-8. What cannot be checked (that memory is there, and nobody else's) the caller of the C
//! function promises; [`Border`] is the proof that the promise was asked for.

#![allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "the promise was given to `Border::new`, which is unsafe"
)]

use core::ffi::c_char;
use core::mem::{MaybeUninit, size_of};
use core::ptr;

use crate::fence::{Checked, fence};
use crate::status::{ERR_BUG, ERR_LENGTH, ERR_NULL, ERR_STATE, ERR_STRUCT_SIZE, ERR_TEXT, ERR_VALUE};

/// No struct of any version will be as large: a larger `struct_size` was never set.
const ABSURD_SIZE: u32 = 1 << 16;

/// The promise that pointers are what the header asks for. One call of a C function has one.
#[derive(Debug)]
pub struct Border(());

/// A struct that crosses, and grows with the versions.
///
/// # Safety
/// It is `repr(C)`, begins with its `u32` size in bytes, has no padding, and any bytes are a value of it.
pub unsafe trait Versioned: Copy {
    /// Its size in the first version: the least that a caller may have.
    const FIRST: usize;
}

/// What one kind of handle holds.
pub trait Kind {
    /// No other kind has it, and it is not 0.
    const MARK: u64;
}

/// A handle: a mark in front, so that another kind is not taken for it, nor one that was given away as long as its
/// memory is not used for something else.
#[derive(Debug)]
#[repr(C)]
pub struct Marked<T> {
    mark: u64,
    /// A panic left it half done.
    half_done: bool,
    inner: T,
}

impl<T: Kind> Marked<T> {
    /// A handle for `inner`.
    pub const fn new(inner: T) -> Self {
        Self { mark: T::MARK, half_done: false, inner }
    }

    /// What is in it.
    pub fn into_inner(self) -> T {
        self.inner
    }
}

impl Border {
    /// Takes the promise.
    ///
    /// # Safety
    /// Every pointer that is given to this value is NULL or points to what the header says, of the length that is said
    /// beside it, for as long as the C function runs; what is written to is nobody else's meanwhile.
    pub const unsafe fn new() -> Self {
        Self(())
    }

    /// A text; empty is allowed, also as NULL.
    pub fn text(&self, data: *const c_char, length: usize) -> Checked<&str> {
        core::str::from_utf8(self.bytes(data.cast(), length)?).map_err(|_| ERR_TEXT)
    }

    /// Bytes to read; none are allowed, also as NULL.
    pub fn bytes(&self, data: *const u8, length: usize) -> Checked<&[u8]> {
        check_length(data, length)?;
        if length == 0 {
            return Ok(&[]);
        }
        // SAFETY: not NULL, no absurd length, and the promise covers the rest; bytes have no alignment.
        Ok(unsafe { core::slice::from_raw_parts(data, length) })
    }

    /// Bytes to write; none are allowed, also as NULL.
    #[expect(clippy::mut_from_ref, reason = "the memory is the caller's, not the promise's")]
    pub fn room(&self, data: *mut u8, length: usize) -> Checked<&mut [u8]> {
        check_length(data, length)?;
        if length == 0 {
            return Ok(&mut []);
        }
        // SAFETY: not NULL, no absurd length, and the promise covers the rest; bytes have no alignment.
        Ok(unsafe { core::slice::from_raw_parts_mut(data, length) })
    }

    /// Several values of a plain type.
    pub fn list<T: Copy>(&self, data: *const T, count: usize) -> Checked<&[T]> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or(ERR_LENGTH)?;
        check_length(data.cast(), bytes)?;
        if count == 0 {
            return Ok(&[]);
        }
        check_pointer(data)?;
        // SAFETY: not NULL, aligned, no absurd length, and the promise covers the rest.
        Ok(unsafe { core::slice::from_raw_parts(data, count) })
    }

    /// A struct of any version: what the caller's has not is zero, which stands for the default everywhere.
    pub fn read<T: Versioned>(&self, from: *const T) -> Checked<T> {
        let size = self.struct_size(from)?;
        let known = size.min(size_of::<T>());
        let tail = self.bytes(from.cast::<u8>().wrapping_add(known), size - known)?;
        if tail.iter().any(|byte| *byte != 0) {
            return Err(ERR_STRUCT_SIZE);
        }
        let mut value = MaybeUninit::<T>::zeroed();
        // SAFETY: `known` bytes are in the caller's struct, by its own size, and in ours.
        unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), value.as_mut_ptr().cast(), known) };
        // SAFETY: any bytes are a value of a versioned struct.
        Ok(unsafe { value.assume_init() })
    }

    /// A place for a struct of any version.
    pub fn place<T: Versioned>(&self, to: *mut T) -> Checked<Place<T>> {
        Ok(Place { size: self.struct_size(to)?, to })
    }

    /// A place for a plain value.
    pub fn out<T: Copy>(&self, to: *mut T) -> Checked<Out<T>> {
        check_pointer(to)?;
        Ok(Out(to))
    }

    /// Lends what is in a handle to `body`, and remembers when a panic came out of it.
    pub fn handle<T: Kind>(&self, handle: *mut Marked<T>, body: impl FnOnce(&mut T) -> Checked<i32>) -> i32 {
        fence(|| {
            self.peek(handle)?;
            // SAFETY: a handle of this kind, as was just seen; that it is nobody else's now, the promise says.
            let handle = unsafe { &mut *handle };
            handle.half_done = true;
            let result = body(&mut handle.inner);
            handle.half_done = false;
            result
        })
    }

    /// Lends what is in a handle to a `body` that changes nothing.
    pub fn handle_const<T: Kind>(
        &self,
        handle: *const Marked<T>,
        body: impl FnOnce(&T) -> Checked<i32>,
    ) -> i32 {
        fence(|| body(self.peek(handle)?))
    }

    /// What is in a handle, to be looked at.
    pub fn peek<T: Kind>(&self, handle: *const Marked<T>) -> Checked<&T> {
        self.known(handle)?;
        // SAFETY: a handle of this kind, as was just seen; that it is not written meanwhile, the promise says.
        let handle = unsafe { &*handle };
        if handle.half_done { Err(ERR_BUG) } else { Ok(&handle.inner) }
    }

    /// A handle of this kind, in whatever state.
    pub fn known<T: Kind>(&self, handle: *const Marked<T>) -> Checked<()> {
        check_pointer(handle)?;
        // SAFETY: not NULL and aligned; that it is a handle, of whatever kind, the promise says, and each begins with its
        // mark.
        let mark = unsafe { handle.cast::<u64>().read() };
        if mark == T::MARK { Ok(()) } else { Err(ERR_STATE) }
    }

    /// Takes the mark off a handle that is given away, so that whoever uses it again is told so.
    pub fn unmark<T: Kind>(&self, handle: *mut Marked<T>) -> Checked<()> {
        self.known(handle)?;
        // SAFETY: a handle of this kind, as was just seen, and it begins with its mark. Volatile, since nobody of ours reads
        // it again.
        unsafe { handle.cast::<u64>().write_volatile(0) };
        Ok(())
    }

    fn struct_size<T: Versioned>(&self, at: *const T) -> Checked<usize> {
        check_pointer(at)?;
        // SAFETY: not NULL and aligned, and a versioned struct begins with its size.
        let size = unsafe { at.cast::<u32>().read() };
        if size > ABSURD_SIZE || (size as usize) < T::FIRST {
            return Err(ERR_STRUCT_SIZE);
        }
        Ok(size as usize)
    }
}

/// A place for a struct of any version, checked.
#[derive(Debug)]
pub struct Place<T> {
    size: usize,
    to: *mut T,
}

impl<T: Versioned> Place<T> {
    /// Writes what the caller's version has of `value`; its size stays, and what is newer than this library is zero.
    pub fn fill(self, value: &T) {
        const HEAD: usize = size_of::<u32>();
        let known = self.size.min(size_of::<T>());
        let to = self.to.cast::<u8>().wrapping_add(HEAD);
        let from = ptr::from_ref(value).cast::<u8>().wrapping_add(HEAD);
        // SAFETY: `known` bytes are in either struct, the size's own are skipped, and the caller's is its own memory.
        unsafe { ptr::copy_nonoverlapping(from, to, known - HEAD) };
        // SAFETY: from `known` to the caller's own size.
        unsafe { ptr::write_bytes(self.to.cast::<u8>().wrapping_add(known), 0, self.size - known) };
    }
}

/// A place for a plain value, checked.
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// Writes it.
    pub fn set(self, value: T) {
        // SAFETY: it was checked when this was made, and the promise covers the rest.
        unsafe { self.0.write(value) };
    }
}

/// NULL and misaligned pointers are found here.
pub fn check_pointer<T>(pointer: *const T) -> Checked<()> {
    if pointer.is_null() {
        return Err(ERR_NULL);
    }
    if pointer.is_aligned() { Ok(()) } else { Err(ERR_VALUE) }
}

fn check_length(data: *const u8, length: usize) -> Checked<()> {
    if length > isize::MAX as usize {
        return Err(ERR_LENGTH);
    }
    if data.is_null() && length > 0 { Err(ERR_NULL) } else { Ok(()) }
}
