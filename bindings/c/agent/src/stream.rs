//! Bytes in, bytes out, and the events between: what a caller's loop does in each turn.

use core::ffi::c_char;
use core::mem::size_of;

use sidecar_core::agent::{
    End, Event, MAX_HEAD as CORE_MAX_HEAD, MAX_TRANSMIT as CORE_MAX_TRANSMIT, Read, Refused, RequestError,
};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::Epoch;
use sidecar_core::ws::{handshake, mask};

use crate::agent::Agent;
use crate::border::{Border, Marked, Versioned};
use crate::event::{self, AgentEvent};
use crate::status::{
    CLOSING, DOWN, ERR_LENGTH, ERR_MEMORY, ERR_NULL, ERR_STATE, ERR_TEXT, ERR_VALUE, GONE, HELD, NOTHING, OK,
};

/// Room for what `sidecar_agent_poll_transmit` writes. More than core needs today: it may grow, this number may not.
pub const MAX_TRANSMIT: usize = 4096;
/// Room for what `sidecar_agent_begin_action` writes in front of a payload; as above.
pub const MAX_HEAD: usize = 512;
const _: () = assert!(MAX_TRANSMIT >= CORE_MAX_TRANSMIT);
const _: () = assert!(MAX_HEAD >= CORE_MAX_HEAD);

/// For `sidecar_agent_handle_end`: FIN was received.
pub const END_EOF: u32 = 1;
/// For `sidecar_agent_handle_end`: it was reset, or an operation on it failed.
pub const END_RESET: u32 = 2;

/// For `sidecar_read.flags`: all `max` bytes are known to come, and nothing has to be looked at before (MSG_WAITALL).
pub const READ_EXACT: u32 = 1;

/// Where the next bytes go.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ReadPlace {
    /// `sizeof(struct sidecar_read)`, to be set before the call.
    pub struct_size: u32,
    /// Sum of `sidecar_READ_...`.
    pub flags: u32,
    /// In scratch or in the slot on offer.
    pub into: *mut u8,
    /// At most this many bytes, at least one.
    pub max: usize,
}

const _: () = assert!(size_of::<ReadPlace>() == 24);

// SAFETY: repr(C), the size first, without padding (asserted above), plain fields only.
unsafe impl Versioned for ReadPlace {
    const FIRST: usize = 24;
}

/// TCP (and TLS) is up: writes the upgrade request to `out`, whose first `written` bytes are to be sent,
/// then say `sidecar_agent_handle_sent`. The token goes into the request and is not kept. 4096 bytes and
/// the token's length are always enough.
///
/// Errors: `ERR_STATE`, no dial is under way; `ERR_LENGTH`, `out` is too short; `ERR_TEXT`, a token that
/// could not stand in a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_connected(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    token: *const c_char,
    token_len: usize,
    out: *mut u8,
    out_len: usize,
    written: *mut usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let token = border.text(token, token_len)?;
        let (out, written) = (border.room(out, out_len)?, border.out(written)?);
        let length = agent
            .core
            .handle_connected(Instant::from_nanos(now_ns), token, out)
            .map_err(|error| request_status(&error))?;
        written.set(length);
        Ok(OK)
    })
}

/// Where the next bytes go; `NOTHING`: nothing is to be read now. Ask when no read is outstanding: the
/// answer holds until `sidecar_agent_handle_received`, or until the connection is over.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_poll_read(agent: *mut Marked<Agent>, read: *mut ReadPlace) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let out = border.place(read)?;
        let Read::At { place, offset, max, exact } = agent.core.poll_read() else { return Ok(NOTHING) };
        out.fill(&ReadPlace {
            struct_size: size_of::<ReadPlace>() as u32,
            flags: if exact { READ_EXACT } else { 0 },
            into: agent.places.at(place, offset, max as usize),
            max: max as usize,
        });
        Ok(OK)
    })
}

/// `length` bytes were written where `sidecar_agent_poll_read` said; 0 takes that read back. More than was
/// asked for are not taken.
///
/// Errors: `ERR_LENGTH`, it does not fit 32 bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_received(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    length: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let length = u32::try_from(length).map_err(|_| ERR_LENGTH)?;
        agent.core.handle_received(Instant::from_nanos(now_ns), length);
        Ok(OK)
    })
}

/// The connection ended from outside, as `end` (`sidecar_END_...`) says. The bytes before its end come
/// first.
///
/// Errors: `ERR_VALUE`, it says nothing known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_end(agent: *mut Marked<Agent>, now_ns: u64, end: u32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let end = match end {
            END_EOF => End::Eof,
            END_RESET => End::Reset,
            _ => return Err(ERR_VALUE),
        };
        agent.core.handle_end(Instant::from_nanos(now_ns), end);
        Ok(OK)
    })
}

/// Parses on. `OK`: something was done; take the events and call again. `NOTHING`: more bytes, or a slot,
/// are needed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_process(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |Agent { core, places }| Ok(yes(core.process(Instant::from_nanos(now_ns), places))))
}

/// `OK`: a slot would be used if one were offered. `NOTHING`: not now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_wants_slot(agent: *const Marked<Agent>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(agent, |agent| Ok(yes(agent.core.wants_slot() && agent.places.slot().is_null())))
}

