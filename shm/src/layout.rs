//! Where everything lies in the region: one file, mapped by the sidecar and by its worker.
//!
//! This module only computes offsets and checks geometry; it touches no memory. Whoever writes a page is told by the
//! page: no page has two writers, except an observation slot, which passes from one to the other.
//!
//! | offset | bytes | writer | what |
//! |---|---|---|---|
//! | 0 | [`JOURNAL_BYTES`] 16,384 | sidecar | journal: readable across layout versions (see [`crate::journal`]) |
//! | [`HEADER`] 16,384 | 4,096 | sidecar, once | header: magic, version, geometry |
//! | [`CONTROL`] 20,480 | 4,096 | sidecar | owner generation, state, epoch word; a block for each seat |
//! | [`STATS`] 24,576 | [`STATS_BYTES`] 49,152 | sidecar | counters, gauges, latency histograms |
//! | [`ERRORS`] 73,728 | [`ERRORS_BYTES`] 16,384 | sidecar | distinct errors, each text once |
//! | [`DOWN`] 90,112 | 2 x [`RING_BYTES`] 32,768 | sidecar | descriptor ring to the worker, one for each seat |
//! | [`SEATS_AREA`] 155,648 | 2 x [`Layout::seat_bytes`] | that seat's worker | control page, ring to the sidecar, action slots |
//! | [`Layout::observations`] | N x [`Layout::slot_stride`] | sidecar until published, then the worker | observation slots |
//!
//! Header page, all fields little-endian (checked by [`header::ENDIAN`]):
//!
//! | offset | type | what |
//! |---|---|---|
//! | 0 | u64 | [`MAGIC`], stored last |
//! | 8 | u32 | [`VERSION`] of the layout, stored just before the magic |
//! | 12 | u32 | [`ENDIAN_TAG`] |
//! | 16 | u32 | observation slots |
//! | 20 | u32 | bytes of an observation slot, without headroom |
//! | 24 | u32 | action slots of one seat |
//! | 28 | u32 | bytes of an action slot |
//! | 32 | u64 | bytes of the whole region |
//! | 40 | u64 | id of this region, random: a replaced region is told from this one by it |
//!
//! Control page: see [`control`] and [`device_ring`]; block of a seat in it: see [`seat_block`]; a seat's own control page: see
//! [`worker_page`]. Words that different processes write or spin on are a cache line (64 bytes) apart, two lines
//! where a neighbour line would be prefetched.
//!
//! An observation slot is one page of headroom followed by the payload, which therefore starts on a page. The WebSocket
//! and tunnel headers of a frame are received into the end of the headroom, so that the payload lands where it stays.

use sidecar_core::agent::HEADROOM;

/// The first eight bytes of the header page: `sidecar` and the byte of this format family.
pub const MAGIC: u64 = u64::from_le_bytes(*b"sidecar\x01");
/// Layout version that this library writes and attaches to.
pub const VERSION: u32 = 2;
/// Written as a native word: reads differently on a machine of the other byte order.
pub const ENDIAN_TAG: u32 = 0x0102_0304;
/// All areas with different writers start on this boundary.
pub const PAGE: usize = 4096;
/// Two: the live worker, and a predecessor that is not yet proved dead.
pub const SEATS: usize = 2;
/// In a model everything is as small as it can be: each word costs every one of its runs.
const MODELLED: bool = cfg!(sidecar_loom);
/// Bytes of a ring cell: a 64-byte descriptor, an inline record, spare.
pub const CELL: usize = 512;
/// Cells of each descriptor ring. More than [`MAX_OBSERVATION_SLOTS`] and [`MAX_ACTION_SLOTS`] with room for records.
pub const RING_CAPACITY: u32 = if MODELLED { 8 } else { 64 };
/// Bytes of the cells of one ring.
pub const RING_BYTES: usize = RING_CAPACITY as usize * CELL;
/// Most observation slots: the journal has a record for each.
pub const MAX_OBSERVATION_SLOTS: u32 = if MODELLED { 2 } else { 32 };
/// Most action slots of a seat: they and the release records of all slots fit the ring at once.
pub const MAX_ACTION_SLOTS: u32 = if MODELLED { 2 } else { 32 };
/// Largest observation slot, in bytes: offsets in a slot are `u32`, with room for the headroom.
pub const MAX_OBSERVATION_BYTES: u32 = 1 << 30;
/// Largest action slot, in bytes.
pub const MAX_ACTION_BYTES: u32 = 1 << 26;

