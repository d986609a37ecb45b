//! The tunnel's phases (tunnel contract A.4), and how far the warm-up is.

use crate::time::Instant;

/// Where the tunnel stands.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Waiting for `warmup`.
    Queued,
    /// `warmup` came, `ready` has not been sent.
    Warmup,
    /// `ready` was sent: sessions may come.
    Running,
    /// `drain` came.
    Draining,
}

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) phase: Phase,
    /// The worker is warm.
    pub(super) warm: bool,
    /// The worker was asked to warm up then, and no warning has been given.
    pub(super) asked_at: Option<Instant>,
    /// `ready` was sent, and nothing has shown that it arrived.
    ready_in_doubt: bool,
    /// `drain` waits no longer than this for answers.
    pub(super) drain_until: Option<Instant>,
}

/// What a `warmup` calls for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Warmup {
    /// The worker has to warm up.
    Ask,
    /// The worker is warm: `ready` at once.
    Ready,
    /// The worker is at it, or there will be no more sessions.
    Nothing,
}

impl Progress {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::Queued, warm: false, asked_at: None, ready_in_doubt: false, drain_until: None }
    }

    pub(super) fn warmup(&mut self, now: Instant) -> Warmup {
        match self.phase {
            Phase::Draining => Warmup::Nothing,
            _ if self.warm => {
                if self.phase == Phase::Queued {
                    self.phase = Phase::Warmup;
                }
                Warmup::Ready
            }
            Phase::Warmup => Warmup::Nothing,
            Phase::Queued | Phase::Running => {
                self.phase = Phase::Warmup;
                self.asked_at = Some(now);
                Warmup::Ask
            }
        }
    }

    /// A predecessor had sent `ready`, and its worker is warm. Unless the gateway was seen to have it, it may be lost.
    pub(super) const fn resume_ready(&mut self, heard: bool) {
        self.warm = true;
        self.phase = Phase::Running;
        self.ready_in_doubt = !heard;
    }

    /// A new tunnel, the same worker.
    pub(super) fn start_over(&mut self) {
        *self = Self { warm: self.warm, ..Self::new() };
    }

    /// The worker is warm. Says whether `ready` is due.
    pub(super) fn worker_ready(&mut self) -> bool {
        self.warm = true;
        self.asked_at = None;
        self.phase == Phase::Warmup
    }

    pub(super) fn ready_sent(&mut self) {
        self.ready_in_doubt = true;
        if self.phase == Phase::Warmup {
            self.phase = Phase::Running;
        }
    }

    /// The gateway did what it does after `ready` only.
    pub(super) const fn ready_arrived(&mut self) {
        self.ready_in_doubt = false;
    }

    /// The tunnel is up again. Says whether `ready` is due: once more, since the cut may have swallowed it, and a
    /// gateway that waits for it never goes on.
    pub(super) fn redialled(&mut self) -> bool {
        self.warm && self.phase == Phase::Running && core::mem::take(&mut self.ready_in_doubt)
    }
}
