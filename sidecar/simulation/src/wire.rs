//! The server's half of RFC 6455 and of the tunnel's framing, written for the gateway model alone: the core's codec
//! never tests itself.

use base64ct::{Base64, Encoding as _};
use sha1::{Digest, Sha1};

pub(crate) const CONTINUATION: u8 = 0;
pub(crate) const TEXT: u8 = 1;
pub(crate) const BINARY: u8 = 2;
pub(crate) const CLOSE: u8 = 8;
pub(crate) const PING: u8 = 9;
pub(crate) const PONG: u8 = 10;

/// A frame that a client sent, unmasked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ClientFrame {
    pub(crate) opcode: u8,
    pub(crate) payload: Vec<u8>,
}

/// Writes a server's frame.
pub(crate) fn frame(out: &mut Vec<u8>, fin: bool, opcode: u8, payload: &[u8]) {
    out.push(u8::from(fin) << 7 | opcode);
    match payload.len() {
        short @ 0..=125 => out.push(short as u8),
        medium @ 126..=65_535 => {
            out.push(126);
            out.extend_from_slice(&(medium as u16).to_be_bytes());
        }
        long => {
            out.push(127);
            out.extend_from_slice(&(long as u64).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}

/// A data message: length and text of the session id, payload (tunnel contract A.3).
pub(crate) fn data(session: &str, payload: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(4 + session.len() + payload.len());
    message.extend_from_slice(&(session.len() as u32).to_be_bytes());
    message.extend_from_slice(session.as_bytes());
    message.extend_from_slice(payload);
    message
}

/// Takes a data message apart.
pub(crate) fn split_data(message: &[u8]) -> Result<(&str, &[u8]), &'static str> {
    let (length, rest) = message.split_first_chunk::<4>().ok_or("data frame shorter than 4 bytes")?;
    let length = u32::from_be_bytes(*length) as usize;
    let session = rest.get(..length).ok_or("session id past the end")?;
    Ok((core::str::from_utf8(session).map_err(|_| "session id is not UTF-8")?, &rest[length..]))
}

/// The next complete frame at the front of `bytes`, and its length.
///
/// # Errors
/// The client broke RFC 6455.
pub(crate) fn client_frame(bytes: &[u8]) -> Result<Option<(ClientFrame, usize)>, &'static str> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    if first & 0x80 == 0 {
        return Err("the client fragmented a message");
    }
    if first & 0x70 != 0 {
        return Err("the client set a reserved bit");
    }
    if second & 0x80 == 0 {
        return Err("the client did not mask");
    }
    let (length, at) = match second & 0x7f {
        126 => match rest.split_first_chunk::<2>() {
            Some((length, _)) => (u16::from_be_bytes(*length) as usize, 2),
            None => return Ok(None),
        },
        127 => match rest.split_first_chunk::<8>() {
            Some((length, _)) => (u64::from_be_bytes(*length) as usize, 8),
            None => return Ok(None),
        },
        short => (usize::from(short), 0),
    };
    if (at == 2 && length < 126) || (at == 8 && length < 65_536) {
        return Err("the client's length is not minimal");
    }
    let opcode = first & 0x0f;
    if !matches!(opcode, TEXT | BINARY | CLOSE | PING | PONG) || (opcode >= CLOSE && length > 125) {
        return Err("the client sent a frame that is none");
    }
    let Some(key) = rest.get(at..at + 4) else { return Ok(None) };
    let Some(masked) = rest.get(at + 4..at + 4 + length) else { return Ok(None) };
    let payload = masked.iter().enumerate().map(|(index, byte)| byte ^ key[index % 4]).collect();
    Ok(Some((ClientFrame { opcode, payload }, 2 + at + 4 + length)))
}

/// An upgrade request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Request {
    pub(crate) agent: String,
    pub(crate) job: String,
    pub(crate) token: String,
    pub(crate) key: String,
}

/// The request at the front of `bytes`, once it is complete, and its length.
///
/// # Errors
/// It is none that a gateway takes.
pub(crate) fn request(bytes: &[u8]) -> Result<Option<(Request, usize)>, &'static str> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { return Ok(None) };
    let text = core::str::from_utf8(&bytes[..end]).map_err(|_| "the request is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let target = lines
        .next()
        .and_then(|line| line.strip_prefix("GET "))
        .and_then(|line| line.strip_suffix(" HTTP/1.1"))
        .ok_or("the request line is none")?;
    let (_, query) = target.split_once('?').ok_or("no query")?;
    let parameter = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(str::to_owned)
    };
    let headers: Vec<_> = lines.filter_map(|line| line.split_once(": ")).collect();
    let header = |name: &str| {
        headers.iter().find(|(it, _)| it.eq_ignore_ascii_case(name)).map(|(_, value)| (*value).to_owned())
    };
    if header("Origin").is_some() || header("Sec-WebSocket-Extensions").is_some() {
        return Err("an Origin, or an extension");
    }
    Ok(Some((
        Request {
            agent: parameter("agent").ok_or("no agent")?,
            job: parameter("job").ok_or("no job")?,
            token: header("Authorization")
                .and_then(|value| value.strip_prefix("Bearer ").map(str::to_owned))
                .ok_or("no bearer token")?,
            key: header("Sec-WebSocket-Key").ok_or("no key")?,
        },
        end + 4,
    )))
}

/// The answer 101.
pub(crate) fn accept(key: &str) -> String {
    let digest =
        Sha1::new().chain_update(key).chain_update("258EAFA5-E914-47DA-95CA-C5AB0DC85B11").finalize();
    let mut text = [0; 28];
    let accept = Base64::encode(&digest, &mut text).expect("20 bytes are 28 letters");
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
    )
}

/// A payload of the close frame.
pub(crate) fn close(code: u16, reason: &str) -> Vec<u8> {
    let mut payload = code.to_be_bytes().to_vec();
    payload.extend_from_slice(reason.as_bytes());
    payload
}
