//! A ring of cells between one producer and one consumer, who need not trust each other.
//!
//! Positions are wrapping `u32` counts of cells; the cell of a position is its low bits, the capacity being a power of
//! two. With `head` the consumer's position and `tail` the producer's, `0 <= tail - head <= capacity` (wrapping).
//!
//! A message is published by its cell's **mark**, which says whose position lies there: the consumer waits for the mark
//! of its own position, and has the message in the same cache line. A message is one line that goes from one core to
//! another, and on the way back nothing: the producer looks at `head` only when the ring seems full. `tail` is a note
//! for the producer's own successor, which sets it right: it is stored after the mark, so the last mark may be ahead.
//!
//! Each side keeps its own position in private memory and only ever stores it; what the peer wrote is loaded once per
//! use, and checked against what is known already. So a peer that writes nonsense, at any moment, can make this side
//! stop with [`Poison`], never reach outside of the cells.
//!
//! **Progress.** Wait-free on both sides. **Crashes.** A side that dies at any instruction leaves a ring which its
//! successor goes on with: mark and position are stored after everything they stand for was done. Whoever empties a
//! ring for somebody else wipes positions and marks ([`wipe`]).
//!
//! It knows nothing about waiting (see [`crate::eventcount`]) and nothing about what a descriptor points to.

use core::marker::PhantomData;

use crate::descriptor::{DESCRIPTOR_WORDS, Descriptor, RECORD_BYTES, RECORD_WORD};
use crate::sync::orders::{Orders, Strong};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// Where a ring lies. Mapped memory in production, loom's own cells in a model.
pub trait Cells {
    /// Number of cells: a power of two, at most 2^31, always the same.
    fn capacity(&self) -> u32;
    /// The producer's position, written by the producer alone.
    fn tail(&self) -> &AtomicU32;
    /// The consumer's position, written by the consumer alone.
    fn head(&self) -> &AtomicU32;
    /// The mark of a cell, written by the producer alone. `cell < capacity`
    fn mark(&self, cell: u32) -> &AtomicU64;
    /// Loads a word of a cell, once, with no order of its own. `cell < capacity`,
    /// `word < `[`crate::descriptor::USED_WORDS`], and not the mark.
    fn load(&self, cell: u32, word: usize) -> u64;
    /// Stores a word of a cell, with no order of its own. Same ranges.
    fn store(&self, cell: u32, word: usize, value: u64);
}

/// No cell is free.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the ring is full")]
pub struct Full;

/// The peer wrote what no correct peer writes. The ring is of no use any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Poison {
    /// The consumer's position went back, or past what was produced.
    #[error("consumer position {head} is not between {seen}, its last one, and producer position {tail}")]
    Head {
        /// What the consumer wrote.
        head: u32,
        /// What it had written before.
        seen: u32,
        /// Our position.
        tail: u32,
    },
    /// No such kind.
    #[error("descriptor of unknown kind {found}")]
    Kind {
        /// What was there.
        found: u8,
    },
    /// Flags that nobody defined.
    #[error("descriptor with unknown flags {found:#04x}")]
    Flags {
        /// All flags that were there.
        found: u8,
    },
    /// A record longer than a cell.
    #[error("record of {found} bytes in a cell for {RECORD_BYTES}")]
    RecordLength {
        /// What was there.
        found: u16,
    },
}

/// What the mark of a cell is when the message of this position lies there. Never 0, as in a cell that was never written.
const fn mark(position: u32) -> u64 {
    position as u64 | 1 << 32
}

/// The producer's position by what was published: its own note may be one message late.
pub(crate) fn published_up_to(cells: &impl Cells) -> u32 {
    published::<Strong>(cells, checked_capacity(cells))
}

fn published<O: Orders>(cells: &impl Cells, capacity: u32) -> u32 {
    let tail = cells.tail().load(O::observe());
    let late = cells.mark(tail & (capacity - 1)).load(O::observe()) == mark(tail);
    if late { tail.wrapping_add(1) } else { tail }
}

/// Takes the marks off a ring that nobody uses, before its positions start anew.
pub fn wipe(cells: &impl Cells) {
    for cell in 0..cells.capacity() {
        cells.mark(cell).store(0, Ordering::Relaxed);
    }
}

/// The end that writes.
#[derive(Debug)]
pub struct Producer<C, O = Strong> {
    cells: C,
    capacity: u32,
    /// Of the next cell to write. `tail - seen <= capacity`
    tail: u32,
    /// The consumer's position as it was looked at last.
    seen: u32,
    poison: Option<Poison>,
    orders: PhantomData<O>,
}

impl<C: Cells> Producer<C> {
    /// Goes on at the position that the ring's tail word has; the ring of zeroed words is empty. A head word that is
    /// nonsense makes a ring without room, see [`Producer::poison`].
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn new(cells: C) -> Self {
        Self::with_orders(cells)
    }

    /// As [`Producer::new`], for who takes over a ring that others have used: the words are checked at once.
    ///
    /// # Errors
    /// The head is not within a ring behind the tail.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn resume(cells: C) -> Result<Self, Poison> {
        let resumed = Self::new(cells);
        resumed.poison.map_or(Ok(resumed), Err)
    }
}

