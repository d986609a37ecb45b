//! Control frames (tunnel contract A.2): JSON objects in text messages.
//!
//! [`ControlLexer`] reads one while it arrives, cut anywhere, in bounded memory: whatever it does not know
//! is checked and forgotten. [`write_ready`] and [`write_session_close`] write the two that we send.

mod lexer;
mod number;
mod text;
mod write;

use thiserror::Error;

pub use lexer::{ControlLexer, MAX_DEPTH};
pub use write::{MAX_SESSION_CLOSE, write_ready, write_session_close};

use super::{MAX_SESSION_ID, MAX_TYPE, Reason, SessionId};

/// A control frame by its meaning. Which direction it may go is for the reader to judge.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is no heap to move the large one to")]
pub enum Control {
    /// Load the model now.
    Warmup,
    /// The model is warm. Only we send it.
    Ready,
    /// `ready` came, but no simulator is free; stay.
    Queued {
        /// Why, for people; empty if nothing was said.
        reason: Reason,
    },
    /// A session begins.
    SessionOpen {
        /// Its name; never empty.
        session: SessionId,
    },
    /// A session is over.
    SessionClose {
        /// Its name; never empty.
        session: SessionId,
        /// Why, for people; empty if nothing was said.
        reason: Reason,
    },
    /// No more sessions; finish and do not come back.
    Drain {
        /// Why, for people; empty if nothing was said.
        reason: Reason,
    },
    /// A type from the future, to be ignored.
    Unknown {
        /// Its name, cut to [`MAX_TYPE`] bytes.
        kind: heapless::String<MAX_TYPE>,
    },
}

/// What is wrong with a control frame. Only `NotUtf8` breaks RFC 6455, and with it the connection.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum ControlError {
    /// The text message is no text.
    #[error("the control frame is not UTF-8")]
    NotUtf8,
    /// It is no JSON.
    #[error("the control frame is not JSON: unexpected byte {byte:#04x} at position {position}")]
    Unexpected {
        /// The first byte that cannot stand where it does.
        byte: u8,
        /// Its position in the message.
        position: u64,
    },
    /// It ended in the middle.
    #[error("the control frame ends within its JSON")]
    Unfinished,
    /// More nesting than anyone needs.
    #[error("the control frame is nested deeper than {MAX_DEPTH}")]
    TooDeep,
    /// JSON, but not an object.
    #[error("the control frame is not a JSON object")]
    NotAnObject,
    /// Nothing says what it is.
    #[error("the control frame has no type")]
    NoType,
    /// It is about a session and does not say which one.
    #[error("the control frame names no session")]
    NoSession,
    /// The session's name is longer than the contract allows.
    #[error("the control frame names a session of more than {MAX_SESSION_ID} bytes")]
    SessionTooLong,
}
