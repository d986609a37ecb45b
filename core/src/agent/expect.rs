//! What the next data frame will most likely look like: the same header as the last one. A read that starts this many
//! bytes before the payload's place brings header and payload in one go, and the payload lands where it stays.
//! Correctness never depends on it: a wrong guess is shifted, and counted.

use crate::tunnel::data::DataHead;

/// The first receive of a message takes at least this much while an answer is owed.
const LEAST: u32 = 64 << 10;

#[derive(Copy, Clone, Debug)]
pub(super) struct Expect {
    /// Bytes of WebSocket header: 2, 4 or 10.
    header: u32,
    /// Bytes of the last message, header included.
    message: u32,
}

impl Expect {
    /// Before any data frame was seen: a large one, as the contest's are.
    pub(super) const UNKNOWN: Self = Self { header: 10, message: 0 };

    /// A data message with this header in front of its first frame was received.
    pub(super) fn learn(&mut self, header: u32, length: u64) {
        self.header = header;
        self.message = u32::try_from(length).unwrap_or(u32::MAX).saturating_add(header);
    }

    /// Bytes that are missing before the payload begins, when `bytes` of the frame's header are there.
    pub(super) fn before_payload(&self, bytes: &[u8], session: usize) -> u32 {
        // The second byte gives the header's size away (RFC 6455 5.2); until then it is guessed.
        let header = match bytes.get(1).map(|second| second & 0x7f) {
            None => self.header,
            Some(126) => 4,
            Some(127) => 10,
            Some(_) => 2,
        };
        header.saturating_sub(bytes.len() as u32) + 4 + session as u32
    }

    /// The same within the tunnel's header, of which `fed` bytes are there.
    pub(super) fn before_payload_in_head(&self, head: &DataHead, fed: u32, session: usize) -> u32 {
        let known = head.missing() as u32;
        if fed < 4 { known + session as u32 } else { known }
    }

    /// How much the first receive of a message may take. While an answer is owed, a following message may already be
    /// under way, and what comes along of it has to be moved.
    pub(super) fn bound(&self, unanswered: u32) -> u32 {
        if unanswered == 0 { u32::MAX } else { self.message.max(LEAST) }
    }
}
