//! The agent's handle: its memory, its life, and what is told to it apart from bytes.

use core::ffi::c_char;
use core::mem::{align_of, size_of};

use sidecar_core::agent::{Agent as Core, DialFailure, HEADROOM as CORE_HEADROOM, Phase, Shutdown};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch};

use crate::border::{Border, Kind, Marked, Versioned};
use crate::config::{self, AgentConfig, AgentResume, Told};
use crate::event::write_text;
use crate::fence::fence;
use crate::places::Places;
use crate::status::{ERR_MEMORY, ERR_NULL, ERR_TEXT, ERR_VALUE, NOTHING, OK};

/// Bytes in front of the payload in a slot.
pub const HEADROOM: u32 = 4096;
const _: () = assert!(HEADROOM == CORE_HEADROOM);

/// For `sidecar_agent_handle_dial_failed`: the host's name could not be resolved.
pub const DIAL_FAILURE_DNS: u32 = 1;
/// For `sidecar_agent_handle_dial_failed`: connection refused.
pub const DIAL_FAILURE_REFUSED: u32 = 2;
/// For `sidecar_agent_handle_dial_failed`: no route to the host.
pub const DIAL_FAILURE_UNREACHABLE: u32 = 3;
/// For `sidecar_agent_handle_dial_failed`: no answer in time.
pub const DIAL_FAILURE_TIMEOUT: u32 = 4;
/// For `sidecar_agent_handle_dial_failed`: anything else.
pub const DIAL_FAILURE_OTHER: u32 = 5;

/// For `sidecar_agent_shutdown`: close the session and the tunnel.
pub const SHUTDOWN_CLOSE: u32 = 1;
/// For `sidecar_agent_shutdown`: end the connection, and leave the session open for a successor.
pub const SHUTDOWN_LEAVE: u32 = 2;

/// Waiting for `warmup`.
pub const PHASE_QUEUED: u32 = 0;
/// `warmup` came, `ready` was not sent.
pub const PHASE_WARMUP: u32 = 1;
/// `ready` was sent.
pub const PHASE_RUNNING: u32 = 2;
/// `drain` came.
pub const PHASE_DRAINING: u32 = 3;

/// For `sidecar_agent_state.flags`: the tunnel is up.
pub const STATE_OPEN: u32 = 1;
/// For `sidecar_agent_state.flags`: the model is warm.
pub const STATE_WARM: u32 = 2;
/// For `sidecar_agent_state.flags`: a tunnel of this job and agent was up once.
pub const STATE_CONNECTED_ONCE: u32 = 4;
/// For `sidecar_agent_state.flags`: a session is open.
pub const STATE_SESSION_OPEN: u32 = 8;
/// For `sidecar_agent_state.flags`: `last_byte_ns` is known.
pub const STATE_LAST_BYTE: u32 = 16;

/// The whole client, without sockets, clock or memory of its own.
#[derive(Debug)]
pub struct Agent {
    pub(crate) core: Core,
    pub(crate) places: Places,
}

impl Kind for Agent {
    const MARK: u64 = u64::from_be_bytes(*b"sdcagent");
}

/// Where an agent stands: what a successor has to know, and what a person may want to.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AgentState {
    /// `sizeof(struct sidecar_agent_state)`, to be set before the call.
    pub struct_size: u32,
    /// Sum of `sidecar_STATE_...`.
    pub flags: u32,
    /// `sidecar_PHASE_...`.
    pub phase: u32,
    /// Epoch of the open session.
    pub epoch: u32,
    /// When the last byte was received, with `STATE_LAST_BYTE`.
    pub last_byte_ns: u64,
    /// Bytes of following messages that had to be moved out of a finished slot, ever.
    pub carried: u64,
    /// Bytes of `session`.
    pub session_len: u32,
    /// Bytes of `agent_id`.
    pub agent_id_len: u32,
    /// The open session's id, ended by NUL (it may also hold some).
    pub session: [c_char; 260],
    /// The present agent id, ended by NUL (it may also hold some).
    pub agent_id: [c_char; 68],
}

const _: () = assert!(size_of::<AgentState>() == 368);

// SAFETY: repr(C), the size first, without padding (40 + 328, asserted above), plain fields only.
unsafe impl Versioned for AgentState {
    const FIRST: usize = 368;
}

