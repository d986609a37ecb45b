//! Any cut of a stream of frames gives the same events and the same payloads.

use sidecar_core::agent::{Event, Notice, Read};
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Cut, Rig, Seen, data, fragments, frame_of, message, pattern, ping, text};

/// What a run showed, without what depends on how it was cut: when several pings come at once, only the newest are
/// answered (RFC 6455 5.5.3), so of the pongs only the last is part of it.
#[derive(PartialEq)]
struct Shown {
    events: Vec<Event>,
    seen: Vec<(u32, u64, Vec<u8>)>,
    last_pong: Option<Vec<u8>>,
}

fn play(bytes: &[u8], cut: Cut) -> Shown {
    let mut rig = Rig::in_session();
    rig.cut = cut;
    rig.play(bytes);
    let flow = |event: &&Event| !matches!(event, Event::Observation { .. } | Event::Notice(Notice::Pinged));
    let seen =
        rig.seen.iter().map(|Seen { epoch, sequence, payload, .. }| (epoch.0, *sequence, payload.clone()));
    Shown {
        events: rig.events.iter().filter(flow).cloned().collect(),
        seen: seen.collect(),
        last_pong: rig.pongs().last().map(|pong| pong.to_vec()),
    }
}

fn mixed_stream() -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(data("s", b""));
    bytes.extend(ping(b"first"));
    bytes.extend(data("s", &pattern(1, 1)));
    bytes.extend(data("s", &pattern(120, 2)));
    bytes.extend(data("s", &pattern(121, 3)));
    bytes.extend(text(r#"{"type":"queued","reason":"no_gpu_available"}"#));
    bytes.extend(data("s", &pattern(700, 4)));
    bytes.extend(fragments(&message("s", &pattern(900, 5)), 100, true, &ping(b"between")));
    // The tunnel's header in single bytes, with empty fragments among them.
    let whole = message("s", &pattern(40, 6));
    bytes.extend(frame_of(Opcode::Binary, false, &[]));
    for byte in &whole[..8] {
        bytes.extend(frame_of(Opcode::Continuation, false, &[*byte]));
        bytes.extend(frame_of(Opcode::Continuation, false, &[]));
    }
    bytes.extend(frame_of(Opcode::Continuation, true, &whole[8..]));
    bytes.extend(data("other", &pattern(300, 7)));
    bytes.extend(data("", b""));
    bytes.extend(frame_of(Opcode::Pong, true, b"unasked"));
    let session = r#"{"type":"session_close","session_id":"s","reason":"done"}"#;
    bytes.extend(frame_of(Opcode::Text, false, &session.as_bytes()[..9]));
    bytes.extend(ping(b""));
    bytes.extend(frame_of(Opcode::Continuation, true, &session.as_bytes()[9..]));
    bytes
}

#[test]
fn every_cut_point_gives_the_same() {
    let bytes = mixed_stream();
    let whole = play(&bytes, Cut::Whole);
    let sizes: Vec<usize> = whole.seen.iter().map(|(_, _, payload)| payload.len()).collect();
    assert_eq!(sizes, [0, 1, 120, 121, 700, 900, 40, 0]);
    for ((_, sequence, payload), (expected, salt)) in
        whole.seen.iter().zip([(1, 0), (2, 1), (3, 2), (4, 3), (5, 4), (6, 5), (7, 6)])
    {
        assert_eq!(*sequence, expected);
        assert_eq!(*payload, pattern(payload.len(), salt));
    }
    assert_eq!(whole.seen[7].0, 0, "the empty session id is epoch 0");
    for cut in 1..bytes.len() {
        assert!(play(&bytes, Cut::At(cut)) == whole, "cut at {cut}");
    }
}

#[test]
fn single_bytes_and_random_cuts_give_the_same() {
    let bytes = mixed_stream();
    let whole = play(&bytes, Cut::Whole);
    assert!(play(&bytes, Cut::One) == whole);
    for seed in 0..300 {
        assert!(play(&bytes, Cut::random(seed)) == whole, "seed {seed}");
    }
}

#[test]
fn large_messages_survive_random_cuts() {
    let mut bytes = Vec::new();
    for (size, salt) in [(65_529, 1), (65_530, 2), (65_531, 3), (65_532, 4), (199_999, 5), (200_000, 6)] {
        bytes.extend(data("s", &pattern(size, salt)));
        bytes.extend(fragments(&message("s", &pattern(size, salt)), 4096, true, &ping(b"p")));
    }
    for seed in 0..20 {
        let seen = play(&bytes, Cut::random(seed)).seen;
        let sizes = [65_529, 65_530, 65_531, 65_532, 199_999, 200_000];
        for (pair, (size, salt)) in seen.chunks(2).zip(sizes.into_iter().zip(1..)) {
            assert!(
                pair.iter().all(|(_, _, payload)| *payload == pattern(size, salt)),
                "seed {seed}, {size}"
            );
        }
        assert_eq!(seen.len(), 12);
    }
}

#[test]
fn a_message_in_very_small_fragments_arrives() {
    let payload = pattern(5000, 9);
    for cut in [Cut::Whole, Cut::random(3)] {
        let shown = play(&fragments(&message("s", &payload), 1, true, &ping(b"x")), cut);
        assert_eq!(shown.seen[0].2, payload);
        assert_eq!(shown.last_pong.as_deref(), Some(&b"x"[..]));
    }
}

#[test]
fn pings_between_fragments_are_answered_at_once() {
    let mut rig = Rig::in_session();
    let whole = message("s", &pattern(9000, 1));
    rig.play(&frame_of(Opcode::Binary, false, &whole[..4096]));
    for payload in [&b""[..], b"1", &[0xff; 125]] {
        rig.play(&ping(payload));
        assert_eq!(rig.pongs().last(), Some(&payload));
    }
    assert!(rig.seen.is_empty());
    rig.play(&frame_of(Opcode::Continuation, true, &whole[4096..]));
    assert_eq!(rig.seen[0].payload, pattern(9000, 1));
}

#[test]
fn fragments_are_received_in_large_reads() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", &pattern(190_000, 1)));
    rig.reads.clear();
    rig.play(&fragments(&message("s", &pattern(190_000, 2)), 4096, true, &[]));
    assert_eq!(rig.seen[1].payload, pattern(190_000, 2));
    assert!(rig.reads.len() <= 4, "{} reads for 47 fragments: {:?}", rig.reads.len(), rig.reads);
}

