//! Writing into a buffer that the caller owns.
//!
//! Every encoder of this crate writes through [`Writer`], so that "does it fit" is asked in one place. A
//! writer that ran out of room stays failed: callers check once, at the end, and use nothing before that.

use thiserror::Error;

/// The buffer that was given is too short for what had to be written; its content is unspecified.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
#[error("the output buffer of {capacity} bytes is too short")]
pub struct Short {
    /// Length of the buffer in bytes.
    pub capacity: usize,
}

/// Appends to a slice. Invariant: `length <= out.len()`.
pub(crate) struct Writer<'a> {
    out: &'a mut [u8],
    length: usize,
    overflown: bool,
}

impl<'a> Writer<'a> {
    pub(crate) fn new(out: &'a mut [u8]) -> Self {
        Self { out, length: 0, overflown: false }
    }

    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let room = &mut self.out[self.length..];
        if self.overflown || bytes.len() > room.len() {
            self.overflown = true;
            return;
        }
        room[..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Bytes written, or the news that they did not all fit.
    pub(crate) fn finish(self) -> Result<usize, Short> {
        if self.overflown { Err(Short { capacity: self.out.len() }) } else { Ok(self.length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_exactly_is_written() {
        let mut out = [0; 4];
        let mut writer = Writer::new(&mut out);
        writer.put(b"ab");
        writer.put(b"");
        writer.put(b"cd");
        assert_eq!(writer.finish(), Ok(4));
        assert_eq!(&out, b"abcd");
    }

    #[test]
    fn a_writer_that_overflowed_stays_failed() {
        let mut out = [0; 4];
        let mut writer = Writer::new(&mut out);
        writer.put(b"abcde");
        writer.put(b"a");
        assert_eq!(writer.finish(), Err(Short { capacity: 4 }));
    }
}
