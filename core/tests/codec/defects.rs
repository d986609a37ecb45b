//! What other codecs were found to let pass, as bytes on the wire, and what is owed for each: the violation
//! and its close code. (The faults of handshakes are tested beside the handshake.)

use sidecar_core::ws::Violation;
use sidecar_core::ws::close::CloseError;
use sidecar_core::ws::frame::{FrameError, Opcode};
use sidecar_core::ws::message::MessageError;
use sidecar_core::ws::utf8::NotUtf8;

use crate::chunks::Chunks;
use crate::ours::{self, FRAGMENTS};
use crate::{LIMIT, Seen};

/// A frame whose two header bytes are given; the payload is zeros unless it is given.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut bytes = vec![first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ ..=125), _) => bytes.push(length),
        (_, Ok(length)) => {
            bytes.push(126);
            bytes.extend(length.to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn what_others_let_pass_is_refused_with_the_right_code_however_it_is_cut() {
    let fragments: Vec<u8> =
        [0x02].into_iter().chain([0x00; 30]).flat_map(|first| frame(first, &[0; 60_000])).collect();
    let empty: Vec<u8> = [0x02].into_iter().chain([0x00; 200]).flat_map(|first| frame(first, b"")).collect();
    let limit = LIMIT as u64;
    let table: [(&str, Vec<u8>, Violation, u16); 18] = [
        ("a masked frame", vec![0x82, 0x81, 1, 2, 3, 4, 5], MessageError::Masked.into(), 1002),
        (
            "a masked ping, which would be answered",
            vec![0x89, 0x80, 1, 2, 3, 4],
            MessageError::Masked.into(),
            1002,
        ),
        (
            "an unfinished message inside an unfinished one, which would lose the first",
            [frame(0x02, b"lost"), frame(0x02, b"kept"), frame(0x80, b"")].concat(),
            MessageError::Unfinished.into(),
            1002,
        ),
        (
            "a whole message inside an unfinished one",
            [frame(0x02, b"lost"), frame(0x81, b"kept")].concat(),
            MessageError::Unfinished.into(),
            1002,
        ),
        (
            "fragments that are each below the limit of a message",
            fragments,
            MessageError::TooLong { length: 18 * 60_000, limit }.into(),
            1009,
        ),
        (
            "a frame over the limit, of which only the header has come",
            vec![0x82, 127, 0, 0, 0, 0, 3, 0, 0, 0],
            MessageError::TooLong { length: 3 << 24, limit }.into(),
            1009,
        ),
        (
            "fragments without end that are empty",
            empty,
            MessageError::TooManyFragments { limit: FRAGMENTS }.into(),
            1008,
        ),
        (
            "a pong of 300 bytes",
            frame(0x8a, &[0; 300]),
            FrameError::LongControl { opcode: Opcode::Pong }.into(),
            1002,
        ),
        (
            "a close of 302 bytes, which would be echoed",
            frame(0x88, &[3; 302]),
            FrameError::LongControl { opcode: Opcode::Close }.into(),
            1002,
        ),
        ("a length of 5 in 64 bits", vec![0x82, 127, 0, 0, 0, 0, 0, 0, 0, 5], not_minimal(5), 1002),
        ("a length of 5 in 16 bits", vec![0x82, 126, 0, 5], not_minimal(5), 1002),
        (
            "RSV1, as a compressed message has it",
            frame(0xc1, b"x"),
            FrameError::Reserved { bits: 4 }.into(),
            1002,
        ),
        ("a reserved opcode", frame(0x83, b""), FrameError::Opcode { opcode: 3 }.into(), 1002),
        (
            "a fragmented ping",
            frame(0x09, b""),
            FrameError::FragmentedControl { opcode: Opcode::Ping }.into(),
            1002,
        ),
        ("a continuation of nothing", frame(0x80, b"x"), MessageError::NothingToContinue.into(), 1002),
        ("a text that is none", frame(0x81, b"\xff"), NotUtf8.into(), 1007),
        ("a close with half a code", frame(0x88, &[3]), CloseError::HalfCode.into(), 1002),
        ("a close with code 1006", frame(0x88, &[3, 238]), CloseError::Code { code: 1006 }.into(), 1002),
    ];
    for (what, bytes, violation, code) in table {
        for size in [1, 2, 3, 7, bytes.len()] {
            let outcome = ours::read(Chunks::new(&bytes, &[size]));
            assert_eq!(outcome.violation, Some(violation), "{what} in pieces of {size}");
            assert_eq!(outcome.seen, [], "{what} in pieces of {size}");
            assert_eq!(violation.close_code().get(), code, "{what}");
        }
    }
}

fn not_minimal(length: u64) -> Violation {
    FrameError::NotMinimal { length }.into()
}

#[test]
fn what_others_refuse_without_need_is_taken() {
    // A message of exactly the limit; one of them is off by one here.
    let bytes = frame(0x82, &vec![7; LIMIT]);
    let outcome = ours::read(Chunks::new(&bytes, &[65_536]));
    assert_eq!((outcome.seen.len(), outcome.violation), (1, None));

    // The last fragment is empty, as gateways that write through a buffer end a message.
    let bytes = [frame(0x02, &[1; 4096]), frame(0x00, &[2; 10]), frame(0x80, b"")].concat();
    let outcome = ours::read(Chunks::new(&bytes, &[1000]));
    assert_eq!(outcome.seen, [Seen::Binary([vec![1; 4096], vec![2; 10]].concat())]);

    // A character cut by a fragment, with a ping inside it.
    let bytes = [frame(0x01, b"\xe2\x82"), frame(0x89, b"?"), frame(0x80, b"\xac")].concat();
    let outcome = ours::read(Chunks::new(&bytes, &[1]));
    assert_eq!(outcome.seen, [Seen::Ping(b"?".to_vec()), Seen::Text("€".to_string())]);
}
