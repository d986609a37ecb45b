//! Rings in loom's memory, and payloads that loom watches.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use sidecar_shm::descriptor::{MARK_WORD, USED_WORDS};
use sidecar_shm::ring::{self, Cells};
use sidecar_shm::sync::{AtomicU32, AtomicU64, Ordering};

/// A ring whose cells loom watches: a read and a write that are not ordered fail the model, whatever they would have
/// read. Stronger than what mapped memory asks for.
#[derive(Clone, Debug)]
pub(crate) struct Watched(Arc<WatchedMemory>);

#[derive(Debug)]
struct WatchedMemory {
    tail: AtomicU32,
    head: AtomicU32,
    marks: Vec<AtomicU64>,
    cells: Vec<Payload<[u64; USED_WORDS]>>,
}

impl Watched {
    /// An empty ring with both positions at `start`.
    pub(crate) fn new(capacity: usize, start: u32) -> Self {
        Self(Arc::new(WatchedMemory {
            tail: AtomicU32::new(start),
            head: AtomicU32::new(start),
            marks: (0..capacity).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..capacity).map(|_| Payload::new([0; USED_WORDS])).collect(),
        }))
    }
}

impl Cells for Watched {
    fn capacity(&self) -> u32 {
        self.0.cells.len() as u32
    }

    fn tail(&self) -> &AtomicU32 {
        &self.0.tail
    }

    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }

    fn mark(&self, cell: u32) -> &AtomicU64 {
        &self.0.marks[cell as usize]
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        self.0.cells[cell as usize].read(|words| words[word])
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.0.cells[cell as usize].write(|words| words[word] = value);
    }
}

/// A [`Watched`] ring as the owner's link reads it: its position is private until it is shown.
#[derive(Clone, Debug)]
pub(crate) struct PrivateHead {
    ring: Watched,
    head: Arc<AtomicU32>,
}

impl PrivateHead {
    pub(crate) fn new(ring: Watched) -> Self {
        let head = Arc::new(AtomicU32::new(ring.head().load(Ordering::Relaxed)));
        Self { ring, head }
    }

    /// Shows the producer how far the consumer is.
    pub(crate) fn commit(&self, order: Ordering) {
        self.ring.head().store(self.head.load(Ordering::Relaxed), order);
    }
}

impl Cells for PrivateHead {
    fn capacity(&self) -> u32 {
        self.ring.capacity()
    }

    fn tail(&self) -> &AtomicU32 {
        self.ring.tail()
    }

    fn head(&self) -> &AtomicU32 {
        &self.head
    }

    fn mark(&self, cell: u32) -> &AtomicU64 {
        self.ring.mark(cell)
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        self.ring.load(cell, word)
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.ring.store(cell, word, value);
    }
}

/// A ring whose words are atomics, as in mapped memory: a load may see any store that the orders do not rule out.
#[derive(Clone, Debug)]
pub(crate) struct Atomic(Arc<AtomicMemory>);

#[derive(Debug)]
struct AtomicMemory {
    tail: AtomicU32,
    head: AtomicU32,
    words: Vec<AtomicU64>,
}

/// Words of a cell that the models' messages use; loom has to look at each.
const WORDS: usize = 10;

impl Atomic {
    /// An empty ring of one cell with both positions at `start`.
    pub(crate) fn new(start: u32) -> Self {
        Self(Arc::new(AtomicMemory {
            tail: AtomicU32::new(start),
            head: AtomicU32::new(start),
            words: (0..WORDS).map(|_| AtomicU64::new(0)).collect(),
        }))
    }

    /// Empties the ring for somebody else, as a seat is reset.
    pub(crate) fn reset(&self) {
        ring::wipe(self);
        self.0.tail.store(0, Ordering::Relaxed);
        self.0.head.store(0, Ordering::Relaxed);
    }
}

impl Cells for Atomic {
    fn capacity(&self) -> u32 {
        1
    }

    fn tail(&self) -> &AtomicU32 {
        &self.0.tail
    }

    fn head(&self) -> &AtomicU32 {
        &self.0.head
    }

    fn mark(&self, _cell: u32) -> &AtomicU64 {
        &self.0.words[MARK_WORD]
    }

    fn load(&self, _cell: u32, word: usize) -> u64 {
        self.0.words[word].load(Ordering::Relaxed)
    }

    fn store(&self, _cell: u32, word: usize, value: u64) {
        self.0.words[word].store(value, Ordering::Relaxed);
    }
}

/// Plain memory that passes from one side to the other, such as a slot's payload.
#[derive(Debug)]
pub(crate) struct Payload<T>(UnsafeCell<T>);

// SAFETY: threads share it to have loom judge their accesses, which it does before each one is made; in a run where
// two of them are not ordered the model ends there.
unsafe impl<T: Send> Sync for Payload<T> {}

impl<T> Payload<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    pub(crate) fn read<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        self.0.with(|value| {
            // SAFETY: the pointer is to the cell's own value; loom has checked that no write goes on, and only one
            // thread of a model runs at a time.
            read(unsafe { &*value })
        })
    }

    pub(crate) fn write<R>(&self, write: impl FnOnce(&mut T) -> R) -> R {
        self.0.with_mut(|value| {
            // SAFETY: as in `read`, and that no read goes on either.
            write(unsafe { &mut *value })
        })
    }
}
