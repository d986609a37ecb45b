//! A sidecar without a tunnel: owner, attach socket and the watch over workers, in one thread.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use sidecar_core::agent::HEADROOM;
use sidecar_core::record::{ToSidecar, ToWorker};
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};
use sidecar_shm::attach::{Connection, Listener};
use sidecar_shm::clock;
use sidecar_shm::device::DeviceRing;
use sidecar_shm::journal::LastAction;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner, Whereabouts};
use sidecar_shm::region::{CreateError, Found, Identity, Opened, create};
use sidecar_shm::slots::{Copied, Observed};
use sidecar_shm::stats::Stage;

use crate::game::{Move, payload, say};

/// Small, so that rings of slots come round quickly.
pub(crate) const GEOMETRY: Geometry =
    Geometry { observation_slots: 4, observation_bytes: 8192, action_slots: 2, action_bytes: 4096 };
/// Another one: a region of the first kind has to be made anew.
pub(crate) const OTHER: Geometry = Geometry { observation_bytes: 12_288, ..GEOMETRY };
/// Of everything that waits: a watchdog, never a measurement.
const WATCHDOG: Duration = Duration::from_secs(15);

pub(crate) struct Sidecar {
    pub(crate) owner: Owner,
    listener: Listener,
    connections: Vec<Connection>,
    pub(crate) found: Found,
    next: u64,
    /// What was published here or before and has no action yet.
    pub(crate) due: BTreeMap<u64, Move>,
    /// What was answered here.
    pub(crate) answered: BTreeSet<u64>,
    /// Workers that were let in.
    pub(crate) joined: u32,
    /// Everything is told: somebody watches this process.
    told: bool,
}

