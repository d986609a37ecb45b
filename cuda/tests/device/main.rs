//! The same promises on a real GPU. Where there is none, each test says so and is played on the simulated driver, so that
//! it is right when there is one; `cargo xtask gpu-test` says in advance whether there is one, and then it has to be used.

#[path = "../gpu/simulated.rs"]
#[expect(dead_code, reason = "the region is what is needed of it; the driver here is the real one")]
mod simulated;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use sidecar_cuda::ahead::{AheadCopier, PART};
use sidecar_cuda::device::read_back;
use sidecar_cuda::discovery::Inventory;
use sidecar_cuda::driver::Driver;
use sidecar_cuda::pin::{PageLock, Pin, PinError};
use sidecar_cuda::worker::PinnedWorker;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::slots::Copied;
use sidecar_shm::worker::{AttachOptions, Worker};
use simulated::{GEOMETRY, SOON, Said, Side, device, lent, observation, until};

/// Where `Driver::open` finds the simulated driver.
const SIMULATED: &str = "SIDECAR_SIMULATED_CUDA_DRIVER";

/// The first line of a test, with a closure that marks it: the driver of this machine. Where there is none, the test is
/// played once more in a process that has the simulated one, and is over here.
fn driver<M: FnOnce()>(_: M) -> Option<Driver> {
    let why = match Driver::open() {
        Ok(driver) => return Some(driver),
        Err(why) => why,
    };
    let may_be_simulated =
        ["SIDECAR_GPU_TEST", SIMULATED].iter().all(|name| std::env::var_os(name).is_none());
    assert!(may_be_simulated, "there has to be a GPU here: {why}");
    println!("{why}: played on the simulated driver");
    // The type of a closure says in which test it was written.
    let name = core::any::type_name::<M>().strip_suffix("::{{closure}}");
    let (_, test) = name.and_then(|name| name.split_once("::")).expect("a closure in the test itself");
    let played = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(SIMULATED, simulated::library())
        .env("SIMULATED_CUDA", "devices=1")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .unwrap();
    let said =
        String::from_utf8_lossy(&played.stdout).into_owned() + &String::from_utf8_lossy(&played.stderr);
    assert!(played.status.success() && said.contains("1 passed"), "{said}");
    None
}

fn pinned(driver: Driver, side: &mut Side) -> PinnedWorker {
    let worker = side.attach();
    let worker = PinnedWorker::of(worker, Pin::with(driver, 0));
    assert_eq!(worker.trouble(), None);
    worker
}

#[test]
fn every_gpu_is_told_with_a_place_a_name_and_memory() {
    if driver(|| ()).is_none() {
        return;
    }
    let inventory = Inventory::take().unwrap();
    println!("{inventory:#?}");
    for (index, gpu) in (0..).zip(&inventory.gpus) {
        assert_eq!(gpu.index, index);
        assert!(!gpu.name.is_empty() && gpu.memory_total > 1 << 28 && gpu.compute.0 >= 3, "{gpu:?}");
        assert!(gpu.memory_free.is_none_or(|free| free <= gpu.memory_total), "{gpu:?}");
        assert!(gpu.bus.matches(':').count() == 2 && gpu.bus.contains('.'), "{gpu:?}");
        assert_eq!(gpu.uuid.as_str().len(), "GPU-00000000-0000-0000-0000-000000000000".len(), "{gpu:?}");
    }
    // nvidia-smi's numbers, where all of its GPUs are shown.
    let numbers: Vec<_> = inventory.gpus.iter().filter_map(|gpu| gpu.smi_index).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
}

#[test]
fn slots_are_locked_and_seen_by_the_device_and_can_be_locked_anew_after() {
    let Some(driver) = driver(|| ()) else { return };
    let mut side = Side::new();
    let mut worker = pinned(driver, &mut side);
    side.observe(&[1; 64]);
    let lent = lent(&mut worker);
    let lock = Arc::clone(worker.pin().and_then(Pin::lock).unwrap());
    assert!(lock.device_address(lent.payload().as_ptr()).is_some());
    let context = Arc::clone(worker.pin().unwrap().context());
    let again = PageLock::new(Arc::clone(&context), worker.worker().slot_memory()).unwrap_err();
    assert!(matches!(again, PinError::AlreadyLocked { .. }), "{again}");
    let memory = worker.worker().slot_memory();
    drop((lock, lent, worker));
    let locked = PageLock::new(context, memory).unwrap();
    assert_eq!(locked.len(), 2 * (4096 + 16_384));
}