/// Bytes of the journal, at offset 0.
pub const JOURNAL_BYTES: usize = 4 * PAGE;
/// Offset of the header page.
pub const HEADER: usize = JOURNAL_BYTES;
/// Offset of the control page.
pub const CONTROL: usize = HEADER + PAGE;
/// Offset of the statistics pages.
pub const STATS: usize = CONTROL + PAGE;
/// Bytes of the statistics pages.
pub const STATS_BYTES: usize = 12 * PAGE;
/// Offset of the distinct-error log.
pub const ERRORS: usize = STATS + STATS_BYTES;
/// Bytes of the distinct-error log.
pub const ERRORS_BYTES: usize = 4 * PAGE;
/// Offset of the rings to the worker.
pub const DOWN: usize = ERRORS + ERRORS_BYTES;
/// Offset of the first seat's worker-written area.
pub const SEATS_AREA: usize = DOWN + SEATS * RING_BYTES;

/// Offsets in the header page.
pub mod header {
    /// u64, see [`super::MAGIC`].
    pub const MAGIC: usize = super::HEADER;
    /// u32, see [`super::VERSION`].
    pub const VERSION: usize = super::HEADER + 8;
    /// u32, see [`super::ENDIAN_TAG`].
    pub const ENDIAN: usize = super::HEADER + 12;
    /// u32, number of observation slots.
    pub const OBSERVATION_SLOTS: usize = super::HEADER + 16;
    /// u32, payload bytes of an observation slot.
    pub const OBSERVATION_BYTES: usize = super::HEADER + 20;
    /// u32, number of action slots of a seat.
    pub const ACTION_SLOTS: usize = super::HEADER + 24;
    /// u32, bytes of an action slot.
    pub const ACTION_BYTES: usize = super::HEADER + 28;
    /// u64, bytes of the region.
    pub const TOTAL: usize = super::HEADER + 32;
    /// u64, random.
    pub const REGION: usize = super::HEADER + 40;
}

/// Offsets in the control page, which the sidecar alone writes.
pub mod control {
    /// u32: counts the sidecars that owned this region. The worker compares it after each publish and each wait.
    pub const OWNER_GENERATION: usize = super::CONTROL;
    /// u32: [`STATE_RUNNING`] or [`STATE_ENDED`].
    pub const STATE: usize = super::CONTROL + 4;
    /// u32: the epoch of the session that is open, 0 for none. Lets a worker see that its session is over.
    pub const EPOCH: usize = super::CONTROL + 128;
    /// First of the blocks of the seats, see [`super::seat_block`].
    pub const BLOCKS: usize = super::CONTROL + 512;
    /// Bytes of a seat's block.
    pub const BLOCK_BYTES: usize = 1024;
    /// A sidecar owns the region, or owned it and crashed.
    pub const STATE_RUNNING: u32 = 1;
    /// The sidecar ended in order; nobody follows.
    pub const STATE_ENDED: u32 = 2;
}

/// Offsets in the control page of what [`crate::device`] says. A sidecar without a ring on a device leaves zeroes.
pub mod device_ring {
    /// u64: number of the ring, 0 for none; stored last.
    pub const NUMBER: usize = super::CONTROL + 3072;
    /// How to open it.
    pub const BYTES: usize = super::CONTROL + 3080;
    /// Nothing lies behind.
    pub const END: usize = super::CONTROL + super::PAGE;
}

