//! Registered host ranges and device allocations.

use std::collections::BTreeMap;

use crate::host;
use crate::ipc;
use crate::shared::{Name, Shared};
use crate::state::{ALREADY_REGISTERED, INVALID_VALUE, NOT_REGISTERED, OUT_OF_MEMORY, State};

/// Device pointers start here: no host address of a 64-bit Linux process is as high, so that using one is a fault.
const FIRST: u64 = 0xD000_0000_0000_0000;
/// Where the device sees registered host memory.
const MAPPED: u64 = 0xE000_0000_0000_0000;
/// `CU_MEMHOSTREGISTER_DEVICEMAP`.
const DEVICEMAP: u32 = 2;
/// `CU_MEMHOSTREGISTER_PORTABLE`.
const PORTABLE: u32 = 1;

/// A page-locked host range.
#[derive(Debug)]
pub(crate) struct Registered {
    pub(crate) length: usize,
    flags: u32,
    /// What was allocated by us; `None`: it was registered, and is somebody else's.
    own: Option<Vec<u8>>,
}

/// Memory on a device.
#[derive(Debug)]
pub(crate) struct Allocation {
    device: i32,
    bytes: Bytes,
    origin: Origin,
}

/// Where the bytes of an allocation are kept.
#[derive(Debug)]
enum Bytes {
    Here(Vec<u8>),
    /// Other processes have them, too, or may.
    Shared(Shared),
}

impl Bytes {
    fn all(&mut self) -> &mut [u8] {
        match self {
            Self::Here(bytes) => bytes,
            Self::Shared(shared) => shared.bytes(),
        }
    }
}

/// Who allocated it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Origin {
    Us,
    /// Another process; it is open here.
    Other,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    registered: BTreeMap<usize, Registered>,
    allocations: BTreeMap<u64, Allocation>,
    lengths: BTreeMap<u64, usize>,
    freed: Vec<u64>,
    next: u64,
}

impl Memory {
    pub(crate) fn leaks(&self) -> Vec<String> {
        let host = self.registered.iter().map(|(start, it)| {
            let how = if it.own.is_some() { "allocated" } else { "registered" };
            format!("{} {how} bytes at {start:#x}", it.length)
        });
        let device = self.allocations.iter().map(|(at, it)| {
            let of = if it.origin == Origin::Us { "" } else { "another process's " };
            format!("{} bytes of {of}device memory at {at:#x}", self.length(*at))
        });
        host.chain(device).collect()
    }

    /// Registered ranges that are not mapped any more.
    pub(crate) fn unmapped(&self) -> Vec<String> {
        let gone = |(start, it): &(&usize, &Registered)| !host::is_mapped(**start, it.length);
        let say = |(start, it): (&usize, &Registered)| {
            format!("{} bytes at {start:#x} are registered and not mapped any more", it.length)
        };
        self.registered.iter().filter(gone).map(say).collect()
    }

    pub(crate) fn bytes_on(&self, device: i32) -> usize {
        let ours = |it: &(&u64, &Allocation)| it.1.device == device && it.1.origin == Origin::Us;
        self.allocations.iter().filter(ours).map(|(at, _)| self.length(*at)).sum()
    }

    /// Of the allocation that starts there, or started once.
    pub(crate) fn length(&self, at: u64) -> usize {
        self.lengths.get(&at).copied().unwrap_or(0)
    }

    /// An address for so many bytes. A gap behind each, so that running over the end meets nothing.
    fn place(&mut self, device: i32, bytes: Bytes, origin: Origin, length: usize) -> u64 {
        let at = FIRST + self.next;
        self.next += (length as u64).next_multiple_of(1 << 20) + (1 << 20);
        self.lengths.insert(at, length);
        self.allocations.insert(at, Allocation { device, bytes, origin });
        at
    }

    /// Lets other processes have it.
    pub(crate) fn share(&mut self, at: u64, uuid: [u8; 16]) -> Result<Name, String> {
        let Some(allocation) = self.allocations.get_mut(&at).filter(|it| it.origin == Origin::Us) else {
            return Err("it is no allocation of this process".into());
        };
        if let Bytes::Here(bytes) = &allocation.bytes {
            let shared = Shared::new(ipc::MEMORY, uuid, bytes).map_err(|error| error.to_string())?;
            allocation.bytes = Bytes::Shared(shared);
        }
        match &allocation.bytes {
            Bytes::Shared(shared) => Ok(*shared.name()),
            Bytes::Here(_) => Err("it is not shared".into()),
        }
    }

    /// Another process's memory.
    pub(crate) fn import(&mut self, device: i32, mut shared: Shared) -> u64 {
        let length = shared.bytes().len();
        self.place(device, Bytes::Shared(shared), Origin::Other, length)
    }

    /// `false`: it is none of another process's.
    pub(crate) fn unimport(&mut self, at: u64) -> bool {
        let other = self.allocations.get(&at).is_some_and(|it| it.origin == Origin::Other);
        other && self.allocations.remove(&at).is_some()
    }

