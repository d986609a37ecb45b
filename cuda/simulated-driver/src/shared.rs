//! Memory that another process can open by a name of 64 bytes, as the handles of CUDA's IPC are. It is gone with the
//! process that made it, however that ends.
#![expect(clippy::disallowed_types, reason = "another side than the region's: no model is about these words")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of a handle, CUDA's `CU_IPC_HANDLE_SIZE`.
pub(crate) const HANDLE: usize = 64;
/// In front of the bytes: two counters, and who has it open.
const FRONT: usize = 4096;
const RECORDED: usize = 0;
const REACHED: usize = 8;
const OPENERS: usize = 64;
const MOST_OPENERS: usize = 16;

/// What a handle says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Name {
    kind: u32,
    pid: u32,
    fd: i32,
    /// Tells two copies of this library in one process apart.
    instance: u64,
    length: u64,
    pub(crate) uuid: [u8; 16],
}

impl Name {
    pub(crate) fn write(&self) -> [u8; HANDLE] {
        let mut bytes = [0; HANDLE];
        bytes[..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.pid.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.fd.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.instance.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.length.to_le_bytes());
        bytes[32..48].copy_from_slice(&self.uuid);
        bytes
    }

    /// `None`: no handle of this kind.
    pub(crate) fn read(bytes: &[u8; HANDLE], kind: u32) -> Option<Self> {
        let part = |from: usize| bytes.get(from..from + 8).and_then(|part| part.try_into().ok());
        let word = |from: usize| part(from).map(u64::from_le_bytes);
        let [low, high] = [word(0)?, word(8)?];
        let name = Self {
            // The halves: truncation is meant.
            kind: low as u32,
            pid: (low >> 32) as u32,
            fd: high as u32 as i32,
            instance: word(16)?,
            length: word(24)?,
            uuid: bytes[32..48].try_into().ok()?,
        };
        (name.kind == kind).then_some(name)
    }

    /// Whether this copy of the library made it.
    pub(crate) fn is_ours(&self) -> bool {
        (self.pid, self.instance) == (std::process::id(), instance())
    }
}

fn instance() -> u64 {
    static HERE: u8 = 0;
    (&raw const HERE).addr() as u64
}

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Shared {
    start: *mut u8,
    name: Name,
    /// What makes the name mean something; an opener needs it no more.
    file: Option<File>,
}

// SAFETY: the pointer goes into a mapping of this value's own; what is in it is under the one lock of the library.
unsafe impl Send for Shared {}

impl Shared {
    /// # Errors
    /// The system refuses.
    pub(crate) fn new(kind: u32, uuid: [u8; 16], bytes: &[u8]) -> io::Result<Self> {
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"simulated-cuda".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: it was just made, and is nobody else's.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len((FRONT + bytes.len()) as u64)?;
        let length = bytes.len() as u64;
        let name = Name { kind, pid: std::process::id(), fd, instance: instance(), length, uuid };
        let start = map(&file, FRONT + bytes.len())?;
        let mut shared = Self { start, name, file: Some(file) };
        shared.bytes().copy_from_slice(bytes);
        Ok(shared)
    }

    /// # Errors
    /// Whoever made it is gone, or it is no name of anything.
    pub(crate) fn open(name: Name) -> io::Result<Self> {
        let path = format!("/proc/{}/fd/{}", name.pid, name.fd);
        let file = File::options().read(true).write(true).open(path)?;
        let length = usize::try_from(name.length).map_err(io::Error::other)?;
        if file.metadata()?.len() != (FRONT + length) as u64 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let start = map(&file, FRONT + length)?;
        let shared = Self { start, name, file: None };
        let free = |at: &usize| {
            let word = shared.opener(*at);
            word.compare_exchange(0, us(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        (0..MOST_OPENERS).find(free).ok_or_else(|| io::Error::other("too many have it open"))?;
        Ok(shared)
    }

    pub(crate) const fn name(&self) -> &Name {
        &self.name
    }

    /// How many others, alive, have it open.
    pub(crate) fn openers(&self) -> usize {
        (0..MOST_OPENERS)
            .filter(|at| {
                let pid = (self.opener(*at).load(Ordering::SeqCst) >> 32) as u32;
                // SAFETY: signal 0 only asks whether the process is there.
                pid != 0 && unsafe { libc::kill(pid.cast_signed(), 0) } == 0
            })
            .count()
    }

    pub(crate) fn recorded(&self) -> &AtomicU64 {
        self.word(RECORDED)
    }

    pub(crate) fn reached(&self) -> &AtomicU64 {
        self.word(REACHED)
    }

    /// Like a device's memory: whoever has it open may read and write it, and sees what the others do.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        // The name was checked against the file's size.
        let length = self.name.length as usize;
        // SAFETY: mapped behind the front for `length` bytes, for as long as this lives.
        unsafe { core::slice::from_raw_parts_mut(self.start.wrapping_add(FRONT), length) }
    }

    fn opener(&self, at: usize) -> &AtomicU64 {
        self.word(OPENERS + at * 8)
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: in the front, aligned, and only ever used as an atomic.
        unsafe { AtomicU64::from_ptr(self.start.wrapping_add(offset).cast()) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if self.file.is_none() {
            let ours = |at: &usize| {
                let word = self.opener(*at);
                word.compare_exchange(us(), 0, Ordering::SeqCst, Ordering::SeqCst).is_ok()
            };
            let _ = (0..MOST_OPENERS).find(ours);
        }
        // SAFETY: our own mapping, of which no reference is left.
        unsafe { libc::munmap(self.start.cast(), FRONT + self.name.length as usize) };
    }
}

fn us() -> u64 {
    u64::from(std::process::id()) << 32 | (instance() >> 4 & 0xFFFF_FFFF)
}

fn map(file: &File, length: usize) -> io::Result<*mut u8> {
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at an address that the system chooses.
    let start =
        unsafe { libc::mmap(core::ptr::null_mut(), length, rights, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.cast()) }
}
