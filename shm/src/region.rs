//! Getting hold of a region: create one, take over a dead owner's, or say why neither can be.
//!
//! A region is never reinitialised in place, since attached processes would fault or read nonsense. It is built under
//! a temporary name and renamed to the user's path when complete. Owning it means holding an open-file-description
//! lock on it, which ends with the process, however it ends; a pid says nothing here and is only shown to people.
//!
//! What lies under the path decides:
//!
//! | found | done |
//! |---|---|
//! | nothing | a new region; if another sidecar was faster, look again |
//! | a symbolic link, another kind of file, another user's file, a file without our magic | refused |
//! | a region whose lock is held | refused, with the owner's pid and start time |
//! | a region of a newer layout | refused |
//! | a dead owner's region, whole, same layout and geometry | taken over as it is |
//! | any other dead region | replaced by rename under its lock; what its journal and slots still tell is carried over |
//!
//! Its session goes on only for the same job and endpoint, within [`RESUME_WITHIN`] of the last byte seen, in the same
//! boot: later the gateway has given the session up (tunnel contract A.6), and only a fresh agent id is of use.

mod build;
mod found;

use core::time::Duration;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecar_core::agent::{Resume, ResumeAction};
use sidecar_core::time::Instant;
use sidecar_core::tunnel::AgentId;

use crate::cells::MappedCells;
use crate::journal::{Journal, LastAction, Main, Past};
use crate::layout::{Geometry, GeometryError, SEATS, control};
use crate::map::Map;
use crate::owner::doorbell::Doorbells;
use crate::owner::{Owner, Parts};
use crate::ring::published_up_to;
use crate::slots::{KeptSlot, Ledger, SessionKept};
use crate::sync::Ordering;
use crate::sys;
use build::Built;
pub(crate) use found::Header;
use found::{Dead, Existing};

/// A session is given up this long after the last byte seen: 45 s until the gateway notices a silent loss, and the
/// 30 s that it then keeps the session (tunnel contract A.6).
pub const RESUME_WITHIN: Duration = Duration::from_secs(75);

/// Longest path of a region: the socket beside it, with `.sock` added, has to fit the 108 bytes of `sockaddr_un`.
pub const MAX_PATH: usize = 107 - ".sock".len();

/// How often a path is looked at again because somebody changed it meanwhile.
const ATTEMPTS: u32 = 16;

/// A child that a dying owner was just starting has its lock until it runs its program: a lock is looked at so often...
const LOCK_LOOKS: u32 = 50;
/// ... with this pause, before its owner counts as alive.
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// ... and this often if its process has ended or is about to.
const ENDING_LOOKS: u32 = 500;

/// For whom the region is.
#[derive(Clone, Debug)]
pub struct Identity {
    /// SHA-256 over job and endpoint, or any other hash of them: equal means the same job.
    pub job_endpoint_hash: [u8; 32],
    /// Agent id to use if there is no session to go on with.
    pub agent: AgentId,
}

/// A region of ours.
#[derive(Debug)]
pub struct Opened {
    /// The sidecar's side of it.
    pub owner: Owner,
    /// What lay under the path.
    pub found: Found,
    /// Where its pages come from.
    pub pages: Pages,
    /// What the agent goes on with, for `Agent::resume`, whatever was found. Even if no session goes on, epochs and
    /// sequences do, as long as the file does: a worker that lived through it may still answer an observation of
    /// before, and must not be taken to mean a later one.
    pub resume: Resume,
    /// The action that `resume` says was sent last.
    pub last_action: Option<LastAction>,
    /// The agent id to dial with: the one taken over, or that of the [`Identity`].
    pub agent: AgentId,
    /// Worth one line of log: why a session or a file was not gone on with.
    pub note: Option<String>,
}

/// Where the pages of a region come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// They were allocated for it now.
    Made,
    /// They are those of the file that was there, and lie where they lay.
    Kept,
}

/// What lay under the path of the region.
#[derive(Debug)]
pub enum Found {
    /// Nothing.
    Fresh,
    /// A dead sidecar's session, which goes on.
    TakenOver {
        /// Observations that wait for an answer, oldest first.
        kept: Vec<KeptSlot>,
        /// Since the last byte came from the gateway.
        age: Duration,
    },
    /// A dead sidecar's region; nothing of its session goes on, though its worker may.
    Replaced {
        /// Why not.
        why: String,
    },
}

