//! One sidecar per GPU: a lock by the GPU's UUID, for as long as the process lives, however it ends.
//!
//! The lock files lie in `/dev/shm/sidecar-UID`, a directory of this user alone. (`XDG_RUNTIME_DIR` would be the usual
//! place; but of two sidecars of one user, one started by hand and one by a service, only one may have it, and the lock
//! would not meet.) They are `flock`s: the kernel gives them free with the process. The files stay; their text is a pid,
//! for messages only, and for sharers the N that all of them have to say.
//!
//! | file | who has it |
//! |---|---|
//! | `UUID.lock` | alone: the one sidecar. Shared: each of those that share |
//! | `UUID.share-K` | alone: the sharer that has place K of N; N is in its text, too |
//!
//! It says nothing about other users, other containers, or programs that are no sidecar.

use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, flock, fstat, mkdirat, openat};
use rustix::io::Errno;

use crate::discovery::Uuid;

/// A child that a dying sidecar was just starting has its locks until it runs its program: they are looked at so
/// often, with this pause between.
const LOOKS: u32 = 20;
/// ... and this often if who has it has ended or is about to: a process that had a GPU open takes its time.
const ENDING_LOOKS: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);
/// Most sidecars that can share a GPU.
pub const MOST_SHARERS: u32 = 16;

/// How a GPU is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Use {
    /// For one sidecar.
    Alone,
    /// Among up to this many, each of which says the same: `2..=`[`MOST_SHARERS`].
    Shared(u32),
}

/// Why a GPU could not be had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Others have it.
    #[error("the GPU {uuid} is in use by {}", holders(.pids, *.shared))]
    InUse {
        /// Which.
        uuid: String,
        /// Of those that have it, as far as they could be read.
        pids: Vec<u32>,
        /// They share it among each other.
        shared: bool,
    },
    /// Others share it among another number.
    #[error("the GPU {uuid} is shared among {theirs} by the sidecar with pid {pid}, not among {ours}")]
    OtherShare {
        /// Which.
        uuid: String,
        /// Of one of them.
        pid: u32,
        /// Among how many they share it.
        theirs: u32,
        /// Among how many it was to be shared.
        ours: u32,
    },
    /// The directory is not what it has to be: somebody else made it, or let others in.
    #[error("{} is {what}; remove it, or have its owner do so", path.display())]
    Untrusted {
        /// The directory, or a file in it.
        path: PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// With which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

fn holders(pids: &[u32], shared: bool) -> String {
    let pids = pids.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match (pids.is_empty(), shared) {
        (true, _) => "another sidecar, whose pid cannot be read".to_owned(),
        (false, false) => format!("the sidecar with pid {pids}"),
        (false, true) => format!("sidecars that share it, with pid {pids}"),
    }
}

/// A GPU that is ours until this is dropped.
#[derive(Debug)]
pub struct GpuLock {
    _files: Vec<File>,
    place: Option<u32>,
}

/// The directory of this user's locks, under `base`.
fn directory(base: &Path) -> Result<(OwnedFd, PathBuf), LockError> {
    let uid = rustix::process::geteuid();
    let path = base.join(format!("sidecar-{}", uid.as_raw()));
    let failed = |source: Errno| LockError::Io { path: path.clone(), source: source.into() };
    match mkdirat(rustix::fs::CWD, &path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(failed(error)),
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = match openat(rustix::fs::CWD, &path, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(Errno::LOOP | Errno::NOTDIR) => {
            return Err(LockError::Untrusted { path, what: "no directory" });
        }
        Err(error) => return Err(failed(error)),
    };
    // What is looked at is what was opened, not what the name means by now.
    let info = fstat(&opened).map_err(failed)?;
    if info.st_uid != uid.as_raw() {
        return Err(LockError::Untrusted { path, what: "another user's" });
    }
    if info.st_mode & 0o077 != 0 {
        return Err(LockError::Untrusted { path, what: "open to other users" });
    }
    Ok((opened, path))
}

/// A lock file in the directory; `create`: made if it is not there.
fn open(directory: &(OwnedFd, PathBuf), name: &str, create: OFlags) -> Result<File, LockError> {
    let path = directory.1.join(name);
    let flags = create | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let opened = match openat(&directory.0, name, flags, Mode::RUSR | Mode::WUSR) {
        Ok(opened) => opened,
        Err(Errno::LOOP) => return Err(LockError::Untrusted { path, what: "a symbolic link" }),
        Err(error) => return Err(LockError::Io { path, source: error.into() }),
    };
    let info = fstat(&opened).map_err(|error| LockError::Io { path: path.clone(), source: error.into() })?;
    if FileType::from_raw_mode(info.st_mode) != FileType::RegularFile {
        return Err(LockError::Untrusted { path, what: "no regular file" });
    }
    Ok(File::from(opened))
}

/// Whether the lock could be had. The lock's file may not be the one under its name any more (somebody tidied up):
/// then it is none.
fn take(
    directory: &(OwnedFd, PathBuf),
    name: &str,
    operation: FlockOperation,
) -> Result<Option<File>, LockError> {
    let failed = |source: io::Error| LockError::Io { path: directory.1.join(name), source };
    let file = open(directory, name, OFlags::CREATE)?;
    match flock(&file, operation) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(failed(error.into())),
    }
    let ours = fstat(&file).map_err(|error| failed(error.into()))?;
    let named = rustix::fs::statat(&directory.0, name, AtFlags::SYMLINK_NOFOLLOW);
    if !named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)) {
        return Ok(None);
    }
    Ok(Some(file))
}

