//! What an agent is told once: the struct that crosses, and what it becomes.

use core::ffi::c_char;
use core::mem::size_of;
use core::time::Duration;

use sidecar_core::agent::{Config, Endpoint, HEADROOM, Limits, Resume, Timers};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, JobId, SessionId};

use crate::border::{Border, Versioned};
use crate::fence::Checked;
use crate::status::{ERR_TEXT, ERR_VALUE};

/// On a wedge, ask for a fresh agent id (`AGENT_EVENT_FRESH_AGENT`) and start over. This forfeits the open session.
pub const AGENT_FRESH_AGENT_ON_WEDGE: u32 = 1;
/// Over the parallelism cap: keep trying instead of ending with `OUTCOME_CAPACITY`.
pub const AGENT_WAIT_FOR_SLOT: u32 = 2;

/// A time that never comes, for `unfreeze_ns` and `wedge_after_ns`.
pub const NEVER: u64 = u64::MAX;

/// What an agent is told once. 0 is the default everywhere, so that `{0}` with `struct_size`, the endpoint, the ids
/// and the seed set is complete. All of it is copied.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AgentConfig {
    /// `sizeof(struct sidecar_agent_config)`.
    pub struct_size: u32,
    /// Sum of `sidecar_AGENT_...`.
    pub flags: u32,
    /// Value of the `Host` header: the host, and the port unless it is the scheme's own. At most 260 bytes.
    pub host: *const c_char,
    /// Bytes of `host`.
    pub host_len: usize,
    /// Path with an optional query, `/` first; `job=` and `agent=` are appended. At most 1024 bytes.
    pub path: *const c_char,
    /// Bytes of `path`.
    pub path_len: usize,
    /// The job: 1 to 64 bytes.
    pub job: *const c_char,
    /// Bytes of `job`.
    pub job_len: usize,
    /// The agent's id, its own for each process: 1 to 64 bytes.
    pub agent: *const c_char,
    /// Bytes of `agent`.
    pub agent_len: usize,
    /// From a source that cannot be predicted (getrandom): mask keys come from it. Not all zero.
    pub seed: [u8; 32],
    /// Payload bytes of a slot, headroom not counted; default 8 MiB.
    pub slot_bytes: u32,
    /// Most fragments of one message; default 65536.
    pub fragments: u32,
    /// Most bytes of one text message; default 1 MiB.
    pub text_bytes: u32,
    /// Every timer that is left at its default is divided by this; for tests and rehearsals.
    pub timer_divisor: u32,
    /// The least time to wait after a cut before the last action is sent once more; default 60 s, or `NEVER`.
    pub unfreeze_ns: u64,
    /// Report a wedge when nothing came for this long after a redial; default 120 s, or `NEVER`.
    pub wedge_after_ns: u64,
    /// First dial: how long it is tried; default 300 s.
    pub dial_ns: u64,
    /// One attempt, from the dial to the upgrade; default 10 s.
    pub connect_ns: u64,
    /// Redial budget after a silent loss, from the last byte on; default 75 s.
    pub redial_after_silence_ns: u64,
    /// Redial budget after a received FIN or close; default 33 s.
    pub redial_after_close_ns: u64,
    /// A close this soon after the upgrade means the parallelism cap; default 2 s.
    pub capacity_window_ns: u64,
    /// After a redial, kept answers wait this long for a first frame; default 1 s.
    pub hold_answers_ns: u64,
    /// Our own ping after this long without a byte received; default 20 s.
    pub ping_after_ns: u64,
    /// The connection is lost after this long without a byte received; default 40 s.
    pub dead_after_ns: u64,
    /// Between pongs that nobody asked for while all slots are taken; default 15 s.
    pub blocked_pong_ns: u64,
    /// A notice when the model is not warm this long after `warmup`; default 60 s.
    pub ready_warning_ns: u64,
    /// How long a drain waits for answers; default 60 s.
    pub drain_ns: u64,
    /// How long a close handshake may take; default 5 s.
    pub close_ns: u64,
    /// Delay before the first retry; default: none.
    pub backoff_first_ns: u64,
    /// Upper bound of the delay before the second retry, doubled by each further one; default 250 ms.
    pub backoff_base_ns: u64,
    /// Largest upper bound of a delay; default 5 s.
    pub backoff_max_ns: u64,
}

