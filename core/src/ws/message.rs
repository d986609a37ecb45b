//! How frames make messages (RFC 6455, section 5.4).
//!
//! The assembler is shown each frame's header, in order, and says what the frame is within its message.
//! It holds no bytes: whoever receives them puts the fragments together. It is where the limits are that
//! keep a peer from being paid attention to for ever: on a *message's* length, not a frame's, and on its
//! number of fragments, empty ones included.

use thiserror::Error;

use super::close::CloseCode;
use super::frame::{Header, Opcode};

/// What a peer may send in one message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MessageLimits {
    /// Longest text message in bytes.
    pub text_bytes: u64,
    /// Longest binary message in bytes; `u64::MAX` for a caller who discards what is too long for it.
    pub binary_bytes: u64,
    /// Most frames in one message.
    pub fragments: u32,
}

/// What a message holds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// UTF-8; the caller has to check it.
    Text,
    /// Anything.
    Binary,
}

/// What a control frame asks for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ControlKind {
    /// The end.
    Close,
    /// A pong.
    Ping,
    /// Nothing.
    Pong,
}

/// What a frame is within its message.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// A piece of a message.
    Data {
        /// What the message holds.
        kind: Kind,
        /// Bytes of the message in front of this frame.
        before: u64,
        /// Whether the message begins here.
        first: bool,
        /// Whether the message ends here.
        last: bool,
    },
    /// A frame of its own, perhaps between two pieces of a message.
    Control(ControlKind),
}

/// A frame that cannot stand where it came, or goes past a limit.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum MessageError {
    /// A masked frame; only a client masks (RFC 6455, section 5.1).
    #[error("the server masked a frame")]
    Masked,
    /// A new message while another was not finished.
    #[error("a new message began inside an unfinished one")]
    Unfinished,
    /// A continuation while no message was begun.
    #[error("a continuation came while no message was begun")]
    NothingToContinue,
    /// More frames than a message may have.
    #[error("a message has more than {limit} fragments")]
    TooManyFragments {
        /// Most frames in one message.
        limit: u32,
    },
    /// More bytes than a message may have.
    #[error("a message of {length} bytes or more is longer than {limit}")]
    TooLong {
        /// Length of the message up to the end of this frame, in bytes.
        length: u64,
        /// The limit in bytes.
        limit: u64,
    },
}

impl MessageError {
    /// What our close frame has to say about it.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            Self::Masked | Self::Unfinished | Self::NothingToContinue => CloseCode::PROTOCOL_ERROR,
            Self::TooManyFragments { .. } => CloseCode::POLICY,
            Self::TooLong { .. } => CloseCode::TOO_BIG,
        }
    }
}

/// A message that was begun and not finished.
#[derive(Copy, Clone, Debug)]
struct Open {
    kind: Kind,
    /// Bytes in the frames so far; `<= limit of its kind`.
    bytes: u64,
    /// Frames so far; `1 <= frames <= limits.fragments`.
    frames: u32,
}

/// Follows the messages of one connection in one direction, as a client receives them.
#[derive(Clone, Debug)]
pub struct Assembler {
    limits: MessageLimits,
    open: Option<Open>,
}

impl Assembler {
    /// An assembler for a new connection.
    #[must_use]
    pub const fn new(limits: MessageLimits) -> Self {
        Self { limits, open: None }
    }

    /// Takes the next frame's header. A limit is enforced on the header, before a byte has to be received.
    ///
    /// # Errors
    /// If the connection has to be failed; the assembler is then of no use.
    pub fn handle_frame(&mut self, header: &Header) -> Result<Part, MessageError> {
        if header.masked.is_some() {
            return Err(MessageError::Masked);
        }
        let kind = match header.opcode {
            Opcode::Close => return Ok(Part::Control(ControlKind::Close)),
            Opcode::Ping => return Ok(Part::Control(ControlKind::Ping)),
            Opcode::Pong => return Ok(Part::Control(ControlKind::Pong)),
            Opcode::Continuation => None,
            Opcode::Text => Some(Kind::Text),
            Opcode::Binary => Some(Kind::Binary),
        };
        let (first, before) = match (kind, self.open) {
            (Some(kind), None) => (true, Open { kind, bytes: 0, frames: 0 }),
            (None, Some(open)) => (false, open),
            (Some(_), Some(_)) => return Err(MessageError::Unfinished),
            (None, None) => return Err(MessageError::NothingToContinue),
        };
        let after = self.within_limits(before, header.length)?;
        self.open = if header.fin { None } else { Some(after) };
        Ok(Part::Data { kind: after.kind, before: before.bytes, first, last: header.fin })
    }

    /// Whether a message was begun and not finished.
    #[must_use]
    pub const fn is_within_message(&self) -> bool {
        self.open.is_some()
    }

