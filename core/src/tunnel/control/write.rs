//! The control frames that we send.

use super::super::{MAX_REASON, MAX_SESSION_ID, SessionId, clip};
use crate::output::{Short, Writer};

const SESSION: &[u8] = br#"{"type":"session_close","session_id":""#;
const REASON: &[u8] = br#"","reason":""#;
const END: &[u8] = br#""}"#;

/// Longest escaped form of one byte.
const MAX_ESCAPED: usize = 6;

/// Longest `session_close` in bytes.
pub const MAX_SESSION_CLOSE: usize =
    SESSION.len() + REASON.len() + END.len() + MAX_ESCAPED * (MAX_SESSION_ID + MAX_REASON);

/// Writes `ready` to the start of `out` and says how long it is.
///
/// # Errors
/// If `out` is too short.
pub fn write_ready(out: &mut [u8]) -> Result<usize, Short> {
    let mut writer = Writer::new(out);
    writer.put(br#"{"type":"ready"}"#);
    writer.finish()
}

/// Writes `session_close` to the start of `out` and says how long it is. An empty reason is left out, one of
/// more than [`MAX_REASON`] bytes is cut; [`MAX_SESSION_CLOSE`] bytes are always enough.
///
/// # Errors
/// If `out` is too short.
pub fn write_session_close(session: &SessionId, reason: &str, out: &mut [u8]) -> Result<usize, Short> {
    let mut writer = Writer::new(out);
    writer.put(SESSION);
    put_escaped(session, &mut writer);
    if !reason.is_empty() {
        writer.put(REASON);
        put_escaped(&clip::<MAX_REASON>(reason), &mut writer);
    }
    writer.put(END);
    writer.finish()
}

/// Escapes what RFC 8259, section 7, says must be.
fn put_escaped(text: &str, writer: &mut Writer<'_>) {
    const HEX: [u8; 16] = *b"0123456789abcdef";
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => writer.put(&[b'\\', byte]),
            0..=0x1f => {
                let [high, low] = [byte >> 4, byte & 15].map(|digit| HEX[usize::from(digit)]);
                writer.put(&[b'\\', b'u', b'0', b'0', high, low]);
            }
            _ => writer.put(&[byte]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::control::{Control, ControlLexer};

    #[test]
    fn what_we_send_is_the_pinned_text() {
        let mut out = [0; MAX_SESSION_CLOSE];
        let length = write_ready(&mut out).unwrap();
        assert_eq!(&out[..length], br#"{"type":"ready"}"#);
        let session = SessionId::new("s\"1\\ü").unwrap();
        let length = write_session_close(&session, "", &mut out).unwrap();
        assert_eq!(&out[..length], r#"{"type":"session_close","session_id":"s\"1\\ü"}"#.as_bytes());
        let length = write_session_close(&session, "a\nb", &mut out).unwrap();
        let expected = r#"{"type":"session_close","session_id":"s\"1\\ü","reason":"a\u000ab"}"#;
        assert_eq!(&out[..length], expected.as_bytes());
    }

    #[test]
    fn the_longest_frame_fits_and_comes_back() {
        let controls: heapless::String<256> = core::iter::repeat_n('\x1f', 256).collect();
        let session = SessionId::new(&controls).unwrap();
        let mut out = [0; MAX_SESSION_CLOSE];
        assert_eq!(write_session_close(&session, &controls, &mut out), Ok(MAX_SESSION_CLOSE));
        let mut lexer = ControlLexer::new();
        lexer.feed(&out).unwrap();
        assert_eq!(lexer.finish(), Ok(Control::SessionClose { session, reason: controls }));
    }

    #[test]
    fn a_buffer_that_is_too_short_is_an_error_at_every_length() {
        let session = SessionId::new("s").unwrap();
        let length = write_session_close(&session, "r", &mut [0; 128]).unwrap();
        for capacity in 0..length {
            let short = Err(Short { capacity });
            assert_eq!(write_session_close(&session, "r", &mut [0; 128][..capacity]), short);
        }
        assert_eq!(write_ready(&mut [0; 15]), Err(Short { capacity: 15 }));
    }
}