/// For `sidecar_agent_resume.flags`: a tunnel of this job and agent was up once.
pub const RESUME_CONNECTED_ONCE: u32 = 1;
/// For `sidecar_agent_resume.flags`: `warmup` had been received.
pub const RESUME_WARMUP_SEEN: u32 = 2;
/// For `sidecar_agent_resume.flags`: `ready` had been sent.
pub const RESUME_READY_SENT: u32 = 4;
/// For `sidecar_agent_resume.flags`: `drain` had been received; the agent never dials again.
pub const RESUME_DRAIN_SEEN: u32 = 8;
/// For `sidecar_agent_resume.flags`: `session` was open.
pub const RESUME_SESSION_OPEN: u32 = 16;
/// For `sidecar_agent_resume.flags`: `last_byte_ns` is known.
pub const RESUME_LAST_BYTE: u32 = 32;
/// For `sidecar_agent_resume.flags`: `queued` or a session had come after `ready`; without it, `ready` is said again.
pub const RESUME_READY_HEARD: u32 = 64;
/// For `sidecar_agent_resume.flags`: `session` is one that the predecessor had closed, with none opened after it: the
/// gateway may not have heard of that, and is told again. Not together with `sidecar_RESUME_SESSION_OPEN`.
pub const RESUME_SESSION_CLOSED: u32 = 128;

/// Where a predecessor stopped that died, so that its session goes on. Its clock must be ours.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct AgentResume {
    /// `sizeof(struct sidecar_agent_resume)`.
    pub struct_size: u32,
    /// Sum of `sidecar_RESUME_...`.
    pub flags: u32,
    /// The session that was open, or closed, as the flags say; at most 256 bytes.
    pub session: *const c_char,
    /// Bytes of `session`.
    pub session_len: usize,
    /// When the last byte was received; the redial budget counts from there.
    pub last_byte_ns: u64,
    /// Number for the next observation; 0 counts as 1.
    pub next_sequence: u64,
    /// Epoch of that session, or the last one given.
    pub epoch: u32,
    /// 0.
    pub reserved: u32,
}

const _: () = assert!(size_of::<AgentConfig>() == 256);
const _: () = assert!(size_of::<AgentResume>() == 48);

// SAFETY: repr(C), the size first, without padding (the sums of the fields are asserted above), plain fields only.
unsafe impl Versioned for AgentConfig {
    const FIRST: usize = 256;
}
// SAFETY: as above.
unsafe impl Versioned for AgentResume {
    const FIRST: usize = 48;
}

/// What [`AgentConfig`] becomes.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) config: Config,
    pub(crate) seed: [u8; 32],
    /// Bytes of scratch and of each slot.
    pub(crate) place_bytes: u32,
}

/// Reads and checks a configuration.
pub(crate) fn config(border: &Border, from: *const AgentConfig) -> Checked<Told> {
    let from = border.read(from)?;
    check_flags(from.flags, AGENT_FRESH_AGENT_ON_WEDGE | AGENT_WAIT_FOR_SLOT)?;
    if from.seed == [0; 32] {
        return Err(ERR_VALUE);
    }
    let host = border.text(from.host, from.host_len)?;
    let path = border.text(from.path, from.path_len)?;
    if host.is_empty() || !path.starts_with('/') {
        return Err(ERR_TEXT);
    }
    let limits = limits(&from)?;
    let config = Config {
        endpoint: Endpoint {
            host: host.try_into().map_err(|_| ERR_TEXT)?,
            path: path.try_into().map_err(|_| ERR_TEXT)?,
        },
        job: JobId::new(border.text(from.job, from.job_len)?).map_err(|_| ERR_TEXT)?,
        agent: AgentId::new(border.text(from.agent, from.agent_len)?).map_err(|_| ERR_TEXT)?,
        timers: timers(&from),
        limits,
        unfreeze: unless_never(from.unfreeze_ns, 60, from.timer_divisor),
        wedge_after: unless_never(from.wedge_after_ns, 120, from.timer_divisor),
        fresh_agent_on_wedge: from.flags & AGENT_FRESH_AGENT_ON_WEDGE != 0,
        wait_for_slot: from.flags & AGENT_WAIT_FOR_SLOT != 0,
    };
    Ok(Told { config, seed: from.seed, place_bytes: HEADROOM + limits.slot_bytes })
}

