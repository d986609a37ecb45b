//! An observation in the caller's hands: the slot it lies in, until it is answered or released. A handle of its own, so
//! it may be used by another thread than its worker's.

use core::mem::size_of;
use std::sync::Arc;

use sidecar_c_agent::border::{Border, Kind, Marked, Versioned};
use sidecar_c_agent::fence::{Checked, fence};
use sidecar_c_agent::status::{ERR_BUG, GONE, OK};
use sidecar_cuda::fence::Fence;
use sidecar_cuda::pinned::Pinned;
use sidecar_cuda::ring::Arrival;
use sidecar_shm::worker::Observation as Shm;

use crate::failure::number;
use crate::handle::{OnHeap, Pool, give, take};

/// For `sidecar_observation_view.flags`: the payload is empty; answer with the action that does nothing.
pub const OBSERVATION_EMPTY: u32 = 1;
/// For `sidecar_observation_view.flags`: another worker got it before and did not answer.
pub const OBSERVATION_REDELIVERED: u32 = 2;

/// An observation, as it can be looked at.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ObservationView {
    /// `sizeof(struct sidecar_observation_view)`, to be set before the call.
    pub struct_size: u32,
    /// Sum of `sidecar_OBSERVATION_...`.
    pub flags: u32,
    /// Number of the region that it came from.
    pub member: u32,
    /// The slot that it lies in.
    pub slot: u32,
    /// Number of its session.
    pub epoch: u32,
    /// 0.
    pub reserved: u32,
    /// Where it was received. Borrowed: until the observation is answered or released.
    pub payload: *const u8,
    /// Bytes of `payload`.
    pub payload_len: usize,
    /// Counts observations.
    pub sequence: u64,
    /// When its first byte came from the gateway; all times are of CLOCK_BOOTTIME.
    pub first_byte_ns: u64,
    /// When its last byte did.
    pub last_byte_ns: u64,
    /// When the sidecar put it into the worker's ring.
    pub published_ns: u64,
    /// When this worker took it.
    pub taken_ns: u64,
}

const _: () = assert!(size_of::<ObservationView>() == 80);

// SAFETY: repr(C), the size first, without padding (24 + 16 + 40, asserted above), plain fields only.
unsafe impl Versioned for ObservationView {
    const FIRST: usize = 80;
}

/// An observation that has to be answered or released.
#[derive(Debug)]
pub struct Observation {
    /// What a GPU does with it; `None`: there is none, or nobody asked for one. Dropped first: it waits.
    pub(crate) fence: Option<Fence>,
    /// Where it lies on that GPU already.
    pub(crate) arrival: Option<Arrival>,
    /// Absent only inside of a call that gives it away.
    pub(crate) shm: Option<Shm>,
    pub(crate) member: usize,
    pub(crate) token: Arc<()>,
}

impl Kind for Observation {
    const MARK: u64 = u64::from_be_bytes(*b"sdcobser");
}

impl OnHeap for Observation {
    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Observation> = Pool::new();
        &POOL
    }
}

impl Observation {
    /// Its slot is read by a GPU: the action leaves at once, and the slot when the handle is dropped.
    pub(crate) fn is_with_the_gpu(&self) -> bool {
        self.fence.as_ref().is_some_and(|fence| !fence.is_idle())
    }

    pub(crate) fn shm(&self) -> Checked<&Shm> {
        self.shm.as_ref().ok_or(ERR_BUG)
    }
}

/// Makes a handle of it.
pub(crate) fn give_out(
    shm: Shm,
    pinned: &Pinned,
    member: usize,
    token: &Arc<()>,
) -> *mut Marked<Observation> {
    let (fence, arrival) = (pinned.fence(), pinned.arrival(&shm));
    give(Observation { fence, arrival, shm: Some(shm), member, token: Arc::clone(token) })
}

/// Looks at an observation: its payload, where it was received, and what is known about it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_get_view(
    observation: *const Marked<Observation>,
    view: *mut ObservationView,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(observation, |observation| {
        let out = border.place(view)?;
        let shm = observation.shm()?;
        let empty = if shm.is_empty() { OBSERVATION_EMPTY } else { 0 };
        let redelivered = if shm.redelivered() { OBSERVATION_REDELIVERED } else { 0 };
        out.fill(&ObservationView {
            struct_size: size_of::<ObservationView>() as u32,
            flags: empty | redelivered,
            member: number(observation.member),
            slot: shm.slot(),
            epoch: shm.epoch().0,
            reserved: 0,
            payload: shm.payload().as_ptr(),
            payload_len: shm.payload().len(),
            sequence: shm.sequence(),
            first_byte_ns: shm.first_byte().as_nanos(),
            last_byte_ns: shm.last_byte().as_nanos(),
            published_ns: shm.published().as_nanos(),
            taken_ns: shm.taken().as_nanos(),
        });
        Ok(OK)
    })
}

/// `OK`: it is still wanted. `GONE`: its session is over, and an action for it would be dropped. Costs one
/// load: ask between the steps of a long inference.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_is_wanted(observation: *const Marked<Observation>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(observation, |observation| Ok(if observation.shm()?.cancelled() { GONE } else { OK }))
}

/// Gives its slot back. Without an answer, this worker hears of the observation no more, and the gateway
/// goes on waiting for its action: it is left to a successor of this worker. Meant for one that is not
/// wanted any more. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_observation_release(own_observation: *mut Marked<Observation>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        if !own_observation.is_null() {
            drop(take(&border, own_observation)?);
        }
        Ok(OK)
    })
}
