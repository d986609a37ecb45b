//! Release against reuse: payload memory is plain memory, and passes to and fro with what the rings say. Loom watches
//! it: an access that is not ordered after the other side's last one fails the model.

use std::sync::Arc;

use loom::thread;
use sidecar_shm::ring::{Consumer, Producer};
use sidecar_shm::sync::orders::{Orders, Strong};

use crate::memory::{Payload, PrivateHead, Watched};
use crate::support::{
    Bite, RelaxedObserve, RelaxedPublish, RelaxedRelease, RelaxedReuse, explore, must_fail, pop_waiting, push,
};

/// One observation slot: the sidecar writes it again only after it has popped the worker's release of it. `Down` are
/// the orders of the ring to the worker, `Up` those of the ring back.
fn observations<Down: Orders + 'static, Up: Orders + 'static>() {
    let (down, up) = (Watched::new(1, u32::MAX), Watched::new(1, u32::MAX));
    let slot = Arc::new(Payload::new(0));
    let worker = {
        let mut down = Consumer::<_, Down>::with_orders(down.clone());
        let mut up = Producer::<_, Up>::with_orders(up.clone());
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            for number in 1..=2 {
                assert_eq!(pop_waiting(&mut down), number);
                assert_eq!(slot.read(|payload| *payload), number);
                push(&mut up, number);
            }
        })
    };
    let mut down = Producer::<_, Down>::with_orders(down);
    let mut up = Consumer::<_, Up>::with_orders(up);
    for number in 1..=2 {
        slot.write(|payload| *payload = number);
        push(&mut down, number);
        assert_eq!(pop_waiting(&mut up), number);
    }
    worker.join().expect("the worker ends");
}

/// One action slot: the worker writes it again only after the sidecar's position has passed the action. The sidecar
/// pops with a private position, copies, and only then shows it, as the owner's link does.
fn actions<O: Orders + 'static>() {
    let ring = Watched::new(2, u32::MAX);
    let slot = Arc::new(Payload::new(0));
    let worker = {
        let mut up = Producer::<_, O>::with_orders(ring.clone());
        let slot = Arc::clone(&slot);
        thread::spawn(move || {
            slot.write(|payload| *payload = 1);
            push(&mut up, 1);
            while up.free() < 2 {
                thread::yield_now();
            }
            slot.write(|payload| *payload = 2);
        })
    };
    let cells = PrivateHead::new(ring);
    let mut up = Consumer::<_, O>::with_orders(cells.clone());
    assert_eq!(pop_waiting(&mut up), 1);
    assert_eq!(slot.read(|payload| *payload), 1);
    cells.commit(O::release());
    worker.join().expect("the worker ends");
}

#[test]
fn an_observation_slot_is_written_again_only_after_its_release() {
    explore(observations::<Strong, Strong>);
}

#[test]
fn an_action_slot_is_written_again_only_after_its_copy() {
    explore(actions::<Strong>);
}

#[test]
fn teeth_a_relaxed_delivery() {
    must_fail(Bite::Race, observations::<RelaxedPublish, Strong>);
    must_fail(Bite::Race, observations::<RelaxedObserve, Strong>);
}

#[test]
fn teeth_a_relaxed_release_record() {
    must_fail(Bite::Race, observations::<Strong, RelaxedPublish>);
    must_fail(Bite::Race, observations::<Strong, RelaxedObserve>);
}

#[test]
fn teeth_a_relaxed_end_of_the_copy() {
    must_fail(Bite::Race, actions::<RelaxedRelease>);
    must_fail(Bite::Race, actions::<RelaxedReuse>);
}
