//! The opening handshake from the client's side (RFC 6455, section 4.1).
//!
//! The request is one block with Title-Case names. It carries no `Origin` (gateways compare it with their own
//! host and refuse), and offers no extension and no subprotocol, so an answer that claims one is an error.
//! The answer is read from a slice that may be cut anywhere, with names in any case; what follows it in the
//! slice is left alone: a gateway at capacity sends its close frame along with the 101.

use base64ct::{Base64, Encoding};
use sha1::{Digest, Sha1};
use thiserror::Error;

use crate::output::{Short, Writer};

/// Longest head of an answer in bytes, interim answers before it included.
pub const MAX_HEAD: usize = 16 * 1024;

/// Most header fields in an answer.
pub const MAX_FIELDS: usize = 64;

/// What the server appends to the key before it hashes it (RFC 6455, section 1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

const SWITCHING_PROTOCOLS: u16 = 101;

/// The parts of a request that differ from dial to dial.
#[derive(Copy, Clone)]
pub struct RequestParts<'a> {
    /// Value of `Host`: name or address, with the port unless it is the scheme's default.
    pub host: &'a str,
    /// Target of the request, from the first `/` on.
    pub path_and_query: &'a str,
    /// A fresh key, from [`encode_key`].
    pub key: &'a [u8; 24],
    /// The bearer token. It is in no error and no `Debug` output of this crate.
    pub token: &'a str,
}

/// A part of the request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RequestPart {
    /// [`RequestParts::host`]
    Host,
    /// [`RequestParts::path_and_query`]
    PathAndQuery,
    /// [`RequestParts::key`]
    Key,
    /// [`RequestParts::token`]
    Token,
}

impl RequestPart {
    const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::PathAndQuery => "path and query",
            Self::Key => "key",
            Self::Token => "token",
        }
    }
}

/// A request that cannot be written. The offending value is named, never shown.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum RequestError {
    /// A byte that would end or change the line: control, space, or not ASCII.
    #[error("the {} of the request has a forbidden byte at position {position}", part.name())]
    Forbidden {
        /// Where.
        part: RequestPart,
        /// Position of the byte in the part.
        position: usize,
    },
    /// A part that cannot be empty.
    #[error("the {} of the request is empty", part.name())]
    Empty {
        /// Which one.
        part: RequestPart,
    },
    /// A target that does not begin with a slash.
    #[error("the path of the request does not begin with a slash")]
    NoSlash,
    /// The buffer is too short.
    #[error(transparent)]
    Short(#[from] Short),
}

/// Writes the request to the start of `out` and says how long it is.
///
/// # Errors
/// If a part could change the meaning of another line, or `out` is too short.
pub fn write_request(parts: &RequestParts<'_>, out: &mut [u8]) -> Result<usize, RequestError> {
    let RequestParts { host, path_and_query, key, token } = *parts;
    check(RequestPart::Host, host.as_bytes())?;
    check(RequestPart::PathAndQuery, path_and_query.as_bytes())?;
    check(RequestPart::Key, key)?;
    check(RequestPart::Token, token.as_bytes())?;
    if !path_and_query.starts_with('/') {
        return Err(RequestError::NoSlash);
    }
    let mut writer = Writer::new(out);
    for piece in [
        b"GET ".as_slice(),
        path_and_query.as_bytes(),
        b" HTTP/1.1\r\nHost: ",
        host.as_bytes(),
        b"\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: ",
        key,
        b"\r\nAuthorization: Bearer ",
        token.as_bytes(),
        b"\r\n\r\n",
    ] {
        writer.put(piece);
    }
    Ok(writer.finish()?)
}

fn check(part: RequestPart, value: &[u8]) -> Result<(), RequestError> {
    if value.is_empty() {
        return Err(RequestError::Empty { part });
    }
    match value.iter().position(|byte| !byte.is_ascii_graphic()) {
        Some(position) => Err(RequestError::Forbidden { part, position }),
        None => Ok(()),
    }
}

/// The value of `Sec-WebSocket-Key` for 16 random bytes.
#[must_use]
pub fn encode_key(nonce: [u8; 16]) -> [u8; 24] {
    let mut key = [0; 24];
    Base64::encode(&nonce, &mut key).expect("16 bytes take 24 characters of base64");
    key
}

/// The value of `Sec-WebSocket-Accept` that proves that the server read `key`.
#[must_use]
pub fn accept_for(key: &[u8; 24]) -> [u8; 28] {
    let hash = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut accept = [0; 28];
    Base64::encode(&hash, &mut accept).expect("20 bytes take 28 characters of base64");
    accept
}

/// What the server has answered so far.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Response {
    /// The head goes on.
    Incomplete,
    /// The connection is a WebSocket now; frames start `consumed` bytes in.
    Accepted {
        /// Bytes of the head.
        consumed: usize,
    },
    /// The server answered with another status: it will not upgrade.
    Refused {
        /// Its status, never 1xx.
        status: u16,
        /// Bytes of the head; a body may follow.
        consumed_head: usize,
    },
}

