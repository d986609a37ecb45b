//! One model for several sidecars: a worker on each region, waited for together by one thread.
//!
//! What comes is given out in the order in which it arrived on this machine; records of a region (warm-up, sessions)
//! come before its observations, as in its ring. The wait is one system call over all regions: futex_waitv, or poll
//! over the descriptors where the kernel has no such call or the caller has a poll loop.
//!
//! It refuses to balance: a region whose observations are older is always served first.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::time::Timespec;
use sidecar_core::time::Instant;

use super::wait::Woken;
use super::{AttachError, AttachOptions, Event, RETRY, SLICE, Worker, WorkerError};
use crate::spin::Spin;
use crate::{clock, futex};

/// See the module's text. Members are numbered in the order of their paths.
#[derive(Debug)]
pub struct Workers {
    members: Vec<Member>,
    spin: Spin,
    /// The kernel has no call to sleep on several words.
    by_descriptor: bool,
    /// Over the members' descriptors, once asked for.
    poll: Option<OwnedFd>,
}

#[derive(Debug)]
struct Member {
    worker: Worker,
    /// Taken from its ring, not given out yet.
    pending: Option<Event>,
    /// It failed or ended: it is not looked at any more.
    over: bool,
}

/// Why one member can't go on; the others can.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct MemberError {
    /// Whose error.
    pub member: usize,
    /// What.
    #[source]
    pub error: WorkerError,
}

impl Workers {
    /// Attaches to the sidecars of all `paths`, one after the other.
    ///
    /// # Errors
    /// As [`Worker::attach`], for the first one that fails.
    ///
    /// # Panics
    /// If there is no path.
    pub fn attach<P: AsRef<Path>>(paths: &[P], options: &AttachOptions) -> Result<Self, AttachError> {
        paths
            .iter()
            .map(|path| Worker::attach(path.as_ref(), options))
            .collect::<Result<_, _>>()
            .map(Self::new)
    }

