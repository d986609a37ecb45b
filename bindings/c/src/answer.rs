//! How an observation is answered: with bytes, with a reservation that was filled in place, or with the word that no
//! action comes; [`crate::device`] has the fourth way. The worker's functions wait for room, the observation's own do not, and work on any thread.

use core::ffi::c_char;
use std::sync::Arc;

use sidecar_c_agent::border::{Border, Kind, Marked};
use sidecar_c_agent::fence::{Checked, fence};
use sidecar_c_agent::status::{ERR_BUG, ERR_LENGTH, ERR_MISMATCH, NO_ROOM, OK};
use sidecar_cuda::code::CallError;
use sidecar_shm::worker::{Answered, Reservation as Shm, WorkerError};

use crate::failure::Why;
use crate::handle::{OnHeap, Pool, give, take};
use crate::observation::Observation;
use crate::worker::Worker;

/// An action slot that the caller writes into.
#[derive(Debug)]
pub struct Reservation {
    /// Absent only inside of a call that gives it away.
    shm: Option<Shm>,
    member: usize,
    token: Arc<()>,
}

impl Kind for Reservation {
    const MARK: u64 = u64::from_be_bytes(*b"sdcreser");
}

impl OnHeap for Reservation {
    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Reservation> = Pool::new();
        &POOL
    }
}

/// Answers an observation with a copy of `action`, and gives its slot back. Waits for room. If its session
/// is over, the action goes nowhere. Unless it returns `OK`, the observation is still yours. 0 to
/// `sidecar_worker_info.action_bytes` bytes.
///
/// Errors: `ERR_ACTION_TOO_LARGE`; `ERR_ALL_RESERVED`; `ERR_MISMATCH`, the observation is another worker's;
/// otherwise those of `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_answer(
    worker: *mut Marked<Worker>,
    own_observation: *mut Marked<Observation>,
    action: *const u8,
    action_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    waiting(&border, worker, own_observation, |border| {
        let action = border.bytes(action, action_len)?;
        with(border, own_observation, |observation| try_answer(observation, action))
    })
}

/// The same without a worker and without waiting, on any thread. `NO_ROOM`: try again later, or answer
/// through the worker.
///
/// Errors: `ERR_ACTION_TOO_LARGE`, `ERR_ALL_RESERVED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_try_answer(
    own_observation: *mut Marked<Observation>,
    action: *const u8,
    action_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    at_once(&border, own_observation, |border| {
        let action = border.bytes(action, action_len)?;
        with(border, own_observation, |observation| try_answer(observation, action))
    })
}

/// Says that no action comes; the sidecar's failure policy (`--on-failure`) decides. Gives the slot back.
/// Waits for room. Of `message`, 256 bytes are kept. Unless it returns `OK`, the observation is still
/// yours.
///
/// Errors: `ERR_TEXT`, not UTF-8; `ERR_MISMATCH`, the observation is another worker's; otherwise those of
/// `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_failed(
    worker: *mut Marked<Worker>,
    own_observation: *mut Marked<Observation>,
    message: *const c_char,
    message_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    waiting(&border, worker, own_observation, |border| {
        let message = border.text(message, message_len)?;
        with(border, own_observation, |observation| try_failed(observation, message))
    })
}

/// The same without a worker and without waiting, on any thread. `NO_ROOM`: try again later.
///
/// Errors: `ERR_TEXT`, not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_try_failed(
    own_observation: *mut Marked<Observation>,
    message: *const c_char,
    message_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    at_once(&border, own_observation, |border| {
        let message = border.text(message, message_len)?;
        with(border, own_observation, |observation| try_failed(observation, message))
    })
}

