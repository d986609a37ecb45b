//! A worker's hold on a region: the mapping, its seat's ring from the sidecar, the connection.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use core::time::Duration;
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::{AttachError, PREDECESSOR_PATIENCE, SlotMemory};
use crate::attach::{self, Answer, Answered, Call, Granted, Refusal, SeatClaim};
use crate::cells::MappedCells;
use crate::descriptor::Descriptor;
use crate::device::{self, Announced, DeviceSlots};
use crate::eventcount::{EventCount, Wish};
use crate::layout::{CONTROL, Geometry, Layout, block, control, seat_block, worker_page};
use crate::map::Map;
use crate::region::Header;
use crate::ring::{Consumer, Poison};
use crate::sync::{AtomicU32, Ordering};

/// See the module's text.
#[derive(Debug)]
pub(super) struct Attachment {
    map: Arc<Map>,
    layout: Layout,
    seat: usize,
    generation: u32,
    owner_generation: u32,
    region_id: u64,
    down: Consumer<MappedCells>,
    connection: OwnedFd,
    doorbell: OwnedFd,
    wake: OwnedFd,
    /// Asked the next sidecar for the seat; its answer is due.
    call: Option<Call>,
}

/// Why there is no attachment now.
#[derive(Debug)]
pub(super) enum Failed {
    /// Nobody listens, or nobody answered.
    Absent(io::Error),
    Refused {
        why: Refusal,
        pid: u32,
        text: String,
    },
    /// The region could not be used.
    Region(io::Error),
}

impl Failed {
    pub(super) fn into_error(self, path: &Path, waited: Duration) -> AttachError {
        let path = path.to_owned();
        match self {
            Self::Absent(source) => AttachError::NoSidecar { path, waited, source },
            Self::Refused { why, pid, text } => {
                let patience = match why {
                    Refusal::NotYet => Duration::MAX,
                    Refusal::Taken => PREDECESSOR_PATIENCE,
                    Refusal::Other => Duration::ZERO,
                };
                AttachError::Refused { path, text, pid, patience }
            }
            Self::Region(source) => AttachError::Region { path, source },
        }
    }
}

/// What a renewed attachment goes on with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Renewed {
    /// The same seat of the same region: rings and observations are still good.
    Resumed,
    /// Another seat or region: nothing of before means anything.
    Anew,
    /// The sidecar has not answered yet.
    NotYet,
}

impl Attachment {
    pub(super) fn new(path: &Path) -> Result<Self, Failed> {
        match attach::connect(path, None).map_err(Failed::Absent)? {
            Answer::Refused { why, pid, text } => Err(Failed::Refused { why, pid, text }),
            Answer::Granted(granted) => Self::map(*granted).map_err(Failed::Region),
        }
    }

    /// Attaches to the sidecar that is there now, with the seat that this has. Blocks for `wait` at most: call it again
    /// until it says something.
    pub(super) fn renew(&mut self, path: &Path, wait: Duration) -> Result<Renewed, Failed> {
        let call = match self.call.take() {
            Some(call) => call,
            None => Call::start(path, Some(self.claim())).map_err(Failed::Absent)?,
        };
        let granted = match call.answer(wait).map_err(Failed::Absent)? {
            Answered::NotYet(call) => {
                self.call = Some(call);
                return Ok(Renewed::NotYet);
            }
            Answered::Yes(Answer::Refused { why, pid, text }) => {
                return Err(Failed::Refused { why, pid, text });
            }
            Answered::Yes(Answer::Granted(granted)) => *granted,
        };
        let same = granted.resumed
            && granted.region_id == self.region_id
            && usize::from(granted.seat) == self.seat
            && granted.generation == self.generation;
        if !same {
            *self = Self::map(granted).map_err(Failed::Region)?;
            return Ok(Renewed::Anew);
        }
        self.owner_generation = granted.owner_generation;
        self.connection = granted.connection;
        self.doorbell = granted.doorbell;
        self.wake = granted.wake;
        Ok(Renewed::Resumed)
    }

    /// The seat that this has.
    pub(super) const fn claim(&self) -> SeatClaim {
        // There are two seats.
        SeatClaim { region: self.region_id, seat: self.seat as u8, generation: self.generation }
    }

