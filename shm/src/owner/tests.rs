//! The sidecar's side against a worker that behaves, dies, sleeps or lies. Workers run in this process or another one;
//! what the control thread would say is said by [`Side`].

use rustix::process::Signal;
use sidecar_core::record::ToSidecar;

use super::*;
use crate::attach::Candidate;
use crate::layout::{PAGE, RING_BYTES, worker_page};
use crate::region::Found;
use crate::stats::Counter;
use crate::testing::{CHILD_PATH, SMALL, Said, Side, observation, process, until};
use crate::worker::{AttachError, AttachOptions, Event, Worker, WorkerError};

/// A side with a worker that takes deliveries.
fn pair() -> (Side, Worker) {
    let mut side = Side::new(&SMALL);
    let worker = side.attach().unwrap();
    side.owner.deliver_pending();
    (side, worker)
}

/// The worker ends as a killed one does: its connection closes, nothing is given back.
fn kill(side: &mut Side, worker: Worker) -> SeatInfo {
    let info = side.owner.live_seat().unwrap();
    drop(worker);
    until(|| side.connections.iter().any(crate::attach::Connection::has_ended).then_some(()));
    side.connections.retain(|connection| !connection.has_ended());
    side.owner.seat_connection_ended(info.seat, info.generation);
    info
}

fn free(side: &Side) -> u32 {
    side.owner.free_slots()
}

#[test]
fn an_observation_reaches_the_worker_and_its_action_comes_back() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"hello");
    let seen = observation(&mut worker);
    assert_eq!((seen.payload(), seen.epoch(), seen.sequence()), (&b"hello"[..], Epoch(1), sequence));
    assert!(!seen.redelivered() && !seen.is_empty() && !seen.cancelled());
    assert!(seen.first_byte() <= seen.last_byte() && seen.last_byte() <= seen.published());
    assert!(seen.published() <= seen.taken());
    assert_eq!(seen.payload().as_ptr().addr() % PAGE, 0, "the payload starts on a page");
    worker.answer(seen, b"world").unwrap();
    assert_eq!(side.action(), (sequence, b"world".to_vec()));
    assert_eq!(free(&side), 3, "an action that was not sent keeps its observation");
    side.send(sequence);
    assert_eq!((free(&side), side.owner.unanswered()), (4, 0));
}

#[test]
fn empty_and_full_payloads_and_actions_pass() {
    let (mut side, mut worker) = pair();
    let largest = vec![7; SMALL.observation_bytes as usize];
    for payload in [&[][..], &largest] {
        let sequence = side.observe(1, payload);
        let seen = observation(&mut worker);
        assert_eq!(seen.payload(), payload);
        assert_eq!(seen.is_empty(), payload.is_empty());
        let action = vec![9; if payload.is_empty() { 0 } else { SMALL.action_bytes as usize }];
        worker.answer(seen, &action).unwrap();
        assert_eq!(side.action(), (sequence, action));
        side.send(sequence);
    }
    let sequence = side.observe(1, b"x");
    let seen = observation(&mut worker);
    let error = worker.answer(seen, &vec![0; SMALL.action_bytes as usize + 1]).unwrap_err();
    assert!(matches!(error, WorkerError::ActionTooLarge { size: 4097, most: 4096 }), "{error}");
    match until(|| side.poll().unwrap()) {
        Said::Record(record) => {
            assert!(
                matches!(*record, ToSidecar::Failed { sequence: of, .. } if of == sequence),
                "{record:?}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn records_pass_both_ways_in_order() {
    use sidecar_core::record::ToWorker;
    use sidecar_core::tunnel::SessionId;
    let (mut side, mut worker) = pair();
    side.owner.send(&ToWorker::Warmup).unwrap();
    let session = SessionId::new(&"s".repeat(256)).unwrap();
    side.owner
        .send(&ToWorker::SessionOpened { session: session.clone(), epoch: Epoch(2), resumed: true })
        .unwrap();
    side.observe(2, b"1");
    side.owner.send(&ToWorker::SessionClosed { epoch: Epoch(2) }).unwrap();
    side.owner.send(&ToWorker::Drain).unwrap();
    let mut next = || worker.next(Some(Duration::ZERO)).unwrap();
    assert!(matches!(next(), Event::Warmup));
    match next() {
        Event::SessionOpened { session: found, epoch: Epoch(2), resumed: true } => assert_eq!(found, session),
        other => panic!("{other:?}"),
    }
    let Event::Observation(seen) = next() else { panic!() };
    assert!(matches!(next(), Event::SessionClosed { epoch: Epoch(2) }));
    assert!(matches!(next(), Event::Drain));
    assert!(matches!(next(), Event::Timeout));
    worker.ready().unwrap();
    worker.failed(&seen, "no idea").unwrap();
    worker.warmup_failed(&"\u{e9}".repeat(200)).unwrap();
    let mut said = || match side.poll().unwrap().unwrap() {
        Said::Record(record) => *record,
        other => panic!("{other:?}"),
    };
    assert_eq!(said(), ToSidecar::Ready);
    assert!(matches!(said(), ToSidecar::Failed { message, .. } if message == "no idea"));
    assert!(matches!(said(), ToSidecar::WarmupFailed { message } if message.len() == 256));
}

#[test]
fn a_worker_that_does_not_read_fills_its_ring_and_nothing_else() {
    use sidecar_core::record::ToWorker;
    let (mut side, mut worker) = pair();
    let mut sent = 0;
    while side.owner.send(&ToWorker::Warmup).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, crate::layout::RING_CAPACITY);
    assert_eq!(side.owner.send(&ToWorker::Drain), Err(NotSent::Full));
    let sequence = side.observe(1, b"late");
    for _ in 0..sent {
        assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Warmup));
    }
    assert!(side.poll().unwrap().is_none(), "the loop's turn delivers what found no room");
    assert_eq!(observation(&mut worker).sequence(), sequence);
    drop(worker);
    let info = side.owner.live_seat().unwrap();
    side.owner.seat_connection_ended(info.seat, info.generation);
    assert_eq!(side.owner.send(&ToWorker::Drain), Err(NotSent::NoWorker));
}

