//! The cells of a ring in mapped memory, for [`crate::ring`].

use std::sync::Arc;

use crate::descriptor::{Descriptor, Kind, MARK_WORD};
use crate::layout::{CELL, Layout, RING_CAPACITY, block, down_cells, seat_block, worker_page};
use crate::map::Map;
use crate::ring::Cells;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Where a ring's consumer position lives.
#[derive(Clone, Debug)]
enum Head {
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
    /// The ring from the sidecar to the worker of a seat.
    pub(crate) fn down(map: &Arc<Map>, layout: &Layout, seat: usize) -> Self {
        Self {
            map: Arc::clone(map),
            cells: down_cells(seat),
            tail: block(seat) + seat_block::DOWN_TAIL,
            head: Head::Mapped(layout.seat_area(seat) + worker_page::DOWN_HEAD),
        }
    }

    /// The ring from the worker of a seat to the sidecar, as the worker has it.
    pub(crate) fn up(map: &Arc<Map>, layout: &Layout, seat: usize) -> Self {
        Self {
            map: Arc::clone(map),
            cells: layout.up_cells(seat),
            tail: layout.seat_area(seat) + worker_page::UP_TAIL,
            head: Head::Mapped(block(seat) + seat_block::UP_HEAD),
        }
    }

    /// The same ring, as the sidecar reads it: ahead of what it tells the worker.
    pub(crate) fn up_ahead(map: &Arc<Map>, layout: &Layout, seat: usize, head: &Arc<AtomicU32>) -> Self {
        Self { head: Head::Private(Arc::clone(head)), ..Self::up(map, layout, seat) }
    }

    fn word(&self, cell: u32, word: usize) -> &AtomicU64 {
        self.map.word64(self.cells + cell as usize * CELL + word * 8)
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

    fn mark(&self, cell: u32) -> &AtomicU64 {
        self.word(cell, MARK_WORD)
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        self.word(cell, word).load(Ordering::Relaxed)
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.word(cell, word).store(value, Ordering::Relaxed);
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
    stamps: [0; 3],
};
