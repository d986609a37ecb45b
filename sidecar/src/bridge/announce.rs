//! What the worker has been told, and what it ought to know.
//!
//! Records are derived from state rather than queued: a worker that sleeps through a hundred sessions is told of
//! the last one, so nothing here can grow, and a successor is told everything from the start.

use sidecar_core::record::ToWorker;
use sidecar_core::tunnel::{Epoch, SessionId};

/// The state of the tunnel as far as a worker is concerned.
#[derive(Debug, Default)]
pub(super) struct Announcer {
    warmup: bool,
    session: Option<Session>,
    draining: bool,
    /// A predecessor had sent `ready`.
    warmed_before: bool,
    /// Seat and generation of whom `told` is about.
    listener: Option<(u8, u32)>,
    told: Told,
}

#[derive(Debug)]
struct Session {
    id: SessionId,
    epoch: Epoch,
    resumed: bool,
}

#[derive(Debug, Default)]
struct Told {
    warmup: bool,
    session: Option<Epoch>,
    drain: bool,
}

impl Announcer {
    pub(super) fn warm_up(&mut self) {
        self.warmup = true;
    }

    /// After a take-over: a predecessor had sent `ready`.
    pub(super) fn warmed_before(&mut self) {
        self.warmup = true;
        self.warmed_before = true;
    }

    /// Whoever has the seat is spoken to. Another one than before has been told nothing yet, except for the survivor of
    /// a sidecar that had sent `ready`: a seat is opened (`open`) only once its worker was told everything, so that one
    /// is warm, and loading its model once more would hold the session up.
    pub(super) fn address(&mut self, listener: (u8, u32), open: bool) {
        if self.listener.replace(listener) == Some(listener) {
            return;
        }
        self.told = Told { warmup: self.warmed_before && open, ..Told::default() };
        if let Some(session) = &mut self.session {
            session.resumed = true;
        }
    }

    /// A session is open. `resumed`: the worker may know it already; it is told all the same.
    pub(super) fn open(&mut self, id: SessionId, epoch: Epoch, resumed: bool) {
        if self.told.session == Some(epoch) {
            self.told.session = None;
        }
        self.session = Some(Session { id, epoch, resumed });
    }

    pub(super) fn close(&mut self) {
        self.session = None;
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    /// Tells what is missing, in order, for as long as `send` takes it. `true`: nothing is missing any more, so
    /// that observations may follow.
    pub(super) fn catch_up(&mut self, mut send: impl FnMut(&ToWorker) -> bool) -> bool {
        if self.warmup && !self.told.warmup {
            if !send(&ToWorker::Warmup) {
                return false;
            }
            self.told.warmup = true;
        }
        if let Some(epoch) = self.told.session
            && self.session.as_ref().is_none_or(|session| session.epoch != epoch)
        {
            if !send(&ToWorker::SessionClosed { epoch }) {
                return false;
            }
            self.told.session = None;
        }
        if let Some(Session { id, epoch, resumed }) = &self.session
            && self.told.session.is_none()
        {
            if !send(&ToWorker::SessionOpened { session: id.clone(), epoch: *epoch, resumed: *resumed }) {
                return false;
            }
            self.told.session = Some(*epoch);
        }
        if self.draining && !self.told.drain {
            if !send(&ToWorker::Drain) {
                return false;
            }
            self.told.drain = true;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(announcer: &mut Announcer, room: usize) -> Vec<String> {
        let mut said = Vec::new();
        announcer.catch_up(|record| {
            let taken = said.len() < room;
            if taken {
                said.push(match record {
                    ToWorker::Warmup => "warmup".to_owned(),
                    ToWorker::SessionOpened { epoch, resumed, .. } => format!("open {} {resumed}", epoch.0),
                    ToWorker::SessionClosed { epoch } => format!("close {}", epoch.0),
                    ToWorker::Drain => "drain".to_owned(),
                });
            }
            taken
        });
        said
    }

    fn id() -> SessionId {
        SessionId::new("s").unwrap()
    }

    #[test]
    fn a_worker_that_slept_is_told_of_the_last_session_only() {
        let mut announcer = Announcer::default();
        announcer.warm_up();
        announcer.open(id(), Epoch(1), false);
        assert_eq!(said(&mut announcer, 9), ["warmup", "open 1 false"]);
        for epoch in 2..100 {
            announcer.close();
            announcer.open(id(), Epoch(epoch), false);
        }
        announcer.drain();
        assert_eq!(said(&mut announcer, 9), ["close 1", "open 99 false", "drain"]);
        assert!(said(&mut announcer, 9).is_empty());
    }

    #[test]
    fn a_survivor_is_not_warmed_up_again_but_its_successor_is() {
        let mut announcer = Announcer::default();
        announcer.warmed_before();
        announcer.open(id(), Epoch(1), true);
        announcer.address((0, 7), true);
        assert_eq!(said(&mut announcer, 9), ["open 1 true"]);
        announcer.address((0, 7), true);
        assert!(said(&mut announcer, 9).is_empty());
        announcer.address((1, 1), false);
        assert_eq!(said(&mut announcer, 9), ["warmup", "open 1 true"]);
    }

    #[test]
    fn a_full_ring_delays_a_record_and_loses_none() {
        let mut announcer = Announcer::default();
        announcer.warm_up();
        announcer.open(id(), Epoch(1), false);
        assert_eq!(said(&mut announcer, 1), ["warmup"]);
        assert_eq!(said(&mut announcer, 1), ["open 1 false"]);
        assert!(announcer.catch_up(|_| false));
    }

    #[test]
    fn a_resumed_session_is_told_again_without_a_close_and_a_successor_hears_everything() {
        let mut announcer = Announcer::default();
        announcer.warm_up();
        announcer.open(id(), Epoch(1), false);
        said(&mut announcer, 9);
        announcer.open(id(), Epoch(1), true);
        assert_eq!(said(&mut announcer, 9), ["open 1 true"]);
        announcer.address((0, 2), false);
        assert_eq!(said(&mut announcer, 9), ["warmup", "open 1 true"]);
    }
}