    fn map(granted: Granted) -> io::Result<Self> {
        let invalid = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        let file = File::from(granted.region);
        let bytes = file.metadata()?.len();
        if bytes != granted.total_bytes || bytes < CONTROL as u64 {
            return Err(invalid(format!("it has {bytes} bytes, the sidecar said {}", granted.total_bytes)));
        }
        // Header and geometry are read once; the mapping is as long as both say.
        let length = usize::try_from(bytes).map_err(|_| invalid(format!("it has {bytes} bytes")))?;
        let map = Map::readable(&file, length)?;
        let header = Header::read(&map, bytes).map_err(invalid)?;
        if header.region != granted.region_id {
            return Err(invalid("its id is not the one the sidecar said".into()));
        }
        let layout = Layout::of(header.geometry);
        let seat = usize::from(granted.seat);
        map.allow_writing(layout.seat_area(seat), layout.seat_bytes())?;
        map.allow_writing(layout.observations(), length - layout.observations())?;
        map.word32(layout.seat_area(seat) + worker_page::TAKEN_UP).store(1, Ordering::Release);
        let map = Arc::new(map);
        let down = MappedCells::down(&map, &layout, seat);
        Ok(Self {
            map,
            layout,
            seat,
            generation: granted.generation,
            owner_generation: granted.owner_generation,
            region_id: granted.region_id,
            down: Consumer::new(down),
            connection: granted.connection,
            doorbell: granted.doorbell,
            wake: granted.wake,
            call: None,
        })
    }

    pub(super) const fn map_handle(&self) -> &Arc<Map> {
        &self.map
    }

    pub(super) const fn layout(&self) -> Layout {
        self.layout
    }

    pub(super) const fn geometry(&self) -> Geometry {
        self.layout.geometry()
    }

    pub(super) const fn seat(&self) -> usize {
        self.seat
    }

    pub(super) const fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) const fn region_id(&self) -> u64 {
        self.region_id
    }

    pub(super) fn doorbell(&self) -> io::Result<OwnedFd> {
        self.doorbell.try_clone()
    }

    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    pub(super) fn connection(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }

    pub(super) fn slot_memory(&self) -> SlotMemory {
        SlotMemory::observations(&self.map, &self.layout)
    }

    pub(super) fn action_memory(&self) -> SlotMemory {
        SlotMemory::actions(&self.map, &self.layout, self.seat)
    }

    /// Number of the sidecar's device ring, 0 for none.
    pub(super) fn device_ring_number(&self) -> u64 {
        device::number(&self.map)
    }

    pub(super) fn device_ring(&self) -> Option<Announced> {
        let slots = DeviceSlots::of(&self.layout);
        device::read(&self.map).map(|(number, ring)| Announced { number, ring, slots })
    }

    pub(super) fn pop(&mut self, record: &mut [u8; 384]) -> Result<Option<(Descriptor, usize)>, Poison> {
        self.down.try_pop(record)
    }

    /// Whether the ring has something, without taking it.
    pub(super) fn has_something(&self) -> bool {
        self.down.has_something()
    }

    /// Whether another sidecar has taken the region over.
    pub(super) fn has_new_owner(&self) -> bool {
        self.map.word32(control::OWNER_GENERATION).load(Ordering::Acquire) != self.owner_generation
    }

    /// Whether the sidecar ended in order.
    pub(super) fn has_ended(&self) -> bool {
        self.map.word32(control::STATE).load(Ordering::Acquire) == control::STATE_ENDED
    }

    /// Whether the sidecar reads nothing more from this worker.
    pub(super) fn is_detached(&self) -> bool {
        let block = block(self.seat);
        self.map.word32(block + seat_block::POISONED).load(Ordering::Acquire) != 0
            || self.map.word32(block + seat_block::GENERATION).load(Ordering::Acquire) != self.generation
    }

    /// Whether the connection to the sidecar has ended. Never blocks.
    pub(super) fn is_disconnected(&self) -> bool {
        match rustix::net::recv(&self.connection, &mut [0; 1], RecvFlags::DONTWAIT) {
            Ok((_, received)) => received == 0,
            Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }

    /// Says how the sidecar is to wake this worker.
    pub(super) fn wake_by_descriptor(&self) {
        self.map
            .word32(self.layout.seat_area(self.seat) + worker_page::BY_DESCRIPTOR)
            .store(1, Ordering::Release);
    }

    /// The word that says that this worker waits for room.
    pub(super) fn wants_room(&self) -> Wish<'_> {
        Wish::new(self.map.word32(self.layout.seat_area(self.seat) + worker_page::WANTS_ROOM))
    }

    pub(super) fn sequence_word(&self) -> &AtomicU32 {
        self.map.word32(block(self.seat) + seat_block::DOWN_SEQUENCE)
    }

    pub(super) fn events(&self) -> EventCount<'_> {
        EventCount::new(
            self.sequence_word(),
            self.map.word32(self.layout.seat_area(self.seat) + worker_page::DOWN_WAITERS),
        )
    }
}
