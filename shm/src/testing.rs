//! What the tests of several modules need: a region in a directory of its own, and a sidecar's two threads in one.

pub(crate) mod process;

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use sidecar_core::agent::{HEADROOM, Resume};
use sidecar_core::record::ToSidecar;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch};
use tempfile::TempDir;

use crate::attach::{Connection, Listener};
use crate::clock;
use crate::layout::Geometry;
use crate::map::Map;
use crate::owner::{FromWorker, Owner, SeatPoisoned};
use crate::region::{Found, Identity, Opened, create};
use crate::slots::{Observed, SlotIndex};
use crate::worker::{AttachError, AttachOptions, Event, Observation, Worker};

/// No wait in a test is longer: a watchdog, never a measurement.
pub(crate) const WATCHDOG: Duration = Duration::from_secs(20);

/// Small, so that tests are quick.
pub(crate) const SMALL: Geometry =
    Geometry { observation_slots: 4, observation_bytes: 16_384, action_slots: 4, action_bytes: 4096 };

pub(crate) fn directory() -> TempDir {
    let place = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    tempfile::Builder::new().prefix("sidecar-test-").tempdir_in(place).unwrap()
}

pub(crate) fn identity(job: u8) -> Identity {
    Identity { job_endpoint_hash: [job; 32], agent: AgentId::new(&format!("agent-{job}")).unwrap() }
}

/// A mapping of zeroes without a name.
pub(crate) fn blank(bytes: usize) -> Arc<Map> {
    let file = tempfile::tempfile_in(std::env::temp_dir()).unwrap();
    file.set_len(bytes as u64).unwrap();
    Arc::new(Map::writable(&file, bytes).unwrap())
}

/// An owner, its listener and the workers' connections.
pub(crate) struct Side {
    pub(crate) owner: Owner,
    pub(crate) connections: Vec<Connection>,
    pub(crate) found: Found,
    pub(crate) resume: Resume,
    listener: Listener,
    pub(crate) path: PathBuf,
    /// Shared with the next owner.
    pub(crate) directory: Arc<TempDir>,
    sequence: u64,
}

impl Side {
    pub(crate) fn new(geometry: &Geometry) -> Self {
        Self::at(Arc::new(directory()), geometry, clock::now())
    }

    pub(crate) fn at(directory: Arc<TempDir>, geometry: &Geometry, now: Instant) -> Self {
        Self::of(directory, geometry, &identity(1), now)
    }

    pub(crate) fn of(
        directory: Arc<TempDir>,
        geometry: &Geometry,
        identity: &Identity,
        now: Instant,
    ) -> Self {
        let path = directory.path().join("obs");
        let Opened { owner, found, resume, .. } = create(&path, geometry, identity, now).unwrap();
        let listener = Listener::bind(&path).unwrap();
        // As the agent counts.
        let sequence = resume.next_sequence.max(1);
        Self { owner, connections: Vec::new(), found, resume, listener, path, directory, sequence }
    }

    /// Dies as by SIGKILL, and is started again. Its sockets are closed, its lock is gone, nothing is told to anyone.
    pub(crate) fn crash_and_restart(self) -> Self {
        let geometry = self.owner.geometry();
        let directory = Arc::clone(&self.directory);
        drop(self);
        Self::at(directory, &geometry, clock::now())
    }

    /// Serves what waits at the attach socket. Returns whether a seat was granted.
    pub(crate) fn serve(&mut self) -> bool {
        let mut granted = false;
        while let Some(mut pending) = self.listener.accept().unwrap() {
            let Ok(candidate) = pending.wait_hello(Duration::from_secs(2)) else { continue };
            match self.owner.seat_join(&candidate) {
                Ok(grant) => {
                    self.connections.push(pending.grant(&grant).unwrap());
                    granted = true;
                }
                Err(refused) => pending.refuse(&refused),
            }
        }
        granted
    }

    /// Attaches a worker of this process.
    pub(crate) fn attach(&mut self) -> Result<Worker, AttachError> {
        let path = self.path.clone();
        let options = AttachOptions { timeout: Duration::ZERO, ..AttachOptions::default() };
        let attaching = std::thread::spawn(move || Worker::attach(&path, &options));
        until(|| {
            self.serve();
            attaching.is_finished().then_some(())
        });
        attaching.join().unwrap()
    }

