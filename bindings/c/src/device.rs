//! What a GPU does with observation slots: page-locked for it, copied to it, and given back only when it is done; and
//! actions that lie on it.
//!
//! Streams and addresses are the driver's, which are the runtime's as well: a `cudaStream_t` is a `CUstream`.

use core::ffi::c_void;

use sidecar_c_agent::border::{Border, Marked};
use sidecar_c_agent::fence::Checked;
use sidecar_c_agent::status::{ERR_BUG, ERR_LENGTH, ERR_STATE, ERR_SYSTEM, NOTHING, OK};
use sidecar_cuda::fence::{Fence, Stream};
use sidecar_cuda::pinned::Pinned;
use sidecar_shm::worker::Answered;

use crate::answer::{self, Said, Unsaid};
use crate::failure::{Failure, Why};
use crate::observation::Observation;
use crate::worker::Worker;

/// Why the slots of region `member` are not page-locked, though `sidecar_WORKER_PIN` asked for it; its status is
/// `ERR_SYSTEM`. `NOTHING`: they are, or nobody asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_get_pin_failure(
    worker: *mut Marked<Worker>,
    member: u32,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.place(failure)?;
        let (at, _) = worker.member(member)?;
        match worker.pinned.get(at).and_then(Pinned::trouble) {
            None => Ok(NOTHING),
            Some(error) => {
                out.fill(&Why::pin(at, error).cross());
                Ok(OK)
            }
        }
    })
}

/// Where a kernel on the GPU sees the payload, without any copy. `NOTHING`: the slots are not page-locked, or
/// the GPU cannot see them. Borrowed: until the observation is answered or released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_get_device_address(
    observation: *const Marked<Observation>,
    address: *mut u64,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(observation, |observation| {
        let out = border.out(address)?;
        let payload = observation.shm()?.payload().as_ptr();
        let seen = observation.fence.as_ref().and_then(|fence| fence.device_address(payload));
        Ok(seen.map_or(NOTHING, |address| {
            out.set(address);
            OK
        }))
    })
}

/// Starts the copy of the payload to `length` bytes of device memory at `device_address`, on a stream (NULL:
/// the default stream), and does not wait. The slot is given back only when the copy is over, whenever the
/// observation is answered or released; that waits for it, the action does not. The device memory has to live
/// until the stream is done with it. From slots that are not page-locked it works as well, but slower.
///
/// Errors: `ERR_LENGTH`, the payload is longer; `ERR_STATE`, the worker has no GPU; `ERR_SYSTEM`, the driver
/// refused, and nothing is on its way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_copy_to_device(
    observation: *mut Marked<Observation>,
    device_address: u64,
    length: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(observation, |observation| {
        let Observation { shm, fence, .. } = observation;
        let payload = shm.as_ref().ok_or(ERR_BUG)?.payload();
        if payload.len() > length {
            return Err(ERR_LENGTH);
        }
        let (fence, stream) = on(fence, stream)?;
        // SAFETY: the slot is lent until the fence, which is dropped before it, is done; the rest the caller promises.
        let copied = unsafe { fence.copy(payload, device_address, stream) };
        copied.map_or(Err(ERR_SYSTEM), |()| Ok(OK))
    })
}

/// The GPU uses the slot in what was put on this stream so far (NULL: the default stream): it is given back
/// only when that is over. For copies and kernels of the caller's own.
///
/// Errors: `ERR_STATE`, the worker has no GPU; `ERR_SYSTEM`, the driver refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_used_by_device(
    observation: *mut Marked<Observation>,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(observation, |observation| {
        let (fence, stream) = on(&mut observation.fence, stream)?;
        fence.record(stream).map_or(Err(ERR_SYSTEM), |()| Ok(OK))
    })
}

/// Why observations of region `member` are not found on the GPU (`sidecar_observation_get_arrival`), though its sidecar
/// copies them there (`--device-copy`); its status is `ERR_SYSTEM`. `NOTHING`: they are, or it copies none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_get_arrival_failure(
    worker: *mut Marked<Worker>,
    member: u32,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.place(failure)?;
        let (at, _) = worker.member(member)?;
        match worker.pinned.get(at).and_then(Pinned::ring_trouble) {
            None => Ok(NOTHING),
            Some(error) => {
                out.fill(&Why::ring(at, error).cross());
                Ok(OK)
            }
        }
    })
}

