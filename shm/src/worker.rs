//! The worker's side of the region, for the process that has the model. Blocking, one thread at a time.
//!
//! ```no_run
//! use sidecar_shm::worker::{AttachOptions, Event, Worker};
//!
//! # fn load() {} fn infer(_: &[u8]) -> Vec<u8> { Vec::new() }
//! let mut worker = Worker::attach("/dev/shm/obs0".as_ref(), &AttachOptions::default())?;
//! loop {
//!     match worker.next(None)? {
//!         Event::Warmup => {
//!             load();
//!             worker.ready()?;
//!         }
//!         Event::Observation(observation) => {
//!             let action = infer(observation.payload());
//!             worker.answer(observation, &action)?;
//!         }
//!         Event::Drain => break,
//!         _ => {}
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An [`Observation`] is the slot it lies in: its payload is read where it was received, and dropping it gives the
//! slot back. The process may end at any instruction; what it did not answer is given to its successor.
//!
//! When the sidecar ends, [`Event::SidecarGone`] says so once, and the worker keeps its model: later calls of
//! [`Worker::next`] look for a successor of the sidecar for [`AttachOptions::orphan_grace`], attach to it and go on.
//!
//! The journal and everything else that the sidecar writes is mapped for reading only here; a worker can spoil its own
//! seat and the slots, no more.

mod answering;
mod attachment;
mod many;
mod memory;
mod observation;
mod uplink;
mod wait;

use core::time::Duration;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use sidecar_core::record::{self, ToSidecar, ToWorker};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{Epoch, SessionId, clip};

use crate::attach::{Refusal, SeatClaim};
use crate::clock::{self, Stamps};
use crate::descriptor::Kind;
use crate::device::Announced;
use crate::spin::{Mode, Spin};
pub use answering::Answered;
use attachment::{Attachment, Failed, Renewed};
pub use many::{MemberError, Workers};
pub use memory::SlotMemory;
pub use observation::Observation;
pub use uplink::Reservation;
use uplink::Uplink;
use wait::{Poll, Woken};

/// How to attach, and when to give up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AttachOptions {
    /// How long to wait for a sidecar that is not there yet. Default 30 s: start order does not matter.
    pub timeout: Duration,
    /// How long to look for a new sidecar after the last one ended. Default 90 s.
    pub orphan_grace: Duration,
    /// What to do when the sidecar has ended in order.
    pub after_end: AfterEnd,
    /// How a wait for the sidecar begins. Default [`Mode::Auto`]; a fixed time far above any wait never sleeps, which
    /// wants a core of its own.
    pub spin: Mode,
    /// Whether descriptors of actions are stamped. Default [`Stamps::On`].
    pub stamps: Stamps,
}

/// What a worker does when its sidecar has ended in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AfterEnd {
    /// [`Worker::next`] returns [`WorkerError::Ended`].
    Leave,
    /// Wait for the next sidecar as after a crash, with the model kept warm.
    Stay,
}

impl Default for AttachOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(30),
            orphan_grace: Duration::from_secs(90),
            after_end: AfterEnd::Leave,
            spin: Mode::Auto,
            stamps: Stamps::On,
        }
    }
}

/// Why a worker could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// No sidecar listens there.
    #[error("no sidecar at {} after {} s: {source}; is one running with this --shm?", path.display(), waited.as_secs())]
    NoSidecar {
        /// The region.
        path: PathBuf,
        /// For how long it was tried.
        waited: Duration,
        /// What the system said last.
        source: io::Error,
    },
    /// The sidecar said no.
    #[error("the sidecar at {} refused: {text}", path.display())]
    Refused {
        /// The region.
        path: PathBuf,
        /// Its reason.
        text: String,
        /// Pid of the worker that is attached, if that is the reason; 0 across pid namespaces.
        pid: u32,
        /// See [`AttachError::patience`].
        patience: Duration,
    },
    /// The region is not what the sidecar said, or could not be mapped.
    #[error("the region at {} can't be used: {source}", path.display())]
    Region {
        /// The region.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl AttachError {
    /// For how long trying again may help, from the first try on: [`Worker::attach`] does so if its timeout is longer.
    pub const fn patience(&self) -> Duration {
        match self {
            Self::NoSidecar { .. } => Duration::MAX,
            Self::Refused { patience, .. } => *patience,
            Self::Region { .. } => Duration::ZERO,
        }
    }
}

