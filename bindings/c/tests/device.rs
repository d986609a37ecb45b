//! The functions for a GPU, in processes of their own that find the simulated driver where the real one would be.

#![allow(clippy::undocumented_unsafe_blocks, reason = "each keeps the header's rules")]
#![allow(clippy::multiple_unsafe_ops_per_block, reason = "as above")]

use core::ffi::c_void;
use core::ptr::{null, null_mut};
use core::time::Duration;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use sidecar_c::answer::sidecar_worker_answer;
use sidecar_c::device::*;
use sidecar_c::failure::Failure;
use sidecar_c::observation::*;
use sidecar_c::status::*;
use sidecar_c::worker::*;
use sidecar_c_agent::border::Marked;
use sidecar_core::agent::HEADROOM;
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_cuda::ahead::AheadCopier;
use sidecar_cuda::context::Context;
use sidecar_cuda::device::{DeviceMemory, OwnedStream, read_back};
use sidecar_cuda::driver::Driver;
use sidecar_shm::attach::Listener;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{Identity, create};
use sidecar_shm::slots::{Copied, Observed};

/// One slot: each observation is received where the one before it was.
const GEOMETRY: Geometry =
    Geometry { observation_slots: 1, observation_bytes: 16_384, action_slots: 4, action_bytes: 4096 };

/// Tells the process that [`on`] starts that the machine is made.
const MACHINE: &str = "SIDECAR_C_TEST_MACHINE";
/// A machine where the driver is a file that cannot be loaded.
const NO_DRIVER: &str = "no driver";

/// Plays on a machine as the line describes it: in a process of its own, which is the test that calls this once more.
/// Nothing wrong may have been done with the driver.
fn on<P: FnOnce()>(config: &str, play: P) {
    assert_eq!(violations(config, play), [""; 0], "{config}");
}

/// Plays as [`on`] does, and gives what was done wrong with the driver.
fn violations<P: FnOnce()>(config: &str, play: P) -> Vec<String> {
    if let Ok(machine) = std::env::var(MACHINE) {
        if machine == config {
            play();
        }
        return Vec::new();
    }
    // The type of a closure says in which test it was written.
    let name = core::any::type_name::<P>().strip_suffix("::{{closure}}");
    let (_, test) = name.and_then(|name| name.split_once("::")).expect("a closure in the test itself");
    let directory = tempfile::tempdir().unwrap();
    let driver = std::env::current_exe().unwrap().with_file_name("libsimulated_cuda_driver.so");
    for library in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let place = directory.path().join(library);
        if config == NO_DRIVER { std::fs::write(place, "") } else { symlink(&driver, place) }.unwrap();
    }
    let report = directory.path().join("report");
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture", "--test-threads=1"])
        .env(MACHINE, config)
        .env("LD_LIBRARY_PATH", directory.path())
        .env("SIMULATED_CUDA", config)
        .env("SIMULATED_CUDA_REPORT", &report)
        .env_remove("CUDA_VISIBLE_DEVICES")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout).into_owned() + &String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && said.contains("1 passed"), "{config}: {said}");
    if config == NO_DRIVER {
        return Vec::new();
    }
    let report = std::fs::read_to_string(report).unwrap();
    assert!(report.contains("calls: cuInit"), "{config}: {report}");
    report.lines().filter(|line| !line.contains(" calls: ")).map(str::to_owned).collect()
}

/// A sidecar's side of a region, and the worker at it.
struct Rig {
    /// On a copy of the driver: another process to the worker's.
    copier: Option<AheadCopier>,
    owner: Owner,
    _listener: Listener,
    worker: *mut Marked<Worker>,
    _directory: tempfile::TempDir,
    sequence: u64,
}

impl Rig {
    fn new(flags: u32) -> Self {
        Self::of(flags, Copied::No)
    }