/// Size in bytes and alignment of the memory that an agent lives in.
///
/// Errors: those of the configuration: `ERR_VALUE`, an unknown flag, a seed of zeroes, a slot that is too
/// large; `ERR_TEXT`, an empty or too long text, a path without its `/`, a text that is not UTF-8 or could
/// not stand in a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_layout(
    config: *const AgentConfig,
    size: *mut usize,
    align: *mut usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        config::config(&border, config)?;
        let (size, align) = (border.out(size)?, border.out(align)?);
        size.set(size_of::<Marked<Agent>>());
        align.set(align_of::<Marked<Agent>>());
        Ok(OK)
    })
}

/// Bytes of scratch, and of each slot: `HEADROOM` and `slot_bytes`.
///
/// Errors: those of the configuration, see `sidecar_agent_layout`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_place_bytes(config: *const AgentConfig, bytes: *mut usize) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        let told = config::config(&border, config)?;
        border.out(bytes)?.set(told.place_bytes as usize);
        Ok(OK)
    })
}

/// Makes an agent that wants to dial at once, in the caller's `memory` (`sidecar_agent_layout`). Both that
/// and `scratch` (`sidecar_agent_place_bytes`) are the agent's until `sidecar_agent_drop`. `resume` may be
/// NULL: there was no predecessor. `now_ns` counts from an origin of the caller's choice, here and
/// everywhere, and never goes back.
///
/// Errors: those of the configuration, see `sidecar_agent_layout`; the same of `resume`; `ERR_MEMORY`,
/// `memory` or `scratch` is too small, or `memory` not aligned.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_init(
    memory: *mut u8,
    memory_len: usize,
    scratch: *mut u8,
    scratch_len: usize,
    config: *const AgentConfig,
    resume: *const AgentResume,
    now_ns: u64,
    agent: *mut *mut Marked<Agent>,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        let Told { config, seed, place_bytes } = config::config(&border, config)?;
        let resume = config::resume(&border, resume)?;
        let out = border.out(agent)?;
        if memory.is_null() || scratch.is_null() {
            return Err(ERR_NULL);
        }
        let place_bytes = place_bytes as usize;
        let at = memory.cast::<Marked<Agent>>();
        if memory_len < size_of::<Marked<Agent>>() || !at.is_aligned() || scratch_len < place_bytes {
            return Err(ERR_MEMORY);
        }
        let core = Core::resume(config, resume, seed, Instant::from_nanos(now_ns));
        let places = Places::new(scratch, place_bytes);
        let new = Marked::new(Agent { core, places });
        // SAFETY: the memory is large enough and aligned, and the caller's to give.
        unsafe { at.write(new) };
        out.set(at);
        Ok(OK)
    })
}

/// Ends an agent: its memory, scratch and slots are the caller's again. Says nothing to the gateway; see
/// `sidecar_agent_shutdown`. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_drop(own_agent: *mut Marked<Agent>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        if own_agent.is_null() {
            return Ok(OK);
        }
        border.unmark(own_agent)?;
        // SAFETY: it was an agent, made by `sidecar_agent_init`, and the caller gives it away.
        unsafe { own_agent.drop_in_place() };
        Ok(OK)
    })
}

/// The dial came to nothing: `failure` is a `sidecar_DIAL_FAILURE_...`.
///
/// Errors: `ERR_VALUE`, it is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_dial_failed(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    failure: u32,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let failure = match failure {
            DIAL_FAILURE_DNS => DialFailure::Dns,
            DIAL_FAILURE_REFUSED => DialFailure::Refused,
            DIAL_FAILURE_UNREACHABLE => DialFailure::Unreachable,
            DIAL_FAILURE_TIMEOUT => DialFailure::Timeout,
            DIAL_FAILURE_OTHER => DialFailure::Other,
            _ => return Err(ERR_VALUE),
        };
        agent.core.handle_dial_failed(Instant::from_nanos(now_ns), failure);
        Ok(OK)
    })
}

/// The model is warm: `ready` is sent as soon as the gateway has said `warmup`. Once is enough, also for
/// later tunnels.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_worker_ready(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    command(&border, agent, |core| core.worker_ready(Instant::from_nanos(now_ns)))
}

/// The model could not be warmed up: the agent ends, with `OUTCOME_WORKER_FAILED`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_worker_failed(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    command(&border, agent, |core| core.worker_failed(Instant::from_nanos(now_ns)))
}

/// How many observations wait for an answer: bounds how much of a following message is received along.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_set_unanswered(agent: *mut Marked<Agent>, count: u32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    command(&border, agent, |core| core.set_unanswered(count))
}

