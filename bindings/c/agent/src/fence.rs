//! Panics stop here: one that crossed into C would be undefined behaviour. The process's panic hook is left alone, so
//! what went wrong still stands on the standard error.

#[cfg(feature = "std")]
use crate::status::ERR_BUG;

/// What a function comes to: an outcome, or an error's status.
pub type Checked<T> = Result<T, i32>;

/// Runs a function's body.
#[cfg(feature = "std")]
pub fn fence(body: impl FnOnce() -> Checked<i32>) -> i32 {
    // What a panic left half done is marked by whoever lent it to the body, see `Border::handle`.
    let caught = std::panic::catch_unwind(core::panic::AssertUnwindSafe(body));
    match caught.unwrap_or(Err(ERR_BUG)) {
        Ok(status) | Err(status) => status,
    }
}

/// Runs a function's body. A panic ends the process: without std nothing can catch it.
#[cfg(not(feature = "std"))]
pub fn fence(body: impl FnOnce() -> Checked<i32>) -> i32 {
    match body() {
        Ok(status) | Err(status) => status,
    }
}
