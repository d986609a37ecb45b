//! An observation as a Python object: the owner of its slot, which counts the views of it.
//!
//! ```text
//!            answer, no views              answer, views alive             last view gone
//!  lent ───────────────────────▶ given back     lent ───────▶ lent, answered ───────▶ given back
//!  lent ── release, or the object is gone ──▶ given back (unanswered: a successor gets it again)
//! ```

use core::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyMemoryView};
use sidecar_cuda::code::CallError;
use sidecar_cuda::fence::{Back, Fence, Stream};
use sidecar_cuda::ring::Arrival;
use sidecar_shm::worker::{self, Answered};

use crate::device::{self, Array, Parting};
use crate::device_array::DeviceArray;
use crate::dlpack::{self, Export, Flags, Hold};
use crate::errors::{self, Home, no_pickle};
use crate::payload::{Access, Payload, fill_view};
use crate::reservation::Reservation;
use crate::workers::Shared;

/// One observation, and the slot that it lies in.
///
/// It has the buffer protocol (read-only) and DLPack: `numpy.frombuffer(obs, dtype)`, `numpy.from_dlpack(obs)`,
/// `torch.frombuffer(obs, dtype=...)` and `memoryview(obs)` copy nothing. Views are counted; the slot goes back to the
/// sidecar once the observation was answered and no view of it is left. Given to `with`, it is released at the end.
#[pyclass(frozen, weakref, module = "sidecar")]
pub(crate) struct Observation {
    state: Mutex<State>,
    /// A call of the driver has brought the fence back.
    fence_back: Condvar,
    shared: Arc<Shared>,
    member: usize,
    session: Py<PyAny>,
    home: Home,
    about: About,
}

/// What stays known when the slot is given back.
struct About {
    sequence: u64,
    slot: u32,
    nbytes: usize,
    redelivered: bool,
    /// First byte, last byte, published, taken; CLOCK_BOOTTIME in nanoseconds.
    stamps: [u64; 4],
}

struct State {
    /// `None`: given back.
    lent: Option<worker::Observation>,
    gpu: Gpu,
    /// Where it lies on that GPU already.
    arrival: Option<Arrival>,
    /// Arrays on the GPU, buffers and DLPack tensors, together.
    views: usize,
    answer: Answer,
    /// As it was when the slot was given back.
    cancelled: bool,
}

/// What a GPU does with a slot.
enum Gpu {
    /// There is none, or nobody asked for one.
    None,
    /// What it was told so far.
    Idle(Fence),
    /// It is being told, by a call of the driver that has the fence and holds no lock: calls take their time. The slot
    /// stays lent until then.
    Told { back: Back, address: Option<u64> },
}

impl Gpu {
    /// The slot is a copy's source, now or for a while.
    fn is_busy(&self) -> bool {
        match self {
            Self::None => false,
            Self::Idle(fence) => !fence.is_idle(),
            Self::Told { .. } => true,
        }
    }

    const fn is_being_told(&self) -> bool {
        matches!(self, Self::Told { .. })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Due,
    Given,
    Failed,
}

impl Observation {
    pub(crate) fn new(
        lent: worker::Observation,
        fence: Option<Fence>,
        arrival: Option<Arrival>,
        shared: Arc<Shared>,
        member: usize,
        session: Py<PyAny>,
        home: Home,
    ) -> Self {
        let about = About {
            sequence: lent.sequence(),
            slot: lent.slot(),
            nbytes: lent.payload().len(),
            redelivered: lent.redelivered(),
            stamps: [lent.first_byte(), lent.last_byte(), lent.published(), lent.taken()]
                .map(|at| at.as_nanos()),
        };
        let gpu = fence.map_or(Gpu::None, Gpu::Idle);
        let state = State { lent: Some(lent), gpu, arrival, views: 0, answer: Answer::Due, cancelled: false };
        Self { state: Mutex::new(state), fence_back: Condvar::new(), shared, member, session, home, about }
    }

