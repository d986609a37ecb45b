//! `--device-copy`: what arrives is copied while the rest is still coming, and read on the device in another process.
//! Two copies of the simulated driver are two processes to each other.

use core::time::Duration;
use std::sync::Arc;

use sidecar_core::time::Instant;
use sidecar_cuda::ahead::{AheadCopier, PART};
use sidecar_cuda::device::{OwnedStream, read_back};
use sidecar_cuda::fence::Stream;
use sidecar_cuda::pin::Pin;
use sidecar_cuda::worker::{Lent, PinnedWorker};
use sidecar_shm::layout::Geometry;
use sidecar_shm::slots::{Copied, SlotIndex};

use crate::simulated::{SOON, Side, Simulated, device, lent};

const NOTHING: [&str; 0] = [];
const PART_BYTES: usize = PART as usize;
const LARGEST: usize = 8 * PART_BYTES;
const GEOMETRY: Geometry =
    Geometry { observation_slots: 2, observation_bytes: 8 * PART, action_slots: 4, action_bytes: 4096 };

/// A sidecar that copies ahead, on a driver of its own.
struct Rig {
    copier: AheadCopier,
    side: Side,
    simulated: Simulated,
    clock: u64,
}

impl Rig {
    fn new(config: &str) -> Self {
        let simulated = Simulated::new(config);
        let side = Side::of(&GEOMETRY);
        let copier = AheadCopier::with(simulated.driver(), 0, &side.owner).unwrap();
        Self { copier, side, simulated, clock: 0 }
    }

    fn worker(&mut self, simulated: &Simulated) -> PinnedWorker {
        let worker = self.side.attach();
        PinnedWorker::of(worker, Pin::with(simulated.driver(), 0))
    }

    fn now(&mut self) -> Instant {
        self.clock += 1;
        Instant::from_nanos(self.clock)
    }

    /// A part of a message arrives, up to each of the cuts.
    fn land(&mut self, slot: SlotIndex, first_byte: Instant, payload: &[u8], cuts: &[usize]) {
        let mut at = 0;
        for cut in cuts {
            self.side.receive(slot, at, &payload[at..*cut]);
            self.copier.landed(slot, first_byte, u32::try_from(*cut).unwrap());
            at = *cut;
        }
        self.side.receive(slot, at, &payload[at..]);
    }

    /// A whole message arrives, seen at each of the cuts.
    fn observe(&mut self, payload: &[u8], cuts: &[usize]) -> Copied {
        let slot = self.side.owner.claim_slot().expect("a free slot");
        let first_byte = self.now();
        self.land(slot, first_byte, payload, cuts);
        self.publish(slot, first_byte, payload.len())
    }

    fn publish(&mut self, slot: SlotIndex, first_byte: Instant, length: usize) -> Copied {
        let copied = self.copier.finish(slot, first_byte, u32::try_from(length).unwrap());
        self.side.owner.set_copied(slot, copied);
        self.side.publish(slot, length, first_byte);
        copied
    }

    /// In the order in which processes should end: the worker has ended.
    fn end(self) {
        let Self { copier, side, simulated, .. } = self;
        drop((copier, side));
        assert_eq!(simulated.wrongs(), NOTHING);
    }
}

fn payload(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + seed * 31) as u8).collect()
}

fn stream(worker: &PinnedWorker) -> OwnedStream {
    OwnedStream::new(Arc::clone(worker.pin().unwrap().context())).unwrap()
}

/// The observation as it lies on the device.
fn on_device(worker: &PinnedWorker, lent: &Lent, stream: Stream) -> Vec<u8> {
    let arrival = lent.arrival().expect("it lies on the device");
    let mut bytes = vec![0; arrival.len()];
    // SAFETY: the arrival has as many bytes, and like the stream it lives to the end of this function.
    unsafe { read_back(worker.pin().unwrap().context(), arrival.address(), &mut bytes, stream) }.unwrap();
    bytes
}

