//! UTF-8, checked as it arrives (RFC 6455, section 8.1).
//!
//! A character may be cut anywhere by a fragment or by the network, so up to three bytes wait for the rest
//! of theirs. What can never become UTF-8 is said at the first byte that rules it out.

use thiserror::Error;

/// Bytes that are not UTF-8.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("the text is not UTF-8")]
pub struct NotUtf8;

/// Incremental validator for one text.
#[derive(Copy, Clone, Debug, Default)]
pub struct Utf8 {
    /// `partial[..have]` is the start of one character whose rest has not come.
    partial: [u8; 4],
    /// `have <= 3` between calls.
    have: usize,
}

impl Utf8 {
    /// A validator at the start of a text.
    #[must_use]
    pub const fn new() -> Self {
        Self { partial: [0; 4], have: 0 }
    }

    /// Takes the next bytes of the text.
    ///
    /// # Errors
    /// If no continuation can make the text valid. The validator is then of no use.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), NotUtf8> {
        while self.have > 0 {
            let [byte, rest @ ..] = bytes else { return Ok(()) };
            self.partial[self.have] = *byte;
            self.have += 1;
            bytes = rest;
            if self.judge(self.have)? {
                self.have = 0;
            }
        }
        if let Err(error) = core::str::from_utf8(bytes) {
            if error.error_len().is_some() {
                return Err(NotUtf8);
            }
            let tail = &bytes[error.valid_up_to()..];
            self.partial[..tail.len()].copy_from_slice(tail);
            self.have = tail.len();
        }
        Ok(())
    }

    /// Checks that the text may end here.
    ///
    /// # Errors
    /// If it ends within a character.
    pub const fn finish(self) -> Result<(), NotUtf8> {
        if self.have == 0 { Ok(()) } else { Err(NotUtf8) }
    }

    /// Whether the first `count` bytes of the character are all of it. Four always are, or are an error.
    fn judge(&self, count: usize) -> Result<bool, NotUtf8> {
        match core::str::from_utf8(&self.partial[..count]) {
            Ok(_) => Ok(true),
            Err(error) if error.error_len().is_none() => Ok(false),
            Err(_) => Err(NotUtf8),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> Result<(), NotUtf8> {
        let mut utf8 = Utf8::new();
        utf8.feed(bytes)?;
        utf8.finish()
    }

    #[test]
    fn a_text_with_every_width_is_valid_at_every_cut_point() {
        let text = "aü€𝄞\u{10ffff}\0z".as_bytes();
        for cut in 0..=text.len() {
            for second in cut..=text.len() {
                let mut utf8 = Utf8::new();
                for piece in [&text[..cut], &text[cut..second], &text[second..]] {
                    assert_eq!(utf8.feed(piece), Ok(()));
                }
                assert_eq!(utf8.finish(), Ok(()));
            }
        }
        assert_eq!(whole(b""), Ok(()));
    }

    #[test]
    fn what_can_never_become_valid_is_refused_at_the_byte_that_says_so() {
        // Overlong, surrogate, past U+10FFFF, bare continuation, cut character followed by another.
        for (bytes, last) in [
            (&[0xc0_u8][..], 0),
            (&[0xe0, 0x80], 1),
            (&[0xed, 0xa0], 1),
            (&[0xf4, 0x90], 1),
            (&[0xf5], 0),
            (&[0x80], 0),
            (&[0xc3, b'a'], 1),
            (&[0xf0, 0x9d, 0x84, b'a'], 3),
        ] {
            let mut utf8 = Utf8::new();
            for (index, byte) in bytes.iter().enumerate() {
                let expected = if index == last { Err(NotUtf8) } else { Ok(()) };
                assert_eq!(utf8.feed(&[*byte]), expected, "{bytes:x?} at {index}");
            }
        }
    }

    #[test]
    fn a_text_may_not_end_within_a_character() {
        let clef = "𝄞".as_bytes();
        for cut in 1..clef.len() {
            assert_eq!(whole(&clef[..cut]), Err(NotUtf8));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_are_judged_as_the_standard_library_does(
            text in "\\PC{0,12}", damage in prop::option::of((0_usize..48, any::<u8>())),
            cuts in prop::collection::vec(0_usize..48, 0..6),
        ) {
            let mut bytes = Vec::from(text);
            if let Some((place, byte)) = damage && !bytes.is_empty() {
                let place = place % bytes.len();
                bytes[place] = byte;
            }
            let mut cuts: Vec<_> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.sort_unstable();
            cuts.push(bytes.len());
            let (mut utf8, mut from, mut verdict) = (Utf8::new(), 0, Ok(()));
            for cut in cuts {
                verdict = verdict.and_then(|()| utf8.feed(&bytes[from..cut]));
                from = cut;
            }
            let verdict = verdict.and_then(|()| utf8.finish());
            prop_assert_eq!(verdict.is_ok(), core::str::from_utf8(&bytes).is_ok());
        }
    }
}