#[test]
fn deliveries_wait_until_the_bridge_opens_them() {
    let mut side = Side::new(&SMALL);
    let first = side.observe(1, b"before anybody came");
    let mut worker = side.attach().unwrap();
    let second = side.observe(1, b"before the model was warm");
    side.settle();
    assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Timeout));
    assert_eq!(side.owner.deliver_pending(), 2);
    let third = side.observe(1, b"at once");
    let (one, two, three) = (observation(&mut worker), observation(&mut worker), observation(&mut worker));
    assert_eq!([one.sequence(), two.sequence(), three.sequence()], [first, second, third]);
    assert!(!one.redelivered());
}

#[test]
fn thousands_of_frames_keep_their_bytes_and_their_order_while_both_sides_sleep_and_spin() {
    const FRAMES: u64 = 4000;
    let (mut side, mut worker) = pair();
    let working = std::thread::spawn(move || {
        let mut expected = 1;
        while expected <= FRAMES {
            let seen = observation(&mut worker);
            assert_eq!(seen.sequence(), expected);
            assert!(seen.payload().iter().all(|byte| *byte == expected as u8), "frame {expected}");
            let answer = vec![!(expected as u8); seen.payload().len() % 4000];
            worker.answer(seen, &answer).unwrap();
            expected += 1;
        }
    });
    let (mut sent, mut back) = (1, 1);
    while back <= FRAMES {
        while sent <= FRAMES && free(&side) > 0 {
            let payload = vec![sent as u8; (sent * 37 % 16_000) as usize];
            assert_eq!(side.observe(1, &payload), sent);
            sent += 1;
        }
        match side.poll().unwrap() {
            Some(Said::Action { sequence, payload, .. }) => {
                assert_eq!(sequence, back);
                assert_eq!(payload, vec![!(back as u8); (back * 37 % 16_000) as usize % 4000]);
                side.send(sequence);
                back += 1;
            }
            Some(other) => panic!("{other:?}"),
            None => {
                if side.owner.arm() {
                    crate::sys::poll_in(side.owner.doorbell(), Duration::from_secs(10)).unwrap();
                }
                side.owner.disarm();
            }
        }
    }
    working.join().unwrap();
    side.settle();
    assert_eq!((free(&side), side.owner.unanswered()), (4, 0));
    assert_eq!(side.owner.stats().counter(Counter::DroppedActions), 0);
    assert_eq!(side.owner.stats().counter(Counter::Redelivered), 0);
}

