//! What a sidecar does before, while and after somebody dies. Each runs in the process that may die, or beside it.

use core::time::Duration;
use std::path::Path;

use sidecar_core::tunnel::{AgentId, Epoch, SessionId};
use sidecar_shm::clock;

use crate::game::Move;
use crate::sidecar::{GEOMETRY, OTHER, Sidecar};

/// Who may die, and in what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Script {
    /// The sidecar, from the region's making to its orderly end, with one worker.
    Start,
    /// The sidecar, with workers that come, go and are detached.
    Workers,
    /// The sidecar, taking over from a dead one whose worker lives.
    TakeOver,
    /// The same with slots of another size: the region is made anew.
    Replace,
    /// The same for another job: nothing of the session goes on.
    NextJob,
    /// The worker, at everything that a worker does.
    Work,
    /// The worker, over two crashes of its sidecar.
    Follow,
}

impl Script {
    pub(crate) const ALL: [Self; 7] =
        [Self::Start, Self::Workers, Self::TakeOver, Self::Replace, Self::NextJob, Self::Work, Self::Follow];

    pub(crate) fn name(self) -> String {
        format!("{self:?}")
    }

    pub(crate) fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|script| script.name() == name).unwrap()
    }

    /// It is the sidecar that may die.
    pub(crate) const fn of_sidecar(self) -> bool {
        !matches!(self, Self::Work | Self::Follow)
    }

    /// A sidecar died before this one started.
    pub(crate) const fn has_past(self) -> bool {
        matches!(self, Self::TakeOver | Self::Replace | Self::NextJob)
    }

    /// Texts that its error log may hold.
    pub(crate) const fn expected_errors(self) -> &'static [&'static str] {
        match self {
            Self::Workers => &["noted", "worker detached: as told"],
            _ => &[],
        }
    }

    /// Geometry and job of the sidecar that may die.
    pub(crate) const fn settings(self) -> (&'static sidecar_shm::layout::Geometry, u8) {
        match self {
            Self::Replace => (&OTHER, 1),
            Self::NextJob => (&GEOMETRY, 2),
            _ => (&GEOMETRY, 1),
        }
    }
}

/// Leaves a region behind in which everything is under way: an action taken and not sent, one unread, an observation
/// in the worker's hands, one unread. Says which of them are due.
pub(crate) fn past(path: &Path) -> Vec<u64> {
    let mut sidecar = Sidecar::start(path, &GEOMETRY, 1, false);
    sidecar.exchange(Move::Echo);
    sidecar.publish(Move::Echo);
    // Until its action is in the ring, and one more observation in hand.
    std::thread::sleep(Duration::from_millis(10));
    let _ = sidecar.owner.poll_worker();
    sidecar.owner.finish_action();
    sidecar.publish(Move::Echo);
    sidecar.publish(Move::Hold);
    std::thread::sleep(Duration::from_millis(10));
    sidecar.due.into_keys().collect()
}

/// The sidecar that may die.
pub(crate) fn run(script: Script, path: &Path) {
    let (geometry, job) = script.settings();
    let mut sidecar = Sidecar::start(path, geometry, job, true);
    match script {
        Script::Workers => workers(&mut sidecar),
        _ => work(&mut sidecar),
    }
    sidecar.finish();
    sidecar.close();
}

fn work(sidecar: &mut Sidecar) {
    sidecar.exchange(Move::Echo);
    sidecar.publish(Move::Hold);
    sidecar.exchange(Move::Fail);
    // More answers than action slots, which nobody takes: the worker waits for room.
    let burst = [(); 3].map(|()| sidecar.publish(Move::Echo));
    std::thread::sleep(Duration::from_millis(10));
    sidecar.until("the burst", |this| {
        burst.iter().all(|sequence| !this.due.contains_key(sequence)).then_some(())
    });
    sidecar.exchange(Move::Poll);
    // It sleeps in its poll loop.
    std::thread::sleep(Duration::from_millis(5));
    sidecar.exchange(Move::Echo);
    sidecar.exchange(Move::Echo);
}

fn workers(sidecar: &mut Sidecar) {
    sidecar.exchange(Move::Echo);
    sidecar.publish(Move::Hold);
    sidecar.exchange(Move::Leave);
    sidecar.exchange(Move::Echo);
    sidecar.owner.hold_deliveries();
    sidecar.publish(Move::Echo);
    for text in ["noted", "noted"] {
        sidecar.owner.errors().note(1, text, clock::now());
    }
    sidecar.finish();
    sidecar.owner.seat_poison("as told");
    sidecar.exchange(Move::Echo);
    sidecar.finish();
    // Another agent id: a session of its own.
    sidecar.owner.journal().session_closed(true);
    sidecar.owner.close_epoch(Epoch(1));
    sidecar.owner.journal().agent(&AgentId::new("another").unwrap());
    sidecar.owner.journal().warmup_seen();
    sidecar.owner.journal().ready_sent();
    sidecar.owner.journal().connected();
    sidecar.owner.journal().note_byte(clock::now());
    sidecar.owner.journal().session_opened(&SessionId::new("session").unwrap(), Epoch(1));
    sidecar.exchange(Move::Echo);
    sidecar.owner.journal().drain_seen();
}

/// The sidecar beside a worker that may die.
pub(crate) fn beside_a_worker(script: Script, path: &Path) -> Sidecar {
    let mut sidecar = Sidecar::start(path, &GEOMETRY, 1, false);
    if script == Script::Work {
        work(&mut sidecar);
        return sidecar;
    }
    sidecar.exchange(Move::Echo);
    sidecar.publish(Move::Hold);
    sidecar.publish(Move::Hold);
    std::thread::sleep(Duration::from_millis(5));
    sidecar = sidecar.restart(path, &GEOMETRY);
    sidecar.exchange(Move::Poll);
    sidecar.publish(Move::Hold);
    std::thread::sleep(Duration::from_millis(5));
    sidecar = sidecar.restart(path, &OTHER);
    sidecar.exchange(Move::Echo);
    sidecar
}
