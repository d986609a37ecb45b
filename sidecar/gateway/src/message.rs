//! What the tunnel's messages hold: control frames (tunnel contract A.2) and the head of data frames (A.3).

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Longest session id, in bytes (A.3).
pub(crate) const MAX_SESSION_ID: usize = 256;

/// A control frame of the gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Control<'a> {
    Warmup,
    Queued { reason: &'a str },
    SessionOpen { session_id: &'a str },
    SessionClose { session_id: &'a str, reason: &'a str },
    Drain { reason: &'a str },
}

impl Control<'_> {
    pub(crate) fn text(&self) -> String {
        serde_json::to_string(self).expect("an enum of strings is always JSON")
    }
}

/// A control frame of the agent, as far as it has an effect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FromAgent {
    Ready,
    SessionClose {
        session: String,
        reason: String,
    },
    /// An unknown type or a wrong direction: tolerated, without effect (A.2).
    Ignored {
        kind: String,
    },
}

#[derive(Deserialize)]
struct Fields {
    #[serde(rename = "type")]
    kind: String,
    session_id: Option<String>,
    reason: Option<String>,
}

/// Reads a control frame; what is none is an error to be logged, not a reason to drop the connection.
pub(crate) fn read_control(text: &[u8]) -> Result<FromAgent, serde_json::Error> {
    let fields: Fields = serde_json::from_slice(text)?;
    Ok(match (fields.kind.as_str(), fields.session_id) {
        ("ready", _) => FromAgent::Ready,
        ("session_close", Some(session)) => {
            FromAgent::SessionClose { session, reason: fields.reason.unwrap_or_default() }
        }
        _ => FromAgent::Ignored { kind: fields.kind },
    })
}

/// A data frame that drops the connection (A.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum DataError {
    #[error("a data frame of {0} bytes is shorter than its length field")]
    TooShort(usize),
    #[error("a session id of {claimed} bytes overruns a data frame of {frame}")]
    Overrun { claimed: u32, frame: usize },
    #[error("a session id of {0} bytes is longer than 256")]
    TooLong(u32),
}

/// The session id and the payload of a data frame.
pub(crate) fn read_data(frame: &[u8]) -> Result<(&[u8], &[u8]), DataError> {
    let (length, rest) = frame.split_first_chunk().ok_or(DataError::TooShort(frame.len()))?;
    let claimed = u32::from_be_bytes(*length);
    let overrun = DataError::Overrun { claimed, frame: frame.len() };
    let length = usize::try_from(claimed).map_err(|_| overrun)?;
    let parts = rest.split_at_checked(length).ok_or(overrun)?;
    if length > MAX_SESSION_ID { Err(DataError::TooLong(claimed)) } else { Ok(parts) }
}

/// Puts the head of a data frame into an emptied buffer; the payload is to be appended.
pub(crate) fn start_data(session: &str, frame: &mut Vec<u8>) {
    let length = u32::try_from(session.len()).expect("session ids are at most 256 bytes long");
    frame.clear();
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(session.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_have_the_shape_of_the_contract() {
        assert_eq!(Control::Warmup.text(), r#"{"type":"warmup"}"#);
        assert_eq!(
            Control::SessionOpen { session_id: "s" }.text(),
            r#"{"type":"session_open","session_id":"s"}"#
        );
        let close = Control::SessionClose { session_id: "s", reason: "solved" };
        assert_eq!(close.text(), r#"{"type":"session_close","session_id":"s","reason":"solved"}"#);
        assert_eq!(Control::Drain { reason: "done" }.text(), r#"{"type":"drain","reason":"done"}"#);
    }

    #[test]
    fn what_the_agent_says_is_read_or_ignored() {
        assert_eq!(read_control(br#"{"type":"ready","x":[1,{}]}"#).unwrap(), FromAgent::Ready);
        let close = FromAgent::SessionClose { session: "s".to_owned(), reason: String::new() };
        assert_eq!(read_control(br#"{"session_id":"s","type":"session_close"}"#).unwrap(), close);
        for (text, kind) in [
            (r#"{"type":"warmup"}"#, "warmup"),
            (r#"{"type":"ping"}"#, "ping"),
            (r#"{"type":"session_close"}"#, "session_close"),
        ] {
            assert_eq!(read_control(text.as_bytes()).unwrap(), FromAgent::Ignored { kind: kind.to_owned() });
        }
        for text in ["", "{", "[]", r#"{"type":3}"#, "{}"] {
            assert!(read_control(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn data_frames_are_read_back_and_bad_ones_refused() {
        let mut frame = vec![1, 2, 3];
        start_data("abc", &mut frame);
        assert_eq!(read_data(&frame), Ok((&b"abc"[..], &b""[..])));
        frame.push(7);
        assert_eq!(read_data(&frame), Ok((&b"abc"[..], &[7][..])));
        assert_eq!(read_data(&[0; 4]), Ok((&b""[..], &b""[..])));
        for length in 0..4 {
            assert_eq!(read_data(&frame[..length]), Err(DataError::TooShort(length)));
        }
        assert_eq!(read_data(&frame[..6]), Err(DataError::Overrun { claimed: 3, frame: 6 }));
        assert_eq!(read_data(&[255; 8]), Err(DataError::Overrun { claimed: u32::MAX, frame: 8 }));
        let mut long = vec![0, 0, 1, 1];
        long.extend_from_slice(&[b'x'; 257]);
        assert_eq!(read_data(&long), Err(DataError::TooLong(257)));
    }
}
