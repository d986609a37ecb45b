//! Everything that a peer can do wrong after the handshake, and the close code for it.
//!
//! All of these end the connection (RFC 6455, section 7.1.7): the caller sends a close frame with
//! [`Violation::close_code`] and then closes the socket. A data frame that is wrong by the tunnel contract
//! only is no violation; see [`crate::tunnel::data::DataError`].

use thiserror::Error;

use super::close::{CloseCode, CloseError};
use super::frame::FrameError;
use super::message::MessageError;
use super::utf8::NotUtf8;

/// Why a connection has to be failed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum Violation {
    /// A frame header that RFC 6455, section 5.2 or 5.5, rules out.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame that cannot follow the ones before it, or goes past a limit.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// A close frame with a payload that RFC 6455, section 5.5.1 or 7.4, rules out.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// A text message that is not UTF-8 (RFC 6455, section 8.1).
    #[error("a text message is not UTF-8")]
    Text(#[from] NotUtf8),
}

impl Violation {
    /// What the close frame has to say.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::Frame(_) => CloseCode::PROTOCOL_ERROR,
            Self::Message(error) => error.close_code(),
            Self::Close(error) => error.close_code(),
            Self::Text(_) => CloseCode::INVALID_DATA,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_violation_has_the_code_that_the_rfc_asks_for() {
        let table: [(Violation, u16); 8] = [
            (FrameError::Reserved { bits: 4 }.into(), 1002),
            (MessageError::Masked.into(), 1002),
            (MessageError::Unfinished.into(), 1002),
            (MessageError::NothingToContinue.into(), 1002),
            (MessageError::TooManyFragments { limit: 1 }.into(), 1008),
            (MessageError::TooLong { length: 2, limit: 1 }.into(), 1009),
            (CloseError::NotUtf8.into(), 1007),
            (NotUtf8.into(), 1007),
        ];
        for (violation, code) in table {
            assert_eq!(violation.close_code().get(), code, "{violation}");
        }
    }
}