#[test]
fn a_view_keeps_its_slot_after_the_answer_and_a_dropped_one_does_not_answer() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"view");
    let seen = observation(&mut worker);
    // The failure policy answers in the worker's place, while it still looks.
    worker.failed(&seen, "gave up").unwrap();
    side.settle();
    side.send(sequence);
    assert_eq!((free(&side), side.owner.lent_after_answer()), (3, 1));
    let claimed: Vec<_> = core::iter::from_fn(|| side.owner.claim_slot()).collect();
    assert_eq!(claimed.len(), 3, "what is viewed is never given out");
    assert!(claimed.iter().all(|slot| slot.number() != seen.slot()));
    assert_eq!(seen.payload(), b"view");
    claimed.into_iter().for_each(|slot| side.owner.unclaim(slot));
    drop(seen);
    side.settle();
    assert_eq!((free(&side), side.owner.lent_after_answer()), (4, 0));

    let sequence = side.observe(1, b"dropped");
    drop(observation(&mut worker));
    side.settle();
    assert_eq!((free(&side), side.owner.unanswered()), (3, 1), "released, but nobody answered");
    assert_eq!(side.owner.oldest_unanswered().unwrap().sequence, sequence);
    side.owner.answered(sequence);
    assert_eq!(free(&side), 4);
}

#[test]
fn an_observation_may_be_dropped_by_another_thread() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"x");
    let seen = observation(&mut worker);
    std::thread::spawn(move || assert_eq!(seen.payload(), b"x")).join().unwrap();
    side.owner.answered(sequence);
    side.settle();
    assert_eq!(free(&side), 4);
}

#[test]
fn an_action_for_a_closed_session_is_counted_and_dropped() {
    let (mut side, mut worker) = pair();
    side.observe(3, b"old");
    let kept = side.observe(4, b"new");
    let old = observation(&mut worker);
    let new = observation(&mut worker);
    side.owner.close_epoch(Epoch(3));
    assert!(old.cancelled() && !new.cancelled());
    assert_eq!((free(&side), side.owner.unanswered()), (2, 1), "the view keeps its slot");
    worker.answer(old, b"too late").unwrap();
    worker.answer(new, b"in time").unwrap();
    assert_eq!(side.action(), (kept, b"in time".to_vec()));
    side.send(kept);
    assert_eq!(side.owner.stats().counter(Counter::DroppedActions), 1);
    assert_eq!(free(&side), 4);
}

#[test]
fn a_reservation_is_written_in_place_and_comes_back_unused_or_used() {
    let (mut side, mut worker) = pair();
    for round in 0..20_u8 {
        let sequence = side.observe(1, &[round]);
        let seen = observation(&mut worker);
        drop(worker.reserve(100).unwrap());
        let mut reservation = worker.reserve(100).unwrap();
        reservation.as_mut_slice()[..2].copy_from_slice(&[round, 1]);
        worker.answer_reserved(seen, reservation, 2).unwrap();
        assert_eq!(side.action(), (sequence, vec![round, 1]));
        side.send(sequence);
    }
    let held: Vec<_> = (0..SMALL.action_slots).map(|_| worker.reserve(1).unwrap()).collect();
    assert!(matches!(worker.reserve(1), Err(WorkerError::AllReserved { slots: 4 })));
    assert!(matches!(worker.reserve(5000), Err(WorkerError::ActionTooLarge { .. })));
    drop(held);
    worker.reserve(1).unwrap();
}

#[test]
fn a_worker_without_a_free_action_slot_waits_for_one() {
    let wide = Geometry { observation_slots: 8, action_slots: 2, ..SMALL };
    let mut side = Side::new(&wide);
    let mut worker = side.attach().unwrap();
    side.owner.deliver_pending();
    for number in 0..8 {
        side.observe(1, &[number]);
    }
    let working = std::thread::spawn(move || {
        for _ in 0..8 {
            let seen = observation(&mut worker);
            let byte = seen.payload()[0];
            worker.answer(seen, &[byte]).unwrap();
        }
    });
    // Two actions fill the slots; the worker then sleeps for room, with its wish told.
    let page = side.owner.parts.layout.seat_area(0);
    let wants = || side.owner.parts.map.word32(page + worker_page::WANTS_ROOM).load(Ordering::Relaxed);
    until(|| (wants() == 1).then_some(()));
    for number in 0..8 {
        assert_eq!(side.action().1, [number]);
    }
    working.join().unwrap();
}