/// Pid, and among how many it shares.
fn write_holder(
    directory: &(OwnedFd, PathBuf),
    name: &str,
    file: &mut File,
    among: Option<u32>,
) -> Result<(), LockError> {
    let among = among.map(|among| format!(" {among}")).unwrap_or_default();
    let written = (|| {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}{among}", std::process::id())
    })();
    written.map_err(|source| LockError::Io { path: directory.1.join(name), source })
}

/// Who has a lock.
#[derive(Clone, Copy)]
struct Holder {
    pid: u32,
    /// Among how many it shares.
    among: Option<u32>,
}

/// What a lock file says, if the file is locked by somebody.
fn holder(directory: &(OwnedFd, PathBuf), name: &str) -> Option<Holder> {
    let mut file = open(directory, name, OFlags::empty()).ok()?;
    if flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return None;
    }
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let mut words = text.split_whitespace();
    let pid = words.next()?.parse().ok()?;
    Some(Holder { pid, among: words.next().and_then(|among| among.parse().ok()) })
}

/// Those that share it.
fn sharers(directory: &(OwnedFd, PathBuf), uuid: &Uuid) -> Vec<Holder> {
    (0..MOST_SHARERS).filter_map(|place| holder(directory, &place_name(uuid, place))).collect()
}

/// Whether they share it, and who has it.
fn holders_of(directory: &(OwnedFd, PathBuf), uuid: &Uuid) -> (bool, Vec<Holder>) {
    let sharers = sharers(directory, uuid);
    if sharers.is_empty() {
        (false, holder(directory, &lock_name(uuid)).into_iter().collect())
    } else {
        (true, sharers)
    }
}

impl GpuLock {
    /// Takes the GPU.
    ///
    /// # Errors
    /// See [`LockError`].
    ///
    /// # Panics
    /// If it is to be shared among fewer than 2 or more than [`MOST_SHARERS`].
    pub fn take(uuid: &Uuid, how: Use) -> Result<Self, LockError> {
        Self::take_in(Path::new("/dev/shm"), uuid, how)
    }