    fn of(flags: u32, copied: Copied) -> Self {
        let directory = tempfile::Builder::new().prefix("sidecar-c-").tempdir_in("/dev/shm").unwrap();
        let path = directory.path().join("obs");
        let identity = Identity { job_endpoint_hash: [1; 32], agent: AgentId::new("agent").unwrap() };
        let mut owner = create(&path, &GEOMETRY, &identity, clock::now()).unwrap().owner;
        let listener = Listener::bind(&path).unwrap();
        let copier = (copied == Copied::Yes).then(|| {
            let driver = directory.path().join("libcuda.so.1");
            let program = std::env::current_exe().unwrap();
            std::fs::copy(program.with_file_name("libsimulated_cuda_driver.so"), &driver).unwrap();
            AheadCopier::with(Driver::open_at(&driver).unwrap(), 0, &owner).unwrap()
        });
        let path = path.to_str().unwrap().to_owned();
        let attaching = thread::spawn(move || {
            let size = size_of::<WorkerOptions>() as u32;
            let options = WorkerOptions { struct_size: size, flags, timeout_ns: 0, orphan_grace_ns: 0 };
            let mut worker = null_mut();
            let status = unsafe {
                sidecar_worker_attach(path.as_ptr().cast(), path.len(), &options, null_mut(), &mut worker)
            };
            assert_eq!(status, OK);
            worker.expose_provenance()
        });
        while !attaching.is_finished() {
            while let Some(mut pending) = listener.accept().unwrap() {
                let Ok(candidate) = pending.wait_hello(Duration::from_secs(2)) else { continue };
                let grant = owner.seat_join(&candidate).unwrap();
                // The end of a connection is of no interest here: the process ends with it.
                core::mem::forget(pending.grant(&grant).unwrap());
            }
            thread::yield_now();
        }
        let worker = core::ptr::with_exposed_provenance_mut(attaching.join().unwrap());
        Self { copier, owner, _listener: listener, worker, _directory: directory, sequence: 1 }
    }

    fn observe(&mut self, payload: &[u8]) -> *mut Marked<Observation> {
        let slot = self.owner.claim_slot().expect("the slot is free again");
        let start = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize);
        unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), start, payload.len()) };
        let (now, sequence) = (clock::now(), self.sequence);
        self.sequence += 1;
        let length = payload.len() as u32;
        if let Some(copier) = &mut self.copier {
            self.owner.set_copied(slot, copier.finish(slot, now, length));
        }
        let seen = Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now };
        self.owner.publish(slot, &seen);
        self.owner.deliver_pending();
        let mut event: WorkerEvent = unsafe { core::mem::zeroed() };
        event.struct_size = size_of::<WorkerEvent>() as u32;
        let status = unsafe { sidecar_worker_next(self.worker, 5_000_000_000, &mut event) };
        assert_eq!((status, event.kind), (OK, WORKER_EVENT_OBSERVATION));
        event.observation
    }

    fn answer(&mut self, observation: *mut Marked<Observation>) {
        let status = unsafe { sidecar_worker_answer(self.worker, observation, b"action".as_ptr(), 6) };
        assert_eq!(status, OK);
        assert_eq!(self.sent(), [b"action"]);
    }

    /// The actions that have come, as they are sent.
    fn sent(&mut self) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some(said) = self.owner.poll_worker().unwrap() {
            if let FromWorker::Action { sequence, base, length, .. } = said {
                sent.push(unsafe { core::slice::from_raw_parts(base, length as usize) }.to_vec());
                self.owner.finish_action();
                self.owner.journal().action_started(sequence);
                self.owner.journal().action_sent(sequence);
                self.owner.answered(sequence);
            }
        }
        sent
    }

    fn is_pinned(&self) -> bool {
        let mut info: WorkerInfo = unsafe { core::mem::zeroed() };
        info.struct_size = size_of::<WorkerInfo>() as u32;
        assert_eq!(unsafe { sidecar_worker_get_info(self.worker, 0, &mut info) }, OK);
        info.flags & INFO_PINNED != 0
    }

    /// Why not.
    fn trouble(&self) -> Option<String> {
        self.said(sidecar_worker_get_pin_failure)
    }

    fn said(
        &self,
        ask: unsafe extern "C" fn(*mut Marked<Worker>, u32, *mut Failure) -> i32,
    ) -> Option<String> {
        let mut failure: Failure = unsafe { core::mem::zeroed() };
        failure.struct_size = size_of::<Failure>() as u32;
        match unsafe { ask(self.worker, 0, &mut failure) } {
            NOTHING => None,
            OK => {
                assert_eq!(failure.status, ERR_SYSTEM);
                Some(text(&failure))
            }
            status => panic!("{status}"),
        }
    }

    /// What the last call that failed says.
    fn failure(&self) -> String {
        let mut failure: Failure = unsafe { core::mem::zeroed() };
        failure.struct_size = size_of::<Failure>() as u32;
        assert_eq!(unsafe { sidecar_worker_get_failure(self.worker, &mut failure) }, OK);
        text(&failure)
    }
}

