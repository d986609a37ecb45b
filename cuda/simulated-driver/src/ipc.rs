//! Memory and events of one process in another: the calls with `Ipc` in their names.
//!
//! Work that another process waits for is moved on by a thread of this one, a piece at a time: nobody in the other
//! process could ask for it.

use core::time::Duration;
use std::sync::Once;

use crate::shared::{HANDLE, Name, Shared};
use crate::state::{
    self, INVALID_CONTEXT, INVALID_HANDLE, INVALID_VALUE, NOT_SUPPORTED, PEER_UNSUPPORTED, State,
};

/// `CU_EVENT_DISABLE_TIMING` and `CU_EVENT_INTERPROCESS` (cuda.h).
const INTERPROCESS: u32 = 2 | 4;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, the only flag there is.
const LAZY: u32 = 1;

pub(crate) const MEMORY: u32 = u32::from_le_bytes(*b"SIMM");
pub(crate) const EVENT: u32 = u32::from_le_bytes(*b"SIME");

/// Between two pieces of work that another process waits for.
const BEAT: Duration = Duration::from_micros(300);

impl State {
    fn ipc(&self) -> Result<(), u32> {
        if self.config.as_ref().is_some_and(|config| config.ipc) { Ok(()) } else { Err(NOT_SUPPORTED) }
    }

    fn here(&self) -> [u8; 16] {
        let device = self.current().and_then(|device| self.device(device));
        device.map_or([0; 16], |device| device.uuid)
    }

    pub(crate) fn export_memory(&mut self, at: u64) -> Result<[u8; HANDLE], u32> {
        self.ipc()?;
        let uuid = self.here();
        match self.memory.share(at, uuid) {
            Ok(name) => Ok(name.write()),
            Err(why) => {
                self.violation(format!("cuIpcGetMemHandle of {at:#x}: {why}"));
                Err(INVALID_VALUE)
            }
        }
    }

    /// What a handle names, if another process that lives made it for this device.
    fn open(&mut self, handle: &[u8; HANDLE], kind: u32, call: &str) -> Result<Shared, u32> {
        self.ipc()?;
        let Some(name) = Name::read(handle, kind) else {
            self.violation(format!("{call} of what is no handle"));
            return Err(INVALID_HANDLE);
        };
        if name.is_ours() {
            self.violation(format!("{call} in the process that made it"));
            return Err(INVALID_CONTEXT);
        }
        if name.uuid != self.here() {
            return Err(PEER_UNSUPPORTED);
        }
        Shared::open(name).map_err(|_| INVALID_HANDLE)
    }

    pub(crate) fn import_memory(&mut self, handle: &[u8; HANDLE], flags: u32) -> Result<u64, u32> {
        if flags != LAZY {
            self.violation(format!("cuIpcOpenMemHandle with flags {flags:#x}"));
            return Err(INVALID_VALUE);
        }
        let shared = self.open(handle, MEMORY, "cuIpcOpenMemHandle")?;
        let device = self.current().unwrap_or(0);
        Ok(self.memory.import(device, shared))
    }

    pub(crate) fn close_memory(&mut self, at: u64) -> Result<(), u32> {
        if self.streams.uses_device(at, self.memory.length(at)) {
            self.violation(format!("cuIpcCloseMemHandle of {at:#x} while a copy is queued"));
        }
        if self.memory.unimport(at) {
            return Ok(());
        }
        self.refuse(format!("cuIpcCloseMemHandle of {at:#x}, which was not opened"), INVALID_VALUE)
    }

    pub(crate) fn export_event(&mut self, event: usize) -> Result<[u8; HANDLE], u32> {
        self.ipc()?;
        let uuid = self.here();
        match self.streams.share(event, INTERPROCESS, uuid) {
            Ok(name) => {
                if self.config.as_ref().is_some_and(|config| config.beat) {
                    keep_going();
                }
                Ok(name.write())
            }
            Err(why) => {
                self.violation(format!("cuIpcGetEventHandle of {event:#x}: {why}"));
                Err(INVALID_HANDLE)
            }
        }
    }

    pub(crate) fn import_event(&mut self, handle: &[u8; HANDLE]) -> Result<usize, u32> {
        let shared = self.open(handle, EVENT, "cuIpcOpenEventHandle")?;
        let home = self.current();
        Ok(self.streams.import(home, shared))
    }
}

/// Starts the thread that moves work on, once.
fn keep_going() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // A thread that cannot be had leaves others waiting, and they say so.
        let _ = std::thread::Builder::new().name("simulated device".into()).spawn(|| {
            loop {
                std::thread::sleep(BEAT);
                state::with(State::beat);
            }
        });
    });
}