/// Reads and checks what a predecessor left; NULL is none.
pub(crate) fn resume(border: &Border, from: *const AgentResume) -> Checked<Resume> {
    if from.is_null() {
        return Ok(Resume::default());
    }
    let from = border.read(from)?;
    let known = RESUME_CONNECTED_ONCE
        | RESUME_WARMUP_SEEN
        | RESUME_READY_SENT
        | RESUME_DRAIN_SEEN
        | RESUME_SESSION_OPEN
        | RESUME_LAST_BYTE
        | RESUME_READY_HEARD
        | RESUME_SESSION_CLOSED;
    check_flags(from.flags, known)?;
    let is = |flag| from.flags & flag != 0;
    if from.reserved != 0 || (is(RESUME_SESSION_OPEN) && is(RESUME_SESSION_CLOSED)) {
        return Err(ERR_VALUE);
    }
    let session = border.text(from.session, from.session_len)?;
    let session = || SessionId::new(session).map_err(|_| ERR_TEXT);
    Ok(Resume {
        connected_once: is(RESUME_CONNECTED_ONCE),
        last_byte: is(RESUME_LAST_BYTE).then(|| Instant::from_nanos(from.last_byte_ns)),
        warmup_seen: is(RESUME_WARMUP_SEEN),
        ready_sent: is(RESUME_READY_SENT),
        ready_heard: is(RESUME_READY_HEARD),
        drain_seen: is(RESUME_DRAIN_SEEN),
        session: is(RESUME_SESSION_OPEN).then(session).transpose()?,
        closed: is(RESUME_SESSION_CLOSED).then(session).transpose()?,
        epoch: Epoch(from.epoch),
        next_sequence: from.next_sequence,
        // Its caller would have to have kept the payload.
        last_action: None,
    })
}

fn check_flags(flags: u32, known: u32) -> Checked<()> {
    if flags & !known == 0 { Ok(()) } else { Err(ERR_VALUE) }
}

fn limits(from: &AgentConfig) -> Checked<Limits> {
    let default = Limits::default();
    let or = |value, default| if value == 0 { default } else { value };
    let slot_bytes = or(from.slot_bytes, default.slot_bytes);
    if slot_bytes > u32::MAX - HEADROOM {
        return Err(ERR_VALUE);
    }
    Ok(Limits {
        slot_bytes,
        fragments: or(from.fragments, default.fragments),
        text_bytes: or(from.text_bytes, default.text_bytes),
    })
}

fn timers(from: &AgentConfig) -> Timers {
    let default = Timers::default().scaled(from.timer_divisor);
    let or = |nanos, default| if nanos == 0 { default } else { Duration::from_nanos(nanos) };
    Timers {
        dial: or(from.dial_ns, default.dial),
        connect: or(from.connect_ns, default.connect),
        redial_after_silence: or(from.redial_after_silence_ns, default.redial_after_silence),
        redial_after_close: or(from.redial_after_close_ns, default.redial_after_close),
        capacity_window: or(from.capacity_window_ns, default.capacity_window),
        hold_answers: or(from.hold_answers_ns, default.hold_answers),
        ping_after: or(from.ping_after_ns, default.ping_after),
        dead_after: or(from.dead_after_ns, default.dead_after),
        blocked_pong: or(from.blocked_pong_ns, default.blocked_pong),
        ready_warning: or(from.ready_warning_ns, default.ready_warning),
        drain: or(from.drain_ns, default.drain),
        close: or(from.close_ns, default.close),
        backoff_first: or(from.backoff_first_ns, default.backoff_first),
        backoff_base: or(from.backoff_base_ns, default.backoff_base),
        backoff_max: or(from.backoff_max_ns, default.backoff_max),
    }
}

fn unless_never(nanos: u64, default_seconds: u64, divisor: u32) -> Option<Duration> {
    match nanos {
        NEVER => None,
        0 => Some(Duration::from_secs(default_seconds) / divisor.max(1)),
        nanos => Some(Duration::from_nanos(nanos)),
    }
}
