//! The frame loop's I/O over a ring of its own: one submit-and-wait a turn.
//!
//! No tokio-uring here: its runtime parks in epoll around the ring, and a read that is dropped there lets the
//! kernel write into a slot that was given away. An operation of ours ends with its completion and not before;
//! `close` waits for it.
//!
//! What spares system calls:
//! - A send whose success nobody waits for is tried once, within the submission, and only a failure makes a completion
//!   (`Send::quiet`). So the turn that submits it can wait for the next thing at once.
//! - A spinning turn leaves the next receive in the queue for a while: the action that is likely to follow takes it
//!   along.

use core::net::SocketAddr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::event::PollFlags;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};

use super::{
    Calls, Close, Completion, Completions, DOORBELLS, Doorbells, Driver, Expect, SocketOptions, Taken, Tell,
    Wait, socket,
};

/// Operations in flight: connect poll, receive, send, doorbells, and cancels of the first three.
const ENTRIES: u32 = 16;

/// Spinning turns that a receive waits for company in the queue: some microseconds, more than a worker takes that does
/// not think.
const LONELY_TURNS: u32 = 256;

const CONNECT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const CANCEL: u64 = 3;
/// The first of the doorbells; they are the last of these numbers.
const DOORBELL: u64 = 4;

const POLLIN: u32 = PollFlags::IN.bits() as u32;
const POLLOUT: u32 = PollFlags::OUT.bits() as u32;

#[derive(Debug)]
struct Send {
    from: *const u8,
    length: usize,
    /// It does not block, and makes a completion only if it fails or is short: once it has been submitted and none is
    /// there, everything was taken.
    quiet: bool,
}

#[derive(Debug)]
struct Connection {
    socket: OwnedFd,
    connecting: bool,
    receiving: bool,
    send: Option<Send>,
}

impl Connection {
    fn fd(&self) -> Fd {
        Fd(self.socket.as_raw_fd())
    }

    fn is_active(&self, operation: u64) -> bool {
        match operation {
            CONNECT => self.connecting,
            RECEIVE => self.receiving,
            _ => self.send.is_some(),
        }
    }

    fn in_flight(&self) -> bool {
        [CONNECT, RECEIVE, SEND].into_iter().any(|operation| self.is_active(operation))
    }
}

/// See the module.
pub struct Uring {
    ring: IoUring,
    doorbells: [Fd; DOORBELLS],
    armed: [bool; DOORBELLS],
    rung: bool,
    connection: Option<Connection>,
    /// The kernel can keep successes to itself (5.17).
    skips: bool,
    /// Spinning turns since the receive in the queue was put there; `None` when there is more than it, or nothing.
    lonely: Option<u32>,
    calls: Calls,
}

impl core::fmt::Debug for Uring {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Uring").field("connection", &self.connection).finish_non_exhaustive()
    }
}

/// How the ring is set up: when completions are run that came while this thread was doing something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum RingMode {
    /// `Cooperative`, or `Plain` where the kernel lacks that.
    #[default]
    Auto,
    /// At once, by an interrupt.
    Plain,
    /// When this thread enters the kernel for whatever reason (5.19); a flag tells a spinning loop when that pays.
    Cooperative,
    /// When this thread asks for completions (6.1), with the same flag.
    Deferred,
}

impl RingMode {
    fn build(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        match self {
            Self::Auto => {
                return match Self::Cooperative.build() {
                    Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => Self::Plain.build(),
                    result => result,
                };
            }
            Self::Plain => {}
            Self::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Self::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
            }
        }
        builder.build(ENTRIES)
    }
}