#[test]
fn payloads_lie_on_the_device_byte_for_byte_however_they_arrived() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    assert_eq!((worker.trouble(), worker.ring_trouble()), (None, None));
    let own = stream(&worker);
    let every_part: Vec<usize> = (1..8).map(|part| part * PART_BYTES).collect();
    let every_page: Vec<usize> = (1..256).map(|page| page * 4096).collect();
    let cases: [(usize, &[usize]); 7] = [
        (1, &[]),
        (PART_BYTES, &[]),
        (PART_BYTES + 1, &[PART_BYTES]),
        (LARGEST, &[]),
        (LARGEST, &every_part),
        (LARGEST, &every_page),
        (LARGEST - 1, &[1, PART_BYTES + 1, LARGEST - 1]),
    ];
    for (at, (length, cuts)) in cases.into_iter().enumerate() {
        let sent = payload(length, at);
        assert_eq!(rig.observe(&sent, cuts), Copied::Yes);
        let lent = lent(&mut worker);
        assert!(lent.payload() == sent, "on the host, too");
        lent.arrival().unwrap().wait().unwrap();
        assert!(on_device(&worker, &lent, own.stream()) == sent, "{length} bytes, cut at {cuts:?}");
        worker.answer(lent, b"action").unwrap();
        rig.side.take();
    }
    drop((own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn large_ones_are_copied_a_part_at_a_time_and_small_ones_at_once() {
    let mut rig = Rig::new("");
    let copies = |rig: &Rig| rig.simulated.calls("cuMemcpyHtoDAsync_v2");
    let slot = rig.side.owner.claim_slot().unwrap();
    let first_byte = rig.now();
    for (filled, copied) in [(0, 0), (PART - 1, 0), (PART, 1), (PART + 1, 1), (2 * PART, 2), (5 * PART, 3)] {
        rig.copier.landed(slot, first_byte, filled);
        assert_eq!(copies(&rig), copied, "{filled} bytes");
    }
    assert_eq!(rig.copier.finish(slot, first_byte, 5 * PART), Copied::Yes);
    assert_eq!(copies(&rig), 3, "nothing was left to be copied");
    let first_byte = rig.now();
    assert_eq!(rig.copier.finish(slot, first_byte, 5), Copied::Yes);
    assert_eq!(copies(&rig), 4);
    rig.end();
}

#[test]
fn an_empty_one_lies_nowhere() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    assert_eq!(rig.observe(b"", &[]), Copied::No);
    let lent = lent(&mut worker);
    assert!(lent.is_empty() && lent.arrival().is_none());
    worker.answer(lent, b"").unwrap();
    assert_eq!(rig.simulated.calls("cuMemcpyHtoDAsync_v2"), 0);
    drop(worker);
    rig.end();
}

#[test]
fn what_never_became_whole_leaves_nothing_in_what_comes_after() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    let own = stream(&worker);
    let (lost, sent) = (payload(LARGEST, 1), payload(LARGEST, 2));
    for told in [true, false] {
        let slot = rig.side.owner.claim_slot().unwrap();
        let first_byte = rig.now();
        rig.land(slot, first_byte, &lost, &[2 * PART_BYTES, 6 * PART_BYTES]);
        if told {
            rig.copier.abandon();
        }
        // The connection was lost; the next message arrives in the same slot, more of it at a time.
        let first_byte = rig.now();
        rig.land(slot, first_byte, &sent, &[7 * PART_BYTES]);
        assert_eq!(rig.publish(slot, first_byte, LARGEST), Copied::Yes);
        let lent = lent(&mut worker);
        lent.arrival().unwrap().wait().unwrap();
        assert!(on_device(&worker, &lent, own.stream()) == sent, "told: {told}");
        worker.answer(lent, b"").unwrap();
        rig.side.take();
    }
    drop((own, worker));
    rig.end();
}

