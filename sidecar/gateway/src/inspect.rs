//! A guard in front of fastwebsockets' reader: it follows the frame headers as the bytes stream past, and ends the
//! stream where the agent breaks RFC 6455.
//!
//! The reader behind it takes unmasked client frames, long pongs and closes, and a new message inside an unfinished
//! one, and it limits frames rather than messages. A rehearsal that is kinder than the real gateway would be no
//! rehearsal. Non-minimal lengths are let pass, as gorilla/websocket does.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;

use bytes::{Buf, Bytes};
use thiserror::Error;
use tokio::io::{AsyncRead, ReadBuf};

/// A breach of RFC 6455 by the agent, with the close code that answers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("{what} (close {code})")]
pub(crate) struct Violation {
    pub(crate) code: u16,
    pub(crate) what: &'static str,
}

const fn protocol(what: &'static str) -> Violation {
    Violation { code: 1002, what }
}

/// Follows frames; holds at most one header.
#[derive(Debug)]
struct Follower {
    header: [u8; 10],
    /// Bytes of the header seen, the mask key left out: 0 <= seen <= 10.
    seen: usize,
    /// Bytes of mask key and payload that are still to come.
    rest: u64,
    /// Length so far of a message whose last fragment has not come.
    unfinished: Option<u64>,
    limit: u64,
}

impl Follower {
    /// Takes bytes; on a breach, says how many of them came before the byte that gives it away.
    fn feed(&mut self, bytes: &[u8]) -> Result<(), (usize, Violation)> {
        let mut at = 0;
        while at < bytes.len() {
            if self.rest > 0 {
                let left = u64::try_from(bytes.len() - at).unwrap_or(u64::MAX);
                let step = self.rest.min(left);
                self.rest -= step;
                // No more than what is left of a slice, so it fits.
                at += step as usize;
                continue;
            }
            self.header[self.seen] = bytes[at];
            self.seen += 1;
            self.header_byte().map_err(|violation| (at, violation))?;
            at += 1;
        }
        Ok(())
    }

    fn header_byte(&mut self) -> Result<(), Violation> {
        let [first, second, ..] = self.header;
        let control = first & 0x08 != 0;
        match self.seen {
            1 => {
                if first & 0x70 != 0 {
                    return Err(protocol("a reserved bit is set"));
                }
                match (first & 0x0F, self.unfinished.is_some()) {
                    (0, false) => return Err(protocol("a continuation without a message")),
                    (1 | 2, true) => return Err(protocol("a new message inside an unfinished one")),
                    (3..=7 | 11..=15, _) => return Err(protocol("a reserved opcode")),
                    _ => {}
                }
                if control && first & 0x80 == 0 {
                    return Err(protocol("a fragmented control frame"));
                }
                return Ok(());
            }
            2 => {
                if second & 0x80 == 0 {
                    return Err(protocol("a frame without a mask"));
                }
                if control && second & 0x7F > 125 {
                    return Err(protocol("a control frame of more than 125 bytes"));
                }
            }
            _ => {}
        }
        let (size, length) = match second & 0x7F {
            126 => (4, u64::from(u16::from_be_bytes([self.header[2], self.header[3]]))),
            127 => (10, u64::from_be_bytes(*self.header.last_chunk().expect("8 of 10 bytes"))),
            short => (2, u64::from(short)),
        };
        if self.seen == size { self.frame(first, length) } else { Ok(()) }
    }

    fn frame(&mut self, first: u8, length: u64) -> Result<(), Violation> {
        if length > i64::MAX as u64 {
            return Err(protocol("a length with its highest bit set"));
        }
        if first & 0x08 == 0 {
            let message = self.unfinished.unwrap_or(0).saturating_add(length);
            if message > self.limit {
                return Err(Violation { code: 1009, what: "a message over the gateway's limit" });
            }
            self.unfinished = (first & 0x80 == 0).then_some(message);
        }
        self.seen = 0;
        // The mask key is four bytes long.
        self.rest = length + 4;
        Ok(())
    }
}