/// Why a worker can't go on. It has to be restarted, or to end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// The sidecar ended in order; see [`AttachOptions::after_end`].
    #[error("the sidecar has ended")]
    Ended,
    /// The sidecar ended, and none followed.
    #[error("no sidecar came back within {} s", waited.as_secs())]
    Orphaned {
        /// How long was waited.
        waited: Duration,
    },
    /// Another worker has taken the place of this one.
    #[error("another worker, pid {pid}, has taken this one's place")]
    Replaced {
        /// Its pid; 0 across pid namespaces.
        pid: u32,
    },
    /// The sidecar found nonsense in this worker's pages and reads them no more.
    #[error(
        "the sidecar detached this worker because of nonsense in its shared pages; something wrote over them"
    )]
    Detached,
    /// An action does not fit its slot. The sidecar was told that the observation failed.
    #[error(
        "an action of {size} bytes is larger than the slot of {most}; raise the sidecar's --action-bytes"
    )]
    ActionTooLarge {
        /// Its size.
        size: usize,
        /// The slot's.
        most: usize,
    },
    /// All action slots are reserved by the caller.
    #[error("all {slots} action slots are reserved")]
    AllReserved {
        /// How many there are.
        slots: u32,
    },
    /// The sidecar's pages hold nonsense.
    #[error("the region is damaged: {0}")]
    Damaged(String),
    /// The system refused.
    #[error("waiting for the sidecar: {0}")]
    Io(#[from] io::Error),
}

/// What a worker is told.
#[derive(Debug)]
pub enum Event {
    /// Make the model ready, then say [`Worker::ready`] or [`Worker::warmup_failed`].
    Warmup,
    /// A session opened; its observations carry this epoch.
    SessionOpened {
        /// Its id at the gateway.
        session: SessionId,
        /// Its number here.
        epoch: Epoch,
        /// It is the one that was open before; the context for it still holds.
        resumed: bool,
    },
    /// A session is over.
    SessionClosed {
        /// Its number.
        epoch: Epoch,
    },
    /// Answer it.
    Observation(Observation),
    /// No more sessions will come; the sidecar ends soon.
    Drain,
    /// Nothing came within the timeout, or a signal interrupted the wait.
    Timeout,
    /// The sidecar ended. Go on calling [`Worker::next`]: it attaches to the next one.
    SidecarGone,
}

/// An attached worker. See the module's text.
///
/// Dropping it closes it: the sidecar may give its seat to the next worker, also of this process, as soon as the last
/// of its observations and reservations is dropped too.
#[derive(Debug)]
pub struct Worker {
    path: PathBuf,
    options: AttachOptions,
    /// Dropped before the attachment, so that a worker that closes has left before its connection ends.
    uplink: Arc<Mutex<Uplink>>,
    attachment: Attachment,
    spin: Spin,
    /// For poll loops, once asked for.
    poll: Option<Poll>,
    /// The eventcount is armed between two calls, for poll loops.
    armed: bool,
    /// Since when there is no sidecar, and when one was looked for last.
    orphan: Option<Orphan>,
    /// One thread at a time: may be moved to another, not shared.
    _one_thread: core::marker::PhantomData<core::cell::Cell<()>>,
}

#[derive(Clone, Copy, Debug)]
struct Orphan {
    since: Instant,
    tried: Instant,
    /// Since when another worker has been in the seat.
    taken_since: Option<Instant>,
}

/// Pause between two attempts to find a sidecar.
const RETRY: Duration = Duration::from_millis(20);
/// A new sidecar answers within microseconds if it runs; if not, it is asked again later.
const ANSWER_WAIT: Duration = Duration::from_millis(2);
/// The longest wait before the connection and the owner are looked at again.
const SLICE: Duration = Duration::from_millis(100);
/// Another worker may be ending: its sidecar is told so within milliseconds of its end.
const PREDECESSOR_PATIENCE: Duration = Duration::from_secs(2);
/// A sidecar that restarts may take the old connection for another worker's for a moment.
const TAKEN_PATIENCE: Duration = Duration::from_secs(5);

