//! The way out: control frames, and the head of an action. An action's payload never passes through here; the caller
//! masks it with the key that it is given and sends head and payload in one write.

use super::event::{CloseBy, Event, Refused};
use super::link::Wait;
use super::outbox::Taken;
use super::{Agent, Phase};
use crate::time::Instant;
use crate::tunnel::data::{MAX_DATA_HEAD, data_head_size, encode_data_head};
use crate::tunnel::{Epoch, MAX_REASON, clip};
use crate::ws::frame::{Header, MAX_HEADER, Opcode, encode};
use crate::ws::mask;

/// The most that stands in front of an action's payload: WebSocket header and tunnel header.
pub const MAX_HEAD: usize = MAX_HEADER + MAX_DATA_HEAD;

/// What stands in front of an action's payload, and how to mask it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ActionHead {
    /// Bytes in the caller's `head`; they are masked where they have to be.
    pub len: usize,
    /// The key (RFC 6455 5.3).
    pub mask: [u8; 4],
    /// Position of the payload's first byte in what is masked: its key byte is `mask[mask_offset % 4]`.
    pub mask_offset: usize,
}

impl Agent {
    /// The next control frame, complete, in the front of `out`: send it before anything else. Call it while the wire is
    /// free. `out` has to have [`MAX_TRANSMIT`](super::MAX_TRANSMIT) bytes.
    pub fn poll_transmit(&mut self, _now: Instant, out: &mut [u8]) -> Option<usize> {
        let open = self.link.open()?;
        let held = open.held_until.is_some();
        if self.ended.is_some() {
            return None;
        }
        let (taken, length) = self.outbox.take(held, &mut self.entropy, out)?;
        if taken == Taken::Ready {
            self.progress.ready_sent();
            self.events.push(Event::ReadySent);
        }
        Some(length)
    }

    /// All of a control frame, or of the upgrade request, went to the kernel.
    pub fn handle_sent(&mut self, now: Instant) {
        if !self.outbox.close_taken() {
            return;
        }
        let waited = self.link.open().and_then(|open| open.closing.as_ref()).map(|closing| closing.wait);
        if waited == Some(Wait::Sent) {
            self.conclude(now);
        }
    }

    /// Whether an action of `epoch` may be sent now.
    ///
    /// # Errors
    /// Why not, and thereby what to do with it.
    pub fn may_send(&self, epoch: Epoch) -> Result<(), Refused> {
        if !self.sessions.is_open(epoch) {
            return Err(Refused::Gone);
        }
        match self.link.open() {
            None => Err(Refused::Down),
            Some(open) if open.closing.is_some() => Err(Refused::Closing),
            Some(_) if self.ended.is_some() => Err(Refused::Down),
            Some(open) if open.held_until.is_some() => Err(Refused::Held),
            Some(_) => Ok(()),
        }
    }

    /// Starts an action: `payload` bytes that answer the observation `sequence`. Writes what stands in front of them to
    /// `head`. From here until `handle_action_sent` no control frame is given out.
    ///
    /// # Errors
    /// As for `may_send`; [`Refused::Held`] also while another action is on its way.
    pub fn begin_action(
        &mut self,
        now: Instant,
        epoch: Epoch,
        sequence: u64,
        payload: u32,
        head: &mut [u8; MAX_HEAD],
    ) -> Result<ActionHead, Refused> {
        self.may_send(epoch)?;
        if self.outbox.action.is_some() {
            return Err(Refused::Held);
        }
        let key = self.entropy.bytes();
        let session = self.sessions.id(epoch);
        let tunnel_size = data_head_size(&session);
        let length = tunnel_size as u64 + u64::from(payload);
        let header = Header { fin: true, opcode: Opcode::Binary, masked: Some(key), length };
        let size = encode(&header, head.first_chunk_mut().expect("MAX_HEAD is MAX_HEADER and more"));
        let len = size + tunnel_size;
        encode_data_head(&session, &mut head[size..]);
        mask::apply(key, 0, &mut head[size..len]);
        self.outbox.action = Some((epoch, sequence));
        self.sessions.action(now, epoch, sequence);
        Ok(ActionHead { len, mask: key, mask_offset: tunnel_size })
    }

    /// The last byte of an action went to the kernel.
    pub fn handle_action_sent(&mut self, now: Instant, epoch: Epoch, sequence: u64) {
        if self.outbox.action == Some((epoch, sequence)) {
            self.outbox.action = None;
            self.sessions.action_sent(now, sequence);
        }
    }

    /// Closes the session of `epoch`, if it is still open: tells the gateway now, and after each redial until it has
    /// shown that it knows.
    pub fn close_session(&mut self, _now: Instant, epoch: Epoch, reason: &str) {
        if self.sessions.current().is_some_and(|(_, open)| open == epoch) {
            self.close_current(CloseBy::Us, reason);
        }
    }

    /// The open session is over.
    pub(super) fn close_current(&mut self, by: CloseBy, reason: &str) {
        let Some((session, epoch)) = self.sessions.close() else { return };
        let reason = clip::<MAX_REASON>(reason);
        if by == CloseBy::Us {
            self.outbox.session_close(session.clone(), reason.clone());
        }
        self.events.push(Event::SessionClosed { session, epoch, by, reason });
    }

    /// Everything that had to be answered was sent: closes the tunnel after a `drain`.
    pub fn finish_drain(&mut self, now: Instant) {
        if self.progress.phase == Phase::Draining {
            self.close_after_drain(now);
        }
    }
}
