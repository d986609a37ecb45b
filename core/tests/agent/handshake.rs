//! The upgrade, and what may come along with its answer.

use sidecar_core::agent::{DialFailure, Disconnect, End, Event, HangUp, Outcome, RequestError};
use sidecar_core::ws::handshake::HandshakeError;

use crate::rig::{Cut, Rig, TOKEN, close, config, data, millis, ping, secs, text};

#[test]
fn the_first_dial_is_asked_for_at_once() {
    let mut rig = Rig::new();
    assert_eq!(
        rig.agent.poll_event(),
        Some(Event::Dial { attempt: 1, timeout: secs(10), reread_token: false })
    );
    assert_eq!(rig.agent.poll_event(), None);
}

#[test]
fn the_request_names_job_and_agent_and_carries_the_token() {
    let mut rig = Rig::new();
    rig.connected();
    let first = rig.request.lines().next().unwrap();
    assert_eq!(first, "GET /tunnel?job=7b9f1c1e-0000-4000-8000-000000000001&agent=agent-1 HTTP/1.1");
    assert!(rig.request.contains("\r\nHost: gate.example:8080\r\n"));
    assert!(rig.request.contains("\r\nAuthorization: Bearer very-secret-token\r\n"));
    assert!(!format!("{:?}", rig.agent).contains(TOKEN));
}

#[test]
fn ids_never_leave_their_place_in_the_query() {
    let mut config = config();
    config.endpoint.path = "/t?x=1".try_into().unwrap();
    config.agent = sidecar_core::tunnel::AgentId::new("a&b=ü c").unwrap();
    let mut rig = Rig::with(config);
    rig.connected();
    assert!(rig.request.starts_with("GET /t?x=1&job=7b9f"), "{}", rig.request);
    assert!(rig.request.contains("&agent=a%26b%3D%C3%BC%20c HTTP/1.1\r\n"), "{}", rig.request);
}

#[test]
fn a_token_that_would_break_the_request_is_named_and_not_shown() {
    let mut rig = Rig::new();
    rig.pump();
    let error = rig.agent.handle_connected(rig.now, "secret\r\nX: y", &mut [0; 4096]).unwrap_err();
    assert!(matches!(error, RequestError::Request(_)));
    assert!(!error.to_string().contains("secret"));
    let mut rig = Rig::open();
    assert_eq!(rig.agent.handle_connected(rig.now, TOKEN, &mut [0; 4096]), Err(RequestError::NotDialing));
}

#[test]
fn an_answer_cut_anywhere_is_accepted_once() {
    for cut in [Cut::Whole, Cut::One, Cut::At(17), Cut::random(1)] {
        let mut rig = Rig::new();
        rig.cut = cut;
        rig.upgrade();
        assert_eq!(rig.flow()[1], &Event::Upgraded { attempt: 1, resumed: false });
        assert!(rig.agent.is_open());
    }
}

