//! Workers: the real library in processes that are modelled. They load, think, answer, fail, stop, lose their
//! connection, and die at any instruction; a supervisor starts the next one.

use core::panic::AssertUnwindSafe;
use core::time::Duration;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::panic::catch_unwind;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use sidecar::frame_loop::Command;
use sidecar_shm::attach::Candidate;
use sidecar_shm::owner::{SeatGrant, SeatRefused};
use sidecar_shm::simulation::{self, Attach, Died, Fuse};
use sidecar_shm::worker::{AttachOptions, Event as FromSidecar, Observation, Worker, WorkerError};
use tokio::sync::oneshot;

use crate::oracle::{self, WARMUP};
use crate::plan::{ACTION_BYTES, MILLI, Policy, SECOND};
use crate::world::{Event, World};

/// The answer to a request for a seat.
pub(crate) type Join = oneshot::Receiver<Result<SeatGrant, SeatRefused>>;

/// A worker's process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u32,
    pub(crate) pid: u32,
    pub(crate) started: u64,
    worker: Option<Worker>,
    running: bool,
    stopped_until: u64,
    /// Its pid is still taken.
    pub(crate) in_table: bool,
    /// What it is at: the delivery, `None` for the warm-up's, and when it has the answer.
    current: Option<(Observation, Option<usize>, u64)>,
    /// What came while it waited for room.
    inbox: VecDeque<FromSidecar>,
    /// It waits for room in its ring; when it looks again.
    blocked: bool,
    retry: u64,
    loading: Option<u64>,
    /// It has said ready.
    warm: bool,
    /// When it was told last that its sidecar is gone.
    orphan_since: u64,
    /// How often it has to warm up at most: once for each sidecar that could not know.
    warmups: u32,
    cold_starts: u32,
    /// Deliveries that it has taken.
    seen: Vec<Option<usize>>,
    fuse: Option<u32>,
    /// The delivery that it is just answering, and the stores of workers before.
    answering: Option<(usize, u64)>,
    /// What its next handshake is answered.
    mailbox: Option<Attach>,
    joining: bool,
    /// The sidecar's end of its connection.
    link: Option<(OwnedFd, u8, u32)>,
    /// Seats that the sidecar's control thread watches this process for.
    watched: Vec<(u8, u32)>,
    steps: u64,
}

/// Far above any pid that Linux gives (2^22), so that no system call meets a real process.
const FIRST_PID: u32 = 1 << 30;

impl World {
    pub(crate) fn start_worker(&mut self) {
        if self.ended {
            return;
        }
        let number = self.workers.len() as u32 + 1;
        self.note(|| format!("worker {number} starts"));
        self.workers.push(Process {
            number,
            pid: FIRST_PID + number,
            started: self.now,
            worker: None,
            running: true,
            stopped_until: 0,
            in_table: true,
            current: None,
            inbox: VecDeque::new(),
            blocked: false,
            retry: 0,
            loading: None,
            warm: false,
            orphan_since: 0,
            warmups: 0,
            cold_starts: self.sidecar.cold_starts,
            seen: Vec::new(),
            fuse: None,
            answering: None,
            mailbox: None,
            joining: false,
            link: None,
            watched: Vec::new(),
            steps: 0,
        });
        self.tell_processes();
        let delay = self.random.below(20 * MILLI);
        self.after(delay, Event::Join(number as usize - 1));
    }

    pub(crate) fn tell_processes(&self) {
        let table: Vec<_> =
            self.workers.iter().filter(|it| it.in_table).map(|it| (it.pid, it.started)).collect();
        simulation::set_processes(&table);
    }

