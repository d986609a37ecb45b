//! After a loss: how soon, how long, with which token, and what is kept until the new connection has proved itself.

use sidecar_core::agent::{
    DialFailure, Disconnect, End, Event, HangUp, Outcome, Refused, Resume, ResumeAction,
};
use sidecar_core::tunnel::{Epoch, SessionId};

use crate::rig::{Rig, close, config, data, millis, ping, secs, text};

/// Lets every attempt fail until the agent gives up; returns how long that took.
fn until_given_up(rig: &mut Rig) -> core::time::Duration {
    let start = rig.now;
    for _ in 0..10_000 {
        rig.dial_fails(DialFailure::Unreachable);
        if rig.outcome().is_some() {
            return rig.now.since(start);
        }
        rig.pass(millis(20));
    }
    panic!("never given up");
}

#[test]
fn after_a_reset_the_budget_counts_from_the_last_byte() {
    let mut rig = Rig::in_session();
    rig.play(&ping(b""));
    rig.pass(secs(10));
    rig.end(End::Reset);
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    assert_eq!(rig.dials(), [(1, false)], "the first retry goes at once");
    let last = Disconnect::DialFailed(DialFailure::Unreachable);
    let lasted = until_given_up(&mut rig);
    assert!(lasted >= secs(65) && lasted < millis(65_100), "{lasted:?}");
    assert_eq!(rig.outcome(), Some(Outcome::RedialBudget { last }));
}

#[test]
fn after_a_fin_or_close_it_is_the_gateways_window() {
    for fin in [true, false] {
        let mut rig = Rig::in_session();
        rig.pass(secs(10));
        if fin {
            rig.end(End::Eof)
        } else {
            rig.play(&close(1001, ""))
        }
        let lasted = until_given_up(&mut rig);
        assert!(lasted >= secs(33) && lasted < millis(33_100), "{lasted:?}");
    }
}

#[test]
fn a_silent_connection_leaves_the_rest_of_the_window() {
    let mut rig = Rig::in_session();
    rig.pass(secs(40));
    assert_eq!(rig.causes(), [Disconnect::Silent]);
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    let lasted = until_given_up(&mut rig);
    assert!(lasted >= secs(35) && lasted < millis(35_100), "{lasted:?}");
}

#[test]
fn a_loss_that_is_noticed_late_still_gets_one_attempt() {
    let mut rig = Rig::in_session();
    // The machine slept.
    rig.now = rig.now + secs(3600);
    rig.pump();
    assert_eq!(rig.dials(), [(1, false)]);
    rig.dial_fails(DialFailure::Timeout);
    assert!(matches!(rig.outcome(), Some(Outcome::RedialBudget { .. })));
}

#[test]
fn every_useful_frame_makes_the_next_cut_a_first_one() {
    let mut rig = Rig::in_session();
    for round in 0..50 {
        rig.pass(secs(30));
        rig.play(&ping(b""));
        rig.end(if round % 2 == 0 { End::Eof } else { End::Reset });
        assert_eq!(rig.dials(), [(1, false)], "round {round}");
        rig.dial_fails(DialFailure::Refused);
        rig.pass(millis(250));
        rig.upgrade();
        rig.events.clear();
        rig.play(&data("s", b"on"));
    }
    assert_eq!(rig.seen.len(), 50);
}

#[test]
fn a_101_alone_is_not_useful_until_it_has_stayed() {
    // Closed at once, again and again: the gateway still holds the old connection, or the window is over.
    let mut rig = Rig::in_session();
    rig.end(End::Eof);
    let start = rig.now;
    for _ in 0..10_000 {
        rig.upgrade_with(&close(1008, "duplicate"));
        if rig.outcome().is_some() {
            break;
        }
        rig.pass(secs(1).min(millis(500)));
        while rig.dials().len() == rig.causes().len() - 1 {
            rig.pass(millis(100));
        }
    }
    assert!(rig.causes()[1..].iter().all(|cause| *cause == Disconnect::Capacity));
    assert_eq!(rig.outcome(), Some(Outcome::RedialBudget { last: Disconnect::Capacity }));
    assert!(rig.now.since(start) >= secs(33) && rig.now.since(start) < secs(40));
    // One that stays without a frame counts.
    let mut rig = Rig::in_session();
    rig.end(End::Eof);
    rig.pass(secs(1));
    rig.upgrade();
    rig.pass(secs(36));
    rig.end(End::Eof);
    assert_eq!(rig.outcome(), None);
}

