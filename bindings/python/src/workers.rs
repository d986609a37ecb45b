//! The hold on one or several regions: attaching, waiting, what came.

use core::time::Duration;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use sidecar_cuda::pinned::Pinned;
use sidecar_shm::clock;
use sidecar_shm::sync::{AtomicBool, Ordering};
use sidecar_shm::worker::{AfterEnd, AttachError, AttachOptions, Event, MemberError, Worker};

use crate::errors::{self, Home, no_pickle};
use crate::observation::Observation;
use crate::payload::Payload;

/// The longest wait before signals are looked at. One that arrives meanwhile ends the wait by itself; only one that
/// arrived just before it has to wait for this.
const SLICE: Duration = Duration::from_millis(100);
/// Between two looks for room, when another thread is waiting for events.
const ROOM_LOOK: Duration = Duration::from_micros(200);

/// What the workers and their observations share.
pub(crate) struct Shared {
    /// Never waited for with the interpreter in hand. `None`: closed.
    workers: Mutex<Option<sidecar_shm::worker::Workers>>,
    /// One for each of them; waited for only with `workers` in hand, or for a moment.
    pinned: Mutex<Vec<Pinned>>,
    closed: AtomicBool,
    /// A thread is in `next`.
    waiting: AtomicBool,
    home: Home,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // It may hold observations, which would be given back in the parent's name.
            core::mem::forget(self.workers.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Lets the next thread wait.
struct Waiting<'a>(&'a AtomicBool);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Shared {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Waits a little until the sidecar has taken some actions.
    ///
    /// # Errors
    /// The worker can't go on, or a signal handler raised something.
    pub(crate) fn wait_for_room(&self, py: Python<'_>, member: usize) -> PyResult<()> {
        let waited = py.detach(|| match self.workers.try_lock() {
            Ok(mut workers) => {
                workers.as_mut().map(|workers| workers.member(member).wait_a_little_for_room())
            }
            Err(TryLockError::Poisoned(_)) => None,
            Err(TryLockError::WouldBlock) => {
                std::thread::sleep(ROOM_LOOK);
                Some(Ok(()))
            }
        });
        py.check_signals()?;
        waited.ok_or_else(errors::closed)?.map_err(|error| errors::worker(py, &error))
    }

    fn pinned(&self) -> MutexGuard<'_, Vec<Pinned>> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for what comes next; slots of a new region are page-locked before anything of it is given out.
    fn next(
        &self,
        workers: &mut sidecar_shm::worker::Workers,
        timeout: Duration,
    ) -> Result<Option<(usize, Event)>, MemberError> {
        let came = workers.next(Some(timeout));
        for (member, pinned) in self.pinned().iter_mut().enumerate() {
            pinned.follow(workers.member(member));
        }
        came
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut sidecar_shm::worker::Workers) -> T + Send,
    ) -> PyResult<T> {
        let acted =
            py.detach(|| self.workers.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act));
        acted.ok_or_else(errors::closed)
    }
}

/// What `sidecar.Worker` is built on; not for users.
#[pyclass(frozen, weakref, module = "sidecar._native")]
pub(crate) struct Workers {
    shared: Arc<Shared>,
    count: usize,
    /// The open session of each sidecar, as Python made it: observations carry it.
    sessions: Mutex<Vec<Py<PyAny>>>,
    home: Home,
}

impl Workers {
    fn sessions(&self) -> MutexGuard<'_, Vec<Py<PyAny>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> PyResult<()> {
        self.home.check("Worker")?;
        if self.shared.is_closed() { Err(errors::closed()) } else { Ok(()) }
    }

    fn known(&self, member: usize) -> PyResult<usize> {
        if member < self.count {
            return Ok(member);
        }
        Err(PyValueError::new_err(format!("there is no sidecar {member}, there are {}", self.count)))
    }

    fn error(&self, py: Python<'_>, failed: &MemberError) -> PyErr {
        errors::with(py, errors::worker(py, &failed.error), "source", failed.member)
    }
}

/// Like [`Worker::attach`], but signals are looked at meanwhile.
fn attach(py: Python<'_>, path: &Path, options: &AttachOptions) -> PyResult<Worker> {
    let started = clock::now();
    loop {
        let left = options.timeout.saturating_sub(clock::now().since(started));
        let slice = left.min(SLICE);
        let error = match py.detach(|| Worker::attach(path, &AttachOptions { timeout: slice, ..*options })) {
            Ok(worker) => return Ok(worker),
            Err(error) => error,
        };
        py.check_signals()?;
        let waited = clock::now().since(started);
        if waited >= error.patience().min(options.timeout) {
            return Err(errors::attach(
                py,
                &match error {
                    AttachError::NoSidecar { path, source, .. } => {
                        AttachError::NoSidecar { path, waited, source }
                    }
                    other => other,
                },
            ));
        }
    }
}