#[test]
fn a_dead_workers_observations_go_to_its_successor_oldest_first_and_flagged() {
    let (mut side, mut first) = pair();
    let answered = side.observe(1, b"a");
    let worked_on = side.observe(1, b"b");
    let unread = side.observe(1, b"c");
    let seen = observation(&mut first);
    core::mem::forget(observation(&mut first));
    first.answer(seen, b"finished").unwrap();
    let dead = kill(&mut side, first);

    let mut second = side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, 1, "the first seat is not proved free");
    assert_eq!(side.owner.deliver_pending(), 0, "the dead worker's finished action comes first");
    assert_eq!(side.action(), (answered, b"finished".to_vec()));
    side.settle();
    let [b, c] = [observation(&mut second), observation(&mut second)];
    assert_eq!([b.sequence(), c.sequence()], [worked_on, unread]);
    assert!(b.redelivered() && c.redelivered());
    assert_eq!(side.owner.oldest_unanswered().unwrap().deaths, 1);
    assert_eq!(side.owner.stats().counter(Counter::Redelivered), 2);

    second.answer(b, b"B").unwrap();
    assert_eq!(side.action(), (worked_on, b"B".to_vec()));
    side.send(worked_on);
    side.send(answered);
    assert_eq!(
        free(&side),
        1 + 1,
        "a and the free one; b may still be written by the first worker's process"
    );
    assert_eq!(side.owner.seat_proved_dead(dead.seat, dead.generation), []);
    assert_eq!(free(&side), 3);
    assert_eq!(side.owner.seat_proved_dead(dead.seat, dead.generation), [], "a late word changes nothing");
    second.answer(c, b"C").unwrap();
    assert_eq!(side.action(), (unread, b"C".to_vec()));
    side.send(unread);
    assert_eq!(free(&side), 4);
    assert_eq!(kill(&mut side, second).seat, 1);
    drop(side.attach().unwrap());
    assert_eq!(side.owner.live_seat().unwrap().seat, 0, "the proved seat is used again");
}

#[test]
fn deaths_are_counted_on_the_observation_that_was_worked_on() {
    let mut side = Side::new(&SMALL);
    let (poison, innocent) = (side.observe(1, b"poison"), side.observe(1, b"innocent"));
    for round in 1..=3 {
        let mut worker = side.attach().unwrap();
        side.owner.deliver_pending();
        side.settle();
        let seen = observation(&mut worker);
        assert_eq!((seen.sequence(), seen.redelivered()), (poison, round > 1));
        core::mem::forget(seen);
        let dead = kill(&mut side, worker);
        let had = side.owner.seat_proved_dead(dead.seat, dead.generation);
        assert_eq!(
            had.iter().map(|held| (held.sequence, held.deaths)).collect::<Vec<_>>(),
            [(poison, round), (innocent, 0)]
        );
        assert_eq!(side.owner.oldest_unanswered().unwrap().deaths, round);
    }
    side.owner.answered(poison);
    assert_eq!(side.owner.oldest_unanswered().unwrap().sequence, innocent);
    assert_eq!(free(&side), 3);
    // A worker that died before it read anything is nobody's fault.
    let worker = side.attach().unwrap();
    side.owner.deliver_pending();
    let dead = kill(&mut side, worker);
    side.owner.seat_proved_dead(dead.seat, dead.generation);
    assert_eq!(side.owner.oldest_unanswered().unwrap().deaths, 0);
}

#[test]
fn a_second_live_worker_is_refused_by_name_and_both_seats_can_be_taken_by_the_dying() {
    let (mut side, first) = pair();
    match side.attach() {
        Err(AttachError::Refused { pid, text, .. }) => {
            assert_eq!(pid, std::process::id());
            assert!(text.contains(&pid.to_string()), "{text}");
        }
        other => panic!("{other:?}"),
    }
    let one = kill(&mut side, first);
    let second = side.attach().unwrap();
    kill(&mut side, second);
    let error = side.attach().unwrap_err();
    assert!(error.to_string().contains("were detached and still run"), "{error}");
    side.owner.seat_proved_dead(one.seat, one.generation);
    side.attach().unwrap();
}