    /// Receives an observation; the payload starts with its sequence.
    pub(crate) fn observe(&mut self, epoch: u32, payload: &[u8]) -> u64 {
        let slot = self.owner.claim_slot().expect("a free slot");
        self.fill(slot, epoch, payload)
    }

    pub(crate) fn fill(&mut self, slot: SlotIndex, epoch: u32, payload: &[u8]) -> u64 {
        let sequence = self.sequence;
        self.sequence += 1;
        let base = self.owner.slot_base(slot);
        assert!(HEADROOM as usize + payload.len() <= self.owner.slot_bytes());
        // SAFETY: within the slot, by the assertion.
        let start = unsafe { base.add(HEADROOM as usize) };
        // SAFETY: the payload fits the slot, which is claimed: nobody else uses it.
        unsafe { core::ptr::copy_nonoverlapping(payload.as_ptr(), start, payload.len()) };
        let now = clock::now();
        let length = u32::try_from(payload.len()).unwrap();
        self.owner.publish(
            slot,
            &Observed { epoch: Epoch(epoch), sequence, length, first_byte: now, last_byte: now },
        );
        sequence
    }

    /// Polls once; an action is copied out and finished, but not answered.
    pub(crate) fn poll(&mut self) -> Result<Option<Said>, SeatPoisoned> {
        Ok(self.owner.poll_worker()?.map(|said| match said {
            FromWorker::Record { record, .. } => Said::Record(Box::new(record)),
            FromWorker::Action { seat, epoch, sequence, base, length, taken, published } => {
                let mut payload = vec![0; length as usize];
                // SAFETY: the owner has checked that the bytes lie in an action slot, which is ours until finished.
                unsafe { core::ptr::copy_nonoverlapping(base, payload.as_mut_ptr(), payload.len()) };
                assert!(published >= taken);
                self.owner.finish_action();
                Said::Action { seat, epoch, sequence, payload }
            }
        }))
    }

    /// The next action.
    pub(crate) fn action(&mut self) -> (u64, Vec<u8>) {
        until(|| match self.poll().unwrap() {
            Some(Said::Action { sequence, payload, .. }) => Some((sequence, payload)),
            _ => None,
        })
    }

    /// Reads until nothing more comes; what comes is none of the caller's business.
    pub(crate) fn settle(&mut self) {
        while self.poll().unwrap().is_some() {}
    }

    /// Sends the action of an observation, in the eyes of the journal.
    pub(crate) fn send(&mut self, sequence: u64) {
        self.owner.journal().action_started(sequence);
        self.owner.journal().action_sent(sequence);
        self.owner.answered(sequence);
    }

    /// What the control thread does: says whose connection ended and whose process is gone.
    pub(crate) fn watch(&mut self) {
        let mut alive = Vec::new();
        for connection in self.connections.drain(..) {
            let (seat, generation) = (connection.seat(), connection.generation());
            if connection.has_ended() {
                self.owner.seat_connection_ended(seat, generation);
            }
            if connection.is_proved_dead() {
                self.owner.seat_proved_dead(seat, generation);
            } else {
                alive.push(connection);
            }
        }
        self.connections = alive;
    }
}

/// What a worker said, copied out.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said {
    Record(Box<ToSidecar>),
    Action { seat: u8, epoch: Epoch, sequence: u64, payload: Vec<u8> },
}

/// Waits for a condition, under the watchdog.
pub(crate) fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let started = clock::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(clock::now().since(started) < WATCHDOG, "nothing happened for {WATCHDOG:?}");
        std::thread::yield_now();
    }
}

/// The next observation of a worker of which everything else is of no interest.
pub(crate) fn observation(worker: &mut Worker) -> Observation {
    until(|| match worker.next(Some(Duration::from_secs(5))).unwrap() {
        Event::Observation(observation) => Some(observation),
        Event::Timeout => panic!("no observation came"),
        _ => None,
    })
}
