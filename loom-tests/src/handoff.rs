//! The handoff of sessions: what a worker answers while the connection is lost and found again, while its session is
//! replaced by another, and while the control thread ends the loop. Sidecar and worker are the real ones ([`crate::stage`]).

use core::time::Duration;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use sidecar::bridge::Bridge;
use sidecar::frame_loop::Command;
use sidecar_core::agent::{Outcome, Shutdown};
use sidecar_shm::attach::Candidate;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::Found;
use sidecar_shm::simulation::{self, Attach};
use sidecar_shm::stats::{Counter, Stats};
use sidecar_shm::sync::orders::{Weakness, weaken};
use sidecar_shm::worker::{Event, Worker};

use crate::gateway::{Heard, Until, opened, ping};
use crate::stage::{Cast, Stage, answers, candidate, dialled, open_region, region_path, thread};
use crate::support::{Bite, InSoak, explore_house, must_fail_in_house};

/// Plays a model in a thread with room for it.
pub(crate) fn alone(play: impl Fn() + Send + Sync + Copy + 'static) -> impl Fn() + Send + Sync + 'static {
    move || thread(play).join().expect("it ends in order")
}

/// The same with one order of the real code weakened.
pub(crate) fn weak(
    weakness: Weakness,
    play: impl Fn() + Send + Sync + Copy + 'static,
) -> impl Fn() + Send + Sync + 'static {
    let play = alone(play);
    move || {
        weaken(Some(weakness));
        play();
    }
}

/// The answers that arrived, by session and first byte. All of them are what the worker wrote.
pub(crate) fn heard(actions: &[Heard]) -> Vec<(&str, u8)> {
    for action in actions {
        assert_eq!(action.payload[1..], *b"!", "an answer is what the worker wrote");
        assert!(!action.late, "an answer for a session that was replaced: {action:?}");
    }
    actions.iter().map(|action| (action.session.as_str(), action.payload[0])).collect()
}

fn dropped(bridge: &Bridge) -> u64 {
    let snapshot = Stats::open_read_only(bridge.owner().path()).expect("the region is there");
    snapshot.counter(Counter::DroppedActions)
}

/// The connection is cut while the worker answers; the answer leaves once, before the cut or after the redial.
fn redial() {
    let stage = Stage::new(Until::Action(1), ping(), |cast| {
        let Cast { commands, outside, worker, .. } = cast;
        let network = Arc::clone(&outside);
        let control = thread(move || {
            network.cut();
            // Nobody dials again if the job was over first.
            if let Some(dial) = network.await_dial() {
                commands.send(dialled(dial));
            }
        });
        vec![thread(move || outside.keep(answers(worker, 1))), control]
    });
    let (outcome, bridge, record) = stage.play();
    assert_eq!(heard(&record.actions), [("one", 1)]);
    assert_eq!(outcome, Outcome::Drained);
    assert_eq!(bridge.owner().unanswered(), 0);
    bridge.remove_region();
}

/// Another session is opened while the worker answers for the first: that answer leaves before, or never.
fn replaced() {
    let stage = Stage::new(Until::Action(2), ping(), |cast| {
        let Cast { outside, worker, .. } = cast;
        let network = Arc::clone(&outside);
        let gateway = thread(move || network.replace(&opened("two", &[2])));
        vec![thread(move || outside.keep(answers(worker, 2))), gateway]
    });
    let (outcome, bridge, record) = stage.play();
    let answers = heard(&record.actions);
    assert_eq!(answers.iter().filter(|answer| **answer == ("two", 2)).count(), 1, "{answers:?}");
    assert!(answers[..answers.len() - 1].iter().all(|answer| *answer == ("one", 1)), "{answers:?}");
    assert_eq!(answers.len() as u64 - 1 + dropped(&bridge), 1, "an answer is sent, or counted as dropped");
    assert_eq!(outcome, Outcome::Drained);
    assert_eq!(bridge.owner().unanswered(), 0);
    bridge.remove_region();
}

/// The connection is cut while the worker answers, and on the next one another session is open.
fn replaced_over_a_redial() {
    let stage = Stage::new(Until::Action(2), opened("two", &[2]), |cast| {
        let Cast { commands, outside, worker, .. } = cast;
        let network = Arc::clone(&outside);
        let control = thread(move || {
            network.cut();
            if let Some(dial) = network.await_dial() {
                commands.send(dialled(dial));
            }
        });
        vec![thread(move || outside.keep(answers(worker, 2))), control]
    });
    let (outcome, bridge, record) = stage.play();
    let answers = heard(&record.actions);
    assert_eq!(answers.last(), Some(&("two", 2)));
    for action in &record.actions {
        assert_eq!(action.session == "one", action.connection == 1, "{action:?}");
    }
    assert!(answers.len() <= 2, "{answers:?}");
    assert_eq!(outcome, Outcome::Drained);
    assert_eq!(bridge.owner().unanswered(), 0);
    bridge.remove_region();
}

/// How the control thread's word reaches the frame loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    CommandThenBell,
    BellThenCommand,
}