#[test]
fn retries_have_full_jitter_under_a_doubling_bound() {
    let mut firsts = Vec::new();
    for round in 0..200 {
        let mut rig = Rig::in_session();
        rig.pass(millis(3000 + round));
        rig.end(End::Reset);
        let mut delays = Vec::new();
        for _ in 0..7 {
            rig.dial_fails(DialFailure::Refused);
            let due = rig.agent.poll_timeout().unwrap();
            delays.push(due.since(rig.now));
            rig.pass(due.since(rig.now));
        }
        for (delay, bound) in delays.iter().zip([250, 500, 1000, 2000, 4000, 5000, 5000]) {
            assert!(*delay < millis(bound), "{delays:?}");
        }
        firsts.push(delays[3]);
    }
    // The same seed, so one schedule; over agents with other seeds the jitter differs.
    firsts.dedup();
    assert_eq!(firsts.len(), 1);
    let delay_of = |seed: u8| {
        let mut rig = Rig::new();
        rig.agent = sidecar_core::agent::Agent::new(config(), [seed; 32], rig.now);
        rig.dial_fails(DialFailure::Refused);
        rig.dial_fails(DialFailure::Refused);
        rig.agent.poll_timeout().unwrap().since(rig.now)
    };
    let delays: Vec<_> = (0..100).map(delay_of).collect();
    assert!(
        delays.iter().any(|delay| *delay < millis(50)) && delays.iter().any(|delay| *delay > millis(200))
    );
}

#[test]
fn a_gateway_that_cuts_each_connection_is_not_hammered() {
    let mut rig = Rig::in_session();
    let start = rig.now;
    for _ in 0..60 {
        rig.end(End::Reset);
        while rig.dials().is_empty() {
            rig.pass(millis(10));
        }
        rig.events.clear();
        rig.upgrade_with(&ping(b""));
        rig.events.clear();
    }
    assert!(rig.now.since(start) > secs(30), "{:?}", rig.now.since(start));
}

#[test]
fn a_401_on_a_redial_rereads_the_token_once() {
    let mut rig = Rig::in_session();
    rig.end(End::Eof);
    rig.refuse(401);
    rig.pass(secs(1));
    assert_eq!(rig.dials(), [(1, false), (2, true)]);
    assert_eq!(rig.outcome(), None);
    rig.refuse(401);
    assert_eq!(rig.outcome(), Some(Outcome::TokenRefused { status: 401, first: false }));
}

#[test]
fn a_reread_token_that_works_is_forgotten_with_the_outage() {
    let mut rig = Rig::in_session();
    for _ in 0..3 {
        rig.events.clear();
        rig.end(End::Eof);
        rig.refuse(401);
        rig.pass(secs(1));
        assert_eq!(rig.dials(), [(1, false), (2, true)]);
        rig.upgrade_with(&ping(b""));
        rig.pass(secs(5));
        assert!(rig.agent.is_open());
    }
}

#[test]
fn kept_answers_wait_for_the_first_frame_after_a_redial() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.end(End::Reset);
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Down));
    rig.upgrade();
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Held));
    assert_eq!(rig.begin(Epoch(1), 1, b"early"), Err(Refused::Held));
    rig.play(&ping(b""));
    assert_eq!(rig.answer(Epoch(1), 1, b"answer"), Ok(()));
    assert_eq!(rig.sent.last().unwrap().payload, crate::rig::message("s", b"answer"));
}

#[test]
fn kept_answers_leave_after_a_second_without_a_close() {
    let mut rig = Rig::in_session();
    rig.end(End::Reset);
    rig.upgrade();
    rig.pass(millis(999));
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Held));
    rig.pass(millis(1));
    assert_eq!(rig.agent.may_send(Epoch(1)), Ok(()));
}

#[test]
fn a_connection_that_is_closed_at_once_swallows_no_answer() {
    let mut rig = Rig::in_session();
    rig.end(End::Reset);
    rig.upgrade();
    rig.pass(millis(300));
    // A caller with an answer in its hands asks now, and the close is still on its way.
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Held));
    rig.play(&close(1008, "duplicate"));
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Down));
    assert_eq!(rig.outcome(), None);
}

#[test]
fn on_the_first_connection_nothing_is_held() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.agent.worker_ready(rig.now);
    rig.pump();
    assert_eq!(rig.sent[0].text(), r#"{"type":"ready"}"#);
}

fn resume() -> Resume {
    Resume {
        connected_once: true,
        last_byte: Some(sidecar_core::time::Instant::from_nanos(990_000_000_000)),
        warmup_seen: true,
        ready_sent: true,
        ready_heard: true,
        drain_seen: false,
        session: Some(SessionId::new("s").unwrap()),
        closed: None,
        epoch: Epoch(4),
        next_sequence: 17,
        last_action: None,
    }
}