impl Drop for Rig {
    /// The worker ends before the ring does.
    fn drop(&mut self) {
        assert_eq!(unsafe { sidecar_worker_close(self.worker) }, OK);
    }
}

fn text(failure: &Failure) -> String {
    let text = failure.text[..failure.text_len as usize].iter().map(|byte| byte.cast_unsigned());
    String::from_utf8(text.collect()).unwrap()
}

fn play(rig: &mut Rig) {
    let context = Arc::new(Context::primary(Driver::open().unwrap(), 0).unwrap());
    let memory = DeviceMemory::new(Arc::clone(&context), 16_384).unwrap();
    let stream = OwnedStream::new(context).unwrap();
    let raw = stream.raw_handle();
    for round in 0..10_u8 {
        let observation = rig.observe(&[round; 16_384]);
        let copy =
            |length| unsafe { sidecar_observation_copy_to_device(observation, memory.start(), length, raw) };
        assert_eq!(copy(16_383), ERR_LENGTH);
        assert_eq!(copy(16_384), OK);
        assert_eq!(unsafe { sidecar_observation_used_by_device(observation, raw) }, OK);
        let mut address = 0;
        let seen = unsafe { sidecar_observation_get_device_address(observation, &mut address) };
        assert_eq!((seen == OK, address != 0), (rig.is_pinned(), rig.is_pinned()));
        if round % 2 == 0 {
            rig.answer(observation);
        } else {
            assert_eq!(unsafe { sidecar_observation_release(observation) }, OK);
            rig.owner.answered(rig.sequence - 1);
            while rig.owner.poll_worker().unwrap().is_some() {}
        }
        // The slot is received into again before anybody looks at what was copied.
        let next = rig.observe(&[0xEE; 16_384]);
        let mut arrived = vec![0; 16_384];
        memory.read(&mut arrived, &stream).unwrap();
        assert!(arrived.iter().all(|byte| *byte == round), "round {round}: {}", arrived[0]);
        rig.answer(next);
    }
}

#[test]
fn payloads_reach_the_device_and_their_slot_comes_back_after() {
    on("devices=1", || {
        let mut rig = Rig::new(WORKER_PIN);
        assert!(rig.is_pinned());
        assert_eq!(rig.trouble(), None);
        play(&mut rig);
    });
}

#[test]
fn payloads_reach_it_from_slots_that_could_not_be_locked_too() {
    on("fail=cuMemHostRegister_v2:2", || {
        let mut rig = Rig::new(WORKER_PIN);
        assert!(!rig.is_pinned());
        assert!(rig.trouble().is_some_and(|why| why.contains("ulimit -l")));
        play(&mut rig);
    });
}