/// Offers a slot (`sidecar_agent_place_bytes`). It is the agent's until `AGENT_EVENT_OBSERVATION` names it
/// or it is taken back. Align `slot` to a page, and the payload is.
///
/// Errors: `ERR_MEMORY`, it is too short; `ERR_STATE`, one is on offer already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_offer_slot(
    agent: *mut Marked<Agent>,
    slot: *mut u8,
    slot_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        if slot.is_null() {
            return Err(ERR_NULL);
        }
        if slot_len < agent.places.bytes() {
            return Err(ERR_MEMORY);
        }
        if !agent.places.slot().is_null() {
            return Err(ERR_STATE);
        }
        agent.places.offer(slot);
        agent.core.offer_slot();
        Ok(OK)
    })
}

/// Takes the offered slot back. `NOTHING`: bytes of a message lie in it or are on their way into it, or it
/// waits in an event, or none is on offer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_take_back_slot(agent: *mut Marked<Agent>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let taken = agent.core.take_back_slot();
        if taken {
            agent.places.offer(core::ptr::null_mut());
        }
        Ok(yes(taken))
    })
}

/// The next event, in order; `NOTHING`: there is none. Take them all after each call that may cause some.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_poll_event(agent: *mut Marked<Agent>, event: *mut AgentEvent) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let out = border.place(event)?;
        let Some(event) = agent.core.poll_event() else { return Ok(NOTHING) };
        let handed_over = matches!(event, Event::Observation { .. });
        out.fill(&event::cross(event, agent.places.slot(), agent.places.payload()));
        if handed_over {
            agent.places.offer(core::ptr::null_mut());
        }
        Ok(OK)
    })
}

/// The next control frame: send the first `written` bytes of `out` before anything else, then say
/// `sidecar_agent_handle_sent`. `NOTHING`: there is none. Ask while nothing is being sent; `out` has to
/// have `MAX_TRANSMIT` bytes.
///
/// Errors: `ERR_LENGTH`, `out` is too short.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_poll_transmit(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    out: *mut u8,
    out_len: usize,
    written: *mut usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let (out, written) = (border.room(out, out_len)?, border.out(written)?);
        if out.len() < MAX_TRANSMIT {
            return Err(ERR_LENGTH);
        }
        let Some(length) = agent.core.poll_transmit(Instant::from_nanos(now_ns), out) else {
            return Ok(NOTHING);
        };
        written.set(length);
        Ok(OK)
    })
}

/// All of a control frame, or of the upgrade request, was sent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_sent(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        agent.core.handle_sent(Instant::from_nanos(now_ns));
        Ok(OK)
    })
}

/// Whether an action of `epoch` may be sent now: `OK`, `DOWN`, `HELD`, `GONE` or `CLOSING`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_may_send(agent: *const Marked<Agent>, epoch: u32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(agent, |agent| Ok(agent.core.may_send(Epoch(epoch)).map_or_else(refused, |()| OK)))
}

/// Starts the action that answers the observation `sequence` of `epoch`: writes it to `out`, framed and
/// masked, and its first `written` bytes are to be sent. `out` has to have `MAX_HEAD` bytes and the
/// payload's length, and must not overlap the payload. From here until `sidecar_agent_handle_action_sent`
/// no control frame is given out. Otherwise as `sidecar_agent_may_send`; `HELD` also while another action
/// is on its way. What was begun counts as sent; after a cut, `AGENT_EVENT_UNFREEZE` says when to send it
/// once more.
///
/// Errors: `ERR_LENGTH`, `out` is too short, or the payload does not fit 32 bits; `ERR_VALUE`, they
/// overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_begin_action(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    epoch: u32,
    sequence: u64,
    payload: *const u8,
    payload_len: usize,
    out: *mut u8,
    out_len: usize,
    written: *mut usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let payload = border.bytes(payload, payload_len)?;
        let (out, written) = (border.room(out, out_len)?, border.out(written)?);
        let length = u32::try_from(payload.len()).map_err(|_| ERR_LENGTH)?;
        if out.len().checked_sub(MAX_HEAD).is_none_or(|room| room < payload.len()) {
            return Err(ERR_LENGTH);
        }
        let (source, target) = (payload.as_ptr_range(), out.as_ptr_range());
        if source.start < target.end && target.start < source.end {
            return Err(ERR_VALUE);
        }
        let mut head = [0; CORE_MAX_HEAD];
        let now = Instant::from_nanos(now_ns);
        let begun = match agent.core.begin_action(now, Epoch(epoch), sequence, length, &mut head) {
            Ok(begun) => begun,
            Err(why) => return Ok(refused(why)),
        };
        let (front, rest) = out.split_at_mut(begun.len);
        front.copy_from_slice(&head[..begun.len]);
        rest[..payload.len()].copy_from_slice(payload);
        mask::apply(begun.mask, begun.mask_offset, &mut rest[..payload.len()]);
        written.set(begun.len + payload.len());
        Ok(OK)
    })
}

/// The last byte of that action was sent. For any other it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_action_sent(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    epoch: u32,
    sequence: u64,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        agent.core.handle_action_sent(Instant::from_nanos(now_ns), Epoch(epoch), sequence);
        Ok(OK)
    })
}

const fn yes(is: bool) -> i32 {
    if is { OK } else { NOTHING }
}

const fn refused(why: Refused) -> i32 {
    match why {
        Refused::Down => DOWN,
        Refused::Held => HELD,
        Refused::Gone => GONE,
        Refused::Closing => CLOSING,
    }
}

const fn request_status(error: &RequestError) -> i32 {
    match error {
        RequestError::NotDialing => ERR_STATE,
        RequestError::PathTooLong | RequestError::Request(handshake::RequestError::Short(_)) => ERR_LENGTH,
        RequestError::Request(_) => ERR_TEXT,
    }
}