impl<C: Cells, O: Orders> Producer<C, O> {
    /// As [`Producer::new`], with orders of the caller's choice: for models.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn with_orders(cells: C) -> Self {
        let capacity = checked_capacity(&cells);
        // Our own words, which nobody else writes while we are here; a predecessor's last stores of them happened
        // before we were told that it is gone.
        let tail = published::<O>(&cells, capacity);
        cells.tail().store(tail, Ordering::Relaxed);
        let mut this = Self {
            cells,
            capacity,
            tail,
            // The oldest position that makes sense.
            seen: tail.wrapping_sub(capacity),
            poison: None,
            orders: PhantomData,
        };
        this.look();
        this
    }

    /// Writes a message and publishes it.
    ///
    /// # Errors
    /// No cell is free, or the consumer wrote nonsense ([`Producer::poison`]).
    ///
    /// # Panics
    /// If the record is longer than [`RECORD_BYTES`].
    pub fn try_push(&mut self, descriptor: &Descriptor, record: &[u8]) -> Result<(), Full> {
        assert!(record.len() <= RECORD_BYTES, "a record of {} bytes", record.len());
        if !self.has_room(1) {
            return Err(Full);
        }
        let cell = self.tail & (self.capacity - 1);
        // At most RECORD_BYTES, which is far below 2^16.
        let words = descriptor.encode(record.len() as u16);
        for (index, word) in words.into_iter().enumerate() {
            self.cells.store(cell, index, word);
        }
        for (index, chunk) in record.chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.cells.store(cell, RECORD_WORD + index, u64::from_ne_bytes(bytes));
        }
        self.cells.mark(cell).store(mark(self.tail), O::publish());
        self.tail = self.tail.wrapping_add(1);
        // For a successor alone, which is told of our end by other means.
        self.cells.tail().store(self.tail, Ordering::Relaxed);
        Ok(())
    }

    /// Whether so many cells can be written. Looks where the consumer is only if they could not be as far as is known:
    /// a look at a word that the other side has just written costs as much as a message.
    pub fn has_room(&mut self, cells: u32) -> bool {
        if self.room() < cells {
            self.look();
        }
        self.room() >= cells
    }

    /// Cells that can be written now; none once the consumer wrote nonsense.
    pub fn free(&mut self) -> u32 {
        self.look();
        self.room()
    }

    /// Position of the next message.
    pub const fn position(&self) -> u32 {
        self.tail
    }

    pub(crate) const fn cells(&self) -> &C {
        &self.cells
    }

    /// What nonsense the consumer wrote, if it did.
    pub const fn poison(&self) -> Option<Poison> {
        self.poison
    }

    const fn room(&self) -> u32 {
        if self.poison.is_some() {
            return 0;
        }
        self.capacity - self.tail.wrapping_sub(self.seen)
    }

    /// Looks where the consumer is.
    fn look(&mut self) {
        let head = self.cells.head().load(O::reuse());
        if head.wrapping_sub(self.seen) > self.tail.wrapping_sub(self.seen) {
            let Self { seen, tail, .. } = *self;
            self.poison.get_or_insert(Poison::Head { head, seen, tail });
            return;
        }
        self.seen = head;
    }
}

/// The end that reads.
#[derive(Debug)]
pub struct Consumer<C, O = Strong> {
    cells: C,
    capacity: u32,
    /// Of the next cell to read.
    head: u32,
    poison: Option<Poison>,
    orders: PhantomData<O>,
}

impl<C: Cells> Consumer<C> {
    /// Goes on at the position that the ring's head word has; the ring of zeroed words is empty.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn new(cells: C) -> Self {
        Self::with_orders(cells)
    }
}

impl<C: Cells, O: Orders> Consumer<C, O> {
    /// As [`Consumer::new`], with orders of the caller's choice: for models.
    ///
    /// # Panics
    /// If the capacity is not a power of two.
    pub fn with_orders(cells: C) -> Self {
        let capacity = checked_capacity(&cells);
        // Our own word: see `Producer::with_orders`.
        let head = cells.head().load(O::reuse());
        Self { cells, capacity, head, poison: None, orders: PhantomData }
    }

    /// Takes the next message; of the record as many bytes as are said are written.
    ///
    /// # Errors
    /// The producer wrote nonsense. It stays so.
    pub fn try_pop(
        &mut self,
        record: &mut [u8; RECORD_BYTES],
    ) -> Result<Option<(Descriptor, usize)>, Poison> {
        if let Some(poison) = self.poison {
            return Err(poison);
        }
        if !self.has_something() {
            return Ok(None);
        }
        let cell = self.head & (self.capacity - 1);
        // Into private memory, each word once: what is checked is what is used.
        let words: [u64; DESCRIPTOR_WORDS] = core::array::from_fn(|word| self.cells.load(cell, word));
        let (descriptor, length) = match Descriptor::decode(&words) {
            Ok(decoded) => decoded,
            Err(poison) => return Err(*self.poison.insert(poison)),
        };
        for (index, chunk) in record[..length].chunks_mut(8).enumerate() {
            let bytes = self.cells.load(cell, RECORD_WORD + index).to_ne_bytes();
            chunk.copy_from_slice(&bytes[..chunk.len()]);
        }
        self.head = self.head.wrapping_add(1);
        self.cells.head().store(self.head, O::release());
        Ok(Some((descriptor, length)))
    }

    /// Position of the next message.
    pub const fn position(&self) -> u32 {
        self.head
    }

    pub(crate) const fn cells(&self) -> &C {
        &self.cells
    }

    /// Whether the next message lies there.
    pub fn has_something(&self) -> bool {
        self.cells.mark(self.head & (self.capacity - 1)).load(O::observe()) == mark(self.head)
    }
}

fn checked_capacity(cells: &impl Cells) -> u32 {
    let capacity = cells.capacity();
    // 2^31 at most: what is a power of two in a u32. A full ring and an empty one differ.
    assert!(capacity.is_power_of_two(), "a ring of {capacity} cells");
    capacity
}

#[cfg(all(test, not(sidecar_loom)))]
mod tests;