    /// Whether the whole range is registered, none of it is, or a part (`Err`).
    pub(crate) fn is_registered(&self, start: usize, length: usize) -> Result<bool, ()> {
        let end = start.saturating_add(length);
        let overlaps = |(at, it): (&usize, &Registered)| *at < end && start < at.saturating_add(it.length);
        if !self.registered.iter().any(overlaps) {
            return Ok(false);
        }
        let inside = |(at, it): (&usize, &Registered)| *at <= start && end <= at.saturating_add(it.length);
        if self.registered.iter().any(inside) { Ok(true) } else { Err(()) }
    }

    /// The allocation that holds the whole range, and the offset in it.
    pub(crate) fn on_device(&mut self, pointer: u64, length: usize) -> Option<&mut [u8]> {
        let (start, allocation) = self.allocations.range_mut(..=pointer).next_back()?;
        let offset = usize::try_from(pointer - start).ok()?;
        allocation.bytes.all().get_mut(offset..offset.checked_add(length)?)
    }
}

impl State {
    pub(crate) fn register(&mut self, start: usize, length: usize, flags: u32) -> Result<(), u32> {
        if start == 0 || length == 0 {
            return self.refuse(format!("cuMemHostRegister of {length} bytes at {start:#x}"), INVALID_VALUE);
        }
        if !host::is_mapped(start, length) {
            return self.refuse(
                format!("cuMemHostRegister of {length} bytes at {start:#x}, which are not mapped"),
                INVALID_VALUE,
            );
        }
        if flags & PORTABLE == 0 {
            self.violation(format!(
                "cuMemHostRegister with flags {flags:#x}: to other contexts of the process it is not page-locked"
            ));
        }
        if self.memory.is_registered(start, length) != Ok(false) {
            return Err(ALREADY_REGISTERED);
        }
        self.memory.registered.insert(start, Registered { length, flags, own: None });
        Ok(())
    }

    pub(crate) fn unregister(&mut self, start: usize) -> Result<(), u32> {
        let Some(range) = self.memory.registered.get(&start).filter(|range| range.own.is_none()) else {
            return self.refuse(
                format!("cuMemHostUnregister of {start:#x}, which is not registered"),
                NOT_REGISTERED,
            );
        };
        let length = range.length;
        if !host::is_mapped(start, length) {
            self.violation(format!(
                "{length} bytes at {start:#x} were unmapped before they were unregistered"
            ));
        }
        if self.streams.uses_host(start, length) {
            self.violation(format!("{length} bytes at {start:#x} were unregistered while a copy is queued"));
        }
        self.memory.registered.remove(&start);
        Ok(())
    }

    pub(crate) fn device_pointer(&mut self, address: usize) -> Result<u64, u32> {
        let found = self.memory.registered.range(..=address).next_back();
        let Some((start, range)) = found.filter(|(start, it)| address < *start + it.length) else {
            self.violation(format!("cuMemHostGetDevicePointer of {address:#x}, which is not registered"));
            return Err(NOT_REGISTERED);
        };
        if range.flags & DEVICEMAP == 0 {
            self.violation(format!("cuMemHostGetDevicePointer of memory at {start:#x} that was not mapped"));
            return Err(INVALID_VALUE);
        }
        Ok(MAPPED + address as u64)
    }

    pub(crate) fn allocate_host(&mut self, length: usize, flags: u32) -> Result<usize, u32> {
        if length == 0 {
            self.violation("cuMemHostAlloc of 0 bytes".into());
            return Err(INVALID_VALUE);
        }
        let mut own = vec![0xD5; length];
        let start = own.as_mut_ptr().expose_provenance();
        self.memory.registered.insert(start, Registered { length, flags, own: Some(own) });
        Ok(start)
    }

    pub(crate) fn free_host(&mut self, start: usize) -> Result<(), u32> {
        let Some(range) = self.memory.registered.get(&start).filter(|range| range.own.is_some()) else {
            let what = format!("cuMemFreeHost of {start:#x}, which cuMemHostAlloc did not give");
            return self.refuse(what, INVALID_VALUE);
        };
        let length = range.length;
        if self.streams.uses_host(start, length) {
            self.violation(format!("{length} bytes at {start:#x} were freed while a copy is queued"));
        }
        self.memory.registered.remove(&start);
        Ok(())
    }

    pub(crate) fn allocate(&mut self, device: i32, length: usize) -> Result<u64, u32> {
        if length == 0 {
            self.violation("cuMemAlloc of 0 bytes".into());
            return Err(INVALID_VALUE);
        }
        let total = self.device(device).map_or(0, |it| it.total);
        if self.memory.bytes_on(device).saturating_add(length) > total {
            return Err(OUT_OF_MEMORY);
        }
        Ok(self.memory.place(device, Bytes::Here(vec![0xD5; length]), Origin::Us, length))
    }

    pub(crate) fn free(&mut self, at: u64) -> Result<(), u32> {
        let ours = self.memory.allocations.get(&at).is_some_and(|it| it.origin == Origin::Us);
        if ours && let Some(allocation) = self.memory.allocations.remove(&at) {
            self.memory.freed.push(at);
            if let Bytes::Shared(shared) = &allocation.bytes
                && shared.openers() > 0
            {
                self.violation(format!("cuMemFree of {at:#x}, which another process has open"));
            }
            return Ok(());
        }
        let what = if self.memory.freed.contains(&at) { "a second time" } else { "which is none of ours" };
        self.refuse(format!("cuMemFree of {at:#x}, {what}"), INVALID_VALUE)
    }
}
