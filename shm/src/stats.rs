//! The statistics pages: counters, gauges and latency histograms that anybody may read from outside at any time.
//!
//! Written by the sidecar's frame loop alone, with plain relaxed stores; readers take no lock and disturb nobody. A
//! histogram's bucket is found by a shift and a mask: 32 buckets an octave, so that a percentile is at most 3.2 %
//! above the true value. Values from 2^41 ns (37 minutes) on share the last bucket; the maximum is kept apart, exactly.
//!
//! | offset in [`crate::layout::STATS`] | what |
//! |---|---|
//! | 0 | 64 counters, u64 |
//! | 512 | 64 gauges, u64 |
//! | 1,024 | a histogram for each [`Stage`]: maximum, sum, 1,184 buckets, u64 |

mod snapshot;

use core::time::Duration;
use std::sync::Arc;

use crate::layout::{STATS, STATS_BYTES};
use crate::map::Map;
use crate::sync::Ordering;
pub use snapshot::{Owned, Snapshot, SnapshotError, Summary};

const GAUGES: usize = STATS + 512;
const HISTOGRAMS: usize = STATS + 1024;
/// log2 of the buckets of an octave.
const SUB_BITS: u32 = 5;
const SUB: u64 = 1 << SUB_BITS;
/// Exponent of the last octave with buckets of its own.
const LAST_EXPONENT: u32 = 40;
const BUCKETS: usize = (LAST_EXPONENT - SUB_BITS + 2) as usize * SUB as usize;
const HISTOGRAM_BYTES: usize = (2 + BUCKETS) * 8;

