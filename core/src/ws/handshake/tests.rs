//! Unit tests of the opening handshake.

extern crate std;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

/// The key and its proof from RFC 6455, section 1.3.
const KEY: &[u8; 24] = b"dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

fn accepted() -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPT}\r\n\r\n"
    )
}

fn parse(text: &str) -> Result<Response, HandshakeError> {
    parse_response(text.as_bytes(), KEY)
}

fn request(parts: RequestParts<'_>) -> Result<String, RequestError> {
    let mut out = [0; 2048];
    let length = write_request(&parts, &mut out)?;
    Ok(String::from_utf8(out[..length].to_vec()).unwrap())
}

const PARTS: RequestParts<'static> = RequestParts {
    host: "gateway.example:8080",
    path_and_query: "/tunnel?job=j&agent=a",
    key: KEY,
    token: "t0k",
};

#[test]
fn the_request_is_the_pinned_text() {
    let expected = "GET /tunnel?job=j&agent=a HTTP/1.1\r\nHost: gateway.example:8080\r\n\
                    Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                    Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer t0k\r\n\r\n";
    assert_eq!(request(PARTS), Ok(expected.to_string()));
    for capacity in [0, 1, expected.len() - 1] {
        let short = RequestError::Short(Short { capacity });
        assert_eq!(write_request(&PARTS, &mut [0; 512][..capacity]), Err(short));
    }
    assert_eq!(write_request(&PARTS, &mut [0; 512][..expected.len()]), Ok(expected.len()));
}

#[test]
fn no_part_of_the_request_can_smuggle_in_a_line() {
    for bad in ["a\r\nX: y", "a\nb", "a\rb", "a\0", "a b", "a\tb", "a\x7f", "aü"] {
        for (part, parts) in [
            (RequestPart::Host, RequestParts { host: bad, ..PARTS }),
            (RequestPart::Token, RequestParts { token: bad, ..PARTS }),
        ] {
            assert_eq!(request(parts), Err(RequestError::Forbidden { part, position: 1 }), "{bad:?}");
        }
        let path = format!("/{bad}");
        let forbidden = RequestError::Forbidden { part: RequestPart::PathAndQuery, position: 2 };
        assert_eq!(request(RequestParts { path_and_query: &path, ..PARTS }), Err(forbidden));
    }
    let mut key = *KEY;
    key[23] = b'\n';
    let forbidden = RequestError::Forbidden { part: RequestPart::Key, position: 23 };
    assert_eq!(request(RequestParts { key: &key, ..PARTS }), Err(forbidden));
}

#[test]
fn a_request_with_a_part_missing_is_refused_and_no_error_shows_a_value() {
    for (part, parts) in [
        (RequestPart::Host, RequestParts { host: "", ..PARTS }),
        (RequestPart::PathAndQuery, RequestParts { path_and_query: "", ..PARTS }),
        (RequestPart::Token, RequestParts { token: "", ..PARTS }),
    ] {
        assert_eq!(request(parts), Err(RequestError::Empty { part }));
    }
    assert_eq!(request(RequestParts { path_and_query: "tunnel", ..PARTS }), Err(RequestError::NoSlash));
    let error = request(RequestParts { token: "secret\n", ..PARTS }).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("secret"));
}

#[test]
fn key_and_proof_are_those_of_the_rfc() {
    assert_eq!(&encode_key(*b"the sample nonce"), KEY);
    assert_eq!(accept_for(KEY), ACCEPT.as_bytes());
}

#[test]
fn an_answer_is_found_at_every_cut_point_and_what_follows_is_left_alone() {
    let head = accepted();
    let bytes = [head.as_bytes(), &[0x88, 0x02, 0x03, 0xf0]].concat();
    for cut in 0..head.len() {
        assert_eq!(parse_response(&bytes[..cut], KEY), Ok(Response::Incomplete), "cut at {cut}");
    }
    for cut in head.len()..=bytes.len() {
        assert_eq!(parse_response(&bytes[..cut], KEY), Ok(Response::Accepted { consumed: head.len() }));
    }
}

#[test]
fn names_and_lists_are_read_in_any_case_and_form() {
    // Others take `Connection: keep-alive, Upgrade` for a refusal.
    for connection in ["upgrade", "UPGRADE", "keep-alive, Upgrade", "keep-alive ,upgrade,", " Upgrade "] {
        let text = accepted().replace("Connection: Upgrade", &format!("connection: {connection}"));
        assert!(matches!(parse(&text), Ok(Response::Accepted { .. })), "{connection}");
    }
    let two = accepted().replace("Connection: Upgrade", "Connection: keep-alive\r\nCONNECTION: Upgrade");
    assert!(matches!(parse(&two), Ok(Response::Accepted { .. })));
    let lower = accepted().replace("Sec-WebSocket-Accept", "sec-websocket-accept");
    let proxied = accepted().replace("Sec-WebSocket-Accept", "Sec-Websocket-Accept");
    let shouted = accepted().replace("Upgrade: websocket", "UPGRADE: WebSocket");
    for text in [lower, proxied, shouted] {
        assert!(matches!(parse(&text), Ok(Response::Accepted { .. })), "{text}");
    }
}