    /// Answers with what `handler` returns, or with `noop` if the payload is empty.
    pub(crate) fn serve(
        slf: &Bound<'_, Self>,
        handler: &Bound<'_, PyAny>,
        noop: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let this = slf.get();
        if this.is_empty() {
            return this.answer(noop, None);
        }
        let action = handler.call1((slf,))?;
        if !action.is_none() {
            return this.answer(&action, None);
        }
        if this.answered() {
            return Ok(());
        }
        Err(PyTypeError::new_err("the handler returned None and did not answer; the no-op is b\"\""))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Once no call of the driver uses the slot. Waits for that without the interpreter.
    fn lock_when_told(&self, py: Python<'_>) -> MutexGuard<'_, State> {
        loop {
            let state = self.lock();
            if !state.gpu.is_being_told() {
                return state;
            }
            drop(state);
            py.detach(|| drop(self.wait_until_told(self.lock())));
        }
    }

    fn wait_until_told<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let told = self.fence_back.wait_while(state, |state| state.gpu.is_being_told());
        told.unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// A forked child, a closed worker, an answer that was given already.
    fn due(&self) -> PyResult<MutexGuard<'_, State>> {
        self.home.check("Observation")?;
        if self.shared.is_closed() {
            return Err(errors::closed());
        }
        let state = self.lock();
        match state.answer {
            Answer::Due if state.lent.is_some() => Ok(state),
            Answer::Due => Err(errors::state("the observation was released; answer before that")),
            Answer::Given => Err(errors::state("the observation was answered already")),
            Answer::Failed => Err(errors::state("the observation was reported as failed already")),
        }
    }

    /// An action slot; waits for one without the interpreter.
    fn take_slot(&self, py: Python<'_>, length: usize) -> PyResult<worker::Reservation> {
        loop {
            let reserved = self.due()?.lent.as_ref().map(|lent| lent.try_reserve(length));
            match reserved {
                Some(Ok(Some(slot))) => return Ok(slot),
                Some(Err(error)) => return Err(errors::worker(py, &error)),
                Some(Ok(None)) | None => self.shared.wait_for_room(py, self.member)?,
            }
        }
    }

    /// Sends all of a slot. On an error it comes back, where it still can.
    fn send(
        &self,
        py: Python<'_>,
        mut slot: worker::Reservation,
    ) -> Result<(), (PyErr, worker::Reservation)> {
        let length = slot.len();
        loop {
            let mut state = match self.due() {
                Ok(state) => state,
                Err(error) => return Err((error, slot)),
            };
            // `due` says that it is lent.
            let Some(lent) = state.lent.take() else { return Err((errors::closed(), slot)) };
            if state.views > 0 || state.gpu.is_busy() {
                let answered = lent.try_answer_and_keep(slot, length);
                state.lent = Some(lent);
                match answered {
                    Answered::Done => {
                        state.answer = Answer::Given;
                        let parting = state.part_if_over(self.home);
                        drop(state);
                        // The action is on its way while the device finishes.
                        if let Some(parting) = parting {
                            parting.end();
                        }
                        return Ok(());
                    }
                    Answered::NoRoom(unsent) => slot = unsent,
                }
            } else {
                let cancelled = lent.cancelled();
                match lent.try_answer(slot, length) {
                    Answered::Done => {
                        state.answer = Answer::Given;
                        state.cancelled = cancelled;
                        return Ok(());
                    }
                    Answered::NoRoom((lent, unsent)) => {
                        state.lent = Some(lent);
                        slot = unsent;
                    }
                }
            }
            drop(state);
            if let Err(error) = self.shared.wait_for_room(py, self.member) {
                return Err((error, slot));
            }
        }
    }

    /// Without the interpreter and without a lock: the driver may take its time, above all with memory that is not
    /// page-locked. The slot stays lent meanwhile.
    fn with_device(
        &self,
        py: Python<'_>,
        stream: Option<&Bound<'_, PyAny>>,
        act: impl FnOnce(*const [u8], &mut Fence, Stream) -> Result<(), CallError> + Send,
    ) -> PyResult<()> {
        self.home.check("Observation")?;
        let stream = stream.map_or(Ok(Stream::DEFAULT), device::stream)?;
        let (done, parting) = py.detach(|| {
            let mut state = self.wait_until_told(self.lock());
            // Whoever makes an error has the interpreter, and then no lock.
            let Some(payload) = state.lent.as_ref().map(|lent| core::ptr::from_ref(lent.payload())) else {
                return (Err(NoDevice::GivenBack), None);
            };
            let mut fence = match core::mem::replace(&mut state.gpu, Gpu::None) {
                Gpu::Idle(fence) => fence,
                other => {
                    state.gpu = other;
                    return (Err(NoDevice::NoGpu), None);
                }
            };
            state.gpu = Gpu::Told { back: fence.back(), address: fence.device_address(payload.cast()) };
            drop(state);
            let done = act(payload, &mut fence, stream).map_err(NoDevice::Refused);
            let mut state = self.lock();
            state.gpu = Gpu::Idle(fence);
            let parting = state.part_if_over(self.home);
            drop(state);
            self.fence_back.notify_all();
            (done, parting)
        });
        // It was answered meanwhile.
        if let Some(parting) = parting {
            parting.end();
        }
        done.map_err(|why| match why {
            NoDevice::GivenBack => errors::state("the observation's slot was given back"),
            NoDevice::NoGpu => no_gpu(),
            NoDevice::Refused(error) => errors::state(&error.to_string()),
        })
    }

    /// One view more; where the bytes are.
    fn begin_view(&self, state: &mut State) -> PyResult<*mut u8> {
        let lent = match &state.lent {
            Some(lent) if state.answer == Answer::Due => lent,
            _ => {
                return Err(PyBufferError::new_err(
                    "the observation's slot was given back; look at it before that",
                ));
            }
        };
        state.views += 1;
        Ok(lent.payload().as_ptr().cast_mut())
    }

    /// Copies an action that lies on the device into its slot, behind all that is on the stream, and sends it.
    fn answer_from_device(
        &self,
        py: Python<'_>,
        action: &Array,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let back = match &self.due()?.gpu {
            Gpu::None => return Err(no_gpu()),
            Gpu::Idle(fence) => fence.back(),
            Gpu::Told { back, .. } => back.clone(),
        };
        let stream = match stream {
            Some(stream) => device::stream(stream)?,
            None => action.stream.unwrap_or(Stream::DEFAULT),
        };
        let mut slot = self.take_slot(py, action.bytes)?;
        let copied = py.detach(|| {
            // SAFETY: the array is as large as it says, and is borrowed from the caller, as the stream is, to the end of
            // the call.
            unsafe { back.read(action.start, slot.as_mut_slice(), stream) }
        });
        copied.map_err(|error| errors::state(&error.to_string()))?;
        self.send(py, slot).map_err(|(error, _unused)| error)
    }

    pub(crate) fn end_view(&self) {
        let mut state = self.lock();
        state.views -= 1;
        let parting = state.part_if_over(self.home);
        drop(state);
        if let Some(parting) = parting {
            parting.end();
        }
    }
}

/// Why the device does nothing with an observation.
enum NoDevice {
    GivenBack,
    NoGpu,
    Refused(CallError),
}

fn no_gpu() -> PyErr {
    errors::state("the worker has no GPU: Worker(pin=True) asks for one, worker.pin_errors says why not")
}

impl State {
    /// Takes the slot out if it is answered and nobody looks at it any more.
    fn part_if_over(&mut self, home: Home) -> Option<Parting> {
        let over = self.answer != Answer::Due && self.views == 0 && !self.gpu.is_being_told();
        if over { self.part(home) } else { None }
    }