#[test]
fn nothing_is_sent_before_the_101() {
    // Some servers refuse an upgrade behind which data is waiting already. Here a `ready` and a `session_close` are.
    let mut rig = Rig::in_session();
    rig.play(&text(r#"{"type":"session_open","session_id":"t"}"#));
    rig.end(End::Reset);
    rig.agent.close_session(rig.now, sidecar_core::tunnel::Epoch(2), "while down");
    let answer = rig.connected();
    rig.sent.clear();
    let (last, head) = answer.as_bytes().split_last().unwrap();
    rig.play(head);
    rig.pass(secs(5));
    assert!(rig.sent.is_empty(), "{:?}", rig.sent);
    rig.play(&[*last]);
    rig.pass(secs(1));
    assert!(rig.sent.iter().any(|sent| sent.text().contains("session_close")));
}

#[test]
fn frames_in_the_segment_of_the_101_are_processed() {
    let mut more = text(r#"{"type":"warmup"}"#);
    more.extend(text(r#"{"type":"session_open","session_id":"s"}"#));
    more.extend(data("s", b"observation"));
    let mut rig = Rig::new();
    rig.upgrade_with(&more);
    assert_eq!(rig.flow()[2], &Event::Warmup);
    assert_eq!(rig.seen[0].payload, b"observation");
}

#[test]
fn over_the_cap_the_101_and_its_close_end_it() {
    for cut in [Cut::Whole, Cut::One] {
        let mut rig = Rig::new();
        rig.cut = cut;
        rig.upgrade_with(&close(1013, "try again later"));
        assert_eq!(rig.hang_ups(), [HangUp::Orderly]);
        assert_eq!(rig.causes(), [Disconnect::Capacity]);
        assert_eq!(rig.outcome(), Some(Outcome::Capacity));
        assert_eq!(rig.sent[0].close_code(), 1013);
    }
}

/// The gateway answered too late, and still holds the connection that we gave up: that is no cap.
#[test]
fn an_instant_close_after_an_upgrade_without_an_answer_is_tried_again() {
    let mut rig = Rig::new();
    rig.pump();
    rig.connected();
    rig.pass(secs(10));
    assert_eq!(rig.causes(), [Disconnect::DialFailed(DialFailure::Timeout)]);
    rig.upgrade_with(&close(1008, "duplicate"));
    assert_eq!(rig.outcome(), None);
    rig.pass(secs(1));
    rig.upgrade();
    rig.play(&ping(b""));
    assert!(rig.agent.is_open() && rig.outcome().is_none());
}

#[test]
fn over_the_cap_an_end_without_a_close_frame_counts_as_well() {
    let mut rig = Rig::new();
    rig.upgrade();
    rig.end(End::Eof);
    assert_eq!(rig.outcome(), Some(Outcome::Capacity));
}

#[test]
fn a_close_after_the_window_or_after_a_frame_is_no_cap() {
    let mut rig = Rig::open();
    rig.pass(millis(2100));
    rig.play(&close(1001, "bye"));
    assert_eq!(rig.dials().len(), 1);
    let mut rig = Rig::open();
    rig.play(&[ping(b""), close(1001, "bye")].concat());
    assert!(matches!(&rig.causes()[0], Disconnect::Closed { code: Some(1001), reason } if reason == "bye"));
    assert_eq!(rig.dials().len(), 1);
}

#[test]
fn with_wait_for_slot_it_keeps_trying() {
    let mut config = config();
    config.wait_for_slot = true;
    let mut rig = Rig::with(config);
    for _ in 0..40 {
        rig.upgrade_with(&close(1013, ""));
        assert_eq!(rig.outcome(), None);
        // Longer than the time for a first dial in all.
        rig.pass(secs(20));
    }
    rig.upgrade();
    assert!(rig.agent.is_open());
}

#[test]
fn a_refused_token_on_the_first_dial_ends_it() {
    let mut rig = Rig::new();
    rig.refuse(401);
    assert_eq!(rig.causes(), [Disconnect::Refused { status: 401 }]);
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    assert_eq!(rig.outcome(), Some(Outcome::TokenRefused { status: 401, first: true }));
}

#[test]
fn a_busy_gateway_is_tried_again() {
    for status in [429, 500, 502, 503] {
        let mut rig = Rig::new();
        rig.refuse(status);
        assert_eq!(rig.causes(), [Disconnect::Refused { status }]);
        // The first retry goes at once.
        assert_eq!(rig.dials(), [(1, false), (2, false)]);
        rig.refuse(status);
        rig.pass(secs(1));
        rig.upgrade();
        assert!(rig.agent.is_open());
    }
}

#[test]
fn an_answer_that_is_none_is_tried_again() {
    let mut rig = Rig::new();
    rig.connected();
    rig.play(b"SSH-2.0-OpenSSH_9.6\r\n");
    assert!(matches!(rig.causes()[0], Disconnect::Handshake(HandshakeError::Malformed { .. })));
    assert_eq!(rig.dials().len(), 2);
    let answer = rig.connected().replace("sec-websocket-accept: ", "sec-websocket-accept: x");
    rig.play(answer.as_bytes());
    assert_eq!(rig.causes()[1], Disconnect::Handshake(HandshakeError::WrongAccept));
}

#[test]
fn an_answer_without_end_is_cut_off() {
    let mut config = config();
    // Less scratch than the longest answer that is accepted.
    config.limits.slot_bytes = 100;
    let mut rig = Rig::with(config);
    rig.connected();
    rig.play(&[b"HTTP/1.1 101 Ok\r\n".to_vec(), b"A: b\r\n".repeat(4000)].concat());
    assert!(matches!(rig.causes()[0], Disconnect::Handshake(_)));
}

#[test]
fn an_answer_that_never_comes_is_given_up() {
    let mut rig = Rig::new();
    rig.connected();
    rig.pass(millis(9_999));
    assert!(rig.causes().is_empty());
    rig.pass(millis(1));
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    assert_eq!(rig.causes(), [Disconnect::DialFailed(DialFailure::Timeout)]);
}

#[test]
fn an_answer_that_trickles_in_is_given_up_all_the_same() {
    // Each byte is a sign of life, and none of them is worth more time.
    let mut rig = Rig::new();
    let answer = rig.connected();
    for byte in answer.bytes().take(100) {
        rig.pass(millis(99));
        rig.play(&[byte]);
    }
    assert!(rig.causes().is_empty());
    rig.pass(millis(100));
    assert_eq!(rig.causes(), [Disconnect::DialFailed(DialFailure::Timeout)]);
    assert_eq!(rig.dials().len(), 2);
}

#[test]
fn an_end_within_the_answer_is_a_failed_attempt() {
    let mut rig = Rig::new();
    rig.connected();
    rig.play(b"HTTP/1.1 101 Swi");
    rig.end(End::Reset);
    assert_eq!(rig.causes(), [Disconnect::Reset]);
    assert_eq!(rig.dials().len(), 2);
}

#[test]
fn the_first_dial_has_its_time_and_says_why_it_failed() {
    let mut rig = Rig::new();
    let start = rig.now;
    for _ in 0..100_000 {
        rig.dial_fails(DialFailure::Refused);
        if rig.outcome().is_some() {
            break;
        }
        rig.pass(millis(50));
    }
    let last = Disconnect::DialFailed(DialFailure::Refused);
    assert_eq!(rig.outcome(), Some(Outcome::DialBudget { last }));
    assert!(rig.now.since(start) >= secs(300) && rig.now.since(start) < secs(301));
    // 300 s of full jitter below 5 s: some hundred attempts.
    assert!((60..300).contains(&rig.dials().len()), "{}", rig.dials().len());
}
