//! Errors of the worker library as exceptions of the Python package (`sidecar._errors`), by who has to do something.

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use sidecar_shm::sync::{AtomicU32, Ordering};
use sidecar_shm::worker::{AttachError, WorkerError};

/// Codes that are not the only one of their class; the others are said in `sidecar._errors`.
const MISMATCH: i32 = -8;
const DAMAGED: i32 = -206;
const SYSTEM: i32 = -300;

/// An exception of `sidecar._errors`.
fn named(py: Python<'_>, name: &str, message: String) -> PyErr {
    let class = py.import("sidecar._errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => {
            PyImportError::new_err(format!("sidecar._errors.{name}: {error}; it was to say: {message}"))
        }
    }
}

/// The error, with an attribute more.
pub(crate) fn with<'py, T: IntoPyObject<'py>>(py: Python<'py>, error: PyErr, name: &str, value: T) -> PyErr {
    match error.value(py).setattr(name, value) {
        Ok(()) => error,
        Err(other) => other,
    }
}

/// The error, with another code than its class has.
fn coded(py: Python<'_>, error: PyErr, code: i32) -> PyErr {
    let named = py.import("sidecar._errors").and_then(|module| module.getattr("Code")?.call1((code,)));
    match named {
        Ok(code) => with(py, error, "code", code),
        Err(other) => other,
    }
}

pub(crate) fn attach(py: Python<'_>, error: &AttachError) -> PyErr {
    let message = error.to_string();
    match error {
        AttachError::NoSidecar { .. } => named(py, "NoSidecar", message),
        AttachError::Refused { pid, .. } => with(py, named(py, "Refused", message), "pid", *pid),
        AttachError::Region { .. } => named(py, "RegionError", message),
    }
}

pub(crate) fn worker(py: Python<'_>, error: &WorkerError) -> PyErr {
    let message = error.to_string();
    match error {
        WorkerError::Ended => named(py, "Ended", message),
        WorkerError::Orphaned { .. } => named(py, "Orphaned", message),
        WorkerError::Replaced { pid } => with(py, named(py, "Replaced", message), "pid", *pid),
        WorkerError::Detached => named(py, "Detached", message),
        WorkerError::ActionTooLarge { .. } => named(py, "ActionTooLarge", message),
        WorkerError::AllReserved { .. } => named(py, "AllReserved", message),
        WorkerError::Damaged(_) => coded(py, named(py, "RegionError", message), DAMAGED),
        WorkerError::Io(_) => coded(py, named(py, "RegionError", message), SYSTEM),
    }
}

/// Not now, or not here.
pub(crate) fn state(message: &str) -> PyErr {
    Python::attach(|py| named(py, "StateError", message.to_owned()))
}

/// Two objects that do not belong together.
pub(crate) fn mismatch(message: &str) -> PyErr {
    Python::attach(|py| coded(py, named(py, "StateError", message.to_owned()), MISMATCH))
}

/// Something of a worker that was closed.
pub(crate) fn closed() -> PyErr {
    state("the worker is closed")
}

/// How often this process is a fork of a fork: stepped in every child. Asking for the pid instead would be a system
/// call in each operation.
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Begins to count forks; the first call counts.
///
/// # Errors
/// The system is out of memory.
pub(crate) fn watch_forks() -> PyResult<()> {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    static WATCHED: PyOnceLock<()> = PyOnceLock::new();
    Python::attach(|py| {
        WATCHED.get_or_try_init(py, || {
            // SAFETY: the handler does what is allowed between fork and exec, one store; this code is never unloaded,
            // since the interpreter keeps its extension modules.
            match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
                0 => Ok(()),
                error => Err(PyErr::from(std::io::Error::from_raw_os_error(error))),
            }
        })?;
        Ok(())
    })
}

/// The process that made an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Home {
    forks: u32,
    pid: u32,
}

impl Home {
    pub(crate) fn here() -> Self {
        Self { forks: FORKS.load(Ordering::Relaxed), pid: std::process::id() }
    }

    pub(crate) fn is_here(self) -> bool {
        self.forks == FORKS.load(Ordering::Relaxed)
    }

    /// # Errors
    /// This is a forked child.
    pub(crate) fn check(self, what: &str) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(state(&format!(
            "this {what} belongs to process {}, and this is a forked child of it; open a Worker in one process only, \
             after the fork (multiprocessing: start method \"spawn\")",
            self.pid
        )))
    }
}

/// What pickling and copying get.
pub(crate) fn no_pickle(what: &str) -> PyErr {
    pyo3::exceptions::PyTypeError::new_err(format!(
        "a {what} can't be pickled or copied: it is a hold on memory of this process; pass the region's path, and open \
         a Worker there"
    ))
}
