//! Two sidecars, one thread with a worker for both.

use super::*;
use crate::testing::{SMALL, Side, until};

/// Attaches to both sides from a thread, since the sides are served by this one.
fn workers(sides: &mut [Side]) -> Workers {
    let paths: Vec<_> = sides.iter().map(|side| side.path.clone()).collect();
    let options = AttachOptions { orphan_grace: Duration::from_millis(300), ..AttachOptions::default() };
    let attaching = std::thread::spawn(move || Workers::attach(&paths, &options));
    until(|| {
        for side in &mut *sides {
            side.serve();
            side.owner.deliver_pending();
        }
        attaching.is_finished().then_some(())
    });
    attaching.join().unwrap().unwrap()
}

fn payload(found: Option<(usize, Event)>) -> (usize, Vec<u8>) {
    match found {
        Some((member, Event::Observation(seen))) => (member, seen.payload().to_vec()),
        other => panic!("{other:?}"),
    }
}

fn pair() -> [Side; 2] {
    [Side::new(&SMALL), Side::new(&SMALL)]
}

#[test]
fn what_waits_comes_in_the_order_of_arrival() {
    let mut sides = pair();
    let mut workers = workers(&mut sides);
    for (at, name) in [(1, b"a"), (0, b"b"), (1, b"c"), (0, b"d")] {
        sides[at].observe(1, name);
    }
    for expected in [(1, b"a"), (0, b"b"), (1, b"c"), (0, b"d")] {
        assert_eq!(payload(workers.next(None).unwrap()), (expected.0, expected.1.to_vec()));
    }
    let started = clock::now();
    assert!(workers.next(Some(Duration::from_millis(120))).unwrap().is_none());
    assert!(clock::now().since(started) >= Duration::from_millis(120));
}

/// Wakes a waiting thread from each side in turn, and answers.
fn each_side_wakes_it(mut sides: [Side; 2], mut workers: Workers) {
    for round in 0..40_u8 {
        let waiting = std::thread::spawn(move || {
            let found = until(|| workers.next(Some(Duration::from_secs(5))).unwrap());
            (workers, found)
        });
        let at = usize::from(round % 2);
        if round % 4 < 2 {
            std::thread::sleep(Duration::from_millis(2));
        }
        let sequence = sides[at].observe(1, &[round]);
        let (returned, (member, event)) = waiting.join().unwrap();
        workers = returned;
        assert_eq!(member, at);
        let Event::Observation(seen) = event else { panic!("{event:?}") };
        assert_eq!(seen.payload(), [round]);
        let reservation = seen.try_reserve(1).unwrap().unwrap();
        assert!(matches!(seen.try_answer(reservation, 1), super::super::Answered::Done));
        assert_eq!(sides[at].action().0, sequence);
        sides[at].send(sequence);
    }
}

#[test]
fn a_wait_ends_with_what_comes_on_either_side() {
    let mut sides = pair();
    let workers = workers(&mut sides);
    each_side_wakes_it(sides, workers);
}

#[test]
fn a_kernel_without_the_call_is_served_by_descriptors() {
    let mut sides = pair();
    let mut workers = workers(&mut sides);
    workers.by_descriptor = true;
    each_side_wakes_it(sides, workers);
}

#[test]
fn a_poll_loop_is_woken_by_each_side() {
    let mut sides = pair();
    let mut workers = workers(&mut sides);
    let is_readable =
        |workers: &mut Workers| crate::sys::poll_in(workers.fd().unwrap(), Duration::ZERO).unwrap();
    assert!(!is_readable(&mut workers));
    for round in 0..20_u8 {
        assert!(workers.next(Some(Duration::ZERO)).unwrap().is_none());
        assert!(!is_readable(&mut workers), "round {round}");
        let at = usize::from(round % 2);
        let sequence = sides[at].observe(1, &[round]);
        assert!(is_readable(&mut workers), "round {round}");
        assert_eq!(payload(workers.next(Some(Duration::ZERO)).unwrap()), (at, vec![round]));
        // Given back unanswered by `payload`: closed as its session would be.
        sides[at].settle();
        sides[at].owner.answered(sequence);
    }
}

#[test]
fn one_sidecar_ends_and_the_other_is_served_on() {
    let mut sides = pair();
    let mut workers = workers(&mut sides);
    let [first, mut second] = sides;
    first.owner.close();
    drop(first.connections);
    let ended = workers.next(Some(Duration::from_secs(5))).unwrap_err();
    assert!(matches!(ended, MemberError { member: 0, error: WorkerError::Ended }), "{ended}");
    assert!(workers.next(Some(Duration::ZERO)).unwrap().is_none());
    second.observe(1, b"still here");
    assert_eq!(payload(workers.next(Some(Duration::from_secs(5))).unwrap()), (1, b"still here".to_vec()));
    // The second dies, and nobody comes back.
    drop(second);
    let (member, gone) = until(|| workers.next(Some(Duration::from_secs(5))).unwrap());
    assert!(member == 1 && matches!(gone, Event::SidecarGone), "{gone:?}");
    let orphaned = until(|| workers.next(Some(Duration::from_secs(5))).err());
    assert!(matches!(orphaned, MemberError { member: 1, error: WorkerError::Orphaned { .. } }), "{orphaned}");
    let over = workers.next(None).unwrap_err();
    assert!(matches!(over.error, WorkerError::Ended), "{over}");
}
