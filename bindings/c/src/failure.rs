//! Why something did not work, in words: a status says what kind of thing it is, these say which.

use core::ffi::c_char;
use core::mem::size_of;

use sidecar_c_agent::border::Versioned;
use sidecar_c_agent::event::write_text;
use sidecar_c_agent::status::{
    ENDED, ERR_ACTION_TOO_LARGE, ERR_ALL_RESERVED, ERR_DAMAGED, ERR_DETACHED, ERR_NO_SIDECAR, ERR_ORPHANED,
    ERR_REFUSED, ERR_REGION, ERR_REPLACED, ERR_SYSTEM,
};
use sidecar_cuda::code::CallError;
use sidecar_cuda::pin::PinError;
use sidecar_cuda::ring::RingError;
use sidecar_shm::worker::{AttachError, WorkerError};

/// Why something did not work.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Failure {
    /// `sizeof(struct sidecar_failure)`, to be set before the call.
    pub struct_size: u32,
    /// The status that was returned.
    pub status: i32,
    /// Number of the region that it concerns, in the order in which they were given.
    pub member: u32,
    /// The other worker, where one is in the way; 0: not known.
    pub pid: u32,
    /// Bytes of `text`.
    pub text_len: u32,
    /// For people, ended by NUL, cut where it is too long.
    pub text: [c_char; 516],
}

const _: () = assert!(size_of::<Failure>() == 536);

// SAFETY: repr(C), the size first, without padding (20 + 516, asserted above), plain fields only.
unsafe impl Versioned for Failure {
    const FIRST: usize = 536;
}

/// A failure as it is kept.
#[derive(Debug)]
pub(crate) struct Why {
    status: i32,
    member: u32,
    pid: u32,
    text: String,
}

impl Why {
    pub(crate) fn attach(member: usize, error: &AttachError) -> Self {
        let (status, pid) = match error {
            AttachError::NoSidecar { .. } => (ERR_NO_SIDECAR, 0),
            AttachError::Refused { pid, .. } => (ERR_REFUSED, *pid),
            AttachError::Region { .. } => (ERR_REGION, 0),
        };
        Self { status, member: number(member), pid, text: error.to_string() }
    }

    pub(crate) fn worker(member: usize, error: &WorkerError) -> Self {
        let (status, pid) = match error {
            WorkerError::Ended => (ENDED, 0),
            WorkerError::Orphaned { .. } => (ERR_ORPHANED, 0),
            WorkerError::Replaced { pid } => (ERR_REPLACED, *pid),
            WorkerError::Detached => (ERR_DETACHED, 0),
            WorkerError::ActionTooLarge { .. } => (ERR_ACTION_TOO_LARGE, 0),
            WorkerError::AllReserved { .. } => (ERR_ALL_RESERVED, 0),
            WorkerError::Damaged(_) => (ERR_DAMAGED, 0),
            WorkerError::Io(_) => (ERR_SYSTEM, 0),
        };
        Self { status, member: number(member), pid, text: error.to_string() }
    }

    /// Why slots are not page-locked.
    pub(crate) fn pin(member: usize, error: &PinError) -> Self {
        Self { status: ERR_SYSTEM, member: number(member), pid: 0, text: error.to_string() }
    }

    /// Why a sidecar's ring on the device is of no use.
    pub(crate) fn ring(member: usize, error: &RingError) -> Self {
        Self { status: ERR_SYSTEM, member: number(member), pid: 0, text: error.to_string() }
    }

    /// Why an action is not copied back from a device.
    pub(crate) fn device(member: usize, error: &CallError) -> Self {
        let text = format!("the action was not copied from the device: {error}");
        Self { status: ERR_SYSTEM, member: number(member), pid: 0, text }
    }

    pub(crate) const fn status(&self) -> i32 {
        self.status
    }

    pub(crate) fn cross(&self) -> Failure {
        let mut failure = Failure {
            struct_size: size_of::<Failure>() as u32,
            status: self.status,
            member: self.member,
            pid: self.pid,
            text_len: 0,
            text: [0; 516],
        };
        failure.text_len = write_text(&mut failure.text, &self.text);
        failure
    }
}

/// Members are counted in 32 bits: there can't be as many.
pub(crate) fn number(member: usize) -> u32 {
    u32::try_from(member).unwrap_or(u32::MAX)
}
