//! Whether host memory is there.

/// Whether every page of a range is mapped in this process: msync(2) says `ENOMEM` if not.
pub(crate) fn is_mapped(start: usize, length: usize) -> bool {
    const PAGE: usize = 4096;
    let first = start / PAGE * PAGE;
    let Some(end) = start.checked_add(length).and_then(|end| end.checked_next_multiple_of(PAGE)) else {
        return false;
    };
    // SAFETY: with MS_ASYNC alone msync only looks, and takes any address.
    unsafe { libc::msync(core::ptr::without_provenance_mut(first), end - first, libc::MS_ASYNC) == 0 }
}

/// Copies out of this process's memory.
///
/// # Safety
/// The caller of the driver says that the range is its to be read, and [`is_mapped`] was asked.
pub(crate) unsafe fn read(start: usize, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    // SAFETY: mapped for `length` bytes and the caller's to be read, as this function's caller says; the vector is new.
    unsafe {
        core::ptr::copy_nonoverlapping(
            core::ptr::with_exposed_provenance::<u8>(start),
            bytes.as_mut_ptr(),
            length,
        );
    }
    bytes
}

/// Copies into this process's memory.
///
/// # Safety
/// The caller of the driver says that the range is its to be written, and [`is_mapped`] was asked.
pub(crate) unsafe fn write(start: usize, bytes: &[u8]) {
    // SAFETY: mapped for the length and the caller's to be written, as this function's caller says.
    unsafe {
        core::ptr::copy_nonoverlapping(
            bytes.as_ptr(),
            core::ptr::with_exposed_provenance_mut::<u8>(start),
            bytes.len(),
        );
    }
}
