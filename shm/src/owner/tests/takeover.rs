//! Sidecars that die, and who comes after them.

use super::*;
use crate::owner::Whereabouts;
use crate::testing::process::{Parts, take_one_and_hang};

#[test]
fn a_worker_goes_on_over_a_crash_of_the_sidecar_with_what_it_has() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    let (in_hand, unread) = (side.observe(1, b"in hand"), side.observe(1, b"unread"));
    let seen = observation(&mut worker);
    let before = side.owner.live_seat().unwrap();
    let mut side = side.crash_and_restart();
    assert!(matches!(&side.found, Found::TakenOver { kept, .. } if kept.len() == 2), "{:?}", side.found);
    let after = side.owner.live_seat().unwrap();
    assert_eq!(
        (after.seat, after.generation, after.connected, after.open),
        (before.seat, before.generation, false, true)
    );
    assert!(side.owner.must_poll().is_some(), "the survivor can't ring the new doorbell");
    // It needs no connection to answer and to be given more.
    assert_eq!(seen.payload(), b"in hand");
    worker.answer(seen, b"1").unwrap();
    assert_eq!(side.action(), (in_hand, b"1".to_vec()));
    side.send(in_hand);
    let fresh = side.observe(1, b"fresh");
    let (attached, is_attached) = std::sync::mpsc::channel();
    let working = std::thread::spawn(move || {
        let mut seen = Vec::new();
        // Goes on as long as the new sidecar has not seen it.
        while is_attached.try_recv().is_err() {
            if let Event::Observation(next) = worker.next(Some(Duration::from_millis(20))).unwrap() {
                seen.push((next.sequence(), next.redelivered()));
            }
        }
        (worker, seen)
    });
    until(|| side.serve().then_some(()));
    attached.send(()).unwrap();
    let (mut worker, seen) = working.join().unwrap();
    assert_eq!(seen, [(unread, false), (fresh, false)], "delivered once, by either sidecar");
    assert!(side.owner.live_seat().unwrap().connected);
    assert_eq!(side.owner.must_poll(), None);
    // Both were dropped unanswered above; the new doorbell works.
    let last = side.observe(1, b"last");
    let seen = until(|| match worker.next(Some(Duration::from_secs(5))).unwrap() {
        Event::Observation(next) => Some(next),
        _ => None,
    });
    side.settle();
    assert!(side.owner.arm());
    worker.answer(seen, b"L").unwrap();
    assert!(crate::sys::poll_in(bell(&side, 0), Duration::from_secs(10)).unwrap());
    side.owner.disarm();
    assert_eq!(side.action(), (last, b"L".to_vec()));
}

#[test]
fn a_dead_sidecars_device_ring_is_none_of_its_successors() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    let ring = DeviceRing { gpu: [1; 16], memory: [2; 64], event: [3; 64] };
    // A crash takes nothing back.
    core::mem::forget(side.owner.announce_device_ring(&ring));
    let number = worker.device_ring_number();
    for payload in [b"seen", b"left"] {
        let slot = side.owner.claim_slot().unwrap();
        side.owner.set_copied(slot, Copied::Yes);
        side.fill(slot, 1, payload);
    }
    let seen = observation(&mut worker);
    assert_eq!(seen.device_ring(), Some(number));
    let side = side.crash_and_restart();
    assert_eq!((worker.device_ring_number(), seen.device_ring()), (0, None));
    // Pushed by the dead one.
    assert_eq!(observation(&mut worker).device_ring(), None);
    let _announced = side.owner.announce_device_ring(&ring);
    assert_eq!((worker.device_ring_number(), seen.device_ring()), (number + 1, None));
}

#[test]
fn an_action_that_died_with_the_sidecar_is_computed_again_but_one_that_was_started_is_not() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    let (copied, started, unread) = (side.observe(1, b"1"), side.observe(1, b"2"), side.observe(1, b"3"));
    for _ in 0..3 {
        let seen = observation(&mut worker);
        let payload = seen.payload().to_vec();
        worker.answer(seen, &payload).unwrap();
    }
    assert_eq!(side.action().0, copied);
    assert_eq!(side.action().0, started);
    side.owner.journal().action_started(started);
    let mut side = side.crash_and_restart();
    // The one that was still in the ring is taken from there.
    assert_eq!(side.action(), (unread, b"3".to_vec()));
    side.settle();
    let again = observation(&mut worker);
    assert_eq!((again.sequence(), again.redelivered(), again.payload()), (copied, true, &b"1"[..]));
    worker.answer(again, b"1").unwrap();
    assert_eq!(side.action(), (copied, b"1".to_vec()));
    side.send(copied);
    side.send(unread);
    side.settle();
    assert_eq!((free(&side), side.owner.unanswered()), (4, 0));
    assert_eq!(side.owner.stats().counter(Counter::DroppedActions), 0);
}