/// Declares an enum of which the discriminants are positions in a page, with all values and their names.
macro_rules! positions {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// All of them, in the order of the page.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Name in `sidecar stat` and in metrics.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

positions! {
    /// What is counted, since the region was made. New ones are added at the end.
    Counter {
        /// Observations received.
        FramesIn = "frames_in",
        /// Payload bytes of them.
        BytesIn = "bytes_in",
        /// Actions sent.
        ActionsOut = "actions_out",
        /// Payload bytes of them.
        BytesOut = "bytes_out",
        /// Observations delivered to a worker that another one may have seen.
        Redelivered = "redelivered",
        /// Data frames that fit no session or were malformed.
        DroppedFrames = "dropped_frames",
        /// Actions for sessions that were over, or for observations already answered.
        DroppedActions = "dropped_actions",
        /// Payload bytes that had to be moved because a frame was other than predicted.
        MovedBytes = "moved_bytes",
        /// Bytes of following frames that came along with a receive and were carried over.
        CarriedBytes = "carried_bytes",
        /// Observations that came in more than one fragment.
        Fragmented = "fragmented",
        /// Connections after the first.
        Redials = "redials",
        /// Pings received.
        Pings = "pings",
        /// Pongs received.
        Pongs = "pongs",
        /// Times that the frame loop went to sleep.
        Sleeps = "sleeps",
        /// Times that a worker had to be woken by a system call.
        Wakes = "wakes",
        /// Actions sent a second time to unfreeze a simulator.
        Resent = "resent",
        /// Observations larger than a slot.
        TooLarge = "too_large",
        /// Workers detached because of nonsense in their pages.
        Poisoned = "poisoned",
        /// Workers attached.
        Attached = "attached",
        /// Workers whose connection ended.
        Detached = "detached",
        /// Observations that a worker gave up on.
        Failed = "failed",
        /// Control messages from the gateway.
        ControlIn = "control_in",
        /// Sessions opened.
        Sessions = "sessions",
        /// System calls of those that looked without waiting and found nothing, while spinning.
        EmptyPolls = "empty_polls",
        /// System calls made by the frame loop for its socket and its sleep; wake-ups of the worker are `wakes`.
        SystemCalls = "system_calls",
    }
}

impl Counter {
    /// Those that stay at 0 unless something goes wrong.
    pub const TROUBLE: [Self; 6] = [
        Self::Poisoned,
        Self::DroppedFrames,
        Self::DroppedActions,
        Self::Failed,
        Self::TooLarge,
        Self::Resent,
    ];
}

positions! {
    /// What is now. New ones are added at the end.
    Gauge {
        /// Phase of the tunnel: 0 queued, 1 warm-up, 2 running, 3 draining.
        Phase = "phase",
        /// 1 while a session is open.
        SessionOpen = "session_open",
        /// 1 while the tunnel is up.
        Connected = "connected",
        /// When it came up last, ns of CLOCK_BOOTTIME.
        ConnectedSince = "connected_since_ns",
        /// Pid of the attached worker, 0 for none.
        WorkerPid = "worker_pid",
        /// Observations that wait for an answer.
        Unanswered = "unanswered",
        /// Observation slots that are free.
        FreeSlots = "free_slots",
        /// Slots taken only because a worker still holds a view of an answered observation.
        LentSlots = "lent_slots",
        /// 1 when the frame loop runs on io_uring, 2 on epoll.
        Driver = "driver",
    }
}

positions! {
    /// A part of the way from observation to action, for which latencies are kept.
    Stage {
        /// From an observation's first byte to its last.
        Receive = "receive",
        /// From its last byte until the worker has it.
        HandOver = "hand_over",
        /// From there until the worker's action is published.
        Worker = "worker",
        /// From there until its last byte went to the kernel.
        Send = "send",
        /// From the observation's last byte to the action's last byte.
        Total = "total",
    }
}

const _: () = {
    assert!(Counter::ALL.len() <= 64 && Gauge::ALL.len() <= 64);
    assert!(HISTOGRAMS + Stage::ALL.len() * HISTOGRAM_BYTES <= STATS + STATS_BYTES);
    assert!(BUCKETS == 1184);
};

const fn histogram(stage: Stage) -> usize {
    HISTOGRAMS + stage as usize * HISTOGRAM_BYTES
}

/// Bucket of a duration in nanoseconds.
const fn bucket(nanos: u64) -> usize {
    if nanos < SUB {
        return nanos as usize;
    }
    let exponent = nanos.ilog2();
    if exponent > LAST_EXPONENT {
        return BUCKETS - 1;
    }
    let within = nanos >> (exponent - SUB_BITS) & (SUB - 1);
    ((exponent - SUB_BITS + 1) as u64 * SUB + within) as usize
}

/// Largest duration that falls into a bucket.
const fn bucket_top(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < SUB {
        return bucket;
    }
    let shift = bucket / SUB - 1;
    ((SUB + bucket % SUB + 1) << shift) - 1
}

/// The owner's side of the statistics pages.
#[derive(Clone, Debug)]
pub struct Stats {
    map: Arc<Map>,
    /// Has one writer: not to be shared between threads.
    _one_thread: core::marker::PhantomData<core::cell::Cell<()>>,
}

impl Stats {
    pub(crate) const fn new(map: Arc<Map>) -> Self {
        Self { map, _one_thread: core::marker::PhantomData }
    }

    /// Counts `amount` more.
    pub fn add(&self, counter: Counter, amount: u64) {
        self.bump(STATS + counter as usize * 8, amount);
    }

    /// Counts one more.
    pub fn count(&self, counter: Counter) {
        self.add(counter, 1);
    }

    /// Sets a gauge.
    pub fn set(&self, gauge: Gauge, value: u64) {
        self.map.word64(GAUGES + gauge as usize * 8).store(value, Ordering::Relaxed);
    }

    /// One more latency.
    pub fn record(&self, stage: Stage, took: Duration) {
        // Saturates after 584 years.
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let start = histogram(stage);
        let most = self.map.word64(start);
        if nanos > most.load(Ordering::Relaxed) {
            most.store(nanos, Ordering::Relaxed);
        }
        self.bump(start + 8, nanos);
        self.bump(start + 16 + bucket(nanos) * 8, 1);
    }

    /// Value of a counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.map.word64(STATS + counter as usize * 8).load(Ordering::Relaxed)
    }

    /// Everything as it is now.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::read(&self.map)
    }

    /// Opens the region under `path` for reading only, and reads everything once: no lock, no wake-up.
    ///
    /// # Errors
    /// If there is no region of this layout, or it can't be read.
    pub fn open_read_only(path: &std::path::Path) -> Result<Snapshot, SnapshotError> {
        snapshot::open(path)
    }

    /// The same of a region that was opened before; its name may be gone by now. `path` names it in errors.
    ///
    /// # Errors
    /// As [`Stats::open_read_only`].
    pub fn read_only(file: &std::fs::File, path: &std::path::Path) -> Result<Snapshot, SnapshotError> {
        snapshot::read(file, path)
    }

    /// One writer: a load and a store are enough, and cheaper than a locked addition.
    fn bump(&self, offset: usize, amount: u64) {
        let word = self.map.word64(offset);
        word.store(word.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
