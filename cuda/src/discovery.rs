//! Which GPUs there are, without nvidia-smi and without a context.
//!
//! They are listed in the order of their places on the bus, which is the order that nvidia-smi shows; CUDA's own order
//! is another one by default ("fastest first"). `CUDA_VISIBLE_DEVICES` hides devices here as it does from every CUDA
//! program, and the index counts those that are left; nvidia-smi's number is told beside it where NVML knows it.

use core::ffi::c_int;
use core::fmt;

use cudarc::driver::sys::{CUdevice_attribute as Attribute, CUuuid};

use crate::code::CallError;
use crate::driver::{Driver, Unavailable, call, text};
use crate::numa::System;
use crate::nvml::Nvml;

/// A device's UUID, as `CUDA_VISIBLE_DEVICES` and nvidia-smi write it: `GPU-...`, or `MIG-...` for a part of a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Uuid(String);

impl Uuid {
    pub(crate) fn new(kind: &str, bytes: [u8; 16]) -> Self {
        let hex = u128::from_be_bytes(bytes);
        let group = |from: u32, digits: u32| (hex >> (from * 4)) & ((1 << (digits * 4)) - 1);
        Self(format!(
            "{kind}-{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            group(24, 8),
            group(20, 4),
            group(16, 4),
            group(12, 4),
            group(0, 12)
        ))
    }

    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A GPU, or a MIG part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// Its place among those that are visible, in bus order, from 0: what `--gpu` takes.
    pub index: u32,
    /// What nvidia-smi calls it; `None` where NVML is not there, and for a part of a GPU.
    pub smi_index: Option<u32>,
    /// What CUDA calls it in this process.
    pub ordinal: c_int,
    /// As its maker calls it.
    pub name: String,
    /// Who it is.
    pub uuid: Uuid,
    /// Where it is on the bus: `domain:bus:device.function`, lower case as in sysfs.
    pub bus: String,
    /// Bytes of its memory.
    pub memory_total: u64,
    /// Bytes free now; `None` where NVML is not there: CUDA says it only inside of a context.
    pub memory_free: Option<u64>,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// The NUMA node that its bus hangs on; `None` where the kernel does not know.
    pub numa_node: Option<u32>,
}

/// The machine's GPUs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Inventory {
    /// Version of the kernel driver, such as `550.54.15`; `None` where nobody tells.
    pub driver_version: Option<String>,
    /// The CUDA version that the driver speaks, major and minor.
    pub cuda_version: (u32, u32),
    /// In bus order; never empty.
    pub gpus: Vec<Gpu>,
    /// Why NVML could not be asked.
    pub nvml: Option<String>,
}

/// How a user names a GPU.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// [`Gpu::index`].
    Index(u32),
    /// A UUID, or the beginning of one that no other has.
    Uuid(String),
}

/// A GPU that was named and is not there.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChoiceError {
    /// The index is too high.
    #[error("there is no GPU {index}, there are {count}, from 0")]
    NoSuchIndex {
        /// What was asked for.
        index: u32,
        /// How many there are.
        count: usize,
    },
    /// No UUID begins like that, or more than one does.
    #[error("{count} GPUs have a UUID that begins with {prefix}")]
    NotOne {
        /// What was asked for.
        prefix: String,
        /// How many there are.
        count: usize,
    },
}

impl core::str::FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("GPU-") || text.starts_with("MIG-") {
            return Ok(Self::Uuid(text.to_owned()));
        }
        let index = text.parse().map_err(|_| "it is neither an index nor a UUID (GPU-... or MIG-...)")?;
        Ok(Self::Index(index))
    }
}

impl Inventory {
    /// Asks the installed driver.
    ///
    /// # Errors
    /// There is no GPU that can be used: see [`Unavailable`].
    pub fn take() -> Result<Self, Unavailable> {
        Self::of(&Driver::open()?, Nvml::open(), &System::here())
    }

