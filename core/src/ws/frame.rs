//! The header of one frame (RFC 6455, section 5.2), both directions.
//!
//! A header is 2 to 14 bytes. It is decoded from a slice that may be cut anywhere, and what is already
//! visibly wrong is said before the rest has come. Stricter than many: a length that is not in its shortest
//! form is refused, as the RFC demands. The payload is no business of this module.

use thiserror::Error;

/// Longest header in bytes: two, eight of length, four of mask key.
pub const MAX_HEADER: usize = 14;

/// Longest payload of a control frame in bytes (RFC 6455, section 5.5).
pub const MAX_CONTROL_PAYLOAD: u64 = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
/// Values of the 7-bit length that announce a wider one.
const LENGTH_16: u8 = 126;
const LENGTH_64: u8 = 127;

/// What a frame is (RFC 6455, section 11.8). Reserved opcodes have no representation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Opcode {
    /// Goes on with the message that was begun.
    Continuation = 0,
    /// Begins a text message.
    Text = 1,
    /// Begins a binary message.
    Binary = 2,
    /// Begins or answers the closing handshake.
    Close = 8,
    /// Asks for a pong.
    Ping = 9,
    /// Answers a ping, or stands alone as a sign of life.
    Pong = 10,
}

impl Opcode {
    const fn from_bits(bits: u8) -> Option<Self> {
        Some(match bits {
            0 => Self::Continuation,
            1 => Self::Text,
            2 => Self::Binary,
            8 => Self::Close,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    /// Whether frames of this kind stand between the fragments of a message instead of being some.
    #[must_use]
    pub const fn is_control(self) -> bool {
        matches!(self, Self::Close | Self::Ping | Self::Pong)
    }
}

/// A frame header by its meaning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Header {
    /// Last frame of its message.
    pub fin: bool,
    /// What the frame is.
    pub opcode: Opcode,
    /// The key that the payload is masked with, if it is. Clients must mask, servers must not.
    pub masked: Option<[u8; 4]>,
    /// Bytes of payload, below 2^63.
    pub length: u64,
}

/// A header that RFC 6455 rules out. The close code is 1002 for each.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum FrameError {
    /// RSV bits are set though no extension was agreed on.
    #[error("reserved bits {bits:03b} are set and no extension was agreed on")]
    Reserved {
        /// RSV1 to RSV3 as a number of three bits.
        bits: u8,
    },
    /// An opcode that has no meaning.
    #[error("opcode {opcode:#x} is reserved")]
    Opcode {
        /// The opcode, 3 to 7 or 11 to 15.
        opcode: u8,
    },
    /// A control frame that is not its message's last.
    #[error("a {opcode:?} frame is fragmented")]
    FragmentedControl {
        /// Which kind of control frame.
        opcode: Opcode,
    },
    /// A control frame whose payload is over 125 bytes.
    #[error("a {opcode:?} frame is longer than {MAX_CONTROL_PAYLOAD} bytes")]
    LongControl {
        /// Which kind of control frame.
        opcode: Opcode,
    },
    /// A length in a wider form than it needs.
    #[error("the length {length} is not in its shortest form")]
    NotMinimal {
        /// The length that was encoded.
        length: u64,
    },
    /// A length with its highest bit set.
    #[error("the length {length:#x} has its highest bit set")]
    Length {
        /// The length that was encoded.
        length: u64,
    },
}

/// What the bytes so far amount to.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// They are the start of a header.
    NeedMore,
    /// They start with this header.
    Header {
        /// Its meaning.
        header: Header,
        /// Bytes that it takes; the payload starts there.
        size: usize,
    },
}

