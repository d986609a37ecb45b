//! Warm-up, sessions, and what a cut may have swallowed.

use sidecar_core::agent::{CloseBy, DialFailure, Disconnect, End, Event, HangUp, Notice, Phase, Refused};
use sidecar_core::tunnel::{AgentId, Epoch, Reason, SessionId};
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Rig, config, data, message, millis, ping, secs, text};

fn opened(session: &str, epoch: u32, resumed: bool) -> Event {
    Event::SessionOpened { session: SessionId::new(session).unwrap(), epoch: Epoch(epoch), resumed }
}

fn closed(session: &str, epoch: u32, by: CloseBy, reason: &str) -> Event {
    let reason = Reason::try_from(reason).unwrap();
    Event::SessionClosed { session: SessionId::new(session).unwrap(), epoch: Epoch(epoch), by, reason }
}

fn session_open(session: &str) -> Vec<u8> {
    text(&format!(r#"{{"type":"session_open","session_id":"{session}"}}"#))
}

#[test]
fn ready_is_sent_after_warmup_and_only_once_the_worker_says_so() {
    let mut rig = Rig::open();
    assert_eq!(rig.agent.phase(), Phase::Queued);
    rig.play(&text(r#"{"type":"warmup"}"#));
    assert_eq!(rig.flow(), [&Event::Warmup]);
    assert_eq!(rig.agent.phase(), Phase::Warmup);
    assert!(rig.sent.is_empty());
    rig.agent.worker_ready(rig.now);
    rig.pump();
    assert_eq!(rig.sent[0].text(), r#"{"type":"ready"}"#);
    assert_eq!(rig.flow(), [&Event::Warmup, &Event::ReadySent]);
    assert_eq!(rig.agent.phase(), Phase::Running);
}

#[test]
fn a_worker_that_is_ready_early_waits_for_warmup() {
    let mut rig = Rig::open();
    rig.agent.worker_ready(rig.now);
    rig.pump();
    assert!(rig.sent.is_empty(), "ready before warmup is ignored by the gateway");
    rig.play(&text(r#"{"type":"warmup"}"#));
    assert_eq!(rig.flow(), [&Event::ReadySent]);
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn a_slow_warm_up_is_warned_about_once() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    let since = rig.now;
    for _ in 0..59 {
        rig.pass(secs(1));
        rig.play(&ping(b""));
    }
    let overdue = Notice::ReadyOverdue { since };
    assert!(!rig.notices().contains(&&overdue));
    for _ in 0..100 {
        rig.pass(secs(1));
        rig.play(&ping(b""));
    }
    assert_eq!(rig.notices().iter().filter(|notice| ***notice == overdue).count(), 1);
}

#[test]
fn warmup_after_a_redial_is_answered_at_once() {
    let mut rig = Rig::in_session();
    rig.cut_and_redial();
    rig.play(&text(r#"{"type":"warmup"}"#));
    assert_eq!(rig.sent[0].text(), r#"{"type":"ready"}"#);
    assert_eq!(rig.flow(), [&Event::ReadySent]);
    assert_eq!(rig.notices(), [&Notice::WarmAlready]);
}

#[test]
fn a_second_warmup_while_the_worker_is_at_it_changes_nothing() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.cut_and_redial();
    rig.play(&text(r#"{"type":"warmup"}"#));
    assert!(rig.flow().is_empty());
    rig.agent.worker_ready(rig.now);
    rig.pump();
    assert_eq!(rig.sent.len(), 1);
}

#[test]
fn a_ready_that_a_cut_may_have_swallowed_is_sent_once_more() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.agent.worker_ready(rig.now);
    rig.pump();
    rig.cut_and_redial();
    assert!(rig.sent.is_empty(), "held like everything that is kept");
    rig.pass(secs(1));
    assert_eq!(rig.sent[0].text(), r#"{"type":"ready"}"#);
    rig.play(&text(r#"{"type":"queued","reason":"no_gpu_available"}"#));
    rig.cut_and_redial();
    rig.pass(secs(1));
    assert!(rig.sent.is_empty(), "queued showed that it arrived");
}

#[test]
fn queued_is_told_and_waited_out_for_as_long_as_it_takes() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.agent.worker_ready(rig.now);
    rig.pump();
    rig.events.clear();
    rig.sent.clear();
    rig.play(&text(r#"{"type":"queued","reason":"no_gpu_available"}"#));
    assert_eq!(rig.flow(), [&Event::Queued { reason: Reason::try_from("no_gpu_available").unwrap() }]);
    assert_eq!(rig.agent.phase(), Phase::Running);
    // Ten minutes of the gateway's pings, and of nothing else.
    for _ in 0..30 {
        rig.pass(secs(20));
        rig.play(&ping(b"q"));
    }
    assert_eq!(rig.pongs().len(), 30);
    rig.play(&session_open("s"));
    assert_eq!(rig.flow()[1..], [&opened("s", 1, false)]);
}

#[test]
fn a_ready_that_came_about_while_down_is_sent_after_the_redial() {
    let mut rig = Rig::open();
    rig.play(&text(r#"{"type":"warmup"}"#));
    rig.end(End::Reset);
    rig.agent.worker_ready(rig.now);
    rig.upgrade_with(&ping(b""));
    assert!(rig.sent.iter().any(|sent| sent.opcode == Opcode::Text && sent.text() == r#"{"type":"ready"}"#));
}

#[test]
fn an_empty_session_id_is_the_warm_up_round_trip() {
    let mut rig = Rig::open();
    rig.play(&data("", b""));
    let seen = rig.seen[0].clone();
    assert_eq!((seen.epoch, seen.sequence, seen.payload.len()), (Epoch(0), 1, 0));
    rig.answer(Epoch(0), 1, b"noop").unwrap();
    assert_eq!(rig.sent[0].payload, message("", b"noop"));
}

#[test]
fn an_answer_goes_out_under_its_session() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    for payload in [&b""[..], b"x", &[7; 70_000]] {
        rig.answer(Epoch(1), 1, payload).unwrap();
        let sent = rig.sent.last().unwrap();
        assert_eq!((sent.opcode, &sent.payload), (Opcode::Binary, &message("s", payload)));
    }
}

#[test]
fn mask_keys_differ_from_frame_to_frame() {
    let mut rig = Rig::in_session();
    let mut head = [0; sidecar_core::agent::MAX_HEAD];
    let mut keys: Vec<[u8; 4]> = (1..100)
        .map(|sequence| {
            let begun = rig.agent.begin_action(rig.now, Epoch(1), sequence, 1, &mut head).unwrap();
            rig.agent.handle_action_sent(rig.now, Epoch(1), sequence);
            begun.mask
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert!(keys.len() > 95);
}

#[test]
fn sessions_follow_each_other_under_new_epochs() {
    let mut rig = Rig::in_session();
    rig.play(&text(r#"{"type":"session_close","session_id":"s","reason":"case over"}"#));
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Gone));
    rig.play(&session_open("s"));
    let first = closed("s", 1, CloseBy::Gateway, "case over");
    assert_eq!(rig.flow(), [&first, &opened("s", 2, false)]);
    assert_eq!(rig.agent.may_send(Epoch(1)), Err(Refused::Gone));
    assert_eq!(rig.agent.may_send(Epoch(2)), Ok(()));
    assert!(rig.sent.is_empty(), "a close is not echoed");
}

#[test]
fn the_open_session_opened_again_is_resumed() {
    let mut rig = Rig::in_session();
    rig.cut_and_redial();
    rig.play(&session_open("s"));
    assert_eq!(rig.flow(), [&opened("s", 1, true)]);
}

#[test]
fn another_session_replaces_the_open_one() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.events.clear();
    rig.play(&session_open("t"));
    assert_eq!(rig.flow(), [&closed("s", 1, CloseBy::Replaced, ""), &opened("t", 2, false)]);
    assert_eq!(rig.answer(Epoch(1), 1, b"late"), Err(Refused::Gone));
    rig.play(&data("s", b"for the old one"));
    assert!(matches!(rig.notices()[..], [Notice::DroppedFrame(_)]));
}

#[test]
fn control_frames_that_mean_nothing_here_are_ignored() {
    let mut rig = Rig::in_session();
    for json in [
        r#"{"type":"evaluating","session_id":"s","extra":{"a":[1,2,{"b":null}]}}"#,
        r#"{"type":"ready"}"#,
        r#"{"type":"session_close","session_id":"t"}"#,
        r#"{"type":"session_open"}"#,
        r#"{"type":"session_open","session_id":""}"#,
        "[1]",
        "nonsense",
        "",
    ] {
        rig.play(&text(json));
    }
    assert!(rig.flow().is_empty(), "{:?}", rig.flow());
    let kinds: Vec<String> = rig.notices().iter().map(ToString::to_string).collect();
    assert!(
        kinds[0].contains("evaluating") && kinds[1].contains("ready") && kinds[2].contains("session_close")
    );
    assert!(rig.notices()[3..].iter().all(|notice| **notice == Notice::MalformedControl), "{kinds:?}");
    assert_eq!(kinds.len(), 8);
    assert!(rig.agent.is_open() && rig.agent.session().is_some());
}

#[test]
fn we_close_a_session() {
    let mut rig = Rig::in_session();
    rig.agent.close_session(rig.now, Epoch(9), "not this one");
    rig.agent.close_session(rig.now, Epoch(1), "the worker \"failed\"");
    rig.pump();
    assert_eq!(rig.flow(), [&closed("s", 1, CloseBy::Us, "the worker \"failed\"")]);
    let json = rig.sent[0].text();
    assert!(json.contains(r#""session_close""#) && json.contains(r#"the worker \"failed\""#), "{json}");
    rig.agent.close_session(rig.now, Epoch(1), "again");
    rig.pump();
    assert_eq!((rig.sent.len(), rig.flow().len()), (1, 1));
}

#[test]
fn a_session_closed_while_down_is_closed_after_the_redial() {
    let mut rig = Rig::in_session();
    rig.end(End::Reset);
    rig.agent.close_session(rig.now, Epoch(1), "failed");
    rig.sent.clear();
    rig.upgrade();
    assert!(rig.sent.is_empty());
    rig.pass(secs(1));
    assert!(rig.sent[0].text().contains("session_close"));
}

/// A cut that nobody notices for a while swallows the `session_close`, and the gateway restores the session.
#[test]
fn a_session_close_that_a_cut_may_have_swallowed_is_said_again() {
    let mut rig = Rig::in_session();
    rig.agent.close_session(rig.now, Epoch(1), "failed");
    rig.cut_and_redial();
    rig.play(&session_open("s"));
    assert_eq!(rig.notices(), [&Notice::RestoredAfterClose]);
    assert!(rig.flow().is_empty() && rig.agent.session().is_none(), "what is to be closed isn't opened");
    assert_eq!(rig.sent.len(), 1);
    assert!(rig.sent[0].text().contains(r#""session_id":"s","reason":"failed""#));
    rig.play(&data("s", b"on its way when the gateway heard"));
    assert_eq!(rig.sent.len(), 1, "once a connection");
    rig.play(&session_open("s"));
    assert_eq!(rig.flow(), [&opened("s", 2, false)], "the gateway has heard, and means a new one");
}

/// As the gateway restores it, its `session_open` crosses what we say as soon as the connection has proved itself.
#[test]
fn a_session_open_that_crosses_the_session_close_of_a_redial_is_not_followed() {
    let mut rig = Rig::in_session();
    rig.agent.close_session(rig.now, Epoch(1), "failed");
    rig.cut_and_redial();
    rig.play(&ping(b""));
    let closes = |rig: &Rig| {
        rig.sent
            .iter()
            .filter(|sent| sent.opcode == Opcode::Text && sent.text().contains("session_close"))
            .count()
    };
    assert_eq!(closes(&rig), 1);
    rig.play(&session_open("s"));
    assert!(rig.flow().is_empty() && rig.agent.session().is_none());
    assert_eq!(closes(&rig), 2, "it may be a new one of the same name, and then it is closed as well");
}

#[test]
fn a_session_close_is_said_again_until_the_gateway_has_shown_that_it_heard() {
    for (shown, times) in [
        (text(r#"{"type":"session_close","session_id":"s"}"#), 0),
        (text(r#"{"type":"session_close","session_id":"t"}"#), 1),
        (session_open("t"), 0),
        (data("s", b"on its way"), 1),
    ] {
        let mut rig = Rig::in_session();
        rig.agent.close_session(rig.now, Epoch(1), "failed");
        rig.pump();
        rig.play(&shown);
        for _ in 0..2 {
            rig.cut_and_redial();
            rig.pass(secs(1));
            let closes = rig.sent.iter().filter(|sent| sent.text().contains("session_close"));
            assert_eq!(closes.count(), times, "{shown:?}");
        }
    }
}

/// In a session with one answer sent, then cut and redialled.
fn frozen() -> Rig {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    rig.cut_and_redial();
    rig
}

/// Pings, as a live gateway sends them, for that long.
fn idle(rig: &mut Rig, seconds: u64) {
    for _ in 0..seconds {
        rig.pass(secs(1));
        rig.play(&ping(b""));
    }
}

fn unfreezes(rig: &Rig) -> usize {
    rig.events
        .iter()
        .filter(|event| matches!(event, Event::Unfreeze { epoch: Epoch(1), sequence: 1 }))
        .count()
}

#[test]
fn an_action_that_a_cut_may_have_swallowed_is_sent_once_more() {
    let mut rig = frozen();
    idle(&mut rig, 59);
    assert_eq!(unfreezes(&rig), 0);
    idle(&mut rig, 1);
    assert_eq!(unfreezes(&rig), 1);
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    assert!(rig.sent.iter().any(|sent| sent.payload == message("s", b"answer")));
    idle(&mut rig, 300);
    rig.cut_and_redial();
    idle(&mut rig, 300);
    assert_eq!(unfreezes(&rig), 0, "never twice");
    rig.end(End::Reset);
    rig.dial_fails(DialFailure::Refused);
    rig.pass(secs(1));
    rig.upgrade();
    idle(&mut rig, 300);
    assert_eq!(unfreezes(&rig), 0, "however many dials the way back takes");
}

/// The gateway may ask again on the next connection, and takes the first answer for the one to that.
#[test]
fn an_action_that_was_to_be_sent_once_more_when_a_cut_came_is_due_anew() {
    let mut rig = frozen();
    idle(&mut rig, 60);
    assert_eq!(unfreezes(&rig), 1);
    for _ in 0..2 {
        rig.cut_and_redial();
        idle(&mut rig, 59);
        assert_eq!(unfreezes(&rig), 0);
        idle(&mut rig, 1);
        assert_eq!(unfreezes(&rig), 1);
    }
    rig.cut_and_redial();
    rig.play(&data("s", b"asked again"));
    idle(&mut rig, 300);
    assert_eq!(unfreezes(&rig), 0);
}

#[test]
fn unfreeze_waits_for_five_times_the_longest_wait() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    idle(&mut rig, 20);
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 2, b"answer").unwrap();
    rig.cut_and_redial();
    idle(&mut rig, 99);
    assert!(!rig.events.iter().any(|event| matches!(event, Event::Unfreeze { .. })));
    idle(&mut rig, 2);
    assert!(rig.events.iter().any(|event| matches!(event, Event::Unfreeze { sequence: 2, .. })));
}

#[test]
fn nothing_is_sent_again_when_something_came_or_nothing_was_cut() {
    // The next observation acknowledges the action.
    let mut rig = frozen();
    idle(&mut rig, 30);
    rig.play(&data("s", b"next"));
    idle(&mut rig, 200);
    assert_eq!(unfreezes(&rig), 0);
    // The session is over.
    let mut rig = frozen();
    rig.play(&text(r#"{"type":"session_close","session_id":"s"}"#));
    idle(&mut rig, 200);
    assert_eq!(unfreezes(&rig), 0);
    // No cut.
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    idle(&mut rig, 200);
    assert_eq!(unfreezes(&rig), 0);
    // Sent after the cut.
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.cut_and_redial();
    rig.play(&ping(b""));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    idle(&mut rig, 200);
    assert_eq!(unfreezes(&rig), 0);
    // Switched off.
    let mut config = config();
    config.unfreeze = None;
    let mut rig = Rig::in_session_with(config);
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    rig.cut_and_redial();
    idle(&mut rig, 200);
    assert_eq!(unfreezes(&rig), 0);
}

#[test]
fn an_observation_that_is_cut_in_the_middle_is_no_acknowledgement() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.answer(Epoch(1), 1, b"answer").unwrap();
    rig.play(&data("s", &[1; 1000])[..500]);
    rig.cut_and_redial();
    idle(&mut rig, 60);
    assert_eq!(unfreezes(&rig), 1);
}

#[test]
fn a_wedged_tunnel_is_reported_once() {
    let mut rig = frozen();
    idle(&mut rig, 119);
    assert!(!rig.events.iter().any(|event| matches!(event, Event::Wedged { .. })));
    idle(&mut rig, 500);
    let wedged: Vec<_> = rig.events.iter().filter(|event| matches!(event, Event::Wedged { .. })).collect();
    // The last message came five seconds before the cut.
    assert_eq!(wedged, [&Event::Wedged { silent_for: secs(125) }]);
    assert!(!rig.events.contains(&Event::FreshAgent));
}

#[test]
fn a_message_after_the_redial_means_that_nothing_is_wedged() {
    let mut rig = frozen();
    rig.play(&text(r#"{"type":"queued"}"#));
    idle(&mut rig, 500);
    assert!(!rig.events.iter().any(|event| matches!(event, Event::Wedged { .. })));
}

#[test]
fn a_fresh_agent_starts_over_and_forfeits_the_session() {
    let mut config = config();
    config.fresh_agent_on_wedge = true;
    let mut rig = Rig::in_session_with(config);
    rig.cut_and_redial();
    idle(&mut rig, 120);
    assert!(rig.events.contains(&Event::FreshAgent));
    rig.events.clear();
    rig.sent.clear();
    rig.agent.replace_agent(rig.now, AgentId::new("agent-2").unwrap());
    rig.pump();
    assert!(rig.sent[0].text().contains("session_close"));
    assert_eq!(rig.sent[1].close_code(), 1000);
    rig.play(&crate::rig::close(1000, ""));
    assert_eq!(rig.hang_ups(), [HangUp::Orderly]);
    assert_eq!(rig.causes(), [Disconnect::Replaced]);
    assert_eq!(rig.dials(), [(1, false)]);
    // The old agent may still count towards the cap.
    rig.upgrade_with(&crate::rig::close(1013, ""));
    assert!(rig.request.contains("agent=agent-2"));
    assert_eq!(rig.outcome(), None);
    rig.pass(millis(250));
    rig.upgrade();
    assert_eq!(rig.agent.phase(), Phase::Queued);
    rig.play(&text(r#"{"type":"warmup"}"#));
    assert_eq!(rig.sent.last().unwrap().text(), r#"{"type":"ready"}"#, "the worker is still warm");
    rig.play(&session_open("n"));
    assert_eq!(rig.agent.session().unwrap().1, Epoch(2));
}

#[test]
fn a_fresh_agent_while_down_dials_at_once() {
    let mut rig = Rig::in_session();
    rig.end(End::Reset);
    rig.events.clear();
    rig.agent.replace_agent(rig.now, AgentId::new("agent-2").unwrap());
    rig.pump();
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    assert_eq!(rig.dials(), [(1, false)]);
    rig.upgrade_with(&ping(b""));
    rig.pass(secs(2));
    assert!(
        !rig.sent.iter().any(|sent| sent.opcode == Opcode::Text),
        "the old session is not this agent's to close"
    );
}
