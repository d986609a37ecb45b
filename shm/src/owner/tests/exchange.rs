//! What passes between a sidecar and a worker that keeps to the rules.

use super::*;

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
    assert_eq!((free(&side), side.owner.unanswered()), (4, 0), "the slot came back with the action");
}

#[test]
fn a_slot_that_comes_back_with_an_action_is_free_though_the_session_ends_meanwhile() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"late");
    let seen = observation(&mut worker);
    worker.answer(seen, b"too late").unwrap();
    let given = until(|| side.owner.poll_worker().unwrap());
    assert!(matches!(given, FromWorker::Action { sequence: of, .. } if of == sequence));
    side.owner.close_epoch(Epoch(1));
    side.owner.finish_action();
    assert_eq!((free(&side), side.owner.lent_after_answer().to_live), (4, 0));
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
fn an_observation_says_whether_it_lies_on_the_device_too() {
    let ring = DeviceRing { gpu: [1; 16], memory: [2; 64], event: [3; 64] };
    let (mut side, mut worker) = pair();
    assert_eq!((worker.device_ring_number(), worker.device_ring()), (0, None));
    side.observe(1, b"before");
    assert_eq!(observation(&mut worker).device_ring(), None);
    let _announced = side.owner.announce_device_ring(&ring);
    let announced = worker.device_ring().unwrap();
    assert_eq!((announced.number, announced.ring), (worker.device_ring_number(), ring));
    assert_eq!(announced.slots, side.owner.device_slots());
    for copied in [Copied::Yes, Copied::No, Copied::Yes] {
        let slot = side.owner.claim_slot().unwrap();
        side.owner.set_copied(slot, copied);
        let sequence = side.fill(slot, 1, b"payload");
        let seen = observation(&mut worker);
        assert_eq!(seen.device_ring(), (copied == Copied::Yes).then_some(announced.number), "{copied:?}");
        worker.answer(seen, b"").unwrap();
        assert_eq!(side.action().0, sequence);
        side.send(sequence);
        side.settle();
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
    assert!(side.owner.must_poll().is_some(), "no bell rings when the worker has read on");
    let sequence = side.observe(1, b"late");
    for _ in 0..sent {
        assert!(matches!(worker.next(Some(Duration::ZERO)).unwrap(), Event::Warmup));
    }
    assert!(side.owner.must_poll().is_some(), "room alone is not enough: it has to be used");
    assert!(side.poll().unwrap().is_none(), "the loop's turn delivers what found no room");
    assert_eq!(observation(&mut worker).sequence(), sequence);
    side.owner.deliver_pending();
    assert_eq!(side.owner.must_poll(), None);
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
                    crate::sys::poll_in(bell(&side, 0), Duration::from_secs(10)).unwrap();
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
    assert_eq!((free(&side), side.owner.lent_after_answer()), (3, Lent { to_live: 1, to_gone: 0 }));
    let claimed: Vec<_> = core::iter::from_fn(|| side.owner.claim_slot()).collect();
    assert_eq!(claimed.len(), 3, "what is viewed is never given out");
    assert!(claimed.iter().all(|slot| slot.number() != seen.slot()));
    assert_eq!(seen.payload(), b"view");
    claimed.into_iter().for_each(|slot| side.owner.unclaim(slot));
    drop(seen);
    side.settle();
    assert_eq!((free(&side), side.owner.lent_after_answer()), (4, Lent { to_live: 0, to_gone: 0 }));

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
    side.settle();
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
fn the_doorbell_rings_only_while_the_loop_is_armed() {
    let (mut side, mut worker) = pair();
    // Taking the rings so far shows whether there were any; the loop itself never reads them.
    let rung = |side: &Side| {
        let rung = crate::sys::poll_in(bell(side, 0), Duration::ZERO).unwrap();
        doorbell::clear(bell(side, 0));
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
    let [own, ..] = side.owner.doorbells();
    assert!(crate::sys::poll_in(own, Duration::ZERO).unwrap(), "the control thread rings at any time");
    assert!(!rung(&side), "by another way than workers");
}

#[test]
fn a_region_in_huge_pages_holds_what_it_held() {
    let geometry = Geometry { observation_bytes: 4 << 20, ..SMALL };
    let mut side = Side::new(&geometry);
    let mut worker = side.attach().unwrap();
    side.owner.deliver_pending();
    let payload: Vec<u8> = (0..geometry.observation_bytes).map(|at| (at % 251) as u8).collect();
    let sequence = side.observe(1, &payload);
    match side.owner.use_huge_pages() {
        Ok(bytes) => assert!(bytes >= 2 << 20 && bytes <= geometry.total_bytes(), "{bytes}"),
        Err(error) => println!("skipped: no huge pages for it here: {error}"),
    }
    let seen = observation(&mut worker);
    assert_eq!(seen.sequence(), sequence);
    assert!(seen.payload() == payload);
}

#[test]
fn a_region_smaller_than_a_huge_page_stays_as_it_is() {
    let (side, _worker) = pair();
    assert_eq!(side.owner.use_huge_pages().unwrap(), 0);
}