    /// A worker asks for a seat, for the first time or again.
    pub(crate) fn join(&mut self, at: usize) {
        let now = self.now;
        let it = &mut self.workers[at];
        if !it.running || it.joining || it.mailbox.is_some() {
            return;
        }
        if it.stopped_until > now {
            let until = it.stopped_until;
            return self.at(until, Event::Join(at));
        }
        // The library looks for a sidecar when it is called, not while a model thinks.
        let thinks = (it.current.is_some() || it.loading.is_some()) && !it.blocked;
        if it.worker.is_some() && (it.link.is_some() || thinks) {
            return;
        }
        // A successor of the sidecar calls for them when it is there.
        let Some(commands) = self.sidecar.commands.as_ref().filter(|_| self.sidecar.alive) else { return };
        let candidate = Candidate {
            pid: it.pid,
            start_time: it.started,
            seat: it.worker.as_ref().map(Worker::seat_claim),
        };
        let (reply, answer) = oneshot::channel();
        if commands.send(Command::Join { candidate, reply }).is_ok() {
            it.joining = true;
            self.joins.push((at, answer));
            self.sidecar.rung = true;
        }
    }

    /// Looks what the frame loop said to those who asked for a seat.
    pub(crate) fn answer_joins(&mut self) {
        let mut index = 0;
        while index < self.joins.len() {
            let said = match self.joins[index].1.try_recv() {
                Ok(said) => Some(said),
                Err(oneshot::error::TryRecvError::Empty) => {
                    index += 1;
                    continue;
                }
                Err(oneshot::error::TryRecvError::Closed) => None,
            };
            let (at, _) = self.joins.swap_remove(index);
            self.workers[at].joining = false;
            match said {
                None => {}
                Some(Ok(grant)) => self.seated(at, grant),
                Some(Err(refused)) => self.turned_away(at, refused),
            }
        }
    }

    fn seated(&mut self, at: usize, grant: SeatGrant) {
        let (seat, generation) = (grant.seat, grant.generation);
        let number = self.workers[at].number;
        self.note(|| {
            format!(
                "worker {number} gets seat {seat}.{generation}{}",
                if grant.resumed { " again" } else { "" }
            )
        });
        if !self.workers[at].running {
            self.tell_end(seat, generation, MILLI);
            self.tell_proof(seat, generation, 2 * MILLI);
            return;
        }
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (theirs, ours) = pair.expect("two descriptors are left");
        let it = &mut self.workers[at];
        it.link = Some((ours, seat, generation));
        it.watched.push((seat, generation));
        let answer = Attach::Granted(grant, theirs);
        if it.worker.is_some() {
            it.mailbox = Some(answer);
        } else {
            simulation::set_attach(Some(answer));
            let options = AttachOptions { timeout: Duration::ZERO, ..AttachOptions::default() };
            match Worker::attach(&self.path, &options) {
                Ok(worker) => it.worker = Some(worker),
                Err(error) => return self.fail(format!("a worker could not attach: {error}")),
            }
        }
        self.step_soon(at);
    }

    fn turned_away(&mut self, at: usize, refused: SeatRefused) {
        let number = self.workers[at].number;
        self.note(|| format!("worker {number} is turned away: {refused}"));
        self.coverage.row("a second worker is refused");
        let it = &mut self.workers[at];
        if it.worker.is_some() {
            it.mailbox = Some(Attach::Refused(refused));
            self.step_soon(at);
            self.after(50 * MILLI, Event::Join(at));
        } else {
            self.after(100 * MILLI, Event::Join(at));
        }
    }

    pub(crate) fn step_soon(&mut self, at: usize) {
        let delay = 1 + self.random.below(200_000);
        self.after(delay, Event::Worker(at));
    }

    /// The sidecar's memory has something for a worker, perhaps.
    pub(crate) fn wake_workers(&mut self) {
        for at in 0..self.workers.len() {
            if self.workers[at].running && self.workers[at].worker.is_some() {
                self.step_soon(at);
            }
        }
    }

