//! The worker's functions against a real region, whose owner is this test: what they promise about ownership, room,
//! several regions and threads.

#![allow(
    clippy::undocumented_unsafe_blocks,
    reason = "each keeps the header's rules, except where it says so"
)]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "as above")]

use core::ptr::{null, null_mut};
use core::time::Duration;
use std::path::PathBuf;
use std::thread;

use sidecar_c::answer::*;
use sidecar_c::failure::Failure;
use sidecar_c::observation::*;
use sidecar_c::status::*;
use sidecar_c::worker::*;
use sidecar_c_agent::border::Marked;
use sidecar_core::agent::HEADROOM;
use sidecar_core::record::{ToSidecar, ToWorker};
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_shm::attach::{Connection, Listener};
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{Identity, create};
use sidecar_shm::slots::Observed;
use tempfile::TempDir;

const GEOMETRY: Geometry =
    Geometry { observation_slots: 4, observation_bytes: 16_384, action_slots: 4, action_bytes: 4096 };
const SECOND: i64 = 1_000_000_000;

type Handle = *mut Marked<Worker>;
type Seen = *mut Marked<Observation>;

/// A sidecar's side of a region.
struct Side {
    owner: Owner,
    listener: Listener,
    connections: Vec<Connection>,
    path: PathBuf,
    _directory: TempDir,
    sequence: u64,
}

impl Side {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("sidecar-c-").tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("obs");
        let identity = Identity { job_endpoint_hash: [1; 32], agent: AgentId::new("agent").unwrap() };
        let owner = create(&path, &GEOMETRY, &identity, clock::now()).unwrap().owner;
        let listener = Listener::bind(&path).unwrap();
        Self { owner, listener, connections: Vec::new(), path, _directory: directory, sequence: 1 }
    }

    fn serve(&mut self) {
        while let Some(mut pending) = self.listener.accept().unwrap() {
            let Ok(candidate) = pending.wait_hello(Duration::from_secs(2)) else { continue };
            match self.owner.seat_join(&candidate) {
                Ok(grant) => self.connections.push(pending.grant(&grant).unwrap()),
                Err(refused) => pending.refuse(&refused),
            }
        }
        self.owner.deliver_pending();
    }

    fn observe(&mut self, payload: &[u8]) -> u64 {
        let slot = self.owner.claim_slot().expect("a free slot");
        let start = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize);
        unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), start, payload.len()) };
        let (now, sequence) = (clock::now(), self.sequence);
        self.sequence += 1;
        let length = u32::try_from(payload.len()).unwrap();
        let seen = Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now };
        self.owner.publish(slot, &seen);
        sequence
    }

    /// What the worker said next: an action's sequence and payload, or a record.
    fn said(&mut self) -> (u64, Vec<u8>, Option<ToSidecar>) {
        until(|| {
            Some(match self.owner.poll_worker().unwrap()? {
                FromWorker::Record { record, .. } => (0, Vec::new(), Some(record)),
                FromWorker::Action { sequence, base, length, .. } => {
                    let mut payload = vec![0; length as usize];
                    unsafe { core::ptr::copy_nonoverlapping(base, payload.as_mut_ptr(), payload.len()) };
                    self.owner.finish_action();
                    self.owner.journal().action_started(sequence);
                    self.owner.journal().action_sent(sequence);
                    self.owner.answered(sequence);
                    (sequence, payload, None)
                }
            })
        })
    }
}

fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let started = clock::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(clock::now().since(started) < Duration::from_secs(20), "nothing happened");
        thread::yield_now();
    }
}

/// Attaches one worker to all of them.
fn attach(sides: &mut [Side]) -> Handle {
    let paths: Vec<String> = sides.iter().map(|side| side.path.to_str().unwrap().to_owned()).collect();
    let attaching = thread::spawn(move || {
        let texts: Vec<_> = paths.iter().map(|path| path.as_ptr().cast()).collect();
        let lengths: Vec<_> = paths.iter().map(String::len).collect();
        let mut worker = null_mut();
        let (texts, count) = (texts.as_ptr(), lengths.len());
        let status = unsafe {
            sidecar_worker_attach_many(texts, lengths.as_ptr(), count, null(), null_mut(), &mut worker)
        };
        assert_eq!(status, OK);
        worker.expose_provenance()
    });
    until(|| {
        sides.iter_mut().for_each(Side::serve);
        attaching.is_finished().then_some(())
    });
    core::ptr::with_exposed_provenance_mut(attaching.join().unwrap())
}