    /// Takes the slot out, to be given back once no lock is held. No call of the driver uses it.
    fn part(&mut self, home: Home) -> Option<Parting> {
        let lent = self.lent.take()?;
        let fence = match core::mem::replace(&mut self.gpu, Gpu::None) {
            Gpu::Idle(fence) => Some(fence),
            Gpu::None | Gpu::Told { .. } => None,
        };
        let parting = Parting::new(lent, fence, self.arrival.take());
        if home.is_here() {
            self.cancelled = parting.cancelled();
            return Some(parting);
        }
        parting.forget();
        None
    }
}

#[pymethods]
impl Observation {
    /// Sends the action for this observation, and gives its slot back once no view of it is left. One that lies on the
    /// GPU is copied back first, behind all that is on `stream`.
    #[pyo3(signature = (action, stream=None))]
    fn answer(&self, action: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let py = action.py();
        drop(self.due()?);
        if let Ok(reserved) = action.cast::<Reservation>() {
            let reserved = reserved.get();
            let slot = reserved.take(&self.shared, self.member, self.about.sequence)?;
            return self.send(py, slot).map_err(|(error, slot)| {
                reserved.put_back(slot);
                error
            });
        }
        let payload = match Payload::of(action) {
            Ok(payload) => payload,
            Err(error) => match Array::source(action)? {
                Some(on_device) => return self.answer_from_device(py, &on_device, stream),
                None => return Err(error),
            },
        };
        let mut slot = self.take_slot(py, payload.len())?;
        payload.copy(slot.as_mut_slice())?;
        drop(payload);
        self.send(py, slot).map_err(|(error, _unused)| error)
    }