/// Closes the session of `epoch`, if it is still open: tells the gateway, now or after the redial. Of
/// `reason`, 256 bytes are sent at most.
///
/// Errors: `ERR_TEXT`, not UTF-8.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_close_session(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    epoch: u32,
    reason: *const c_char,
    reason_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let reason = border.text(reason, reason_len)?;
        agent.core.close_session(Instant::from_nanos(now_ns), Epoch(epoch), reason);
        Ok(OK)
    })
}

/// Everything that had to be answered after a drain was sent: closes the tunnel. `AGENT_EVENT_FINISHED`
/// follows. Without a drain it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_finish_drain(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    command(&border, agent, |core| core.finish_drain(Instant::from_nanos(now_ns)))
}

/// Ends the tunnel as `how` (`sidecar_SHUTDOWN_...`) says. `AGENT_EVENT_FINISHED` follows.
///
/// Errors: `ERR_VALUE`, it says nothing known.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_shutdown(agent: *mut Marked<Agent>, now_ns: u64, how: u32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let how = match how {
            SHUTDOWN_CLOSE => Shutdown::Close,
            SHUTDOWN_LEAVE => Shutdown::Leave,
            _ => return Err(ERR_VALUE),
        };
        agent.core.shutdown(Instant::from_nanos(now_ns), how);
        Ok(OK)
    })
}

/// Goes on under another agent id, 1 to 64 bytes, after `AGENT_EVENT_FRESH_AGENT`.
///
/// Errors: `ERR_TEXT`, an id that is empty, too long, or could not stand in a request.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_replace_agent(
    agent: *mut Marked<Agent>,
    now_ns: u64,
    id: *const c_char,
    id_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(agent, |agent| {
        let id = AgentId::new(border.text(id, id_len)?).map_err(|_| ERR_TEXT)?;
        agent.core.replace_agent(Instant::from_nanos(now_ns), id);
        Ok(OK)
    })
}

/// When `sidecar_agent_handle_timeout` has to be called, on the caller's clock; `NOTHING`: never, as things
/// stand. Ask again after each call that changes something.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_poll_timeout(agent: *const Marked<Agent>, at_ns: *mut u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(agent, |agent| {
        let out = border.out(at_ns)?;
        let Some(at) = agent.core.poll_timeout() else { return Ok(NOTHING) };
        out.set(at.as_nanos());
        Ok(OK)
    })
}

/// Time has passed. Too early or without need it does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_handle_timeout(agent: *mut Marked<Agent>, now_ns: u64) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    command(&border, agent, |core| core.handle_timeout(Instant::from_nanos(now_ns)))
}

/// Where the agent stands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_agent_get_state(agent: *const Marked<Agent>, state: *mut AgentState) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(agent, |agent| {
        let place = border.place(state)?;
        place.fill(&observe(&agent.core));
        Ok(OK)
    })
}

fn observe(core: &Core) -> AgentState {
    let session = core.session();
    let flags = [
        (core.is_open(), STATE_OPEN),
        (core.is_warm(), STATE_WARM),
        (core.connected_once(), STATE_CONNECTED_ONCE),
        (session.is_some(), STATE_SESSION_OPEN),
        (core.last_byte().is_some(), STATE_LAST_BYTE),
    ];
    let mut state = AgentState {
        struct_size: size_of::<AgentState>() as u32,
        flags: flags.iter().filter(|(is, _)| *is).map(|(_, flag)| flag).sum(),
        phase: match core.phase() {
            Phase::Queued => PHASE_QUEUED,
            Phase::Warmup => PHASE_WARMUP,
            Phase::Running => PHASE_RUNNING,
            Phase::Draining => PHASE_DRAINING,
        },
        epoch: session.map_or(0, |(_, epoch)| epoch.0),
        last_byte_ns: core.last_byte().map_or(0, Instant::as_nanos),
        carried: core.carried(),
        session_len: 0,
        agent_id_len: 0,
        session: [0; 260],
        agent_id: [0; 68],
    };
    if let Some((session, _)) = session {
        state.session_len = write_text(&mut state.session, session);
    }
    state.agent_id_len = write_text(&mut state.agent_id, core.agent_id());
    state
}

/// A command without arguments that could be wrong.
fn command(border: &Border, agent: *mut Marked<Agent>, body: impl FnOnce(&mut Core)) -> i32 {
    border.handle(agent, |agent| {
        body(&mut agent.core);
        Ok(OK)
    })
}
