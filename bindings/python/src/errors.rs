//! Errors of the worker library as exceptions of the Python package (`sidecar._errors`), by who has to do something.

use pyo3::exceptions::{PyImportError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;
use sidecar_shm::sync::{AtomicU32, Ordering};
use sidecar_shm::worker::{AttachError, WorkerError};

/// An exception of `sidecar._errors`.
pub(crate) fn named(py: Python<'_>, name: &str, message: String) -> PyErr {
    let class = py.import("sidecar._errors").and_then(|module| module.getattr(name));
    match class.and_then(|class| Ok(class.cast_into::<PyType>()?)) {
        Ok(class) => PyErr::from_type(class, message),
        Err(error) => {
            PyImportError::new_err(format!("sidecar._errors.{name}: {error}; it was to say: {message}"))
        }
    }
}

pub(crate) fn attach(py: Python<'_>, error: &AttachError) -> PyErr {
    let name = match error {
        AttachError::NoSidecar { .. } => "NoSidecar",
        AttachError::Refused { .. } => "Refused",
        AttachError::Region { .. } => "RegionError",
    };
    named(py, name, error.to_string())
}

pub(crate) fn worker(py: Python<'_>, error: &WorkerError) -> PyErr {
    let name = match error {
        WorkerError::Ended => "Ended",
        WorkerError::Orphaned { .. } => "Orphaned",
        WorkerError::Replaced { .. } => "Replaced",
        WorkerError::Detached => "Detached",
        WorkerError::ActionTooLarge { .. } => "ActionTooLarge",
        WorkerError::AllReserved { .. } => "AllReserved",
        WorkerError::Damaged(_) | WorkerError::Io(_) => "RegionError",
    };
    named(py, name, error.to_string())
}

/// Something of a worker that was closed.
pub(crate) fn closed() -> PyErr {
    PyRuntimeError::new_err("the worker is closed")
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
        Err(PyRuntimeError::new_err(format!(
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