    /// As [`GpuLock::take`], with the locks of a directory of its own.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// As there.
    pub fn take_in(base: &Path, uuid: &Uuid, how: Use) -> Result<Self, LockError> {
        if let Use::Shared(among) = how {
            assert!((2..=MOST_SHARERS).contains(&among), "a GPU shared among {among}");
        }
        let directory = directory(base)?;
        let mut looks = 0;
        loop {
            let taken = match how {
                Use::Alone => Self::alone(&directory, uuid)?,
                Use::Shared(among) => Self::shared(&directory, uuid, among)?,
            };
            if let Some(lock) = taken {
                return Ok(lock);
            }
            looks += 1;
            let holders = holders_of(&directory, uuid);
            let ending = !holders.1.is_empty()
                && holders.1.iter().all(|holder| sidecar_shm::is_ending(holder.pid).unwrap_or(true));
            if looks >= if ending { ENDING_LOOKS } else { LOOKS } {
                let (shared, holders) = holders;
                let uuid = uuid.to_string();
                if let Use::Shared(ours) = how
                    && let Some((pid, theirs)) = other_share(&holders, ours)
                {
                    return Err(LockError::OtherShare { uuid, pid, theirs, ours });
                }
                let pids = holders.iter().map(|holder| holder.pid).collect();
                return Err(LockError::InUse { uuid, pids, shared });
            }
            std::thread::sleep(PAUSE);
        }
    }

    fn alone(directory: &(OwnedFd, PathBuf), uuid: &Uuid) -> Result<Option<Self>, LockError> {
        let name = lock_name(uuid);
        let Some(mut file) = take(directory, &name, FlockOperation::NonBlockingLockExclusive)? else {
            return Ok(None);
        };
        write_holder(directory, &name, &mut file, None)?;
        Ok(Some(Self { _files: vec![file], place: None }))
    }

    fn shared(directory: &(OwnedFd, PathBuf), uuid: &Uuid, among: u32) -> Result<Option<Self>, LockError> {
        let Some(common) = take(directory, &lock_name(uuid), FlockOperation::NonBlockingLockShared)? else {
            return Ok(None);
        };
        for place in 0..among {
            let name = place_name(uuid, place);
            if let Some(mut own) = take(directory, &name, FlockOperation::NonBlockingLockExclusive)? {
                write_holder(directory, &name, &mut own, Some(among))?;
                // Looked at only now: of two that come at once with different numbers, at least one sees the other.
                if other_share(&sharers(directory, uuid), among).is_some() {
                    return Ok(None);
                }
                return Ok(Some(Self { _files: vec![own, common], place: Some(place) }));
            }
        }
        Ok(None)
    }

    /// The place among those that share, from 0; `None` for who has it alone.
    pub const fn place(&self) -> Option<u32> {
        self.place
    }
}

/// Pid and number of one that shares among another number.
fn other_share(sharers: &[Holder], ours: u32) -> Option<(u32, u32)> {
    let other = |holder: &Holder| holder.among.filter(|theirs| *theirs != ours);
    sharers.iter().find_map(|holder| Some((holder.pid, other(holder)?)))
}

fn lock_name(uuid: &Uuid) -> String {
    format!("{uuid}.lock")
}

