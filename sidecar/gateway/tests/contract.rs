//! The server side of the tunnel contract, as an agent on tokio-tungstenite meets it.

mod support;

use core::time::Duration;

use serde_json::json;
use sidecar_gateway::report::GatewayEvent;
use support::{Gateway, Got, JOB, TOKEN, head_end, policy, read_raw};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::sleep;
use tokio_tungstenite::tungstenite::Message;

#[tokio::test]
async fn five_cases_are_five_sessions_one_after_the_other() {
    let gateway = Gateway::start(&["--queued"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    let queued = agent.expect("queued").await;
    assert_eq!(queued, json!({"type": "queued", "reason": "no_gpu_available"}));
    agent.play_out().await;
    let mut sessions = agent.sessions.clone();
    assert_eq!(sessions.len(), 5);
    sessions.sort();
    sessions.dedup();
    assert_eq!(sessions.len(), 5, "a session id came twice");
    let report = gateway.report().await;
    assert_eq!((report.cases, report.solved, report.steps), (5, 5, 2500));
    assert_eq!((report.latency_ns.count, report.lost_exchanges, report.connections), (2500, 0, 1));
    assert_eq!((report.duplicate_answers, report.unknown_session, report.dropped_frames), (0, 0, 0));
    assert!(report.latency_ns.p50 > 0 && report.latency_ns.max >= report.latency_ns.p99);
    assert_eq!(report.failure, None);
}

#[tokio::test]
async fn dials_that_are_not_entitled_get_401_and_bad_requests_400() {
    let gateway = Gateway::start(&["--cases", "1"]).await;
    assert_eq!(gateway.refusal(JOB, "a", "wrong").await, 401);
    assert_eq!(gateway.refusal(JOB, "a", "").await, 401);
    assert_eq!(gateway.refusal("another-job", "a", TOKEN).await, 401);
    assert_eq!(gateway.refusal(JOB, &"x".repeat(65), TOKEN).await, 401);
    let target =
        format!("/tunnel?job={JOB}&agent=a HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n");
    let upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\n";
    let key = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for request in [
        format!("GET {target}\r\n"),
        format!("POST {target}{upgrade}{key}Sec-WebSocket-Version: 13\r\n\r\n"),
        format!("GET {target}{upgrade}Sec-WebSocket-Version: 13\r\n\r\n"),
        format!("GET {target}{upgrade}{key}Sec-WebSocket-Version: 8\r\n\r\n"),
        format!("GET {target}{upgrade}Sec-WebSocket-Key: short\r\nSec-WebSocket-Version: 13\r\n\r\n"),
    ] {
        let status = gateway.status_line(&request).await;
        assert!(status.starts_with("HTTP/1.1 400"), "{status} for {request}");
    }
    // None of it took the pair's place.
    gateway.dial("a").await.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn over_the_cap_the_101_and_a_close_frame_come_in_one_segment() {
    let gateway = Gateway::start(&["--cases", "1", "--parallel-cap", "1"]).await;
    let mut first = gateway.dial("a").await;
    first.warm_up().await;
    let mut raw = gateway.dial_raw("b").await;
    let mut segment = vec![0; 4096];
    let length = support::soon("the answer", raw.read(&mut segment)).await.unwrap();
    let segment = &segment[..length];
    let head = head_end(segment).expect("the head is whole");
    assert!(segment.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(segment));
    let close = &segment[head..];
    assert_eq!(close.first(), Some(&0x88), "no close frame behind the head: {close:?}");
    assert_eq!(close[2..4], 1013_u16.to_be_bytes());
    assert_eq!(close.len(), 2 + usize::from(close[1]));
    assert!(read_raw(&mut raw, |_| false).await.is_empty(), "nothing follows but the end");
    // A library sees the upgrade, then the close.
    assert_eq!(gateway.dial("c").await.next().await, Got::End(Some(1013)));
    first.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn two_agents_share_the_cases_under_a_cap_of_two() {
    let gateway = Gateway::start(&["--cases", "4", "--parallel-cap", "2", "--step-delay", "1ms"]).await;
    let (mut one, mut other) = (gateway.dial("a").await, gateway.dial("b").await);
    tokio::join!(one.play_out(), other.play_out());
    assert_eq!(one.sessions.len() + other.sessions.len(), 4);
    assert!(!one.sessions.is_empty() && !other.sessions.is_empty());
    assert_eq!(gateway.report().await.solved, 4);
}

#[tokio::test]
async fn an_agent_that_is_never_ready_is_drained_with_the_others() {
    let gateway = Gateway::start(&["--cases", "1", "--parallel-cap", "2"]).await;
    let mut idle = gateway.dial("b").await;
    idle.expect("warmup").await;
    gateway.dial("a").await.play_out().await;
    idle.expect("drain").await;
    idle.close(1000).await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.failure), (1, None));
}

#[tokio::test]
async fn a_second_socket_of_a_live_pair_is_the_one_that_is_closed() {
    let gateway = Gateway::start(&["--cases", "1", "--parallel-cap", "2"]).await;
    let mut first = gateway.dial("a").await;
    first.warm_up().await;
    first.play(10).await;
    assert!(matches!(gateway.dial("a").await.next().await, Got::End(Some(_))));
    first.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.lost_exchanges), (1, 0));
}

