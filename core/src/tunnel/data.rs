//! The head of a data frame (tunnel contract A.3): four bytes of length, big-endian, then the session id.
//!
//! What follows is the payload, which is never looked at here. The head is parsed as it arrives, cut where
//! the network or a fragment cut it. Every error leaves the tunnel usable: the contract's frame is wrong,
//! the WebSocket below it is not, so the caller counts and drops the message.

use thiserror::Error;

use super::{MAX_SESSION_ID, SessionId};

/// Size of the length in front of the session id.
const LENGTH_SIZE: usize = 4;

/// Longest head of a data frame in bytes.
pub const MAX_DATA_HEAD: usize = LENGTH_SIZE + MAX_SESSION_ID;

/// What is wrong with a data frame.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum DataError {
    /// The message ended within the four bytes of the length.
    #[error("a data frame of {length} bytes is too short for its length field")]
    TooShort {
        /// Bytes in the message, 0 to 3.
        length: usize,
    },
    /// The length field says more than the contract allows.
    #[error("a session id of {length} bytes is longer than {MAX_SESSION_ID}")]
    SessionIdTooLong {
        /// What the length field says.
        length: u32,
    },
    /// The message ended within the session id.
    #[error("the session id overruns its data frame: {length} bytes were announced and {present} came")]
    SessionIdOverrun {
        /// What the length field says.
        length: usize,
        /// How many bytes of the id there were.
        present: usize,
    },
    /// The session id is no text.
    #[error("the session id is not UTF-8")]
    NotUtf8,
}

/// Where the parser stands after it was fed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// All bytes belonged to the head, and it goes on.
    NeedMore,
    /// The head is complete; the payload starts `consumed` bytes into what was fed.
    Complete {
        /// Bytes of the last `feed` that belonged to the head.
        consumed: usize,
    },
}

/// Incremental parser for one data frame's head.
#[derive(Clone, Debug)]
pub struct DataHead {
    /// The head as it came; `bytes[..have]` is filled.
    bytes: [u8; MAX_DATA_HEAD],
    /// `have <= LENGTH_SIZE + length.unwrap_or(0)`
    have: usize,
    /// Bytes of session id, once the length field is complete and found good; `<= MAX_SESSION_ID`.
    length: Option<usize>,
}

impl DataHead {
    /// A parser at the start of a message.
    #[must_use]
    pub const fn new() -> Self {
        Self { bytes: [0; MAX_DATA_HEAD], have: 0, length: None }
    }

    /// Starts over, for the next message.
    pub const fn reset(&mut self) {
        self.have = 0;
        self.length = None;
    }

    /// Takes the next bytes of the message. Once complete it stays complete and consumes nothing more.
    ///
    /// # Errors
    /// If the announced id is too long, or is no text. The parser is then of no use until it is reset.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Progress, DataError> {
        let mut consumed = self.take(bytes);
        if self.length.is_none() && self.have == LENGTH_SIZE {
            self.length = Some(self.announced()?);
            consumed += self.take(&bytes[consumed..]);
        }
        if self.missing() > 0 {
            return Ok(Progress::NeedMore);
        }
        match self.session() {
            Some(_) => Ok(Progress::Complete { consumed }),
            None => Err(DataError::NotUtf8),
        }
    }

    /// Says what is missing if the message is over before the head is complete.
    ///
    /// # Errors
    /// `TooShort` or `SessionIdOverrun`; none if the head is complete.
    pub const fn finish(&self) -> Result<(), DataError> {
        match self.length {
            None => Err(DataError::TooShort { length: self.have }),
            Some(_) if self.missing() == 0 => Ok(()),
            Some(length) => Err(DataError::SessionIdOverrun { length, present: self.have - LENGTH_SIZE }),
        }
    }

    /// Bytes of the head that are known to be missing: up to the end of the length field until that is
    /// known, then up to the end of the head. 0 once the head is complete.
    #[must_use]
    pub const fn missing(&self) -> usize {
        self.need() - self.have
    }

    /// The session id's text, once the head is complete.
    #[must_use]
    pub fn session(&self) -> Option<&str> {
        let end = LENGTH_SIZE + self.length?;
        if self.have < end { None } else { core::str::from_utf8(&self.bytes[LENGTH_SIZE..end]).ok() }
    }

    const fn need(&self) -> usize {
        match self.length {
            None => LENGTH_SIZE,
            Some(length) => LENGTH_SIZE + length,
        }
    }

    fn take(&mut self, bytes: &[u8]) -> usize {
        let count = bytes.len().min(self.missing());
        self.bytes[self.have..self.have + count].copy_from_slice(&bytes[..count]);
        self.have += count;
        count
    }

    /// What the length field says, if that is allowed.
    fn announced(&self) -> Result<usize, DataError> {
        let [a, b, c, d, ..] = self.bytes;
        let length = u32::from_be_bytes([a, b, c, d]);
        match usize::try_from(length) {
            Ok(known) if known <= MAX_SESSION_ID => Ok(known),
            _ => Err(DataError::SessionIdTooLong { length }),
        }
    }
}

impl Default for DataHead {
    fn default() -> Self {
        Self::new()
    }
}