fn place_name(uuid: &Uuid, place: u32) -> String {
    format!("{uuid}.share-{place}")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn base() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    fn gpu(number: u8) -> Uuid {
        Uuid::new("GPU", [number; 16])
    }

    fn own(base: &Path) -> PathBuf {
        base.join(format!("sidecar-{}", rustix::process::geteuid().as_raw()))
    }

    #[test]
    fn a_gpu_has_one_sidecar_until_that_ends() {
        let base = base();
        let take = |number, how| GpuLock::take_in(base.path(), &gpu(number), how);
        let first = take(1, Use::Alone).unwrap();
        let refused = take(1, Use::Alone).unwrap_err();
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        let refused = take(1, Use::Shared(2)).unwrap_err();
        assert!(matches!(&refused, LockError::InUse { shared: false, .. }), "{refused}");
        let other = take(2, Use::Alone).unwrap();
        drop(first);
        take(1, Use::Alone).unwrap();
        drop(other);
        assert_eq!(std::fs::metadata(own(base.path())).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn as_many_share_as_said_and_nobody_has_it_alone_meanwhile() {
        let base = base();
        let take = |how| GpuLock::take_in(base.path(), &gpu(1), how);
        let mut sharers: Vec<GpuLock> = (0..3).map(|_| take(Use::Shared(3)).unwrap()).collect();
        assert_eq!(sharers.iter().map(GpuLock::place).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
        let refused = take(Use::Shared(3)).unwrap_err();
        assert!(
            matches!(&refused, LockError::InUse { shared: true, pids, .. } if pids.len() == 3),
            "{refused}"
        );
        assert!(matches!(take(Use::Alone), Err(LockError::InUse { shared: true, .. })));
        sharers.remove(1);
        assert_eq!(take(Use::Shared(3)).unwrap().place(), Some(1));
        sharers.clear();
        take(Use::Alone).unwrap();
    }

    #[test]
    fn who_would_share_among_another_number_is_refused_by_name() {
        let base = base();
        let take = |among| GpuLock::take_in(base.path(), &gpu(1), Use::Shared(among));
        let first = take(3).unwrap();
        for ours in [2, 4] {
            let refused = take(ours).unwrap_err();
            let says =
                format!("shared among 3 by the sidecar with pid {}, not among {ours}", std::process::id());
            assert!(refused.to_string().contains(&says), "{refused}");
        }
        assert_eq!(take(3).unwrap().place(), Some(1));
        drop(first);
        take(2).unwrap();
    }

    #[test]
    fn what_others_could_have_planted_is_refused() {
        let base = base();
        let elsewhere = base.path().join("elsewhere");
        std::fs::create_dir(&elsewhere).unwrap();
        symlink(&elsewhere, own(base.path())).unwrap();
        let refused = GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap_err();
        assert!(matches!(refused, LockError::Untrusted { what: "no directory", .. }), "{refused}");
        std::fs::remove_file(own(base.path())).unwrap();

        std::fs::create_dir(own(base.path())).unwrap();
        std::fs::set_permissions(own(base.path()), std::fs::Permissions::from_mode(0o777)).unwrap();
        let refused = GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap_err();
        assert!(matches!(refused, LockError::Untrusted { what: "open to other users", .. }), "{refused}");
        std::fs::set_permissions(own(base.path()), std::fs::Permissions::from_mode(0o700)).unwrap();

        let victim = base.path().join("victim");
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, own(base.path()).join(lock_name(&gpu(1)))).unwrap();
        let refused = GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap_err();
        assert!(matches!(refused, LockError::Untrusted { what: "a symbolic link", .. }), "{refused}");
        assert_eq!(std::fs::read_to_string(victim).unwrap(), "precious");
    }

    #[test]
    fn a_directory_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: only root can give a directory away");
        }
        let base = base();
        std::fs::create_dir(own(base.path())).unwrap();
        std::fs::set_permissions(own(base.path()), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(own(base.path()), Some(12_345), None).unwrap();
        let refused = GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap_err();
        assert!(matches!(refused, LockError::Untrusted { what: "another user's", .. }), "{refused}");
    }

    #[test]
    fn a_holder_that_is_ending_is_waited_for() {
        let base = base();
        drop(GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap());
        // Has ended, but nobody has asked for its end: its pid is known.
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let directory = directory(base.path()).unwrap();
        let name = lock_name(&gpu(1));
        let mut held = open(&directory, &name, OFlags::empty()).unwrap();
        flock(&held, FlockOperation::NonBlockingLockExclusive).unwrap();
        held.set_len(0).unwrap();
        writeln!(held, "{}", child.id()).unwrap();
        let taking = {
            let base = base.path().to_owned();
            std::thread::spawn(move || GpuLock::take_in(&base, &gpu(1), Use::Alone))
        };
        std::thread::sleep(PAUSE * (LOOKS * 2));
        assert!(!taking.is_finished(), "it was given up");
        drop(held);
        taking.join().unwrap().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_lock_whose_file_was_removed_is_none() {
        let base = base();
        let first = GpuLock::take_in(base.path(), &gpu(1), Use::Alone).unwrap();
        // A file that was opened before it was removed, and locked after: two would have "the" lock.
        let directory = directory(base.path()).unwrap();
        let name = lock_name(&gpu(2));
        let stale = open(&directory, &name, OFlags::CREATE).unwrap();
        std::fs::remove_file(own(base.path()).join(&name)).unwrap();
        flock(&stale, FlockOperation::NonBlockingLockExclusive).unwrap();
        GpuLock::take_in(base.path(), &gpu(2), Use::Alone).unwrap();
        drop(first);
    }
}