#[test]
fn a_late_word_about_a_former_worker_of_a_seat_changes_nothing() {
    let (mut side, first) = pair();
    let dead = kill(&mut side, first);
    side.owner.seat_proved_dead(dead.seat, dead.generation);
    let mut second = side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, dead.seat);
    side.owner.deliver_pending();
    side.owner.seat_connection_ended(dead.seat, dead.generation);
    side.owner.seat_proved_dead(dead.seat, dead.generation);
    side.owner.seat_proved_dead(9, 1);
    let sequence = side.observe(1, b"x");
    assert_eq!(observation(&mut second).sequence(), sequence);
}

#[test]
fn a_real_process_that_is_killed_loses_nothing() {
    let mut side = Side::new(&SMALL);
    let mut first = process("owner::tests::child_takes_one_and_hangs", &side.path);
    until(|| side.serve().then_some(()));
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"precious");
    until(|| match side.poll().unwrap() {
        Some(Said::Record(record)) if *record == ToSidecar::Ready => Some(()),
        _ => None,
    });
    rustix::process::kill_process(rustix::process::Pid::from_child(&first), Signal::KILL).unwrap();
    until(|| {
        side.watch();
        side.connections.is_empty().then_some(())
    });
    first.wait().unwrap();
    assert!(side.owner.live_seat().is_none());
    let mut second = process("owner::tests::child_echoes_until_the_end", &side.path);
    until(|| side.serve().then_some(()));
    assert_eq!(side.owner.live_seat().unwrap().seat, 0, "the proof freed the seat");
    side.owner.deliver_pending();
    assert_eq!(side.action(), (sequence, b"precious".to_vec()));
    side.send(sequence);
    assert_eq!(side.owner.oldest_unanswered(), None);
    assert_eq!(free(&side), 4);
    side.owner.close();
    drop((side.connections, side.directory));
    assert!(second.wait().unwrap().success(), "an orderly end ends the worker");
}

#[test]
#[ignore = "the other process of a_real_process_that_is_killed_loses_nothing"]
fn child_takes_one_and_hangs() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let mut worker = Worker::attach(path.as_ref(), &AttachOptions::default()).unwrap();
    let seen = observation(&mut worker);
    worker.ready().unwrap();
    std::thread::sleep(Duration::from_secs(60));
    drop(seen);
}

#[test]
#[ignore = "the other process of tests here"]
fn child_echoes_until_the_end() {
    let Some(path) = std::env::var_os(CHILD_PATH) else { return };
    let mut worker = Worker::attach(path.as_ref(), &AttachOptions::default()).unwrap();
    loop {
        match worker.next(Some(Duration::from_secs(30))) {
            Ok(Event::Observation(seen)) => {
                let answer = seen.payload().to_vec();
                worker.answer(seen, &answer).unwrap();
            }
            Ok(Event::Timeout) => panic!("nothing came for 30 s"),
            Ok(_) => {}
            Err(WorkerError::Ended) => return,
            Err(error) => panic!("{error}"),
        }
    }
}

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
    assert!(crate::sys::poll_in(side.owner.doorbell(), Duration::from_secs(10)).unwrap());
    side.owner.disarm();
    assert_eq!(side.action(), (last, b"L".to_vec()));
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
    let pidfd = orphans[0].pidfd.as_ref().unwrap();
    assert!(!crate::sys::poll_in(pidfd, Duration::ZERO).unwrap(), "this process lives");
    // Another worker has to wait: the survivor may still come back.
    assert!(matches!(side.attach(), Err(AttachError::Refused { .. })));
    side.owner.seat_proved_dead(info.seat, info.generation);
    assert!(side.owner.orphans().is_empty());
    side.attach().unwrap();
    drop(worker);
}