#[test]
fn payloads_arrive_on_the_device_whatever_is_received_into_their_slots_after() {
    let Some(driver) = driver(|| ()) else { return };
    let mut side = Side::new();
    let mut worker = pinned(driver, &mut side);
    let (memory, stream) = device(&worker);
    for round in 0..200_u8 {
        let payload: Vec<u8> = (0..16_384_u32).map(|at| (at as u8) ^ round).collect();
        side.observe(&payload);
        let mut lent = lent(&mut worker);
        // SAFETY: the memory has room for the payload, and lives, with the stream, to the end of the test.
        unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
        worker.answer(lent, b"action").unwrap();
        side.take();
        for _ in 0..GEOMETRY.observation_slots {
            side.observe(&[0xEE; 16_384]);
            let next = observation(|| worker.next(SOON).unwrap());
            worker.worker().answer(next, b"").unwrap();
            side.take();
        }
        let mut arrived = vec![0; 16_384];
        memory.read(&mut arrived, &stream).unwrap();
        assert!(arrived == payload, "round {round}");
    }
}

/// Names the region to the worker, which is the test once more, in a process of its own.
const REGION: &str = "SIDECAR_CUDA_TEST_REGION";
const LARGE: Geometry =
    Geometry { observation_slots: 2, observation_bytes: 8 * PART, action_slots: 4, action_bytes: 4096 };

#[test]
fn what_is_copied_ahead_is_read_on_the_device_by_another_process() {
    if let Some(region) = std::env::var_os(REGION) {
        return say_what_lies_on_the_device(region.as_ref());
    }
    let Some(driver) = driver(|| ()) else { return };
    let mut side = Side::of(&LARGE);
    let mut copier = AheadCopier::with(driver, 0, &side.owner).unwrap();
    let mut worker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "what_is_copied_ahead_is_read_on_the_device_by_another_process", "--nocapture"])
        .env(REGION, side.owner.path())
        .spawn()
        .unwrap();
    until(|| {
        side.serve();
        side.owner.live_seat()
    });
    for round in 0..100_u32 {
        let slot = until(|| side.owner.claim_slot());
        // Half a part more in each round, so that ends lie everywhere.
        let length = (PART / 2 * (round % 16) + round + 1) as usize;
        let payload: Vec<u8> = (0..length).map(|at| (at as u32 ^ at as u32 >> 8 ^ round) as u8).collect();
        let begun = clock::now();
        for (index, part) in payload.chunks(100_000).enumerate() {
            side.receive(slot, index * 100_000, part);
            copier.landed(slot, begun, u32::try_from(index * 100_000 + part.len()).unwrap());
        }
        assert_eq!(copier.finish(slot, begun, u32::try_from(length).unwrap()), Copied::Yes);
        side.owner.set_copied(slot, Copied::Yes);
        side.publish(slot, length, begun);
        let said = until(|| {
            assert!(worker.try_wait().unwrap().is_none(), "the other process has ended");
            side.take().pop()
        });
        assert_eq!(said, Said::Action(b"as sent".to_vec()), "round {round}");
    }
    side.observe(b"end");
    assert!(worker.wait().unwrap().success());
}

/// Compares what lies on the device with what lies in the slot, and says so from there.
fn say_what_lies_on_the_device(region: &Path) {
    let worker = Worker::attach(region, &AttachOptions::default()).unwrap();
    let mut worker = PinnedWorker::of(worker, Pin::with(Driver::open().unwrap(), 0));
    assert_eq!((worker.trouble(), worker.ring_trouble()), (None, None));
    let context = Arc::clone(worker.pin().unwrap().context());
    let (memory, stream) = device(&worker);
    loop {
        let lent = lent(&mut worker);
        if lent.payload() == b"end" {
            break;
        }
        let arrival = lent.arrival().expect("it lies on the device").clone();
        arrival.wait().unwrap();
        let mut seen = vec![0; arrival.len()];
        // SAFETY: the arrival has as many bytes, and like the stream it lives.
        unsafe { read_back(&context, arrival.address(), &mut seen, stream.stream()) }.unwrap();
        let said = if seen == lent.payload() { b"as sent" } else { b"other  " };
        let mut fence = worker.pin().unwrap().fence();
        // SAFETY: both live until the answer below has waited for the stream.
        unsafe { fence.copy(said, memory.start(), stream.stream()) }.unwrap();
        // SAFETY: as above.
        unsafe { worker.answer_from_device(lent, memory.start(), 7, stream.stream()) }.unwrap();
    }
}

#[test]
fn an_error_of_the_driver_is_told_and_the_next_call_is_none_the_worse() {
    let Some(driver) = driver(|| ()) else { return };
    let mut side = Side::new();
    let mut worker = pinned(driver, &mut side);
    let (memory, stream) = device(&worker);
    side.observe(&[3; 4096]);
    let mut lent = lent(&mut worker);
    // SAFETY: an address that is no device's: the driver refuses it, and nothing is copied.
    unsafe { lent.copy_to(8, stream.stream()) }.unwrap_err();
    // SAFETY: as above.
    unsafe { lent.copy_to(memory.start(), stream.stream()) }.unwrap();
    let mut arrived = vec![0; 4096];
    memory.read(&mut arrived, &stream).unwrap();
    assert!(arrived == [3; 4096]);
}
