//! What the agent tells: one flat struct for all events, and how core's become one.

use core::ffi::c_char;
use core::fmt::{self, Write};
use core::mem::size_of;
use core::ptr;

use sidecar_core::agent::{CloseBy, Disconnect, Event, HangUp, Notice, Outcome};

use crate::border::Versioned;

/// Dial: resolve and connect within `duration_ns`, then say `sidecar_agent_handle_connected` or
/// `sidecar_agent_handle_dial_failed`. `attempt` counts within one outage; see `FLAG_REREAD_TOKEN`.
pub const AGENT_EVENT_DIAL: u32 = 1;
/// End the connection as `cause` (`HANG_UP_...`) says; nothing more of it is told to the agent.
pub const AGENT_EVENT_HANG_UP: u32 = 2;
/// The gateway accepted, at `attempt`. `FLAG_RESUMED`: a tunnel of this job and agent had been up before.
pub const AGENT_EVENT_UPGRADED: u32 = 3;
/// A connection, or an attempt at one, is over: `cause` (`DISCONNECT_...`), `code`, `text`. `FLAG_UNTIL`: it is dialled
/// again, until `until_ns` at most; otherwise never again.
pub const AGENT_EVENT_DISCONNECTED: u32 = 4;
/// Warm the model up, then say `sidecar_agent_worker_ready` or `sidecar_agent_worker_failed`.
pub const AGENT_EVENT_WARMUP: u32 = 5;
/// `ready` was received, but the gateway has no GPU free; `text` is its reason.
pub const AGENT_EVENT_QUEUED: u32 = 6;
/// `ready` was handed out for sending.
pub const AGENT_EVENT_READY_SENT: u32 = 7;
/// `session` is open under `epoch`. `FLAG_RESUMED`: it had been open, and its context still holds.
pub const AGENT_EVENT_SESSION_OPENED: u32 = 8;
/// `session` of `epoch` is over: `cause` (`CLOSE_BY_...`), `text`.
pub const AGENT_EVENT_SESSION_CLOSED: u32 = 9;
/// `length` bytes lie at `payload`, in `slot`, which is yours again. Answer them under `epoch` and `sequence`. An
/// empty one asks for the action that does nothing.
pub const AGENT_EVENT_OBSERVATION: u32 = 10;
/// An observation of `length` bytes was larger than a slot, and was discarded.
pub const AGENT_EVENT_OBSERVATION_TOO_LARGE: u32 = 11;
/// No more sessions: answer what is open, then say `sidecar_agent_finish_drain`. `text` is the gateway's reason.
pub const AGENT_EVENT_DRAIN: u32 = 12;
/// Nothing has come since the cut: send the action for this `epoch` and `sequence` once more.
pub const AGENT_EVENT_UNFREEZE: u32 = 13;
/// The tunnel is up and a session open, but nothing has come for `duration_ns`.
pub const AGENT_EVENT_WEDGED: u32 = 14;
/// Say `sidecar_agent_replace_agent` with an id never used before.
pub const AGENT_EVENT_FRESH_AGENT: u32 = 15;
/// Worth a line in a log: `text`; `cause` (`NOTICE_...`).
pub const AGENT_EVENT_NOTICE: u32 = 16;
/// It is over: `cause` (`OUTCOME_...`), `text`. No event follows.
pub const AGENT_EVENT_FINISHED: u32 = 17;

/// See `UPGRADED`, `SESSION_OPENED`.
pub const FLAG_RESUMED: u32 = 1;
/// See `DIAL`: the last token was refused; read the token's source again first.
pub const FLAG_REREAD_TOKEN: u32 = 2;
/// `until_ns` is set.
pub const FLAG_UNTIL: u32 = 4;
/// `code` is set: a close code (RFC 6455 7.4) or an HTTP status.
pub const FLAG_CODE: u32 = 8;
/// See `OUTCOME_TOKEN_REFUSED`: it was refused on the first dial.
pub const FLAG_FIRST: u32 = 16;

/// Let what was handed out for sending leave, send FIN, read on until the peer's FIN for a moment, close.
pub const HANG_UP_ORDERLY: u32 = 1;
/// Close at once.
pub const HANG_UP_ABORT: u32 = 2;

/// A close frame was received or sent, with `code`.
pub const DISCONNECT_CLOSED: u32 = 1;
/// FIN without a close frame.
pub const DISCONNECT_EOF: u32 = 2;
/// Reset.
pub const DISCONNECT_RESET: u32 = 3;
/// No byte for too long.
pub const DISCONNECT_SILENT: u32 = 4;
/// The gateway broke RFC 6455, or a limit; `code` is what it was told.
pub const DISCONNECT_PROTOCOL: u32 = 5;
/// No connection came about.
pub const DISCONNECT_DIAL_FAILED: u32 = 6;
/// The upgrade was answered with the HTTP status `code`.
pub const DISCONNECT_REFUSED: u32 = 7;
/// Closed right after the upgrade: over the parallelism cap, or the agent is still connected.
pub const DISCONNECT_CAPACITY: u32 = 8;
/// The answer to the upgrade was none.
pub const DISCONNECT_HANDSHAKE: u32 = 9;
/// Given up for a fresh agent id.
pub const DISCONNECT_REPLACED: u32 = 10;

