//! Looking at what lies under a region's path, without changing it.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use sidecar_core::agent::HEADROOM;
use sidecar_core::time::Instant;

use super::CreateError;
use super::build::{Built, identity_at, open_options};
use crate::journal::{JOURNAL_MAGIC, Journal, Past, Unreadable, place};
use crate::layout::{self, Geometry, JOURNAL_BYTES, Layout, SEATS_AREA, header};
use crate::map::Map;
use crate::owner::Parts;
use crate::slots::{Fate, Ledger, Observed};
use crate::sync::Ordering;
use crate::sys;

/// What lies under the path.
#[derive(Debug)]
pub(super) enum Existing {
    Nothing,
    /// Something else than a moment ago: look again.
    Changed,
    /// A region whose lock we have now.
    Dead(Dead),
}

/// The header of a region, read once and checked against the file's size.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) geometry: Geometry,
    pub(crate) region: u64,
}

impl Header {
    /// Copies and checks the header of a mapping that holds at least the header page.
    ///
    /// # Errors
    /// What is wrong with it, to be said of "it".
    pub(crate) fn read(map: &Map, file_bytes: u64) -> Result<Self, String> {
        let word = |offset: usize| map.word32(offset).load(Ordering::Relaxed);
        if map.word64(header::MAGIC).load(Ordering::Acquire) != layout::MAGIC {
            return Err("its header has no magic number".into());
        }
        let version = word(header::VERSION);
        if version != layout::VERSION {
            return Err(format!("it has layout {version}, this is {}", layout::VERSION));
        }
        if word(header::ENDIAN) != layout::ENDIAN_TAG {
            return Err("it has another byte order".into());
        }
        let geometry = Geometry {
            observation_slots: word(header::OBSERVATION_SLOTS),
            observation_bytes: word(header::OBSERVATION_BYTES),
            action_slots: word(header::ACTION_SLOTS),
            action_bytes: word(header::ACTION_BYTES),
        };
        geometry.check().map_err(|error| format!("its header says that {error}"))?;
        let total = map.word64(header::TOTAL).load(Ordering::Relaxed);
        if total != geometry.total_bytes() as u64 || total != file_bytes {
            return Err(format!(
                "it has {file_bytes} bytes where its header asks for {}",
                geometry.total_bytes()
            ));
        }
        Ok(Self { geometry, region: map.word64(header::REGION).load(Ordering::Relaxed) })
    }
}

/// A region without an owner; its lock is ours for as long as this lives.
#[derive(Debug)]
pub(super) struct Dead {
    lock: File,
    identity: (u64, u64),
    /// Journal and header.
    front: Map,
    header: Result<Header, String>,
}

/// Opens, checks and locks.
pub(super) fn look(path: &Path) -> Result<Existing, CreateError> {
    let not_a_region = |what| CreateError::NotARegion { path: path.to_owned(), what };
    let info = match path.symlink_metadata() {
        Ok(info) => info,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Nothing),
        Err(error) => return Err(CreateError::io("looking at", path)(error)),
    };
    if let Some(what) = other_kind(&info) {
        return Err(not_a_region(what));
    }
    if info.uid() != rustix::process::geteuid().as_raw() {
        return Err(CreateError::NotOurs { path: path.to_owned(), uid: info.uid() });
    }
    let file = match open_options().open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Changed),
        Err(error) => return Err(CreateError::io("opening", path)(error)),
    };
    let opened = file.metadata().map_err(CreateError::io("looking at", path))?;
    let identity = (opened.dev(), opened.ino());
    if identity != (info.dev(), info.ino()) {
        return Ok(Existing::Changed);
    }
    if opened.len() < JOURNAL_BYTES as u64 + 4096 {
        return Err(not_a_region("a file too short to be a region"));
    }
    let front = Map::readable(&file, layout::CONTROL).map_err(CreateError::io("mapping", path))?;
    let journal = front.word64(place::MAGIC).load(Ordering::Relaxed) == JOURNAL_MAGIC;
    if !journal && front.word64(header::MAGIC).load(Ordering::Relaxed) != layout::MAGIC {
        return Err(not_a_region("another program's file"));
    }
    if !sys::try_lock(&file).map_err(CreateError::io("locking", path))? {
        let (pid, since) = Past::read(&front)
            .map_or((0, Instant::from_nanos(0)), |past| (past.main.owner_pid, past.main.owner_since));
        return Err(CreateError::InUse { path: path.to_owned(), pid, since });
    }
    // Whoever replaces a region holds its lock while renaming: with the lock in hand the name can't move any more.
    match identity_at(path) {
        Ok(now) if now == identity => {}
        Ok(_) => return Ok(Existing::Changed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Existing::Changed),
        Err(error) => return Err(CreateError::io("looking at", path)(error)),
    }
    let version = front.word32(header::VERSION).load(Ordering::Relaxed);
    let magic = front.word64(header::MAGIC).load(Ordering::Relaxed) == layout::MAGIC;
    if magic && version > layout::VERSION {
        return Err(CreateError::NewerLayout {
            path: path.to_owned(),
            theirs: version,
            ours: layout::VERSION,
        });
    }
    let header = Header::read(&front, opened.len());
    Ok(Existing::Dead(Dead { lock: file, identity, front, header }))
}

