//! Workers that die, and who comes after them.

use std::path::Path;

use super::*;
use crate::attach::Candidate;
use crate::sys;
use crate::testing::process::{Parts, echo_until_the_end, take_one_and_hang};

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
    side.settle();
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
    side.settle();
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
    let play = |part: &str, region: &Path| match part {
        "first" => take_one_and_hang(region),
        _ => echo_until_the_end(region),
    };
    let Some(parts) = Parts::of(play) else { return };
    let mut side = Side::new(&SMALL);
    let mut first = parts.start("first", &side.path);
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
    let mut second = parts.start("second", &side.path);
    until(|| side.serve().then_some(()));
    assert_eq!(side.owner.live_seat().unwrap().seat, 0, "the proof freed the seat");
    side.owner.deliver_pending();
    assert_eq!(side.action(), (sequence, b"precious".to_vec()));
    side.send(sequence);
    assert_eq!(side.owner.oldest_unanswered(), None);
    until(|| {
        side.settle();
        (free(&side) == 4).then_some(())
    });
    side.owner.close();
    drop((side.connections, side.directory));
    assert!(second.wait().unwrap().success(), "an orderly end ends the worker");
}

/// Found by simulation: a connection broke while the model was loading, the worker said that it was ready, came back,
/// and nobody ever heard of it.
#[test]
fn ready_that_was_said_over_a_broken_connection_is_heard_when_the_worker_is_back() {
    let mut side = Side::new(&SMALL);
    let mut worker = side.attach().unwrap();
    let seat = side.owner.live_seat().unwrap();
    side.connections.clear();
    side.owner.seat_connection_ended(seat.seat, seat.generation);
    worker.ready().unwrap();
    side.settle();
    let waiting = std::thread::spawn(move || {
        until(|| {
            let _ = worker.next(Some(Duration::from_millis(1))).unwrap();
            worker.is_attached().then_some(())
        });
        worker
    });
    let said = until(|| {
        side.serve();
        side.poll().unwrap()
    });
    assert_eq!(said, Said::Record(Box::new(ToSidecar::Ready)));
    drop(waiting.join().unwrap());
}

/// Found by simulation: a sidecar died between granting a seat and saying so. The seat was kept for a process that knew
/// nothing of it, with an observation that was delivered there and never came free.
#[test]
fn a_process_that_never_heard_of_its_seat_gets_another_and_leaves_nothing_behind() {
    let mut side = Side::new(&SMALL);
    let pid = std::process::id();
    let candidate = Candidate { pid, start_time: sys::start_time(pid).unwrap(), seat: None };
    let lost = side.owner.seat_join(&candidate).unwrap();
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"x");
    side.owner.seat_connection_ended(lost.seat, lost.generation);
    let mut worker = side.attach().unwrap();
    side.owner.deliver_pending();
    let seen = observation(&mut worker);
    assert_eq!((seen.sequence(), seen.redelivered()), (sequence, true));
    worker.answer(seen, b"y").unwrap();
    assert_eq!(side.action().0, sequence);
    side.send(sequence);
    side.settle();
    assert_eq!(side.owner.free_slots(), SMALL.observation_slots);
}

/// The connections that have ended are told, and nothing else: every process here lives on.
fn hang_up(side: &mut Side) {
    until(|| side.connections.iter().any(crate::attach::Connection::has_ended).then_some(()));
    side.connections.retain(|connection| {
        let ended = connection.has_ended();
        if ended {
            side.owner.seat_connection_ended(connection.seat(), connection.generation());
        }
        !ended
    });
    side.settle();
}

/// A process that closed its worker and made another had used up both seats with the second one, until it ended.
#[test]
fn a_process_attaches_as_often_as_it_closes() {
    let mut side = Side::new(&SMALL);
    let mut again = None;
    for round in 0..10 {
        let mut worker = side.attach().unwrap_or_else(|error| panic!("round {round}: {error}"));
        side.owner.deliver_pending();
        let (answered, kept) = (side.observe(1, b"a"), side.observe(1, b"b"));
        if let Some(again) = again.replace(kept) {
            let seen = observation(&mut worker);
            assert_eq!((seen.sequence(), seen.redelivered()), (again, true), "round {round}");
            worker.answer(seen, b"late").unwrap();
            assert_eq!(side.action().0, again);
            side.send(again);
        }
        let seen = observation(&mut worker);
        worker.answer(seen, b"a").unwrap();
        drop(observation(&mut worker));
        drop(worker);
        hang_up(&mut side);
        assert_eq!(side.owner.live_seat().map(|seat| seat.seat), None);
        side.send(answered);
        assert_eq!(free(&side), 3, "round {round}: all but what nobody answered");
        let held = side.owner.oldest_unanswered().unwrap();
        assert_eq!((held.sequence, held.deaths), (kept, 1), "it left without answering it");
    }
    assert_eq!(side.owner.stats().counter(Counter::DroppedActions), 0);
}

