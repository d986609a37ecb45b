//! Each fault on request: what the agent sees of it, and that the job can be played to its end all the same.

mod support;

use serde_json::json;
use support::{Gateway, Got, JOB, TOKEN, head_end, policy, read_raw};

/// A job with one fault at step 30, played by an agent that redials; what the agent saw of the fault.
async fn with_fault(flags: &[&str]) -> Got {
    let fast = ["--cases", "1", "--on-lost", "reask", "--reask-after", "50ms"];
    let mut gateway = Gateway::start(&[&fast, flags].concat()).await;
    let mut agent = gateway.dial("a").await;
    let seen = agent.play_on().await;
    drop(agent);
    gateway.disconnected().await;
    gateway.dial("a").await.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.steps, report.faults_left), (1, 500, 0), "{flags:?}: {report:?}");
    assert_eq!((report.connections, report.lost_exchanges, report.duplicate_answers), (2, 1, 0), "{flags:?}");
    seen
}

#[tokio::test]
async fn cuts_end_without_a_close_frame() {
    for flag in ["30", "30:after", "30:before", "30:mid-frame"] {
        assert_eq!(with_fault(&["--cut-at", flag]).await, Got::End(None), "{flag}");
        assert_eq!(with_fault(&["--cut-at", flag, "--payload", "50000"]).await, Got::End(None), "{flag}");
    }
}

#[tokio::test]
async fn a_close_at_a_step_comes_with_its_code() {
    assert_eq!(with_fault(&["--close-at", "30"]).await, Got::End(Some(1001)));
    assert_eq!(with_fault(&["--close-at", "30:1012"]).await, Got::End(Some(1012)));
}

#[tokio::test]
async fn a_silent_gateway_is_noticed_by_its_missing_pings_alone() {
    let flags = ["--silent-at", "30", "--ping-interval", "50ms", "--read-deadline", "400ms"];
    // Its own deadline passes, since it sends no pings that could be answered.
    assert_eq!(with_fault(&flags).await, Got::End(None));
}

#[tokio::test]
async fn malformed_frames_break_the_protocol() {
    for kind in ["masked:30", "rsv:30", "opcode:30", "length:30"] {
        let seen = with_fault(&["--malformed", kind]).await;
        assert!(matches!(seen, Got::Broken(_)), "{kind}: {seen:?}");
    }
}

#[tokio::test]
async fn frames_that_only_break_the_contract_are_followed_by_the_observation() {
    for (kind, expected) in [("short-data", &[0, 0, 0][..]), ("sid-overrun", &[0, 0, 0, 0x40, b'a', b'b'])] {
        let gateway = Gateway::start(&["--cases", "1", "--malformed", kind]).await;
        let mut raw = gateway.dial_raw("a").await;
        let mut wanted = vec![0x82, expected.len() as u8];
        wanted.extend_from_slice(expected);
        let found = play_raw(&mut raw, &wanted).await;
        assert!(found, "{kind} never came");
    }
    let gateway = Gateway::start(&["--cases", "1", "--malformed", "json:3"]).await;
    let mut agent = gateway.dial("a").await;
    assert!(matches!(agent.play_on().await, Got::Broken(_)));
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

/// A frame under a mask of zeros.
fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).ok().filter(|length| *length < 126).expect("a short frame");
    [&[first, 0x80 | length, 0, 0, 0, 0], payload].concat()
}