/// A length of time as Python has it.
fn seconds(value: f64, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name} is {value}, not a number of seconds")))
}

#[pymethods]
impl Workers {
    /// Attaches to all of `paths`; `sessions` are stand-ins until sessions open.
    #[new]
    fn new(
        py: Python<'_>,
        paths: Vec<PathBuf>,
        sessions: Vec<Py<PyAny>>,
        timeout: f64,
        orphan_grace: f64,
        stay: bool,
        pin: Option<u32>,
    ) -> PyResult<Self> {
        if paths.is_empty() || paths.len() != sessions.len() {
            return Err(PyValueError::new_err("at least one path is needed"));
        }
        let options = AttachOptions {
            timeout: seconds(timeout, "timeout")?,
            orphan_grace: seconds(orphan_grace, "orphan_grace")?,
            after_end: if stay { AfterEnd::Stay } else { AfterEnd::Leave },
            ..AttachOptions::default()
        };
        let workers = paths.iter().map(|path| attach(py, path, &options)).collect::<PyResult<Vec<_>>>()?;
        let (workers, pinned) = py.detach(|| {
            let pinned = workers.iter().map(|worker| Pinned::new(worker, pin)).collect();
            (sidecar_shm::worker::Workers::new(workers), pinned)
        });
        let home = Home::here();
        let shared = Shared {
            workers: Mutex::new(Some(workers)),
            pinned: Mutex::new(pinned),
            closed: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            home,
        };
        Ok(Self { shared: Arc::new(shared), count: paths.len(), sessions: Mutex::new(sessions), home })
    }

    /// What comes next: an `Observation`, a tuple (name, source, ...) for everything else, `None` after `timeout`
    /// seconds without.
    fn next<'py>(&self, py: Python<'py>, timeout: Option<f64>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.check()?;
        let timeout = timeout.map(|timeout| seconds(timeout, "timeout")).transpose()?;
        // A wait that would end after the end of time has no end. Looking at once needs no clock.
        let deadline = timeout.filter(|timeout| !timeout.is_zero()).map(|timeout| clock::now() + timeout);
        let mut slice = timeout.map_or(SLICE, |timeout| timeout.min(SLICE));
        if self.shared.waiting.swap(true, Ordering::AcqRel) {
            return Err(errors::state("another thread is waiting on this worker; one at a time can"));
        }
        let _waiting = Waiting(&self.shared.waiting);
        loop {
            match self.shared.with(py, |workers| self.shared.next(workers, slice))? {
                Ok(Some((member, event))) => return self.event(py, member, event).map(Some),
                Ok(None) => {}
                Err(failed) => return Err(self.error(py, &failed)),
            }
            py.check_signals()?;
            match (timeout, deadline) {
                (None, _) => {}
                (Some(_), None) => return Ok(None),
                (Some(_), Some(deadline)) => {
                    let left = deadline.since(clock::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    slice = left.min(SLICE);
                }
            }
        }
    }

