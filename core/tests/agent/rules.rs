//! Broken rules of RFC 6455: the gateway is told so with the right code, and dialled again.

use sidecar_core::agent::{Disconnect, End, Event, HangUp};
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Cut, Rig, close, config, data, frame_of, ping, secs, text};

/// Plays `bytes`; the close frame with `code` has to leave before the connection is dropped and dialled again.
fn expect_violation(name: &str, bytes: &[u8], code: u16) {
    for cut in [Cut::Whole, Cut::One] {
        let mut config = config();
        config.limits.fragments = 10;
        config.limits.text_bytes = 1000;
        let mut rig = Rig::in_session_with(config);
        rig.cut = cut;
        rig.play(&[bytes.to_vec(), data("s", b"never read")].concat());
        assert_eq!(rig.sent.last().map(crate::rig::Sent::close_code), Some(code), "{name}");
        assert_eq!(rig.hang_ups(), [HangUp::Orderly], "{name}");
        assert!(matches!(rig.causes()[..], [Disconnect::Protocol(_)]), "{name}: {:?}", rig.causes());
        assert_eq!(rig.dials(), [(1, false)], "{name}");
        assert!(rig.seen.is_empty(), "{name}");
        // The session survives it.
        rig.upgrade();
        rig.play(&data("s", b"again"));
        assert_eq!(rig.seen[0].payload, b"again", "{name}");
    }
}

#[test]
fn each_broken_rule_has_its_code() {
    let many = |count: usize| {
        let mut bytes = frame_of(Opcode::Binary, false, &[0, 0, 0, 1]);
        for _ in 1..count {
            bytes.extend(frame_of(Opcode::Continuation, false, &[]));
        }
        bytes
    };
    let mut masked = vec![0x82, 0x85, 1, 2, 3, 4];
    masked.extend([0; 5]);
    let cases: Vec<(&str, Vec<u8>, u16)> = vec![
        ("reserved bit: compressed", vec![0xc2, 0x05, 0, 0, 0, 1, b's'], 1002),
        ("reserved opcode", vec![0x83, 0x00], 1002),
        ("reserved control opcode", vec![0x8b, 0x00], 1002),
        ("masked", masked, 1002),
        ("16-bit length that fits 7", vec![0x82, 126, 0, 125], 1002),
        ("64-bit length that fits 16", vec![0x82, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff], 1002),
        ("length over 2^63", vec![0x82, 127, 0x80, 0, 0, 0, 0, 0, 0, 0], 1002),
        ("ping over 125", vec![0x89, 126, 0, 126], 1002),
        ("fragmented ping", vec![0x09, 0x00], 1002),
        ("stray continuation", frame_of(Opcode::Continuation, true, b"x"), 1002),
        ("message in a message", [frame_of(Opcode::Binary, false, b"x"), text("{}")].concat(), 1002),
        ("half a close code", frame_of(Opcode::Close, true, &[3]), 1002),
        ("close code 1005", close(1005, ""), 1002),
        ("close code 999", close(999, ""), 1002),
        ("close reason no text", frame_of(Opcode::Close, true, &[3, 0xe8, 0xff]), 1007),
        ("text no text", frame_of(Opcode::Text, true, b"{\"a\":\"\xff\"}"), 1007),
        ("text cut in a character", frame_of(Opcode::Text, true, b"\xc3"), 1007),
        ("no text behind what is no control frame", frame_of(Opcode::Text, true, b"nonsense \xff"), 1007),
        ("too many fragments", many(11), 1008),
        ("text too long", text(&"x".repeat(1001)), 1009),
        (
            "fragmented text too long",
            [frame_of(Opcode::Text, false, &[b'x'; 999]), frame_of(Opcode::Continuation, true, b"xx")]
                .concat(),
            1009,
        ),
    ];
    for (name, bytes, code) in cases {
        expect_violation(name, &bytes, code);
    }
}

