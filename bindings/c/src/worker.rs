//! The worker's handle: one model for the sidecars of one or several regions, waited for together.

use core::ffi::c_char;
use core::mem::size_of;
use core::ptr;
use core::time::Duration;
use std::ffi::OsStr;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use sidecar_c_agent::border::{Border, Kind, Marked, Place, Versioned};
use sidecar_c_agent::event::write_text;
use sidecar_c_agent::fence::{Checked, fence};
use sidecar_c_agent::status::{ENDED, ERR_SYSTEM, ERR_VALUE, NOTHING, OK};
use sidecar_cuda::pinned::Pinned;
use sidecar_shm::worker::{AfterEnd, AttachOptions, Event, Worker as ShmWorker, WorkerError, Workers};

use crate::failure::{Failure, Why, number};
use crate::handle::{OnHeap, Pool, give, take};
use crate::observation::{self, Observation};

/// For `sidecar_worker_options.flags`: when a sidecar has ended in order, wait for the next one as after a crash.
pub const WORKER_STAY: u32 = 1;
/// For `sidecar_worker_options.flags`: page-lock the observation slots for the GPU that is device 0 in this process, as
/// it is under a sidecar. What keeps them from it is no error: see `sidecar_worker_get_pin_failure`.
pub const WORKER_PIN: u32 = 2;

/// Make the model ready, then say `sidecar_worker_ready` or `sidecar_worker_warmup_failed`.
pub const WORKER_EVENT_WARMUP: u32 = 1;
/// `session` is open; its observations carry `epoch`. `FLAG_RESUMED`: it had been open, and its context still holds.
pub const WORKER_EVENT_SESSION_OPENED: u32 = 2;
/// The session of `epoch` is over.
pub const WORKER_EVENT_SESSION_CLOSED: u32 = 3;
/// Answer `observation`, which is yours from here on.
pub const WORKER_EVENT_OBSERVATION: u32 = 4;
/// No more sessions will come; the sidecar ends soon.
pub const WORKER_EVENT_DRAIN: u32 = 5;
/// The sidecar is gone. Go on waiting: the next one is attached to.
pub const WORKER_EVENT_SIDECAR_GONE: u32 = 6;
/// The sidecar has ended in order; nothing more comes from this region.
pub const WORKER_EVENT_ENDED: u32 = 7;

/// For `sidecar_worker_info.flags`: a sidecar is there.
pub const INFO_ATTACHED: u32 = 1;
/// For `sidecar_worker_info.flags`: the observation slots are page-locked.
pub const INFO_PINNED: u32 = 2;

/// For the timeout of `sidecar_worker_next`: wait for ever.
pub const FOREVER: i64 = -1;

/// More regions than this are no deployment.
const MOST_MEMBERS: usize = 1024;

/// How to attach, and when to give up. 0 is the default everywhere.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkerOptions {
    /// `sizeof(struct sidecar_worker_options)`.
    pub struct_size: u32,
    /// Sum of `sidecar_WORKER_STAY` and `sidecar_WORKER_PIN`, or 0.
    pub flags: u32,
    /// How long to wait for a sidecar that is not there yet; default 30 s. 1 does not wait.
    pub timeout_ns: u64,
    /// How long to look for a new sidecar after the last one died; default 90 s.
    pub orphan_grace_ns: u64,
}

/// What a worker is told.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkerEvent {
    /// `sizeof(struct sidecar_worker_event)`, to be set before the call.
    pub struct_size: u32,
    /// `sidecar_WORKER_EVENT_...`; a caller ignores those that it does not know.
    pub kind: u32,
    /// Number of the region that it came from, in the order in which they were given.
    pub member: u32,
    /// `sidecar_FLAG_RESUMED`, or 0.
    pub flags: u32,
    /// Number of the session on this machine.
    pub epoch: u32,
    /// Bytes of `session`.
    pub session_len: u32,
    /// With `WORKER_EVENT_OBSERVATION`: yours, until it is answered or released. Otherwise NULL.
    pub observation: *mut Marked<Observation>,
    /// The session's id at the gateway, ended by NUL (it may also hold some).
    pub session: [c_char; 264],
}

/// What a worker may want to know about a region.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct WorkerInfo {
    /// `sizeof(struct sidecar_worker_info)`, to be set before the call.
    pub struct_size: u32,
    /// Sum of `sidecar_INFO_...`.
    pub flags: u32,
    /// How many regions the worker has.
    pub members: u32,
    /// 0.
    pub reserved: u32,
    /// Largest action in bytes.
    pub action_bytes: u64,
    /// Id of the region; another one means that it was made anew and is mapped elsewhere.
    pub region_id: u64,
    /// The memory that holds all observation slots, for page-locking.
    pub memory: *mut u8,
    /// Bytes of `memory`.
    pub memory_len: usize,
}