impl Worker {
    /// Attaches to the sidecar that owns the region under `path`, waiting for it to exist as long as the options say.
    ///
    /// # Errors
    /// See [`AttachError`]. That another worker is attached is said after two seconds, in which it may end; that seats
    /// are not free yet, or that nobody can tell whether the other one is ending, only after the timeout.
    pub fn attach(path: &Path, options: &AttachOptions) -> Result<Self, AttachError> {
        let started = clock::now();
        let attachment = loop {
            let failed = match Attachment::new(path) {
                Ok(attachment) => break attachment,
                Err(failed) => failed,
            };
            let waited = clock::now().since(started);
            let error = failed.into_error(path, waited);
            if waited >= error.patience().min(options.timeout) {
                return Err(error);
            }
            std::thread::sleep(RETRY.min(options.timeout.saturating_sub(waited)));
        };
        let uplink = Arc::new(Mutex::new(Uplink::new(&attachment, options.stamps)));
        Ok(Self {
            path: path.to_owned(),
            options: *options,
            uplink,
            attachment,
            // The sidecar is the other one that may spin.
            spin: Spin::measure(options.spin, 2),
            poll: None,
            armed: false,
            orphan: None,
            _one_thread: core::marker::PhantomData,
        })
    }

    /// The next thing to do. `None` waits for ever; a timeout of zero only looks.
    ///
    /// # Errors
    /// See [`WorkerError`]; all of them are final except those of [`Worker::answer`].
    pub fn next(&mut self, timeout: Option<Duration>) -> Result<Event, WorkerError> {
        self.disarm();
        // What is there already costs no look at the clock.
        if let Some(event) = self.poll_event()? {
            return Ok(event);
        }
        // A wait that would end after the end of time has no end.
        let deadline = timeout.map(|timeout| clock::now() + timeout);
        loop {
            if let Some(event) = self.check_owner()? {
                return Ok(event);
            }
            if let Some(deadline) = deadline
                && clock::now() >= deadline
            {
                return Ok(self.idle()?.unwrap_or(Event::Timeout));
            }
            match self.wait(deadline)? {
                Woken::Look => {}
                Woken::Signal => return Ok(Event::Timeout),
                Woken::Idle if self.orphan.is_none() && self.attachment.is_disconnected() => {
                    return self.lose_owner();
                }
                Woken::Idle => {}
            }
            if let Some(event) = self.poll_event()? {
                return Ok(event);
            }
        }
    }

    /// The model is warm.
    ///
    /// # Errors
    /// If the sidecar does not read and then does not come back.
    pub fn ready(&mut self) -> Result<(), WorkerError> {
        self.say(&ToSidecar::Ready)
    }

    /// The model could not be made ready; the sidecar ends with this message.
    ///
    /// # Errors
    /// As [`Worker::ready`].
    pub fn warmup_failed(&mut self, message: &str) -> Result<(), WorkerError> {
        self.say(&ToSidecar::WarmupFailed { message: clip(message) })
    }

    /// No action comes for this observation; the sidecar's failure policy decides.
    ///
    /// # Errors
    /// As [`Worker::ready`].
    pub fn failed(&mut self, observation: &Observation, message: &str) -> Result<(), WorkerError> {
        if !observation.is_of(&self.attachment) {
            return Ok(());
        }
        self.say(&ToSidecar::Failed { sequence: observation.sequence(), message: clip(message) })
    }

    /// Answers an observation, and gives its slot back. If its session has ended meanwhile the sidecar drops the
    /// action.
    ///
    /// # Errors
    /// [`WorkerError::ActionTooLarge`]; otherwise as [`Worker::ready`].
    pub fn answer(&mut self, observation: Observation, action: &[u8]) -> Result<(), WorkerError> {
        let most = self.action_bytes();
        if action.len() > most {
            let error = WorkerError::ActionTooLarge { size: action.len(), most };
            self.failed(&observation, &error.to_string())?;
            return Err(error);
        }
        let mut reservation = self.reserve(action.len())?;
        reservation.as_mut_slice().copy_from_slice(action);
        self.answer_reserved(observation, reservation, action.len())
    }