/// An answer that is not what a server may send.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum HandshakeError {
    /// It is no HTTP.
    #[error("the answer to the upgrade is not HTTP: {cause}")]
    Malformed {
        /// What the HTTP parser says.
        cause: httparse::Error,
    },
    /// The head does not end.
    #[error("the head of the answer is longer than {MAX_HEAD} bytes")]
    TooLong,
    /// The head has too many fields.
    #[error("the head of the answer has more than {MAX_FIELDS} fields")]
    TooManyFields,
    /// A 101 in an HTTP version that has none.
    #[error("the answer accepts the upgrade in HTTP/1.0")]
    Version,
    /// A 101 that does not say that it upgrades to WebSocket.
    #[error("the answer accepts the upgrade without `Upgrade: websocket`")]
    NoUpgrade,
    /// A 101 without `upgrade` in the list of `Connection`.
    #[error("the answer accepts the upgrade without `Connection: Upgrade`")]
    NoConnection,
    /// A 101 without a proof that our request was read, or with several.
    #[error("the answer has {count} `Sec-WebSocket-Accept` fields instead of one")]
    Accept {
        /// How many there were.
        count: usize,
    },
    /// A 101 for another request, as a cache would send it.
    #[error("the `Sec-WebSocket-Accept` of the answer does not match our key")]
    WrongAccept,
    /// A 101 with an extension; none was offered.
    #[error("the answer uses an extension that was not offered")]
    Extension,
    /// A 101 with a subprotocol; none was offered.
    #[error("the answer uses a subprotocol that was not offered")]
    Protocol,
}

/// Reads the answer at the start of `bytes`, which holds everything that was received so far.
/// Interim answers (1xx other than 101) in front of it are skipped.
///
/// # Errors
/// If it is no HTTP, is past a limit, or accepts an upgrade that we did not ask for.
pub fn parse_response(bytes: &[u8], key: &[u8; 24]) -> Result<Response, HandshakeError> {
    let window = &bytes[..bytes.len().min(MAX_HEAD)];
    let mut start = 0;
    loop {
        let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
        let mut head = httparse::Response::new(&mut fields);
        let size = match head.parse(&window[start..]) {
            Ok(httparse::Status::Complete(size)) => size,
            Ok(httparse::Status::Partial) if window.len() == MAX_HEAD => return Err(HandshakeError::TooLong),
            Ok(httparse::Status::Partial) => return Ok(Response::Incomplete),
            Err(httparse::Error::TooManyHeaders) => return Err(HandshakeError::TooManyFields),
            Err(cause) => return Err(HandshakeError::Malformed { cause }),
        };
        // A complete head has a status.
        let status = head.code.unwrap_or_default();
        let end = start + size;
        match status {
            SWITCHING_PROTOCOLS => {
                check_upgrade(&head, key)?;
                return Ok(Response::Accepted { consumed: end });
            }
            100..=199 => start = end,
            _ => return Ok(Response::Refused { status, consumed_head: end }),
        }
    }
}

fn check_upgrade(head: &httparse::Response<'_, '_>, key: &[u8; 24]) -> Result<(), HandshakeError> {
    if head.version != Some(1) {
        return Err(HandshakeError::Version);
    }
    if !has_token(head.headers, "upgrade", "websocket") {
        return Err(HandshakeError::NoUpgrade);
    }
    if !has_token(head.headers, "connection", "upgrade") {
        return Err(HandshakeError::NoConnection);
    }
    let mut accepts = values(head.headers, "sec-websocket-accept");
    match (accepts.next(), accepts.count()) {
        (Some(accept), 0) if accept == accept_for(key) => {}
        (Some(_), 0) => return Err(HandshakeError::WrongAccept),
        (first, more) => return Err(HandshakeError::Accept { count: usize::from(first.is_some()) + more }),
    }
    // A field with an empty value names nothing.
    if values(head.headers, "sec-websocket-extensions").any(|value| !value.is_empty()) {
        return Err(HandshakeError::Extension);
    }
    if values(head.headers, "sec-websocket-protocol").any(|value| !value.is_empty()) {
        return Err(HandshakeError::Protocol);
    }
    Ok(())
}

/// Values of all fields with this name, whose case does not matter, without the space around them.
fn values<'a>(fields: &'a [httparse::Header<'_>], name: &'a str) -> impl Iterator<Item = &'a [u8]> {
    fields
        .iter()
        .filter(move |field| field.name.eq_ignore_ascii_case(name))
        .map(|field| field.value.trim_ascii())
}

/// Whether `token` is in the comma-separated lists of the fields with this name; no case matters.
fn has_token(fields: &[httparse::Header<'_>], name: &str, token: &str) -> bool {
    values(fields, name)
        .flat_map(|value| value.split(|byte| *byte == b','))
        .any(|item| item.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
}

#[cfg(test)]
mod tests;