/// Reads the header at the start of `bytes`; what follows it is not looked at.
///
/// # Errors
/// As soon as the bytes cannot become a header that RFC 6455 allows.
pub fn decode(bytes: &[u8]) -> Result<Decoded, FrameError> {
    let &[first, ref rest @ ..] = bytes else { return Ok(Decoded::NeedMore) };
    let (fin, opcode) = decode_first(first)?;
    let &[second, ref rest @ ..] = rest else { return Ok(Decoded::NeedMore) };
    let short = second & LENGTH;
    if opcode.is_control() && u64::from(short) > MAX_CONTROL_PAYLOAD {
        return Err(FrameError::LongControl { opcode });
    }
    let (length, rest) = match short {
        LENGTH_16 => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(Decoded::NeedMore) };
            (minimal(u64::from(u16::from_be_bytes(*bytes)), u64::from(LENGTH_16))?, rest)
        }
        LENGTH_64 => {
            let Some((bytes, rest)) = rest.split_first_chunk() else { return Ok(Decoded::NeedMore) };
            (minimal(u64::from_be_bytes(*bytes), 1 << 16)?, rest)
        }
        _ => (u64::from(short), rest),
    };
    let (masked, rest) = if second & MASKED == 0 {
        (None, rest)
    } else {
        let Some((&key, rest)) = rest.split_first_chunk() else { return Ok(Decoded::NeedMore) };
        (Some(key), rest)
    };
    let header = Header { fin, opcode, masked, length };
    Ok(Decoded::Header { header, size: bytes.len() - rest.len() })
}

fn decode_first(byte: u8) -> Result<(bool, Opcode), FrameError> {
    if byte & RESERVED != 0 {
        return Err(FrameError::Reserved { bits: (byte & RESERVED) >> 4 });
    }
    let bits = byte & OPCODE;
    let opcode = Opcode::from_bits(bits).ok_or(FrameError::Opcode { opcode: bits })?;
    let fin = byte & FIN != 0;
    if opcode.is_control() && !fin {
        return Err(FrameError::FragmentedControl { opcode });
    }
    Ok((fin, opcode))
}

/// `length`, if it needs the form it came in, whose smallest member is `least`.
const fn minimal(length: u64, least: u64) -> Result<u64, FrameError> {
    if length >> 63 != 0 {
        return Err(FrameError::Length { length });
    }
    if length < least {
        return Err(FrameError::NotMinimal { length });
    }
    Ok(length)
}

/// Writes `header` to the start of `out` in its shortest form and says how many bytes it takes.
pub fn encode(header: &Header, out: &mut [u8; MAX_HEADER]) -> usize {
    let Header { fin, opcode, masked, length } = *header;
    out[0] = if fin { FIN } else { 0 } | opcode as u8;
    let mask_bit = if masked.is_some() { MASKED } else { 0 };
    let size = if length < u64::from(LENGTH_16) {
        out[1] = mask_bit | length as u8;
        2
    } else if let Ok(length) = u16::try_from(length) {
        out[1] = mask_bit | LENGTH_16;
        out[2..4].copy_from_slice(&length.to_be_bytes());
        4
    } else {
        out[1] = mask_bit | LENGTH_64;
        out[2..10].copy_from_slice(&length.to_be_bytes());
        10
    };
    let Some(key) = masked else { return size };
    out[size..size + key.len()].copy_from_slice(&key);
    size + key.len()
}

