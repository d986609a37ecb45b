//! The wait for room: a worker whose ring to the sidecar is full sleeps on the eventcount that also brings it messages,
//! and the sidecar posts there after it has read something, if the worker wished for it.

use std::sync::Arc;

use core::time::Duration;
use loom::thread;
use sidecar_shm::eventcount::{EventCount, Wish};
use sidecar_shm::futex;
use sidecar_shm::ring::{Consumer, Producer};
use sidecar_shm::sync::AtomicU32;
use sidecar_shm::sync::orders::{Orders, Strong};

use crate::memory::{PrivateHead, Watched};
use crate::support::{Bite, NoPostFence, NoWaitFence, explore, message, must_fail, pop_waiting, push};

#[derive(Debug)]
struct Words {
    sequence: AtomicU32,
    waiters: AtomicU32,
    wish: AtomicU32,
}

impl Words {
    fn new() -> Self {
        Self { sequence: AtomicU32::new(0), waiters: AtomicU32::new(0), wish: AtomicU32::new(0) }
    }

    fn events<O: Orders>(&self) -> EventCount<'_, O> {
        EventCount::with_orders(&self.sequence, &self.waiters)
    }

    fn wish<O: Orders>(&self) -> Wish<'_, O> {
        Wish::with_orders(&self.wish)
    }
}

/// A ring of one cell that is full at first, of which the sidecar reads one message. `Makes` are the orders of the sidecar, who makes room, `Wants` those of the
/// worker.
fn waits<Makes: Orders + 'static, Wants: Orders + 'static>() {
    let (ring, words) = (Watched::new(1, u32::MAX), Arc::new(Words::new()));
    let mut up = Producer::<_, Wants>::with_orders(ring.clone());
    push(&mut up, 1);
    let sidecar = {
        let words = Arc::clone(&words);
        thread::spawn(move || {
            let cells = PrivateHead::new(ring);
            let mut up = Consumer::<_, Makes>::with_orders(cells.clone());
            assert_eq!(pop_waiting(&mut up), 1);
            cells.commit(Makes::release());
            if words.wish::<Makes>().is_made() && words.events::<Makes>().post() {
                futex::wake(&words.sequence);
            }
        })
    };
    let (descriptor, record) = message(2);
    while up.try_push(&descriptor, &record).is_err() {
        words.wish::<Wants>().make();
        let ticket = words.events::<Wants>().prepare();
        if up.free() == 0 {
            futex::wait(&words.sequence, ticket, Duration::MAX).expect("no error in a model");
        }
        words.events::<Wants>().cancel();
        words.wish::<Wants>().withdraw();
    }
    sidecar.join().expect("the sidecar ends");
}

#[test]
fn a_worker_that_waits_for_room_is_woken_when_there_is_some() {
    explore(waits::<Strong, Strong>);
}

#[test]
fn teeth_no_fence_where_room_is_made() {
    must_fail(Bite::LostWakeUp, waits::<NoPostFence, Strong>);
}

#[test]
fn teeth_no_fence_where_it_is_wished_for() {
    must_fail(Bite::LostWakeUp, waits::<Strong, NoWaitFence>);
}