/// The gateway closed the session.
pub const CLOSE_BY_GATEWAY: u32 = 1;
/// The gateway opened another one.
pub const CLOSE_BY_REPLACED: u32 = 2;
/// We closed it.
pub const CLOSE_BY_US: u32 = 3;

/// A control frame of an unknown type was ignored.
pub const NOTICE_UNKNOWN_CONTROL: u32 = 1;
/// A text message that is no control frame was ignored.
pub const NOTICE_MALFORMED_CONTROL: u32 = 2;
/// A control frame that only an agent sends was ignored.
pub const NOTICE_WRONG_DIRECTION: u32 = 3;
/// A `session_close` for a session that is not open was ignored.
pub const NOTICE_STRAY_SESSION_CLOSE: u32 = 4;
/// A data frame was dropped.
pub const NOTICE_DROPPED_FRAME: u32 = 5;
/// The model is not warm yet, and the gateway waits.
pub const NOTICE_READY_OVERDUE: u32 = 6;
/// A `warmup` was answered at once.
pub const NOTICE_WARM_ALREADY: u32 = 7;
/// All slots are taken: the next observation waits in the network.
pub const NOTICE_BLOCKED: u32 = 8;
/// A slot came free.
pub const NOTICE_UNBLOCKED: u32 = 9;
/// A ping was received; its pong is queued.
pub const NOTICE_PINGED: u32 = 10;
/// The gateway restored a session that was closed here; it is told again.
pub const NOTICE_RESTORED_AFTER_CLOSE: u32 = 11;

/// After a drain: the job is done.
pub const OUTCOME_DRAINED: u32 = 1;
/// `SHUTDOWN_CLOSE` is done.
pub const OUTCOME_CLOSED: u32 = 2;
/// `SHUTDOWN_LEAVE` is done.
pub const OUTCOME_LEFT: u32 = 3;
/// The gateway refused the token with `code`. `FLAG_FIRST`: token and job do not match; otherwise the job has ended.
pub const OUTCOME_TOKEN_REFUSED: u32 = 4;
/// Over the parallelism cap.
pub const OUTCOME_CAPACITY: u32 = 5;
/// The first dial came to nothing within its time; `text` is the last failure.
pub const OUTCOME_DIAL_BUDGET: u32 = 6;
/// The redial came to nothing within the gateway's window; `text` is the last failure.
pub const OUTCOME_REDIAL_BUDGET: u32 = 7;
/// The warm-up failed.
pub const OUTCOME_WORKER_FAILED: u32 = 8;

/// Something that happened. Which fields mean something is said at each kind; the others are 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AgentEvent {
    /// `sizeof(struct sidecar_agent_event)`, to be set before the call.
    pub struct_size: u32,
    /// `sidecar_AGENT_EVENT_...`; a caller ignores those that it does not know.
    pub kind: u32,
    /// Sum of `sidecar_FLAG_...`.
    pub flags: u32,
    /// See the kind.
    pub cause: u32,
    /// Close code or HTTP status, with `FLAG_CODE`.
    pub code: u32,
    /// Counts dials within one outage, from 1.
    pub attempt: u32,
    /// Number of the session on this side; never reused. 0: the warm-up's empty session.
    pub epoch: u32,
    /// Bytes of an observation that had to be moved to where they lie.
    pub moved: u32,
    /// Counts observations, from 1.
    pub sequence: u64,
    /// Bytes of an observation.
    pub length: u64,
    /// When the first byte of an observation was received.
    pub first_byte_ns: u64,
    /// When the last one was.
    pub last_byte_ns: u64,
    /// With `FLAG_UNTIL`.
    pub until_ns: u64,
    /// See the kind.
    pub duration_ns: u64,
    /// An observation, in `slot`.
    pub payload: *mut u8,
    /// The slot that was offered.
    pub slot: *mut u8,
    /// Bytes of `session`.
    pub session_len: u32,
    /// Bytes of `text`.
    pub text_len: u32,
    /// A session's id, ended by NUL (it may also hold some).
    pub session: [c_char; 260],
    /// For people, ended by NUL, cut where it is too long.
    pub text: [c_char; 260],
}

const _: () = assert!(size_of::<AgentEvent>() == 624);

// SAFETY: repr(C), the size first, without padding (32 + 48 + 16 + 8 + 520, asserted above), plain fields only.
unsafe impl Versioned for AgentEvent {
    const FIRST: usize = 624;
}