    /// An action slot to be written in place, for `answer`.
    fn reserve(&self, py: Python<'_>, nbytes: usize) -> PyResult<Reservation> {
        let slot = self.take_slot(py, nbytes)?;
        Ok(Reservation::new(slot, Arc::clone(&self.shared), self.member, self.about.sequence, self.home))
    }

    /// Says that no action comes; the sidecar's `--on-failure` decides.
    fn failed(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        loop {
            let mut state = self.due()?;
            if state.lent.as_ref().is_none_or(|lent| lent.try_failed(message)) {
                state.answer = Answer::Failed;
                let parting = state.part_if_over(self.home);
                drop(state);
                if let Some(parting) = parting {
                    parting.end();
                }
                return Ok(());
            }
            drop(state);
            self.shared.wait_for_room(py, self.member)?;
        }
    }

    /// Gives the slot back. Unanswered, the observation is left to a successor of this worker.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        self.home.check("Observation")?;
        let mut state = self.lock_when_told(py);
        if state.views > 0 {
            let views = state.views;
            return Err(PyBufferError::new_err(format!(
                "{views} views of the observation are alive; delete them"
            )));
        }
        let parting = state.part(self.home);
        drop(state);
        if let Some(parting) = parting {
            parting.end();
        }
        Ok(())
    }

    /// Copies the payload to an array on the GPU, on a stream; the slot is given back only when that is over.
    #[pyo3(signature = (target, stream=None))]
    fn copy_to(&self, target: &Bound<'_, PyAny>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let Array { start, bytes, .. } = Array::target(target)?;
        if bytes < self.about.nbytes {
            return Err(PyValueError::new_err(format!(
                "the target has {bytes} bytes, the observation {}",
                self.about.nbytes
            )));
        }
        self.with_device(target.py(), stream, |payload, fence, stream| {
            // SAFETY: the slot is lent for as long as the GPU is being told.
            let payload = unsafe { &*payload };
            // SAFETY: it is lent until `part`, whose fence is waited for; the array is as large as it says, and lives as
            // long as the user's stream needs it, as everywhere in Python where streams are passed.
            unsafe { fence.copy(payload, start, stream) }
        })
    }

    /// The GPU uses the slot in what was put on this stream so far; it is given back only when that is over.
    #[pyo3(signature = (stream=None))]
    fn used_by(&self, py: Python<'_>, stream: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        self.with_device(py, stream, |_, fence, stream| fence.record(stream))
    }

    /// Where a kernel on the GPU sees the payload, if the slots are page-locked.
    #[getter]
    fn device_pointer(&self) -> Option<u64> {
        let state = self.lock();
        let payload = state.lent.as_ref()?.payload();
        match &state.gpu {
            Gpu::None => None,
            Gpu::Idle(fence) => fence.device_address(payload.as_ptr()),
            Gpu::Told { address, .. } => *address,
        }
    }

    /// The payload on the GPU, where the sidecar has copied it already; `None`: it has not.
    #[getter]
    fn device(slf: &Bound<'_, Self>) -> PyResult<Option<DeviceArray>> {
        let this = slf.get();
        this.home.check("Observation")?;
        let mut state = this.lock();
        let Some(arrival) = state.arrival.clone() else { return Ok(None) };
        this.begin_view(&mut state)?;
        Ok(Some(DeviceArray::new(slf.clone().unbind(), arrival, this.home)))
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _type: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (answer, views) = {
            let state = self.lock();
            (state.answer, state.views)
        };
        // With an answer given, the slot follows its last view. Views that an exception's traceback holds are no reason
        // to hide that exception behind another one.
        if answer != Answer::Due || (views > 0 && !value.is_none()) { Ok(()) } else { self.release(py) }
    }

    /// The payload: a read-only memoryview of the slot.
    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyMemoryView>> {
        PyMemoryView::from(slf.as_any())
    }

    /// Bytes of the payload.
    #[getter]
    fn nbytes(&self) -> usize {
        self.about.nbytes
    }

    /// The payload is empty: the no-op is due.
    #[getter]
    fn is_empty(&self) -> bool {
        self.about.nbytes == 0
    }

    /// Its session is over: an action would be dropped.
    #[getter]
    fn cancelled(&self) -> bool {
        let state = self.lock();
        state.lent.as_ref().map_or(state.cancelled, worker::Observation::cancelled)
    }

    /// An action was given, or a failure reported.
    #[getter]
    fn answered(&self) -> bool {
        self.lock().answer != Answer::Due
    }

    /// The session it belongs to.
    #[getter]
    fn session<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        self.session.bind(py).clone()
    }

