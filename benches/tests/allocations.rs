//! Not one allocation a frame: neither in the frame loop nor in the worker library, with either driver, sleeping or
//! spinning. Every thread is counted over thousands of frames, so that one in a thousand would show.

use core::time::Duration;
use std::path::Path;
use std::thread;

use clap::Parser;
use sidecar::cli::Cli;
use sidecar::exit::Exit;
use sidecar_benches::alloc::{Counting, Place};
use sidecar_benches::gateway::Gateway;
use sidecar_benches::observation::Observation;
use sidecar_benches::reply;
use sidecar_shm::spin::Mode;
use sidecar_shm::worker::{AttachOptions, Event, Worker, WorkerError};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A watchdog, not a measurement.
const PATIENCE: Duration = Duration::from_secs(60);
/// The first frames may fill what is made when it is needed.
const WARM_UP: u32 = 200;
/// Every so many frames a large one comes: several receives.
const LARGE_EVERY: u32 = 100;

struct Case {
    io: &'static str,
    spin: &'static str,
    frames: u32,
    sidecar: Place,
    worker: Place,
}

#[test]
fn a_frame_allocates_nothing_with_uring() {
    play(&Case { io: "uring", spin: "off", frames: 10_000, sidecar: Place(0), worker: Place(1) });
}

#[test]
fn a_frame_allocates_nothing_with_epoll() {
    play(&Case { io: "epoll", spin: "off", frames: 10_000, sidecar: Place(2), worker: Place(3) });
}

#[test]
fn a_frame_allocates_nothing_while_spinning_with_uring() {
    play(&Case { io: "uring", spin: "20", frames: 1_000, sidecar: Place(4), worker: Place(5) });
}

#[test]
fn a_frame_allocates_nothing_while_spinning_with_epoll() {
    play(&Case { io: "epoll", spin: "20", frames: 1_000, sidecar: Place(6), worker: Place(7) });
}

fn play(case: &Case) {
    if case.io == "uring" && !uring_works() {
        return println!("skipped: io_uring cannot be used here");
    }
    let directory = tempfile::Builder::new().prefix("sidecar-bench-").tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| directory.path().join(name);
    std::fs::write(path("token"), "counted").unwrap();
    std::fs::write(path("env"), "").unwrap();
    let (region, token, env) = (path("obs0"), path("token"), path("env"));
    let gateway = Gateway::bind().unwrap();
    let arguments = [
        "sidecar".as_ref(),
        "--gpu".as_ref(),
        "none".as_ref(),
        "--job".as_ref(),
        "0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11".as_ref(),
        "--endpoint".as_ref(),
        gateway.endpoint().as_ref(),
        "--token-file".as_ref(),
        token.as_os_str(),
        "--env-file".as_ref(),
        env.as_os_str(),
        "--io".as_ref(),
        case.io.as_ref(),
        "--spin".as_ref(),
        case.spin.as_ref(),
        "--slot-bytes".as_ref(),
        "1048576".as_ref(),
        "--shm".as_ref(),
        region.as_os_str(),
    ];
    let run = Cli::try_parse_from(arguments).unwrap().run;
    let (sidecar_place, worker_place) = (case.sidecar, case.worker);
    thread::scope(|scope| {
        let sidecar = scope.spawn(move || {
            sidecar_place.count_this_thread();
            sidecar::run::run(&run)
        });
        let worker = scope.spawn(|| {
            worker_place.count_this_thread();
            work(&region);
        });
        let mut tunnel = gateway.accept(PATIENCE).unwrap();
        let (mut small, mut large) = (Observation::new(64), Observation::new(256 << 10));
        let mut exchange = |frames: u32| {
            for frame in 0..frames {
                let observation = if frame % LARGE_EVERY == 1 { &mut large } else { &mut small };
                tunnel.exchange(observation).unwrap();
            }
        };
        exchange(WARM_UP);
        let before = (sidecar_place.allocations(), worker_place.allocations());
        exchange(case.frames);
        let after = (sidecar_place.allocations(), worker_place.allocations());
        assert!(before.0 > 0 && before.1 > 0, "the threads are counted: {before:?}");
        tunnel.drain().unwrap();
        let ended = sidecar.join().unwrap().unwrap_or_else(|_| panic!("the sidecar failed"));
        assert!(matches!(ended, Exit::Done), "{ended:?}");
        worker.join().unwrap();
        assert_eq!(after, before, "allocations of (frame loop, worker) in {} frames", case.frames);
    });
}

fn work(region: &Path) {
    let options = AttachOptions { spin: Mode::Off, ..AttachOptions::default() };
    let mut worker = Worker::attach(region, &options).unwrap();
    let mut action = Box::new([0; reply::LARGE]);
    loop {
        match worker.next(Some(PATIENCE)) {
            Err(WorkerError::Ended) => return,
            Ok(Event::Warmup) => worker.ready().unwrap(),
            Ok(Event::Observation(observation)) => {
                let payload = observation.payload();
                let action = &mut action[..reply::length(payload.len())];
                reply::write(payload, action);
                worker.answer(observation, action).unwrap();
            }
            other => drop(other.unwrap()),
        }
    }
}

fn uring_works() -> bool {
    use std::os::fd::AsFd;
    let doorbell = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC).unwrap();
    sidecar::driver::Uring::new(
        [doorbell.as_fd(); sidecar::driver::DOORBELLS],
        sidecar::driver::RingMode::Auto,
    )
    .is_ok()
}