/// The read side of an upgraded connection, starting with what came along with the request.
#[derive(Debug)]
pub(crate) struct Inspector<R> {
    leftover: Bytes,
    inner: R,
    follower: Follower,
    violation: Option<Violation>,
}

impl<R> Inspector<R> {
    /// `limit` is on whole messages, in bytes.
    pub(crate) fn new(leftover: Bytes, inner: R, limit: u64) -> Self {
        let follower = Follower { header: [0; 10], seen: 0, rest: 0, unfinished: None, limit };
        Self { leftover, inner, follower, violation: None }
    }

    /// The stream without a guard, for throwing the rest away.
    pub(crate) fn into_inner(self) -> R {
        self.inner
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Inspector<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(violation) = this.violation {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
        }
        let before = buf.filled().len();
        if this.leftover.is_empty() {
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
        } else {
            let length = this.leftover.len().min(buf.remaining());
            buf.put_slice(&this.leftover[..length]);
            this.leftover.advance(length);
        }
        if let Err((good, violation)) = this.follower.feed(&buf.filled()[before..]) {
            this.violation = Some(violation);
            buf.set_filled(before + good);
            // Nothing in front of it would read as the end of the stream.
            if good == 0 {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, violation)));
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn feed(frames: &[&[u8]]) -> Result<(), (usize, Violation)> {
        let stream = frames.concat();
        let follower = || Follower { header: [0; 10], seen: 0, rest: 0, unfinished: None, limit: 1000 };
        let whole = follower().feed(&stream);
        // Any cut of the stream gives the same.
        for cut in 0..=stream.len() {
            let mut follower = follower();
            let first = follower.feed(&stream[..cut]);
            let pieces = first.and_then(|()| {
                follower.feed(&stream[cut..]).map_err(|(good, violation)| (good + cut, violation))
            });
            assert_eq!(pieces, whole, "cut at {cut}");
        }
        whole
    }

    const MASK: &[u8] = &[1, 2, 3, 4];

    #[test]
    fn what_a_client_may_send_passes() {
        let long = [0x82, 0xFE, 0, 200];
        let longer = [0x82, 0xFF, 0, 0, 0, 0, 0, 0, 0, 5];
        feed(&[&[0x81, 0x80], MASK, &[0x82, 0x81], MASK, &[9]]).unwrap();
        feed(&[&long, MASK, &[7; 200], &longer, MASK, &[7; 5]]).unwrap();
        // Fragments with a ping between, ended by an empty one.
        feed(&[
            &[0x02, 0x81],
            MASK,
            &[9],
            &[0x89, 0x81],
            MASK,
            &[1],
            &[0x00, 0x80],
            MASK,
            &[0x80, 0x80],
            MASK,
        ])
        .unwrap();
    }

    #[test]
    fn each_breach_is_found_at_its_byte() {
        let table: [(&[&[u8]], usize, u16); 10] = [
            (&[&[0x82, 0x01, 9]], 1, 1002),
            (&[&[0xC2, 0x80]], 0, 1002),
            (&[&[0x83, 0x80]], 0, 1002),
            (&[&[0x09, 0x80]], 0, 1002),
            (&[&[0x8A, 0xFE, 0, 126]], 1, 1002),
            (&[&[0x80, 0x80]], 0, 1002),
            (&[&[0x02, 0x80], MASK, &[0x82, 0x80]], 6, 1002),
            (&[&[0x82, 0xFF, 255, 0, 0, 0, 0, 0, 0, 0]], 9, 1002),
            (&[&[0x82, 0xFE, 3, 233]], 3, 1009),
            (&[&[0x02, 0xFE, 3, 232], MASK, &[0; 1000], &[0x80, 0x81]], 1009, 1009),
        ];
        for (frames, at, code) in table {
            let (found, violation) = feed(frames).unwrap_err();
            assert_eq!((found, violation.code), (at, code), "{frames:?}: {violation}");
        }
    }
}