    /// Answers observations with what `handler` returns for them until something else is to be done: a tuple as of
    /// `next`, or ("failed", source, observation, exception). It is the loop of `sidecar.Worker.serve`, which would
    /// cost microseconds in Python.
    fn serve<'py>(
        &self,
        py: Python<'py>,
        handler: &Bound<'py, PyAny>,
        noop: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        // It is wanted seldom: what is wrong with it is better said now than in the middle of a job.
        drop(Payload::of(noop)?);
        loop {
            let Some(came) = self.next(py, None)? else { continue };
            let Ok(observation) = came.cast::<Observation>() else { return Ok(came) };
            if let Err(error) = Observation::serve(observation, handler, noop) {
                if !error.is_instance_of::<PyException>(py) {
                    return Err(error);
                }
                let failed = ("failed", observation.get().source(), observation, error.into_value(py));
                return Ok(failed.into_pyobject(py)?.into_any());
            }
            // A handler that is compiled code runs no handlers of signals.
            py.check_signals()?;
        }
    }

    /// The model is warm.
    fn ready(&self, py: Python<'_>, source: usize) -> PyResult<()> {
        self.check()?;
        let member = self.known(source)?;
        self.shared
            .with(py, |workers| workers.member(member).ready())?
            .map_err(|error| errors::worker(py, &error))
    }

    /// The model can't be made warm; the sidecar ends with this message.
    fn warmup_failed(&self, py: Python<'_>, source: usize, message: &str) -> PyResult<()> {
        self.check()?;
        let member = self.known(source)?;
        let said = self.shared.with(py, |workers| workers.member(member).warmup_failed(message))?;
        said.map_err(|error| errors::worker(py, &error))
    }

    /// The session that observations of a sidecar belong to from now on.
    fn set_session(&self, source: usize, session: Py<PyAny>) -> PyResult<()> {
        let member = self.known(source)?;
        let old = core::mem::replace(&mut self.sessions()[member], session);
        // Outside of the lock: it may run code of the user.
        drop(old);
        Ok(())
    }

    /// A descriptor for poll loops: call `next(0)` until it is `None`, then wait until this is readable.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        self.check()?;
        Ok(self.shared.with(py, |workers| workers.fd().map(|fd| fd.as_raw_fd()))??)
    }

    /// Largest action of each sidecar in bytes.
    fn action_bytes(&self, py: Python<'_>) -> PyResult<Vec<usize>> {
        self.check()?;
        let count = self.count;
        self.shared
            .with(py, |workers| (0..count).map(|member| workers.member(member).action_bytes()).collect())
    }

    /// (address, length, region id) of each sidecar's observation slots, for page-locking.
    fn observation_memory(&self, py: Python<'_>) -> PyResult<Vec<(usize, usize, u64)>> {
        self.check()?;
        let count = self.count;
        self.shared.with(py, |workers| {
            let memory = |member| {
                let worker = workers.member(member);
                let (start, length) = worker.observation_memory();
                (start.addr(), length, worker.region_id())
            };
            (0..count).map(memory).collect()
        })
    }

    /// For each sidecar whether its slots are page-locked, and why not if that was asked for.
    fn pin_states(&self) -> PyResult<Vec<(bool, Option<String>)>> {
        self.check()?;
        let state = |pinned: &Pinned| (pinned.is_locked(), pinned.trouble().map(ToString::to_string));
        Ok(self.shared.pinned().iter().map(state).collect())
    }

    /// For each sidecar why what it copies to the GPU cannot be used here, if it copies anything.
    fn device_states(&self) -> PyResult<Vec<Option<String>>> {
        self.check()?;
        let state = |pinned: &Pinned| pinned.ring_trouble().map(ToString::to_string);
        Ok(self.shared.pinned().iter().map(state).collect())
    }

    /// Whether each sidecar is there.
    fn attached(&self, py: Python<'_>) -> PyResult<Vec<bool>> {
        self.check()?;
        let count = self.count;
        self.shared
            .with(py, |workers| (0..count).map(|member| workers.member(member).is_attached()).collect())
    }

    /// Lets go of the regions. Views of observations stay good.
    fn close(&self, py: Python<'_>) {
        if self.home.is_here() && !self.shared.closed.swap(true, Ordering::AcqRel) {
            // A thread that waits sees the flag within a slice.
            py.detach(|| {
                drop(self.shared.workers.lock().unwrap_or_else(PoisonError::into_inner).take());
                // Observations that are still held keep what they need of it.
                self.shared.pinned().clear();
            });
        }
    }

    #[getter]
    fn closed(&self) -> bool {
        self.shared.is_closed()
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("Worker"))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // Held by another thread only for a moment; an object that is not visited is kept.
        let Ok(sessions) = self.sessions.try_lock() else { return Ok(()) };
        sessions.iter().try_for_each(|session| visit.call(session))
    }
}

impl Workers {
    fn event<'py>(&self, py: Python<'py>, member: usize, event: Event) -> PyResult<Bound<'py, PyAny>> {
        let plain = |name: &str| (name, member).into_pyobject(py);
        let tuple: Bound<'py, PyTuple> = match event {
            Event::Observation(lent) => {
                let session = self.sessions()[member].clone_ref(py);
                let (fence, arrival) = match self.shared.pinned().get(member) {
                    Some(pinned) => (pinned.fence(), pinned.arrival(&lent)),
                    None => (None, None),
                };
                let shared = Arc::clone(&self.shared);
                let observation = Observation::new(lent, fence, arrival, shared, member, session, self.home);
                return Ok(Bound::new(py, observation)?.into_any());
            }
            Event::SessionOpened { session, epoch, resumed } => {
                ("opened", member, session.as_str(), epoch.0, resumed).into_pyobject(py)?
            }
            Event::SessionClosed { epoch } => ("closed", member, epoch.0).into_pyobject(py)?,
            Event::Warmup => plain("warmup")?,
            Event::Drain => plain("drain")?,
            Event::SidecarGone => plain("gone")?,
            Event::Timeout => plain("timeout")?,
        };
        Ok(tuple.into_any())
    }
}