/// Another job in the same region: sequences and epochs started anew there once, and what the surviving worker said of
/// the last job's observation was taken for the new job's.
#[test]
fn a_late_answer_to_the_last_jobs_observation_is_no_answer_to_this_jobs() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    side.owner.journal().session_opened(&SessionId::new("last").unwrap(), Epoch(1));
    side.observe(1, b"old");
    let old = observation(&mut worker);
    let (directory, geometry) = (Arc::clone(&side.directory), side.owner.geometry());
    drop(side);
    let mut side = Side::of(directory, &geometry, &crate::testing::identity(2), clock::now());
    assert!(matches!(side.found, Found::Replaced { .. }), "{:?}", side.found);
    assert!(old.cancelled(), "its session is over, and the worker can see it");
    // The survivor has its seat still, and gets what the new job's first session asks.
    let epoch = side.resume.epoch.0 + 1;
    let sequence = side.observe(epoch, b"new");
    worker.answer(old, b"answer to old").unwrap();
    side.settle();
    assert_eq!(side.owner.oldest_unanswered().map(|held| held.sequence), Some(sequence));
    assert_eq!(side.owner.stats().counter(Counter::DroppedActions), 1);
    let new = until(|| match worker.next(Some(Duration::from_secs(5))).unwrap() {
        Event::Observation(seen) => Some(seen),
        _ => {
            side.serve();
            None
        }
    });
    assert_eq!(new.payload(), b"new");
    worker.answer(new, b"answer to new").unwrap();
    assert_eq!(side.action(), (sequence, b"answer to new".to_vec()));
}

/// Found by simulation: the worker reported a failure, and the sidecar died before the policy's answer had left. Nobody
/// would ever have answered.
#[test]
fn an_observation_given_back_without_an_answer_is_asked_again_after_a_crash() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    let sequence = side.observe(1, b"x");
    let seen = observation(&mut worker);
    worker.failed(&seen, "out of memory").unwrap();
    drop(seen);
    side.settle();
    let mut side = side.crash_and_restart();
    side.settle();
    let again = observation(&mut worker);
    assert_eq!((again.sequence(), again.redelivered()), (sequence, true));
    worker.answer(again, b"y").unwrap();
    assert_eq!(side.action().0, sequence);
    side.send(sequence);
    side.settle();
    assert_eq!(free(&side), 4);
}

#[test]
fn an_action_given_out_but_not_finished_is_given_out_again_by_a_successor() {
    let (mut side, mut worker) = pair();
    side.owner.journal().note_byte(clock::now());
    let sequence = side.observe(1, b"x");
    let seen = observation(&mut worker);
    worker.answer(seen, b"y").unwrap();
    until(|| matches!(side.owner.poll_worker().unwrap(), Some(FromWorker::Action { .. })).then_some(()));
    assert!(side.owner.poll_worker().unwrap().is_none(), "one at a time");
    let mut side = side.crash_and_restart();
    assert_eq!(side.action(), (sequence, b"y".to_vec()));
    assert!(side.poll().unwrap().is_none());
    side.send(sequence);
    assert_eq!(free(&side), 4);
}

#[test]
fn orphans_are_named_until_they_return_or_are_proved_dead() {
    let (side, worker) = pair();
    let info = side.owner.live_seat().unwrap();
    let mut side = side.crash_and_restart();
    let orphans = side.owner.orphans();
    assert_eq!(orphans.len(), 1);
    assert_eq!((orphans[0].seat, orphans[0].pid), (info.seat, std::process::id()));
    let Whereabouts::Runs(pidfd) = orphans[0].look().unwrap() else { panic!("this process lives") };
    assert!(!crate::sys::poll_in(&pidfd, Duration::ZERO).unwrap(), "this process lives");
    // Another worker has to wait: the survivor may still come back.
    assert!(matches!(side.attach(), Err(AttachError::Refused { .. })));
    side.owner.seat_proved_dead(info.seat, info.generation);
    assert!(side.owner.orphans().is_empty());
    side.attach().unwrap();
    drop(worker);
}