    /// Asks these libraries about this system.
    ///
    /// # Errors
    /// The driver refuses a question.
    pub fn of(driver: &Driver, nvml: Result<Nvml, String>, system: &System) -> Result<Self, Unavailable> {
        let (nvml, missing) = match nvml {
            Ok(nvml) => (Some(nvml), None),
            Err(why) => (None, Some(why)),
        };
        let mut gpus = (0..driver.device_count()?)
            .map(|ordinal| gpu(driver, nvml.as_ref(), system, ordinal))
            .collect::<Result<Vec<_>, CallError>>()?;
        // Fixed width, so that the text's order is the numbers'. Parts of one GPU stay in CUDA's order.
        gpus.sort_by(|a, b| a.bus.cmp(&b.bus));
        for (index, gpu) in (0..).zip(&mut gpus) {
            gpu.index = index;
        }
        let version = nvml.as_ref().and_then(Nvml::driver_version);
        Ok(Self {
            driver_version: version.or_else(|| system.nvidia_version()),
            cuda_version: driver.cuda_version()?,
            gpus,
            nvml: missing,
        })
    }

    /// The GPU that a user named.
    ///
    /// # Errors
    /// It is not there.
    pub fn find(&self, choice: &Choice) -> Result<&Gpu, ChoiceError> {
        match choice {
            Choice::Index(index) => {
                let count = self.gpus.len();
                self.gpus.get(*index as usize).ok_or(ChoiceError::NoSuchIndex { index: *index, count })
            }
            Choice::Uuid(prefix) => {
                let mut named = self.gpus.iter().filter(|gpu| gpu.uuid.as_str().starts_with(prefix.as_str()));
                match (named.next(), named.count()) {
                    (Some(gpu), 0) => Ok(gpu),
                    (first, more) => {
                        let count = usize::from(first.is_some()) + more;
                        Err(ChoiceError::NotOne { prefix: prefix.clone(), count })
                    }
                }
            }
        }
    }
}

fn gpu(driver: &Driver, nvml: Option<&Nvml>, system: &System, ordinal: c_int) -> Result<Gpu, CallError> {
    let mut device = 0;
    // SAFETY: the pointer is valid for a device.
    unsafe { call!(driver, cuDeviceGet(&raw mut device, ordinal)) }?;
    let mut name = [0; 256];
    // SAFETY: the buffer is valid for the length told.
    unsafe { call!(driver, cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device)) }?;
    let mut bus = [0; 32];
    // SAFETY: as above.
    unsafe { call!(driver, cuDeviceGetPCIBusId(bus.as_mut_ptr(), bus.len() as c_int, device)) }?;
    let bus = text(&bus).to_ascii_lowercase();
    let mut memory_total = 0;
    // SAFETY: the pointer is valid for a number.
    unsafe { call!(driver, cuDeviceTotalMem_v2(&raw mut memory_total, device)) }?;
    let uuid = uuid(driver, device)?;
    let whole = uuid.as_str().starts_with("GPU-");
    Ok(Gpu {
        index: 0,
        smi_index: nvml.filter(|_| whole).and_then(|nvml| nvml.index(uuid.as_str())),
        ordinal,
        name: text(&name),
        memory_free: nvml.and_then(|nvml| nvml.free_memory(uuid.as_str())),
        numa_node: system.gpu_node(&bus),
        uuid,
        bus,
        memory_total: memory_total as u64,
        compute: (
            attribute(driver, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)?
                .unsigned_abs(),
            attribute(driver, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)?
                .unsigned_abs(),
        ),
    })
}

/// A part of a GPU has a UUID of its own, which only the second version of the call gives (cuda.h).
fn uuid(driver: &Driver, device: c_int) -> Result<Uuid, CallError> {
    let mut whole = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid for a UUID.
    unsafe { call!(driver, cuDeviceGetUuid(&raw mut whole, device)) }?;
    let own = uuid_bytes(driver, device)?;
    let kind = if own == whole.bytes.map(i8::cast_unsigned) { "GPU" } else { "MIG" };
    Ok(Uuid::new(kind, own))
}

pub(crate) fn uuid_bytes(driver: &Driver, device: c_int) -> Result<[u8; 16], CallError> {
    let mut own = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is valid for a UUID.
    unsafe { call!(driver, cuDeviceGetUuid_v2(&raw mut own, device)) }?;
    Ok(own.bytes.map(i8::cast_unsigned))
}

pub(crate) fn attribute(driver: &Driver, attribute: Attribute, device: c_int) -> Result<c_int, CallError> {
    let mut value = 0;
    // SAFETY: the pointer is valid for a number.
    unsafe { call!(driver, cuDeviceGetAttribute(&raw mut value, attribute, device)) }?;
    Ok(value)
}
