//! How a worker waits: it spins as long as that pays, then sleeps on the sidecar's sequence word, or on a descriptor for
//! those who have a poll loop. Every sleep ends after a slice of time, so that a sidecar's end is seen, and a word that
//! was scribbled over does no lasting harm.

use core::time::Duration;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use sidecar_core::time::Instant;

use super::{Event, RETRY, SLICE, Worker, WorkerError};
use crate::owner::doorbell;
use crate::{clock, futex, sys};

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Woken {
    /// Something came, perhaps.
    Look,
    /// Nothing came for as long as was waited.
    Idle,
    /// A signal came: the caller may want to handle it.
    Signal,
}

/// What a poll loop sees: one descriptor over the wake socket, the connection, and a timer that ticks while there is no
/// sidecar, since then nothing else would make the loop look for one.
#[derive(Debug)]
pub(super) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Poll {
    fn new() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let timer = rustix::time::timerfd_create(
            TimerfdClockId::Monotonic,
            TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK,
        )?;
        epoll::add(&epoll, &timer, EventData::new_u64(0), EventFlags::IN)?;
        Ok(Self { epoll, timer })
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)?;
        Ok(())
    }

    fn forget(&self, fd: BorrowedFd<'_>) {
        // It fails only if the descriptor is not watched.
        let _ = epoll::delete(&self.epoll, fd);
    }

    fn tick(&self, every: Duration) -> io::Result<()> {
        let every = Timespec::try_from(every).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let timer = Itimerspec { it_interval: every, it_value: every };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer)?;
        Ok(())
    }
}

impl Worker {
    /// Waits until something may have come, the deadline has passed, or a slice of time.
    pub(super) fn wait(&mut self, deadline: Option<Instant>) -> Result<Woken, WorkerError> {
        let attachment = &self.attachment;
        if self.orphan.is_none() && self.spin.wait(|| attachment.has_something()) {
            return Ok(Woken::Look);
        }
        let started = clock::now();
        let most = if self.orphan.is_some() { RETRY } else { SLICE };
        let slice = deadline.map_or(most, |deadline| deadline.since(started).min(most));
        let ticket = attachment.events().prepare();
        // A new owner or the loss of the seat is posted as well: looked at once more after the announcement.
        let come = attachment.has_something()
            || attachment.is_detached()
            || (self.orphan.is_none() && attachment.has_new_owner());
        let woken = if come { Woken::Look } else { self.sleep(ticket, slice)? };
        self.attachment.events().cancel();
        self.spin.slept(clock::now().since(started));
        Ok(woken)
    }

    /// Waits until the sidecar has made room in the ring and among the action slots.
    pub(super) fn wait_for_room(&mut self) -> Result<(), WorkerError> {
        // The wish, then the announcement with its fence, then the last look. Partner: the owner's `commit`.
        self.attachment.wants_room().make();
        let ticket = self.attachment.events().prepare();
        let room = self.lock().has_room();
        let woken = if room { Ok(Woken::Look) } else { self.sleep(ticket, SLICE) };
        self.attachment.events().cancel();
        self.attachment.wants_room().withdraw();
        if woken? == Woken::Idle {
            if self.orphan.is_none() && self.attachment.is_disconnected() {
                self.lose_owner()?;
            }
            // What was said to the last sidecar is read by the next one; a region made anew has room.
            self.check_owner()?;
        }
        Ok(())
    }

    /// Takes back what [`Worker::idle`] announced.
    pub(super) fn disarm(&mut self) {
        if self.armed {
            self.armed = false;
            self.attachment.events().cancel();
            doorbell::clear(self.attachment.wake());
        }
    }

    /// Nothing came: before the caller polls, the sidecar is asked to write to the wake socket. `Some`: something did come.
    pub(super) fn idle(&mut self) -> Result<Option<Event>, WorkerError> {
        if self.orphan.is_none() && self.attachment.is_disconnected() {
            return self.lose_owner().map(Some);
        }
        let Some(poll) = &self.poll else { return Ok(None) };
        if self.orphan.is_some() {
            doorbell::clear(poll.timer.as_fd());
        }
        self.armed = true;
        self.attachment.events().announce();
        let event = self.poll_event()?;
        if event.is_some() {
            self.disarm();
        }
        Ok(event)
    }

    pub(super) fn poll_fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        if self.poll.is_none() {
            self.poll = Some(Poll::new()?);
            self.watch_for_poll()?;
        }
        match &self.poll {
            Some(poll) => Ok(poll.epoll.as_fd()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// The descriptors to watch have changed: there is a sidecar, or a new one.
    pub(super) fn watch_for_poll(&self) -> io::Result<()> {
        let Some(poll) = &self.poll else { return Ok(()) };
        if self.orphan.is_some() {
            return poll.tick(RETRY);
        }
        poll.tick(Duration::ZERO)?;
        poll.watch(self.attachment.wake())?;
        poll.watch(self.attachment.connection())?;
        self.attachment.wake_by_descriptor();
        Ok(())
    }

    /// The connection has ended: it would stay readable for ever.
    pub(super) fn unwatch_connection(&self) -> io::Result<()> {
        let Some(poll) = &self.poll else { return Ok(()) };
        poll.forget(self.attachment.connection());
        poll.tick(RETRY)
    }

    /// What [`Worker::poll_fd`] made, if it was asked.
    pub(super) fn poll_descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.poll.as_ref().map(|poll| poll.epoll.as_fd())
    }

    /// Takes back what made the descriptor readable, except for an end of the connection.
    pub(super) fn clear_poll(&self) {
        let Some(poll) = &self.poll else { return };
        doorbell::clear(self.attachment.wake());
        doorbell::clear(poll.timer.as_fd());
    }

    fn sleep(&self, ticket: crate::eventcount::Ticket, slice: Duration) -> Result<Woken, WorkerError> {
        match &self.poll {
            Some(poll) => {
                let woken = sys::poll_in(&poll.epoll, slice)?;
                self.clear_poll();
                // The end of the connection makes the descriptor readable too, and is looked for when idle.
                let ended = self.orphan.is_none() && self.attachment.is_disconnected();
                Ok(if woken && !ended { Woken::Look } else { Woken::Idle })
            }
            None => Ok(match futex::wait(self.attachment.sequence_word(), ticket, slice)? {
                futex::Woken::TimedOut => Woken::Idle,
                futex::Woken::Interrupted => Woken::Signal,
                futex::Woken::Rung | futex::Woken::Changed => Woken::Look,
            }),
        }
    }
}
