//! Drain, shutdown, leaving: each ends, in bounded time, and says what it was.

use sidecar_core::agent::{CloseBy, End, Event, HangUp, Outcome, Phase, Refused, Shutdown};
use sidecar_core::tunnel::Epoch;
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Rig, close, data, ping, secs, text};

const DRAIN: &str = r#"{"type":"drain","reason":"job over"}"#;

/// The two things that end a drained agent: a closed socket and an outcome.
fn assert_ended(rig: &Rig, how: HangUp, outcome: Outcome) {
    assert_eq!(rig.hang_ups().last(), Some(&how));
    assert_eq!(rig.events.last(), Some(&Event::Finished(outcome)));
    assert_eq!(rig.agent.poll_timeout(), None, "nothing is left to do");
    assert!(rig.dials().is_empty());
}

#[test]
fn drain_waits_for_the_answer_then_closes() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.events.clear();
    rig.play(&text(DRAIN));
    assert_eq!(rig.flow(), [&Event::Drain { reason: "job over".try_into().unwrap() }]);
    assert_eq!(rig.agent.phase(), Phase::Draining);
    rig.pass(secs(10));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    rig.agent.finish_drain(rig.now);
    rig.pump();
    let (answer, close_frame) = (&rig.sent[rig.sent.len() - 2], &rig.sent[rig.sent.len() - 1]);
    assert_eq!(answer.opcode, Opcode::Binary);
    assert_eq!(close_frame.close_code(), 1000);
    assert!(rig.hang_ups().is_empty(), "the peer closes, too");
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Closing));
    rig.play(&close(1000, ""));
    assert_ended(&rig, HangUp::Orderly, Outcome::Drained);
}

#[test]
fn an_observation_behind_our_close_is_read_past() {
    let mut rig = Rig::in_session();
    rig.play(&text(DRAIN));
    rig.agent.finish_drain(rig.now);
    rig.play(&[data("s", b"late"), data("s", &[1; 300_000]), close(1000, "")].concat());
    assert!(rig.seen.is_empty());
    assert_ended(&rig, HangUp::Orderly, Outcome::Drained);
}

#[test]
fn a_drain_that_waits_too_long_closes_anyway() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.play(&text(DRAIN));
    for _ in 0..59 {
        rig.pass(secs(1));
        rig.play(&ping(b""));
    }
    assert!(rig.sent.iter().all(|sent| sent.opcode != Opcode::Close));
    rig.pass(secs(1));
    assert_eq!(rig.sent.last().unwrap().close_code(), 1000);
    // The close handshake is bounded as well.
    rig.pass(secs(5));
    assert_ended(&rig, HangUp::Abort, Outcome::Drained);
}

#[test]
fn a_connection_lost_after_drain_is_not_dialled_again() {
    let ends: [fn(&mut Rig); 4] = [
        |rig| rig.end(End::Eof),
        |rig| rig.end(End::Reset),
        |rig| rig.play(&close(1000, "")),
        |rig| rig.pass(secs(41)),
    ];
    for end in ends {
        let mut rig = Rig::in_session();
        rig.play(&text(DRAIN));
        end(&mut rig);
        let how = *rig.hang_ups().last().unwrap();
        assert_ended(&rig, how, Outcome::Drained);
    }
}

#[test]
fn drain_twice_is_one_drain() {
    let mut rig = Rig::in_session();
    rig.play(&[text(DRAIN), text(DRAIN)].concat());
    assert_eq!(rig.flow().len(), 1);
}

#[test]
fn finish_drain_without_a_drain_does_nothing() {
    let mut rig = Rig::in_session();
    rig.agent.finish_drain(rig.now);
    rig.pump();
    assert!(rig.sent.is_empty() && rig.agent.is_open());
}

#[test]
fn shutdown_closes_the_session_and_the_socket() {
    let mut rig = Rig::in_session();
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.pump();
    assert!(matches!(rig.flow()[..], [Event::SessionClosed { by: CloseBy::Us, .. }]));
    assert!(rig.sent[0].text().contains("session_close"));
    assert_eq!(rig.sent[1].close_code(), 1000);
    // What the gateway had under way is read past.
    rig.play(&[data("s", b"late"), text(DRAIN), ping(b"x"), close(1000, "")].concat());
    assert!(rig.seen.is_empty());
    assert_eq!(rig.sent.len(), 2, "nothing follows a close frame");
    assert_ended(&rig, HangUp::Orderly, Outcome::Closed);
}

