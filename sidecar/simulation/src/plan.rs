//! What a seed decides before the first event: how the job looks, how the gateway behaves where the contract leaves it
//! a choice, how slow and how broken the network is, what the user set.

use core::time::Duration;

use crate::random::Random;

/// Nanoseconds.
pub(crate) const MICRO: u64 = 1_000;
pub(crate) const MILLI: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;

/// What a gateway does for a session whose answer did not come before a cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lost {
    /// It sends the observation again after the redial.
    Reask,
    /// It waits for ever.
    Stall,
}

/// What a gateway sends after a redial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Greeting {
    Nothing,
    Warmup,
    SessionOpen,
    Both,
}

/// `--on-failure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    Hold,
    Reply,
    Close,
}

/// See the module.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) lost: Lost,
    pub(crate) cases: u32,
    pub(crate) steps: u32,
    /// Observations that the gateway sends without waiting for an answer.
    pub(crate) pipeline: u32,
    pub(crate) slots: u32,
    pub(crate) action_slots: u32,
    pub(crate) unfreeze: Option<Duration>,
    pub(crate) fresh_agent: bool,
    pub(crate) wait_for_slot: bool,
    pub(crate) policy: Policy,
    pub(crate) worker_timeout: Option<Duration>,
    /// One way, and what may come on top.
    pub(crate) latency: u64,
    pub(crate) jitter: u64,
    /// One piece in so many is cut in two.
    pub(crate) split: u64,
    /// A receive of a known remainder waits for all of it, as MSG_WAITALL does.
    pub(crate) wait_all: bool,
    /// Bytes under way in one direction.
    pub(crate) window: usize,
    pub(crate) greeting: Greeting,
    /// A pair that is gone is refused with 401; else with a close right after the 101.
    pub(crate) refuse_gone: bool,
    pub(crate) faults: u32,
    /// A fault comes with one step in so many.
    pub(crate) density: u64,
    /// One frame in so many has something before it that should change nothing.
    pub(crate) junk: u64,
    /// One data frame in so many comes in fragments.
    pub(crate) fragments: u64,
    /// One observation in so many is larger than a slot.
    pub(crate) oversize: u64,
    /// Inference, and loading the model.
    pub(crate) think: u64,
    pub(crate) load: u64,
    /// `--warmup-payload`.
    pub(crate) warmup_payload: bool,
    /// The warm-up round trip with an empty session id.
    pub(crate) round_trip: bool,
    /// `queued` after `ready`.
    pub(crate) queued: bool,
    pub(crate) first_dial: FirstDial,
    /// The warm-up fails.
    pub(crate) bad_model: bool,
}

/// What the first dials meet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FirstDial {
    Fine,
    /// 500, 503 or 429, so often.
    Status(u16, u32),
    /// Closed right after the 101, so often.
    Capacity(u32),
    /// 401.
    Unauthorized,
    /// Nobody there for so many seconds.
    Absent(u32),
}

/// Payload bytes of an observation slot.
pub(crate) const SLOT_BYTES: u32 = 4096;
/// Bytes of an action slot.
pub(crate) const ACTION_BYTES: u32 = 256;

impl Plan {
    pub(crate) fn new(random: &mut Random) -> Self {
        let pipeline = if random.once_in(6) { random.within(2..=6) as u32 } else { 1 };
        let latency = random.pick(&[50 * MICRO, MILLI, 10 * MILLI, 40 * MILLI]);
        Self {
            lost: if random.once_in(3) { Lost::Stall } else { Lost::Reask },
            cases: random.within(1..=2) as u32,
            steps: random.within(1..=3) as u32 + if pipeline > 1 { 3 } else { 0 },
            pipeline,
            slots: random.pick(&[4, 4, 3, 2, 1]),
            action_slots: random.pick(&[4, 2, 1]),
            unfreeze: if random.once_in(4) { None } else { Some(Duration::from_secs(60)) },
            fresh_agent: random.once_in(12),
            wait_for_slot: random.once_in(3),
            policy: random.pick(&[Policy::Hold, Policy::Hold, Policy::Reply, Policy::Close]),
            worker_timeout: if random.once_in(10) { Some(Duration::from_secs(20)) } else { None },
            latency,
            jitter: random.pick(&[0, latency / 4, latency * 4]),
            split: random.pick(&[2, 6, 40]),
            wait_all: random.once_in(2),
            window: random.pick(&[65_536, 65_536, 6_000, 900]),
            greeting: random.pick(&[
                Greeting::Nothing,
                Greeting::Warmup,
                Greeting::SessionOpen,
                Greeting::Both,
            ]),
            refuse_gone: random.once_in(2),
            faults: random.pick(&[0, 1, 1, 2, 2, 3, 4]),
            density: random.pick(&[12, 30, 60, 120]),
            junk: random.pick(&[4, 20, 1000]),
            fragments: random.pick(&[3, 12, 1000]),
            oversize: if random.once_in(8) { 4 } else { u64::MAX },
            think: random.pick(&[100 * MICRO, 5 * MILLI, 300 * MILLI]),
            load: random.pick(&[MILLI, 500 * MILLI, 8 * SECOND]),
            warmup_payload: random.once_in(3),
            round_trip: random.once_in(4),
            queued: random.once_in(4),
            first_dial: if random.once_in(8) {
                let often = random.within(1..=3) as u32;
                let status = random.pick(&[500, 503, 429]);
                let seconds = random.within(1..=400) as u32;
                random.pick(&[
                    FirstDial::Status(status, often),
                    FirstDial::Capacity(often),
                    FirstDial::Unauthorized,
                    FirstDial::Absent(seconds),
                ])
            } else {
                FirstDial::Fine
            },
            bad_model: random.once_in(60),
        }
    }
}
