//! `ws` and `time`.

use core::fmt::Write;
use core::time::Duration;

use heapless::String;
use sidecar_core::time::Instant;
use sidecar_core::ws::Violation;
use sidecar_core::ws::close::{CloseCode, MAX_CLOSE_PAYLOAD, parse_close_payload, write_close};
use sidecar_core::ws::frame::{Decoded, Header, MAX_HEADER, Opcode, decode, encode, header_size};
use sidecar_core::ws::handshake::{
    RequestParts, Response, accept_for, encode_key, parse_response, write_request,
};
use sidecar_core::ws::mask;
use sidecar_core::ws::message::{Assembler, MessageError, MessageLimits, Part};
use sidecar_core::ws::utf8::Utf8;

use crate::Proof;

pub(crate) fn run() -> Proof {
    time()?;
    handshake()?;
    frame()?;
    close()
}

fn time() -> Proof {
    let now = Instant::from_nanos(7) + Duration::from_nanos(3);
    ensure!(now.as_nanos() == 10);
    ensure!(now.since(now.saturating_sub(Duration::from_nanos(4))) == Duration::from_nanos(4));
    Ok(())
}

fn handshake() -> Proof {
    let key = encode_key([3; 16]);
    let parts = RequestParts { host: "h", path_and_query: "/?job=j", key: &key, token: "t" };
    let mut request = [0; 512];
    ensure!(write_request(&parts, &mut request).is_ok());
    let error = write_request(&RequestParts { host: "a b", ..parts }, &mut request);
    ensure!(error.is_err_and(|error| is_told(&error)));

    let mut answer: String<256> = String::new();
    let accept = accept_for(&key);
    ensure!(write_answer(&mut answer, &accept).is_ok());
    let accepted = Response::Accepted { consumed: answer.len() };
    ensure!(parse_response(answer.as_bytes(), &key) == Ok(accepted));
    ensure!(parse_response(answer.as_bytes(), &[b'x'; 24]).is_err_and(|error| is_told(&error)));
    ensure!(parse_response(b"no http", &key).is_err_and(|error| is_told(&error)));
    Ok(())
}

/// The answer of a server that accepts.
pub(crate) fn write_answer(answer: &mut String<256>, accept: &[u8; 28]) -> core::fmt::Result {
    answer.write_str("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n")?;
    answer.write_str("Connection: Upgrade\r\nSec-WebSocket-Accept: ")?;
    answer.write_str(core::str::from_utf8(accept).map_err(|_| core::fmt::Error)?)?;
    answer.write_str("\r\n\r\n")
}

fn frame() -> Proof {
    let header = Header { fin: false, opcode: Opcode::Binary, masked: Some([1, 2, 3, 4]), length: 70_000 };
    let mut head = [0; MAX_HEADER];
    let size = encode(&header, &mut head);
    ensure!(size == header_size(70_000, true) && !header.opcode.is_control());
    ensure!(decode(&head) == Ok(Decoded::Header { header, size }));
    ensure!(decode(&[0xff]).is_err_and(|error| is_told(&error)));

    let mut data = [0; 100];
    mask::apply([1, 2, 3, 4], 1, &mut data);
    ensure!(data[0] == 2);

    let limits = MessageLimits { text_bytes: 10, binary_bytes: 10, fragments: 2 };
    let mut assembler = Assembler::new(limits);
    let text = Header { fin: false, opcode: Opcode::Text, masked: None, length: 10 };
    ensure!(matches!(assembler.handle_frame(&text), Ok(Part::Data { first: true, .. })));
    ensure!(assembler.is_within_message());
    ensure!(assembler.handle_frame(&text).is_err_and(|error: MessageError| is_told(&error)));
    let masked = assembler.handle_frame(&header).map_err(Violation::from);
    ensure!(masked.is_err_and(|error| error.close_code() == CloseCode::PROTOCOL_ERROR));

    let mut utf8 = Utf8::new();
    ensure!(utf8.feed("ü".as_bytes()).is_ok() && utf8.finish().is_ok());
    ensure!(utf8.feed(b"\xff").is_err_and(|error| is_told(&error)));
    Ok(())
}

fn close() -> Proof {
    let mut payload = [0; MAX_CLOSE_PAYLOAD];
    let code = CloseCode::new(3000).ok_or(line!())?;
    let length = write_close(code, "bye", &mut payload);
    let close = parse_close_payload(&payload[..length]).map_err(|_| line!())?;
    ensure!(close.code.is_some_and(|code| code.get() == 3000) && close.reason == "bye");
    ensure!(parse_close_payload(&[0]).is_err_and(|error| error.close_code().get() == 1002));
    ensure!(MessageError::Masked.close_code().get() == 1002);
    Ok(())
}

/// Whether there is text for it, which is formatted without an allocator, too.
pub(crate) fn is_told(error: &impl core::error::Error) -> bool {
    let mut text: String<256> = String::new();
    write!(text, "{error} {error:?}").is_ok() && !text.is_empty()
}