fn next(worker: Handle, timeout: i64) -> Result<WorkerEvent, i32> {
    let mut event =
        WorkerEvent { struct_size: size_of::<WorkerEvent>() as u32, ..unsafe { core::mem::zeroed() } };
    match unsafe { sidecar_worker_next(worker, timeout, &mut event) } {
        OK => Ok(event),
        status => Err(status),
    }
}

fn observation(worker: Handle) -> Seen {
    let event = next(worker, 5 * SECOND).unwrap();
    assert_eq!(event.kind, WORKER_EVENT_OBSERVATION);
    event.observation
}

fn view(observation: Seen) -> ObservationView {
    let mut view = ObservationView {
        struct_size: size_of::<ObservationView>() as u32,
        ..unsafe { core::mem::zeroed() }
    };
    assert_eq!(unsafe { sidecar_observation_get_view(observation, &mut view) }, OK);
    view
}

fn why(worker: Handle) -> Failure {
    let mut why = Failure { struct_size: size_of::<Failure>() as u32, ..unsafe { core::mem::zeroed() } };
    assert_eq!(unsafe { sidecar_worker_get_failure(worker, &mut why) }, OK);
    why
}

fn close(worker: Handle) {
    assert_eq!(unsafe { sidecar_worker_close(worker) }, OK);
}

#[test]
fn an_observation_is_seen_where_it_lies_and_answered_in_each_way() {
    let mut sides = [Side::new()];
    let worker = attach(&mut sides);
    let [side] = &mut sides;
    side.owner.send(&ToWorker::Warmup).unwrap();
    assert_eq!(next(worker, SECOND).unwrap().kind, WORKER_EVENT_WARMUP);
    assert_eq!(unsafe { sidecar_worker_ready(worker, 0) }, OK);
    assert_eq!(side.said().2, Some(ToSidecar::Ready));
    assert_eq!(next(worker, 0).unwrap_err(), NOTHING);

    let sequence = side.observe(b"payload");
    let seen = observation(worker);
    let looked = view(seen);
    assert_eq!(unsafe { core::slice::from_raw_parts(looked.payload, looked.payload_len) }, b"payload");
    assert_eq!((looked.sequence, looked.epoch, looked.member, looked.flags), (sequence, 1, 0, 0));
    assert!(looked.first_byte_ns <= looked.published_ns && looked.published_ns <= looked.taken_ns);
    assert_eq!(unsafe { sidecar_observation_is_wanted(seen) }, OK);
    assert_eq!(unsafe { sidecar_worker_answer(worker, seen, b"copied".as_ptr(), 6) }, OK);
    assert_eq!(side.said().1, b"copied");

    side.observe(b"");
    let seen = observation(worker);
    assert_eq!(view(seen).flags, OBSERVATION_EMPTY);
    let (mut slot, mut bytes, mut room) = (null_mut(), null_mut(), 0);
    assert_eq!(unsafe { sidecar_worker_reserve(worker, seen, 8, &mut slot) }, OK);
    assert_eq!(unsafe { sidecar_reservation_get_bytes(slot, &mut bytes, &mut room) }, OK);
    assert_eq!(room, 8);
    unsafe { core::ptr::copy_nonoverlapping(b"in place".as_ptr(), bytes, 8) };
    assert_eq!(unsafe { sidecar_worker_answer_reserved(worker, seen, slot, 9) }, ERR_LENGTH);
    assert_eq!(unsafe { sidecar_worker_answer_reserved(worker, seen, slot, 2) }, OK);
    assert_eq!(side.said().1, b"in");

    side.observe(b"x");
    let seen = observation(worker);
    assert_eq!(unsafe { sidecar_worker_failed(worker, seen, c"no idea".as_ptr(), 7) }, OK);
    assert!(matches!(side.said().2, Some(ToSidecar::Failed { message, .. }) if message == "no idea"));
    close(worker);
}