/// Warms up and answers observations of 56 bytes (4 + 36 + 16), frame by frame, until `wanted` has come.
async fn play_raw(stream: &mut tokio::net::TcpStream, wanted: &[u8]) -> bool {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let mut bytes = read_raw(stream, |bytes| head_end(bytes).is_some()).await;
    bytes.drain(..head_end(&bytes).unwrap());
    loop {
        while bytes.len() < 2 || bytes.len() < 2 + usize::from(bytes[1]) {
            if support::soon("a frame", stream.read_buf(&mut bytes)).await.unwrap_or(0) == 0 {
                return false;
            }
        }
        let frame: Vec<u8> = bytes.drain(..2 + usize::from(bytes[1])).collect();
        if frame == wanted {
            return true;
        }
        if frame.ends_with(br#"{"type":"warmup"}"#) {
            stream.write_all(&masked(0x81, br#"{"type":"ready"}"#)).await.unwrap();
        }
        if frame[0] == 0x82 && frame.len() == 58 {
            let action = [&frame[2..42], &policy(&frame[42..])].concat();
            stream.write_all(&masked(0x82, &action)).await.unwrap();
        }
    }
}

#[tokio::test]
async fn unfriendly_writing_changes_no_byte() {
    let table: [&[&str]; 8] = [
        &["--payload", "30000", "--fragment", "4096"],
        &["--payload", "30000", "--fragment", "4096", "--empty-final"],
        &["--payload", "3000", "--fragment", "100", "--ping-between-fragments"],
        &["--fragment", "1", "--empty-final", "--ping-between-fragments"],
        &["--one-byte-writes"],
        &["--one-byte-writes", "--fragment", "7"],
        &["--split-headers", "--step-delay", "0s"],
        &["--unknown-control"],
    ];
    for flags in table {
        let gateway = Gateway::start(&[&["--cases", "1"], flags].concat()).await;
        gateway.dial("a").await.play_out().await;
        let report = gateway.report().await;
        assert_eq!((report.solved, report.lost_exchanges), (1, 0), "{flags:?}");
    }
}

#[tokio::test]
async fn fragments_end_with_an_empty_continuation_where_asked() {
    let gateway = Gateway::start(&["--cases", "1", "--fragment", "10", "--empty-final"]).await;
    let mut raw = gateway.dial_raw("a").await;
    // {"type":"warmup"} is 17 bytes long: 10, 7 and an empty final frame.
    let bytes = read_raw(&mut raw, |bytes| head_end(bytes).is_some_and(|end| bytes.len() >= end + 23)).await;
    let frames = &bytes[head_end(&bytes).unwrap()..];
    assert_eq!(
        (&frames[..2], &frames[12..14], &frames[21..]),
        (&[0x01, 10][..], &[0x00, 7][..], &[0x80, 0][..])
    );
}

#[tokio::test]
async fn an_unknown_control_frame_comes_when_asked_for() {
    let gateway = Gateway::start(&["--cases", "1", "--unknown-control"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.expect("evaluating").await;
    agent.play_out().await;
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn the_first_dials_are_refused_and_the_first_upgrades_closed_as_asked() {
    let flags = ["--cases", "1", "--refuse", "500:2,429:1", "--instant-close", "2"];
    let gateway = Gateway::start(&flags).await;
    for status in [500, 500, 429] {
        assert_eq!(gateway.refusal(JOB, "a", TOKEN).await, status);
    }
    for _ in 0..2 {
        assert_eq!(gateway.dial("a").await.next().await, Got::End(Some(1013)));
    }
    gateway.dial("a").await.play_out().await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.connections), (1, 1));
}

#[tokio::test]
async fn a_drain_in_mid_session_takes_the_outstanding_answer_and_asks_no_more() {
    let gateway = Gateway::start(&["--cases", "2", "--drain-at", "30"]).await;
    let mut agent = gateway.dial("a").await;
    agent.warm_up().await;
    agent.play(30).await;
    let (session, observation) = agent.observation().await;
    assert_eq!(agent.expect("drain").await, json!({"type": "drain", "reason": "on request"}));
    agent.answer(&session, &policy(&observation)).await;
    let quiet = tokio::time::timeout(core::time::Duration::from_millis(200), agent.next()).await;
    assert!(quiet.is_err(), "{quiet:?} after drain");
    agent.close(1000).await;
    let report = gateway.report().await;
    assert_eq!((report.solved, report.steps, report.lost_exchanges, report.faults_left), (0, 31, 0, 0));
    assert_eq!(report.failure, None);
}

#[tokio::test]
async fn a_drained_agent_that_does_not_close_is_closed() {
    let gateway = Gateway::start(&["--cases", "1", "--drain-wait", "200ms"]).await;
    let mut agent = gateway.dial("a").await;
    assert!(matches!(agent.play_on().await, Got::Control(_)));
    assert_eq!(agent.next().await, Got::End(None));
    assert_eq!(gateway.report().await.solved, 1);
}

#[tokio::test]
async fn faults_that_no_case_came_to_are_reported() {
    let gateway = Gateway::start(&["--cases", "1", "--cut-at", "600,700:before", "--silent-at", "800"]).await;
    gateway.dial("a").await.play_out().await;
    assert_eq!(gateway.report().await.faults_left, 3);
}
