//! Handles on the heap: how they are given out and taken back.

use sidecar_c_agent::border::{Border, Kind, Marked};
use sidecar_c_agent::fence::Checked;

/// Gives a handle to the caller.
pub(crate) fn give<T: Kind>(inner: T) -> *mut Marked<T> {
    Box::into_raw(Box::new(Marked::new(inner)))
}

/// Takes a handle back from the caller, who gives it away.
pub(crate) fn take<T: Kind>(border: &Border, handle: *mut Marked<T>) -> Checked<T> {
    border.unmark(handle)?;
    // SAFETY: it was a handle of this kind, so it was made by `give`; that it is given away, the promise says.
    let handle = unsafe { Box::from_raw(handle) };
    Ok(handle.into_inner())
}
