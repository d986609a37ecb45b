//! What a simulation puts in the place of the world around a region: time, processes, the attach socket, and death at
//! a chosen store. Feature `simulation`; a product is built without it.
//!
//! Everything here belongs to one thread, so that simulations run side by side. Nothing here decides anything: it
//! answers what the operating system would have answered, or tells that a place was reached.

use core::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;

use sidecar_core::time::Instant;

use crate::attach::{Answer, Granted, SeatClaim};
use crate::owner::{SeatGrant, SeatRefused};

pub use crate::crash::Point;

thread_local! {
    static NOW: Cell<Option<Instant>> = const { Cell::new(None) };
    static DYING: Cell<bool> = const { Cell::new(false) };
    static FUSE: Cell<Option<Fuse>> = const { Cell::new(None) };
    static PASSED: Cell<[u64; Point::ALL.len()]> = const { Cell::new([0; Point::ALL.len()]) };
    static PROCESSES: RefCell<Vec<(u32, u64)>> = const { RefCell::new(Vec::new()) };
    static ATTACH: RefCell<Option<Attach>> = const { RefCell::new(None) };
}

/// Who passes points at the moment, and how many more before it dies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fuse {
    /// Points of [`Point::of_owner`], or of the worker.
    pub owner: bool,
    /// It dies at the point that brings this to 0.
    pub left: u32,
}

/// What a death by fuse unwinds with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Died(pub Point);

/// What the next attach handshake of this thread is answered.
#[derive(Debug)]
pub enum Attach {
    /// A seat, and the worker's end of the connection.
    Granted(SeatGrant, OwnedFd),
    /// None.
    Refused(SeatRefused),
}

/// Sets the clock of this thread; `None` gives it the real one back. While it is set, attach handshakes and processes
/// are simulated too.
pub fn set_time(now: Option<Instant>) {
    NOW.set(now);
}

/// Lights a fuse, or puts it out.
pub fn set_fuse(fuse: Option<Fuse>) {
    DYING.set(false);
    FUSE.set(fuse);
}

/// The fuse as it is now.
pub fn fuse() -> Option<Fuse> {
    FUSE.get()
}

/// How often each point was passed by this thread, in the order of [`Point::ALL`].
pub fn passed() -> [u64; Point::ALL.len()] {
    PASSED.get()
}

/// The processes that run, by pid and start time.
pub fn set_processes(processes: &[(u32, u64)]) {
    PROCESSES.with_borrow_mut(|all| {
        all.clear();
        all.extend_from_slice(processes);
    });
}

/// Puts the answer to the next handshake in place and returns the one that nobody took. `None`: nobody listens.
pub fn set_attach(answer: Option<Attach>) -> Option<Attach> {
    ATTACH.with_borrow_mut(|next| core::mem::replace(next, answer))
}

/// Whether the answer that was put in place last still waits for a handshake.
pub fn is_attach_waiting() -> bool {
    ATTACH.with_borrow(Option::is_some)
}

/// Whether the clock of this thread is a simulation's.
pub fn is_active() -> bool {
    NOW.get().is_some()
}

/// A death by fuse unwinds, which no kill does: until the next fuse is set, nothing that is dropped may say a word.
pub(crate) fn is_dying() -> bool {
    DYING.get()
}

pub(crate) fn time() -> Option<Instant> {
    NOW.get()
}

/// `None`: ask the system. `Some(None)`: there is no such process.
pub(crate) fn start_time(pid: u32) -> Option<Option<u64>> {
    time()?;
    Some(PROCESSES.with_borrow(|all| all.iter().find(|(it, _)| *it == pid).map(|(_, started)| *started)))
}

/// `None`: ask the system.
pub(crate) fn connect(_claim: Option<SeatClaim>) -> Option<io::Result<Answer>> {
    time()?;
    Some(match ATTACH.with_borrow_mut(Option::take) {
        None => Err(io::ErrorKind::ConnectionRefused.into()),
        Some(Attach::Refused(refused)) => {
            let (why, pid) = refused.reason();
            Ok(Answer::Refused { why, pid, text: refused.to_string() })
        }
        Some(Attach::Granted(grant, connection)) => Ok(Answer::Granted(Box::new(Granted {
            connection,
            region: grant.region,
            doorbell: grant.doorbell,
            wake: grant.wake,
            seat: grant.seat,
            generation: grant.generation,
            owner_generation: grant.owner_generation,
            resumed: grant.resumed,
            region_id: grant.region_id,
            total_bytes: grant.total_bytes,
        }))),
    })
}

/// A store was reached: counts it, and dies if it is the one.
pub(crate) fn reached(point: Point) {
    let mut passed = PASSED.get();
    passed[point as usize] += 1;
    PASSED.set(passed);
    let Some(mut fuse) = FUSE.get().filter(|fuse| fuse.owner == point.of_owner()) else { return };
    fuse.left = fuse.left.saturating_sub(1);
    if fuse.left > 0 {
        return FUSE.set(Some(fuse));
    }
    FUSE.set(None);
    DYING.set(true);
    // As SIGKILL does: without a word, and without running what would have followed.
    std::panic::resume_unwind(Box::new(Died(point)));
}
