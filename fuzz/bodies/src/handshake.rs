//! Answers to an upgrade request: nothing in them panics, and a verdict once reached is not changed by more bytes.

use sidecar_core::ws::handshake::{Response, parse_response};

/// The example of RFC 6455 section 1.3.
pub const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
/// What a server makes of it, in the same place.
pub const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The target's body.
pub fn run(bytes: &[u8]) {
    let whole = parse_response(bytes, KEY);
    match whole {
        Ok(Response::Accepted { consumed }) => {
            assert!(consumed <= bytes.len());
            let head = &bytes[..consumed];
            assert!(head.ends_with(b"\n"), "the head ends with an empty line");
            assert!(head.windows(ACCEPT.len()).any(|window| window == ACCEPT.as_bytes()));
            assert_eq!(parse_response(head, KEY), whole, "the bytes behind the head are no part of it");
        }
        Ok(Response::Refused { status, consumed_head }) => {
            assert!(consumed_head <= bytes.len() && status != 101);
        }
        Ok(Response::Incomplete) | Err(_) => {}
    }
    // A reader asks after each receive: every prefix has to be readable, and the first verdict is the last.
    let stride = 1 + bytes.len() / 64;
    for end in (0..bytes.len()).step_by(stride) {
        match parse_response(&bytes[..end], KEY) {
            Ok(Response::Incomplete) => {}
            Err(_) => assert!(whole.is_err(), "refused at {end}, accepted in the end"),
            verdict => assert_eq!(verdict, whole, "decided at {end}"),
        }
    }
}