#[test]
fn observations_that_wait_lie_beside_each_other() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    let own = stream(&worker);
    let sent = [payload(LARGEST, 1), payload(300_000, 2)];
    for sent in &sent {
        assert_eq!(rig.observe(sent, &[PART_BYTES, 2 * PART_BYTES]), Copied::Yes);
    }
    let held = [lent(&mut worker), lent(&mut worker)];
    for (lent, sent) in held.iter().zip(&sent) {
        lent.arrival().unwrap().wait().unwrap();
        assert!(on_device(&worker, lent, own.stream()) == *sent);
    }
    drop((held, own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn what_keeps_a_sidecar_from_copying_ahead_is_said_and_leaves_nothing() {
    let cases = [
        ("fail=cuDevicePrimaryCtxRetain:2", "cuDevicePrimaryCtxRetain"),
        ("fail=cuMemHostRegister_v2:2", "ulimit -l"),
        ("exclusive=on", "lets one process in"),
        ("map=off", "cannot lock memory"),
        ("fail=cuMemAlloc_v2:2", "2097152 bytes of device memory"),
        ("fail=cuEventCreate:2", "cuEventCreate"),
        ("fail=cuStreamCreate:2", "cuStreamCreate"),
        ("fail=cuDeviceGetUuid_v2:999", "cuDeviceGetUuid_v2"),
        ("ipc=off", "cannot be passed to the worker: cuIpcGetMemHandle: CUDA_ERROR_NOT_SUPPORTED"),
        ("fail=cuIpcGetEventHandle:801", "cannot be passed to the worker: cuIpcGetEventHandle"),
    ];
    for (config, says) in cases {
        let simulated = Simulated::new(config);
        let mut side = Side::of(&GEOMETRY);
        let refused = AheadCopier::with(simulated.driver(), 0, &side.owner).unwrap_err().to_string();
        assert!(refused.contains(says), "{config}: {refused}");
        assert_eq!(simulated.wrongs(), NOTHING, "{config}");
        // The worker is told of no ring.
        assert_eq!(side.attach().device_ring(), None, "{config}");
    }
}

#[test]
fn after_the_drivers_first_error_observations_lie_on_the_host_alone() {
    let cases =
        ["cuMemcpyHtoDAsync_v2@2:700", "cuEventRecord@2:700:deferred", "cuMemcpyHtoDAsync_v2@3:719:sticky"];
    for config in cases {
        let simulated = Simulated::new("");
        let mut rig = Rig::new(&format!("fail={config}"));
        let mut worker = rig.worker(&simulated);
        let mut failed = None;
        for round in 0..4 {
            let sent = payload(2 * PART_BYTES, round);
            let made = rig.simulated.calls("cuEventCreate");
            let copied = rig.observe(&sent, &[PART_BYTES]);
            let lent = lent(&mut worker);
            assert_eq!(lent.arrival().is_some(), copied == Copied::Yes, "{config}, round {round}");
            assert!(lent.payload() == sent, "{config}");
            worker.answer(lent, b"").unwrap();
            rig.side.take();
            let trouble = rig.copier.take_trouble();
            if trouble.is_some() && !config.contains("sticky") {
                assert!(
                    rig.simulated.calls("cuEventCreate") > made,
                    "{config}: what was pending was not taken"
                );
            }
            let asked = rig.simulated.calls("cuMemcpyHtoDAsync_v2");
            match failed {
                None => assert_eq!(copied == Copied::No, trouble.is_some(), "{config}, round {round}"),
                Some(before) => {
                    assert_eq!((copied, trouble), (Copied::No, None), "{config}: said once");
                    assert_eq!(asked, before, "{config}: the driver is asked no more");
                }
            }
            failed = failed.or_else(|| trouble.map(|_| asked));
        }
        assert!(failed.is_some(), "{config}");
        drop(worker);
        let Rig { copier, simulated, .. } = rig;
        drop(copier);
        let wrongs = simulated.wrongs();
        // A broken context gives nothing back.
        assert!(wrongs.is_empty() || config.contains("sticky"), "{config}: {wrongs:?}");
        assert!(!wrongs.iter().any(|wrong| wrong.starts_with("violation")), "{config}: {wrongs:?}");
    }
}

#[test]
fn what_keeps_a_worker_from_the_ring_is_said_and_the_slot_on_the_host_is_there() {
    let cases = [
        ("ipc=off", "cuIpcOpenMemHandle_v2: CUDA_ERROR_NOT_SUPPORTED"),
        ("fail=cuIpcOpenMemHandle_v2:201", "run both in one container"),
        ("fail=cuIpcOpenMemHandle_v2:400:deferred", "run both in one container"),
        ("fail=cuIpcOpenEventHandle:400", "cuIpcOpenEventHandle"),
        ("fail=cuDeviceGetUuid_v2:999", "cuDeviceGetUuid_v2"),
        ("seed=9", "the sidecar copies to GPU-5100"),
    ];
    for (config, says) in cases {
        let simulated = Simulated::new(config);
        let mut rig = Rig::new("");
        let mut worker = rig.worker(&simulated);
        let trouble = worker.ring_trouble().unwrap_or_else(|| panic!("{config}: no trouble")).to_string();
        assert!(trouble.contains(says), "{config}: {trouble}");
        assert_eq!(worker.trouble(), None, "{config}: the slots are locked all the same");
        let (memory, stream) = device(&worker);
        for round in 0..2 {
            let sent = payload(16_384, round);
            assert_eq!(rig.observe(&sent, &[]), Copied::Yes);
            let mut lent = lent(&mut worker);
            assert!(lent.arrival().is_none(), "{config}");
            // SAFETY: the memory has room for the payload, and lives, with the stream, to the end of the test.
            unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
            worker.answer(lent, b"").unwrap();
            rig.side.take();
            let mut arrived = vec![0; 16_384];
            memory.read(&mut arrived, &stream).unwrap();
            assert!(arrived == sent, "{config}");
        }
        assert!(simulated.calls("cuIpcOpenMemHandle_v2") <= 1, "{config}: tried once");
        drop((memory, stream, worker));
        assert_eq!(simulated.wrongs(), NOTHING, "{config}");
        rig.end();
    }
}

#[test]
fn in_one_process_the_ring_cannot_be_opened_and_that_is_said() {
    let mut rig = Rig::new("");
    let worker = rig.side.attach();
    let worker = PinnedWorker::of(worker, Pin::with(rig.simulated.driver(), 0));
    let trouble = worker.ring_trouble().unwrap().to_string();
    assert!(trouble.contains("CUDA_ERROR_INVALID_CONTEXT"), "{trouble}");
}

#[test]
fn a_worker_without_the_wish_for_a_gpu_opens_nothing() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let mut worker = rig.side.attach();
    assert_eq!(rig.observe(&payload(4096, 1), &[]), Copied::Yes);
    let seen = crate::simulated::observation(|| worker.next(SOON).unwrap());
    assert!(seen.device_ring().is_some() && seen.payload() == payload(4096, 1));
    assert_eq!(simulated.calls("cuIpcOpenMemHandle_v2"), 0);
    drop((seen, worker));
    rig.end();
}

#[test]
fn a_successor_of_the_worker_finds_what_was_left_unanswered_on_the_host_alone() {
    let (first, second) = (Simulated::new(""), Simulated::new(""));
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&first);
    let sent = payload(LARGEST, 1);
    assert_eq!(rig.observe(&sent, &[3 * PART_BYTES]), Copied::Yes);
    drop(lent(&mut worker));
    let seat = rig.side.owner.live_seat().unwrap();
    drop(worker);
    rig.side.owner.seat_connection_ended(seat.seat, seat.generation);
    let mut worker = rig.worker(&second);
    // What the first one said is heard before anything is delivered again.
    rig.side.take();
    rig.side.owner.deliver_pending();
    let lent = lent(&mut worker);
    assert!(lent.redelivered());
    // The first one may have written into its copy on the device.
    assert!(lent.arrival().is_none() && lent.payload() == sent);
    drop((lent, worker));
    assert_eq!((first.wrongs(), second.wrongs()), (vec![], vec![]));
    rig.end();
}