    /// A worker's process runs until it has nothing to do.
    pub(crate) fn step_worker(&mut self, at: usize) {
        let now = self.now;
        let it = &mut self.workers[at];
        if !it.running || it.worker.is_none() {
            return;
        }
        if it.stopped_until > now {
            let until = it.stopped_until;
            return self.at(until, Event::Worker(at));
        }
        it.steps += 1;
        simulation::set_attach(it.mailbox.take());
        simulation::set_fuse(it.fuse.map(|left| Fuse { owner: false, left }));
        let pushed = pushes();
        let result = catch_unwind(AssertUnwindSafe(|| self.run_worker(at)));
        let left = simulation::fuse();
        simulation::set_fuse(None);
        self.workers[at].mailbox = simulation::set_attach(None);
        self.workers[at].fuse = left.map(|fuse| fuse.left);
        match result {
            Ok(()) => {}
            Err(payload) if payload.is::<Died>() => {
                let point = payload.downcast_ref::<Died>().map(|died| died.0);
                let number = self.workers[at].number;
                self.note(|| format!("worker {number} dies at {point:?}"));
                // Its action is its first store: it was out if there was one.
                if let Some((delivery, before)) = self.workers[at].answering.take() {
                    self.oracle.deliveries[delivery].answered |= pushes() != before;
                }
                self.worker_dies(at);
            }
            Err(payload) => self.fail(format!("panic in a worker: {}", crate::panic_text(&*payload))),
        }
        if self.workers[at].mailbox.is_some() && self.workers[at].running {
            self.after(20 * MILLI, Event::Worker(at));
        }
        if pushes() != pushed {
            let it = &self.workers[at];
            let attached = it.running && it.link.is_some() && it.mailbox.is_none();
            self.look_at_doorbell(attached);
        }
    }

    fn run_worker(&mut self, at: usize) {
        if !self.finish_handshake(at) {
            return;
        }
        loop {
            let now = self.now;
            if let Some(due) = self.workers[at].loading {
                if due > now || !self.model_is_loaded(at) {
                    return;
                }
                continue;
            }
            if let Some((_, _, due)) = self.workers[at].current {
                if due > now {
                    return;
                }
                if !self.answer(at) {
                    return;
                }
                continue;
            }
            let it = &mut self.workers[at];
            let number = it.number;
            let Some(worker) = it.worker.as_mut() else { return };
            let said = it.inbox.pop_front().map_or_else(|| worker.next(Some(Duration::ZERO)), Ok);
            match said {
                Ok(FromSidecar::Timeout) => return self.look_for_sidecar(at),
                Ok(FromSidecar::Warmup) => {
                    self.note(|| format!("worker {number}: warm-up"));
                    let it = &mut self.workers[at];
                    it.warmups += 1;
                    if it.warm && it.warmups > 1 + self.sidecar.cold_starts - it.cold_starts {
                        let text = format!("promise 4: worker {number}, which is warm, has to warm up again");
                        return self.fail(text);
                    }
                    let due = now + self.plan.load;
                    self.workers[at].loading = Some(due);
                    self.at(due, Event::Worker(at));
                }
                Ok(FromSidecar::SessionOpened { session, epoch, resumed }) => {
                    self.oracle_opened(session.as_str(), epoch.0);
                    self.note(|| {
                        format!("worker {number}: session of epoch {} open, resumed {resumed}", epoch.0)
                    });
                }
                Ok(FromSidecar::SessionClosed { epoch }) => {
                    self.note(|| format!("worker {number}: session of epoch {} closed", epoch.0));
                }
                Ok(FromSidecar::Drain) => self.note(|| format!("worker {number}: drain")),
                Ok(FromSidecar::SidecarGone) => {
                    self.note(|| format!("worker {number}: the sidecar is gone"));
                    self.workers[at].link = None;
                    self.workers[at].orphan_since = now;
                    self.after(MILLI, Event::Join(at));
                    self.after(91 * SECOND, Event::Worker(at));
                }
                Ok(FromSidecar::Observation(observation)) => self.take(at, observation),
                Err(error) => return self.worker_gives_up(at, &error),
            }
        }
    }

    /// Nothing came: an orphan looks again in a while.
    fn look_for_sidecar(&mut self, at: usize) {
        let orphan = self.workers[at].worker.as_ref().is_some_and(|worker| !worker.is_attached());
        if orphan && self.sidecar.alive {
            self.after(20 * MILLI, Event::Join(at));
        }
    }

