//! The sidecar's doorbells: an eventfd that a worker rings only when the sidecar says that it sleeps, and one that the
//! control thread rings each time, after it put something into its channel. One poll is over both, so that they are one
//! here. As in the drivers, they are never read: each ring is an edge, and a sleep ends with the first edge that was not
//! yet seen.

use std::sync::Arc;

use loom::sync::Mutex;
use loom::thread;
use sidecar_shm::ring::{Consumer, Producer};
use sidecar_shm::sync::monitor::Monitor;
use sidecar_shm::sync::orders::{Orders, Strong};

use crate::memory::Watched;
use crate::support::{Bite, InSoak, NoPostFence, NoWaitFence, explore_bounded, must_fail, pop, push};
use crate::wakeup::Way;

#[derive(Clone, Debug)]
struct House {
    seats: Vec<Way>,
    channel: Arc<Mutex<Option<u64>>>,
    /// The edges of the eventfds, behind an edge-triggered poll.
    bell: Arc<Monitor<u32>>,
}

impl House {
    fn new(seats: usize) -> Self {
        Self {
            seats: (0..seats).map(|_| Way::new(1)).collect(),
            channel: Arc::new(Mutex::new(None)),
            bell: Arc::default(),
        }
    }

    fn worker_says<O: Orders>(&self, seat: usize, number: u64) {
        let way = &self.seats[seat];
        push(&mut Producer::<_, O>::with_orders(way.cells.clone()), number);
        if way.events::<O>().post() {
            self.ring();
        }
    }

    fn ring(&self) {
        self.bell.change(|edges| *edges += 1);
    }

    fn control_says(&self, number: u64) {
        *self.channel.lock().expect("nobody panics with it") = Some(number);
        self.ring();
    }

    fn look<O: Orders>(&self, consumers: &mut [Consumer<Watched, O>], heard: &mut Vec<u64>) -> bool {
        let before = heard.len();
        for consumer in consumers {
            heard.extend(pop(consumer).expect("no nonsense"));
        }
        heard.extend(self.channel.lock().expect("nobody panics with it").take());
        heard.len() > before
    }

    /// The frame loop: look, arm every seat, look once more, sleep, disarm.
    fn frame_loop<O: Orders>(&self, expected: usize) -> Vec<u64> {
        let mut consumers: Vec<_> =
            self.seats.iter().map(|way| Consumer::<_, O>::with_orders(way.cells.clone())).collect();
        let (mut heard, mut seen) = (Vec::new(), 0);
        while heard.len() < expected {
            if self.look(&mut consumers, &mut heard) {
                continue;
            }
            for way in &self.seats {
                way.events::<O>().announce();
            }
            if !self.look(&mut consumers, &mut heard) {
                seen = self.bell.wait(|edges| (*edges != seen).then_some(*edges));
            }
            for way in &self.seats {
                way.events::<O>().cancel();
            }
        }
        heard.sort_unstable();
        heard
    }
}

fn worker_and_control<O: Orders + 'static>() {
    let house = House::new(1);
    let (worker, control) = (house.clone(), house.clone());
    let worker = thread::spawn(move || worker.worker_says::<O>(0, 1));
    let control = thread::spawn(move || control.control_says(2));
    assert_eq!(house.frame_loop::<O>(2), [1, 2]);
    worker.join().expect("the worker ends");
    control.join().expect("the control thread ends");
}

#[test]
fn worker_and_control_thread_are_both_heard() {
    explore_bounded(InSoak::Switches(6), worker_and_control::<Strong>);
}

#[test]
fn a_dying_and_a_live_worker_are_both_heard() {
    explore_bounded(InSoak::Switches(4), || {
        let house = House::new(2);
        let (dying, live) = (house.clone(), house.clone());
        let dying = thread::spawn(move || dying.worker_says::<Strong>(0, 1));
        let live = thread::spawn(move || live.worker_says::<Strong>(1, 2));
        assert_eq!(house.frame_loop::<Strong>(2), [1, 2]);
        dying.join().expect("it ends");
        live.join().expect("it ends");
    });
}

#[test]
fn teeth_no_fence_at_the_worker() {
    must_fail(Bite::LostWakeUp, worker_and_control::<NoPostFence>);
}

#[test]
fn teeth_no_fence_at_the_sidecar() {
    must_fail(Bite::LostWakeUp, worker_and_control::<NoWaitFence>);
}
