//! Page-locking, copies out of slots, and when a slot is free again.

use core::time::Duration;
use std::sync::Arc;

use sidecar_cuda::context::{Aftermath, Context};
use sidecar_cuda::device::{AllocationError, DeviceMemory};
use sidecar_cuda::fence::Stream;
use sidecar_cuda::pin::{PageLock, Pin, PinError};
use sidecar_cuda::worker::{CopyError, PinnedWorker};
use sidecar_shm::worker::Event;

use crate::simulated::{GEOMETRY, SOON, Said, Side, Simulated, device, lent, observation};

const NOTHING: [&str; 0] = [];

fn pinned(simulated: &Simulated, side: &mut Side) -> PinnedWorker {
    let worker = side.attach();
    PinnedWorker::of(worker, Pin::with(simulated.driver(), 0))
}

#[test]
fn slots_are_locked_on_attach_and_given_free_before_they_are_unmapped() {
    let simulated = Simulated::new("devices=2");
    let mut side = Side::new();
    let worker = pinned(&simulated, &mut side);
    assert_eq!(worker.trouble(), None);
    let lock = worker.pin().and_then(Pin::lock).unwrap();
    assert_eq!(lock.len(), 2 * (4096 + 16_384));
    assert_eq!(worker.pin().and_then(Pin::action_lock).unwrap().len(), 4 * 4096);
    drop(worker);
    assert_eq!(simulated.wrongs(), NOTHING);
    assert_eq!(simulated.calls("cuMemHostUnregister"), 2);
}