#[test]
fn a_view_that_outlives_its_worker_keeps_its_slot_and_the_seat() {
    let (mut side, mut worker) = pair();
    let sequence = side.observe(1, b"looked at");
    let view = observation(&mut worker);
    let reservation = worker.reserve(8).unwrap();
    drop(worker);
    hang_up(&mut side);
    side.owner.answered(sequence);
    assert_eq!(side.owner.lent_after_answer(), Lent { to_live: 0, to_gone: 1 });
    // The other seat is there for the next one, and the slot is nobody's yet.
    let second = side.attach().unwrap();
    assert_eq!((side.owner.live_seat().unwrap().seat, free(&side)), (1, 3));
    drop(second);
    hang_up(&mut side);
    assert_eq!(view.payload(), b"looked at");
    drop(view);
    side.settle();
    assert_eq!(free(&side), 4, "given back by a worker that is closed");
    assert!(!side.owner.has_something() && side.owner.arm(), "what is left keeps nobody awake");
    let second = side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, 1, "the reservation may still be written");
    drop(second);
    drop(reservation);
    assert!(sys::poll_in(bell(&side, 0), Duration::from_secs(10)).unwrap(), "the last word rings");
    side.owner.disarm();
    hang_up(&mut side);
    side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, 0);
}

#[test]
fn who_closed_while_there_was_no_sidecar_has_left_for_the_next_one() {
    for late in [false, true] {
        let (mut side, mut worker) = pair();
        side.owner.journal().note_byte(clock::now());
        let sequence = side.observe(1, b"x");
        let seen = observation(&mut worker);
        let mut worker = Some((worker, seen));
        let directory = Arc::clone(&side.directory);
        drop(side);
        if !late {
            worker.take();
        }
        let mut side = Side::at(directory, &SMALL, clock::now());
        drop(worker);
        side.settle();
        assert!(side.owner.live_seat().is_none() && side.owner.must_poll().is_none(), "late: {late}");
        let mut next = side.attach().unwrap();
        assert_eq!(side.owner.live_seat().unwrap().seat, 0, "late: {late}");
        side.owner.deliver_pending();
        assert_eq!(observation(&mut next).sequence(), sequence);
    }
}

/// A worker started a moment too early was refused for good.
#[test]
fn a_successor_that_comes_before_anybody_knows_of_the_death_is_let_in() {
    let Some(parts) = Parts::of(|_, region| take_one_and_hang(region)) else { return };
    let mut side = Side::new(&SMALL);
    let mut first = parts.start("first", &side.path);
    until(|| side.serve().then_some(()));
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"x");
    until(|| side.poll().unwrap());
    first.kill().unwrap();
    first.wait().unwrap();
    let mut second = side.attach().unwrap();
    side.owner.deliver_pending();
    side.settle();
    let seen = observation(&mut second);
    assert_eq!((seen.sequence(), seen.redelivered()), (sequence, true));
    side.watch();
    assert!(side.owner.live_seat().is_some(), "what is told late changes nothing");

    // One that closes while the next one asks.
    let path = side.path.clone();
    let asking = std::thread::spawn(move || Worker::attach(&path, &AttachOptions::default()));
    for _ in 0..3 {
        until(|| (!side.serve()).then_some(()));
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(!asking.is_finished());
    drop((second, seen));
    until(|| {
        side.serve();
        asking.is_finished().then_some(())
    });
    asking.join().unwrap().unwrap();
}

#[test]
fn a_second_worker_waits_a_moment_and_is_told_who_is_there() {
    let (mut side, _worker) = pair();
    let path = side.path.clone();
    let started = clock::now();
    let asking = std::thread::spawn(move || Worker::attach(&path, &AttachOptions::default()).unwrap_err());
    until(|| {
        side.serve();
        asking.is_finished().then_some(())
    });
    let waited = clock::now().since(started);
    assert!(waited >= Duration::from_secs(2) && waited < AttachOptions::default().timeout, "{waited:?}");
    let error = asking.join().unwrap().to_string();
    let pid = std::process::id();
    assert!(error.contains(&format!("the worker with pid {pid} is attached; stop it first")), "{error}");
    // Whoever can't be seen may be dying: that takes as long as it takes.
    assert_eq!(SeatRefused::Live { pid: 0 }.reason(), (crate::attach::Refusal::NotYet, 0));
    let text = SeatRefused::NotYet { pids: [0, 7] }.to_string();
    assert_eq!(
        text,
        "a worker of another pid namespace and the worker with pid 7 were detached and still run; end them first"
    );
}