/// A slot to write an action of at most `length` bytes into, 0 to `sidecar_worker_info.action_bytes`, for
/// an answer to `observation` or to another one of the same region. Waits for one. The handle in
/// `reservation` is yours until it is answered with or released.
///
/// Errors: `ERR_ACTION_TOO_LARGE`; `ERR_ALL_RESERVED`, the caller has them all; `ERR_MISMATCH`, the
/// observation is another worker's; otherwise those of `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_reserve(
    worker: *mut Marked<Worker>,
    observation: *const Marked<Observation>,
    length: usize,
    reservation: *mut *mut Marked<Reservation>,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.out(reservation)?;
        let observation = border.peek(observation)?;
        belongs(worker, &observation.token)?;
        let member = observation.member;
        loop {
            match observation.shm()?.try_reserve(length) {
                Ok(Some(shm)) => {
                    let token = Arc::clone(&observation.token);
                    out.set(give(Reservation { shm: Some(shm), member, token }));
                    return Ok(OK);
                }
                Ok(None) => wait(worker, member)?,
                Err(error) => return Err(worker.failed(member, &error)),
            }
        }
    })
}

/// The bytes to write the action into, `length` of them; they hold whatever was there before. Borrowed:
/// until the reservation is answered with or released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_reservation_get_bytes(
    reservation: *mut Marked<Reservation>,
    bytes: *mut *mut u8,
    length: *mut usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(reservation, |reservation| {
        let (bytes, length) = (border.out(bytes)?, border.out(length)?);
        let shm = reservation.shm.as_mut().ok_or(ERR_BUG)?;
        length.set(shm.len());
        bytes.set(shm.as_mut_slice().as_mut_ptr());
        Ok(OK)
    })
}

/// Answers an observation with the first `length` bytes of a reservation, and gives its slot back. Waits
/// for room. Unless it returns `OK`, both are still yours.
///
/// Errors: `ERR_LENGTH`, more than was reserved; `ERR_MISMATCH`, the reservation is of another region, or
/// either of them another worker's; otherwise those of `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_answer_reserved(
    worker: *mut Marked<Worker>,
    own_observation: *mut Marked<Observation>,
    own_reservation: *mut Marked<Reservation>,
    length: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    let status = waiting(&border, worker, own_observation, |border| {
        with(border, own_observation, |observation| {
            let mut answered = Ok(Said::NoRoom);
            let lent = border.handle(own_reservation, |reservation| {
                answered = try_answer_reserved(observation, reservation, length);
                Ok(OK)
            });
            if lent == OK { answered } else { Err(Unsaid::Status(lent)) }
        })
    });
    if status == OK {
        return fence(|| take(&border, own_reservation).map(|_| OK));
    }
    status
}

/// Gives an action slot back unused. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_reservation_release(own_reservation: *mut Marked<Reservation>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        if !own_reservation.is_null() {
            drop(take(&border, own_reservation)?);
        }
        Ok(OK)
    })
}

/// What came of saying something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Done,
    NoRoom,
}

/// Why something was not said.
pub(crate) enum Unsaid {
    Status(i32),
    Worker(WorkerError),
    Device(CallError),
}

impl From<i32> for Unsaid {
    fn from(status: i32) -> Self {
        Self::Status(status)
    }
}

impl From<WorkerError> for Unsaid {
    fn from(error: WorkerError) -> Self {
        Self::Worker(error)
    }
}

impl From<CallError> for Unsaid {
    fn from(error: CallError) -> Self {
        Self::Device(error)
    }
}

impl Unsaid {
    /// What there is to tell about it; the status alone if it is the caller's mistake.
    fn why(self, member: usize) -> Checked<Why> {
        match self {
            Self::Status(status) => Err(status),
            Self::Worker(error) => Ok(Why::worker(member, &error)),
            Self::Device(error) => Ok(Why::device(member, &error)),
        }
    }
}

/// Copies the action into a slot and publishes it; on success the observation is gone.
fn try_answer(observation: &mut Observation, action: &[u8]) -> Result<Said, Unsaid> {
    let Some(mut slot) = observation.shm()?.try_reserve(action.len())? else { return Ok(Said::NoRoom) };
    slot.as_mut_slice().copy_from_slice(action);
    Ok(match publish(observation, slot, action.len())? {
        Answered::Done => Said::Done,
        Answered::NoRoom(_unused) => Said::NoRoom,
    })
}