#[test]
fn a_seat_whose_process_is_gone_at_take_over_is_free() {
    let mut side = Side::new(&SMALL);
    side.owner.journal().note_byte(clock::now());
    let sequence = side.observe(1, b"x");
    let mut child = process("owner::tests::child_takes_one_and_hangs", &side.path);
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

/// Pages of a seat as a hostile worker has them: the granted descriptors, mapped by hand.
struct Hostile {
    map: Arc<Map>,
    layout: Layout,
    seat: usize,
    info: SeatInfo,
}

impl Hostile {
    fn attach(side: &mut Side) -> Self {
        let grant = side.owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None }).unwrap();
        side.owner.deliver_pending();
        let layout = side.owner.parts.layout;
        let map = Map::writable(&File::from(grant.region), layout.total()).unwrap();
        Self {
            map: Arc::new(map),
            layout,
            seat: usize::from(grant.seat),
            info: side.owner.live_seat().unwrap(),
        }
    }

    fn area(&self) -> usize {
        self.layout.seat_area(self.seat)
    }

    /// Writes a word of a cell and moves the tail behind it.
    fn push(&self, words: &[u64]) {
        let tail = self.map.word32(self.area() + worker_page::UP_TAIL);
        let position = tail.load(Ordering::Relaxed);
        let cell = (position % crate::layout::RING_CAPACITY) as usize;
        for (index, word) in words.iter().enumerate() {
            let offset = self.layout.up_cells(self.seat) + cell * crate::layout::CELL + index * 8;
            self.map.word64(offset).store(*word, Ordering::Relaxed);
        }
        tail.store(position.wrapping_add(1), Ordering::Release);
    }
}

const fn action(slot: u32, generation: u32, offset: u32, length: u32, sequence: u64) -> [u64; 8] {
    [
        2 | 1 << 32,
        sequence,
        slot as u64 | (generation as u64) << 32,
        offset as u64 | (length as u64) << 32,
        0,
        0,
        0,
        0,
    ]
}

#[test]
fn each_kind_of_nonsense_poisons_its_worker_and_the_next_one_works() {
    let bytes = SMALL.action_bytes;
    let release = |slot: u8, generation: u8| {
        let mut words = [0; 9];
        words[0] = 3 | 3 << 16;
        words[8] = u64::from_ne_bytes([3, slot, generation, 0, 0, 0, 0, 0]);
        words
    };
    type Attack<'a> = &'a dyn Fn(&Hostile);
    let cases: &[(&str, Attack<'_>)] = &[
        ("kind", &|worker| worker.push(&[9])),
        ("flags", &|worker| worker.push(&[2 | 0x80 << 8])),
        ("record length", &|worker| worker.push(&[3 | 385 << 16])),
        ("record", &|worker| worker.push(&[3 | 8 << 16, 0, 0, 0, 0, 0, 0, 0, u64::MAX])),
        ("an observation", &|worker| worker.push(&[1])),
        ("action slot", &|worker| worker.push(&action(SMALL.action_slots, worker.info.generation, 0, 1, 1))),
        ("action generation", &|worker| worker.push(&action(0, worker.info.generation + 1, 0, 1, 1))),
        ("action length", &|worker| worker.push(&action(0, worker.info.generation, 0, bytes + 1, 1))),
        ("action offset", &|worker| worker.push(&action(0, worker.info.generation, bytes, 1, 1))),
        ("action overflow", &|worker| worker.push(&action(0, worker.info.generation, u32::MAX, u32::MAX, 1))),
        ("release of no slot", &|worker| worker.push(&release(200, 1))),
        ("release of another generation", &|worker| worker.push(&release(0, 99))),
        ("release twice", &|worker| {
            worker.push(&release(0, 1));
            worker.push(&release(0, 1));
        }),
        ("tail", &|worker| {
            worker.map.word32(worker.area() + worker_page::UP_TAIL).store(65, Ordering::Release)
        }),
        ("tail back", &|worker| {
            worker.map.word32(worker.area() + worker_page::UP_TAIL).store(u32::MAX, Ordering::Release);
        }),
        ("head", &|worker| {
            worker.map.word32(worker.area() + worker_page::DOWN_HEAD).store(7000, Ordering::Release);
        }),
    ];
    for (what, attack) in cases {
        let mut side = Side::new(&SMALL);
        let sequence = side.observe(1, b"kept");
        let hostile = Hostile::attach(&mut side);
        attack(&hostile);
        side.observe(1, b"more");
        let poisoned = until(|| match side.poll() {
            Ok(Some(said)) => panic!("{what}: {said:?}"),
            Ok(None) => None,
            Err(poisoned) => Some(poisoned),
        });
        assert_eq!((poisoned.seat, poisoned.generation), (hostile.info.seat, hostile.info.generation));
        assert!(!poisoned.why.is_empty());
        assert_eq!(side.owner.stats().counter(Counter::Poisoned), 1, "{what}");
        assert_eq!(side.owner.errors().records().len(), 1);
        assert!(side.owner.live_seat().is_none());
        assert!(side.poll().unwrap().is_none(), "nothing more is read from it");
        let mut worker = side.attach().unwrap();
        side.owner.deliver_pending();
        let seen = observation(&mut worker);
        assert_eq!((seen.sequence(), seen.payload()), (sequence, &b"kept"[..]), "{what}");
        worker.answer(seen, b"fine").unwrap();
        assert_eq!(side.action().0, sequence);
        side.send(sequence);
        side.owner.seat_proved_dead(hostile.info.seat, hostile.info.generation);
        assert_eq!(free(&side), 3, "{what}");
    }
}

#[test]
fn nonsense_found_after_the_proof_of_death_frees_the_seat_too() {
    let mut side = Side::new(&SMALL);
    let hostile = Hostile::attach(&mut side);
    hostile.push(&[9]);
    side.owner.seat_proved_dead(hostile.info.seat, hostile.info.generation);
    side.poll().unwrap_err();
    side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, hostile.info.seat);
}