#[test]
fn shutdown_takes_an_end_of_stream_for_the_peers_close() {
    let mut rig = Rig::in_session();
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.end(End::Eof);
    assert_ended(&rig, HangUp::Orderly, Outcome::Closed);
}

#[test]
fn shutdown_is_bounded_when_the_gateway_is_mute() {
    for writable in [true, false] {
        let mut rig = Rig::in_session();
        rig.writable = writable;
        rig.agent.shutdown(rig.now, Shutdown::Close);
        rig.pass(secs(5));
        assert_ended(&rig, HangUp::Abort, Outcome::Closed);
    }
}

#[test]
fn shutdown_lets_a_half_sent_action_finish_first() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.begin(Epoch(1), 1, b"answer").unwrap();
    rig.sent.clear();
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.pump();
    assert!(rig.sent.is_empty());
    rig.agent.handle_action_sent(rig.now, Epoch(1), 1);
    rig.pump();
    assert_eq!(rig.sent.len(), 2);
    // Or the time for a close is over.
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.begin(Epoch(1), 1, b"answer").unwrap();
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.pass(secs(5));
    assert_ended(&rig, HangUp::Abort, Outcome::Closed);
}

#[test]
fn leaving_says_nothing_to_the_gateway() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.begin(Epoch(1), 1, b"answer").unwrap();
    rig.sent.clear();
    rig.events.clear();
    rig.agent.shutdown(rig.now, Shutdown::Leave);
    rig.pump();
    assert!(rig.sent.is_empty());
    // Orderly: what was begun leaves before the FIN.
    assert_eq!(rig.flow(), [&Event::HangUp(HangUp::Orderly), &Event::Finished(Outcome::Left)]);
    assert_eq!(rig.agent.poll_timeout(), None);
}

#[test]
fn an_end_while_there_is_no_tunnel_is_at_once() {
    for (how, outcome) in [(Shutdown::Close, Outcome::Closed), (Shutdown::Leave, Outcome::Left)] {
        // Waiting for a retry, dialling, upgrading.
        let mut rig = Rig::in_session();
        rig.end(End::Reset);
        rig.dial_fails(sidecar_core::agent::DialFailure::Refused);
        rig.events.clear();
        rig.agent.shutdown(rig.now, how);
        rig.pump();
        assert_eq!(rig.flow(), [&Event::Finished(outcome.clone())]);
        for upgrading in [false, true] {
            let mut rig = Rig::new();
            if upgrading {
                rig.connected();
            }
            rig.pump();
            rig.events.clear();
            rig.agent.shutdown(rig.now, how);
            rig.pump();
            assert_eq!(rig.flow(), [&Event::HangUp(HangUp::Abort), &Event::Finished(outcome.clone())]);
        }
    }
}

#[test]
fn a_failed_warm_up_ends_it_cleanly() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.events.clear();
    rig.agent.worker_failed(rig.now);
    rig.pump();
    assert_eq!(rig.sent.last().unwrap().close_code(), 1000);
    rig.play(&close(1000, ""));
    assert_ended(&rig, HangUp::Orderly, Outcome::WorkerFailed);
}

#[test]
fn shutdown_during_the_close_for_a_broken_rule_ends_it() {
    let mut rig = Rig::in_session();
    rig.writable = false;
    rig.play(&[0xff]);
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.writable = true;
    rig.pump();
    assert_eq!(rig.sent.last().unwrap().close_code(), 1002);
    assert_ended(&rig, HangUp::Orderly, Outcome::Closed);
}

#[test]
fn after_the_end_nothing_happens_whatever_is_called() {
    let mut rig = Rig::in_session();
    rig.agent.shutdown(rig.now, Shutdown::Leave);
    rig.pump();
    rig.events.clear();
    rig.sent.clear();
    rig.agent.shutdown(rig.now, Shutdown::Close);
    rig.agent.worker_failed(rig.now);
    rig.agent.worker_ready(rig.now);
    rig.agent.finish_drain(rig.now);
    rig.agent.handle_end(rig.now, End::Reset);
    rig.agent.handle_dial_failed(rig.now, sidecar_core::agent::DialFailure::Other);
    rig.agent.handle_received(rig.now, 100);
    rig.agent.handle_sent(rig.now);
    rig.agent.replace_agent(rig.now, sidecar_core::tunnel::AgentId::new("x").unwrap());
    rig.pass(secs(1000));
    assert_eq!((rig.events.len(), rig.sent.len()), (0, 0));
}