impl Uring {
    /// Makes a ring that also listens to `doorbells`, which must outlive it. It belongs to the calling thread.
    ///
    /// # Errors
    /// io_uring is missing, forbidden, or older than Linux 5.15 (a wait with a timeout, multishot poll), or the kernel
    /// lacks `mode`.
    pub fn new(doorbells: Doorbells<'_>, mode: RingMode) -> io::Result<Self> {
        let ring = mode.build()?;
        if !ring.params().is_feature_ext_arg() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring has no timed wait",
            ));
        }
        let skips = ring.params().is_feature_skip_cqe_on_success();
        Ok(Self {
            ring,
            doorbells: doorbells.map(|doorbell| Fd(doorbell.as_raw_fd())),
            armed: [false; DOORBELLS],
            rung: false,
            connection: None,
            skips,
            lonely: None,
            calls: Calls::default(),
        })
    }

    fn push(&mut self, entry: squeue::Entry) {
        self.lonely = None;
        // SAFETY: entries are built in this module; what they point to stays valid until their completion
        // (contract of `Driver::receive` and `Driver::send`; polls and cancels point to nothing).
        unsafe { self.ring.submission().push(&entry) }
            .expect("at most six operations and three cancels are in flight, and the queue holds 16");
    }

    fn arm_doorbells(&mut self) {
        for (index, number) in (DOORBELL..).enumerate().take(DOORBELLS) {
            if !core::mem::replace(&mut self.armed[index], true) {
                // Multishot polls are edge-triggered: the eventfd is never read, each write is one edge.
                let poll = opcode::PollAdd::new(self.doorbells[index], POLLIN).multi(true);
                self.push(poll.build().user_data(number));
            }
        }
    }

    fn push_send(&mut self) {
        let Some(connection) = &self.connection else { return };
        let Some(send) = &connection.send else { return };
        // MSG_WAITALL lets the kernel (5.19) go on after a short send by itself; older ones report it and we do.
        // It also makes a short quiet send a failure, which is told.
        let mut flags = SendFlags::NOSIGNAL.bits() | RecvFlags::WAITALL.bits();
        let mut skip = squeue::Flags::empty();
        if send.quiet {
            flags |= SendFlags::DONTWAIT.bits();
            skip = squeue::Flags::SKIP_SUCCESS;
        }
        let length = u32::try_from(send.length).unwrap_or(u32::MAX);
        let send = opcode::Send::new(connection.fd(), send.from, length).flags(flags.cast_signed());
        self.push(send.build().user_data(SEND).flags(skip));
    }

    /// After a submission, with all completions taken: a quiet send that is still there went through.
    fn settle_quiet_send(&mut self) -> Option<Completion> {
        if !self.ring.submission().is_empty() {
            return None;
        }
        let connection = self.connection.as_mut()?;
        connection.send.take_if(|send| send.quiet).map(|_| Completion::Sent(Ok(Taken::Submitted)))
    }

    /// Whether a turn that does not wait has anything to say to the kernel.
    fn has_to_enter(&mut self) -> bool {
        let queue = self.ring.submission();
        let (empty, taskrun) = (queue.is_empty(), queue.taskrun());
        drop(queue);
        if taskrun || empty {
            return taskrun;
        }
        match &mut self.lonely {
            Some(turns) if *turns < LONELY_TURNS => {
                *turns += 1;
                false
            }
            _ => true,
        }
    }

    fn take_completions(&mut self, completions: &mut Completions) {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            self.take(&entry, completions);
        }
        if core::mem::take(&mut self.rung) {
            completions.push(Completion::Doorbell);
        }
    }

    fn take(&mut self, entry: &cqueue::Entry, completions: &mut Completions) {
        match entry.user_data() {
            number @ DOORBELL.. => {
                if let Some(armed) = self.armed.get_mut((number - DOORBELL) as usize) {
                    *armed = cqueue::more(entry.flags());
                    self.rung = true;
                }
            }
            CONNECT => {
                let Some(connection) = &mut self.connection else { return };
                connection.connecting = false;
                completions.push(Completion::Connected(connection.finish_connect()));
            }
            RECEIVE => {
                let Some(connection) = &mut self.connection else { return };
                connection.receiving = false;
                completions.push(Completion::Received(result(entry)));
            }
            SEND => self.take_send(entry, completions),
            _ => {}
        }
    }

    fn take_send(&mut self, entry: &cqueue::Entry, completions: &mut Completions) {
        let Some(connection) = &mut self.connection else { return };
        let Some(send) = &mut connection.send else { return };
        // What is left of it may have to wait for room.
        send.quiet = false;
        let outcome = match result(entry) {
            Ok(sent) => {
                send.from = send.from.wrapping_add(sent);
                send.length = send.length.saturating_sub(sent);
                if send.length > 0 {
                    return self.push_send();
                }
                Ok(())
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock) => {
                return self.push_send();
            }
            Err(error) => Err(error),
        };
        connection.send = None;
        completions.push(Completion::Sent(outcome.map(|()| Taken::Now)));
    }

    fn wait(&mut self, wait: Wait) -> io::Result<()> {
        self.lonely = None;
        self.calls.made += 1;
        let submitter = self.ring.submitter();
        let result = match wait {
            Wait::Poll => submitter.submit(),
            Wait::Block(None) => submitter.submit_and_wait(1),
            Wait::Block(Some(timeout)) => {
                let timespec = Timespec::from(timeout);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timespec))
            }
        };
        match result {
            Ok(_) => Ok(()),
            // The wait's own timeout, a signal, and a full completion queue are all reasons to look.
            Err(error)
                if matches!(Errno::from_io_error(&error), Some(Errno::TIME | Errno::INTR | Errno::BUSY)) =>
            {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

impl Connection {
    fn finish_connect(&self) -> io::Result<()> {
        socket::connected(&self.socket)?;
        // On a non-blocking socket the ring would report EAGAIN instead of waiting.
        let flags = rustix::fs::fcntl_getfl(&self.socket)?;
        rustix::fs::fcntl_setfl(&self.socket, flags - OFlags::NONBLOCK)?;
        Ok(())
    }
}

fn result(entry: &cqueue::Entry) -> io::Result<usize> {
    usize::try_from(entry.result()).map_err(|_| io::Error::from_raw_os_error(-entry.result()))
}

impl Driver for Uring {
    fn name(&self) -> &'static str {
        "uring"
    }

    fn connect(&mut self, address: SocketAddr, options: SocketOptions) -> io::Result<()> {
        self.close(Close::Abort);
        let (socket, _) = socket::start(address, options)?;
        let fd = Fd(socket.as_raw_fd());
        self.connection = Some(Connection { socket, connecting: true, receiving: false, send: None });
        self.push(opcode::PollAdd::new(fd, POLLOUT).build().user_data(CONNECT));
        Ok(())
    }

    unsafe fn receive(&mut self, into: *mut u8, length: usize, expect: Expect) {
        let connection = self.connection.as_mut().expect("the caller has a connection");
        assert!(!connection.receiving, "one receive at a time");
        connection.receiving = true;
        let fd = connection.fd();
        let flags = if expect == Expect::Remainder { RecvFlags::WAITALL.bits().cast_signed() } else { 0 };
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let lonely = expect == Expect::Silence && self.ring.submission().is_empty();
        self.push(opcode::Recv::new(fd, into, length).flags(flags).build().user_data(RECEIVE));
        self.lonely = lonely.then_some(0);
    }

    unsafe fn send(&mut self, from: *const u8, length: usize, tell: Tell) {
        let connection = self.connection.as_mut().expect("the caller has a connection");
        assert!(connection.send.is_none(), "one send at a time");
        let quiet = self.skips && tell == Tell::AtTurnEnd;
        connection.send = Some(Send { from, length, quiet });
        self.push_send();
    }

    fn is_receiving(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.receiving)
    }

    fn is_sending(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.send.is_some())
    }

    fn take_calls(&mut self) -> Calls {
        core::mem::take(&mut self.calls)
    }

    fn turn(&mut self, wait: Wait, completions: &mut Completions) -> io::Result<()> {
        let before = completions.len();
        self.arm_doorbells();
        self.take_completions(completions);
        let wait = if completions.len() > before { Wait::Poll } else { wait };
        if wait != Wait::Poll || self.has_to_enter() {
            self.wait(wait)?;
        }
        self.take_completions(completions);
        completions.extend(self.settle_quiet_send());
        Ok(())
    }

    fn close(&mut self, how: Close) {
        // Each operation in flight is cancelled and answers with a completion; only then is its memory ours again.
        for operation in [CONNECT, RECEIVE, SEND] {
            if self.connection.as_ref().is_some_and(|connection| connection.is_active(operation)) {
                self.push(opcode::AsyncCancel::new(operation).build().user_data(CANCEL));
            }
        }
        let connecting = self.connection.as_ref().is_some_and(|connection| connection.connecting);
        let mut ended = Completions::new();
        while self.connection.as_ref().is_some_and(Connection::in_flight) {
            if self.wait(Wait::Block(None)).is_err() {
                // The ring itself is broken. The regions handed out live as long as the process.
                break;
            }
            let Some(entry) = self.ring.completion().next() else { continue };
            if entry.user_data() == SEND
                && let Some(connection) = &mut self.connection
            {
                // Without this a cancelled short send would be taken up again.
                connection.send = None;
            }
            self.take(&entry, &mut ended);
            if self.ring.completion().is_empty() {
                self.settle_quiet_send();
            }
        }
        if let Some(connection) = self.connection.take()
            && how == Close::Orderly
            && !connecting
        {
            socket::linger(connection.socket.as_fd());
        }
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.close(Close::Abort);
    }
}
