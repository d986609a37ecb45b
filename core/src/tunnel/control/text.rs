//! Strings of JSON (RFC 8259, section 7): unescaping as they arrive, and keeping a bounded part of them.

const REPLACEMENT: char = char::REPLACEMENT_CHARACTER;

/// Whether a string goes on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Step {
    Within,
    End,
}

/// A byte that cannot stand in a string.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Unexpected;

#[derive(Copy, Clone, Debug)]
enum Escape {
    None,
    Backslash,
    /// `\u` and the first `digits` (0 to 3) of its four.
    Hex {
        value: u16,
        digits: u8,
    },
}

/// Takes a string apart, from after its opening quote to its closing one.
///
/// A surrogate that has no partner becomes U+FFFD, as it does in the gateway's own language: such a string
/// is JSON by its grammar, and UTF-8 has no form for half a character.
#[derive(Copy, Clone, Debug)]
pub(super) struct Unescape {
    escape: Escape,
    /// The first half of a pair, whose second half may follow.
    high: Option<u16>,
}

impl Unescape {
    pub(super) const fn new() -> Self {
        Self { escape: Escape::None, high: None }
    }

    /// Takes the next byte; `keep` gets what it amounts to, in UTF-8.
    pub(super) fn feed(&mut self, byte: u8, mut keep: impl FnMut(&[u8])) -> Result<Step, Unexpected> {
        match self.escape {
            Escape::None => match byte {
                b'\\' => self.escape = Escape::Backslash,
                b'"' => {
                    self.flush(&mut keep);
                    return Ok(Step::End);
                }
                0..=0x1f => return Err(Unexpected),
                _ => {
                    self.flush(&mut keep);
                    keep(&[byte]);
                }
            },
            Escape::Backslash => {
                let meant = match byte {
                    b'"' | b'\\' | b'/' => byte,
                    b'b' => 0x08,
                    b'f' => 0x0c,
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'u' => {
                        self.escape = Escape::Hex { value: 0, digits: 0 };
                        return Ok(Step::Within);
                    }
                    _ => return Err(Unexpected),
                };
                self.escape = Escape::None;
                self.flush(&mut keep);
                keep(&[meant]);
            }
            Escape::Hex { value, digits } => {
                let digit = hex_digit(byte).ok_or(Unexpected)?;
                let value = value << 4 | digit;
                if digits < 3 {
                    self.escape = Escape::Hex { value, digits: digits + 1 };
                } else {
                    self.escape = Escape::None;
                    self.unit(value, &mut keep);
                }
            }
        }
        Ok(Step::Within)
    }

    /// Takes one unit of UTF-16.
    fn unit(&mut self, unit: u16, keep: &mut impl FnMut(&[u8])) {
        if let (Some(high), 0xdc00..=0xdfff) = (self.high, unit) {
            self.high = None;
            let code = 0x1_0000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(unit) - 0xdc00);
            put(char::from_u32(code).unwrap_or(REPLACEMENT), keep);
            return;
        }
        self.flush(keep);
        if matches!(unit, 0xd800..=0xdbff) {
            self.high = Some(unit);
        } else {
            put(char::from_u32(u32::from(unit)).unwrap_or(REPLACEMENT), keep);
        }
    }

    /// Gives up on a first half whose second half did not follow.
    fn flush(&mut self, keep: &mut impl FnMut(&[u8])) {
        if self.high.take().is_some() {
            put(REPLACEMENT, keep);
        }
    }
}

fn put(character: char, keep: &mut impl FnMut(&[u8])) {
    keep(character.encode_utf8(&mut [0; 4]).as_bytes());
}

const fn hex_digit(byte: u8) -> Option<u16> {
    let digit = match byte {
        b'0'..=b'9' => byte - b'0',
        b'a'..=b'f' => byte - b'a' + 10,
        b'A'..=b'F' => byte - b'A' + 10,
        _ => return None,
    };
    Some(digit as u16)
}

/// The first `N` bytes of a text, which may end within a character.
#[derive(Clone, Debug)]
pub(super) struct Kept<const N: usize> {
    bytes: heapless::Vec<u8, N>,
    cut: bool,
}

impl<const N: usize> Kept<N> {
    pub(super) const fn new() -> Self {
        Self { bytes: heapless::Vec::new(), cut: false }
    }

    pub(super) fn clear(&mut self) {
        self.bytes.clear();
        self.cut = false;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        // Once something was left out, nothing may follow it.
        self.cut = self.cut || self.bytes.extend_from_slice(bytes).is_err();
    }

    /// Whether something was left out.
    pub(super) const fn is_cut(&self) -> bool {
        self.cut
    }

    /// The whole characters of it. The caller checked that the text it comes from is UTF-8.
    pub(super) fn as_str(&self) -> &str {
        match core::str::from_utf8(&self.bytes) {
            Ok(text) => text,
            Err(cut) => core::str::from_utf8(&self.bytes[..cut.valid_up_to()]).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unescape(text: &str) -> Result<heapless::String<64>, Unexpected> {
        let (mut unescape, mut kept) = (Unescape::new(), Kept::<64>::new());
        for byte in text.bytes() {
            if unescape.feed(byte, |bytes| kept.push(bytes))? == Step::End {
                break;
            }
        }
        Ok(crate::tunnel::clip(kept.as_str()))
    }

    #[test]
    fn each_escape_means_its_character() {
        assert_eq!(unescape(r#"\"\\\/\b\f\n\r\t\u0041\u00fC\u20ac""#).unwrap(), "\"\\/\u{8}\u{c}\n\r\tAü€");
        assert_eq!(unescape(r#"\ud834\udd1e\uDBFF\uDFFF""#).unwrap(), "𝄞\u{10ffff}");
        assert_eq!(unescape(r#"\u0000""#).unwrap(), "\0");
    }

    #[test]
    fn half_a_pair_becomes_a_replacement_and_takes_nothing_with_it() {
        for (text, meant) in [
            (r#"\ud834""#, "\u{fffd}"),
            (r#"\ud834x""#, "\u{fffd}x"),
            (r#"\ud834\n""#, "\u{fffd}\n"),
            (r#"\ud834\u0041""#, "\u{fffd}A"),
            (r#"\ud834\ud834\udd1e""#, "\u{fffd}𝄞"),
            (r#"\udd1e\ud834""#, "\u{fffd}\u{fffd}"),
        ] {
            assert_eq!(unescape(text).unwrap(), meant, "{text}");
        }
    }

    #[test]
    fn what_is_no_escape_is_refused() {
        for text in [r"\x", r"\U", r"\u12g4", "\\\n", "\n", "\u{1f}", r"\u-123", r#"\u12""#] {
            assert_eq!(unescape(text), Err(Unexpected), "{text:?}");
        }
    }

    #[test]
    fn what_is_kept_ends_with_a_whole_character_and_never_goes_on_after_a_gap() {
        let mut kept = Kept::<4>::new();
        for byte in "abcüx".bytes() {
            kept.push(&[byte]);
        }
        assert_eq!(kept.as_str(), "abc");
        assert!(kept.is_cut());
        let mut kept = Kept::<4>::new();
        kept.push("abc".as_bytes());
        kept.push("ü".as_bytes());
        kept.push(b"x");
        assert_eq!((kept.as_str(), kept.is_cut()), ("abc", true));
        kept.clear();
        kept.push("abcd".as_bytes());
        assert_eq!((kept.as_str(), kept.is_cut()), ("abcd", false));
    }
}