    fn model_is_loaded(&mut self, at: usize) -> bool {
        let bad = self.plan.bad_model;
        let it = &mut self.workers[at];
        let Some(worker) = it.worker.as_mut() else { return false };
        if !worker.has_room() {
            self.wait_for_room(at);
            return false;
        }
        it.blocked = false;
        let said = if bad { worker.warmup_failed("no such checkpoint") } else { worker.ready() };
        it.loading = None;
        it.warm = !bad;
        let number = it.number;
        self.sidecar.bad_model |= bad;
        self.note(|| format!("worker {number}: {}", if bad { "warm-up failed" } else { "ready" }));
        if let Err(error) = said {
            self.fail(format!("worker {number} can't say that it is ready: {error}"));
        }
        true
    }

    fn take(&mut self, at: usize, observation: Observation) {
        let number = self.workers[at].number;
        let (epoch, sequence) = (observation.epoch().0, observation.sequence());
        let delivery = if observation.payload() == WARMUP {
            self.oracle_rehearses(number, sequence);
            None
        } else {
            let again = observation.redelivered();
            let last_byte = observation.last_byte().as_nanos();
            match self.oracle_taken(number, epoch, sequence, again, last_byte, observation.payload()) {
                None => return,
                delivery => delivery,
            }
        };
        self.workers[at].seen.push(delivery);
        let mut think = 1 + self.random.below(2 * self.plan.think);
        if core::mem::take(&mut self.next_is_late) {
            self.coverage.row("worker answers late");
            think += self.random.within(1..=70) * SECOND;
        }
        let due = self.now + think;
        self.workers[at].current = Some((observation, delivery, due));
        self.at(due, Event::Worker(at));
    }

    /// `false`: not now.
    fn answer(&mut self, at: usize) -> bool {
        let number = self.workers[at].number;
        let has_room = self.workers[at].worker.as_ref().is_some_and(Worker::has_room);
        if !has_room {
            self.coverage.row("worker waits for room");
            self.wait_for_room(at);
            return false;
        }
        self.workers[at].blocked = false;
        let Some((observation, delivery, _)) = self.workers[at].current.take() else { return false };
        if let Some(delivery) = delivery
            && observation.payload().len() >= 12
            && observation.payload() != oracle::observation(delivery, self.oracle.deliveries[delivery].length)
        {
            self.fail(format!(
                "promise 2: the slot of observation {delivery} was written while worker {number} had it"
            ));
        }
        if observation.cancelled() {
            self.coverage.row("worker sees that its session is over");
        }
        // On the warm-up's it would be the end of the job.
        let fails = delivery.is_some() && core::mem::take(&mut self.next_fails);
        let length = 16 + self.random.below(u64::from(ACTION_BYTES) - 15) as usize;
        let action =
            delivery.map_or_else(|| WARMUP.to_vec(), |delivery| oracle::action(delivery, number, length));
        self.oracle.looks_away(delivery);
        if let Some(delivery) = delivery.filter(|_| fails) {
            self.oracle_failed(delivery);
        }
        let it = &mut self.workers[at];
        if let Some(place) = it.seen.iter().position(|seen| *seen == delivery) {
            it.seen.swap_remove(place);
        }
        let Some(worker) = it.worker.as_mut() else { return false };
        it.answering = delivery.filter(|_| !fails).map(|delivery| (delivery, pushes()));
        let said = if fails {
            let said = worker.failed(&observation, "out of memory");
            drop(observation);
            said
        } else {
            worker.answer(observation, &action)
        };
        self.workers[at].answering = None;
        if let Some(delivery) = delivery.filter(|_| !fails) {
            self.oracle.deliveries[delivery].answered = true;
        }
        self.note(|| {
            let what = delivery.map_or_else(|| "the warm-up's".into(), |delivery| delivery.to_string());
            format!("worker {number} {} observation {what}", if fails { "fails on" } else { "answers" })
        });
        if let Err(error) = said {
            self.fail(format!("worker {number} can't answer: {error}"));
        }
        if fails && self.plan.policy == Policy::Hold {
            // `hold` waits for a restarted worker.
            self.worker_dies(at);
        }
        true
    }