#[test]
fn an_acceptance_of_something_else_is_an_error() {
    let accept_line = format!("Sec-WebSocket-Accept: {ACCEPT}\r\n");
    let twice = format!("{accept_line}{accept_line}");
    for (from, to, error) in [
        ("HTTP/1.1", "HTTP/1.0", HandshakeError::Version),
        ("Upgrade: websocket\r\n", "", HandshakeError::NoUpgrade),
        ("Upgrade: websocket\r\n", "Upgrade: h2c\r\n", HandshakeError::NoUpgrade),
        ("Connection: Upgrade\r\n", "", HandshakeError::NoConnection),
        ("Connection: Upgrade\r\n", "Connection: upgraded\r\n", HandshakeError::NoConnection),
        (&accept_line, "", HandshakeError::Accept { count: 0 }),
        (&accept_line, &twice, HandshakeError::Accept { count: 2 }),
        // Others never look at it.
        (ACCEPT, "S3pPLMBiTxaQ9kYGzzhZRbK+xOo=", HandshakeError::WrongAccept),
        (ACCEPT, "", HandshakeError::WrongAccept),
    ] {
        let text = accepted();
        assert!(text.contains(from));
        assert_eq!(parse(&text.replacen(from, to, 1)), Err(error), "{from} -> {to}");
    }
}

#[test]
fn what_was_not_offered_cannot_be_accepted() {
    let with = |field: &str| parse(&accepted().replacen("\r\n\r\n", &format!("\r\n{field}\r\n\r\n"), 1));
    let deflate = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover";
    assert_eq!(with(deflate), Err(HandshakeError::Extension));
    assert_eq!(with("sec-websocket-protocol: chat"), Err(HandshakeError::Protocol));
    assert!(matches!(with("Sec-WebSocket-Protocol: "), Ok(Response::Accepted { .. })));
}

#[test]
fn another_status_is_a_refusal_with_the_size_of_its_head() {
    for status in [200, 301, 400, 401, 426, 429, 500, 503] {
        let head = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 4\r\n\r\n");
        let refused = Response::Refused { status, consumed_head: head.len() };
        assert_eq!(parse(&format!("{head}body")), Ok(refused));
    }
    let old = parse("HTTP/1.0 401 Unauthorized\r\n\r\n");
    assert_eq!(old, Ok(Response::Refused { status: 401, consumed_head: 29 }));
}

#[test]
fn interim_answers_are_skipped() {
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    let text = format!("{interim}{}", accepted());
    for cut in 0..text.len() {
        assert_eq!(parse(&text[..cut]), Ok(Response::Incomplete));
    }
    assert_eq!(parse(&text), Ok(Response::Accepted { consumed: text.len() }));
}

#[test]
fn heads_without_an_end_are_refused_at_the_limits() {
    let endless = format!("HTTP/1.1 101 S\r\nX: {}", "x".repeat(MAX_HEAD));
    assert_eq!(parse(&endless[..MAX_HEAD - 1]), Ok(Response::Incomplete));
    assert_eq!(parse(&endless[..MAX_HEAD]), Err(HandshakeError::TooLong));
    let interims = "HTTP/1.1 100 Continue\r\n\r\n".repeat(MAX_HEAD / 25 + 1);
    assert_eq!(parse(&interims), Err(HandshakeError::TooLong));

    let with_fields = |count: usize| {
        let fields: String = (0..count).map(|index| format!("X-{index}: y\r\n")).collect();
        parse(&accepted().replacen("\r\n\r\n", &format!("\r\n{fields}\r\n"), 1))
    };
    assert!(matches!(with_fields(MAX_FIELDS - 3), Ok(Response::Accepted { .. })));
    assert_eq!(with_fields(MAX_FIELDS - 2), Err(HandshakeError::TooManyFields));
}

#[test]
fn what_is_no_http_is_refused() {
    for text in [
        "SSH-2.0-OpenSSH_9.2\r\n",
        "\x16\x03\x01",
        "HTTP/2 101\r\n",
        "HTTP/1.1 1O1 X\r\n",
        "HTTP/1.1 101 S\r\n: x\r\n",
    ] {
        assert!(matches!(parse(text), Err(HandshakeError::Malformed { .. })), "{text:?}");
    }
}

proptest! {
    #[test]
    fn any_bytes_are_answered_without_a_panic(
        place in 0_usize..140, damage in prop::collection::vec(any::<u8>(), 0..8),
    ) {
        let mut bytes: Vec<u8> = accepted().into_bytes();
        let place = place.min(bytes.len());
        let end = (place + damage.len()).min(bytes.len());
        bytes.splice(place..end, damage);
        let _ = parse_response(&bytes, KEY);
    }
}
