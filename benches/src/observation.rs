//! A whole frame as the gateway writes it: WebSocket header, tunnel header (contract A.3), payload.

use crate::reply::ECHOED;

/// The session of every exchange.
pub const SESSION: &str = "bench-session-00";

/// A frame that is made once and stamped before each exchange.
#[derive(Debug)]
pub struct Observation {
    frame: Vec<u8>,
    payload: usize,
    sequence: u64,
}

impl Observation {
    /// A payload of `length` bytes.
    #[must_use]
    pub fn new(length: usize) -> Self {
        let message = 4 + SESSION.len() + length;
        let mut frame = vec![0x82];
        // RFC 6455 5.2: 7 bits, or 126 and 16 bits, or 127 and 64 bits.
        match message {
            0..126 => frame.push(message as u8),
            126..0x1_0000 => {
                frame.push(126);
                frame.extend((message as u16).to_be_bytes());
            }
            _ => {
                frame.push(127);
                frame.extend((message as u64).to_be_bytes());
            }
        }
        frame.extend((SESSION.len() as u32).to_be_bytes());
        frame.extend(SESSION.as_bytes());
        let payload = frame.len();
        // Nothing that a memcpy, a page or a compressor could find regular.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ length as u64;
        frame.extend((0..length).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        }));
        Self { frame, payload, sequence: 0 }
    }

    /// Makes it another one than before: its last bytes are a count.
    pub fn stamp(&mut self) {
        self.sequence += 1;
        let stamp = self.sequence.wrapping_mul(0x0101_0101_0101_0103).to_le_bytes();
        if let Some(end) = self.frame[self.payload..].last_chunk_mut::<ECHOED>() {
            *end = stamp;
        }
    }

    /// All of it.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The payload alone.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        &self.frame[self.payload..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_its_form_and_each_stamp_its_bytes() {
        for (length, header) in [(0, 2), (64, 2), (16 << 10, 4), (2 << 20, 10)] {
            let mut observation = Observation::new(length);
            assert_eq!(observation.payload().len(), length);
            assert_eq!(observation.frame().len(), header + 4 + SESSION.len() + length);
            observation.stamp();
            let before = observation.payload().to_vec();
            observation.stamp();
            assert_eq!(before == observation.payload(), length == 0);
        }
    }
}