fn try_answer_reserved(
    observation: &mut Observation,
    reservation: &mut Reservation,
    length: usize,
) -> Result<Said, Unsaid> {
    if !Arc::ptr_eq(&observation.token, &reservation.token) || observation.member != reservation.member {
        return Err(ERR_MISMATCH.into());
    }
    if reservation.shm.as_ref().is_none_or(|shm| shm.len() < length) {
        return Err(ERR_LENGTH.into());
    }
    let slot = reservation.shm.take().ok_or(ERR_BUG)?;
    Ok(match publish(observation, slot, length)? {
        Answered::Done => Said::Done,
        Answered::NoRoom(slot) => {
            reservation.shm = Some(slot);
            Said::NoRoom
        }
    })
}

/// Publishes the action that lies in the slot. The observation is gone then, unless a GPU is not done with it.
pub(crate) fn publish(observation: &mut Observation, slot: Shm, length: usize) -> Checked<Answered<Shm>> {
    if observation.is_with_the_gpu() {
        return Ok(observation.shm()?.try_answer_and_keep(slot, length));
    }
    let shm = observation.shm.take().ok_or(ERR_BUG)?;
    Ok(match shm.try_answer(slot, length) {
        Answered::Done => Answered::Done,
        Answered::NoRoom((shm, slot)) => {
            observation.shm = Some(shm);
            Answered::NoRoom(slot)
        }
    })
}

fn try_failed(observation: &mut Observation, message: &str) -> Result<Said, Unsaid> {
    Ok(if observation.shm()?.try_failed(message) { Said::Done } else { Said::NoRoom })
}

/// Lends the observation to `body`.
pub(crate) fn with(
    border: &Border,
    observation: *mut Marked<Observation>,
    body: impl FnOnce(&mut Observation) -> Result<Said, Unsaid>,
) -> Result<Said, Unsaid> {
    let mut said = Ok(Said::NoRoom);
    let lent = border.handle(observation, |observation| {
        said = body(observation);
        Ok(OK)
    });
    if lent == OK { said } else { Err(lent.into()) }
}

/// Says something about an observation, waiting for room with its worker; takes the observation when it was said.
pub(crate) fn waiting(
    border: &Border,
    worker: *mut Marked<Worker>,
    observation: *mut Marked<Observation>,
    mut say: impl FnMut(&Border) -> Result<Said, Unsaid>,
) -> i32 {
    border.handle(worker, |worker| {
        let member = {
            let observation = border.peek(observation)?;
            belongs(worker, &observation.token)?;
            observation.member
        };
        loop {
            match say(border) {
                Ok(Said::Done) => break,
                Ok(Said::NoRoom) => wait(worker, member)?,
                Err(unsaid) => return Err(worker.keep(unsaid.why(member)?)),
            }
        }
        drop(take(border, observation)?);
        Ok(OK)
    })
}

/// Says something about an observation now or not at all; takes the observation when it was said.
pub(crate) fn at_once(
    border: &Border,
    observation: *mut Marked<Observation>,
    say: impl FnOnce(&Border) -> Result<Said, Unsaid>,
) -> i32 {
    fence(|| match say(border) {
        Ok(Said::Done) => {
            drop(take(border, observation)?);
            Ok(OK)
        }
        Ok(Said::NoRoom) => Ok(NO_ROOM),
        Err(unsaid) => Err(unsaid.why(0)?.status()),
    })
}

fn belongs(worker: &Worker, token: &Arc<()>) -> Checked<()> {
    if Arc::ptr_eq(&worker.token, token) { Ok(()) } else { Err(ERR_MISMATCH) }
}

/// Waits until there may be room.
fn wait(worker: &mut Worker, member: usize) -> Checked<()> {
    let waited = worker.workers.member(member).wait_a_little_for_room();
    waited.map_err(|error| worker.failed(member, &error))
}