impl AgentEvent {
    const EMPTY: Self = Self {
        struct_size: size_of::<Self>() as u32,
        kind: 0,
        flags: 0,
        cause: 0,
        code: 0,
        attempt: 0,
        epoch: 0,
        moved: 0,
        sequence: 0,
        length: 0,
        first_byte_ns: 0,
        last_byte_ns: 0,
        until_ns: 0,
        duration_ns: 0,
        payload: ptr::null_mut(),
        slot: ptr::null_mut(),
        session_len: 0,
        text_len: 0,
        session: [0; 260],
        text: [0; 260],
    };

    fn of(kind: u32) -> Self {
        Self { kind, ..Self::EMPTY }
    }

    fn text(mut self, text: impl fmt::Display) -> Self {
        self.text_len = write_text(&mut self.text, text);
        self
    }

    fn session(mut self, session: &str) -> Self {
        self.session_len = write_text(&mut self.session, session);
        self
    }

    const fn flag(mut self, is: bool, flag: u32) -> Self {
        if is {
            self.flags |= flag;
        }
        self
    }

    fn code(mut self, code: Option<u16>) -> Self {
        self.code = code.map_or(0, u32::from);
        self.flag(code.is_some(), FLAG_CODE)
    }
}

/// Core's event as it crosses. `slot` and `payload` are the slot on offer, which an observation hands over.
pub(crate) fn cross(event: Event, slot: *mut u8, payload: *mut u8) -> AgentEvent {
    match event {
        Event::Dial { attempt, timeout, reread_token } => AgentEvent {
            attempt,
            duration_ns: nanos(timeout),
            ..AgentEvent::of(AGENT_EVENT_DIAL).flag(reread_token, FLAG_REREAD_TOKEN)
        },
        Event::HangUp(how) => AgentEvent {
            cause: match how {
                HangUp::Orderly => HANG_UP_ORDERLY,
                HangUp::Abort => HANG_UP_ABORT,
            },
            ..AgentEvent::of(AGENT_EVENT_HANG_UP)
        },
        Event::Upgraded { attempt, resumed } => {
            AgentEvent { attempt, ..AgentEvent::of(AGENT_EVENT_UPGRADED).flag(resumed, FLAG_RESUMED) }
        }
        Event::Disconnected { cause, redial_until } => {
            let (number, code) = disconnect(&cause);
            let event = AgentEvent::of(AGENT_EVENT_DISCONNECTED).text(&cause).code(code);
            AgentEvent {
                cause: number,
                until_ns: redial_until.map_or(0, |until| until.as_nanos()),
                ..event.flag(redial_until.is_some(), FLAG_UNTIL)
            }
        }
        Event::Warmup => AgentEvent::of(AGENT_EVENT_WARMUP),
        Event::Queued { reason } => AgentEvent::of(AGENT_EVENT_QUEUED).text(reason),
        Event::ReadySent => AgentEvent::of(AGENT_EVENT_READY_SENT),
        Event::SessionOpened { session, epoch, resumed } => {
            let event = AgentEvent::of(AGENT_EVENT_SESSION_OPENED).session(&session);
            AgentEvent { epoch: epoch.0, ..event.flag(resumed, FLAG_RESUMED) }
        }
        Event::SessionClosed { session, epoch, by, reason } => AgentEvent {
            epoch: epoch.0,
            cause: match by {
                CloseBy::Gateway => CLOSE_BY_GATEWAY,
                CloseBy::Replaced => CLOSE_BY_REPLACED,
                CloseBy::Us => CLOSE_BY_US,
            },
            ..AgentEvent::of(AGENT_EVENT_SESSION_CLOSED).session(&session).text(reason)
        },
        Event::Observation { epoch, sequence, length, moved, first_byte, last_byte } => AgentEvent {
            epoch: epoch.0,
            sequence,
            length: u64::from(length),
            moved,
            first_byte_ns: first_byte.as_nanos(),
            last_byte_ns: last_byte.as_nanos(),
            payload,
            slot,
            ..AgentEvent::of(AGENT_EVENT_OBSERVATION)
        },
        Event::ObservationTooLarge { epoch, sequence, size } => AgentEvent {
            epoch: epoch.0,
            sequence,
            length: size,
            ..AgentEvent::of(AGENT_EVENT_OBSERVATION_TOO_LARGE)
        },
        Event::Drain { reason } => AgentEvent::of(AGENT_EVENT_DRAIN).text(reason),
        Event::Unfreeze { epoch, sequence } => {
            AgentEvent { epoch: epoch.0, sequence, ..AgentEvent::of(AGENT_EVENT_UNFREEZE) }
        }
        Event::Wedged { silent_for } => {
            AgentEvent { duration_ns: nanos(silent_for), ..AgentEvent::of(AGENT_EVENT_WEDGED) }
        }
        Event::FreshAgent => AgentEvent::of(AGENT_EVENT_FRESH_AGENT),
        Event::Notice(notice) => {
            AgentEvent { cause: number(&notice), ..AgentEvent::of(AGENT_EVENT_NOTICE).text(notice) }
        }
        Event::Finished(outcome) => finished(outcome),
    }
}