    /// A handshake is one call of the library, so nothing else is done until it is through. `false`: it is not.
    fn finish_handshake(&mut self, at: usize) -> bool {
        if self.workers[at].joining {
            return false;
        }
        while simulation::is_attach_waiting() {
            let it = &mut self.workers[at];
            let Some(worker) = it.worker.as_mut() else { return false };
            match worker.next(Some(Duration::ZERO)) {
                Ok(FromSidecar::SidecarGone) => it.link = None,
                Ok(FromSidecar::Timeout) => return !simulation::is_attach_waiting(),
                Ok(other) => it.inbox.push_back(other),
                Err(error) => {
                    self.worker_gives_up(at, &error);
                    return false;
                }
            }
        }
        true
    }

    /// As the library does inside a call that waits for room: it looks again, and for a new sidecar if there is one.
    fn wait_for_room(&mut self, at: usize) {
        let now = self.now;
        let it = &mut self.workers[at];
        it.blocked = true;
        if it.retry <= now {
            it.retry = now + MILLI;
            self.after(MILLI, Event::Worker(at));
        }
        let it = &mut self.workers[at];
        let Some(worker) = it.worker.as_mut() else { return };
        match worker.next(Some(Duration::ZERO)) {
            Ok(FromSidecar::SidecarGone) => it.link = None,
            Ok(FromSidecar::Timeout) => {}
            Ok(other) => it.inbox.push_back(other),
            Err(error) => return self.worker_gives_up(at, &error),
        }
        self.look_for_sidecar(at);
    }

    fn worker_gives_up(&mut self, at: usize, error: &WorkerError) {
        let number = self.workers[at].number;
        self.note(|| format!("worker {number} ends: {error}"));
        match error {
            WorkerError::Ended if self.ended => {}
            WorkerError::Replaced { .. } => self.coverage.row("a worker whose seat was given away ends"),
            WorkerError::Orphaned { .. } if self.now - self.workers[at].orphan_since >= 90 * SECOND => {
                self.coverage.row("an orphan ends after 90 s");
            }
            error => return self.fail(format!("worker {number} ends: {error}")),
        }
        self.worker_dies(at);
    }

    /// The process is over, from one instruction to the next.
    pub(crate) fn worker_dies(&mut self, at: usize) {
        let it = &mut self.workers[at];
        if !core::mem::replace(&mut it.running, false) {
            return;
        }
        let number = it.number;
        if let Some(worker) = it.worker.take() {
            worker.vanish();
        }
        it.current = None;
        it.inbox.clear();
        it.mailbox = None;
        it.fuse = None;
        self.worker_deaths += 1;
        self.oracle.replies_due += 1;
        self.note(|| format!("worker {number} is dead"));
        if let Some((_, seat, generation)) = self.workers[at].link.take() {
            let soon = self.random.below(5 * MILLI);
            self.tell_end(seat, generation, soon);
        }
        // A process with a GPU can take long to die.
        let proof = if self.random.once_in(6) {
            self.random.below(8 * SECOND)
        } else {
            self.random.below(30 * MILLI)
        };
        self.after(proof, Event::Proof(at));
        if self.random.once_in(3) {
            // Somebody starts the next one before this one is quite gone.
            self.after(MILLI, Event::Start);
        } else {
            self.after(proof + 250 * MILLI, Event::Start);
        }
    }

    /// The process is gone for certain.
    pub(crate) fn worker_is_gone(&mut self, at: usize) {
        let it = &mut self.workers[at];
        it.in_table = false;
        for delivery in core::mem::take(&mut it.seen) {
            self.oracle.looks_away(delivery);
        }
        for (seat, generation) in core::mem::take(&mut self.workers[at].watched) {
            self.tell_end(seat, generation, 0);
            self.tell_proof(seat, generation, 1);
        }
        self.tell_processes();
    }

    pub(crate) fn tell_end(&mut self, seat: u8, generation: u32, delay: u64) {
        let incarnation = self.sidecar.incarnation;
        self.after(delay, Event::ConnectionEnded(incarnation, seat, generation));
    }

    pub(crate) fn tell_proof(&mut self, seat: u8, generation: u32, delay: u64) {
        let incarnation = self.sidecar.incarnation;
        self.after(delay, Event::ProvedDead(incarnation, seat, generation));
    }