    /// A slot to write an action of at most `length` bytes into, for [`Worker::answer_reserved`]. Waits for one.
    ///
    /// # Errors
    /// [`WorkerError::ActionTooLarge`], [`WorkerError::AllReserved`]; otherwise as [`Worker::ready`].
    pub fn reserve(&mut self, length: usize) -> Result<Reservation, WorkerError> {
        let most = self.action_bytes();
        if length > most {
            return Err(WorkerError::ActionTooLarge { size: length, most });
        }
        loop {
            match Uplink::reserve(&self.uplink, length) {
                uplink::Reserved::Slot(reservation) => return Ok(reservation),
                uplink::Reserved::Never { slots } => return Err(WorkerError::AllReserved { slots }),
                uplink::Reserved::Later => self.wait_for_room()?,
            }
        }
    }

    /// Answers an observation with the first `length` bytes of a reservation, and gives its slot back.
    ///
    /// # Errors
    /// As [`Worker::ready`].
    ///
    /// # Panics
    /// If `length` is more than was reserved.
    pub fn answer_reserved(
        &mut self,
        observation: Observation,
        reservation: Reservation,
        length: usize,
    ) -> Result<(), WorkerError> {
        assert!(length <= reservation.len(), "{length} bytes of a reservation of {}", reservation.len());
        if !observation.is_of(&self.attachment) || !reservation.is_of(&self.attachment) {
            // The region of its session is gone, and the session with it.
            return Ok(());
        }
        let mut action = uplink::Action::new(observation, reservation, length);
        loop {
            match self.lock().publish(action) {
                Ok(()) => return Ok(()),
                Err(again) => action = again,
            }
            self.wait_for_room()?;
        }
    }

    /// Waits until there may be room for what [`Observation::try_answer`] and its like found none for, a tenth of a
    /// second at most. Events that come meanwhile stay where they are.
    ///
    /// # Errors
    /// As [`Worker::ready`].
    pub fn wait_a_little_for_room(&mut self) -> Result<(), WorkerError> {
        self.wait_for_room()
    }

