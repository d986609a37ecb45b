//! What the caller decides: where to dial, as whom, how long to wait, how much to accept. Plain values, checked by
//! their types; nothing here changes once an agent runs.

use core::time::Duration;

use heapless::String;

use crate::time::Instant;
use crate::tunnel::{AgentId, Epoch, JobId, SessionId};

/// Longest `Host` header value: a DNS name has at most 253 characters, a port adds up to six.
pub const MAX_HOST: usize = 260;
/// Longest path with query, before the job and the agent are appended.
pub const MAX_PATH: usize = 1024;

/// The gateway, as the upgrade request names it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Endpoint {
    /// Value of the `Host` header: the host, and the port unless it is the scheme's own.
    pub host: String<MAX_HOST>,
    /// Path with an optional query; the agent appends `job=` and `agent=` (tunnel contract A.1) with `?` or `&`.
    pub path: String<MAX_PATH>,
}

/// Everything that an agent is told once.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where to dial.
    pub endpoint: Endpoint,
    /// The job, tunnel contract A.1.
    pub job: JobId,
    /// Our identity; the gateway restores a session by the pair of job and agent (A.5).
    pub agent: AgentId,
    /// Every timer.
    pub timers: Timers,
    /// Every limit.
    pub limits: Limits,
    /// The least time to wait, after a cut, for something to come in the session before the last action is sent
    /// once more; five times the longest wait seen in the session if that is more. `None`: never.
    pub unfreeze: Option<Duration>,
    /// After a redial with an open session, report a wedge when nothing came for this long. `None`: never.
    pub wedge_after: Option<Duration>,
    /// On a wedge, ask for a fresh agent id and start over. This forfeits the open session.
    pub fresh_agent_on_wedge: bool,
    /// Over the parallelism cap: keep trying, instead of ending with [`Outcome::Capacity`](super::Outcome).
    pub wait_for_slot: bool,
}

/// Every timer of the agent. The default is what the design says; [`Timers::scaled`] makes a test run faster.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Timers {
    /// First dial: how long it is tried, counted from the start (5 min).
    pub dial: Duration,
    /// One attempt, from the dial to the `101` (10 s).
    pub connect: Duration,
    /// Redial budget after a silent loss, from the last byte seen: the gateway notices after 45 s and then keeps
    /// the session for 30 s (A.5, A.6) (75 s).
    pub redial_after_silence: Duration,
    /// Redial budget after a received FIN or close: the gateway's 30 s and a little slack (33 s).
    pub redial_after_close: Duration,
    /// A close this soon after the `101` with no other frame means the parallelism cap (A.1) (2 s).
    pub capacity_window: Duration,
    /// After a redial, kept answers wait this long for a first frame that is no close (1 s).
    pub hold_answers: Duration,
    /// Our own ping after this long without a byte received (20 s).
    pub ping_after: Duration,
    /// The connection counts as lost after this long without a byte received (40 s).
    pub dead_after: Duration,
    /// Unsolicited pongs while all slots are taken and nothing is read (15 s).
    pub blocked_pong: Duration,
    /// A notice when the worker is not ready this long after `warmup` (60 s).
    pub ready_warning: Duration,
    /// How long a `drain` waits for what has to be answered (60 s).
    pub drain: Duration,
    /// How long a close handshake may take (5 s).
    pub close: Duration,
    /// Delay before the first retry (0: at once).
    pub backoff_first: Duration,
    /// Upper bound of the delay before the second retry; it doubles with each further one (250 ms).
    pub backoff_base: Duration,
    /// Largest upper bound of a delay (5 s).
    pub backoff_max: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            dial: Duration::from_secs(300),
            connect: Duration::from_secs(10),
            redial_after_silence: Duration::from_secs(75),
            redial_after_close: Duration::from_secs(33),
            capacity_window: Duration::from_secs(2),
            hold_answers: Duration::from_secs(1),
            ping_after: Duration::from_secs(20),
            dead_after: Duration::from_secs(40),
            blocked_pong: Duration::from_secs(15),
            ready_warning: Duration::from_secs(60),
            drain: Duration::from_secs(60),
            close: Duration::from_secs(5),
            backoff_first: Duration::ZERO,
            backoff_base: Duration::from_millis(250),
            backoff_max: Duration::from_secs(5),
        }
    }
}

impl Timers {
    /// The same timers, each `divisor` times as fast. A divisor of 0 counts as 1.
    #[must_use]
    pub fn scaled(self, divisor: u32) -> Self {
        let divisor = divisor.max(1);
        Self {
            dial: self.dial / divisor,
            connect: self.connect / divisor,
            redial_after_silence: self.redial_after_silence / divisor,
            redial_after_close: self.redial_after_close / divisor,
            capacity_window: self.capacity_window / divisor,
            hold_answers: self.hold_answers / divisor,
            ping_after: self.ping_after / divisor,
            dead_after: self.dead_after / divisor,
            blocked_pong: self.blocked_pong / divisor,
            ready_warning: self.ready_warning / divisor,
            drain: self.drain / divisor,
            close: self.close / divisor,
            backoff_first: self.backoff_first / divisor,
            backoff_base: self.backoff_base / divisor,
            backoff_max: self.backoff_max / divisor,
        }
    }
}

/// How much is accepted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Payload bytes of a slot, without the headroom; at most `u32::MAX - HEADROOM`.
    pub slot_bytes: u32,
    /// Fragments of one message, empty ones included.
    pub fragments: u32,
    /// Bytes of one text message.
    pub text_bytes: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { slot_bytes: 8 << 20, fragments: 65_536, text_bytes: 1 << 20 }
    }
}

/// What a restarted sidecar learned from its predecessor's journal.
#[derive(Clone, Debug, Default)]
pub struct Resume {
    /// This job and agent had a tunnel before, so a refusal or an instant close is met as on a redial.
    pub connected_once: bool,
    /// When the predecessor last got a byte; the redial budget counts from here.
    pub last_byte: Option<Instant>,
    /// `warmup` had been received.
    pub warmup_seen: bool,
    /// `ready` had been sent.
    pub ready_sent: bool,
    /// The gateway had shown that it got `ready`: it queued the agent, or opened a session. An open `session` says so,
    /// too.
    pub ready_heard: bool,
    /// `drain` had been received: the agent never dials again.
    pub drain_seen: bool,
    /// The session that was open.
    pub session: Option<SessionId>,
    /// The session that the predecessor had closed, if none was opened after it: the gateway may not have heard of that.
    pub closed: Option<SessionId>,
    /// Epoch of that session, or the last one given.
    pub epoch: Epoch,
    /// Sequence number for the next observation; 0 counts as 1.
    pub next_sequence: u64,
    /// The last action that was started in `session`, if no observation came after it.
    pub last_action: Option<ResumeAction>,
}

/// An action that its sender's death may have swallowed, or the observation after it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ResumeAction {
    /// Of the observation that it answers.
    pub sequence: u64,
    /// It was sent once more already.
    pub resent: bool,
    /// The longest wait from an action to the next observation in the session so far.
    pub longest_wait: Duration,
}
