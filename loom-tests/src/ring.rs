//! Publish and consume: messages arrive whole, once and in order; a cell is not written while it is read. Positions
//! start just before the wrap-around of `u32`, capacities are so small that every cell is used again.

use loom::thread;
use sidecar_shm::ring::{Cells, Consumer, Producer};
use sidecar_shm::sync::orders::{Orders, Strong};

use crate::memory::{Atomic, Watched};
use crate::support::{
    Bite, InSoak, RelaxedObserve, RelaxedPublish, RelaxedRelease, RelaxedReuse, explore, explore_bounded,
    must_fail, pop, pop_waiting, push_waiting,
};

fn passes<C: Cells + Clone + Send + 'static, O: Orders + 'static>(cells: C, messages: u64) {
    let mut producer = Producer::<C, O>::with_orders(cells.clone());
    let sender = thread::spawn(move || (1..=messages).for_each(|number| push_waiting(&mut producer, number)));
    let mut consumer = Consumer::<C, O>::with_orders(cells);
    for number in 1..=messages {
        assert_eq!(pop_waiting(&mut consumer), number);
    }
    sender.join().expect("the sender ends");
    assert_eq!(pop(&mut consumer), Ok(None));
}

#[test]
fn one_cell_passes_messages_whole_and_in_order() {
    explore(|| passes::<_, Strong>(Watched::new(1, u32::MAX), 3));
}

#[test]
fn two_cells_pass_messages_whole_and_in_order() {
    explore_bounded(InSoak::Whole, || passes::<_, Strong>(Watched::new(2, u32::MAX - 1), 4));
}

#[test]
fn words_that_are_atomics_pass_messages_whole() {
    explore(|| passes::<_, Strong>(Atomic::new(u32::MAX), 2));
}

#[test]
fn an_observer_that_comes_late_or_looks_once_sees_a_prefix() {
    explore(|| {
        let cells = Watched::new(2, u32::MAX);
        let mut producer = Producer::new(cells.clone());
        let sender = thread::spawn(move || (1..=2).for_each(|number| push_waiting(&mut producer, number)));
        let mut consumer = Consumer::new(cells);
        let seen: Vec<u64> = core::iter::from_fn(|| pop(&mut consumer).expect("no nonsense")).collect();
        assert!([&[][..], &[1], &[1, 2]].contains(&&seen[..]), "{seen:?}");
        sender.join().expect("the sender ends");
    });
}

#[test]
fn teeth_a_relaxed_publication() {
    must_fail(Bite::Race, || passes::<_, RelaxedPublish>(Watched::new(1, u32::MAX), 1));
    must_fail(Bite::WrongMessage, || passes::<_, RelaxedPublish>(Atomic::new(u32::MAX), 1));
}

#[test]
fn teeth_a_relaxed_look_at_the_producer() {
    must_fail(Bite::Race, || passes::<_, RelaxedObserve>(Watched::new(1, u32::MAX), 1));
    must_fail(Bite::WrongMessage, || passes::<_, RelaxedObserve>(Atomic::new(u32::MAX), 1));
}

#[test]
fn teeth_a_relaxed_release_of_a_cell() {
    must_fail(Bite::Race, || passes::<_, RelaxedRelease>(Watched::new(1, u32::MAX), 2));
}

#[test]
fn teeth_a_relaxed_look_at_the_consumer() {
    must_fail(Bite::Race, || passes::<_, RelaxedReuse>(Watched::new(1, u32::MAX), 2));
}