/// Why there is no region. Each message ends with what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum CreateError {
    /// A living sidecar has it.
    #[error(
        "{} is in use by the sidecar with pid {pid}, which started {} s after boot; stop that one, or choose another --shm",
        path.display(), since.as_nanos() / 1_000_000_000
    )]
    InUse {
        /// The region.
        path: PathBuf,
        /// As the owner saw it itself; 0 if its journal can't be read.
        pid: u32,
        /// When it became the owner.
        since: Instant,
    },
    /// The file system is full.
    #[error(
        "{} needs {needed} bytes, {free} are free there; enlarge it (docker: --shm-size), or lower --slots or --slot-bytes",
        path.display()
    )]
    NoSpace {
        /// The region.
        path: PathBuf,
        /// Its size.
        needed: u64,
        /// What the file system has.
        free: u64,
    },
    /// The file is another user's.
    #[error("{} belongs to uid {uid}; choose another --shm, or have its owner remove it", path.display())]
    NotOurs {
        /// The region.
        path: PathBuf,
        /// Its owner.
        uid: u32,
    },
    /// A later version of this program made it.
    #[error(
        "{} has layout {theirs}, this sidecar knows {ours}; use the newer sidecar, or remove the file", path.display()
    )]
    NewerLayout {
        /// The region.
        path: PathBuf,
        /// Version in its header.
        theirs: u32,
        /// [`crate::layout::VERSION`].
        ours: u32,
    },
    /// Something else lies under the path.
    #[error("{} is {what} and no region of a sidecar; remove it, or choose another --shm", path.display())]
    NotARegion {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The socket beside it could not be bound.
    #[error("{} has {length} bytes, at most {most} work for a socket beside it; choose a shorter --shm", path.display())]
    PathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length.
        length: usize,
        /// [`MAX_PATH`].
        most: usize,
    },
    /// The path has no file name, or a number is out of its range.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The operating system refused.
    #[error("{what} {}: {source}; check that the directory exists and can be written", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// With which file.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Others keep changing what lies under the path.
    #[error("{} kept changing while it was looked at; is another sidecar starting on it? try again", path.display())]
    Contended {
        /// The path.
        path: PathBuf,
    },
}

impl CreateError {
    fn io(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { what, path, source }
    }
}

/// Creates the region under `path`, or takes over what a dead sidecar left there; see the module's text.
///
/// # Errors
/// See [`CreateError`]. Nothing is left behind, and nothing that was there is changed.
pub fn create(
    path: &Path,
    geometry: &Geometry,
    identity: &Identity,
    now: Instant,
) -> Result<Opened, CreateError> {
    geometry.check()?;
    let length = path.as_os_str().len();
    if length > MAX_PATH {
        return Err(CreateError::PathTooLong { path: path.to_owned(), length, most: MAX_PATH });
    }
    if path.file_name().is_none() {
        return Err(CreateError::NotARegion { path: path.to_owned(), what: "a directory" });
    }
    // Before there is anything to leave behind.
    let doorbells = Doorbells::new().map_err(CreateError::io("making doorbells for", path))?;
    build::sweep(path);
    let mut looks = 0;
    for _ in 0..ATTEMPTS {
        let found = loop {
            match found::look(path) {
                Err(CreateError::InUse { pid, .. })
                    if looks < LOCK_LOOKS
                        || (looks < ENDING_LOOKS && pid != 0 && sys::is_ending(pid).unwrap_or(true)) =>
                {
                    looks += 1;
                    std::thread::sleep(LOCK_PAUSE);
                }
                found => break found?,
            }
        };
        let opened = match found {
            Existing::Nothing => fresh(path, geometry, identity, &doorbells, now)?,
            Existing::Changed => None,
            Existing::Dead(dead) => match dead.usable(geometry) {
                Ok(past) => Some(take_over(path, dead, &past, identity, &doorbells, now)?),
                Err(why) => replace(path, dead, &why, geometry, identity, &doorbells, now)?,
            },
        };
        if let Some(opened) = opened {
            return Ok(opened);
        }
    }
    Err(CreateError::Contended { path: path.to_owned() })
}