/// Opens the region. One of before may have been dropped by the test's own process, and a process that another thread of
/// it forks at that moment holds the lock until it is another program.
fn open(path: &Path, geometry: &Geometry, identity: &Identity) -> Opened {
    for _ in 0..400 {
        match create(path, geometry, identity, clock::now()) {
            Err(CreateError::InUse { pid, .. })
                if Some(pid) == rustix::process::getppid().map(pid_number) =>
            {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => return opened.unwrap(),
        }
    }
    panic!("the region of before is still in use after 2 s");
}

fn pid_number(pid: rustix::process::Pid) -> u32 {
    pid.as_raw_nonzero().get().cast_unsigned()
}

macro_rules! tell {
    ($this:expr, $($text:tt)*) => { if $this.told { say(format_args!($($text)*)); } };
}

impl Sidecar {
    pub(crate) fn start(path: &Path, geometry: &Geometry, job: u8, told: bool) -> Self {
        let identity =
            Identity { job_endpoint_hash: [job; 32], agent: AgentId::new(&format!("agent-{job}")).unwrap() };
        let Opened { mut owner, found, resume, .. } = open(path, geometry, &identity);
        // One byte all over, so that a mix of two shows.
        let byte = std::process::id() as u8;
        let ring = DeviceRing { gpu: [byte; 16], memory: [byte; 64], event: [byte; 64] };
        // For as long as the process lives.
        core::mem::forget(owner.announce_device_ring(&ring));
        let listener = Listener::bind(path).unwrap();
        let next = resume.next_sequence.max(1);
        let mut due = BTreeMap::new();
        if let Found::TakenOver { kept, .. } = &found {
            for held in kept {
                // SAFETY: the payload starts behind the headroom, within the slot.
                let start = unsafe { owner.slot_base(held.slot).add(HEADROOM as usize) };
                // SAFETY: as above; whoever may write there writes bytes.
                let first = unsafe { start.read_volatile() };
                due.insert(held.sequence, Move::of(first));
            }
        } else {
            owner.journal().connected();
            owner.journal().note_byte(clock::now());
            owner.journal().session_opened(&SessionId::new("session").unwrap(), Epoch(1));
        }
        let mut this = Self {
            owner,
            listener,
            connections: Vec::new(),
            found,
            next,
            due,
            answered: BTreeSet::new(),
            joined: 0,
            told,
        };
        this.spoil_free_slots();
        this
    }

    /// Writes over every slot that is said to be free.
    fn spoil_free_slots(&mut self) {
        let slots: Vec<_> = core::iter::from_fn(|| self.owner.claim_slot()).collect();
        let mut numbers = BTreeSet::new();
        for slot in slots {
            assert!(numbers.insert(slot.number()), "slot {} was given out twice", slot.number());
            let base = self.owner.slot_base(slot);
            // SAFETY: the slot is claimed and has that many bytes.
            unsafe { core::ptr::write_bytes(base, 0xee, self.owner.slot_bytes()) };
            self.owner.unclaim(slot);
        }
    }

    /// Receives an observation. Nothing else happens meanwhile if a slot is free.
    pub(crate) fn publish(&mut self, what: Move) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let slot = match self.owner.claim_slot() {
            Some(slot) => slot,
            None => self.until("a free slot", |this| this.owner.claim_slot()),
        };
        let bytes = payload(sequence, what);
        // SAFETY: the headroom is within the slot.
        let start = unsafe { self.owner.slot_base(slot).add(HEADROOM as usize) };
        // SAFETY: the payload fits the slot, which is claimed.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        let now = clock::now();
        self.owner.journal().note_byte(now);
        let length = u32::try_from(bytes.len()).unwrap();
        self.due.insert(sequence, what);
        self.owner.set_copied(slot, Copied::Yes);
        self.owner
            .publish(slot, &Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now });
        tell!(self, "published {sequence}");
        sequence
    }

    /// Lets workers in, sees them go, takes what they say; sends actions as far as the journal knows.
    pub(crate) fn turn(&mut self) {
        self.serve();
        self.watch();
        loop {
            match self.owner.poll_worker() {
                Ok(None) => break,
                Ok(Some(FromWorker::Record { record: ToSidecar::Failed { sequence, .. }, .. })) => {
                    self.settle(sequence)
                }
                Ok(Some(FromWorker::Record { .. })) => {}
                Ok(Some(FromWorker::Action { sequence, base, length, .. })) => {
                    let mut bytes = vec![0; length as usize];
                    // SAFETY: the owner has checked that the bytes lie in an action slot.
                    unsafe { core::ptr::copy_nonoverlapping(base, bytes.as_mut_ptr(), bytes.len()) };
                    assert_eq!(bytes, sequence.to_le_bytes());
                    self.owner.finish_action();
                    self.send(sequence);
                }
                Err(poisoned) => panic!("{poisoned}"),
            }
        }
        self.owner.deliver_pending();
    }

    fn send(&mut self, sequence: u64) {
        tell!(self, "starting {sequence}");
        self.owner.journal().last_action(&LastAction {
            epoch: Epoch(1),
            sequence,
            resent: false,
            longest_wait: Duration::ZERO,
            mask: [0; 4],
            payload: &sequence.to_le_bytes(),
        });
        self.owner.journal().action_started(sequence);
        tell!(self, "started {sequence}");
        assert!(self.answered.insert(sequence), "{sequence} was answered twice");
        self.due.remove(&sequence);
        self.owner.answered(sequence);
        self.owner.journal().action_sent(sequence);
        self.owner.stats().record(Stage::Total, Duration::from_micros(sequence));
    }

    /// It needs no answer any more.
    fn settle(&mut self, sequence: u64) {
        tell!(self, "starting {sequence}");
        self.due.remove(&sequence);
        self.owner.answered(sequence);
    }

    fn serve(&mut self) {
        while let Some(mut pending) = self.listener.accept().unwrap() {
            // A worker that dies in the middle of its hello gets no seat.
            let Ok(candidate) = pending.wait_hello(Duration::from_secs(2)) else { continue };
            match self.owner.seat_join(&candidate) {
                Ok(grant) => {
                    let (seat, generation, resumed) = (grant.seat, grant.generation, grant.resumed);
                    let Ok(connection) = pending.grant(&grant) else {
                        self.owner.seat_connection_ended(seat, generation);
                        continue;
                    };
                    self.connections.push(connection);
                    self.joined += 1;
                    if !resumed {
                        self.owner.send(&ToWorker::Warmup).unwrap();
                        let session = SessionId::new("session").unwrap();
                        self.owner
                            .send(&ToWorker::SessionOpened { session, epoch: Epoch(1), resumed: false })
                            .unwrap();
                    }
                    self.owner.deliver_pending();
                    tell!(self, "joined {generation} {resumed}");
                }
                Err(refused) => pending.refuse(&refused),
            }
        }
    }

    fn watch(&mut self) {
        let mut ended = Vec::new();
        self.connections.retain(|connection| {
            let dead = connection.is_proved_dead();
            if dead || connection.has_ended() {
                ended.push((connection.seat(), connection.generation(), dead));
            }
            !dead
        });
        for (seat, generation, dead) in ended {
            self.owner.seat_connection_ended(seat, generation);
            if dead {
                self.owner.seat_proved_dead(seat, generation);
            }
        }
        for orphan in self.owner.orphans() {
            let dead = match orphan.look().unwrap() {
                Whereabouts::Runs(pidfd) => is_readable(&pidfd),
                Whereabouts::Gone => true,
                Whereabouts::Hidden => false,
            };
            if dead {
                self.owner.seat_proved_dead(orphan.seat, orphan.generation);
            }
        }
    }

    /// Turns until a condition holds; sleeps on the doorbells as a frame loop does.
    pub(crate) fn until<T>(&mut self, what: &str, mut condition: impl FnMut(&mut Self) -> Option<T>) -> T {
        let started = clock::now();
        loop {
            self.turn();
            if let Some(value) = condition(self) {
                return value;
            }
            assert!(clock::now().since(started) < WATCHDOG, "{what} did not come; due {:?}", self.due);
            if self.owner.arm() {
                let mut fds = self.owner.doorbells().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
                let wait = rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
                let _ = rustix::event::poll(&mut fds, Some(&wait));
                // They are never read: a loop that watches edges needs none, this one takes a nap instead.
                if fds.iter().any(|fd| fd.revents().contains(PollFlags::IN)) {
                    std::thread::sleep(Duration::from_micros(200));
                }
            }
            self.owner.disarm();
        }
    }

    /// Publishes, and waits until it is answered.
    pub(crate) fn exchange(&mut self, what: Move) {
        let sequence = self.publish(what);
        self.until("an action", |this| (!this.due.contains_key(&sequence)).then_some(()));
    }

    /// Waits until nothing is due and all slots are back; then all of them can be had once.
    pub(crate) fn finish(&mut self) {
        self.until("the end of all that was due", |this| {
            // What a worker failed on in the eyes of a sidecar that is dead waits for a restarted worker, by design.
            let failed: Vec<u64> =
                this.due.iter().filter(|(_, what)| **what == Move::Fail).map(|(s, _)| *s).collect();
            failed.into_iter().for_each(|sequence| this.settle(sequence));
            this.due.is_empty().then_some(())
        });
        assert_eq!(self.owner.unanswered(), 0);
        let slots = self.owner.geometry().observation_slots;
        self.until("all slots", |this| (this.owner.free_slots() == slots).then_some(()));
        self.spoil_free_slots();
        let claimed: Vec<_> = core::iter::from_fn(|| self.owner.claim_slot()).collect();
        let numbers: BTreeSet<u32> = claimed.iter().map(|slot| slot.number()).collect();
        assert_eq!((claimed.len(), numbers.len()), (slots as usize, slots as usize));
        claimed.into_iter().for_each(|slot| self.owner.unclaim(slot));
    }

    /// Dies without a word, and is started again.
    pub(crate) fn restart(self, path: &Path, geometry: &Geometry) -> Self {
        let Self { owner, listener, connections, answered, joined, told, .. } = self;
        drop((owner, listener, connections));
        Self { answered, joined, ..Self::start(path, geometry, 1, told) }
    }

    /// Ends in order.
    pub(crate) fn close(self) {
        let Self { owner, listener, connections, .. } = self;
        owner.close();
        drop((listener, connections));
    }
}

fn is_readable(fd: &impl std::os::fd::AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .is_ok_and(|count| count > 0)
}