#[test]
fn a_lock_that_outlives_the_worker_keeps_the_slots_mapped() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let worker = side.attach();
    let context = Arc::new(Context::primary(simulated.driver(), 0).unwrap());
    let lock = PageLock::new(context, worker.slot_memory()).unwrap();
    drop(worker);
    drop(side);
    drop(lock);
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn a_payload_arrives_on_the_device_byte_for_byte() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let (memory, stream) = device(&worker);
    for length in [1, 4096, 16_384] {
        let payload: Vec<u8> = (0..length).map(|at| (at * 7 + length) as u8).collect();
        side.observe(&payload);
        let mut lent = lent(&mut worker);
        // SAFETY: the memory has room for the largest payload, and lives, with the stream, to the end of the test.
        unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
        worker.answer(lent, b"action").unwrap();
        side.take();
        let mut arrived = vec![0; length];
        memory.read(&mut arrived, &stream).unwrap();
        assert!(arrived == payload, "{length} bytes");
    }
    drop((memory, stream, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn a_slot_is_free_only_when_the_last_copy_from_it_is_over() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let (memory, stream) = device(&worker);
    let (second, other) = device(&worker);
    for round in 0..20_u8 {
        side.observe(&[round; 16_384]);
        let mut lent = lent(&mut worker);
        for (memory, stream) in [(&memory, &stream), (&second, &other)] {
            // SAFETY: as above.
            unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
        }
        lent.used_by(other.stream()).unwrap();
        if round % 2 == 0 {
            worker.answer(lent, b"action").unwrap();
        } else {
            worker.worker().failed(&lent, "no").unwrap();
            drop(lent);
        }
        // The slot comes back, and the next one is received into it at once.
        side.take();
        for memory in [&memory, &second] {
            let mut arrived = vec![0; 16_384];
            memory.read(&mut arrived, &stream).unwrap();
            assert!(arrived.iter().all(|byte| *byte == round), "round {round}: {}", arrived[0]);
        }
        if round % 2 != 0 {
            side.owner.answered(u64::from(round) + 1);
        }
    }
    drop((memory, stream, second, other, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn an_empty_payload_reaches_no_cuda_call() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let (memory, stream) = device(&worker);
    side.observe(&[]);
    let mut lent = lent(&mut worker);
    // SAFETY: nothing is copied.
    unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
    worker.answer(lent, b"").unwrap();
    memory.read(&mut [], &stream).unwrap();
    let context = worker.pin().unwrap().context();
    assert!(matches!(DeviceMemory::new(Arc::clone(context), 0), Err(AllocationError::Empty)));
    assert_eq!(simulated.calls("cuMemcpyHtoDAsync_v2"), 0);
    drop((memory, stream, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn a_new_region_is_locked_in_place_of_the_old_one_while_its_last_copy_still_runs() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let (memory, stream) = device(&worker);
    side.observe(&[7; 16_384]);
    let mut lent = lent(&mut worker);
    // SAFETY: as above.
    unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
    let before = worker.worker().region_id();
    let mut side = side.follow_with_another_geometry();
    side.while_serving(|_| {
        while worker.worker().region_id() == before {
            worker.next(Some(Duration::from_millis(20))).unwrap();
        }
    });
    assert_eq!(worker.trouble(), None);
    assert_eq!(worker.pin().and_then(Pin::lock).unwrap().len(), 2 * (4096 + 32_768));
    // The old one is locked as long as something reads it.
    assert_eq!(simulated.calls("cuMemHostRegister_v2"), 4);
    assert_eq!(simulated.calls("cuMemHostUnregister"), 0);
    drop(lent);
    assert_eq!(simulated.calls("cuMemHostUnregister"), 2);
    let mut arrived = vec![0; 16_384];
    memory.read(&mut arrived, &stream).unwrap();
    assert!(arrived.iter().all(|byte| *byte == 7));
    drop((memory, stream, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn another_seat_in_the_same_region_has_locks_of_its_own() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    let before = worker.worker().seat_claim();
    // The next sidecar takes the worker for gone, lets another one in, which goes; then the first one comes back.
    let mut side = side.follow_with(&GEOMETRY);
    side.owner.seat_connection_ended(before.seat, before.generation);
    drop(side.attach());
    side.while_serving(|_| {
        while worker.worker().seat_claim() == before {
            worker.next(Some(Duration::from_millis(20))).unwrap();
        }
    });
    let now = worker.worker().seat_claim();
    assert_eq!((now.region, worker.trouble()), (before.region, None));
    assert_ne!(now.seat, before.seat);
    assert_eq!(simulated.calls("cuMemHostRegister_v2"), 4);
    assert_eq!(simulated.calls("cuMemHostUnregister"), 2);
    side.observe(&[3; 16_384]);
    let mut lent = lent(&mut worker);
    let (memory, stream) = device(&worker);
    // SAFETY: the memory has room for the payload, and lives, with the stream, to the end of the test.
    unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
    // SAFETY: as above.
    unsafe { worker.answer_from_device(lent, memory.start(), 4096, stream.stream()) }.unwrap();
    assert_eq!(side.take(), [Said::Action(vec![3; 4096])]);
    assert_eq!(simulated.calls("pageable"), 0);
    drop((memory, stream, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn the_device_sees_a_payload_where_it_can_map_host_memory() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    side.observe(&[1; 64]);
    let observation = observation(|| worker.next(SOON).unwrap());
    let lock = worker.pin().and_then(Pin::lock).unwrap();
    let start = observation.payload().as_ptr();
    let address = lock.device_address(start).unwrap();
    assert_eq!(lock.device_address(start.wrapping_add(1)), Some(address + 1));
    assert_eq!(lock.device_address(core::ptr::null()), None);
    assert_eq!(lock.device_address(start.wrapping_add(1 << 20)), None);
    drop((observation, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn what_keeps_slots_from_being_locked_is_said_and_the_worker_goes_on() {
    /// Configuration, what is said, whether the device still copies.
    const CASES: [(&str, &str, bool); 7] = [
        ("map=off", "cannot lock memory", true),
        ("fail=cuMemHostRegister_v2:2", "ulimit -l", true),
        ("fail=cuMemHostRegister_v2:304:deferred", "CUDA_ERROR_OPERATING_SYSTEM (304)", true),
        ("fail=cuMemHostRegister_v2:712", "locked already", true),
        ("fail=cuMemHostRegister_v2:700:sticky", "every CUDA call of this process will fail", false),
        ("fail=cuDevicePrimaryCtxRetain:2", "no context", false),
        ("devices=0", "sees no GPU", false),
    ];
    for (config, says, copies) in CASES {
        let simulated = Simulated::new(config);
        let mut side = Side::new();
        let worker = side.attach();
        let pin = simulated.open().map_err(PinError::from).and_then(|driver| Pin::with(driver, 0));
        let mut worker = PinnedWorker::of(worker, pin);
        let trouble = worker.trouble().unwrap_or_else(|| panic!("{config}: no trouble")).to_string();
        assert!(trouble.contains(says), "{config}: {trouble}");
        assert!(worker.pin().is_none_or(|pin| pin.lock().is_none()), "{config}");
        side.observe(&[5; 4096]);
        let observation = observation(|| worker.next(SOON).unwrap());
        assert_eq!(observation.payload(), [5; 4096]);
        let mut lent = worker.lend(observation);
        if copies {
            // Straight after the failure: an innocent call meets nothing of it.
            let (memory, stream) = device(&worker);
            // SAFETY: as above.
            unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
            let mut arrived = vec![0; 4096];
            memory.read(&mut arrived, &stream).unwrap();
            assert!(arrived == [5; 4096], "{config}");
        } else if worker.pin().is_none() {
            // SAFETY: the default stream is always there.
            let default = unsafe { Stream::from_raw(0) };
            // SAFETY: nothing is copied.
            let refused = unsafe { lent.copy_to(0, default) };
            assert_eq!(refused, Err(CopyError::NoDevice), "{config}");
        }
        worker.answer(lent, b"action").unwrap();
        drop(worker);
        let wrongs = simulated.wrongs();
        assert!(wrongs.is_empty(), "{config}: {wrongs:?}");
    }
}

#[test]
fn a_region_that_cannot_be_locked_is_tried_once() {
    let simulated = Simulated::new("fail=cuMemHostRegister_v2:2");
    let mut side = Side::new();
    let mut worker = pinned(&simulated, &mut side);
    for _ in 0..3 {
        assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    }
    assert_eq!(simulated.calls("cuMemHostRegister_v2"), 1);
}

#[test]
fn memory_that_is_locked_already_is_left_to_whom_locked_it() {
    let simulated = Simulated::new("");
    let mut side = Side::new();
    let worker = side.attach();
    let context = Arc::new(Context::primary(simulated.driver(), 0).unwrap());
    let first = PageLock::new(Arc::clone(&context), worker.slot_memory()).unwrap();
    let bytes = first.len();
    let second = PageLock::new(Arc::clone(&context), worker.slot_memory()).unwrap_err();
    assert_eq!(second, PinError::AlreadyLocked { bytes });
    assert_eq!(simulated.calls("cuMemHostUnregister"), 0);
    drop((first, worker, context));
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn a_failure_in_the_middle_of_a_copy_leaves_nothing_running() {
    for call in ["cuEventCreate@1", "cuEventRecord", "cuMemcpyHtoDAsync_v2"] {
        let simulated = Simulated::new(&format!("fail={call}:2"));
        let mut side = Side::new();
        let mut worker = pinned(&simulated, &mut side);
        let (memory, stream) = device(&worker);
        side.observe(&[9; 16_384]);
        let mut lent = lent(&mut worker);
        // SAFETY: as above.
        let refused = unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap_err();
        assert!(matches!(refused, CopyError::Refused(_)), "{call}: {refused}");
        worker.answer(lent, b"action").unwrap();
        // What was started before the failure was waited for: it read the slot before that was given back.
        side.take();
        for _ in 0..GEOMETRY.observation_slots {
            side.observe(&[1; 16_384]);
        }
        let mut arrived = vec![0; 16_384];
        memory.read(&mut arrived, &stream).unwrap();
        assert!(!arrived.contains(&1), "{call}: read after it was given back");
        drop((memory, stream, worker));
        assert_eq!(simulated.wrongs(), NOTHING, "{call}");
    }
}

#[test]
fn work_of_the_callers_own_that_no_event_can_be_put_behind_is_waited_for() {
    for call in ["cuEventCreate@1", "cuEventRecord"] {
        let simulated = Simulated::new(&format!("fail={call}:2"));
        let mut side = Side::new();
        let mut worker = pinned(&simulated, &mut side);
        let (memory, stream) = device(&worker);
        side.observe(&[9; 16_384]);
        let mut lent = lent(&mut worker);
        let waited = simulated.calls("cuStreamSynchronize");
        lent.used_by(stream.stream()).unwrap_err();
        assert_eq!(simulated.calls("cuStreamSynchronize"), waited + 1, "{call}");
        drop((lent, memory, stream, worker));
        assert_eq!(simulated.wrongs(), NOTHING, "{call}");
    }
}

#[test]
fn a_range_that_cannot_be_given_free_stays_mapped() {
    let simulated = Simulated::new("fail=cuMemHostUnregister:999");
    let mut side = Side::new();
    let worker = pinned(&simulated, &mut side);
    drop(worker);
    let wrongs = simulated.wrongs();
    // Locked still, and so still mapped: the simulated driver would name memory that was unmapped under it.
    let [actions, observations] = &*wrongs else { panic!("{wrongs:?}") };
    assert!(actions.starts_with("leak: 16384 registered bytes"), "{wrongs:?}");
    assert!(observations.starts_with("leak: 40960 registered bytes"), "{wrongs:?}");
}

#[test]
fn what_is_pending_is_taken_where_it_arose_and_what_is_broken_is_said() {
    let context = |config: &str| {
        let simulated = Simulated::new(config);
        let context = Context::primary(simulated.driver(), 0).unwrap();
        (simulated, context)
    };
    assert_eq!(context("").1.settle(), Aftermath::Clean);
    assert_eq!(context("fail=cuEventCreate@1:700").1.settle(), Aftermath::Clean);
    assert_eq!(context("fail=cuEventCreate@1:700:deferred").1.settle(), Aftermath::Clean);
    assert_eq!(context("fail=cuEventCreate@1:700:sticky").1.settle(), Aftermath::Broken);
}

#[test]
fn a_device_that_is_not_there_is_an_error() {
    let simulated = Simulated::new("devices=2");
    for device in [2, u32::MAX] {
        let refused = Pin::with(simulated.driver(), device).unwrap_err();
        assert!(matches!(refused, PinError::NoContext(_)), "{refused}");
    }
}
