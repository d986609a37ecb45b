//! Seats change hands while observations are published: a worker ends, its process is proved gone, another one attaches,
//! and each observation is answered once. Sidecar and workers are the real ones ([`crate::stage`]).

use sidecar::frame_loop::Command;
use sidecar_core::agent::Outcome;
use sidecar_shm::worker::{Event, Worker};
use tokio::sync::oneshot;

use crate::gateway::{Until, observation, ping};
use crate::handoff::{alone, heard};
use crate::stage::{Cast, Stage, answers, candidate, thread};
use crate::support::{Bite, InSoak, explore_house, must_fail_in_house};

/// When the sidecar is told that the first worker's process is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// When it is.
    AfterItsEnd,
    /// On the mere hint of it.
    OnHint,
}

/// How far the first worker gets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It dies with the observation in its hands.
    Holding,
    /// It answers it.
    Answering,
}

fn first(mut worker: Worker, ends: Ends) {
    loop {
        let event = worker.next(None).expect("the sidecar says nothing wrong");
        let Event::Observation(observation) = event else { continue };
        if ends == Ends::Holding {
            // As by SIGKILL: nothing is given back.
            worker.vanish();
            return drop(observation);
        }
        let action = [observation.payload(), b"!"].concat();
        return worker.answer(observation, &action).expect("there is room");
    }
}

/// The first worker ends as told. Meanwhile the gateway asks once more, and another worker takes the seat.
fn changed(told: Told, ends: Ends) {
    let stage = Stage::new(Until::Action(2), ping(), move |cast| {
        let Cast { commands, outside, worker, seat, .. } = cast;
        let one = thread(move || first(worker, ends));
        let control = thread(move || {
            outside.say(&observation("one", &[2]));
            let gone = if told == Told::AfterItsEnd {
                one.join().expect("it ends");
                None
            } else {
                Some(one)
            };
            let (seat, generation) = seat;
            commands.send(Command::ConnectionEnded { seat, generation });
            commands.send(Command::ProvedDead { seat, generation });
            let (reply, answer) = oneshot::channel();
            outside.asks(answer);
            commands.send(Command::Join { candidate: candidate(1), reply });
            outside.keep(answers(outside.attach(outside.await_grant()), 2));
            if let Some(one) = gone {
                one.join().expect("it ends");
            }
        });
        vec![control]
    });
    let (outcome, bridge, record) = stage.play();
    assert_eq!(heard(&record.actions), [("one", 1), ("one", 2)]);
    assert_eq!(outcome, Outcome::Drained);
    assert_eq!(bridge.owner().unanswered(), 0);
    bridge.remove_region();
}

#[test]
fn a_successor_answers_what_a_dead_worker_held_and_what_comes_meanwhile() {
    explore_house(2, InSoak::Switches(3), alone(|| changed(Told::AfterItsEnd, Ends::Holding)));
}

#[test]
fn a_dead_workers_last_answer_is_taken_before_its_successor_is_asked() {
    explore_house(2, InSoak::Switches(3), alone(|| changed(Told::AfterItsEnd, Ends::Answering)));
}

#[test]
fn teeth_a_worker_that_is_buried_on_a_hint() {
    must_fail_in_house(Bite::Dropped, alone(|| changed(Told::OnHint, Ends::Answering)));
}
