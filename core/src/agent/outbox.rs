//! What waits to be sent, besides actions: pongs, pings, `ready`, `session_close`, the close frame. It holds meaning,
//! not bytes, so its size is bounded and a lost connection takes away only what belonged to it.

use heapless::{Deque, Vec};

use super::entropy::Entropy;
use crate::tunnel::control::{MAX_SESSION_CLOSE, write_ready, write_session_close};
use crate::tunnel::{Epoch, Reason, SessionId};
use crate::ws::close::{CloseCode, MAX_CLOSE_PAYLOAD, write_close};
use crate::ws::frame::{Header, MAX_HEADER, Opcode, encode};
use crate::ws::mask;

/// Payload of a control frame (RFC 6455 5.5).
pub(super) type Short = Vec<u8, 125>;

/// The most that `poll_transmit` writes: a `session_close` whose id and reason are all escapes.
pub const MAX_TRANSMIT: usize = MAX_HEADER + MAX_SESSION_CLOSE;

/// Pings that wait for their pong. An endpoint may answer only the last of several (RFC 6455 5.5.3), so the oldest
/// give way.
const PONGS: usize = 4;

/// What was taken from the outbox.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    Pong,
    Ping,
    Ready,
    SessionClose,
    Close,
}

/// Whose idea a close is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Farewell {
    /// A `session_close` that waits goes before it.
    Ours,
    /// The peer listens no more: what waits is kept for the next connection.
    Theirs,
}

/// The session that we closed last, until the gateway shows that it knows: a cut may swallow the `session_close`, and
/// then the gateway restores the session. So each connection is told of it.
#[derive(Debug)]
struct Closed {
    session: SessionId,
    reason: Reason,
    /// On this connection.
    told: bool,
    /// The gateway may open it on this connection, as restored, before it hears.
    restored: bool,
}

#[derive(Debug, Default)]
pub(super) struct Outbox {
    pongs: Deque<Short, PONGS>,
    pub(super) ping: bool,
    /// Stays when a connection is lost: the gateway still waits for it.
    pub(super) ready: bool,
    closed: Option<Closed>,
    close: Option<(Farewell, Short)>,
    close_taken: bool,
    /// The action whose bytes are on their way: nothing may come between them.
    pub(super) action: Option<(Epoch, u64)>,
}

impl Outbox {
    pub(super) fn pong(&mut self, payload: &[u8]) {
        if self.pongs.is_full() {
            self.pongs.pop_front();
        }
        // A control frame's payload fits, and there is room now.
        let _ = self.pongs.push_back(Vec::from_slice(payload).unwrap_or_default());
    }

    /// Queues the close frame; the first one counts. Nothing but our own `session_close` goes before it.
    pub(super) fn close(&mut self, whose: Farewell, code: Option<CloseCode>, reason: &str) {
        self.pongs.clear();
        self.ping = false;
        if self.close.is_some() || self.close_taken {
            return;
        }
        let mut payload = [0; MAX_CLOSE_PAYLOAD];
        let length = code.map_or(0, |code| write_close(code, reason, &mut payload));
        self.close = Vec::from_slice(&payload[..length]).ok().map(|payload| (whose, payload));
    }

    /// Tells the gateway that a session is over, on this connection and on each later one.
    pub(super) fn session_close(&mut self, session: SessionId, reason: Reason) {
        self.closed = Some(Closed { session, reason, told: false, restored: false });
    }

    /// Whether the gateway opens a session that we closed, not having heard of it; then it's told (again). What it opens
    /// after that under the same id is a new one.
    pub(super) fn closes_again(&mut self, session: &SessionId) -> bool {
        let unheard = |closed: &&mut Closed| closed.session == *session && (!closed.told || closed.restored);
        let Some(closed) = self.closed.as_mut().filter(unheard) else { return false };
        closed.told = false;
        closed.restored = false;
        true
    }

    /// The gateway closes this session, too.
    pub(super) fn session_close_heard(&mut self, session: &SessionId) {
        self.closed.take_if(|closed| closed.session == *session);
    }

    /// The gateway has gone on: whatever we closed is over.
    pub(super) fn forget_closed(&mut self) {
        self.closed = None;
    }

    /// The close frame was taken: it is on the wire or past it.
    pub(super) const fn close_taken(&self) -> bool {
        self.close_taken
    }

    /// A new connection knows nothing of the old one's frames.
    pub(super) fn connection_lost(&mut self) {
        self.pongs.clear();
        self.ping = false;
        self.close = None;
        self.close_taken = false;
        self.action = None;
        if let Some(closed) = &mut self.closed {
            closed.told = false;
            closed.restored = true;
        }
    }

    /// Takes the next frame, complete and masked, to the front of `out`. `held`: only what belongs to the connection
    /// itself may leave. Nothing is taken when `out` is too short.
    pub(super) fn take(
        &mut self,
        held: bool,
        entropy: &mut Entropy,
        out: &mut [u8],
    ) -> Option<(Taken, usize)> {
        if self.action.is_some() || self.close_taken {
            return None;
        }
        if let Some(payload) = self.pongs.front() {
            let length =
                frame(Opcode::Pong, payload.len(), entropy, out, |into| into.copy_from_slice(payload))?;
            self.pongs.pop_front();
            return Some((Taken::Pong, length));
        }
        let farewell = self.close.as_ref().map(|(whose, _)| *whose);
        if self.ready && !held && farewell.is_none() {
            let mut text = [0; 64];
            let size = write_ready(&mut text).ok()?;
            let length = frame(Opcode::Text, size, entropy, out, |into| into.copy_from_slice(&text[..size]))?;
            self.ready = false;
            return Some((Taken::Ready, length));
        }
        let last_words = farewell == Some(Farewell::Ours) || (farewell.is_none() && !held);
        if let Some(closed) = self.closed.as_mut().filter(|closed| last_words && !closed.told) {
            let mut text = [0; MAX_SESSION_CLOSE];
            let size = write_session_close(&closed.session, &closed.reason, &mut text).ok()?;
            let length = frame(Opcode::Text, size, entropy, out, |into| into.copy_from_slice(&text[..size]))?;
            closed.told = true;
            return Some((Taken::SessionClose, length));
        }
        if self.ping {
            let length = frame(Opcode::Ping, 0, entropy, out, |_| {})?;
            self.ping = false;
            return Some((Taken::Ping, length));
        }
        let (_, payload) = self.close.as_ref()?;
        let length = frame(Opcode::Close, payload.len(), entropy, out, |into| into.copy_from_slice(payload))?;
        self.close = None;
        self.close_taken = true;
        Some((Taken::Close, length))
    }
}

/// Writes one masked frame; `None` when `out` is too short.
fn frame(
    opcode: Opcode,
    length: usize,
    entropy: &mut Entropy,
    out: &mut [u8],
    fill: impl FnOnce(&mut [u8]),
) -> Option<usize> {
    let key = entropy.bytes();
    let mut head = [0; MAX_HEADER];
    let size = encode(&Header { fin: true, opcode, masked: Some(key), length: length as u64 }, &mut head);
    let payload = out.get_mut(size..size + length)?;
    fill(payload);
    mask::apply(key, 0, payload);
    out[..size].copy_from_slice(&head[..size]);
    Some(size + length)
}