#[test]
fn a_seat_whose_process_is_gone_at_take_over_is_free() {
    let Some(parts) = Parts::of(|_, region| take_one_and_hang(region)) else { return };
    let mut side = Side::new(&SMALL);
    side.owner.journal().note_byte(clock::now());
    let sequence = side.observe(1, b"x");
    let mut child = parts.start("worker", &side.path);
    until(|| side.serve().then_some(()));
    side.owner.deliver_pending();
    until(|| matches!(side.poll().unwrap(), Some(Said::Record(_))).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut side = side.crash_and_restart();
    assert!(side.owner.live_seat().is_none() && side.owner.orphans().is_empty());
    let held = side.owner.oldest_unanswered().unwrap();
    assert_eq!((held.sequence, held.deaths), (sequence, 1));
    let mut worker = side.attach().unwrap();
    side.owner.deliver_pending();
    assert!(observation(&mut worker).redelivered());
}

#[test]
fn the_region_that_is_passed_on_carries_no_lock() {
    let (mut side, worker) = pair();
    drop(worker);
    let info = side.owner.live_seat().unwrap();
    side.owner.seat_connection_ended(info.seat, info.generation);
    let grant = side.owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None }).unwrap();
    let path = side.path.clone();
    let directory = Arc::clone(&side.directory);
    drop(side);
    // The worker's copies outlive the sidecar; a successor gets the region all the same.
    let successor = region::create(&path, &SMALL, &crate::testing::identity(1), clock::now()).unwrap();
    drop((grant, successor, directory));
}

/// Found by killing a sidecar while it made the region anew: what the last one had delivered came again unflagged.
#[test]
fn what_a_worker_may_have_seen_is_flagged_in_a_region_made_anew_as_well() {
    let (mut side, mut worker) = pair();
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    let seen = side.observe(1, b"seen");
    assert!(!observation(&mut worker).redelivered());
    drop(worker);
    let directory = Arc::clone(&side.directory);
    drop(side);
    let larger = Geometry { observation_bytes: 2 * SMALL.observation_bytes, ..SMALL };
    let mut side = Side::at(directory, &larger, clock::now());
    let unseen = side.observe(1, b"unseen");
    let mut worker = side.attach().unwrap();
    side.owner.deliver_pending();
    let [first, second] = [observation(&mut worker), observation(&mut worker)];
    assert_eq!((first.sequence(), first.redelivered(), first.payload()), (seen, true, &b"seen"[..]));
    assert_eq!((second.sequence(), second.redelivered()), (unseen, false));
}

#[test]
fn an_observation_of_the_sidecars_own_is_known_as_such_after_a_crash_and_in_a_region_made_anew() {
    let mut side = Side::new(&SMALL);
    side.owner.journal().note_byte(clock::now());
    let now = clock::now();
    let observed = Observed { epoch: Epoch(0), sequence: 1, length: 0, first_byte: now, last_byte: now };
    let slot = side.owner.claim_slot().unwrap();
    side.owner.publish_rehearsal(slot, &observed);
    let slot = side.owner.claim_slot().unwrap();
    side.owner.publish(slot, &Observed { sequence: 2, ..observed });
    let askers = |side: &Side| match &side.found {
        Found::TakenOver { kept, .. } => kept.iter().map(|held| held.asker).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let side = side.crash_and_restart();
    assert_eq!(askers(&side), [Asker::Sidecar, Asker::Gateway]);
    let directory = Arc::clone(&side.directory);
    drop(side);
    let larger = Geometry { observation_bytes: 2 * SMALL.observation_bytes, ..SMALL };
    assert_eq!(askers(&Side::at(directory, &larger, clock::now())), [Asker::Sidecar, Asker::Gateway]);
}

#[test]
fn a_position_of_long_ago_says_nothing_about_what_was_read() {
    let (mut side, mut worker) = pair();
    let seat = usize::from(side.owner.live_seat().unwrap().seat);
    for payload in [b"one", b"two"] {
        let sequence = side.observe(1, payload);
        let seen = observation(&mut worker);
        worker.answer(seen, b"fine").unwrap();
        assert_eq!(side.action().0, sequence);
        side.send(sequence);
    }
    let read = |head| side.owner.ledger.applied_up_to(seat, head);
    // Journalled, and a crash came before the worker was told.
    assert_eq!((read(0), read(1), read(2)), (2, 2, 2));
    for later in [1000, 1 << 31, (1 << 31) + 2, u32::MAX - 100] {
        assert_eq!(read(later), later);
    }
}