/// Offsets in a seat's block of the control page, which the sidecar alone writes.
pub mod seat_block {
    /// u32: generation of the worker that has the seat; another one than granted means: leave.
    pub const GENERATION: usize = 0;
    /// u32: 1 once this worker was told to go because of nonsense in its pages.
    pub const POISONED: usize = 4;
    /// u32: sequence word of the eventcount that the worker waits on.
    pub const DOWN_SEQUENCE: usize = 128;
    /// u32: producer position of the ring to the worker, for the sidecar's successor.
    pub const DOWN_TAIL: usize = 256;
    /// u32: consumer position of the ring to the sidecar. An action slot is the worker's again when it has passed the
    /// slot's action.
    pub const UP_HEAD: usize = 384;
    /// u32: waiters word of the eventcount that the sidecar sleeps on: armed only while it sleeps.
    pub const UP_WAITERS: usize = 512;
}

/// Offsets in a seat's own control page, which that worker alone writes while it has the seat.
pub mod worker_page {
    /// u32: consumer position of the ring to the worker.
    pub const DOWN_HEAD: usize = 0;
    /// u32: producer position of the ring to the sidecar, for who asks how far it came.
    pub const UP_TAIL: usize = 128;
    /// u32: sequence word of the eventcount that the sidecar sleeps on.
    pub const UP_SEQUENCE: usize = 256;
    /// u32: waiters word of the eventcount that the worker waits on.
    pub const DOWN_WAITERS: usize = 384;
    /// u32: 1 while the worker waits for room: a free action slot or a free cell.
    pub const WANTS_ROOM: usize = 448;
    /// u32: 1 when the worker waits on its wake descriptor, a socket, instead of the futex.
    pub const BY_DESCRIPTOR: usize = 452;
    /// u32: 1 once the worker has mapped the region: it knows of its seat.
    pub const TAKEN_UP: usize = 456;
    /// u32: 1 once the worker has closed its handle and dropped every observation and reservation: it touches neither
    /// this seat nor any slot any more, though its process may live on. The last word it writes here.
    pub const LEFT: usize = 460;
}

/// Number and size of the slots: what a user chooses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Observation slots, `1..=`[`MAX_OBSERVATION_SLOTS`].
    pub observation_slots: u32,
    /// Payload bytes of an observation slot, `1..=`[`MAX_OBSERVATION_BYTES`]; the region rounds up to whole pages.
    pub observation_bytes: u32,
    /// Action slots of each seat, `1..=`[`MAX_ACTION_SLOTS`].
    pub action_slots: u32,
    /// Bytes of an action slot, `1..=`[`MAX_ACTION_BYTES`]; the region rounds up to whole pages.
    pub action_bytes: u32,
}

impl Default for Geometry {
    /// 4 x 8 MiB and 16 x 64 KiB: 36 MB in all, which fits the 64 MB that a container's `/dev/shm` has by default.
    fn default() -> Self {
        Self { observation_slots: 4, observation_bytes: 8 << 20, action_slots: 16, action_bytes: 64 << 10 }
    }
}

/// A number of a geometry is outside of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is {value}, it must be from 1 to {most}")]
pub struct GeometryError {
    /// Which number.
    pub what: &'static str,
    /// What it was.
    pub value: u32,
    /// The largest it may be.
    pub most: u32,
}

impl Geometry {
    /// Every number within its range.
    ///
    /// # Errors
    /// The first number that is not.
    pub const fn check(&self) -> Result<(), GeometryError> {
        const fn within(what: &'static str, value: u32, most: u32) -> Result<(), GeometryError> {
            if value == 0 || value > most { Err(GeometryError { what, value, most }) } else { Ok(()) }
        }
        if let Err(error) =
            within("the number of observation slots", self.observation_slots, MAX_OBSERVATION_SLOTS)
        {
            return Err(error);
        }
        if let Err(error) =
            within("the size of an observation slot", self.observation_bytes, MAX_OBSERVATION_BYTES)
        {
            return Err(error);
        }
        if let Err(error) = within("the number of action slots", self.action_slots, MAX_ACTION_SLOTS) {
            return Err(error);
        }
        within("the size of an action slot", self.action_bytes, MAX_ACTION_BYTES)
    }

