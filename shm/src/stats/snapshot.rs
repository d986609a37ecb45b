//! Reading the statistics, the error log and the owner's name from outside.

use core::time::Duration;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use sidecar_core::time::Instant;

use super::{BUCKETS, Counter, GAUGES, Gauge, Stage, bucket_top, histogram};
use crate::errors::{self, ErrorRecord};
use crate::journal;
use crate::layout::{self, DOWN, STATS, control, header};
use crate::map::Map;
use crate::sync::Ordering;
use crate::sys;

/// Latencies of one stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// How many there were.
    pub count: u64,
    /// Half were at most this, to 3.2 %.
    pub p50: Duration,
    /// 90 % were at most this, to 3.2 %.
    pub p90: Duration,
    /// 99 % were at most this, to 3.2 %.
    pub p99: Duration,
    /// The longest, exactly.
    pub max: Duration,
    /// Arithmetic mean.
    pub mean: Duration,
}

/// Who owns a region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owned {
    /// As the owner sees it itself.
    pub pid: u32,
    /// When it took the region, CLOCK_BOOTTIME.
    pub since: Instant,
    /// Agent id that it dials with.
    pub agent: String,
    /// Whether it still lives: its lock is held. Always true in a snapshot that it took itself.
    pub alive: bool,
    /// It ended in order.
    pub ended: bool,
}

/// A region's statistics at one moment; each number is whole, together they may be a frame apart.
#[derive(Clone, Debug)]
pub struct Snapshot {
    counters: Vec<u64>,
    gauges: Vec<u64>,
    stages: Vec<Summary>,
    /// Distinct errors, in the order of their first time.
    pub errors: Vec<ErrorRecord>,
    /// When the last byte came from the gateway.
    pub last_byte: Option<Instant>,
    /// The owner; `None` if its journal was being rewritten or is damaged.
    pub owner: Option<Owned>,
}

/// Why there is nothing to be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// It can't be opened or mapped.
    #[error("opening {}: {source}; is a sidecar running with this --shm?", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It is another file, or of another layout.
    #[error("{} is no region of layout {ours}: {why}", path.display(), ours = layout::VERSION)]
    NotARegion {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

pub(super) fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
    let io = |source| SnapshotError::Io { path: path.to_owned(), source };
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(io)?;
    read(&file, path)
}

/// `path`: for messages.
pub(super) fn read(file: &File, path: &Path) -> Result<Snapshot, SnapshotError> {
    let io = |source| SnapshotError::Io { path: path.to_owned(), source };
    let info = file.metadata().map_err(io)?;
    let not = |why: String| SnapshotError::NotARegion { path: path.to_owned(), why };
    if !info.is_file() || info.len() < DOWN as u64 {
        return Err(not(format!("it has {} bytes", info.len())));
    }
    let map = Map::readable(file, DOWN).map_err(io)?;
    if map.word64(header::MAGIC).load(Ordering::Acquire) != layout::MAGIC {
        return Err(not("its header has no magic number".into()));
    }
    let version = map.word32(header::VERSION).load(Ordering::Relaxed);
    if version != layout::VERSION {
        return Err(not(format!("it has layout {version}")));
    }
    let mut snapshot = Snapshot::read(&map);
    if let Some(owner) = &mut snapshot.owner {
        owner.alive = sys::is_locked(file).map_err(io)?;
    }
    Ok(snapshot)
}

impl Snapshot {
    pub(super) fn read(map: &Map) -> Self {
        let word = |offset: usize| map.word64(offset).load(Ordering::Relaxed);
        let owner = journal::read_main(map).map(|main| Owned {
            pid: main.owner_pid,
            since: main.owner_since,
            agent: main.agent.as_str().to_owned(),
            alive: true,
            ended: map.word32(control::STATE).load(Ordering::Relaxed) == control::STATE_ENDED,
        });
        Self {
            counters: (0..Counter::ALL.len()).map(|index| word(STATS + index * 8)).collect(),
            gauges: (0..Gauge::ALL.len()).map(|index| word(GAUGES + index * 8)).collect(),
            stages: Stage::ALL.iter().map(|stage| summary(map, *stage)).collect(),
            errors: errors::read(map),
            last_byte: match word(journal::place::LAST_BYTE) {
                0 => None,
                nanos => Some(Instant::from_nanos(nanos)),
            },
            owner,
        }
    }

    /// Value of a counter.
    pub fn counter(&self, counter: Counter) -> u64 {
        self.counters[counter as usize]
    }

    /// Value of a gauge.
    pub fn gauge(&self, gauge: Gauge) -> u64 {
        self.gauges[gauge as usize]
    }

    /// Latencies of a stage.
    pub fn stage(&self, stage: Stage) -> Summary {
        self.stages[stage as usize]
    }
}

fn summary(map: &Map, stage: Stage) -> Summary {
    let start = histogram(stage);
    let buckets: Vec<u64> =
        (0..BUCKETS).map(|index| map.word64(start + 16 + index * 8).load(Ordering::Relaxed)).collect();
    // Words in a file that a crash or a hostile worker can't reach, but a damaged one may hold anything.
    let count = buckets.iter().fold(0_u64, |sum, bucket| sum.saturating_add(*bucket));
    if count == 0 {
        return Summary::default();
    }
    let most = map.word64(start).load(Ordering::Relaxed);
    let sum = map.word64(start + 8).load(Ordering::Relaxed);
    let percentile = |per_cent: u128| {
        // The smallest bucket with at least that share of all values in it and below.
        let wanted = (u128::from(count) * per_cent).div_ceil(100);
        let mut seen = 0;
        let found = buckets.iter().position(|bucket| {
            seen += u128::from(*bucket);
            seen >= wanted
        });
        let top = bucket_top(found.unwrap_or(BUCKETS - 1));
        Duration::from_nanos(if found == Some(BUCKETS - 1) { most } else { top.min(most) })
    };
    Summary {
        count,
        p50: percentile(50),
        p90: percentile(90),
        p99: percentile(99),
        max: Duration::from_nanos(most),
        mean: Duration::from_nanos(sum / count),
    }
}