#[test]
fn what_was_refused_is_still_the_callers() {
    let mut sides = [Side::new()];
    let worker = attach(&mut sides);
    let [side] = &mut sides;
    side.observe(b"x");
    let seen = observation(worker);
    let large = vec![0; 4097];
    assert_eq!(
        unsafe { sidecar_worker_answer(worker, seen, large.as_ptr(), large.len()) },
        ERR_ACTION_TOO_LARGE
    );
    assert_eq!((why(worker).status, why(worker).member), (ERR_ACTION_TOO_LARGE, 0));
    let mut slots = [null_mut(); 5];
    for slot in &mut slots[..4] {
        assert_eq!(unsafe { sidecar_worker_reserve(worker, seen, 1, slot) }, OK);
    }
    assert_eq!(unsafe { sidecar_worker_reserve(worker, seen, 1, &mut slots[4]) }, ERR_ALL_RESERVED);
    assert!(slots[4].is_null(), "nothing is written on failure");
    for slot in slots {
        assert_eq!(unsafe { sidecar_reservation_release(slot) }, OK);
    }
    // Neither is a half: the answer still works, after the handle of its worker as well.
    let other = thread::spawn({
        let seen = seen.expose_provenance();
        move || unsafe {
            sidecar_observation_try_answer(core::ptr::with_exposed_provenance_mut(seen), b"late".as_ptr(), 4)
        }
    });
    assert_eq!(other.join().unwrap(), OK);
    assert_eq!(side.said().1, b"late");
    close(worker);
}

#[test]
fn one_worker_serves_several_regions_and_handles_do_not_mix() {
    let mut sides = [Side::new(), Side::new()];
    let worker = attach(&mut sides);
    for at in [1, 0, 1] {
        sides[at].observe(&[u8::try_from(at).unwrap()]);
        let event = next(worker, 5 * SECOND).unwrap();
        assert_eq!((event.kind, event.member as usize), (WORKER_EVENT_OBSERVATION, at));
        assert_eq!(unsafe { sidecar_worker_answer(worker, event.observation, [7].as_ptr(), 1) }, OK);
        assert_eq!(sides[at].said().1, [7]);
    }
    sides[0].observe(b"a");
    sides[1].observe(b"b");
    let (first, second) = (observation(worker), observation(worker));
    let mut slot = null_mut();
    assert_eq!(unsafe { sidecar_worker_reserve(worker, first, 1, &mut slot) }, OK);
    assert_eq!(unsafe { sidecar_worker_answer_reserved(worker, second, slot, 1) }, ERR_MISMATCH);

    let mut others = [Side::new()];
    let other = attach(&mut others);
    assert_eq!(unsafe { sidecar_worker_answer(other, first, [7].as_ptr(), 1) }, ERR_MISMATCH);
    assert_eq!(unsafe { sidecar_worker_ready(worker, 2) }, ERR_VALUE);
    // Handles outlive their worker.
    close(worker);
    close(other);
    assert_eq!(unsafe { sidecar_reservation_release(slot) }, OK);
    assert_eq!(unsafe { sidecar_observation_release(first) }, OK);
    assert_eq!(unsafe { sidecar_observation_release(second) }, OK);
}

#[test]
fn an_end_is_told_once_for_each_region_and_then_for_all() {
    let mut sides = [Side::new(), Side::new()];
    let worker = attach(&mut sides);
    for (at, side) in sides.into_iter().enumerate() {
        let Side { owner, connections, .. } = side;
        owner.close();
        drop(connections);
        let event = until(|| next(worker, SECOND).ok());
        assert_eq!((event.kind, event.member as usize), (WORKER_EVENT_ENDED, at));
    }
    assert_eq!(next(worker, SECOND).unwrap_err(), ENDED);
    assert_eq!(next(worker, SECOND).unwrap_err(), ENDED);
    close(worker);
}

#[test]
fn a_second_worker_is_refused_in_words() {
    let mut sides = [Side::new()];
    let worker = attach(&mut sides);
    let path = sides[0].path.to_str().unwrap().to_owned();
    let second = thread::spawn(move || {
        let mut why = Failure { struct_size: size_of::<Failure>() as u32, ..unsafe { core::mem::zeroed() } };
        let mut worker = null_mut();
        let path: (*const core::ffi::c_char, usize) = (path.as_ptr().cast(), path.len());
        let status = unsafe { sidecar_worker_attach(path.0, path.1, null(), &mut why, &mut worker) };
        assert!(worker.is_null());
        (status, why.status, why.pid)
    });
    until(|| {
        sides[0].serve();
        second.is_finished().then_some(())
    });
    assert_eq!(second.join().unwrap(), (ERR_REFUSED, ERR_REFUSED, std::process::id()));
    close(worker);
}
