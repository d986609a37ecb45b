//! Identifiers and short texts of the tunnel contract, in fixed room.
//!
//! An identifier that is too long is refused, never cut: a cut one would name another thing. A reason is
//! only read by people, so it is cut.

use core::fmt;
use core::ops::Deref;

use serde::{Deserialize, Deserializer, Serialize, de};
use thiserror::Error;

/// Longest session id in bytes of UTF-8 (tunnel contract A.3).
pub const MAX_SESSION_ID: usize = 256;
/// Longest agent id in bytes of UTF-8 (tunnel contract A.1).
pub const MAX_AGENT_ID: usize = 64;
/// Longest job id in bytes of UTF-8. The contract says UUID, which has 36; room is left for other forms.
pub const MAX_JOB_ID: usize = 64;
/// Bytes of a `reason` that are kept.
pub const MAX_REASON: usize = 256;
/// Bytes of a control frame's `type` that are kept. The longest one that we know has 13.
pub const MAX_TYPE: usize = 32;

/// Why something was done, for people; cut to [`MAX_REASON`] bytes at a character's boundary.
pub type Reason = heapless::String<MAX_REASON>;

/// An identifier that cannot be one.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum IdError {
    /// Longer than the contract allows.
    #[error("an id of {length} bytes is longer than {max}")]
    TooLong {
        /// Length of the text in bytes.
        length: usize,
        /// The most that is allowed, in bytes.
        max: usize,
    },
    /// Empty, where that has no meaning.
    #[error("the id is empty")]
    Empty,
}

macro_rules! id {
    ($(#[$meta:meta])* $name:ident, $max:ident, $may_be_empty:literal) => {
        $(#[$meta])*
        #[derive(Clone, PartialEq, Eq, Hash, Serialize)]
        pub struct $name(heapless::String<$max>);

        impl $name {
            /// Keeps a copy of `text`.
            ///
            /// # Errors
            /// If `text` is too long, or is empty where that has no meaning.
            pub fn new(text: &str) -> Result<Self, IdError> {
                if !$may_be_empty && text.is_empty() {
                    return Err(IdError::Empty);
                }
                heapless::String::try_from(text)
                    .map(Self)
                    .map_err(|_| IdError::TooLong { length: text.len(), max: $max })
            }

            /// The text itself.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Deref for $name {
            type Target = str;

            fn deref(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.as_str())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = heapless::String::<$max>::deserialize(deserializer)?;
                Self::new(&text).map_err(de::Error::custom)
            }
        }
    };
}

id! {
    /// Names one session; the gateway chose it (tunnel contract A.3). Empty only in the warm-up round trip.
    #[derive(Default)]
    SessionId, MAX_SESSION_ID, true
}
id! {
    /// Names one agent process towards the gateway (tunnel contract A.1). Never empty.
    AgentId, MAX_AGENT_ID, false
}
id! {
    /// Names the job that an agent plays for (tunnel contract A.1: the UUID, not the number). Never empty.
    JobId, MAX_JOB_ID, false
}

/// Counts the sessions that were opened on our side: unlike a session id it is never reused, so an answer
/// that was computed for an earlier session cannot pass as one for the present.
/// 0 is no session, and the warm-up round trip with its empty session id.
#[derive(
    Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize,
)]
pub struct Epoch(pub u32);

/// As much of `text` as fits into `N` bytes, cut at a character's boundary.
#[must_use]
pub fn clip<const N: usize>(text: &str) -> heapless::String<N> {
    let mut kept = heapless::String::new();
    for character in text.chars() {
        if kept.push(character).is_err() {
            break;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::string::{String, ToString};

    use super::*;

    #[test]
    fn ids_are_kept_up_to_their_limit_and_refused_above_it() {
        for length in [0, 1, 255, 256] {
            let text: String = core::iter::repeat_n('s', length).collect();
            assert_eq!(SessionId::new(&text).map(|id| id.to_string()), Ok(text));
        }
        let text: String = core::iter::repeat_n('s', 257).collect();
        assert_eq!(SessionId::new(&text), Err(IdError::TooLong { length: 257, max: 256 }));
        assert!(AgentId::new(&text[..64]).is_ok());
        assert_eq!(AgentId::new(&text[..65]), Err(IdError::TooLong { length: 65, max: 64 }));
        assert_eq!(JobId::new(&text[..65]), Err(IdError::TooLong { length: 65, max: 64 }));
    }

    #[test]
    fn only_a_session_may_be_nameless() {
        assert_eq!(SessionId::new(""), Ok(SessionId::default()));
        assert_eq!(AgentId::new(""), Err(IdError::Empty));
        assert_eq!(JobId::new(""), Err(IdError::Empty));
    }

    #[test]
    fn a_deserialized_id_obeys_the_same_rules() {
        let mut bytes = [0; 80];
        let agent = AgentId::new("gpu-0").unwrap();
        let encoded = postcard::to_slice(&agent, &mut bytes).unwrap();
        assert_eq!(postcard::from_bytes::<AgentId>(encoded), Ok(agent));
        assert!(postcard::from_bytes::<AgentId>(&[0]).is_err());
        assert_eq!(postcard::from_bytes::<SessionId>(&[0]), Ok(SessionId::default()));
        let owned = serde_json::from_reader::<_, SessionId>(br#""a\u00fc""#.as_slice()).unwrap();
        assert_eq!(owned.as_str(), "aü");
        bytes[0] = 65;
        bytes[1..66].fill(b'a');
        assert!(postcard::from_bytes::<AgentId>(&bytes).is_err());
    }

    #[test]
    fn a_clipped_text_ends_between_characters() {
        assert_eq!(clip::<4>("abcd"), "abcd");
        assert_eq!(clip::<4>("abcü"), "abc");
        assert_eq!(clip::<4>("abüx"), "abü");
        assert_eq!(clip::<4>(""), "");
    }
}
