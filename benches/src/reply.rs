//! The reply that an observation asks for: its length follows from the observation's, its first bytes are the
//! observation's last, the rest is a pattern.
//!
//! That proves that the whole observation arrived, and costs next to nothing in any language.

/// A contest's reply: 85 KB and 0.75 MB observations ask for it.
pub const LARGE: usize = 7_680;
/// Every other observation asks for this.
pub const SMALL: usize = 64;
/// So many last bytes of the observation come back.
pub const ECHOED: usize = 8;

/// Observation lengths whose reply is [`LARGE`]: 85 KB and 0.75 MB.
pub const CONTEST: [usize; 2] = [87_040, 786_432];

/// Length of the reply to an observation of `length` bytes.
#[must_use]
pub const fn length(length: usize) -> usize {
    if length == CONTEST[0] || length == CONTEST[1] { LARGE } else { SMALL }
}

/// Byte of the pattern at `index`.
#[must_use]
pub const fn pattern(index: usize) -> u8 {
    (index as u8).wrapping_mul(7).wrapping_add(3)
}

/// The pattern, to copy replies from.
pub static PATTERN: [u8; LARGE] = {
    let mut bytes = [0; LARGE];
    let mut index = 0;
    while index < LARGE {
        bytes[index] = pattern(index);
        index += 1;
    }
    bytes
};

/// Writes the reply to `observation` to `into`, which has its length. An observation without that many bytes is echoed
/// as zeroes.
///
/// # Panics
/// If `into` has another length.
pub fn write(observation: &[u8], into: &mut [u8]) {
    assert_eq!(into.len(), length(observation.len()), "the reply's length follows from the observation's");
    into.copy_from_slice(&PATTERN[..into.len()]);
    into[..ECHOED].copy_from_slice(&echo(observation));
}

/// What comes back of `observation`.
#[must_use]
pub fn echo(observation: &[u8]) -> [u8; ECHOED] {
    observation.last_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_bytes_come_back_and_the_pattern_follows() {
        let mut reply = [0; SMALL];
        write(b"0123456789abcdef", &mut reply);
        assert_eq!(&reply[..ECHOED], b"89abcdef");
        assert_eq!(reply[ECHOED..], PATTERN[ECHOED..SMALL]);
        write(b"", &mut reply);
        assert_eq!(reply[..ECHOED], [0; ECHOED]);
        assert_eq!(length(CONTEST[1]), LARGE);
    }
}