fn disconnect(cause: &Disconnect) -> (u32, Option<u16>) {
    match cause {
        Disconnect::Closed { code, .. } => (DISCONNECT_CLOSED, *code),
        Disconnect::Eof => (DISCONNECT_EOF, None),
        Disconnect::Reset => (DISCONNECT_RESET, None),
        Disconnect::Silent => (DISCONNECT_SILENT, None),
        Disconnect::Protocol(violation) => (DISCONNECT_PROTOCOL, Some(violation.close_code().get())),
        Disconnect::DialFailed(_) => (DISCONNECT_DIAL_FAILED, None),
        Disconnect::Refused { status } => (DISCONNECT_REFUSED, Some(*status)),
        Disconnect::Capacity => (DISCONNECT_CAPACITY, None),
        Disconnect::Handshake(_) => (DISCONNECT_HANDSHAKE, None),
        Disconnect::Replaced => (DISCONNECT_REPLACED, None),
    }
}

const fn number(notice: &Notice) -> u32 {
    match notice {
        Notice::UnknownControl { .. } => NOTICE_UNKNOWN_CONTROL,
        Notice::MalformedControl => NOTICE_MALFORMED_CONTROL,
        Notice::WrongDirection { .. } => NOTICE_WRONG_DIRECTION,
        Notice::StraySessionClose => NOTICE_STRAY_SESSION_CLOSE,
        Notice::RestoredAfterClose => NOTICE_RESTORED_AFTER_CLOSE,
        Notice::DroppedFrame(_) => NOTICE_DROPPED_FRAME,
        Notice::ReadyOverdue { .. } => NOTICE_READY_OVERDUE,
        Notice::WarmAlready => NOTICE_WARM_ALREADY,
        Notice::Blocked => NOTICE_BLOCKED,
        Notice::Unblocked => NOTICE_UNBLOCKED,
        Notice::Pinged => NOTICE_PINGED,
    }
}

fn finished(outcome: Outcome) -> AgentEvent {
    let event = AgentEvent::of(AGENT_EVENT_FINISHED);
    match outcome {
        Outcome::Drained => AgentEvent { cause: OUTCOME_DRAINED, ..event.text("drained") },
        Outcome::Closed => AgentEvent { cause: OUTCOME_CLOSED, ..event.text("closed") },
        Outcome::Left => AgentEvent { cause: OUTCOME_LEFT, ..event.text("left") },
        Outcome::TokenRefused { status, first } => {
            let event = event.text(format_args!("the token was refused with status {status}"));
            AgentEvent { cause: OUTCOME_TOKEN_REFUSED, ..event.code(Some(status)).flag(first, FLAG_FIRST) }
        }
        Outcome::Capacity => AgentEvent { cause: OUTCOME_CAPACITY, ..event.text("over the parallelism cap") },
        Outcome::DialBudget { last } => AgentEvent { cause: OUTCOME_DIAL_BUDGET, ..event.text(last) },
        Outcome::RedialBudget { last } => AgentEvent { cause: OUTCOME_REDIAL_BUDGET, ..event.text(last) },
        Outcome::WorkerFailed => {
            AgentEvent { cause: OUTCOME_WORKER_FAILED, ..event.text("the warm-up failed") }
        }
    }
}

fn nanos(duration: core::time::Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes a text and its NUL, cut between characters; returns its length without the NUL.
pub fn write_text(into: &mut [c_char], text: impl fmt::Display) -> u32 {
    struct Writer<'a> {
        into: &'a mut [c_char],
        length: usize,
        full: bool,
    }
    impl Write for Writer<'_> {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let room = self.into.len().saturating_sub(self.length + 1);
            let cut = if self.full { "" } else { &text[..boundary(text, room)] };
            self.full |= cut.len() < text.len();
            for (place, byte) in self.into[self.length..].iter_mut().zip(cut.bytes()) {
                *place = byte.cast_signed();
            }
            self.length += cut.len();
            Ok(())
        }
    }
    let mut writer = Writer { into, length: 0, full: false };
    // The writer itself never fails; a formatter that gives up leaves a shorter text.
    let _ = write!(writer, "{text}");
    let length = writer.length;
    if let Some(end) = into.get_mut(length) {
        *end = 0;
    }
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// The last place between characters at or before `index`.
fn boundary(text: &str, index: usize) -> usize {
    if index >= text.len() {
        return text.len();
    }
    (0..=index).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