#[test]
fn without_a_device_it_is_said_and_the_worker_goes_on() {
    on("devices=0", || {
        let mut rig = Rig::new(WORKER_PIN);
        assert!(rig.trouble().is_some_and(|why| why.contains("sees no GPU")));
        let observation = rig.observe(b"payload");
        assert_eq!(unsafe { sidecar_observation_copy_to_device(observation, 0, 7, null_mut()) }, ERR_STATE);
        assert_eq!(unsafe { sidecar_observation_used_by_device(observation, null_mut()) }, ERR_STATE);
        let mut address = 0;
        assert_eq!(unsafe { sidecar_observation_get_device_address(observation, &mut address) }, NOTHING);
        assert_eq!(unsafe { sidecar_observation_get_device_address(null(), &mut address) }, ERR_NULL);
        rig.answer(observation);
    });
}

#[test]
fn what_the_sidecar_copied_ahead_is_found_on_the_device() {
    on("devices=1", || {
        let mut rig = Rig::of(WORKER_PIN, Copied::Yes);
        assert_eq!(rig.said(sidecar_worker_get_arrival_failure), None);
        let context = Arc::new(Context::primary(Driver::open().unwrap(), 0).unwrap());
        let stream = OwnedStream::new(Arc::clone(&context)).unwrap();
        for round in 0..10_u8 {
            let observation = rig.observe(&[round; 16_384]);
            let mut address = 0;
            assert_eq!(unsafe { sidecar_observation_get_arrival(observation, &mut address) }, OK);
            assert_eq!(unsafe { sidecar_observation_hold_back(observation, stream.raw_handle()) }, OK);
            let mut arrived = vec![0xEE; 16_384];
            unsafe { read_back(&context, address, &mut arrived, stream.stream()) }.unwrap();
            assert!(arrived.iter().all(|byte| *byte == round), "round {round}: {}", arrived[0]);
            rig.answer(observation);
        }
        let observation = rig.observe(b"");
        let mut address = 0;
        assert_eq!(unsafe { sidecar_observation_get_arrival(observation, &mut address) }, NOTHING);
        assert_eq!(unsafe { sidecar_observation_hold_back(observation, null_mut()) }, ERR_STATE);
        rig.answer(observation);
    });
}

#[test]
fn what_cannot_be_found_there_is_said_and_copied_from_the_slot() {
    on("fail=cuIpcOpenMemHandle_v2:201", || {
        let mut rig = Rig::of(WORKER_PIN, Copied::Yes);
        let why = rig.said(sidecar_worker_get_arrival_failure);
        assert!(why.is_some_and(|why| why.contains("run both in one container")));
        let observation = rig.observe(&[1; 16_384]);
        let mut address = 0;
        assert_eq!(unsafe { sidecar_observation_get_arrival(observation, &mut address) }, NOTHING);
        rig.answer(observation);
        play(&mut rig);
    });
}

const LARGEST: usize = GEOMETRY.action_bytes as usize;

#[test]
fn an_action_is_copied_back_behind_what_computes_it_and_sent() {
    on("devices=1", || {
        let mut rig = Rig::new(WORKER_PIN);
        let context = Arc::new(Context::primary(Driver::open().unwrap(), 0).unwrap());
        let memory = DeviceMemory::new(Arc::clone(&context), 16_384).unwrap();
        let own = OwnedStream::new(context).unwrap();
        for (round, length) in [0, 1, 100, LARGEST].into_iter().enumerate() {
            for stream in [own.raw_handle(), null_mut()] {
                let payload: Vec<u8> = (0..16_384).map(|at| (at * 11 + round) as u8).collect();
                // What computes it here: the copy, which has not even begun when the action is handed over.
                let observation = rig.observe(&payload);
                let started = unsafe {
                    sidecar_observation_copy_to_device(observation, memory.start(), 16_384, stream)
                };
                assert_eq!(started, OK);
                let start = memory.start();
                let answered = unsafe {
                    sidecar_worker_answer_from_device(rig.worker, observation, start, length, stream)
                };
                assert_eq!(answered, OK);
                assert_eq!(rig.sent(), [&payload[..length]]);
                let observation = rig.observe(b"another one");
                let answered = unsafe {
                    sidecar_observation_try_answer_from_device(observation, start + 1, length, stream)
                };
                assert_eq!(answered, OK);
                assert_eq!(rig.sent(), [&payload[1..=length]]);
                // Gone with its answer.
                let again =
                    unsafe { sidecar_observation_try_answer_from_device(observation, start, length, stream) };
                assert_eq!(again, ERR_STATE);
            }
        }
    });
}

