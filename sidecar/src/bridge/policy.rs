//! What happens to an observation that the worker failed on (the design's failure policy).

use core::time::Duration;

/// `--on-failure`. A reply is never made up: only bytes that the user configured are sent, since a top-level error
/// in a payload is fatal to the contest's simulator.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum FailurePolicy {
    /// Keep the observation until a restarted worker answers it.
    #[default]
    Hold,
    /// Answer with these bytes.
    Reply(Vec<u8>),
    /// Close the session towards the gateway.
    Close,
}

/// How many workers may die on one observation before the policy decides.
pub(super) const DEATHS: u32 = 3;

/// Settings of the bridge.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// See there.
    pub on_failure: FailurePolicy,
    /// How long a worker may take for one answer before the failure policy decides; `None`: for ever.
    pub worker_timeout: Option<Duration>,
    /// A first observation for the warm-up; no longer than a slot.
    pub warmup_payload: Option<Vec<u8>>,
}
