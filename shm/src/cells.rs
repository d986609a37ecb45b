//! The cells of a ring in mapped memory, for [`crate::ring`].

use std::sync::Arc;

use crate::descriptor::{Descriptor, Kind};
use crate::layout::{CELL, RING_CAPACITY};
use crate::map::Map;
use crate::ring::Cells;
use crate::sync::{AtomicU32, Ordering};

/// Where a ring's consumer position lives.
#[derive(Clone, Debug)]
pub(crate) enum Head {
    /// At this offset of the region.
    Mapped(usize),
    /// In private memory: the other side is told separately.
    Private(Arc<AtomicU32>),
}

/// A ring of [`RING_CAPACITY`] cells at an offset of the region.
#[derive(Clone, Debug)]
pub(crate) struct MappedCells {
    map: Arc<Map>,
    cells: usize,
    tail: usize,
    head: Head,
}

impl MappedCells {
    /// `cells`, `tail` and a mapped head are offsets in the region.
    pub(crate) const fn new(map: Arc<Map>, cells: usize, tail: usize, head: Head) -> Self {
        Self { map, cells, tail, head }
    }
}

impl Cells for MappedCells {
    fn capacity(&self) -> u32 {
        RING_CAPACITY
    }

    fn tail(&self) -> &AtomicU32 {
        self.map.word32(self.tail)
    }

    fn head(&self) -> &AtomicU32 {
        match &self.head {
            Head::Mapped(offset) => self.map.word32(*offset),
            Head::Private(word) => word,
        }
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        self.map.word64(self.cells + cell as usize * CELL + word * 8).load(Ordering::Relaxed)
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.map.word64(self.cells + cell as usize * CELL + word * 8).store(value, Ordering::Relaxed);
    }
}

/// Descriptor of a record: all that it says is in its bytes.
pub(crate) const RECORD: Descriptor = Descriptor {
    kind: Kind::Record,
    flags: 0,
    epoch: 0,
    sequence: 0,
    slot: 0,
    generation: 0,
    offset: 0,
    length: 0,
    stamps: [0; 4],
};
