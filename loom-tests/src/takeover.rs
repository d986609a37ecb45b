//! One side is replaced: a restarted sidecar goes on with the ring of a worker that lives, a seat is reset for a new
//! worker. What the kernel proves about a process's end (its pidfd) is a join here: everything that the process stored
//! happened before. A process may end after any of its steps: in a model, the successor starts after each prefix.

use loom::thread;
use sidecar_shm::ring::{Consumer, Poison, Producer};

use crate::memory::{Atomic, Watched};
use crate::support::{Bite, explore, must_fail, pop, pop_waiting, push, push_waiting};

#[test]
fn a_producer_that_takes_over_goes_on_where_the_last_one_ended() {
    for done in 0..=2 {
        explore(move || {
            let cells = Watched::new(2, u32::MAX);
            let mut consumer = Consumer::new(cells.clone());
            let worker = thread::spawn(move || [pop_waiting(&mut consumer), pop_waiting(&mut consumer)]);
            let last = {
                let mut producer = Producer::new(cells.clone());
                thread::spawn(move || (1..=done).for_each(|number| push(&mut producer, number)))
            };
            last.join().expect("the proof of its end");
            let mut next = Producer::resume(cells).expect("the ring is in order");
            (done + 1..=2).for_each(|number| push(&mut next, number));
            assert_eq!(worker.join().expect("the worker ends"), [1, 2]);
        });
    }
}

#[test]
fn a_consumer_that_takes_over_misses_nothing_and_takes_nothing_twice() {
    for done in 0..=2 {
        explore(move || {
            let cells = Watched::new(1, u32::MAX);
            let mut producer = Producer::new(cells.clone());
            let sidecar = thread::spawn(move || {
                for number in 1..=2 {
                    push_waiting(&mut producer, number);
                }
            });
            let last = {
                let mut consumer = Consumer::new(cells.clone());
                thread::spawn(move || {
                    (1..=done).for_each(|number| assert_eq!(pop_waiting(&mut consumer), number))
                })
            };
            last.join().expect("the proof of its end");
            let mut next = Consumer::new(cells);
            for number in done + 1..=2 {
                assert_eq!(pop_waiting(&mut next), number);
            }
            sidecar.join().expect("the sidecar ends");
        });
    }
}

/// When a seat is reset.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Reset {
    /// After the old worker is proved dead.
    AfterProof,
    /// On the mere hint of its end.
    OnHint,
}

/// An old worker takes its last message, and ends; its seat is reset for a new one, who gets a message of its own.
fn replaced(reset: Reset) -> Result<(), Poison> {
    let cells = Atomic::new(0);
    push(&mut Producer::new(cells.clone()), 1);
    let old = {
        let mut consumer = Consumer::new(cells.clone());
        thread::spawn(move || pop(&mut consumer))
    };
    if reset == Reset::AfterProof {
        assert_eq!(old.join().expect("the proof of its end"), Ok(Some(1)));
    }
    cells.reset();
    let mut producer = Producer::resume(cells.clone())?;
    push(&mut producer, 2);
    let mut new = Consumer::new(cells);
    assert_eq!(pop(&mut new)?, Some(2));
    assert_eq!(pop(&mut new)?, None);
    assert_eq!(producer.free(), 1, "{:?}", producer.poison());
    Ok(())
}

#[test]
fn a_seat_that_is_reset_after_the_proof_is_as_new() {
    explore(|| assert_eq!(replaced(Reset::AfterProof), Ok(())));
}

#[test]
fn teeth_a_seat_that_is_reset_on_a_hint() {
    must_fail(Bite::WrongMessage, || assert_eq!(replaced(Reset::OnHint), Ok(())));
}
