//! The session that is open (tunnel contract A.5: one at a time), its epoch, the numbers of its observations, and what
//! is known of the last action: whether a cut may have swallowed it.

use core::time::Duration;

use super::Resume;
use crate::time::Instant;
use crate::tunnel::{Epoch, SessionId};

/// Whether an action is sent once more.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Resend {
    /// It may be.
    Not,
    /// The caller was asked to, and has not started.
    Asked,
    /// It was started again: never a third time.
    Started,
}

/// The action that was started last.
#[derive(Copy, Clone, Debug)]
struct LastAction {
    epoch: Epoch,
    sequence: u64,
    at: Instant,
    /// The connection that it was started on is gone.
    cut: bool,
    resend: Resend,
}

/// After a redial with an open session: is anything coming?
#[derive(Copy, Clone, Debug)]
struct Watch {
    since: Instant,
    wedge_told: bool,
    data_came: bool,
}

#[derive(Debug)]
pub(super) struct Sessions {
    current: Option<(SessionId, Epoch)>,
    /// The last one given.
    epoch: Epoch,
    next_sequence: u64,
    last_action: Option<LastAction>,
    /// From an action to the next observation, in this session.
    longest_wait: Duration,
    watch: Option<Watch>,
    last_message: Option<Instant>,
}

/// A wait is called too long when it is this many times the longest one seen.
const PATIENCE: u32 = 5;

impl Sessions {
    pub(super) fn resume(resume: &Resume, now: Instant) -> Self {
        let epoch = resume.epoch;
        let last_action = resume.last_action.filter(|_| resume.session.is_some());
        Self {
            current: resume.session.clone().map(|session| (session, epoch)),
            epoch,
            next_sequence: resume.next_sequence.max(1),
            last_action: last_action.map(|last| LastAction {
                epoch,
                sequence: last.sequence,
                at: now,
                cut: true,
                resend: if last.resent { Resend::Started } else { Resend::Not },
            }),
            longest_wait: last_action.map_or(Duration::ZERO, |last| last.longest_wait),
            watch: None,
            last_message: None,
        }
    }

    pub(super) fn current(&self) -> Option<(&SessionId, Epoch)> {
        self.current.as_ref().map(|(session, epoch)| (session, *epoch))
    }

    pub(super) fn is_open(&self, epoch: Epoch) -> bool {
        epoch == Epoch(0) || self.current.as_ref().is_some_and(|(_, open)| *open == epoch)
    }

    /// The id for a data frame of `epoch`; the empty one for the warm-up round trip.
    pub(super) fn id(&self, epoch: Epoch) -> SessionId {
        match &self.current {
            Some((session, open)) if *open == epoch => session.clone(),
            _ => SessionId::default(),
        }
    }

    /// Opens a session under the next epoch. The caller has closed the one before.
    pub(super) fn open(&mut self, session: SessionId) -> Epoch {
        // Epoch 0 is the warm-up's, also after 2^32 sessions.
        self.epoch = Epoch(self.epoch.0.checked_add(1).unwrap_or(1));
        self.current = Some((session, self.epoch));
        self.longest_wait = Duration::ZERO;
        self.epoch
    }

    pub(super) fn close(&mut self) -> Option<(SessionId, Epoch)> {
        self.watch = None;
        self.last_action = None;
        self.current.take()
    }

    /// A message came, of whatever kind.
    pub(super) fn message(&mut self, now: Instant) {
        self.last_message = Some(now);
        if let Some(watch) = &mut self.watch {
            watch.wedge_told = true;
        }
    }

    /// An observation is complete, or was discarded; returns its number. It shows that the action before it arrived.
    pub(super) fn observation(&mut self, epoch: Epoch, first_byte: Instant) -> u64 {
        if let Some(action) = self.last_action.filter(|action| action.epoch == epoch) {
            self.longest_wait = self.longest_wait.max(first_byte.since(action.at));
            self.last_action = None;
        }
        if let Some(watch) = self.watch.as_mut().filter(|_| epoch != Epoch(0)) {
            watch.data_came = true;
        }
        self.next_sequence()
    }

    /// A number that no observation has.
    pub(super) fn next_sequence(&mut self) -> u64 {
        let sequence = self.next_sequence;
        self.next_sequence = sequence.saturating_add(1);
        sequence
    }

    /// An action's first byte is about to leave.
    pub(super) fn action(&mut self, now: Instant, epoch: Epoch, sequence: u64) {
        if epoch != Epoch(0) {
            let again = self.last_action.filter(|last| last.sequence == sequence);
            let resend = again.map_or(Resend::Not, |_| Resend::Started);
            self.last_action = Some(LastAction { epoch, sequence, at: now, cut: false, resend });
        }
    }

    /// From an action to the next observation, in this session, so far.
    pub(super) const fn longest_wait(&self) -> Duration {
        self.longest_wait
    }

    /// Its last byte has left.
    pub(super) fn action_sent(&mut self, now: Instant, sequence: u64) {
        if let Some(action) = self.last_action.as_mut().filter(|action| action.sequence == sequence) {
            action.at = now;
        }
    }

    pub(super) fn connection_lost(&mut self) {
        self.watch = None;
        if let Some(action) = &mut self.last_action {
            action.cut = true;
            if action.resend == Resend::Asked {
                // Not started by now: it has to be due anew.
                action.resend = Resend::Not;
            }
        }
    }

    /// The tunnel is up again.
    pub(super) fn redialled(&mut self, now: Instant) {
        if self.current.is_some() {
            self.watch = Some(Watch { since: now, wedge_told: false, data_came: false });
        }
    }

    /// When the last action is to be sent once more: it was started before the cut, and nothing has come since.
    pub(super) fn unfreeze_at(&self, least: Duration) -> Option<Instant> {
        let watch = self.watch.filter(|watch| !watch.data_came)?;
        let action = self.last_action.filter(|action| action.cut && action.resend == Resend::Not)?;
        self.is_open(action.epoch)
            .then(|| watch.since + least.max(self.longest_wait.saturating_mul(PATIENCE)))
    }

    /// The action to be sent once more; never twice.
    pub(super) fn unfreeze(&mut self) -> Option<(Epoch, u64)> {
        let action = self.last_action.as_mut()?;
        action.resend = Resend::Asked;
        Some((action.epoch, action.sequence))
    }

    /// When the tunnel counts as wedged: up again, a session open, and not one message.
    pub(super) fn wedged_at(&self, after: Duration) -> Option<Instant> {
        self.watch.filter(|watch| !watch.wedge_told).map(|watch| watch.since + after)
    }

    /// Says since when nothing came.
    pub(super) fn wedge(&mut self, now: Instant) -> Duration {
        let Some(watch) = &mut self.watch else { return Duration::ZERO };
        watch.wedge_told = true;
        now.since(self.last_message.unwrap_or(watch.since))
    }
}
