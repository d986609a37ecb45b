//! Where an observation also lies on a device: the sidecar's ring there, one slot for each observation slot, and what a
//! worker needs to open it in its own process.
//!
//! The sidecar writes it into its control page, once, before it uses it; a worker reads it whenever the number is
//! another one than before. The number is that of the owner: what a dead sidecar wrote is told from its successor's,
//! and a descriptor says by it whether its observation lies in this ring.
//!
//! What the bytes mean is CUDA's business: they are carried, never looked into.

use std::sync::Arc;

use crate::layout::{Layout, device_ring as place};
use crate::map::Map;
use crate::sync::{AtomicU64, Ordering, fence};

/// Bytes of a handle that a driver gives to be opened in another process (`CU_IPC_HANDLE_SIZE`, cuda.h).
pub const HANDLE_BYTES: usize = 64;

/// How another process gets at the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceRing {
    /// UUID of the device that it lies on.
    pub gpu: [u8; 16],
    /// Opens its memory.
    pub memory: [u8; HANDLE_BYTES],
    /// Opens the event that is reached when what was copied last has arrived.
    pub event: [u8; HANDLE_BYTES],
}

/// Bytes of a ring's description.
const BYTES: usize = 16 + 2 * HANDLE_BYTES;

impl DeviceRing {
    fn words(&self) -> [u64; BYTES / 8] {
        let mut bytes = self.gpu.iter().chain(&self.memory).chain(&self.event);
        core::array::from_fn(|_| {
            u64::from_le_bytes(core::array::from_fn(|_| bytes.next().copied().unwrap_or(0)))
        })
    }

    fn of(words: &[u64; BYTES / 8]) -> Self {
        let mut bytes = words.iter().flat_map(|word| word.to_le_bytes());
        let mut next = || bytes.next().unwrap_or(0);
        Self {
            gpu: core::array::from_fn(|_| next()),
            memory: core::array::from_fn(|_| next()),
            event: core::array::from_fn(|_| next()),
        }
    }
}

fn word(map: &Map, index: usize) -> &AtomicU64 {
    map.word64(place::BYTES + index * 8)
}

/// Says that there is none.
pub(crate) fn clear(map: &Map) {
    map.word64(place::NUMBER).store(0, Ordering::Release);
}

/// Says how to open ring `number`, which is not 0.
pub(crate) fn write(map: &Map, number: u64, ring: &DeviceRing) {
    clear(map);
    // Partner: the fence in `read`. Who sees a word of the new ring sees that the old number is gone.
    fence(Ordering::Release);
    for (index, value) in ring.words().into_iter().enumerate() {
        word(map, index).store(value, Ordering::Relaxed);
    }
    map.word64(place::NUMBER).store(number, Ordering::Release);
}

/// A ring is announced while this lives. Whoever gives the ring back while the process goes on drops this first; where
/// the process ends with both, what it wrote is told from its successor's.
#[must_use = "dropped, it takes back what was announced"]
#[derive(Debug)]
pub struct Announcement {
    map: Arc<Map>,
    number: u64,
}

impl Announcement {
    pub(crate) fn new(map: &Arc<Map>, number: u64, ring: &DeviceRing) -> Self {
        write(map, number, ring);
        Self { map: Arc::clone(map), number }
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // A successor's in the same region stays.
        if number(&self.map) == self.number {
            clear(&self.map);
        }
    }
}

/// Number of the ring that there is; 0 for none.
pub(crate) fn number(map: &Map) -> u64 {
    map.word64(place::NUMBER).load(Ordering::Acquire)
}

/// The ring that there is, with its number. `None`: there is none, or it is just being replaced.
pub(crate) fn read(map: &Map) -> Option<(u64, DeviceRing)> {
    let before = number(map);
    let words = core::array::from_fn(|index| word(map, index).load(Ordering::Relaxed));
    // Partner: the fence in `write`.
    fence(Ordering::Acquire);
    let after = map.word64(place::NUMBER).load(Ordering::Relaxed);
    (before != 0 && before == after).then(|| (before, DeviceRing::of(&words)))
}

/// A ring, and how it is cut into slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Announced {
    /// Told from every other one of the region by this.
    pub number: u64,
    /// How to open it.
    pub ring: DeviceRing,
    /// Where its slots are.
    pub slots: DeviceSlots,
}

/// Where the slots of a ring lie in its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceSlots {
    stride: usize,
    count: usize,
}

impl DeviceSlots {
    pub(crate) const fn of(layout: &Layout) -> Self {
        Self { stride: layout.device_stride(), count: layout.geometry().observation_slots as usize }
    }

    /// Bytes of the whole ring.
    pub const fn total(&self) -> usize {
        self.stride * self.count
    }

    /// Where a slot's payload starts.
    pub const fn offset(&self, slot: u32) -> usize {
        slot as usize * self.stride
    }
}

const _: () = assert!(BYTES.is_multiple_of(8) && place::BYTES + BYTES <= place::END);

#[cfg(all(test, not(sidecar_loom)))]
mod tests {
    use super::*;
    use crate::layout::{Geometry, SEATS_AREA};
    use crate::testing::blank;

    fn ring(start: u8) -> DeviceRing {
        let byte = |at: usize| start.wrapping_add(at as u8);
        DeviceRing {
            gpu: core::array::from_fn(byte),
            memory: core::array::from_fn(|at| byte(at + 16)),
            event: core::array::from_fn(|at| byte(at + 80)),
        }
    }

    #[test]
    fn what_is_written_is_read_until_it_is_cleared_or_replaced() {
        let map = blank(SEATS_AREA);
        assert_eq!((number(&map), read(&map)), (0, None));
        for (at, start) in [(1, 3), (2, 200)] {
            write(&map, at, &ring(start));
            assert_eq!((number(&map), read(&map)), (at, Some((at, ring(start)))));
        }
        clear(&map);
        assert_eq!((number(&map), read(&map)), (0, None));
    }

    #[test]
    fn an_announcement_is_taken_back_and_a_successors_stays() {
        let map = blank(SEATS_AREA);
        let first = Announcement::new(&map, 1, &ring(3));
        assert_eq!(number(&map), 1);
        drop(first);
        assert_eq!(number(&map), 0);
        let dead = Announcement::new(&map, 2, &ring(4));
        let successor = Announcement::new(&map, 3, &ring(5));
        drop(dead);
        assert_eq!(read(&map), Some((3, ring(5))));
        drop(successor);
        assert_eq!(read(&map), None);
    }

    #[test]
    fn no_reader_sees_a_ring_that_was_not_written_whole() {
        let map = blank(SEATS_AREA);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| (1..20_000_u64).for_each(|at| write(&map, at, &ring(at as u8))));
            let mut seen = 0;
            while !writer.is_finished() || seen == 0 {
                if let Some((at, found)) = read(&map) {
                    assert_eq!(found, ring(at as u8), "{at}");
                    seen += 1;
                }
            }
        });
    }

    #[test]
    fn slots_follow_each_other_on_whole_pages() {
        for (observation_slots, observation_bytes) in [(1, 1), (4, 4096), (32, 4097)] {
            let geometry = Geometry { observation_slots, observation_bytes, ..Geometry::default() };
            let slots = DeviceSlots::of(&Layout::of(geometry));
            assert_eq!(slots.offset(0), 0);
            assert!(slots.offset(1) >= observation_bytes as usize && slots.offset(1).is_multiple_of(4096));
            assert_eq!(slots.offset(observation_slots), slots.total());
        }
    }
}