    /// Of workers that are attached already, numbered as given.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(workers: Vec<Worker>) -> Self {
        assert!(!workers.is_empty(), "no worker");
        let member = |worker| Member { worker, pending: None, over: false };
        let members = workers.into_iter().map(member).collect();
        Self { members, spin: Spin::new(), by_descriptor: false, poll: None }
    }

    /// The next thing to do and whose it is. `None`: nothing came within the timeout, or a signal interrupted the
    /// wait. No timeout waits for ever; one of zero only looks.
    ///
    /// # Errors
    /// A member can't go on, and is not looked at any more. After the last one's end it is
    /// [`WorkerError::Ended`] for ever.
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Option<(usize, Event)>, MemberError> {
        if let [member] = self.members.as_mut_slice()
            && !member.over
        {
            return match member.worker.next(timeout) {
                Ok(Event::Timeout) => Ok(None),
                Ok(event) => Ok(Some((0, event))),
                Err(error) => Err(self.retire(0, error)),
            };
        }
        // A wait that would end after the end of time has no end.
        let deadline = timeout.map(|timeout| clock::now() + timeout);
        loop {
            self.each(|worker| {
                worker.disarm();
                worker.poll_event().transpose().or_else(|| worker.check_owner().transpose()).transpose()
            })?;
            if let Some(found) = self.oldest() {
                return Ok(Some(found));
            }
            if self.members.iter().all(|member| member.over) {
                return Err(MemberError { member: self.members.len() - 1, error: WorkerError::Ended });
            }
            if deadline.is_some_and(|deadline| clock::now() >= deadline) {
                self.each(Worker::idle)?;
                return Ok(self.oldest());
            }
            match self.wait(deadline)? {
                Woken::Look => {}
                Woken::Signal => return Ok(None),
                Woken::Idle => self.each(|worker| {
                    let lost = worker.orphan.is_none() && worker.attachment.is_disconnected();
                    if lost { worker.lose_owner().map(Some) } else { Ok(None) }
                })?,
            }
        }
    }

    /// A member's worker.
    ///
    /// # Panics
    /// If there is no such member.
    pub fn member(&mut self, member: usize) -> &mut Worker {
        &mut self.members[member].worker
    }

    /// How many members there are, those that ended included.
    pub const fn len(&self) -> usize {
        self.members.len()
    }

    /// Never: there is at least one.
    pub const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// As [`Worker::fd`], for all members.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.poll.is_none() {
            let all = epoll::create(CreateFlags::CLOEXEC)?;
            for member in self.members.iter_mut().filter(|member| !member.over) {
                epoll::add(&all, member.worker.fd()?, EventData::new_u64(0), EventFlags::IN)?;
            }
            self.poll = Some(all);
        }
        self.poll.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Asks each member that has nothing pending for an event.
    fn each(
        &mut self,
        mut ask: impl FnMut(&mut Worker) -> Result<Option<Event>, WorkerError>,
    ) -> Result<(), MemberError> {
        for at in 0..self.members.len() {
            let Member { worker, pending, over } = &mut self.members[at];
            if !*over && pending.is_none() {
                match ask(worker) {
                    Ok(event) => *pending = event,
                    Err(error) => return Err(self.retire(at, error)),
                }
            }
        }
        Ok(())
    }

    /// The pending event that is due first: what is not an observation, then by arrival.
    fn oldest(&mut self) -> Option<(usize, Event)> {
        let arrival = |member: &Member| {
            member.pending.as_ref().map(|event| match event {
                Event::Observation(observation) => observation.last_byte(),
                _ => Instant::from_nanos(0),
            })
        };
        let due = (0..self.members.len())
            .filter_map(|at| arrival(&self.members[at]).map(|arrived| (arrived, at)))
            .min()
            .map(|(_, at)| at)?;
        self.members[due].pending.take().map(|event| (due, event))
    }

    fn retire(&mut self, member: usize, error: WorkerError) -> MemberError {
        let retired = &mut self.members[member];
        retired.over = true;
        if let Some(poll) = &self.poll
            && let Ok(fd) = retired.worker.fd()
        {
            // Its connection has ended and would stay readable for ever.
            let _ = epoll::delete(poll, fd);
        }
        MemberError { member, error }
    }

    fn wait(&mut self, deadline: Option<Instant>) -> Result<Woken, MemberError> {
        if self.by_descriptor
            || self.members.len() > futex::MOST_WORDS
            || self.living().any(|w| w.poll.is_some())
        {
            self.each(|worker| Ok(worker.poll_fd().map(|_| None)?))?;
            self.by_descriptor = true;
        }
        let Self { members, spin, .. } = self;
        let has_something = |member: &Member| !member.over && member.worker.attachment.has_something();
        if spin.wait(|| members.iter().any(has_something)) {
            return Ok(Woken::Look);
        }
        let started = clock::now();
        let most = if self.living().any(|worker| worker.orphan.is_some()) { RETRY } else { SLICE };
        let slice = deadline.map_or(most, |deadline| deadline.since(started).min(most));
        let woken = self.sleep(slice);
        for worker in self.living() {
            worker.attachment.events().cancel();
        }
        self.spin.slept(clock::now().since(started));
        // What the system refuses concerns all members alike; the first one is as good as any to tell it.
        woken.map_err(|error| MemberError { member: 0, error: error.into() })
    }

    /// Announces the sleeper everywhere, looks once more, and sleeps.
    fn sleep(&mut self, slice: Duration) -> io::Result<Woken> {
        let words: Vec<_> = self
            .living()
            .map(|worker| (worker.attachment.sequence_word(), worker.attachment.events().prepare()))
            .collect();
        // A new owner or the loss of a seat is posted as well.
        let come = self.living().any(|worker| {
            let attachment = &worker.attachment;
            attachment.has_something()
                || attachment.is_detached()
                || (worker.orphan.is_none() && attachment.has_new_owner())
        });
        if come {
            return Ok(Woken::Look);
        }
        if self.by_descriptor {
            return self.sleep_by_descriptor(slice);
        }
        match futex::wait_any(&words, slice) {
            Ok(futex::Woken::TimedOut) => Ok(Woken::Idle),
            Ok(futex::Woken::Interrupted) => Ok(Woken::Signal),
            Ok(futex::Woken::Rung | futex::Woken::Changed) => Ok(Woken::Look),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                self.by_descriptor = true;
                Ok(Woken::Look)
            }
            Err(error) => Err(error),
        }
    }

    fn sleep_by_descriptor(&self, slice: Duration) -> io::Result<Woken> {
        let mut fds: Vec<_> = self
            .living()
            .filter_map(Worker::poll_descriptor)
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // A slice always fits.
        let slice = Timespec::try_from(slice).ok();
        let woken = match rustix::event::poll(&mut fds, slice.as_ref()) {
            Ok(count) => count > 0,
            Err(Errno::INTR) => return Ok(Woken::Signal),
            Err(error) => return Err(error.into()),
        };
        let mut ended = false;
        for worker in self.living() {
            worker.clear_poll();
            // The end of a connection makes its descriptor readable too, and is looked for when idle.
            ended |= worker.orphan.is_none() && worker.attachment.is_disconnected();
        }
        Ok(if woken && !ended { Woken::Look } else { Woken::Idle })
    }

    fn living(&self) -> impl Iterator<Item = &Worker> {
        self.members.iter().filter(|member| !member.over).map(|member| &member.worker)
    }
}

#[cfg(test)]
mod tests;