    fn within_limits(&self, before: Open, length: u64) -> Result<Open, MessageError> {
        if before.frames >= self.limits.fragments {
            return Err(MessageError::TooManyFragments { limit: self.limits.fragments });
        }
        let limit = match before.kind {
            Kind::Text => self.limits.text_bytes,
            Kind::Binary => self.limits.binary_bytes,
        };
        let bytes = before.bytes.saturating_add(length);
        if bytes > limit {
            return Err(MessageError::TooLong { length: bytes, limit });
        }
        Ok(Open { kind: before.kind, bytes, frames: before.frames + 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: MessageLimits = MessageLimits { text_bytes: 100, binary_bytes: 1000, fragments: 4 };
    const FIN: bool = true;
    const MORE: bool = false;

    fn frame(fin: bool, opcode: Opcode, length: u64) -> Header {
        Header { fin, opcode, masked: None, length }
    }

    fn data(kind: Kind, before: u64, first: bool, last: bool) -> Result<Part, MessageError> {
        Ok(Part::Data { kind, before, first, last })
    }

    #[test]
    fn whole_messages_stand_alone() {
        let mut assembler = Assembler::new(LIMITS);
        for length in [0, 1, 100] {
            let text = assembler.handle_frame(&frame(FIN, Opcode::Text, length));
            assert_eq!(text, data(Kind::Text, 0, true, true));
        }
        for length in [0, 101, 1000] {
            let binary = assembler.handle_frame(&frame(FIN, Opcode::Binary, length));
            assert_eq!(binary, data(Kind::Binary, 0, true, true));
        }
    }

    #[test]
    fn control_frames_between_fragments_change_nothing() {
        let mut assembler = Assembler::new(LIMITS);
        let first = assembler.handle_frame(&frame(MORE, Opcode::Binary, 400));
        assert_eq!(first, data(Kind::Binary, 0, true, false));
        for (opcode, kind) in [
            (Opcode::Ping, ControlKind::Ping),
            (Opcode::Pong, ControlKind::Pong),
            (Opcode::Close, ControlKind::Close),
        ] {
            assert_eq!(assembler.handle_frame(&frame(FIN, opcode, 125)), Ok(Part::Control(kind)));
            assert!(assembler.is_within_message());
        }
        let second = assembler.handle_frame(&frame(MORE, Opcode::Continuation, 600));
        assert_eq!(second, data(Kind::Binary, 400, false, false));
        // What gateways that write through a buffer end a message with.
        let empty = assembler.handle_frame(&frame(FIN, Opcode::Continuation, 0));
        assert_eq!(empty, data(Kind::Binary, 1000, false, true));
        assert!(!assembler.is_within_message());
    }

    #[test]
    fn a_masked_frame_is_refused_whatever_it_is() {
        // Others deliver it, still masked.
        for opcode in [Opcode::Text, Opcode::Binary, Opcode::Ping, Opcode::Close] {
            let header = Header { masked: Some([0; 4]), ..frame(FIN, opcode, 4) };
            assert_eq!(Assembler::new(LIMITS).handle_frame(&header), Err(MessageError::Masked));
        }
    }

    #[test]
    fn a_new_message_inside_an_unfinished_one_is_refused() {
        // Others accept it and silently lose what came before.
        for opcode in [Opcode::Text, Opcode::Binary] {
            for fin in [FIN, MORE] {
                let mut assembler = Assembler::new(LIMITS);
                assert!(assembler.handle_frame(&frame(MORE, Opcode::Binary, 1)).is_ok());
                let second = assembler.handle_frame(&frame(fin, opcode, 1));
                assert_eq!(second, Err(MessageError::Unfinished));
            }
        }
    }

    #[test]
    fn a_continuation_of_nothing_is_refused() {
        let mut assembler = Assembler::new(LIMITS);
        let lone = frame(FIN, Opcode::Continuation, 1);
        assert_eq!(assembler.handle_frame(&lone), Err(MessageError::NothingToContinue));
        assert!(assembler.handle_frame(&frame(FIN, Opcode::Text, 1)).is_ok());
        assert_eq!(assembler.handle_frame(&lone), Err(MessageError::NothingToContinue));
    }

    #[test]
    fn the_length_limit_is_on_the_message_not_on_the_frame() {
        // Others let 31 fragments of 60 kB pass a limit of 64 kB.
        let mut assembler = Assembler::new(LIMITS);
        assert!(assembler.handle_frame(&frame(MORE, Opcode::Text, 60)).is_ok());
        let second = assembler.handle_frame(&frame(FIN, Opcode::Continuation, 41));
        assert_eq!(second, Err(MessageError::TooLong { length: 101, limit: 100 }));
        let whole = Assembler::new(LIMITS).handle_frame(&frame(FIN, Opcode::Binary, 1001));
        assert_eq!(whole, Err(MessageError::TooLong { length: 1001, limit: 1000 }));
    }

    #[test]
    fn lengths_that_add_up_to_more_than_a_number_holds_are_too_long() {
        let limits = MessageLimits { binary_bytes: u64::MAX - 1, ..LIMITS };
        let mut assembler = Assembler::new(limits);
        let half = u64::MAX >> 1;
        assert!(assembler.handle_frame(&frame(MORE, Opcode::Binary, half)).is_ok());
        assert!(assembler.handle_frame(&frame(MORE, Opcode::Continuation, half)).is_ok());
        let third = assembler.handle_frame(&frame(MORE, Opcode::Continuation, half));
        assert_eq!(third, Err(MessageError::TooLong { length: u64::MAX, limit: u64::MAX - 1 }));
    }

    #[test]
    fn empty_fragments_count() {
        let mut assembler = Assembler::new(LIMITS);
        assert!(assembler.handle_frame(&frame(MORE, Opcode::Binary, 0)).is_ok());
        for _ in 0..3 {
            assert!(assembler.handle_frame(&frame(MORE, Opcode::Continuation, 0)).is_ok());
        }
        let fifth = assembler.handle_frame(&frame(FIN, Opcode::Continuation, 0));
        assert_eq!(fifth, Err(MessageError::TooManyFragments { limit: 4 }));
    }

    #[test]
    fn the_last_allowed_fragment_may_end_the_message_and_the_count_starts_over() {
        let mut assembler = Assembler::new(LIMITS);
        for _ in 0..3 {
            assert!(assembler.handle_frame(&frame(MORE, Opcode::Text, 1)).is_ok());
            for _ in 0..2 {
                assert!(assembler.handle_frame(&frame(MORE, Opcode::Continuation, 1)).is_ok());
            }
            let fourth = assembler.handle_frame(&frame(FIN, Opcode::Continuation, 1));
            assert_eq!(fourth, data(Kind::Text, 3, false, true));
        }
    }
}