/// Where the payload lies on the GPU already, copied there by a sidecar with `--device-copy`. `NOTHING`: it does
/// not, or not where this worker can see it; it wants `sidecar_WORKER_PIN`. It may still be arriving: see
/// `sidecar_observation_hold_back`. Borrowed: until the observation is answered or released, and as long as its
/// sidecar lives. Work that reads it then has to be named to `sidecar_observation_used_by_device`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_get_arrival(
    observation: *const Marked<Observation>,
    address: *mut u64,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(observation, |observation| {
        let out = border.out(address)?;
        Ok(observation.arrival.as_ref().map_or(NOTHING, |arrival| {
            out.set(arrival.address());
            OK
        }))
    })
}

/// Waits until the payload has arrived on the GPU, so that what is put on this stream (NULL: the default stream), or
/// on any other, from now on finds it there. It waits for two seconds at most: a sidecar that died over the copy never
/// finishes it, and a stream would wait for ever.
///
/// Errors: `ERR_STATE`, it does not lie there; `ERR_SYSTEM`, the driver refused, or the sidecar died.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_hold_back(
    observation: *const Marked<Observation>,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(observation, |observation| {
        let arrival = observation.arrival.as_ref().ok_or(ERR_STATE)?;
        // What is there is there for every stream.
        let _ = stream;
        arrival.wait().map_or(Err(ERR_SYSTEM), |()| Ok(OK))
    })
}

/// Answers an observation with an action of `length` bytes that lies in device memory at `device_address`: it is
/// copied into an action slot behind all that is on the stream (NULL: the default stream), which is waited for,
/// and sent. Memory and stream have to live until this returns. Waits for room. Unless it returns `OK`, the
/// observation is still yours. 0 to `sidecar_worker_info.action_bytes` bytes.
///
/// Errors: `ERR_STATE`, the worker has no GPU; `ERR_SYSTEM`, the driver refused, or what is on the stream
/// went wrong; `ERR_ACTION_TOO_LARGE`; `ERR_ALL_RESERVED`; `ERR_MISMATCH`, the observation is another's;
/// otherwise those of `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_answer_from_device(
    worker: *mut Marked<Worker>,
    own_observation: *mut Marked<Observation>,
    device_address: u64,
    length: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    answer::waiting(&border, worker, own_observation, |border| {
        answer::with(border, own_observation, |observation| {
            // SAFETY: the caller says what lies there, and that it and the stream live until this returns.
            unsafe { try_answer(observation, device_address, length, given(stream)) }
        })
    })
}

/// The same without a worker, on any thread: it waits for the stream, but not for room. `NO_ROOM`: try again
/// later, or answer through the worker.
///
/// Errors: `ERR_STATE`, `ERR_SYSTEM`, `ERR_ACTION_TOO_LARGE`, `ERR_ALL_RESERVED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_try_answer_from_device(
    own_observation: *mut Marked<Observation>,
    device_address: u64,
    length: usize,
    stream: *mut c_void,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    answer::at_once(&border, own_observation, |border| {
        answer::with(border, own_observation, |observation| {
            // SAFETY: as above.
            unsafe { try_answer(observation, device_address, length, given(stream)) }
        })
    })
}

/// Copies the action into a slot and publishes it.
///
/// # Safety
/// The device memory at `from` has as many bytes, and like the stream it lives until this returns.
unsafe fn try_answer(
    observation: &mut Observation,
    from: u64,
    length: usize,
    stream: Stream,
) -> Result<Said, Unsaid> {
    let back = observation.fence.as_ref().map(Fence::back).ok_or(ERR_STATE)?;
    let Some(mut slot) = observation.shm()?.try_reserve(length)? else { return Ok(Said::NoRoom) };
    // SAFETY: by this function's own contract.
    unsafe { back.read(from, slot.as_mut_slice(), stream) }?;
    Ok(match answer::publish(observation, slot, length)? {
        Answered::Done => Said::Done,
        Answered::NoRoom(_unused) => Said::NoRoom,
    })
}

fn on(fence: &mut Option<Fence>, stream: *mut c_void) -> Checked<(&mut Fence, Stream)> {
    fence.as_mut().map(|fence| (fence, given(stream))).ok_or(ERR_STATE)
}

fn given(stream: *mut c_void) -> Stream {
    // SAFETY: the caller says that it is a stream, and that it lives until the device is done.
    unsafe { Stream::from_raw(stream.expose_provenance()) }
}
