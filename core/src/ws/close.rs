//! How a connection ends: close codes and the payload of a close frame (RFC 6455, sections 5.5.1 and 7.4).
//!
//! A [`CloseCode`] is always one that may be on the wire. 1005, 1006 and 1015 are names for things that
//! were *not* received; here "no code" is `None`, and a lost connection is no close at all.

use core::fmt;

use thiserror::Error;

/// Longest payload of a close frame in bytes: the limit of all control frames.
pub const MAX_CLOSE_PAYLOAD: usize = 125;

/// Longest reason in a close frame in bytes: what the code leaves.
pub const MAX_CLOSE_REASON: usize = MAX_CLOSE_PAYLOAD - 2;

/// A close code that may be sent and received: 1000-1003, 1007-1014 (IANA's registry), 3000-4999.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CloseCode(u16);

impl CloseCode {
    /// The purpose was fulfilled.
    pub const NORMAL: Self = Self(1000);
    /// The endpoint goes away.
    pub const GOING_AWAY: Self = Self(1001);
    /// The peer broke the protocol.
    pub const PROTOCOL_ERROR: Self = Self(1002);
    /// A kind of data that cannot be taken.
    pub const UNSUPPORTED: Self = Self(1003);
    /// Data that does not match its kind, such as text that is not UTF-8.
    pub const INVALID_DATA: Self = Self(1007);
    /// Something that is not allowed here.
    pub const POLICY: Self = Self(1008);
    /// A message that is too big.
    pub const TOO_BIG: Self = Self(1009);
    /// The endpoint met an error of its own.
    pub const INTERNAL: Self = Self(1011);

    /// The code with this number, if it may be on the wire.
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        match number {
            1000..=1003 | 1007..=1014 | 3000..=4999 => Some(Self(number)),
            _ => None,
        }
    }

    /// Its number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The payload of a close frame by its meaning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ClosePayload<'a> {
    /// Why, if the peer said so.
    pub code: Option<CloseCode>,
    /// Why, in words; empty without a code.
    pub reason: &'a str,
}

/// A close frame's payload that RFC 6455 rules out.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum CloseError {
    /// Half a code.
    #[error("a close frame carries one byte, which is half a close code")]
    HalfCode,
    /// A code that must not be on the wire.
    #[error("close code {code} must not be sent")]
    Code {
        /// The code that was received.
        code: u16,
    },
    /// A reason that is no text.
    #[error("the reason of a close frame is not UTF-8")]
    NotUtf8,
}

impl CloseError {
    /// What our close frame has to say about it.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::HalfCode | Self::Code { .. } => CloseCode::PROTOCOL_ERROR,
            Self::NotUtf8 => CloseCode::INVALID_DATA,
        }
    }
}

/// Reads the whole (unmasked) payload of a close frame.
///
/// # Errors
/// If RFC 6455 rules it out. The frame's length is the frame decoder's business.
pub fn parse_close_payload(payload: &[u8]) -> Result<ClosePayload<'_>, CloseError> {
    let Some((number, reason)) = payload.split_first_chunk() else {
        let nothing = ClosePayload { code: None, reason: "" };
        return if payload.is_empty() { Ok(nothing) } else { Err(CloseError::HalfCode) };
    };
    let number = u16::from_be_bytes(*number);
    let code = CloseCode::new(number).ok_or(CloseError::Code { code: number })?;
    let reason = core::str::from_utf8(reason).map_err(|_| CloseError::NotUtf8)?;
    Ok(ClosePayload { code: Some(code), reason })
}

/// Writes a close frame's (unmasked) payload to the start of `out` and says how long it is.
/// A reason of more than [`MAX_CLOSE_REASON`] bytes is cut at a character's boundary.
pub fn write_close(code: CloseCode, reason: &str, out: &mut [u8; MAX_CLOSE_PAYLOAD]) -> usize {
    let reason = crate::tunnel::clip::<MAX_CLOSE_REASON>(reason);
    let end = 2 + reason.len();
    out[..2].copy_from_slice(&code.0.to_be_bytes());
    out[2..end].copy_from_slice(reason.as_bytes());
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_codes_that_may_be_on_the_wire_are_these() {
        for number in 0..=u16::MAX {
            let allowed = matches!(number, 1000..=1003 | 1007..=1014 | 3000..=4999);
            assert_eq!(CloseCode::new(number).map(CloseCode::get), allowed.then_some(number));
        }
    }

    #[test]
    fn what_was_written_is_read_back() {
        let longest: heapless::String<123> = core::iter::repeat_n('x', 123).collect();
        for reason in ["", "r", "über", &longest] {
            let mut out = [0; MAX_CLOSE_PAYLOAD];
            let length = write_close(CloseCode::GOING_AWAY, reason, &mut out);
            assert_eq!(length, 2 + reason.len());
            let expected = ClosePayload { code: Some(CloseCode::GOING_AWAY), reason };
            assert_eq!(parse_close_payload(&out[..length]), Ok(expected));
        }
    }

    #[test]
    fn a_reason_that_is_too_long_is_cut_between_characters() {
        let mut reason: heapless::String<130> = core::iter::repeat_n('x', 122).collect();
        reason.push('ü').unwrap();
        let mut out = [0; MAX_CLOSE_PAYLOAD];
        assert_eq!(write_close(CloseCode::NORMAL, &reason, &mut out), 2 + 122);
    }

    #[test]
    fn an_empty_payload_is_a_close_without_a_code() {
        assert_eq!(parse_close_payload(b""), Ok(ClosePayload { code: None, reason: "" }));
    }

    #[test]
    fn payloads_that_the_rfc_rules_out_are_refused() {
        assert_eq!(parse_close_payload(&[3]), Err(CloseError::HalfCode));
        for code in [0_u16, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535] {
            let expected = Err(CloseError::Code { code });
            assert_eq!(parse_close_payload(&code.to_be_bytes()), expected);
        }
        assert_eq!(parse_close_payload(&[3, 232, 0xc3]), Err(CloseError::NotUtf8));
        assert_eq!(parse_close_payload(&[3, 232, 0xff, b'x']), Err(CloseError::NotUtf8));
        assert_eq!(CloseError::NotUtf8.close_code().get(), 1007);
        assert_eq!(CloseError::HalfCode.close_code().get(), 1002);
    }
}
