//! The hop through the region within one process: the sidecar's side here, a worker on a thread, both spinning. For
//! comparing changes on one machine; what counts is measured between processes (`cargo xtask bench --only hop`).

#![allow(missing_docs, reason = "what the macros of criterion make")]

use core::time::Duration;
use std::path::Path;
use std::thread;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_shm::attach::{HANDSHAKE, Listener};
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{self, Identity};
use sidecar_shm::slots::Observed;
use sidecar_shm::spin::Mode;
use sidecar_shm::worker::{AttachOptions, Event, Worker, WorkerError};

const GEOMETRY: Geometry =
    Geometry { observation_slots: 4, observation_bytes: 1 << 20, action_slots: 16, action_bytes: 64 << 10 };

fn hop(criterion: &mut Criterion) {
    let directory = tempfile::tempdir_in("/dev/shm").expect("shared memory is there");
    let path = directory.path().join("obs0");
    let agent = AgentId::new("bench").expect("five letters fit");
    let identity = Identity { job_endpoint_hash: [7; 32], agent };
    let mut owner =
        region::create(&path, &GEOMETRY, &identity, clock::now()).expect("/dev/shm has some MiB").owner;
    let listener = Listener::bind(&path).expect("nobody else is there");
    thread::scope(|scope| {
        let worker = scope.spawn(|| work(&path));
        let mut pending = loop {
            if let Some(pending) = listener.accept().expect("the socket listens") {
                break pending;
            }
            thread::yield_now();
        };
        let candidate = pending.wait_hello(HANDSHAKE).expect("the worker says hello");
        let grant = owner.seat_join(&candidate).expect("the seat is free");
        let _connection = pending.grant(&grant).expect("the worker is there");
        owner.deliver_pending();

        let mut group = criterion.benchmark_group("hop");
        group.measurement_time(Duration::from_secs(3));
        let mut sequence = 0;
        for bytes in [64_u32, 64 << 10, 1 << 20] {
            group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
                bencher.iter(|| {
                    sequence += 1;
                    trip(&mut owner, sequence, bytes);
                });
            });
        }
        group.finish();
        owner.close();
        worker.join().expect("the worker ends with the sidecar");
    });
}

fn trip(owner: &mut Owner, sequence: u64, length: u32) {
    let slot = owner.claim_slot().expect("the last one was given back with its action");
    let now = clock::now();
    owner.publish(slot, &Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now });
    loop {
        if let Some(FromWorker::Action { sequence, .. }) = owner.poll_worker().expect("it keeps the rules") {
            owner.finish_action();
            return owner.answered(sequence);
        }
        core::hint::spin_loop();
    }
}

fn work(path: &Path) {
    // Longer than a benchmark may pause between two groups, so that it never sleeps within one.
    let options = AttachOptions { spin: Mode::Fixed(Duration::from_millis(100)), ..AttachOptions::default() };
    let mut worker = Worker::attach(path, &options).expect("the sidecar's side is there");
    loop {
        match worker.next(None) {
            Err(WorkerError::Ended) => return,
            Ok(Event::Observation(observation)) => {
                worker.answer(observation, &[0; 64]).expect("an action of 64 bytes fits");
            }
            other => drop(other.expect("the sidecar's side is there")),
        }
    }
}

criterion_group!(benches, hop);
criterion_main!(benches);