#[tokio::test]
async fn ready_before_the_warm_up_is_ignored() {
    let gateway = Gateway::start(&["--cases", "1", "--warmup-after", "200ms"]).await;
    let mut agent = gateway.dial("a").await;
    agent.say(&json!({"type": "ready"})).await;
    agent.expect("warmup").await;
    // Wrong directions, unknown types and what is no JSON change nothing either.
    for text in [r#"{"type":"session_open","session_id":"x"}"#, r#"{"type":"ping"}"#, "{", "[]"] {
        agent.send(Message::text(text)).await;
    }
    let quiet = tokio::time::timeout(Duration::from_millis(300), agent.next()).await;
    assert!(quiet.is_err(), "{quiet:?} before ready");
    agent.say(&json!({"type": "ready"})).await;
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn the_empty_warm_up_frame_has_to_be_answered() {
    let gateway = Gateway::start(&["--cases", "1", "--warmup-frame"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    assert_eq!(agent.next().await, Got::Data { session: String::new(), payload: Vec::new() });
    let quiet = tokio::time::timeout(Duration::from_millis(200), agent.next()).await;
    assert!(quiet.is_err(), "{quiet:?} before the warm-up's answer");
    agent.answer("", &[]).await;
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn observations_carry_pictures_of_the_size_asked_for_and_no_two_are_equal() {
    let gateway = Gateway::start(&["--cases", "1", "--payload", "70000"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    let mut before = Vec::new();
    for _ in 0..20 {
        let (session, observation) = agent.observation().await;
        assert_eq!(observation.len(), 70_000);
        assert_ne!(observation.last(), before.last());
        agent.answer(&session, &policy(&observation)).await;
        before = observation;
    }
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn bad_actions_fail_the_case_and_the_next_one_comes() {
    let gateway = Gateway::start(&["--cases", "3"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    for action in [&[7][..], &[0, 1]] {
        let (session, _) = agent.observation().await;
        agent.answer(&session, action).await;
        let close = agent.expect("session_close").await;
        assert_eq!(close["session_id"], session);
        assert!(close["reason"].as_str().unwrap().contains("action"), "{close}");
    }
    agent.play_out().await;
    assert_eq!(agent.sessions.len(), 3);
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn a_session_that_the_agent_closes_is_a_failed_case() {
    let mut gateway = Gateway::start(&["--cases", "2"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    let (session, _) = agent.observation().await;
    agent.say(&json!({"type": "session_close", "session_id": "another"})).await;
    agent.say(&json!({"type": "session_close", "session_id": session, "reason": "out of memory"})).await;
    let how = gateway
        .event(|event| match event {
            GatewayEvent::CaseEnded { how, .. } => Some(how.clone()),
            _ => None,
        })
        .await;
    assert!(how.contains("out of memory"), "{how}");
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn answers_that_nobody_waits_for_are_counted_and_change_nothing() {
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "2ms"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    for step in 0..30 {
        let (session, observation) = agent.observation().await;
        agent.answer(&session, &policy(&observation)).await;
        if step < 10 {
            // Again, and under a name that no session has.
            agent.answer(&session, &[9]).await;
            agent.answer("no-such-session", &[9]).await;
        }
    }
    agent.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.duplicate_answers, report.unknown_session), (1, 10, 10));
}

#[tokio::test]
async fn a_case_that_takes_too_long_is_closed() {
    let gateway = Gateway::start(&["--cases", "2", "--case-timeout", "300ms"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    let (session, _) = agent.observation().await;
    let close = agent.expect("session_close").await;
    assert_eq!(
        (close["session_id"].as_str(), close["reason"].as_str()),
        (Some(&*session), Some("took too long"))
    );
    agent.play_out().await;
    assert_eq!(gateway.report().await.cases, 2);
}

#[tokio::test]
async fn malformed_data_frames_drop_the_connection() {
    for frame in [&[0, 0, 0][..], &[0, 0, 0, 9, b'x'], &[255; 8]] {
        let mut gateway = Gateway::start(&["--cases", "1", "--window", "100ms"]).await;
        let mut agent = gateway.dial("a").await;
        agent.warm_up().await;
        agent.observation().await;
        agent.send(Message::binary(frame.to_vec())).await;
        assert_eq!(agent.next().await, Got::End(None), "{frame:?}: without a close frame");
        let why = gateway.disconnected().await;
        assert!(why.contains("data frame"), "{why}");
        assert_eq!(gateway.report().await.solved, 0);
    }
}

#[tokio::test]
async fn an_unmasked_frame_is_answered_with_1002() {
    let mut gateway = Gateway::start(&["--cases", "1", "--window", "100ms"]).await;
    let mut raw = gateway.dial_raw("a").await;
    raw.write_all(&[0x81, 2, b'{', b'}']).await.unwrap();
    let bytes = read_raw(&mut raw, |_| false).await;
    let [high, low] = 1002_u16.to_be_bytes();
    let closed = bytes.windows(4).any(|window| matches!(window, [0x88, _, a, b] if [*a, *b] == [high, low]));
    assert!(closed, "no close frame with 1002 in {bytes:?}");
    let why = gateway.disconnected().await;
    assert!(why.contains("without a mask"), "{why}");
    assert!(gateway.report().await.failure.is_some());
}

/// The read deadline is moved by pongs alone: data does not help, unsolicited pongs do (A.6).
#[tokio::test]
async fn an_agent_that_answers_no_ping_is_cut_though_it_talks() {
    let flags = ["--cases", "1", "--ping-interval", "50ms", "--read-deadline", "1s", "--window", "100ms"];
    let mut gateway = Gateway::start(&flags).await;
    let mut agent = gateway.dial("a").await;
    // tungstenite answers pings while it reads; this agent only writes.
    let talk = async {
        loop {
            agent.answer("no-such-session", &[]).await;
            sleep(Duration::from_millis(20)).await;
        }
    };
    let why = tokio::select! {
        why = gateway.disconnected() => why,
        () = talk => unreachable!(),
    };
    assert_eq!(why, "no pong within the read deadline");

    let gateway = Gateway::start(&flags).await;
    let mut agent = gateway.dial("a").await;
    for _ in 0..75 {
        agent.send(Message::Pong(Vec::new().into())).await;
        sleep(Duration::from_millis(20)).await;
    }
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1, "1.5 s without an answer to a ping, but with pongs");
}

#[tokio::test]
async fn pings_of_the_agent_are_answered_with_their_payload() {
    let gateway = Gateway::start(&["--cases", "1"]).await;
    let mut raw = gateway.dial_raw("a").await;
    // Masked with zeros, so that the payload is readable here.
    raw.write_all(&[0x89, 0x84, 0, 0, 0, 0, b'e', b'c', b'h', b'o']).await.unwrap();
    let pong = [0x8A, 4, b'e', b'c', b'h', b'o'];
    let bytes = read_raw(&mut raw, |bytes| bytes.windows(6).any(|window| window == pong)).await;
    assert!(bytes.windows(6).any(|window| window == pong));
}