    /// The sidecar's process is over: its ends of all connections close.
    pub(crate) fn unlink_workers(&mut self) {
        self.joins.clear();
        for at in 0..self.workers.len() {
            let it = &mut self.workers[at];
            it.joining = false;
            it.link = None;
            it.watched.clear();
            it.mailbox = None;
            if it.running && it.worker.is_some() {
                self.step_soon(at);
            }
        }
    }

    /// A successor of the sidecar is there, with seats of workers that it has not heard of.
    pub(crate) fn call_workers(&mut self, orphans: &[(u8, u32, u32)]) {
        for (seat, generation, pid) in orphans.iter().copied() {
            match self.workers.iter_mut().find(|it| it.pid == pid && it.in_table) {
                Some(it) => it.watched.push((seat, generation)),
                None => {
                    self.tell_end(seat, generation, MILLI);
                    self.tell_proof(seat, generation, MILLI);
                }
            }
        }
        for at in 0..self.workers.len() {
            if self.workers[at].running {
                let delay = self.random.below(60 * MILLI);
                self.after(delay, Event::Join(at));
            }
        }
    }

    fn victim(&self) -> Option<usize> {
        self.workers.iter().rposition(|it| it.running && it.worker.is_some() && it.stopped_until <= self.now)
    }

    pub(crate) fn kill_worker(&mut self) -> bool {
        let Some(at) = self.victim() else { return false };
        self.worker_dies(at);
        true
    }

    pub(crate) fn light_worker_fuse(&mut self, left: u32) -> bool {
        let Some(at) = self.victim() else { return false };
        self.workers[at].fuse = Some(left);
        true
    }

    pub(crate) fn stop_worker(&mut self) -> bool {
        let Some(at) = self.victim() else { return false };
        self.workers[at].stopped_until = self.now + self.random.within(10..=20_000) * MILLI;
        self.step_soon(at);
        true
    }

    pub(crate) fn unplug_worker(&mut self) -> bool {
        let Some(at) = self.victim() else { return false };
        let Some((_, seat, generation)) = self.workers[at].link.take() else { return false };
        let soon = self.random.below(5 * MILLI);
        self.tell_end(seat, generation, soon);
        self.step_soon(at);
        true
    }

    /// The process closes its worker, with whatever it was at, and wants another one.
    pub(crate) fn reopen_worker(&mut self) -> bool {
        let Some(at) = self.victim() else { return false };
        if self.workers[at].joining || self.workers[at].mailbox.is_some() {
            return false;
        }
        let view_lives_longer = self.random.once_in(2);
        let it = &mut self.workers[at];
        let view = it.current.take().filter(|_| view_lives_longer);
        drop(it.worker.take());
        drop(view);
        it.inbox.clear();
        it.loading = None;
        it.blocked = false;
        it.warm = false;
        it.warmups = 0;
        it.cold_starts = self.sidecar.cold_starts;
        for delivery in core::mem::take(&mut it.seen) {
            self.oracle.looks_away(delivery);
        }
        // What it gave back without an answer counts as if it had died on it.
        self.worker_deaths += 1;
        self.oracle.replies_due += 1;
        self.look_at_doorbell(false);
        if let Some((_, seat, generation)) = self.workers[at].link.take() {
            let soon = self.random.below(5 * MILLI);
            self.tell_end(seat, generation, soon);
        }
        let again = self.random.below(8 * MILLI);
        self.after(again, Event::Join(at));
        true
    }

    /// After an orderly end each worker that is attached learns of it.
    pub(crate) fn workers_learn_of_the_end(&mut self) {
        for at in 0..self.workers.len() {
            let it = &mut self.workers[at];
            if !it.running || it.worker.is_none() || it.stopped_until > self.now || it.current.is_some() {
                continue;
            }
            it.loading = None;
            self.step_worker(at);
            let it = &self.workers[at];
            if it.running
                && it.current.is_none()
                && it.loading.is_none()
                && it.worker.as_ref().is_some_and(Worker::is_attached)
            {
                self.fail(format!(
                    "worker {} does not learn that the sidecar has ended",
                    self.workers[at].number
                ));
            }
        }
    }
}

/// Stores of workers so far.
fn pushes() -> u64 {
    simulation::passed()[simulation::Point::UpAfter as usize]
}