/// As often as there are action slots, and once more: none of them is lost, and the observation is still the caller's.
fn refused(from: u64, length: usize, stream: *mut c_void, status: i32, says: &str) {
    let mut rig = Rig::new(WORKER_PIN);
    for _ in 0..=GEOMETRY.action_slots {
        let observation = rig.observe(b"payload");
        let answered =
            unsafe { sidecar_worker_answer_from_device(rig.worker, observation, from, length, stream) };
        assert_eq!(answered, status);
        assert!(rig.failure().contains(says), "{}", rig.failure());
        let answered =
            unsafe { sidecar_observation_try_answer_from_device(observation, from, length, stream) };
        assert_eq!(answered, status);
        assert_eq!(rig.sent(), [[0; 0]; 0]);
        rig.answer(observation);
    }
}

#[test]
fn an_address_that_is_no_devices_is_told_with_the_drivers_word() {
    let wrongs = violations("devices=1", || {
        let says =
            "the action was not copied from the device: cuMemcpyDtoHAsync_v2: CUDA_ERROR_INVALID_VALUE";
        refused(8, LARGEST, null_mut(), ERR_SYSTEM, says);
    });
    // In the process that plays there is nobody to ask.
    if std::env::var_os(MACHINE).is_none() {
        assert_eq!(wrongs.len(), 2 * (GEOMETRY.action_slots as usize + 1));
        assert!(
            wrongs.iter().all(|wrong| wrong.contains("4096 bytes at 0x8 are not on the device")),
            "{wrongs:?}"
        );
    }
}

#[test]
fn an_action_that_its_slot_has_no_room_for_is_not_copied() {
    on("devices=1", || {
        let context = Arc::new(Context::primary(Driver::open().unwrap(), 0).unwrap());
        let memory = DeviceMemory::new(context, LARGEST + 1).unwrap();
        for length in [LARGEST + 1, usize::MAX] {
            let says = format!("an action of {length} bytes");
            refused(memory.start(), length, null_mut(), ERR_ACTION_TOO_LARGE, &says);
        }
    });
}

#[test]
fn what_goes_wrong_on_the_stream_is_told_and_nothing_is_sent() {
    let wrongs = violations("fail=cuStreamSynchronize:719:sticky", || {
        let context = Arc::new(Context::primary(Driver::open().unwrap(), 0).unwrap());
        let memory = DeviceMemory::new(context, LARGEST).unwrap();
        refused(memory.start(), LARGEST, null_mut(), ERR_SYSTEM, "CUDA_ERROR_LAUNCH_FAILED");
    });
    // The context is broken for good: nothing that was queued runs any more, and nothing is given back.
    assert!(wrongs.iter().all(|wrong| wrong.contains(" leak: ")), "{wrongs:?}");
}

#[test]
fn an_action_on_a_device_that_the_worker_has_not_is_the_callers_mistake() {
    for machine in ["devices=0", NO_DRIVER] {
        on(machine, || {
            let mut rig = Rig::new(WORKER_PIN);
            let why = if std::env::var(MACHINE).unwrap() == NO_DRIVER { "libcuda.so" } else { "sees no GPU" };
            assert!(rig.trouble().is_some_and(|said| said.contains(why)), "{:?}", rig.trouble());
            let observation = rig.observe(b"payload");
            let worker = rig.worker;
            let answered = unsafe {
                [
                    sidecar_worker_answer_from_device(worker, observation, 4096, 1, null_mut()),
                    sidecar_observation_try_answer_from_device(observation, 4096, 1, null_mut()),
                ]
            };
            assert_eq!(answered, [ERR_STATE; 2]);
            rig.answer(observation);
        });
    }
}
