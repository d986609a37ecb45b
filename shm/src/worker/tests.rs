//! Waiting, poll loops, and the ways in which a worker learns that it is alone.

use super::*;
use crate::testing::{SMALL, Side, observation, until};

fn pair() -> (Side, Worker) {
    let mut side = Side::new(&SMALL);
    let worker = side.attach().unwrap();
    side.owner.deliver_pending();
    (side, worker)
}

fn is_readable(worker: &mut Worker) -> bool {
    crate::sys::poll_in(worker.fd().unwrap(), Duration::ZERO).unwrap()
}

#[test]
fn a_wait_ends_with_its_timeout_and_with_what_comes() {
    let (mut side, mut worker) = pair();
    let timeout = Duration::from_millis(130);
    let started = clock::now();
    assert!(matches!(worker.next(Some(timeout)).unwrap(), Event::Timeout));
    assert!(clock::now().since(started) >= timeout);
    let waiting = std::thread::spawn(move || observation(&mut worker).payload().to_vec());
    std::thread::sleep(Duration::from_millis(20));
    side.observe(1, b"woken");
    assert_eq!(waiting.join().unwrap(), b"woken");
}

#[test]
fn a_poll_loop_is_woken_by_observations_records_and_the_end() {
    let (mut side, mut worker) = pair();
    assert!(!is_readable(&mut worker));
    for round in 0..50_u8 {
        assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
        assert!(!is_readable(&mut worker), "round {round}");
        let sequence = side.observe(1, &[round]);
        assert!(is_readable(&mut worker), "round {round}");
        let Event::Observation(seen) = worker.next(Some(Duration::ZERO)).unwrap() else { panic!() };
        worker.answer(seen, b"").unwrap();
        assert_eq!(side.action().0, sequence);
        side.send(sequence);
    }
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    side.owner.send(&ToWorker::Drain).unwrap();
    assert!(is_readable(&mut worker));
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Drain));
    // A blocking wait works as well in this mode.
    let waiting = std::thread::spawn(move || {
        observation(&mut worker);
        worker
    });
    std::thread::sleep(Duration::from_millis(20));
    side.observe(1, b"x");
    let mut worker = waiting.join().unwrap();
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    let side = side.crash_and_restart();
    until(|| is_readable(&mut worker).then_some(()));
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::SidecarGone | Event::Timeout));
    let mut side = side;
    // While it is alone the descriptor becomes readable from time to time, so that a loop looks for a sidecar.
    until(|| {
        side.serve();
        if is_readable(&mut worker) {
            // Taken on a thread of its own, since the attach needs this one.
            std::thread::scope(|scope| {
                let looking = scope.spawn(|| worker.next(Some(Duration::ZERO)).unwrap());
                until(|| {
                    side.serve();
                    looking.is_finished().then_some(())
                });
            });
        }
        (worker.is_attached() && !worker.attachment.has_new_owner()).then_some(())
    });
    let sequence = side.observe(1, b"after");
    let seen = until(|| match worker.next(Some(Duration::ZERO)).unwrap() {
        Event::Observation(seen) if seen.sequence() == sequence => Some(seen),
        _ => None,
    });
    worker.answer(seen, b"").unwrap();
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    side.observe(1, b"by the new socket");
    assert!(is_readable(&mut worker));
}

#[test]
fn an_orderly_end_ends_the_worker_or_lets_it_wait() {
    let (side, mut worker) = pair();
    side.owner.close();
    drop(side.connections);
    let error = worker.next(Some(Duration::from_secs(5))).unwrap_err();
    assert!(matches!(error, WorkerError::Ended), "{error}");

    let (side, mut worker) = pair();
    worker.options.after_end = AfterEnd::Stay;
    let directory = Arc::clone(&side.directory);
    side.owner.close();
    drop(side.connections);
    drop(side.directory);
    assert!(matches!(worker.next(Some(Duration::from_secs(5))).unwrap(), Event::SidecarGone));
    // The next sidecar makes a new region: the worker maps that one, with nothing of the old.
    let old = worker.region_id();
    let mut side = Side::at(directory, &SMALL, clock::now());
    let waiting = std::thread::spawn(move || {
        while worker.region_id() == old {
            worker.next(Some(Duration::from_millis(10))).unwrap();
        }
        worker
    });
    until(|| side.serve().then_some(()));
    let mut worker = waiting.join().unwrap();
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"new region");
    let seen = observation(&mut worker);
    worker.answer(seen, b"!").unwrap();
    assert_eq!(side.action(), (sequence, b"!".to_vec()));
}

#[test]
fn an_orderly_end_is_heard_also_after_the_end_of_the_connection() {
    let (mut side, mut worker) = pair();
    side.connections.clear();
    assert!(matches!(worker.next(Some(Duration::from_secs(5))).unwrap(), Event::SidecarGone));
    side.owner.close();
    let error = until(|| worker.next(Some(Duration::from_secs(5))).err());
    assert!(matches!(error, WorkerError::Ended), "{error}");
}

