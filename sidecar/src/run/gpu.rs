//! `--gpu`: the GPU that this sidecar is for. It is found, locked against other sidecars, and shown to the worker alone.
//!
//! The sidecar itself makes no context on it and copies nothing to it, unless it is to copy ahead (`--device-copy`):
//! what is page-locked is page-locked by the worker, in the process that copies.

use std::ffi::OsString;

use sidecar_cuda::discovery::{Gpu, Inventory};
use sidecar_cuda::lock::{GpuLock, LockError, Use};
use sidecar_cuda::numa::System;

use crate::cli::{GpuChoice, RunArgs};
use crate::explain::Code;
use crate::report::Failure;

/// What JAX reads at its start, and PyTorch users hand to `torch.cuda.set_per_process_memory_fraction`.
const FRACTION_VARIABLES: [&str; 2] = ["XLA_PYTHON_CLIENT_MEM_FRACTION", "SIDECAR_GPU_MEMORY_FRACTION"];

/// A GPU that is ours.
#[derive(Debug)]
pub(super) struct OwnGpu {
    pub(super) gpu: Gpu,
    /// Of the driver, for people.
    pub(super) driver: String,
    pub(super) how: Use,
    /// NUMA nodes of the machine.
    pub(super) nodes: usize,
    /// Its own, where there is more than one and the kernel tells.
    pub(super) near: Option<Near>,
    pub(super) lock: GpuLock,
}

/// The NUMA node that a GPU hangs on.
#[derive(Debug, Clone)]
pub(super) struct Near {
    pub(super) node: u32,
    /// Its cores.
    pub(super) cores: Vec<u32>,
}

/// Finds and locks what `--gpu` names; `None` for `--gpu none`.
///
/// # Errors
/// It is not there, or somebody else has it.
pub(super) fn own(args: &RunArgs) -> Result<Option<OwnGpu>, Failure> {
    let GpuChoice::Of(choice) = &args.gpu else {
        let wants = match (args.share_gpu, args.device_copy) {
            (None, false) => return Ok(None),
            (Some(among), _) => format!("--share-gpu {among}"),
            (None, true) => "--device-copy".to_owned(),
        };
        return Err(Failure::new(Code::Gpu, format!("{wants} without a GPU"))
            .because("--gpu is none")
            .hint("name the GPU with --gpu; `sidecar gpus` lists them"));
    };
    let name = &args.gpu;
    let inventory = Inventory::take().map_err(|error| {
        Failure::new(Code::Gpu, format!("--gpu {name}: no GPU can be used"))
            .because(error)
            .hint("use --gpu none; the worker may use any GPU that it sees")
    })?;
    let gpu = inventory.find(choice).map_err(|error| {
        Failure::new(Code::Gpu, format!("--gpu {name}: no such GPU"))
            .because(error)
            .hint("`sidecar gpus` lists them; CUDA_VISIBLE_DEVICES hides some")
    })?;
    let how = args.share_gpu.map_or(Use::Alone, Use::Shared);
    let lock = GpuLock::take(&gpu.uuid, how).map_err(|error| in_use(&args.gpu, how, &error))?;
    let system = System::here();
    let nodes = system.nodes().len();
    let near = gpu.numa_node.filter(|_| nodes > 1).map(|node| Near { node, cores: system.cores(node) });
    let version = inventory.driver_version.as_deref().unwrap_or("of unknown version");
    let (major, minor) = inventory.cuda_version;
    let driver = format!("{version}, CUDA {major}.{minor}");
    Ok(Some(OwnGpu { gpu: gpu.clone(), driver, how, nodes, near, lock }))
}

fn in_use(name: &GpuChoice, how: Use, error: &LockError) -> Failure {
    let taken = matches!(error, LockError::InUse { .. } | LockError::OtherShare { .. });
    let code = if taken { Code::GpuInUse } else { Code::Gpu };
    let failure = Failure::new(code, format!("--gpu {name}: it cannot be had")).because(error);
    match (error, how) {
        (LockError::InUse { shared: true, .. }, Use::Shared(among)) => {
            failure.hint(format!("as many as --share-gpu {among} allows are there: choose another --gpu"))
        }
        (LockError::OtherShare { theirs, .. }, _) => {
            failure.hint(format!("start it with --share-gpu {theirs}, or choose another --gpu"))
        }
        (LockError::InUse { .. }, _) => {
            failure.hint("choose another --gpu, or start all that share it with --share-gpu N")
        }
        _ => failure.hint("look at what is there"),
    }
}

impl OwnGpu {
    /// What the worker's environment says about it. What the user set stays.
    pub(super) fn environment(&self) -> Vec<(&'static str, OsString)> {
        let mut variables = vec![("CUDA_VISIBLE_DEVICES", self.gpu.uuid.as_str().into())];
        if let Some(fraction) = self.fraction() {
            let unset = |variable: &&str| std::env::var_os(variable).is_none();
            let fractions = FRACTION_VARIABLES.into_iter().filter(unset);
            variables.extend(fractions.map(|variable| (variable, fraction.clone().into())));
        }
        variables
    }

    /// The part of the GPU's memory that a worker may take, as a decimal fraction; `None` for who has it alone.
    pub(super) fn fraction(&self) -> Option<String> {
        let Use::Shared(among) = self.how else { return None };
        // A tenth is left for the contexts and for what does not come out of a framework's own pool.
        let thousandths = 900 / among;
        Some(format!("0.{thousandths:03}"))
    }
}