    /// Bytes of a region of this geometry. Meaningful only after [`Geometry::check`].
    pub const fn total_bytes(&self) -> usize {
        Layout::of(*self).total()
    }
}

/// The offsets that depend on the geometry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    geometry: Geometry,
}

impl Layout {
    /// The layout of a geometry that passed [`Geometry::check`].
    pub const fn of(geometry: Geometry) -> Self {
        Self { geometry }
    }

    /// The geometry it was made from.
    pub const fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Distance between two action slots.
    pub const fn action_stride(&self) -> usize {
        (self.geometry.action_bytes as usize).next_multiple_of(PAGE)
    }

    /// Bytes of a seat's worker-written area: control page, ring, action slots.
    pub const fn seat_bytes(&self) -> usize {
        PAGE + RING_BYTES + self.geometry.action_slots as usize * self.action_stride()
    }

    /// The control page of a seat, the start of its worker-written area.
    pub const fn seat_area(&self, seat: usize) -> usize {
        SEATS_AREA + seat * self.seat_bytes()
    }

    /// Cells of the ring from a seat to the sidecar.
    pub const fn up_cells(&self, seat: usize) -> usize {
        self.seat_area(seat) + PAGE
    }

    /// An action slot of a seat.
    pub const fn action(&self, seat: usize, index: usize) -> usize {
        self.up_cells(seat) + RING_BYTES + index * self.action_stride()
    }

    /// The first observation slot.
    pub const fn observations(&self) -> usize {
        self.seat_area(SEATS)
    }

    /// Distance between two observation slots: headroom and payload.
    pub const fn slot_stride(&self) -> usize {
        HEADROOM as usize + (self.geometry.observation_bytes as usize).next_multiple_of(PAGE)
    }

    /// Distance between two slots of a ring on a device, which has no headroom.
    pub const fn device_stride(&self) -> usize {
        (self.geometry.observation_bytes as usize).next_multiple_of(PAGE)
    }

    /// Start of the headroom of an observation slot; the payload follows after [`HEADROOM`] bytes.
    pub const fn slot(&self, index: usize) -> usize {
        self.observations() + index * self.slot_stride()
    }

    /// Bytes of the region.
    pub const fn total(&self) -> usize {
        self.slot(self.geometry.observation_slots as usize)
    }
}

/// Cells of the ring from the sidecar to a seat.
pub const fn down_cells(seat: usize) -> usize {
    DOWN + seat * RING_BYTES
}

/// A seat's block of the control page.
pub const fn block(seat: usize) -> usize {
    control::BLOCKS + seat * control::BLOCK_BYTES
}