fn other_kind(info: &Metadata) -> Option<&'static str> {
    let kind = info.file_type();
    if kind.is_file() {
        None
    } else if kind.is_symlink() {
        Some("a symbolic link")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a fifo")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

impl Dead {
    /// Its journal, if all of it can be believed.
    pub(super) fn past(&self) -> Result<Past, Unreadable> {
        Past::read(&self.front)
    }

    /// Its journal, if it can be taken over as it is, with the geometry that is wanted now; or why not.
    pub(super) fn usable(&self, wanted: &Geometry) -> Result<Past, String> {
        let header = self.header.as_ref().map_err(Clone::clone)?;
        if header.geometry != *wanted {
            return Err("it has slots of another number or size".into());
        }
        self.past().map_err(|error| error.to_string())
    }

    /// Whether the path still means this file.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        identity_at(path).is_ok_and(|now| now == self.identity)
    }

    /// Maps all of it for an owner.
    pub(super) fn into_parts(self, path: &Path) -> Result<Parts, CreateError> {
        let header = self.header.map_err(|why| {
            CreateError::io("reading the header of", path)(io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        let layout = Layout::of(header.geometry);
        // A description of its own, without the lock: this one is mapped and passed on.
        let shared = open_options().open(path).map_err(CreateError::io("opening", path))?;
        let info = shared.metadata().map_err(CreateError::io("looking at", path))?;
        if (info.dev(), info.ino()) != self.identity {
            return Err(CreateError::Contended { path: path.to_owned() });
        }
        let map = Map::writable(&shared, layout.total()).map_err(CreateError::io("mapping", path))?;
        map.word32(layout::control::STATE).store(layout::control::STATE_RUNNING, Ordering::Relaxed);
        Ok(Parts {
            path: path.to_owned(),
            lock: self.lock,
            shared,
            map: Arc::new(map),
            layout,
            region: header.region,
        })
    }

    /// Copies the observations that wait for an answer into a new region, oldest first, as far as they fit. A region
    /// of which the header can't be believed gives none.
    pub(super) fn copy_unanswered(
        &self,
        past: &Past,
        built: &Built,
        ledger: &mut Ledger,
        journal: &mut Journal,
    ) {
        let Ok(header) = &self.header else { return };
        let from = Layout::of(header.geometry);
        let Ok(map) = Map::readable(&self.lock, from.total()) else { return };
        let mut waiting: Vec<_> = past
            .slots
            .iter()
            .take(header.geometry.observation_slots as usize)
            .enumerate()
            .filter(|(_, slot)| slot.held && !slot.answered && !past.started(slot.sequence))
            .filter(|(_, slot)| {
                slot.length
                    <= header.geometry.observation_bytes.min(built.layout.geometry().observation_bytes)
            })
            .collect();
        waiting.sort_unstable_by_key(|(_, slot)| slot.sequence);
        for (index, slot) in waiting {
            let Some(to) = ledger.claim() else { return };
            let length = slot.length as usize;
            let source = map.range(from.slot(index) + HEADROOM as usize, length);
            let target = built.map.range(built.layout.slot(to.at()) + HEADROOM as usize, length);
            // SAFETY: both ranges lie inside their mappings (checked by `range`), which are of different files, and
            // nobody else knows the new one yet. A worker that still writes the old one can only spoil what it was
            // given itself: bytes without meaning here.
            unsafe { core::ptr::copy_nonoverlapping(source, target, length) };
            ledger.hold(
                to,
                &Observed {
                    epoch: slot.epoch,
                    sequence: slot.sequence,
                    length: slot.length,
                    first_byte: slot.first_byte,
                    last_byte: slot.last_byte,
                },
                slot.asker,
                Fate { deaths: slot.deaths, seen: slot.seen },
                journal,
            );
            ledger.journal(to, journal);
        }
    }
}

const _: () = assert!(layout::CONTROL == JOURNAL_BYTES + 4096 && SEATS_AREA > layout::CONTROL);
