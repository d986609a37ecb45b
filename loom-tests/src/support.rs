//! How models are run, how teeth are shown to bite, and the few moves that models share.

use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::sync::{Arc, Mutex, PoisonError};

use sidecar_shm::descriptor::{Descriptor, Kind, RECORD_BYTES};
use sidecar_shm::ring::{Cells, Consumer, Poison, Producer};
use sidecar_shm::sync::Ordering;
use sidecar_shm::sync::orders::Orders;

/// Forced switches in [`explore_bounded`]. Every weakness that the teeth know shows with at most so many.
const SWITCHES: usize = 3;

/// Steps of one run; a whole sidecar takes some thousands from its start to its end.
const STEPS: usize = 100_000;

/// Runs a model in every order of its steps and with every visibility of its stores.
pub(crate) fn explore(model: impl Fn() + Send + Sync + 'static) {
    check(loom::model::Builder::new(), model);
}

/// How far a model is explored in a soak (`SIDECAR_SOAK`): what a core does in two or three minutes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum InSoak {
    /// With so many forced switches.
    Switches(usize),
    /// In every order.
    Whole,
}

impl InSoak {
    /// The bound for a model, of which a test run affords `short`. Loom's own variable comes first.
    fn bound(self, asked: Option<usize>, short: usize) -> Option<usize> {
        let soaks = std::env::var_os("SIDECAR_SOAK").is_some();
        match self {
            _ if asked.is_some() => asked,
            _ if !soaks => Some(short),
            Self::Switches(switches) => Some(switches),
            Self::Whole => None,
        }
    }
}

/// As [`explore`], for models that have too many orders: those in which threads are switched no more than a few times
/// while they could go on.
pub(crate) fn explore_bounded(soak: InSoak, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = soak.bound(builder.preemption_bound, SWITCHES);
    check(builder, model);
}

/// As [`explore_bounded`], for a whole sidecar with its worker ([`crate::stage`]). Each run of one takes half a
/// millisecond or more, and there are three threads in it: how many switches a test run affords depends on the model.
pub(crate) fn explore_house(short: usize, soak: InSoak, model: impl Fn() + Send + Sync + 'static) {
    check(house(short, soak), model);
}

fn house(short: usize, soak: InSoak) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = soak.bound(builder.preemption_bound, short);
    builder.max_branches = STEPS;
    builder
}

fn check(mut builder: loom::model::Builder, model: impl Fn() + Send + Sync + 'static) {
    builder.max_branches = STEPS;
    let runs = Arc::new(Mutex::new(0_u64));
    let counter = Arc::clone(&runs);
    builder.check(move || {
        *counter.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        model();
    });
    let runs = *runs.lock().unwrap_or_else(PoisonError::into_inner);
    // Read by `cargo xtask test`, which adds them up.
    println!("explored {runs} executions of {}", std::thread::current().name().unwrap_or("a model"));
}

/// How a weakened model has to fail: any other failure is a mistake in the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bite {
    /// Loom saw two accesses of plain memory that nothing orders.
    Race,
    /// Everybody sleeps.
    LostWakeUp,
    /// A message arrived that was not sent, or not the expected one.
    WrongMessage,
    /// The sidecar found nonsense in the pages of a worker that did nothing wrong.
    Dropped,
}

impl Bite {
    const fn is_told_by(self) -> &'static [&'static str] {
        match self {
            Self::Race => &["Causality violation"],
            Self::LostWakeUp => &["deadlock"],
            Self::Dropped => &["was detached"],
            Self::WrongMessage => &["assertion `left == right` failed", "descriptor of unknown kind"],
        }
    }
}

/// Shows that the model sees the weakness: some run of it has to fail, in the way that the weakness makes it.
///
/// # Panics
/// If none does, or one fails in another way.
pub(crate) fn must_fail(bite: Bite, model: impl Fn() + Send + Sync + 'static) {
    bites(bite, || explore_bounded(InSoak::Switches(SWITCHES), model));
}