/// How long the head is, if `bytes` start with the whole of `session`'s: what frames of the open session do. It spares
/// them the parser; of anything else it says nothing.
#[must_use]
pub fn skip_data_head(bytes: &[u8], session: &SessionId) -> Option<usize> {
    let (length, rest) = bytes.split_first_chunk::<LENGTH_SIZE>()?;
    let id = session.as_bytes();
    let is_its = u32::from_be_bytes(*length) as usize == id.len() && rest.starts_with(id);
    is_its.then_some(LENGTH_SIZE + id.len())
}

/// Bytes of the head of `session`'s data frames.
#[must_use]
pub fn data_head_size(session: &SessionId) -> usize {
    LENGTH_SIZE + session.len()
}

/// Writes the head of a data frame for `session` to the start of `out` and says how long it is.
///
/// # Panics
/// If `out` is shorter than the head; [`MAX_DATA_HEAD`] bytes are always enough.
pub fn encode_data_head(session: &SessionId, out: &mut [u8]) -> usize {
    let length = session.len() as u32; // at most MAX_SESSION_ID
    let end = data_head_size(session);
    out[..LENGTH_SIZE].copy_from_slice(&length.to_be_bytes());
    out[LENGTH_SIZE..end].copy_from_slice(session.as_bytes());
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(session: &str, payload: &[u8]) -> heapless::Vec<u8, 512> {
        let mut head = [0; MAX_DATA_HEAD];
        let size = encode_data_head(&SessionId::new(session).unwrap(), &mut head);
        let mut bytes = heapless::Vec::from_slice(&head[..size]).unwrap();
        bytes.extend_from_slice(payload).unwrap();
        bytes
    }

    #[test]
    fn only_the_whole_head_of_the_session_is_skipped() {
        let session = SessionId::new("s-1").unwrap();
        let bytes = frame("s-1", b"payload");
        assert_eq!(skip_data_head(&bytes, &session), Some(7));
        assert_eq!(skip_data_head(&bytes[..7], &session), Some(7));
        assert!((0..7).all(|cut| skip_data_head(&bytes[..cut], &session).is_none()));
        for other in ["", "s", "s-2", "s-12", "S-1"] {
            assert_eq!(skip_data_head(&frame(other, b"1"), &session), None, "{other}");
        }
        assert_eq!(skip_data_head(&frame("", b"x"), &SessionId::new("").unwrap()), Some(4));
        assert_eq!(skip_data_head(&[0xff; 20], &session), None);
    }

    #[test]
    fn a_head_is_found_at_every_cut_point() {
        let longest: heapless::String<256> = core::iter::repeat_n('x', 256).collect();
        for session in ["", "s", "sitzung-ü", &longest] {
            let bytes = frame(session, b"payload");
            let size = 4 + session.len();
            for cut in 0..=bytes.len() {
                let mut head = DataHead::new();
                let first = head.feed(&bytes[..cut]).unwrap();
                if cut >= size {
                    assert_eq!(first, Progress::Complete { consumed: size });
                    assert_eq!(head.feed(&bytes[cut..]), Ok(Progress::Complete { consumed: 0 }));
                } else {
                    assert_eq!(first, Progress::NeedMore);
                    assert_eq!(head.session(), None);
                    assert!(head.missing() > 0);
                    assert_eq!(head.feed(&bytes[cut..]), Ok(Progress::Complete { consumed: size - cut }));
                }
                assert_eq!(head.session(), Some(session));
                assert_eq!(head.finish(), Ok(()));
            }
        }
    }

    #[test]
    fn a_head_that_comes_byte_by_byte_is_found() {
        let bytes = frame("abc", b"p");
        let mut head = DataHead::new();
        for byte in &bytes[..6] {
            assert_eq!(head.feed(&[*byte]), Ok(Progress::NeedMore));
        }
        assert_eq!(head.feed(&bytes[6..]), Ok(Progress::Complete { consumed: 1 }));
        head.reset();
        assert_eq!(head.session(), None);
        assert_eq!(head.feed(&frame("", b"")), Ok(Progress::Complete { consumed: 4 }));
        assert_eq!(head.session(), Some(""));
    }

    #[test]
    fn a_message_that_ends_within_its_head_is_named() {
        for length in 0..4 {
            let mut head = DataHead::new();
            assert_eq!(head.feed(&[0; 3][..length]), Ok(Progress::NeedMore));
            assert_eq!(head.finish(), Err(DataError::TooShort { length }));
        }
        let mut head = DataHead::new();
        assert_eq!(head.feed(&[0, 0, 0, 5, b'a', b'b']), Ok(Progress::NeedMore));
        assert_eq!(head.finish(), Err(DataError::SessionIdOverrun { length: 5, present: 2 }));
    }

    #[test]
    fn an_id_above_the_limit_is_refused_with_the_size_it_claims() {
        for length in [257, 65_536, u32::MAX] {
            let mut head = DataHead::new();
            assert_eq!(head.feed(&length.to_be_bytes()), Err(DataError::SessionIdTooLong { length }));
            assert_eq!(head.feed(b"more"), Err(DataError::SessionIdTooLong { length }));
            assert_eq!(head.session(), None);
        }
    }

    #[test]
    fn an_id_that_is_no_text_is_refused() {
        let mut head = DataHead::new();
        assert_eq!(head.feed(&[0, 0, 0, 2, 0xc3]), Ok(Progress::NeedMore));
        assert_eq!(head.feed(&[0x28]), Err(DataError::NotUtf8));
        assert_eq!(head.session(), None);
    }
}
