//! What the agent tells its caller. An event is either something to act on (dial, hang up, an observation, a session)
//! or a [`Notice`], worth one line in a log. None of them carries the token.

use core::fmt;
use core::time::Duration;

use heapless::String;

use crate::time::Instant;
use crate::tunnel::{Epoch, MAX_TYPE, Reason, SessionId};
use crate::ws::Violation;
use crate::ws::handshake::HandshakeError;

/// Name of a control type, cut after [`MAX_TYPE`] bytes.
pub type Kind = String<MAX_TYPE>;

/// Something that happened, in order.
#[expect(clippy::large_enum_variant, reason = "there is no heap to put a session id on")]
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Resolve and connect within `timeout`, then call `handle_connected` or `handle_dial_failed`.
    Dial {
        /// Counts from 1 within one outage.
        attempt: u32,
        /// The longest that resolving and connecting may take.
        timeout: Duration,
        /// The last token was refused: read the token sources again first.
        reread_token: bool,
    },
    /// End the connection; nothing more of it is to be reported to the agent.
    HangUp(HangUp),
    /// The gateway answered `101`.
    Upgraded {
        /// The attempt that succeeded.
        attempt: u32,
        /// A tunnel of this job and agent had been up before.
        resumed: bool,
    },
    /// A connection, or an attempt at one, is over.
    Disconnected {
        /// Why.
        cause: Disconnect,
        /// It is dialled again, until then at most; `None`: never again.
        redial_until: Option<Instant>,
    },
    /// The gateway asks for a warm-up; answer with `worker_ready` or `worker_failed`.
    Warmup,
    /// `ready` was received, but no GPU of the gateway's cluster is free (A.2).
    Queued {
        /// The gateway's reason.
        reason: Reason,
    },
    /// `ready` was handed out for sending.
    ReadySent,
    /// A session is open.
    SessionOpened {
        /// Its id.
        session: SessionId,
        /// Its epoch.
        epoch: Epoch,
        /// It had been open: the worker keeps its context.
        resumed: bool,
    },
    /// A session is over; actions of its epoch are refused from here on.
    SessionClosed {
        /// Its id.
        session: SessionId,
        /// Its epoch.
        epoch: Epoch,
        /// Who closed it.
        by: CloseBy,
        /// Why, in the words of who did.
        reason: Reason,
    },
    /// A payload lies complete in the slot that was on offer, from offset `HEADROOM` on. The slot is the caller's now.
    Observation {
        /// Its session; 0 for the warm-up round trip with an empty session id.
        epoch: Epoch,
        /// Counts observations from 1.
        sequence: u64,
        /// Bytes of payload.
        length: u32,
        /// Bytes of it that had to be moved to where they lie.
        moved: u32,
        /// When the first byte of the message was received.
        first_byte: Instant,
        /// When the last one was.
        last_byte: Instant,
    },
    /// An observation had more payload than a slot, and was discarded.
    ObservationTooLarge {
        /// Its session.
        epoch: Epoch,
        /// It has a number like any other.
        sequence: u64,
        /// Bytes of payload it had.
        size: u64,
    },
    /// No more sessions (A.2): answer what is open, then call `finish_drain`.
    Drain {
        /// The gateway's reason.
        reason: Reason,
    },
    /// Nothing has come in the session since the cut: send the action for this observation once more, with
    /// `begin_action`.
    Unfreeze {
        /// Its session.
        epoch: Epoch,
        /// The observation that the action answered.
        sequence: u64,
    },
    /// The tunnel is up again and a session is open, but nothing comes.
    Wedged {
        /// Since the last message.
        silent_for: Duration,
    },
    /// Call `replace_agent` with an id never used before.
    FreshAgent,
    /// Worth a line in a log.
    Notice(Notice),
    /// It is over; no event follows.
    Finished(Outcome),
}

/// How a connection is to be ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum HangUp {
    /// Let what was handed out for sending leave, send FIN, read on until the peer's FIN (bounded), close.
    Orderly,
    /// Close at once.
    Abort,
}

/// Why a dial came to nothing before the upgrade.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DialFailure {
    /// The host's name could not be resolved.
    #[error("the host's name could not be resolved")]
    Dns,
    /// Nobody listens there.
    #[error("connection refused")]
    Refused,
    /// No route to the host or its network.
    #[error("host unreachable")]
    Unreachable,
    /// No answer within the time for one attempt.
    #[error("no answer in time")]
    Timeout,
    /// Anything else; the caller knows the details.
    #[error("could not connect")]
    Other,
}

/// How a connection ended from outside.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// FIN was received.
    Eof,
    /// It was reset, or an operation on it failed.
    Reset,
}

/// Why a connection, or an attempt at one, is over.
#[expect(clippy::large_enum_variant, reason = "there is no heap to put a reason on")]
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Disconnect {
    /// A close frame was received, or we sent one.
    #[error("closed{}", CodeAndReason(*code, reason))]
    Closed {
        /// Its code, if it had one.
        code: Option<u16>,
        /// Its reason, cut at 256 bytes.
        reason: Reason,
    },
    /// FIN without a close frame.
    #[error("end of stream without a close frame")]
    Eof,
    /// The connection was reset.
    #[error("connection reset")]
    Reset,
    /// No byte for longer than `dead_after`.
    #[error("nothing received for too long")]
    Silent,
    /// The gateway broke the rules of RFC 6455, or a limit; it was told so with the close code.
    #[error("protocol violation: {0}")]
    Protocol(Violation),
    /// No connection came about.
    #[error("dial failed: {0}")]
    DialFailed(DialFailure),
    /// The upgrade was answered with another status than 101.
    #[error("upgrade refused with status {status}")]
    Refused {
        /// The HTTP status.
        status: u16,
    },
    /// Closed right after the `101`: over the parallelism cap, or the old connection is still alive over there.
    #[error("closed right after the upgrade: over the parallelism cap, or the agent is still connected")]
    Capacity,
    /// The answer to the upgrade was not one.
    #[error("upgrade failed: {0}")]
    Handshake(HandshakeError),
    /// A fresh agent id takes over from here.
    #[error("given up for a fresh agent id")]
    Replaced,
}