    /// A descriptor for poll loops, the same for the life of the worker: it becomes readable when [`Worker::next`]
    /// has something, or the sidecar ended. Call `next` with a timeout of zero until it says [`Event::Timeout`],
    /// then poll.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn fd(&mut self) -> io::Result<BorrowedFd<'_>> {
        self.poll_fd()
    }

    /// Largest action in bytes.
    pub const fn action_bytes(&self) -> usize {
        self.attachment.geometry().action_bytes as usize
    }

    /// Start and length of the memory that holds all observation slots, for page-locking. It stays the same until
    /// [`Worker::seat_claim`] changes.
    pub fn observation_memory(&self) -> (*mut u8, usize) {
        let memory = self.attachment.slot_memory();
        (memory.start(), memory.len())
    }

    /// The same memory, mapped for as long as what this returns lives.
    pub fn slot_memory(&self) -> SlotMemory {
        self.attachment.slot_memory()
    }

    /// The memory that holds all action slots of this worker's seat. It stays the same as long as
    /// that of the observation slots.
    pub fn action_memory(&self) -> SlotMemory {
        self.attachment.action_memory()
    }

    /// Number of the ring on a device that observations lie in, too; 0 for none. Another one means that the last one
    /// is of no use any more. Costs a load.
    pub fn device_ring_number(&self) -> u64 {
        self.attachment.device_ring_number()
    }

    /// That ring. `None`: there is none, or it is just being replaced.
    pub fn device_ring(&self) -> Option<Announced> {
        self.attachment.device_ring()
    }

    /// Id of the region; another one means that the sidecar made it anew and it is mapped elsewhere.
    pub const fn region_id(&self) -> u64 {
        self.attachment.region_id()
    }

    /// Whether a sidecar is there.
    pub const fn is_attached(&self) -> bool {
        self.orphan.is_none()
    }

    /// Dies as by SIGKILL: nothing more is said by this worker or by what came from it.
    #[cfg(feature = "simulation")]
    pub fn vanish(self) {
        self.lock().fall_silent();
    }

    /// Whether [`Worker::answer`] and its like find room at once.
    #[cfg(feature = "simulation")]
    pub fn has_room(&self) -> bool {
        self.lock().has_room()
    }

    /// The seat that this worker says it has when it comes back.
    pub const fn seat_claim(&self) -> SeatClaim {
        self.attachment.claim()
    }

    fn poll_event(&mut self) -> Result<Option<Event>, WorkerError> {
        if !self.attachment.has_something() {
            return Ok(None);
        }
        let mut bytes = [0; record::MAX_RECORD];
        let popped =
            self.attachment.pop(&mut bytes).map_err(|poison| WorkerError::Damaged(poison.to_string()))?;
        let Some((descriptor, length)) = popped else { return Ok(None) };
        match descriptor.kind {
            Kind::Observation => {
                let (record, taken) = (&bytes[..length], self.options.stamps.now());
                let observation =
                    Observation::new(&self.attachment, &self.uplink, &descriptor, record, taken)?;
                Ok(Some(Event::Observation(observation)))
            }
            Kind::Record => {
                let record: ToWorker = record::decode(&bytes[..length])
                    .map_err(|error| WorkerError::Damaged(format!("a record that is none: {error}")))?;
                Ok(Some(match record {
                    ToWorker::Warmup => Event::Warmup,
                    ToWorker::SessionOpened { session, epoch, resumed } => {
                        Event::SessionOpened { session, epoch, resumed }
                    }
                    ToWorker::SessionClosed { epoch } => Event::SessionClosed { epoch },
                    ToWorker::Drain => Event::Drain,
                }))
            }
            Kind::Action => Err(WorkerError::Damaged("an action came down the ring".into())),
        }
    }

    /// Looks whether the sidecar is still the one that was attached to; looks for the next one if not.
    fn check_owner(&mut self) -> Result<Option<Event>, WorkerError> {
        if self.attachment.is_detached() {
            return Err(WorkerError::Detached);
        }
        if self.orphan.is_none() && !self.attachment.has_new_owner() {
            return Ok(None);
        }
        if self.orphan.is_some() && self.options.after_end == AfterEnd::Leave && self.attachment.has_ended() {
            // The end of its connection was seen just before it said so.
            return Err(WorkerError::Ended);
        }
        let now = clock::now();
        if self.orphan.is_none() {
            // A sidecar took over before the end of the last one was seen.
            self.orphan = Some(Orphan { since: now, tried: Instant::from_nanos(0), taken_since: None });
        }
        self.look_for_owner(now)
    }

    /// The connection ended.
    fn lose_owner(&mut self) -> Result<Event, WorkerError> {
        if self.attachment.has_ended() && self.options.after_end == AfterEnd::Leave {
            return Err(WorkerError::Ended);
        }
        self.unwatch_connection()?;
        let now = clock::now();
        self.orphan = Some(Orphan { since: now, tried: Instant::from_nanos(0), taken_since: None });
        Ok(Event::SidecarGone)
    }

    fn look_for_owner(&mut self, now: Instant) -> Result<Option<Event>, WorkerError> {
        let Some(mut orphan) = self.orphan else { return Ok(None) };
        if now.since(orphan.tried) < RETRY {
            return Ok(None);
        }
        orphan.tried = now;
        match self.attachment.renew(&self.path, ANSWER_WAIT) {
            Ok(Renewed::NotYet) => return Ok(None),
            Ok(renewed) => {
                self.orphan = None;
                if renewed == Renewed::Anew {
                    self.lock().move_to(&self.attachment);
                } else {
                    self.lock().doorbell(self.attachment.doorbell()?);
                }
                self.watch_for_poll()?;
                return Ok(None);
            }
            Err(Failed::Refused { why: Refusal::Taken, pid, .. }) => {
                let since = *orphan.taken_since.get_or_insert(now);
                if now.since(since) > TAKEN_PATIENCE {
                    return Err(WorkerError::Replaced { pid });
                }
            }
            Err(_) => orphan.taken_since = None,
        }
        let waited = now.since(orphan.since);
        if waited > self.options.orphan_grace {
            return Err(WorkerError::Orphaned { waited });
        }
        self.orphan = Some(orphan);
        Ok(None)
    }

    fn say(&mut self, record: &ToSidecar) -> Result<(), WorkerError> {
        while !self.lock().say(record) {
            self.wait_for_room()?;
        }
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Uplink> {
        // What the lock guards is consistent after each of its operations, also one that panicked.
        self.uplink.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