#[test]
fn a_successor_goes_on_where_the_journal_ends() {
    let mut rig = Rig::resumed(config(), resume());
    assert!(rig.agent.is_warm() && rig.agent.connected_once());
    assert_eq!(rig.agent.session().unwrap().1, Epoch(4));
    rig.upgrade();
    assert_eq!(rig.flow()[1], &Event::Upgraded { attempt: 1, resumed: true });
    assert_eq!(rig.agent.may_send(Epoch(4)), Err(Refused::Held));
    rig.play(&data("s", b"next"));
    assert_eq!((rig.seen[0].epoch, rig.seen[0].sequence), (Epoch(4), 17));
    rig.play(&text(r#"{"type":"session_open","session_id":"t"}"#));
    assert_eq!(rig.agent.session().unwrap().1, Epoch(5));
}

#[test]
fn a_successor_has_what_is_left_of_the_budget() {
    let mut rig = Rig::resumed(config(), resume());
    // The predecessor's last byte is 10 s ago.
    let lasted = until_given_up(&mut rig);
    assert!(lasted >= secs(65) && lasted < millis(65_100), "{lasted:?}");
    assert!(matches!(rig.outcome(), Some(Outcome::RedialBudget { .. })));
}

#[test]
fn a_successor_meets_an_instant_close_and_a_401_as_on_a_redial() {
    let mut rig = Rig::resumed(config(), resume());
    rig.upgrade_with(&close(1008, "duplicate"));
    assert_eq!(rig.outcome(), None);
    rig.pass(secs(1));
    rig.refuse(401);
    assert_eq!(rig.outcome(), None);
    rig.pass(secs(3));
    assert!(rig.dials().last().unwrap().1);
}

/// The predecessor had closed the session, and died before the gateway heard: it would wait for ever.
#[test]
fn a_successor_closes_again_what_its_predecessor_closed() {
    let closed = Resume { session: None, closed: resume().session, ..resume() };
    let mut rig = Rig::resumed(config(), closed);
    rig.upgrade();
    rig.play(&data("s", b"restored"));
    let json = rig.sent.last().unwrap().text();
    assert!(json.contains(r#""session_close","session_id":"s""#), "{json}");
    rig.play(&text(r#"{"type":"session_open","session_id":"t"}"#));
    rig.cut_and_redial();
    rig.pass(secs(1));
    assert!(rig.sent.is_empty(), "the gateway has gone on");
}

/// The predecessor died with its last action, or the next observation, on its way: a gateway in lockstep waits for ever.
#[test]
fn a_successor_sends_its_predecessors_last_action_once_more() {
    let last = |resent, longest_wait| Some(ResumeAction { sequence: 16, resent, longest_wait });
    for (last_action, due) in [
        (last(false, secs(0)), Some(60)),
        (last(false, secs(20)), Some(100)),
        (last(true, secs(0)), None),
        (None, None),
    ] {
        let mut rig = Rig::resumed(config(), Resume { last_action, ..resume() });
        rig.upgrade();
        let asked = |rig: &Rig| {
            let unfreeze =
                |event: &&Event| matches!(event, Event::Unfreeze { epoch: Epoch(4), sequence: 16 });
            rig.events.iter().filter(unfreeze).count()
        };
        for second in 1..150 {
            rig.pass(secs(1));
            rig.play(&ping(b""));
            assert_eq!(asked(&rig), usize::from(due.is_some_and(|due| second >= due)), "{last_action:?}");
        }
    }
    let mut rig = Rig::resumed(config(), Resume { last_action: last(false, secs(0)), ..resume() });
    rig.upgrade();
    rig.play(&data("s", b"next"));
    rig.pass(secs(30));
    rig.play(&ping(b""));
    rig.pass(secs(38));
    assert!(!rig.events.iter().any(|event| matches!(event, Event::Unfreeze { .. })), "it had arrived");
}

#[test]
fn a_successor_after_a_drain_never_dials() {
    let mut rig = Rig::resumed(config(), Resume { drain_seen: true, ..resume() });
    rig.pump();
    assert_eq!(rig.flow(), [&Event::Finished(Outcome::Drained)]);
    assert_eq!(rig.agent.poll_timeout(), None);
}

/// The predecessor died with `ready` on its way: a gateway that waits for it would wait for ever.
#[test]
fn a_successor_says_ready_once_more_unless_it_was_seen_to_arrive() {
    let doubt = Resume { ready_heard: false, session: None, ..resume() };
    for (resume, again) in [
        (doubt.clone(), true),
        (Resume { ready_heard: true, ..doubt.clone() }, false),
        (Resume { session: resume().session, ..doubt }, false),
    ] {
        let mut rig = Rig::resumed(config(), resume);
        rig.upgrade();
        rig.pass(secs(1));
        let said = |rig: &Rig| rig.sent.iter().filter(|sent| sent.text() == r#"{"type":"ready"}"#).count();
        assert_eq!(said(&rig), usize::from(again));
        rig.play(&text(r#"{"type":"queued","reason":"no_gpu_available"}"#));
        rig.cut_and_redial();
        rig.pass(secs(1));
        assert_eq!(said(&rig), 0, "now it was seen to arrive");
    }
}

#[test]
fn a_successor_before_ready_warms_up_again() {
    let mut rig = Rig::resumed(config(), Resume { ready_sent: false, session: None, ..resume() });
    rig.pump();
    assert_eq!(rig.flow()[0], &Event::Warmup);
    rig.upgrade();
    rig.play(&ping(b""));
    rig.agent.worker_ready(rig.now);
    rig.pump();
    assert_eq!(rig.sent.last().unwrap().text(), r#"{"type":"ready"}"#);
}