/// As [`must_fail`], for a whole sidecar with its worker. One forced switch is enough.
///
/// # Panics
/// As [`must_fail`].
pub(crate) fn must_fail_in_house(bite: Bite, model: impl Fn() + Send + Sync + 'static) {
    bites(bite, || house(1, InSoak::Switches(1)).check(model));
}

fn bites(bite: Bite, explore: impl FnOnce()) {
    let Err(panic) = catch_unwind(AssertUnwindSafe(explore)) else {
        panic!("the model does not see the weakness");
    };
    let text =
        panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.expect("a panic with a text");
    assert!(bite.is_told_by().iter().any(|tell| text.contains(tell)), "not {bite:?}, but: {text}");
    println!("the teeth of {} bite: {bite:?}", std::thread::current().name().unwrap_or("a model"));
}

/// A message that can be told from others by its number, and its record.
pub(crate) fn message(number: u64) -> (Descriptor, [u8; 9]) {
    let descriptor = Descriptor {
        kind: Kind::Record,
        flags: 0,
        epoch: 1,
        sequence: number,
        slot: 2,
        generation: 3,
        offset: 4,
        length: 5,
        stamps: [number, 6, !number],
    };
    // More than a word, and not a whole one more.
    (descriptor, [number as u8; 9])
}

/// Pushes a message into a ring that has room for it.
pub(crate) fn push<C: Cells, O: Orders>(producer: &mut Producer<C, O>, number: u64) {
    let (descriptor, record) = message(number);
    producer.try_push(&descriptor, &record).expect("there is room in this model");
}

/// Pushes a message as soon as there is room.
pub(crate) fn push_waiting<C: Cells, O: Orders>(producer: &mut Producer<C, O>, number: u64) {
    let (descriptor, record) = message(number);
    while producer.try_push(&descriptor, &record).is_err() {
        assert_eq!(producer.poison(), None);
        loom::thread::yield_now();
    }
}

/// Takes a message and checks all of its bytes.
pub(crate) fn pop<C: Cells, O: Orders>(consumer: &mut Consumer<C, O>) -> Result<Option<u64>, Poison> {
    let mut record = [0; RECORD_BYTES];
    let Some((descriptor, length)) = consumer.try_pop(&mut record)? else { return Ok(None) };
    let number = descriptor.sequence;
    assert_eq!((descriptor, &record[..length]), (message(number).0, &message(number).1[..]));
    Ok(Some(number))
}

/// Takes a message as soon as there is one.
pub(crate) fn pop_waiting<C: Cells, O: Orders>(consumer: &mut Consumer<C, O>) -> u64 {
    loop {
        match pop(consumer) {
            Ok(Some(number)) => return number,
            Ok(None) => loom::thread::yield_now(),
            Err(poison) => panic!("{poison}"),
        }
    }
}

/// Declares orders that are the right ones but for what is given.
macro_rules! weak {
    ($($name:ident { $($weakness:tt)* })*) => {$(
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct $name;

        impl Orders for $name {
            $($weakness)*
        }
    )*};
}

weak! {
    RelaxedPublish { fn publish() -> Ordering { Ordering::Relaxed } }
    RelaxedObserve { fn observe() -> Ordering { Ordering::Relaxed } }
    RelaxedRelease { fn release() -> Ordering { Ordering::Relaxed } }
    RelaxedReuse { fn reuse() -> Ordering { Ordering::Relaxed } }
    NoPostFence { fn post_fence() {} }
    NoWaitFence { fn wait_fence() {} }
    // A flag as futex word, which a known rival has: nothing changes between the last look and the sleep.
    NoStep { fn step(_sequence: &sidecar_shm::sync::AtomicU32) {} }
    RelaxedStep {
        fn step(sequence: &sidecar_shm::sync::AtomicU32) {
            sequence.store(sequence.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
    }
}