    /// Counts the observations of its sidecar.
    #[getter]
    fn sequence(&self) -> u64 {
        self.about.sequence
    }

    /// The slot it lies in.
    #[getter]
    fn slot(&self) -> u32 {
        self.about.slot
    }

    /// A worker before this one had it and did not answer.
    #[getter]
    fn redelivered(&self) -> bool {
        self.about.redelivered
    }

    /// Which of the worker's sidecars it came from, counted from 0.
    #[getter]
    pub(crate) fn source(&self) -> usize {
        self.member
    }

    /// When its first byte came (CLOCK_BOOTTIME).
    #[getter]
    fn first_byte_ns(&self) -> u64 {
        self.about.stamps[0]
    }

    /// When its last byte came.
    #[getter]
    fn last_byte_ns(&self) -> u64 {
        self.about.stamps[1]
    }

    /// When the sidecar handed it over.
    #[getter]
    fn published_ns(&self) -> u64 {
        self.about.stamps[2]
    }

    /// When this worker took it.
    #[getter]
    fn taken_ns(&self) -> u64 {
        self.about.stamps[3]
    }

    /// How many views of the slot are alive.
    #[getter]
    fn views(&self) -> usize {
        self.lock().views
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let this = slf.get();
        this.home.check("Observation")?;
        let mut state = this.lock();
        let bytes = this.begin_view(&mut state)?;
        // SAFETY: the view is the interpreter's. The slot stays lent while views are counted, and the view holds the
        // object.
        let filled =
            unsafe { fill_view(view, slf.as_any(), bytes, this.about.nbytes, Access::ReadOnly, flags) };
        if filled.is_err() {
            state.views -= 1;
        }
        filled
    }

    /// # Safety
    /// Called by the interpreter.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {
        self.end_view();
    }

    /// The payload as a tensor of bytes.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        slf: &Bound<'py, Self>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        let this = slf.get();
        this.home.check("Observation")?;
        if stream.is_some() {
            return Err(PyBufferError::new_err(
                "the payload lies in host memory, where there are no streams",
            ));
        }
        if let Some((kind, id)) = dl_device
            && kind != dlpack::CPU
        {
            return Err(PyBufferError::new_err(format!(
                "the payload lies in host memory, not on device ({kind}, {id})"
            )));
        }
        let mut state = this.lock();
        let bytes = this.begin_view(&mut state)?;
        let (place, length) = (this.__dlpack_device__(), this.about.nbytes);
        let export = if copy == Some(true) {
            state.views -= 1;
            let lent = state.lent.as_ref().map_or(&[][..], worker::Observation::payload);
            let mut copied = Box::new(lent.to_vec());
            Export { bytes: copied.as_mut_ptr(), place, length, flags: Flags::IS_COPIED, hold: copied }
        } else {
            Export {
                bytes,
                place,
                length,
                flags: Flags::READ_ONLY,
                hold: Box::new(View(slf.clone().unbind())),
            }
        };
        drop(state);
        dlpack::export(slf.py(), export, max_version)
    }

    /// Where the payload lies: on the CPU.
    fn __dlpack_device__(&self) -> (i32, i32) {
        (dlpack::CPU, 0)
    }

    fn __reduce__(&self) -> PyResult<()> {
        Err(no_pickle("Observation"))
    }

    fn __repr__(&self) -> String {
        let state = self.lock();
        let what = match (state.answer, &state.lent) {
            (Answer::Due, Some(_)) => "",
            (Answer::Due, None) => ", released",
            (Answer::Given, _) => ", answered",
            (Answer::Failed, _) => ", failed",
        };
        let About { sequence, nbytes, .. } = self.about;
        format!("<sidecar.Observation {sequence} of {nbytes} bytes, {} views{what}>", state.views)
    }

    /// A session may hold its observations.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.session)
    }
}

impl Drop for Observation {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(parting) = state.part(self.home) {
            parting.end();
        }
    }
}

/// A DLPack view of an observation.
pub(crate) struct View(Py<Observation>);

impl View {
    /// One more.
    ///
    /// # Errors
    /// The slot was given back.
    pub(crate) fn of(observation: &Bound<'_, Observation>) -> PyResult<Self> {
        let this = observation.get();
        this.begin_view(&mut this.lock())?;
        Ok(Self(observation.clone().unbind()))
    }
}

impl Hold for View {
    fn release(self: Box<Self>, py: Python<'_>) {
        self.0.bind(py).get().end_view();
        self.0.drop_ref(py);
    }
}