/// Removes the region's name, if it still means this region.
pub(crate) fn remove(parts: &Parts) {
    use std::os::unix::fs::MetadataExt;
    // The lock is held: whoever would replace the file waits for it.
    let ours = parts.shared.metadata().is_ok_and(|info| {
        build::identity_at(&parts.path).is_ok_and(|identity| identity == (info.dev(), info.ino()))
    });
    if ours {
        crate::crash::step();
        let _ = std::fs::remove_file(&parts.path);
        crate::crash::step();
    }
}

/// `None`: somebody else was faster.
fn fresh(
    path: &Path,
    geometry: &Geometry,
    identity: &Identity,
    doorbells: &Doorbells,
    now: Instant,
) -> Result<Option<Opened>, CreateError> {
    let built = Built::new(path, geometry)?;
    let main = main_of(identity, identity.agent.clone(), now, 1);
    let journal = Journal::write(Arc::clone(&built.map), main);
    let ledger = Ledger::new(geometry.observation_slots);
    let Some(parts) = built.publish_new(path)? else { return Ok(None) };
    let owner = Owner::new(parts, journal, ledger, [None; SEATS], doorbells.clone());
    let (agent, resume) = (identity.agent.clone(), Resume::default());
    Ok(Some(Opened {
        owner,
        found: Found::Fresh,
        pages: Pages::Made,
        resume,
        last_action: None,
        agent,
        note: None,
    }))
}

/// Goes on in the file that is there. Its worker stays attached, whatever becomes of the session.
fn take_over(
    path: &Path,
    dead: Dead,
    past: &Past,
    identity: &Identity,
    doorbells: &Doorbells,
    now: Instant,
) -> Result<Opened, CreateError> {
    let parts: Parts = dead.into_parts(path)?;
    let geometry = parts.layout.geometry();
    let session = resumable(past, identity, now);
    let kept = if session.is_ok() { SessionKept::Yes } else { SessionKept::No };
    let map = Arc::clone(&parts.map);
    let mut journal = go_on(&map, past, identity, now, kept);
    let tails = core::array::from_fn(|seat| published_up_to(&MappedCells::down(&map, &parts.layout, seat)));
    let ledger = Ledger::resume(geometry.observation_slots, past, kept, tails, &mut journal);
    if kept == SessionKept::No {
        // Every session up to here is over, and a worker that is at one of its observations can see it.
        map.word32(control::EPOCH).store(past.main.epoch.0, Ordering::Release);
    }
    let seats = past.seats.map(Some);
    let agent = journal.main().agent.clone();
    let held = ledger.kept();
    let owner = Owner::new(parts, journal, ledger, seats, doorbells.clone());
    let (found, resume, last_action) = match session {
        Ok((resume, age)) => (Found::TakenOver { kept: held, age }, resume, past.unacknowledged().cloned()),
        Err(why) => {
            let resume =
                Resume { epoch: past.main.epoch, next_sequence: past.next_sequence, ..Resume::default() };
            (Found::Replaced { why }, resume, None)
        }
    };
    Ok(Opened { owner, found, pages: Pages::Kept, resume, last_action, agent, note: None })
}

/// Puts the new owner's main record over the last one's.
fn go_on(map: &Arc<Map>, past: &Past, identity: &Identity, now: Instant, kept: SessionKept) -> Journal {
    let agent = match kept {
        SessionKept::Yes => &past.main.agent,
        SessionKept::No => &identity.agent,
    };
    let mut main = main_of(identity, agent.clone(), now, past.main.owner_generation.wrapping_add(1));
    match kept {
        SessionKept::Yes => inherit(&mut main, &past.main),
        SessionKept::No => {
            main.epoch = past.main.epoch;
            // First: who dies in between must not leave an old byte to a new agent id.
            Journal::forget_last_byte(map);
        }
    }
    let mut journal = Journal::write(Arc::clone(map), main);
    // The last one may have died before it had counted what it recorded.
    journal.next_sequence(past.next_sequence);
    journal
}