/// Bytes of header in front of `length` bytes of payload, in the shortest form: 2 to 14.
#[must_use]
pub const fn header_size(length: u64, masked: bool) -> usize {
    let base = if length < LENGTH_16 as u64 {
        2
    } else if length <= u16::MAX as u64 {
        4
    } else {
        10
    };
    if masked { base + 4 } else { base }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OPCODES: [Opcode; 6] =
        [Opcode::Continuation, Opcode::Text, Opcode::Binary, Opcode::Close, Opcode::Ping, Opcode::Pong];

    fn encoded(header: &Header) -> ([u8; MAX_HEADER], usize) {
        let mut out = [0; MAX_HEADER];
        let size = encode(header, &mut out);
        (out, size)
    }

    #[test]
    fn headers_at_the_edges_of_each_length_form_come_back_at_every_cut_point() {
        for (length, plain_size) in
            [(0, 2), (1, 2), (125, 2), (126, 4), (127, 4), (65_535, 4), (65_536, 10), (u64::MAX >> 1, 10)]
        {
            for masked in [None, Some([1, 2, 3, 4])] {
                let header = Header { fin: true, opcode: Opcode::Binary, masked, length };
                let (out, size) = encoded(&header);
                assert_eq!(size, plain_size + masked.map_or(0, |key| key.len()));
                assert_eq!(size, header_size(length, masked.is_some()));
                for cut in 0..size {
                    assert_eq!(decode(&out[..cut]), Ok(Decoded::NeedMore), "{length} cut at {cut}");
                }
                assert_eq!(decode(&out[..size]), Ok(Decoded::Header { header, size }));
            }
        }
    }

    #[test]
    fn the_examples_of_the_rfc_decode() {
        // RFC 6455, section 5.7.
        let decoded = |bytes: &[u8]| match decode(bytes) {
            Ok(Decoded::Header { header, size }) => (header, size),
            other => panic!("{other:?}"),
        };
        let header = |fin, opcode, masked, length| Header { fin, opcode, masked, length };
        assert_eq!(decoded(&[0x81, 0x05, 0x48]), (header(true, Opcode::Text, None, 5), 2));
        assert_eq!(
            decoded(&[0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f]),
            (header(true, Opcode::Text, Some([0x37, 0xfa, 0x21, 0x3d]), 5), 6)
        );
        assert_eq!(decoded(&[0x01, 0x03]), (header(false, Opcode::Text, None, 3), 2));
        assert_eq!(decoded(&[0x80, 0x02]), (header(true, Opcode::Continuation, None, 2), 2));
        assert_eq!(decoded(&[0x89, 0x05]), (header(true, Opcode::Ping, None, 5), 2));
        assert_eq!(decoded(&[0x82, 0x7e, 0x01, 0x00]), (header(true, Opcode::Binary, None, 256), 4));
        assert_eq!(
            decoded(&[0x82, 0x7f, 0, 0, 0, 0, 0, 1, 0, 0]),
            (header(true, Opcode::Binary, None, 65_536), 10)
        );
    }

    #[test]
    fn every_first_byte_is_judged_at_once() {
        for byte in 0..=u8::MAX {
            let (bits, opcode) = ((byte >> 4) & 7, byte & 15);
            let expected = match (bits, OPCODES.iter().find(|known| **known as u8 == opcode)) {
                (1.., _) => Err(FrameError::Reserved { bits }),
                (0, None) => Err(FrameError::Opcode { opcode }),
                (0, Some(&opcode)) if opcode.is_control() && byte < 128 => {
                    Err(FrameError::FragmentedControl { opcode })
                }
                (0, Some(_)) => Ok(Decoded::NeedMore),
            };
            assert_eq!(decode(&[byte]), expected, "{byte:#x}");
        }
    }

    #[test]
    fn control_frames_over_125_bytes_are_refused_whichever_kind() {
        // Others look at pings only, and echo a close of 302 bytes as an illegal one.
        for opcode in [Opcode::Close, Opcode::Ping, Opcode::Pong] {
            for second in [126, 127, 128 + 126, 128 + 127] {
                assert_eq!(decode(&[0x80 | opcode as u8, second]), Err(FrameError::LongControl { opcode }));
            }
            let header = Header { fin: true, opcode, masked: None, length: 125 };
            let (out, size) = encoded(&header);
            assert_eq!(decode(&out), Ok(Decoded::Header { header, size }));
        }
    }

    #[test]
    fn lengths_in_a_wider_form_than_needed_are_refused() {
        for length in [0_u16, 1, 125] {
            let [a, b] = length.to_be_bytes();
            let length = u64::from(length);
            assert_eq!(decode(&[0x82, 126, a, b]), Err(FrameError::NotMinimal { length }));
        }
        for length in [0_u64, 125, 126, 65_535] {
            let mut bytes = [0x82, 127, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..].copy_from_slice(&length.to_be_bytes());
            assert_eq!(decode(&bytes), Err(FrameError::NotMinimal { length }));
        }
    }

    #[test]
    fn a_length_with_its_highest_bit_set_is_refused() {
        for length in [1 << 63, u64::MAX] {
            let mut bytes = [0x82, 127, 0, 0, 0, 0, 0, 0, 0, 0];
            bytes[2..].copy_from_slice(&length.to_be_bytes());
            assert_eq!(decode(&bytes), Err(FrameError::Length { length }));
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_bytes(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Ok(Decoded::Header { header, size }) = decode(&bytes) {
                let (out, again) = encoded(&header);
                prop_assert_eq!(&out[..again], &bytes[..size]);
            }
        }

        #[test]
        fn more_bytes_never_take_an_answer_back(
            bytes in prop::collection::vec(any::<u8>(), 0..20), cut in 0_usize..20,
        ) {
            match decode(&bytes[..cut.min(bytes.len())]) {
                Ok(Decoded::NeedMore) => {}
                settled => prop_assert_eq!(settled, decode(&bytes)),
            }
        }
    }
}