/// The control thread ends the loop while the worker answers and leaves: the loop ends, and the answer leaves once or
/// never.
fn stopped(order: Order) {
    let stage = Stage::new(Until::Told, ping(), move |cast| {
        let Cast { commands, queue, outside, worker, .. } = cast;
        let control = thread(move || match order {
            Order::CommandThenBell => commands.send(Command::Shutdown(Shutdown::Close)),
            Order::BellThenCommand => {
                outside.ring();
                // The frame loop is there until it is told to end.
                queue.send(Command::Shutdown(Shutdown::Close)).expect("somebody reads");
            }
        });
        vec![thread(move || drop(answers(worker, 1))), control]
    });
    let (outcome, bridge, record) = stage.play();
    assert!(heard(&record.actions).len() <= 1);
    assert_eq!(outcome, Outcome::Closed);
    bridge.remove_region();
    assert!(!region_path().exists(), "an orderly end leaves nothing behind");
}

/// The control thread has the loop leave for a successor while the worker answers: the answer was sent, or the successor
/// finds it.
fn succeeded() {
    let stage = Stage::new(Until::Told, ping(), move |cast| {
        let Cast { commands, outside, worker, .. } = cast;
        let control = thread(move || commands.send(Command::Shutdown(Shutdown::Leave)));
        vec![thread(move || outside.keep(answers(worker, 1))), control]
    });
    // The worker goes on, and has the region mapped.
    let outside = Arc::clone(&stage.outside);
    let (outcome, bridge, record) = stage.play();
    assert_eq!(outcome, Outcome::Left);
    let sent = heard(&record.actions).len();
    drop(bridge);
    let opened = open_region();
    let Found::TakenOver { kept, .. } = &opened.found else { panic!("{:?}", opened.found) };
    let mut owner = opened.owner;
    assert_eq!(kept.len() + sent, 1, "an observation is answered, or kept");
    let mut found = Vec::new();
    while let Some(said) = owner.poll_worker().expect("the worker wrote no nonsense") {
        if let FromWorker::Action { sequence, length, .. } = said {
            found.push((sequence, length));
            owner.finish_action();
        }
    }
    // What the dead sidecar had taken out of the ring and not sent died with it: the worker is asked again.
    let mut worker = outside.kept();
    let asked = asked_again(&mut owner, &mut worker);
    assert_eq!(sent + found.len() + asked, 1, "sent {sent}, found {found:?}, asked again {asked}");
    owner.close();
}

/// The survivor attaches to the successor; how many observations it is asked again.
fn asked_again(owner: &mut Owner, worker: &mut Worker) -> usize {
    let seat = Some(worker.seat_claim());
    let grant = owner.seat_join(&Candidate { seat, ..candidate(0) }).expect("its seat is still its own");
    assert!(grant.resumed);
    let (_sidecars, theirs) = UnixStream::pair().expect("two sockets");
    simulation::set_attach(Some(Attach::Granted(grant, theirs.into())));
    let mut asked = 0;
    // It notices the successor, attaches, and looks once more.
    for _ in 0..3 {
        let said = owner.poll_worker().expect("the worker wrote no nonsense");
        assert!(
            !matches!(said, Some(FromWorker::Action { .. })),
            "an action that was there before: {said:?}"
        );
        if let Event::Observation(observation) =
            worker.next(Some(Duration::ZERO)).expect("a sidecar is there")
        {
            assert!(observation.redelivered());
            asked += 1;
        }
    }
    asked
}

#[test]
fn an_answer_leaves_once_whenever_the_connection_is_cut() {
    explore_house(2, InSoak::Switches(3), alone(redial));
}

#[test]
fn an_answer_leaves_before_its_session_is_replaced_or_never() {
    explore_house(2, InSoak::Switches(2), alone(replaced));
}

#[test]
fn an_answer_for_a_session_that_is_replaced_over_a_redial_is_dropped() {
    explore_house(1, InSoak::Switches(2), alone(replaced_over_a_redial));
}

#[test]
fn the_control_thread_ends_the_loop_while_a_worker_answers() {
    explore_house(2, InSoak::Switches(3), alone(|| stopped(Order::CommandThenBell)));
}

#[test]
fn an_answer_is_sent_or_found_by_the_successor() {
    explore_house(3, InSoak::Whole, alone(succeeded));
}

#[test]
fn teeth_a_bell_before_the_command() {
    must_fail_in_house(Bite::LostWakeUp, alone(|| stopped(Order::BellThenCommand)));
}

#[test]
fn teeth_no_fence_between_an_answer_and_the_look_for_a_sleeper() {
    must_fail_in_house(Bite::LostWakeUp, weak(Weakness::PostFence, redial));
}

#[test]
fn teeth_no_fence_between_the_loops_announcement_and_its_last_look() {
    must_fail_in_house(Bite::LostWakeUp, weak(Weakness::WaitFence, redial));
}

#[test]
fn teeth_a_relaxed_publication() {
    must_fail_in_house(Bite::Race, weak(Weakness::Publish, replaced));
}