#[test]
fn a_successor_of_the_sidecar_has_a_ring_of_its_own() {
    let (first, simulated) = (Simulated::new(""), Simulated::new(""));
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    let own = stream(&worker);
    let sent = payload(LARGEST, 1);
    rig.observe(&sent, &[PART_BYTES]);
    let held = lent(&mut worker);
    let old = held.arrival().unwrap().address();
    // It dies: nothing of it is given back by hand.
    let Rig { copier, side, .. } = rig;
    core::mem::forget(copier);
    let side = side.follow_with(&GEOMETRY);
    assert!(held.device_ring().is_none(), "its bytes are of no use any more");
    let copier = AheadCopier::with(first.driver(), 0, &side.owner).unwrap();
    let mut rig = Rig { copier, side, simulated: first, clock: 100 };
    let sent = payload(LARGEST, 2);
    rig.observe(&sent, &[3 * PART_BYTES]);
    let next = rig.side.while_serving(|_| {
        let next = lent(&mut worker);
        while worker.worker().next(Some(Duration::from_millis(20))).is_ok() && !worker.worker().is_attached()
        {
        }
        next
    });
    let arrival = next.arrival().unwrap();
    assert_ne!(arrival.address(), old);
    arrival.wait().unwrap();
    assert!(on_device(&worker, &next, own.stream()) == sent);
    assert_eq!(simulated.calls("cuIpcCloseMemHandle"), 0, "what is held keeps the old one open");
    drop(held);
    assert_eq!(simulated.calls("cuIpcCloseMemHandle"), 1);
    drop((next, own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn a_region_made_anew_has_a_ring_of_its_own_under_the_same_number() {
    let (first, simulated) = (Simulated::new(""), Simulated::new(""));
    let mut rig = Rig::new("");
    let mut worker = rig.worker(&simulated);
    rig.observe(&payload(LARGEST, 1), &[PART_BYTES]);
    let held = lent(&mut worker);
    let (old, region) = (held.arrival().unwrap().address(), held.region_id());
    let Rig { copier, side, .. } = rig;
    core::mem::forget(copier);
    // Another geometry: the file cannot be gone on with.
    let geometry = Geometry { observation_slots: GEOMETRY.observation_slots + 1, ..GEOMETRY };
    let side = side.follow_with(&geometry);
    let copier = AheadCopier::with(first.driver(), 0, &side.owner).unwrap();
    let mut rig = Rig { copier, side, simulated: first, clock: 100 };
    let started = sidecar_shm::clock::now();
    rig.side.while_serving(|_| {
        while worker.worker().region_id() == region
            && sidecar_shm::clock::now().since(started) < Duration::from_secs(20)
        {
            let _ = worker.worker().next(Some(Duration::from_millis(20)));
        }
    });
    rig.side.owner.deliver_pending();
    let sent = payload(LARGEST, 2);
    rig.observe(&sent, &[3 * PART_BYTES]);
    let next = lent(&mut worker);
    let own = stream(&worker);
    let arrival = next.arrival().unwrap();
    assert_ne!(arrival.address(), old, "the old ring is another sidecar's");
    arrival.wait().unwrap();
    assert!(on_device(&worker, &next, own.stream()) == sent);
    drop((held, next, own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn a_copy_that_its_sidecar_died_over_is_not_waited_for_without_end() {
    let simulated = Simulated::new("");
    // Nothing on its streams is ever done: the other process is gone.
    let mut rig = Rig::new("beat=off");
    let mut worker = rig.worker(&simulated);
    let own = stream(&worker);
    assert_eq!(rig.observe(&payload(4096, 1), &[]), Copied::Yes);
    let lent = lent(&mut worker);
    let lost = lent.arrival().unwrap().wait().unwrap_err().to_string();
    assert!(lost.contains("CUDA_ERROR_NOT_READY"), "{lost}");
    assert!(lent.payload() == payload(4096, 1), "the host has it");
    // What has arrived is on no stream to be waited for.
    rig.copier.wait().unwrap();
    lent.arrival().unwrap().wait().unwrap();
    assert!(on_device(&worker, &lent, own.stream()) == payload(4096, 1));
    drop((lent, own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn what_has_not_arrived_is_waited_for() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("beat=off");
    let mut worker = rig.worker(&simulated);
    let own = stream(&worker);
    assert_eq!(rig.observe(&payload(4096, 1), &[]), Copied::Yes);
    let lent = lent(&mut worker);
    std::thread::scope(|scope| {
        let copier = &rig.copier;
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(20));
            copier.wait().unwrap();
        });
        // Before that nothing moves the copy on.
        lent.arrival().unwrap().wait().unwrap();
        assert!(on_device(&worker, &lent, own.stream()) == payload(4096, 1));
    });
    drop((lent, own, worker));
    assert_eq!(simulated.wrongs(), NOTHING);
    rig.end();
}

#[test]
fn a_ring_that_is_given_back_is_announced_no_more() {
    let mut rig = Rig::new("");
    assert!(rig.side.attach().device_ring().is_some());
    let Rig { copier, mut side, simulated, .. } = rig;
    drop(copier);
    let seat = side.owner.live_seat().unwrap();
    side.owner.seat_connection_ended(seat.seat, seat.generation);
    assert_eq!(side.attach().device_ring(), None);
    assert_eq!(simulated.wrongs(), NOTHING);
}

#[test]
fn a_ring_that_ends_before_the_worker_does_is_a_mistake_that_the_simulated_driver_names() {
    let simulated = Simulated::new("");
    let mut rig = Rig::new("");
    let worker = rig.worker(&simulated);
    let Rig { copier, simulated: theirs, side: _side, .. } = rig;
    drop(copier);
    let wrongs = theirs.wrongs();
    assert!(wrongs.iter().all(|wrong| wrong.contains("another process has open")), "{wrongs:?}");
    assert_eq!(wrongs.len(), 2, "{wrongs:?}");
    drop(worker);
}