const _: () = assert!(size_of::<WorkerOptions>() == 24);
const _: () = assert!(size_of::<WorkerEvent>() == 296);
const _: () = assert!(size_of::<WorkerInfo>() == 48);

// SAFETY: repr(C), the size first, without padding (asserted above), plain fields only.
unsafe impl Versioned for WorkerOptions {
    const FIRST: usize = 24;
}
// SAFETY: as above (24 + 8 + 264).
unsafe impl Versioned for WorkerEvent {
    const FIRST: usize = 296;
}
// SAFETY: as above.
unsafe impl Versioned for WorkerInfo {
    const FIRST: usize = 48;
}

/// An attached worker.
#[derive(Debug)]
pub struct Worker {
    pub(crate) workers: Workers,
    /// One for each member.
    pub(crate) pinned: Vec<Pinned>,
    /// Which members have ended or failed, and been told.
    over: Vec<bool>,
    /// The last thing that did not work.
    failure: Option<Why>,
    /// Tells its observations from those of others.
    pub(crate) token: Arc<()>,
}

impl Kind for Worker {
    const MARK: u64 = u64::from_be_bytes(*b"sdcworkr");
}

impl OnHeap for Worker {
    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<Worker> = Pool::new();
        &POOL
    }
}

impl Worker {
    /// Keeps what did not work, and returns its status.
    pub(crate) fn failed(&mut self, member: usize, error: &WorkerError) -> i32 {
        self.keep(Why::worker(member, error))
    }

    /// The same in words.
    pub(crate) fn keep(&mut self, why: Why) -> i32 {
        let status = why.status();
        self.failure = Some(why);
        status
    }

    /// A member that there is.
    pub(crate) fn member(&mut self, member: u32) -> Checked<(usize, &mut ShmWorker)> {
        let at = member as usize;
        if at < self.workers.len() { Ok((at, self.workers.member(at))) } else { Err(ERR_VALUE) }
    }

    /// What comes next, and from whom; no event: that member has ended in order.
    fn next(&mut self, timeout: Option<Duration>) -> Checked<Option<(usize, Option<Event>)>> {
        let came = self.workers.next(timeout);
        for (member, pinned) in self.pinned.iter_mut().enumerate() {
            pinned.follow(self.workers.member(member));
        }
        match came {
            Ok(told) => Ok(told.map(|(member, event)| (member, Some(event)))),
            Err(error) => {
                let was_over = core::mem::replace(&mut self.over[error.member], true);
                match error.error {
                    WorkerError::Ended if was_over => Err(ENDED),
                    WorkerError::Ended => Ok(Some((error.member, None))),
                    other => Err(self.failed(error.member, &other)),
                }
            }
        }
    }
}

/// Attaches to the sidecar that owns the region at `path` (its `--shm`), waiting for it to exist as long as
/// the options say. `options` may be NULL: the defaults. `why` may be NULL; it is filled when a sidecar was
/// asked and attaching failed. The handle in `worker` is yours until `sidecar_worker_close`. The process's
/// working directory counts if `path` is relative, and it is looked for again when a sidecar dies.
///
/// Errors: `ERR_VALUE`, an empty path or one with a NUL, an unknown flag; `ERR_NO_SIDECAR`, none came in
/// time; `ERR_REFUSED`, another worker is attached (`why->pid`), or the sidecar says another reason in
/// `why->text`; `ERR_REGION`, it can't be mapped.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_attach(
    path: *const c_char,
    path_len: usize,
    options: *const WorkerOptions,
    why: *mut Failure,
    worker: *mut *mut Marked<Worker>,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        let path = border.bytes(path.cast(), path_len)?;
        attach(&border, &[path], options, why, worker)
    })
}

/// Attaches to the sidecars of `count` regions, 1 to 1024, one after the other, for one model that serves
/// them all: the `n`th path has `path_lens[n]` bytes. What comes is given out in the order of its arrival,
/// from one region or another.
///
/// Errors: as `sidecar_worker_attach`, for the first region that fails (`why->member`); the others are let
/// go. `ERR_VALUE` also for a `count` out of its range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_attach_many(
    paths: *const *const c_char,
    path_lens: *const usize,
    count: usize,
    options: *const WorkerOptions,
    why: *mut Failure,
    worker: *mut *mut Marked<Worker>,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        if count == 0 || count > MOST_MEMBERS {
            return Err(ERR_VALUE);
        }
        let (paths, lengths) = (border.list(paths, count)?, border.list(path_lens, count)?);
        let paths = paths.iter().zip(lengths).map(|(path, length)| border.bytes(path.cast(), *length));
        attach(&border, &paths.collect::<Checked<Vec<_>>>()?, options, why, worker)
    })
}