#[test]
fn a_known_remainder_is_read_exactly() {
    let mut rig = Rig::in_session();
    let bytes = data("s", &pattern(150_000, 1));
    rig.play(&bytes[..1000]);
    let Read::At { max, exact, .. } = rig.agent.poll_read() else { panic!() };
    assert!(exact);
    assert_eq!(max as usize, bytes.len() - 1000);
}

#[test]
fn stamps_are_those_of_the_first_and_last_byte() {
    let mut rig = Rig::in_session();
    let bytes = data("s", &pattern(1000, 1));
    let first = rig.now;
    rig.play(&bytes[..1]);
    rig.pass(crate::rig::millis(30));
    rig.play(&bytes[1..]);
    assert_eq!((rig.seen[0].first_byte, rig.seen[0].last_byte), (first, first + crate::rig::millis(30)));
}

#[test]
fn malformed_data_frames_are_dropped_and_the_connection_goes_on() {
    let mut rig = Rig::in_session();
    let long = [&257u32.to_be_bytes()[..], &[b'x'; 400]].concat();
    for bad in
        [&b""[..], &[0, 0, 0], &[0, 0, 0, 9, b's'], &long, &[0, 0, 0, 1, 0xff, 1, 2], &message("t", b"late")]
    {
        for cut in [Cut::Whole, Cut::One] {
            rig.cut = cut;
            rig.play(&frame_of(Opcode::Binary, true, bad));
        }
    }
    use sidecar_core::agent::DropKind::{
        SessionIdNotUtf8, SessionIdOverrun, SessionIdTooLong, TooShort, UnknownSession,
    };
    let kinds = [TooShort, TooShort, SessionIdOverrun, SessionIdTooLong, SessionIdNotUtf8, UnknownSession];
    let expected: Vec<Notice> =
        kinds.iter().flat_map(|kind| [Notice::DroppedFrame(*kind), Notice::DroppedFrame(*kind)]).collect();
    assert_eq!(rig.notices(), expected.iter().collect::<Vec<_>>());
    rig.cut = Cut::Whole;
    rig.play(&data("s", b"still here"));
    assert_eq!(rig.seen[0].payload, b"still here");
}
