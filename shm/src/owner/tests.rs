//! The sidecar's side against a worker that behaves, dies, sleeps or lies. Workers run in this process or another one;
//! what the control thread would say is said by [`Side`].

mod death;
mod exchange;
mod hostile;
mod takeover;

use rustix::process::Signal;
use sidecar_core::record::ToSidecar;
use sidecar_core::tunnel::SessionId;

use super::*;
use crate::attach::Candidate;
use crate::layout::{PAGE, RING_BYTES, worker_page};
use crate::region::Found;
use crate::stats::Counter;
use crate::testing::{SMALL, Said, Side, observation, until};
use crate::worker::{AttachError, AttachOptions, Event, Worker, WorkerError};

/// A side with a worker that takes deliveries.
fn pair() -> (Side, Worker) {
    let mut side = Side::new(&SMALL);
    let worker = side.attach().unwrap();
    side.owner.deliver_pending();
    (side, worker)
}

/// The worker ends as a killed one does: its connection closes, nothing is given back.
fn kill(side: &mut Side, worker: Worker) -> SeatInfo {
    let info = side.owner.live_seat().unwrap();
    drop(worker);
    until(|| side.connections.iter().any(crate::attach::Connection::has_ended).then_some(()));
    side.connections.retain(|connection| !connection.has_ended());
    side.owner.seat_connection_ended(info.seat, info.generation);
    info
}

fn free(side: &Side) -> u32 {
    side.owner.free_slots()
}

/// The doorbell that the worker of a seat rings.
fn bell(side: &Side, seat: usize) -> BorrowedFd<'_> {
    side.owner.doorbells()[1 + seat]
}