/// Detaches. Observations and reservations that are still held stay valid, and have to be released. What
/// was not answered is left to the next worker. NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_close(own_worker: *mut Marked<Worker>) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    fence(|| {
        if !own_worker.is_null() {
            drop(take(&border, own_worker)?);
        }
        Ok(OK)
    })
}

/// The next thing to do. `NOTHING`: nothing came within the timeout, or a signal interrupted the wait. A
/// `timeout_ns` of `FOREVER` never ends, one of 0 only looks, one above 0 waits for as many nanoseconds.
/// `ENDED`: every region has ended, and nothing will come any more. For a batch, wait for one observation
/// and then call with 0 until it says `NOTHING`.
///
/// Errors concern one region (`sidecar_worker_get_failure` says which), which has no more to give; the
/// others go on: `ERR_ORPHANED`, `ERR_REPLACED`, `ERR_DETACHED`, `ERR_DAMAGED`, `ERR_SYSTEM`. `ERR_VALUE`:
/// another negative timeout.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_next(
    worker: *mut Marked<Worker>,
    timeout_ns: i64,
    event: *mut WorkerEvent,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.place(event)?;
        let timeout = match u64::try_from(timeout_ns) {
            Ok(nanos) => Some(Duration::from_nanos(nanos)),
            Err(_) if timeout_ns == FOREVER => None,
            Err(_) => return Err(ERR_VALUE),
        };
        let Some((member, told)) = worker.next(timeout)? else { return Ok(NOTHING) };
        tell(worker, member, told, out);
        Ok(OK)
    })
}

/// The model is warm, for the sidecar of region `member` (from 0). Waits for room.
///
/// Errors: `ERR_VALUE`, no such member; otherwise those of `sidecar_worker_next`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_ready(worker: *mut Marked<Worker>, member: u32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    say(&border, worker, member, ShmWorker::ready)
}

/// The model could not be made ready; the sidecar of region `member` (from 0) ends with this message, of
/// which it keeps the first 256 bytes. Waits for room.
///
/// Errors: `ERR_TEXT`, not UTF-8; otherwise as `sidecar_worker_ready`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_warmup_failed(
    worker: *mut Marked<Worker>,
    member: u32,
    message: *const c_char,
    message_len: usize,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    match border.text(message, message_len) {
        Ok(message) => say(&border, worker, member, |worker| worker.warmup_failed(message)),
        Err(status) => status,
    }
}

/// A descriptor for poll loops, the same for the life of the worker, which keeps it: do not close it. It
/// becomes readable when `sidecar_worker_next` has something. Call that with a timeout of 0 until it says
/// `NOTHING`, then poll.
///
/// Errors: `ERR_SYSTEM`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_fd(worker: *mut Marked<Worker>, fd: *mut i32) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.out(fd)?;
        match worker.workers.fd().map(|fd| fd.as_raw_fd()) {
            Ok(fd) => {
                out.set(fd);
                Ok(OK)
            }
            Err(error) => {
                worker.failed(0, &WorkerError::Io(error));
                Err(ERR_SYSTEM)
            }
        }
    })
}

/// What there is to know about the region `member` (from 0).
///
/// Errors: `ERR_VALUE`, no such member.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_get_info(
    worker: *mut Marked<Worker>,
    member: u32,
    info: *mut WorkerInfo,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle(worker, |worker| {
        let out = border.place(info)?;
        let members = number(worker.workers.len());
        let pinned = worker.pinned.get(member as usize).is_some_and(Pinned::is_locked);
        let (_, member) = worker.member(member)?;
        let (memory, memory_len) = member.observation_memory();
        out.fill(&WorkerInfo {
            struct_size: size_of::<WorkerInfo>() as u32,
            flags: if member.is_attached() { INFO_ATTACHED } else { 0 }
                | if pinned { INFO_PINNED } else { 0 },
            members,
            reserved: 0,
            action_bytes: member.action_bytes() as u64,
            region_id: member.region_id(),
            memory,
            memory_len,
        });
        Ok(OK)
    })
}

