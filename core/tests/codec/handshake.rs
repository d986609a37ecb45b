//! The opening handshake against tungstenite's server side.

use std::io::{self, Read, Write};

use proptest::prelude::*;
use sidecar_core::ws::handshake::{
    HandshakeError, RequestParts, Response, encode_key, parse_response, write_request,
};
use tungstenite::handshake::server::{Request, Response as Answer};

/// A socket with the request in it; keeps what the server answers.
struct Socket<'a> {
    request: &'a [u8],
    answer: &'a mut Vec<u8>,
}

impl Read for Socket<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.request.read(out)
    }
}

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.answer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tungstenite_takes_our_request_and_we_take_its_answer_at_every_cut_point(
        nonce: [u8; 16], token in "[!-~]{1,80}", job in "[0-9a-f-]{1,36}", with_extra: bool,
    ) {
        let key = encode_key(nonce);
        let target = format!("/tunnel?job={job}&agent=a");
        let parts = RequestParts { host: "localhost:8080", path_and_query: &target, key: &key, token: &token };
        let mut request = [0; 1024];
        let length = write_request(&parts, &mut request).unwrap();

        let mut answer = vec![];
        let socket = Socket { request: &request[..length], answer: &mut answer };
        let mut got = None;
        #[expect(clippy::result_large_err, reason = "the callback's type is tungstenite's")]
        let server = |request: &Request, mut answer: Answer| {
            let field = |name| request.headers().get(name).map(|value| value.as_bytes().to_vec());
            got = Some((request.uri().to_string(), field("authorization"), field("origin"), field("host")));
            if with_extra {
                answer.headers_mut().insert("x-request-id", "1".parse().unwrap());
            }
            Ok(answer)
        };
        let socket = tungstenite::accept_hdr(socket, server).map_err(|error| error.to_string());
        prop_assert!(socket.is_ok(), "{:?}", socket.err());
        drop(socket);

        let bearer = format!("Bearer {token}").into_bytes();
        prop_assert_eq!(got, Some((target.clone(), Some(bearer), None, Some(b"localhost:8080".to_vec()))));
        for cut in 0..answer.len() {
            prop_assert_eq!(parse_response(&answer[..cut], &key), Ok(Response::Incomplete));
        }
        prop_assert_eq!(parse_response(&answer, &key), Ok(Response::Accepted { consumed: answer.len() }));
        // The same answer to somebody else's request, as a cache would give it.
        let other = encode_key(nonce.map(|byte| !byte));
        prop_assert_eq!(parse_response(&answer, &other), Err(HandshakeError::WrongAccept));
    }
}
