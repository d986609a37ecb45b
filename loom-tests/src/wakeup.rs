//! The eventcount over the futex: who sleeps is woken. A lost wake-up is a deadlock in these models, because their
//! futex has no timeouts.

use std::sync::Arc;

use core::time::Duration;
use loom::thread;
use sidecar_shm::eventcount::EventCount;
use sidecar_shm::ring::{Consumer, Producer};
use sidecar_shm::sync::AtomicU32;
use sidecar_shm::sync::orders::{Orders, Strong};
use sidecar_shm::{futex, spin};

use crate::memory::Watched;
use crate::support::{
    Bite, InSoak, NoPostFence, NoStep, NoWaitFence, RelaxedStep, explore, explore_bounded, must_fail, pop,
    push, push_waiting,
};

/// A ring and the words of its wake-ups.
#[derive(Clone, Debug)]
pub(crate) struct Way {
    pub(crate) cells: Watched,
    words: Arc<(AtomicU32, AtomicU32)>,
}

/// Does a waiter look a few times before it announces itself?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Nothing,
    Spin,
}

impl Way {
    pub(crate) fn new(capacity: usize) -> Self {
        let words = Arc::new((AtomicU32::new(u32::MAX), AtomicU32::new(0)));
        Self { cells: Watched::new(capacity, u32::MAX), words }
    }

    fn producer<O: Orders>(&self) -> Producer<Watched, O> {
        Producer::with_orders(self.cells.clone())
    }

    fn consumer<O: Orders>(&self) -> Consumer<Watched, O> {
        Consumer::with_orders(self.cells.clone())
    }

    pub(crate) fn events<O: Orders>(&self) -> EventCount<'_, O> {
        EventCount::with_orders(&self.words.0, &self.words.1)
    }

    fn post<O: Orders>(&self) {
        if self.events::<O>().post() {
            futex::wake(&self.words.0);
        }
    }

    /// The wait of a worker: spin, announce, look once more, sleep.
    fn receive<O: Orders>(&self, consumer: &mut Consumer<Watched, O>, before: Before) -> u64 {
        let mut found = None;
        loop {
            if before == Before::Spin {
                let mut budget = 2;
                let look = || {
                    found = pop(consumer).expect("no nonsense");
                    found.is_some()
                };
                spin::poll(look, || {
                    budget -= 1;
                    budget == 0
                });
            } else {
                found = pop(consumer).expect("no nonsense");
            }
            if let Some(number) = found {
                return number;
            }
            let events = self.events::<O>();
            let ticket = events.prepare();
            found = pop(consumer).expect("no nonsense");
            if found.is_none() {
                futex::wait(&self.words.0, ticket, Duration::MAX).expect("no error in a model");
            }
            events.cancel();
            if let Some(number) = found {
                return number;
            }
        }
    }
}

fn posts<O: Orders + 'static>(capacity: usize, messages: u64, before: Before) {
    let way = Way::new(capacity);
    let poster = {
        let way = way.clone();
        thread::spawn(move || {
            let mut producer = way.producer::<O>();
            for number in 1..=messages {
                push_waiting(&mut producer, number);
                way.post::<O>();
            }
        })
    };
    let mut consumer = way.consumer::<O>();
    for number in 1..=messages {
        assert_eq!(way.receive(&mut consumer, before), number);
    }
    poster.join().expect("the poster ends");
}

fn ping_pong<O: Orders + 'static>(balls: u64, before: Before) {
    let (there, back) = (Way::new(1), Way::new(1));
    let partner = {
        let (there, back) = (there.clone(), back.clone());
        thread::spawn(move || {
            let (mut consumer, mut producer) = (there.consumer::<O>(), back.producer::<O>());
            for _ in 0..balls {
                let ball = there.receive(&mut consumer, before);
                push(&mut producer, ball);
                back.post::<O>();
            }
        })
    };
    let (mut producer, mut consumer) = (there.producer::<O>(), back.consumer::<O>());
    for ball in 1..=balls {
        push(&mut producer, ball);
        there.post::<O>();
        assert_eq!(back.receive(&mut consumer, before), ball);
    }
    partner.join().expect("the partner ends");
}

#[test]
fn a_sleeper_hears_one_post() {
    explore(|| posts::<Strong>(1, 1, Before::Nothing));
}

#[test]
fn a_spinner_that_falls_asleep_hears_one_post() {
    explore(|| posts::<Strong>(1, 1, Before::Spin));
}

#[test]
fn a_sleeper_hears_each_of_several_posts() {
    explore_bounded(InSoak::Switches(5), || posts::<Strong>(2, 2, Before::Nothing));
}

#[test]
fn both_sides_wake_each_other() {
    explore_bounded(InSoak::Switches(4), || ping_pong::<Strong>(2, Before::Nothing));
}

#[test]
fn both_sides_wake_each_other_after_spinning() {
    explore(|| ping_pong::<Strong>(1, Before::Spin));
}

#[test]
fn teeth_no_fence_at_the_poster() {
    must_fail(Bite::LostWakeUp, || posts::<NoPostFence>(1, 1, Before::Nothing));
}

#[test]
fn teeth_no_fence_at_the_waiter() {
    must_fail(Bite::LostWakeUp, || posts::<NoWaitFence>(1, 1, Before::Nothing));
}

#[test]
fn teeth_a_flag_instead_of_a_sequence() {
    must_fail(Bite::LostWakeUp, || posts::<NoStep>(1, 1, Before::Nothing));
}

#[test]
fn teeth_a_relaxed_step() {
    must_fail(Bite::LostWakeUp, || posts::<RelaxedStep>(1, 1, Before::Nothing));
}
