//! Building a region under a temporary name, and giving it its own when it is complete.
//!
//! Space is reserved with fallocate: a bare ftruncate succeeds on a full tmpfs and the process dies of SIGBUS later.
//! Whatever goes wrong, the temporary file is removed; what a killed process left of one is swept by the next start.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags};
use rustix::io::Errno;

use super::CreateError;
use super::found::Dead;
use crate::crash::step;
use crate::layout::{self, Geometry, Layout, control, header};
use crate::map::Map;
use crate::owner::Parts;
use crate::sync::Ordering;
use crate::sys;

/// A complete region that nobody can find yet.
#[derive(Debug)]
pub(super) struct Built {
    pub(super) map: Arc<Map>,
    pub(super) layout: Layout,
    lock: File,
    shared: File,
    region: u64,
    /// Removes the name when dropped.
    name: TemporaryName,
}

#[derive(Debug)]
struct TemporaryName(Option<PathBuf>);

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if let Some(path) = self.0.take() {
            // It can only fail because the file is gone already.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The part of a temporary name that belongs to one region's path.
fn prefix(path: &Path) -> Option<std::ffi::OsString> {
    let mut prefix = std::ffi::OsString::from(".");
    prefix.push(path.file_name()?);
    prefix.push(".new-");
    Some(prefix)
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."))
}

impl Built {
    /// Reserves the space and writes the header; magic and version last.
    pub(super) fn new(path: &Path, geometry: &Geometry) -> Result<Self, CreateError> {
        let layout = Layout::of(*geometry);
        // Below isize::MAX by the layout's assertion.
        let total = layout.total() as u64;
        let region = sys::random().map_err(CreateError::io("random bytes for", path))?;
        let mut name = prefix(path).unwrap_or_default();
        name.push(format!("{region:016x}"));
        let temporary = directory(path).join(name);

        let lock = open_options()
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .map_err(CreateError::io("creating", &temporary))?;
        let name = TemporaryName(Some(temporary.clone()));
        step();
        let failed = |what| CreateError::io(what, &temporary);
        if !sys::try_lock(&lock).map_err(failed("locking"))? {
            return Err(CreateError::Contended { path: path.to_owned() });
        }
        // The mode given to open went through the umask.
        lock.set_permissions(std::fs::Permissions::from_mode(0o600))
            .map_err(failed("setting the mode of"))?;
        step();
        match rustix::fs::fallocate(&lock, FallocateFlags::empty(), 0, total) {
            Ok(()) => {}
            Err(Errno::NOSPC) => {
                drop(name);
                drop(lock);
                let free = sys::free_bytes(directory(path));
                return Err(CreateError::NoSpace { path: path.to_owned(), needed: total, free });
            }
            Err(error) => return Err(failed("reserving space for")(error.into())),
        }
        step();
        // A description of its own, without the lock: this one is mapped and passed on.
        let shared = open_options().open(&temporary).map_err(|error| match error.kind() {
            // Another start swept it away in the moment before its lock was taken.
            io::ErrorKind::NotFound => CreateError::Contended { path: path.to_owned() },
            _ => failed("opening")(error),
        })?;
        let map = Arc::new(Map::writable(&shared, layout.total()).map_err(failed("mapping"))?);
        write_header(&map, geometry, total, region);
        Ok(Self { map, layout, lock, shared, region, name })
    }

    /// Gives it the user's path if nothing is there. `None`: something is.
    pub(super) fn publish_new(self, path: &Path) -> Result<Option<Parts>, CreateError> {
        self.publish(path, RenameFlags::NOREPLACE)
    }

    /// Gives it the user's path in place of the dead region, whose lock the caller has. `None`: the path now means
    /// another file.
    pub(super) fn publish_over(self, path: &Path, dead: &Dead) -> Result<Option<Parts>, CreateError> {
        if !dead.is_at(path) {
            return Ok(None);
        }
        self.publish(path, RenameFlags::empty())
    }

    fn publish(mut self, path: &Path, flags: RenameFlags) -> Result<Option<Parts>, CreateError> {
        let Some(temporary) = self.name.0.take() else { return Ok(None) };
        step();
        match rustix::fs::renameat_with(CWD, &temporary, CWD, path, flags) {
            Ok(()) => {
                step();
                Ok(Some(Parts {
                    path: path.to_owned(),
                    lock: self.lock,
                    shared: self.shared,
                    map: self.map,
                    layout: self.layout,
                    region: self.region,
                }))
            }
            // Somebody else's file appeared, or a starting sidecar swept ours away.
            Err(Errno::EXIST | Errno::NOENT) => {
                let _ = std::fs::remove_file(temporary);
                Ok(None)
            }
            Err(error) => {
                let _ = std::fs::remove_file(temporary);
                Err(CreateError::io("naming", path)(error.into()))
            }
        }
    }
}

/// Read and write, never through a symbolic link, never waiting for a fifo's other end; std adds close-on-exec.
pub(super) fn open_options() -> std::fs::OpenOptions {
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn write_header(map: &Map, geometry: &Geometry, total: u64, region: u64) {
    let word = |offset: usize, value: u32| map.word32(offset).store(value, Ordering::Relaxed);
    word(header::ENDIAN, layout::ENDIAN_TAG);
    word(header::OBSERVATION_SLOTS, geometry.observation_slots);
    word(header::OBSERVATION_BYTES, geometry.observation_bytes);
    word(header::ACTION_SLOTS, geometry.action_slots);
    word(header::ACTION_BYTES, geometry.action_bytes);
    map.word64(header::TOTAL).store(total, Ordering::Relaxed);
    map.word64(header::REGION).store(region, Ordering::Relaxed);
    word(control::STATE, control::STATE_RUNNING);
    map.word32(header::VERSION).store(layout::VERSION, Ordering::Release);
    map.word64(header::MAGIC).store(layout::MAGIC, Ordering::Release);
}

/// Removes what processes that were killed while building left under temporary names of this path: files of ours that
/// nobody has locked.
pub(super) fn sweep(path: &Path) {
    let Some(prefix) = prefix(path) else { return };
    let Ok(entries) = std::fs::read_dir(directory(path)) else { return };
    for entry in entries.flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes()) {
            continue;
        }
        let Ok(file) = open_options().open(entry.path()) else { continue };
        let ours = file
            .metadata()
            .is_ok_and(|info| info.is_file() && info.uid() == rustix::process::geteuid().as_raw());
        if ours && sys::try_lock(&file).unwrap_or(false) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Device and inode of what lies under a path now, itself and not what it points to.
pub(super) fn identity_at(path: &Path) -> io::Result<(u64, u64)> {
    let info = rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((info.st_dev, info.st_ino))
}