const _: () = {
    assert!(HEADER == 16_384 && CONTROL == 20_480 && STATS == 24_576 && ERRORS == 73_728);
    assert!(DOWN == 90_112 && (MODELLED || SEATS_AREA == 155_648));
    assert!(HEADER.is_multiple_of(PAGE) && STATS.is_multiple_of(PAGE) && ERRORS.is_multiple_of(PAGE));
    assert!(DOWN.is_multiple_of(PAGE) && SEATS_AREA.is_multiple_of(PAGE));
    assert!(RING_BYTES.is_multiple_of(PAGE) && RING_CAPACITY.is_power_of_two());
    assert!(HEADROOM as usize == PAGE, "the payload must start on a page");
    assert!(block(SEATS) <= device_ring::NUMBER, "blocks of the seats and what follows fit the control page");
    assert!(seat_block::UP_WAITERS + 64 <= control::BLOCK_BYTES);
    assert!(worker_page::LEFT + 4 <= PAGE);
    let records = if MODELLED { 4 } else { 16 };
    assert!(RING_CAPACITY >= MAX_OBSERVATION_SLOTS + records, "records fit beside every observation");
    // Room for all actions of a seat and one record for each slot, so that a release never waits for an action.
    assert!(RING_CAPACITY >= MAX_ACTION_SLOTS + MAX_OBSERVATION_SLOTS);
    let layout = Layout::of(Geometry {
        observation_slots: 4,
        observation_bytes: 8 << 20,
        action_slots: 16,
        action_bytes: 64 << 10,
    });
    assert!(layout.seat_area(0) == SEATS_AREA && layout.seat_area(1) == SEATS_AREA + layout.seat_bytes());
    assert!(MODELLED || layout.observations() == 155_648 + 2 * (4096 + 32_768 + 16 * 65_536));
    assert!(layout.slot_stride() == 4096 + (8 << 20));
    assert!(layout.total() < 36_000_000, "the default fits a default container's 64 MB");
    assert!(layout.slot(3).is_multiple_of(PAGE) && layout.action(1, 15).is_multiple_of(PAGE));
    let widest = Layout::of(Geometry {
        observation_slots: MAX_OBSERVATION_SLOTS,
        observation_bytes: MAX_OBSERVATION_BYTES,
        action_slots: MAX_ACTION_SLOTS,
        action_bytes: MAX_ACTION_BYTES,
    });
    assert!(widest.total() > widest.slot(0) && widest.total() < isize::MAX as usize);
    assert!(MAX_OBSERVATION_BYTES as u64 + HEADROOM as u64 <= u32::MAX as u64);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_of_any_geometry_follow_each_other_on_whole_pages() {
        for (observation_slots, observation_bytes) in [(1, 1), (3, 4095), (4, 8 << 20), (32, 4097)] {
            for (action_slots, action_bytes) in [(1, 1), (16, 64 << 10), (32, 4097)] {
                let geometry = Geometry { observation_slots, observation_bytes, action_slots, action_bytes };
                geometry.check().unwrap();
                let layout = Layout::of(geometry);
                let mut areas =
                    vec![(0, JOURNAL_BYTES), (HEADER, PAGE), (CONTROL, PAGE), (STATS, STATS_BYTES)];
                areas.push((ERRORS, ERRORS_BYTES));
                areas.extend((0..SEATS).map(|seat| (down_cells(seat), RING_BYTES)));
                for seat in 0..SEATS {
                    areas.push((layout.seat_area(seat), PAGE));
                    areas.push((layout.up_cells(seat), RING_BYTES));
                    let slots = 0..action_slots as usize;
                    areas.extend(slots.map(|index| (layout.action(seat, index), layout.action_stride())));
                }
                areas.extend(
                    (0..observation_slots as usize).map(|index| (layout.slot(index), layout.slot_stride())),
                );
                let mut end = 0;
                for (start, length) in areas {
                    assert_eq!(start, end, "{geometry:?}");
                    assert_eq!(length % PAGE, 0);
                    end = start + length;
                }
                assert_eq!(end, geometry.total_bytes());
                assert!(layout.action_stride() >= action_bytes as usize);
                assert!(layout.slot_stride() >= (HEADROOM + observation_bytes) as usize);
            }
        }
    }

    #[test]
    fn each_number_of_a_geometry_has_its_range() {
        type Number = fn(&mut Geometry) -> &mut u32;
        let numbers: [(Number, u32); 4] = [
            (|geometry| &mut geometry.observation_slots, MAX_OBSERVATION_SLOTS),
            (|geometry| &mut geometry.observation_bytes, MAX_OBSERVATION_BYTES),
            (|geometry| &mut geometry.action_slots, MAX_ACTION_SLOTS),
            (|geometry| &mut geometry.action_bytes, MAX_ACTION_BYTES),
        ];
        for (number, most) in numbers {
            for (value, fits) in [(0, false), (1, true), (most, true), (most + 1, false), (u32::MAX, false)] {
                let mut geometry = Geometry::default();
                *number(&mut geometry) = value;
                let checked = geometry.check();
                assert_eq!(checked.is_ok(), fits, "{geometry:?}");
                if let Err(error) = checked {
                    assert_eq!((error.value, error.most), (value, most));
                }
            }
        }
    }
}