#[test]
fn text_that_is_none_is_noticed_however_it_is_fragmented() {
    // Overlong, a surrogate, past the last character, a continuation alone, a character that another one cuts off.
    let broken: [&[u8]; 5] = [b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\x80", b"\xe2\x82\""];
    for bytes in broken {
        let text = [b"{\"type\":\"", bytes, b"\"}"].concat();
        for cut in 0..=text.len() {
            let (start, end) = text.split_at(cut);
            let stream = [
                frame_of(Opcode::Text, false, start),
                ping(b"between"),
                frame_of(Opcode::Continuation, false, b""),
                frame_of(Opcode::Continuation, true, end),
            ];
            expect_violation(&format!("{bytes:x?} cut at {cut}"), &stream.concat(), 1007);
        }
    }
}

#[test]
fn limits_are_inclusive() {
    let mut config = config();
    config.limits.fragments = 3;
    config.limits.text_bytes = 100;
    let mut rig = Rig::in_session_with(config);
    rig.play(&text(&"x".repeat(100)));
    rig.play(
        &[
            frame_of(Opcode::Binary, false, &[0, 0]),
            frame_of(Opcode::Continuation, false, &[]),
            frame_of(Opcode::Continuation, true, &[0, 1, b's']),
        ]
        .concat(),
    );
    assert_eq!(rig.seen.len(), 1);
    assert!(rig.agent.is_open());
}

#[test]
fn a_close_that_can_not_be_sent_does_not_hold_up_the_redial_for_long() {
    let mut rig = Rig::in_session();
    rig.writable = false;
    rig.play(&[0xff]);
    assert!(rig.flow().is_empty());
    rig.pass(secs(5));
    assert_eq!(rig.hang_ups(), [HangUp::Abort]);
    assert!(matches!(rig.causes()[..], [Disconnect::Protocol(_)]));
    assert_eq!(rig.dials(), [(1, false)]);
}

#[test]
fn a_received_close_is_answered_with_its_code_and_reported() {
    for (bytes, code, reason) in [
        (close(1001, "going away"), Some(1001), "going away"),
        (frame_of(Opcode::Close, true, &[]), None, ""),
    ] {
        let mut rig = Rig::in_session();
        rig.play(&bytes);
        let reply = rig.sent.last().unwrap();
        assert_eq!((reply.opcode, reply.payload.len()), (Opcode::Close, if code.is_some() { 2 } else { 0 }));
        assert_eq!(rig.causes(), [Disconnect::Closed { code, reason: reason.try_into().unwrap() }]);
        let Event::Disconnected { redial_until, .. } = rig.flow()[1] else { panic!() };
        assert_eq!(*redial_until, Some(rig.now + secs(33)));
    }
}

#[test]
fn a_close_is_reported_rather_than_the_reset_behind_it() {
    let mut rig = Rig::in_session();
    rig.writable = false;
    rig.play(&close(1012, "restart"));
    rig.end(End::Reset);
    assert!(matches!(rig.causes()[..], [Disconnect::Closed { code: Some(1012), .. }]));
    // The same when both are there before anything is parsed.
    let mut rig = Rig::in_session();
    rig.writable = false;
    rig.wire.extend(close(1012, "restart"));
    let sidecar_core::agent::Read::At { .. } = rig.agent.poll_read() else { panic!() };
    rig.pump();
    rig.agent.handle_end(rig.now, End::Reset);
    rig.pump();
    assert!(matches!(rig.causes()[..], [Disconnect::Closed { code: Some(1012), .. }]));
}

#[test]
fn only_the_newest_pings_wait_for_a_busy_wire() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"x"));
    rig.begin(sidecar_core::tunnel::Epoch(1), 1, b"half sent").unwrap();
    rig.sent.clear();
    for index in 0..20u8 {
        rig.play(&ping(&[index]));
    }
    assert!(rig.sent.is_empty(), "nothing goes between an action's bytes");
    rig.agent.handle_action_sent(rig.now, sidecar_core::tunnel::Epoch(1), 1);
    rig.pump();
    assert_eq!(rig.pongs(), [[16], [17], [18], [19]]);
}