/// Builds a new file and renames it over the dead one, whose lock is held meanwhile. Observations that wait for an
/// answer are copied over where they can still be read and fit. `None`: the path has changed.
fn replace(
    path: &Path,
    dead: Dead,
    why: &str,
    geometry: &Geometry,
    identity: &Identity,
    doorbells: &Doorbells,
    now: Instant,
) -> Result<Option<Opened>, CreateError> {
    let built = Built::new(path, geometry)?;
    let past = dead.past().ok();
    let session = match &past {
        None => Err(why.to_owned()),
        Some(past) => resumable(past, identity, now),
    };
    let mut ledger = Ledger::new(geometry.observation_slots);
    let (journal, agent) = match (&session, &past) {
        (Ok(_), Some(past)) => {
            let agent = past.main.agent.clone();
            let mut main = main_of(identity, agent.clone(), now, 1);
            inherit(&mut main, &past.main);
            let mut journal = Journal::write(Arc::clone(&built.map), main);
            journal.go_on_from(past);
            dead.copy_unanswered(past, &built, &mut ledger, &mut journal);
            (journal, agent)
        }
        _ => {
            let main = main_of(identity, identity.agent.clone(), now, 1);
            (Journal::write(Arc::clone(&built.map), main), identity.agent.clone())
        }
    };
    let kept = ledger.kept();
    let Some(parts) = built.publish_over(path, &dead)? else { return Ok(None) };
    let owner = Owner::new(parts, journal, ledger, [None; SEATS], doorbells.clone());
    let anew = || Some(format!("the region was made anew: {why}"));
    let (found, resume, last_action, note) = match session {
        Ok((resume, age)) => {
            let last_action = past.as_ref().and_then(Past::unacknowledged).cloned();
            (Found::TakenOver { kept, age }, resume, last_action, anew())
        }
        Err(gone) => {
            let note = if gone == why { None } else { anew() };
            // No worker of the last file ever gets to this one.
            (Found::Replaced { why: gone }, Resume::default(), None, note)
        }
    };
    Ok(Some(Opened { owner, found, pages: Pages::Made, resume, last_action, agent, note }))
}

/// What the agent can go on with, and since when nothing came; or why it can't.
fn resumable(past: &Past, identity: &Identity, now: Instant) -> Result<(Resume, Duration), String> {
    let main = &past.main;
    if main.job_endpoint_hash != identity.job_endpoint_hash {
        return Err("it was used for another job or endpoint".into());
    }
    if main.boot != sys::boot_id() {
        return Err("it is from before the last boot".into());
    }
    let Some(last_byte) = past.last_byte else {
        return Err("its sidecar had not reached the gateway".into());
    };
    let age = now.since(last_byte);
    if age > RESUME_WITHIN {
        return Err(format!(
            "the gateway was last heard {} s ago, it keeps a session for {} s",
            age.as_secs(),
            RESUME_WITHIN.as_secs()
        ));
    }
    let resume = Resume {
        connected_once: main.connected,
        last_byte: Some(last_byte),
        warmup_seen: main.warmup_seen,
        ready_sent: main.ready_sent,
        ready_heard: main.ready_heard,
        drain_seen: main.drain_seen,
        session: main.session.clone(),
        closed: main.closed.clone(),
        epoch: main.epoch,
        next_sequence: past.next_sequence,
        last_action: past.unacknowledged().map(|last| ResumeAction {
            sequence: last.sequence,
            resent: last.resent,
            longest_wait: last.longest_wait,
        }),
    };
    Ok((resume, age))
}

fn main_of(identity: &Identity, agent: AgentId, now: Instant, owner_generation: u32) -> Main {
    Main {
        job_endpoint_hash: identity.job_endpoint_hash,
        boot: sys::boot_id(),
        agent,
        connected: false,
        warmup_seen: false,
        ready_sent: false,
        ready_heard: false,
        drain_seen: false,
        session: None,
        closed: None,
        epoch: sidecar_core::tunnel::Epoch(0),
        owner_pid: std::process::id(),
        owner_since: now,
        owner_generation,
    }
}

fn inherit(main: &mut Main, past: &Main) {
    main.connected = past.connected;
    main.warmup_seen = past.warmup_seen;
    main.ready_sent = past.ready_sent;
    main.ready_heard = past.ready_heard;
    main.drain_seen = past.drain_seen;
    main.session.clone_from(&past.session);
    main.closed.clone_from(&past.closed);
    main.epoch = past.epoch;
}

#[cfg(test)]
mod tests;