/// Why the last call that failed did so, if it was for something else than its arguments; `NOTHING`: none
/// did.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecar_worker_get_failure(
    worker: *const Marked<Worker>,
    failure: *mut Failure,
) -> i32 {
    // SAFETY: the caller keeps the header's rules for pointers.
    let border = unsafe { Border::new() };
    border.handle_const(worker, |worker| {
        let out = border.place(failure)?;
        let Some(why) = &worker.failure else { return Ok(NOTHING) };
        out.fill(&why.cross());
        Ok(OK)
    })
}

fn attach(
    border: &Border,
    paths: &[&[u8]],
    options: *const WorkerOptions,
    why: *mut Failure,
    worker: *mut *mut Marked<Worker>,
) -> Checked<i32> {
    let out = border.out(worker)?;
    let why = if why.is_null() { None } else { Some(border.place(why)?) };
    let (options, pin) = attach_options(border, options)?;
    if paths.iter().any(|path| path.is_empty() || path.contains(&0)) {
        return Err(ERR_VALUE);
    }
    match attach_all(paths, &options) {
        Ok(workers) => {
            let pinned = workers.iter().map(|worker| Pinned::new(worker, pin)).collect();
            let over = vec![false; workers.len()];
            out.set(give(Worker {
                workers: Workers::new(workers),
                pinned,
                over,
                failure: None,
                token: Arc::new(()),
            }));
            Ok(OK)
        }
        Err(failed) => {
            if let Some(why) = why {
                why.fill(&failed.cross());
            }
            Err(failed.status())
        }
    }
}

fn attach_all(paths: &[&[u8]], options: &AttachOptions) -> Result<Vec<ShmWorker>, Why> {
    let attach = |(member, path): (usize, &&[u8])| {
        let path = Path::new(OsStr::from_bytes(path));
        ShmWorker::attach(path, options).map_err(|error| Why::attach(member, &error))
    };
    paths.iter().enumerate().map(attach).collect()
}

fn attach_options(border: &Border, from: *const WorkerOptions) -> Checked<(AttachOptions, Option<u32>)> {
    let mut options = AttachOptions::default();
    if from.is_null() {
        return Ok((options, None));
    }
    let from = border.read(from)?;
    if from.flags & !(WORKER_STAY | WORKER_PIN) != 0 {
        return Err(ERR_VALUE);
    }
    if from.timeout_ns != 0 {
        options.timeout = Duration::from_nanos(from.timeout_ns);
    }
    if from.orphan_grace_ns != 0 {
        options.orphan_grace = Duration::from_nanos(from.orphan_grace_ns);
    }
    if from.flags & WORKER_STAY != 0 {
        options.after_end = AfterEnd::Stay;
    }
    Ok((options, (from.flags & WORKER_PIN != 0).then_some(0)))
}

fn tell(worker: &Worker, member: usize, told: Option<Event>, out: Place<WorkerEvent>) {
    let mut event = WorkerEvent {
        struct_size: size_of::<WorkerEvent>() as u32,
        kind: 0,
        member: number(member),
        flags: 0,
        epoch: 0,
        session_len: 0,
        observation: ptr::null_mut(),
        session: [0; 264],
    };
    event.kind = match told {
        None => WORKER_EVENT_ENDED,
        Some(Event::Warmup) => WORKER_EVENT_WARMUP,
        Some(Event::SessionOpened { session, epoch, resumed }) => {
            event.session_len = write_text(&mut event.session, session);
            event.epoch = epoch.0;
            event.flags = if resumed { sidecar_c_agent::event::FLAG_RESUMED } else { 0 };
            WORKER_EVENT_SESSION_OPENED
        }
        Some(Event::SessionClosed { epoch }) => {
            event.epoch = epoch.0;
            WORKER_EVENT_SESSION_CLOSED
        }
        Some(Event::Observation(seen)) => {
            event.epoch = seen.epoch().0;
            event.observation = observation::give_out(seen, &worker.pinned[member], member, &worker.token);
            WORKER_EVENT_OBSERVATION
        }
        Some(Event::Drain) => WORKER_EVENT_DRAIN,
        // `Workers::next` says a timeout by having nothing.
        Some(Event::SidecarGone | Event::Timeout) => WORKER_EVENT_SIDECAR_GONE,
    };
    out.fill(&event);
}

/// Says something to one sidecar, waiting for room.
fn say(
    border: &Border,
    worker: *mut Marked<Worker>,
    member: u32,
    what: impl FnOnce(&mut ShmWorker) -> Result<(), WorkerError>,
) -> i32 {
    border.handle(worker, |worker| {
        let (at, member) = worker.member(member)?;
        match what(member) {
            Ok(()) => Ok(OK),
            Err(error) => Err(worker.failed(at, &error)),
        }
    })
}
