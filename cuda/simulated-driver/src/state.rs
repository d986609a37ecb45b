//! All that the simulated driver knows, behind one lock, and what each call goes through.

use core::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::{Aftermath, Config};
use crate::memory::Memory;
use crate::streams::Streams;

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const PEER_UNSUPPORTED: u32 = 217;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ALREADY_REGISTERED: u32 = 712;
pub(crate) const NOT_REGISTERED: u32 = 713;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// One simulated device.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) uuid: [u8; 16],
    pub(crate) bus: String,
    /// What nvidia-smi calls it.
    pub(crate) smi_index: u32,
    pub(crate) total: usize,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// Read at `cuInit`, or set before it.
    pub(crate) config: Option<Config>,
    pub(crate) initialised: bool,
    /// All of the machine, in bus order.
    pub(crate) machine: Vec<Device>,
    /// Those that CUDA shows, in its order.
    pub(crate) devices: Vec<Device>,
    /// Holds on the primary context of each device.
    pub(crate) retained: BTreeMap<i32, u32>,
    pub(crate) memory: Memory,
    pub(crate) streams: Streams,
    pub(crate) nvml_users: u32,
    calls: BTreeMap<String, u64>,
    violations: Vec<String>,
    deferred: Option<u32>,
    broken: Option<u32>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

thread_local! {
    /// Devices whose primary context was made current, the last one on top.
    static CURRENT: RefCell<Vec<i32>> = const { RefCell::new(Vec::new()) };
}

/// The one state, made when first asked for.
pub(crate) fn with<T>(act: impl FnOnce(&mut State) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<State>> = STATE.lock().unwrap_or_else(PoisonError::into_inner);
    act(guard.get_or_insert_default())
}

/// What a call has to have before it does anything.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    Init,
    Context,
}

/// Runs a call: takes its time and fails it if asked to, counts it, checks what it needs.
pub(crate) fn call(name: &'static str, needs: Needs, act: impl FnOnce(&mut State) -> Result<(), u32>) -> u32 {
    let slow = with(|state| {
        let slow = &state.config.as_ref()?.slow;
        slow.iter().find(|(call, _)| call == name).map(|(_, time)| *time)
    });
    // Other threads' calls go on meanwhile.
    slow.into_iter().for_each(std::thread::sleep);
    with(|state| {
        let count = state.calls.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let count = *count;
        if let Some(code) = state.deferred.take() {
            return code;
        }
        if needs == Needs::Context
            && let Some(code) = state.broken
        {
            return code;
        }
        let failing = state.config.as_ref().and_then(|config| {
            let of_this = |failing: &&crate::config::Failing| {
                failing.call == name && failing.nth.is_none_or(|nth| nth == count)
            };
            config.failing.iter().find(of_this).cloned()
        });
        if let Some(failing) = failing {
            match failing.aftermath {
                Aftermath::Clean => {}
                Aftermath::Deferred => state.deferred = Some(failing.code),
                Aftermath::Sticky => state.broken = Some(failing.code),
            }
            return failing.code;
        }
        if needs != Needs::Nothing && !state.initialised {
            state.violation(format!("{name} before cuInit"));
            return NOT_INITIALIZED;
        }
        if needs == Needs::Context && state.current().is_none() {
            state.violation(format!("{name} without a current context"));
            return INVALID_CONTEXT;
        }
        match act(state) {
            Ok(()) => 0,
            Err(code) => code,
        }
    })
}

impl State {
    pub(crate) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Notes it, for a call that goes on to fail with `code`.
    pub(crate) fn refuse(&mut self, text: String, code: u32) -> Result<(), u32> {
        self.violation(text);
        Err(code)
    }

    /// Counts what is no call of its own.
    pub(crate) fn count(&mut self, what: &str) {
        *self.calls.entry(what.to_owned()).or_insert(0) += 1;
    }

    /// How often a call was made.
    pub(crate) fn calls(&self) -> impl Iterator<Item = (&str, u64)> {
        self.calls.iter().map(|(name, count)| (name.as_str(), *count))
    }

    pub(crate) fn violations(&self) -> &[String] {
        &self.violations
    }

    /// The device whose primary context is current on this thread, while it lives.
    pub(crate) fn current(&self) -> Option<i32> {
        let top = CURRENT.with_borrow(|stack| stack.last().copied())?;
        self.retained.get(&top).is_some_and(|holds| *holds > 0).then_some(top)
    }

    pub(crate) fn device(&self, ordinal: i32) -> Option<&Device> {
        usize::try_from(ordinal).ok().and_then(|ordinal| self.devices.get(ordinal))
    }

    /// Everything that is still held.
    pub(crate) fn leaks(&self) -> Vec<String> {
        let contexts = self.retained.iter().filter(|(_, holds)| **holds > 0);
        let mut leaks: Vec<String> = contexts
            .map(|(device, holds)| format!("{holds} holds on the context of device {device}"))
            .collect();
        leaks.extend(self.memory.leaks());
        leaks.extend(self.streams.leaks());
        leaks
    }
}

/// Makes the context of a device current on this thread.
pub(crate) fn push(device: i32) {
    CURRENT.with_borrow_mut(|stack| stack.push(device));
}

/// Takes the current context off this thread.
pub(crate) fn pop() -> Option<i32> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// The machine that a configuration describes, in bus order.
pub(crate) fn machine(config: &Config) -> Vec<Device> {
    (0..config.devices)
        .map(|index| {
            let mut uuid = [0; 16];
            uuid[0] = 0x51;
            uuid[1] = config.seed;
            // There are few devices.
            uuid[15] = index as u8;
            Device {
                name: format!("Simulated GPU {index}"),
                uuid,
                bus: format!("0000:{:02X}:00.0", 0x41 + index * 0x20),
                smi_index: index,
                total: (24 << 30) + (index as usize) * (8 << 30),
            }
        })
        .collect()
}

/// Those that `CUDA_VISIBLE_DEVICES` shows, in CUDA's order: without it the reverse of the bus order ("fastest first").
pub(crate) fn visible(machine: &[Device], list: Option<&str>) -> Vec<Device> {
    let fastest_first: Vec<Device> = machine.iter().rev().cloned().collect();
    let Some(list) = list else { return fastest_first };
    let mut shown: Vec<Device> = Vec::new();
    for entry in list.split(',').map(str::trim) {
        let found = match entry.parse::<usize>() {
            Ok(index) => fastest_first.get(index),
            Err(_) if entry.len() > "GPU-".len() => fastest_first.iter().find(|device| {
                ["GPU-", "MIG-"].iter().any(|kind| hyphenated(kind, device.uuid).starts_with(entry))
            }),
            Err(_) => None,
        };
        // The first entry that names no device ends the list; so does one that is there twice.
        match found {
            Some(device) if shown.iter().all(|other| other.uuid != device.uuid) => shown.push(device.clone()),
            _ => break,
        }
    }
    shown
}

/// A UUID as nvidia-smi writes it.
pub(crate) fn hyphenated(kind: &str, uuid: [u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{kind}{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