struct CodeAndReason<'a>(Option<u16>, &'a Reason);

impl fmt::Display for CodeAndReason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(code) => write!(f, " with code {code}")?,
            None => f.write_str(" without a code")?,
        }
        if self.1.is_empty() { Ok(()) } else { write!(f, ": {}", self.1.as_str().escape_debug()) }
    }
}

/// Who closed a session.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum CloseBy {
    /// The gateway said so.
    Gateway,
    /// The gateway opened another one.
    Replaced,
    /// We did.
    Us,
}

/// Something that changes nothing, but that a person may want to know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A control frame of a type that the contract doesn't know; ignored (A.2).
    UnknownControl {
        /// Its type.
        kind: Kind,
    },
    /// A text message that is no control frame; ignored.
    MalformedControl,
    /// A control frame that only an agent sends; ignored.
    WrongDirection {
        /// Its type.
        kind: Kind,
    },
    /// `session_close` for a session that isn't open; ignored.
    StraySessionClose,
    /// `session_open` after a redial for a session that we closed, which the gateway had not heard; it is told again.
    RestoredAfterClose,
    /// A data frame was dropped.
    DroppedFrame(DropKind),
    /// `warmup` came and the worker isn't ready yet.
    ReadyOverdue {
        /// When `warmup` came.
        since: Instant,
    },
    /// A `warmup` that was answered at once, since the worker is warm.
    WarmAlready,
    /// All slots are taken: the next observation waits in the network.
    Blocked,
    /// A slot came free.
    Unblocked,
    /// A ping was received; its pong is queued.
    Pinged,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownControl { kind } => {
                write!(f, "control frame of the unknown type \"{}\" ignored", kind.as_str().escape_debug())
            }
            Self::MalformedControl => f.write_str("text message that is no control frame ignored"),
            Self::WrongDirection { kind } => {
                write!(
                    f,
                    "control frame \"{}\" ignored: only an agent sends it",
                    kind.as_str().escape_debug()
                )
            }
            Self::StraySessionClose => f.write_str("session_close for a session that is not open ignored"),
            Self::RestoredAfterClose => f.write_str(
                "session_open for a session that was closed here not followed: the gateway is told again",
            ),
            Self::DroppedFrame(kind) => write!(f, "data frame dropped: {kind}"),
            Self::ReadyOverdue { .. } => f.write_str("the worker is not ready yet; the gateway waits for it"),
            Self::WarmAlready => f.write_str("warmup answered at once: the worker is warm"),
            Self::Blocked => f.write_str("all observation slots are taken; the next observation waits"),
            Self::Unblocked => f.write_str("an observation slot is free again"),
            Self::Pinged => f.write_str("ping received"),
        }
    }
}

/// Why a data frame was dropped (A.3). The connection goes on: a redial would only meet it again.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DropKind {
    /// Its session isn't open here.
    #[error("its session is not open")]
    UnknownSession,
    /// Shorter than the four bytes of the session id's length.
    #[error("shorter than 4 bytes")]
    TooShort,
    /// The session id would be longer than 256 bytes.
    #[error("session id longer than 256 bytes")]
    SessionIdTooLong,
    /// The session id would reach past the end of the message.
    #[error("session id reaches past the end of the frame")]
    SessionIdOverrun,
    /// The session id isn't UTF-8.
    #[error("session id is not UTF-8")]
    SessionIdNotUtf8,
}

/// How it ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// After a `drain`.
    Drained,
    /// `shutdown(Close)` is done.
    Closed,
    /// `shutdown(Leave)` is done.
    Left,
    /// The gateway refused the token, on a redial also the one that was read again.
    TokenRefused {
        /// 401 or 403.
        status: u16,
        /// On the first dial: token and job don't match. Else the job became terminal.
        first: bool,
    },
    /// Over the parallelism cap.
    Capacity,
    /// The first dial came to nothing within its time.
    DialBudget {
        /// The last failure.
        last: Disconnect,
    },
    /// The redial came to nothing within the gateway's window.
    RedialBudget {
        /// The last failure.
        last: Disconnect,
    },
    /// The worker's warm-up failed.
    WorkerFailed,
}

/// How to end on request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Shutdown {
    /// `session_close`, close 1000, and the peer's close.
    Close,
    /// Neither: the connection ends with a FIN and the session stays open over there, for a successor.
    Leave,
}

/// Why an action may not be sent now.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refused {
    /// The tunnel is down: keep the action, ask again later.
    #[error("the tunnel is down")]
    Down,
    /// Redialled a moment ago: keep the action until the connection has proved to stay.
    #[error("the tunnel was redialled a moment ago")]
    Held,
    /// The session is closed or replaced: drop the action.
    #[error("the session is closed")]
    Gone,
    /// The connection is being closed.
    #[error("the tunnel is closing")]
    Closing,
}