#[test]
fn a_worker_that_writes_random_words_all_over_its_pages_hurts_only_itself() {
    let mut state = 0x9e37_79b9_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 24
    };
    for round in 0..200 {
        let mut side = Side::new(&SMALL);
        let sequence = side.observe(1, b"kept");
        let hostile = Hostile::attach(&mut side);
        let reach = if round % 2 == 0 { PAGE } else { PAGE + RING_BYTES };
        let mut poisoned = false;
        for _ in 0..400 {
            let offset = hostile.area() + (random() as usize % reach) / 8 * 8;
            let small = random() % 4 == 0;
            let value = if small { random() % 70 } else { random() };
            hostile.map.word64(offset).store(value, Ordering::Relaxed);
            match side.poll() {
                Ok(_) => {}
                Err(_) => poisoned = true,
            }
            let _ = side.owner.arm();
            side.owner.disarm();
            assert!(side.owner.free_slots() <= 3, "round {round}: an unanswered observation lost its slot");
        }
        if !poisoned {
            side.owner.seat_poison("enough");
        }
        assert!(side.owner.live_seat().is_none());
        let mut worker = side.attach().unwrap();
        side.owner.deliver_pending();
        let seen = observation(&mut worker);
        assert_eq!((seen.sequence(), seen.payload()), (sequence, &b"kept"[..]));
    }
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

#[test]
fn a_worker_can_write_its_own_pages_and_the_slots_only() {
    let (side, worker) = pair();
    let layout = side.owner.parts.layout;
    let (memory, length) = worker.observation_memory();
    assert_eq!(length, layout.total() - layout.observations());
    // The kernel's word on what is writable, by reading from /proc/self/maps.
    let base = memory.addr() - layout.observations();
    let writable = |address: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (start, end) = range.split_once('-')?;
                let start = usize::from_str_radix(start, 16).ok()?;
                let end = usize::from_str_radix(end, 16).ok()?;
                (start..end).contains(&address).then(|| rest.starts_with("rw"))
            })
            .unwrap()
    };
    for (offset, expected) in [
        (0, false),
        (crate::layout::HEADER, false),
        (crate::layout::CONTROL, false),
        (crate::layout::STATS, false),
        (crate::layout::down_cells(0), false),
        (layout.seat_area(0), true),
        (layout.action(0, 3), true),
        (layout.seat_area(1), false),
        (layout.action(1, 0), false),
        (layout.slot(0), true),
        (layout.total() - 1, true),
    ] {
        assert_eq!(writable(base + offset), expected, "offset {offset}");
    }
}

#[test]
fn the_doorbell_rings_only_while_the_loop_is_armed() {
    let (mut side, mut worker) = pair();
    // Taking the rings so far shows whether there were any; the loop itself never reads them.
    let rung = |side: &Side| {
        let rung = crate::sys::poll_in(side.owner.doorbell(), Duration::ZERO).unwrap();
        doorbell::clear(side.owner.doorbell());
        rung
    };
    worker.ready().unwrap();
    assert!(!rung(&side), "nobody sleeps: no system call");
    assert!(!side.owner.arm(), "something is there: don't sleep");
    side.owner.disarm();
    side.settle();
    assert!(side.owner.arm());
    worker.ready().unwrap();
    assert!(rung(&side));
    side.owner.disarm();
    worker.ready().unwrap();
    assert!(!rung(&side));
    side.owner.doorbell_handle().ring();
    assert!(rung(&side), "the control thread rings at any time");
}