#[test]
fn what_belongs_to_a_region_that_is_gone_goes_nowhere() {
    let (mut side, mut worker) = pair();
    worker.options.after_end = AfterEnd::Stay;
    side.observe(1, b"old");
    let (seen, held) = (observation(&mut worker), worker.reserve(5).unwrap());
    let directory = Arc::clone(&side.directory);
    side.owner.close();
    drop(side.connections);
    let mut side = Side::at(directory, &SMALL, clock::now());
    let old = worker.region_id();
    let waiting = std::thread::spawn(move || {
        while worker.region_id() == old {
            worker.next(Some(Duration::from_millis(10))).unwrap();
        }
        worker
    });
    until(|| side.serve().then_some(()));
    let mut worker = waiting.join().unwrap();
    assert_eq!(seen.payload(), b"old", "its memory stays while it is held");
    worker.failed(&seen, "old").unwrap();
    worker.answer_reserved(seen, held, 5).unwrap();
    side.settle();
    assert_eq!(side.owner.stats().counter(crate::stats::Counter::DroppedActions), 0);
    assert_eq!(side.owner.free_slots(), SMALL.observation_slots);
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"new");
    let seen = observation(&mut worker);
    worker.answer(seen, b"N").unwrap();
    assert_eq!(side.action(), (sequence, b"N".to_vec()));
}

#[test]
fn an_orphan_gives_up_after_its_grace() {
    let (side, mut worker) = pair();
    worker.options.orphan_grace = Duration::from_millis(60);
    drop(side);
    assert!(matches!(worker.next(None).unwrap(), Event::SidecarGone));
    assert!(!worker.is_attached());
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    let error = worker.next(None).unwrap_err();
    assert!(
        matches!(error, WorkerError::Orphaned { waited } if waited >= Duration::from_millis(60)),
        "{error}"
    );
}

#[test]
fn a_detached_worker_is_told() {
    let (mut side, mut worker) = pair();
    side.owner.seat_poison("it said that it is a teapot");
    let error = worker.next(Some(Duration::from_secs(5))).unwrap_err();
    assert!(matches!(error, WorkerError::Detached), "{error}");
    drop(side.connections);
}

#[test]
fn a_worker_whose_place_was_taken_is_told_by_whom() {
    let (side, mut worker) = pair();
    let info = side.owner.live_seat().unwrap();
    let mut side = side.crash_and_restart();
    side.owner.seat_proved_dead(info.seat, info.generation);
    let other = side.attach().unwrap();
    let waiting = std::thread::spawn(move || until(|| worker.next(Some(Duration::from_millis(50))).err()));
    until(|| {
        side.serve();
        waiting.is_finished().then_some(())
    });
    let error = waiting.join().unwrap();
    assert!(matches!(error, WorkerError::Detached | WorkerError::Replaced { .. }), "{error}");
    drop(other);
}

#[test]
fn an_answer_leaves_while_the_payload_is_still_read() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"read on");
    let seen = observation(&mut worker);
    let mut reservation = seen.try_reserve(2).unwrap().unwrap();
    reservation.as_mut_slice().copy_from_slice(b"ok");
    assert!(matches!(seen.try_answer_and_keep(reservation, 2), Answered::Done));
    assert_eq!(side.action(), (sequence, b"ok".to_vec()));
    side.send(sequence);
    side.settle();
    assert_eq!(side.owner.free_slots(), SMALL.observation_slots - 1, "its slot is still lent");
    assert_eq!(seen.payload(), b"read on");
    drop(seen);
    side.settle();
    assert_eq!(side.owner.free_slots(), SMALL.observation_slots);
}

#[test]
fn other_threads_answer_while_one_waits() {
    let (mut side, mut worker) = pair();
    for round in 0..20_u8 {
        let sequence = side.observe(1, &[round]);
        let seen = observation(&mut worker);
        let waiting = std::thread::spawn(move || {
            let next = observation(&mut worker);
            drop(next);
            worker
        });
        let mut reservation = seen.try_reserve(1).unwrap().unwrap();
        reservation.as_mut_slice().fill(round);
        assert!(matches!(seen.try_answer(reservation, 1), Answered::Done));
        assert_eq!(side.action(), (sequence, vec![round]));
        side.send(sequence);
        let next = side.observe(1, b"next");
        worker = waiting.join().unwrap();
        side.settle();
        side.owner.answered(next);
    }
    assert_eq!(side.owner.free_slots(), SMALL.observation_slots);
}

#[test]
fn an_answer_that_finds_no_slot_is_told_at_once() {
    let (mut side, mut worker) = pair();
    side.observe(1, b"x");
    let seen = observation(&mut worker);
    let held: Vec<_> = (0..SMALL.action_slots).map(|_| seen.try_reserve(1).unwrap().unwrap()).collect();
    assert!(matches!(seen.try_reserve(1), Err(WorkerError::AllReserved { slots: 4 })));
    let most = SMALL.action_bytes as usize;
    assert!(
        matches!(seen.try_reserve(most + 1), Err(WorkerError::ActionTooLarge { size, .. }) if size == most + 1)
    );
    drop(held);
    assert!(seen.try_reserve(most).unwrap().is_some());
    assert!(seen.try_failed("no idea"));
    let said = until(|| side.poll().unwrap());
    let crate::testing::Said::Record(record) = said else { panic!("{said:?}") };
    assert!(matches!(*record, ToSidecar::Failed { ref message, .. } if message.as_str() == "no idea"));
}
