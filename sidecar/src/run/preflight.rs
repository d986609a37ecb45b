//! What a run starts with, in one block of lines: the GPU, its driver, memory, and what could be better.

use std::io;

use sidecar_cuda::ahead::{AheadError, PART};
use sidecar_cuda::lock::Use;
use sidecar_cuda::numa::System;
use sidecar_cuda::pin::Limits;
use sidecar_shm::layout::Geometry;

use super::gpu::OwnGpu;

/// What is known at the start.
#[derive(Debug)]
pub(super) struct Facts<'a> {
    pub(super) gpu: Option<&'a OwnGpu>,
    pub(super) geometry: Geometry,
    /// What came of `--huge`; `None`: not asked for.
    pub(super) huge: Option<io::Result<usize>>,
    /// What came of `--device-copy`: bytes of the ring on the GPU; `None`: not asked for.
    pub(super) ahead: Option<Result<usize, &'a AheadError>>,
    /// Where frame loop and region are.
    pub(super) near: Placed,
}

/// Where frame loop and region are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Placed {
    /// Where the kernel put them.
    Anywhere,
    /// Both on the GPU's node.
    Near,
    /// The region on the GPU's node, the frame loop on the core of `--cpu`.
    RegionOnly,
    /// It was tried, and the kernel refused.
    Refused,
}

/// Says it all. Without a GPU only what was asked for.
pub(super) fn tell(facts: &Facts<'_>) {
    for line in lines(facts, &Limits::here(&System::here())) {
        tracing::info!("preflight: {line}");
    }
}

fn lines(facts: &Facts<'_>, limits: &Limits) -> Vec<String> {
    let total = facts.geometry.total_bytes();
    let mut lines = Vec::new();
    if let Some(own) = facts.gpu {
        let gpu = &own.gpu;
        let free = gpu.memory_free.map_or_else(|| "an unknown part".to_owned(), mib);
        let (major, minor) = gpu.compute;
        let smi = gpu.smi_index.map(|index| format!(", nvidia-smi's {index}")).unwrap_or_default();
        lines.push(format!(
            "gpu {}{smi}: {}, {}, at {}, compute {major}.{minor}, {free} of {} free",
            gpu.index,
            gpu.name,
            gpu.uuid,
            gpu.bus,
            mib(gpu.memory_total)
        ));
        lines.push(format!("driver {}", own.driver));
        match (own.how, own.fraction()) {
            (Use::Shared(among), Some(fraction)) => lines.push(format!(
                "the gpu is shared among {among}: place {}, the worker is told to take {fraction} of its memory",
                own.lock.place().unwrap_or(0)
            )),
            _ => lines.push("the gpu is this sidecar's alone".to_owned()),
        }
        let slots = total - sidecar_shm::layout::Layout::of(facts.geometry).observations();
        let here = if matches!(facts.ahead, Some(Ok(_))) { slots } else { 0 };
        lines.push(format!(
            "page-locked: {here} bytes here; a worker that asks for it (pin) locks {slots} bytes of slots; {limits}"
        ));
    }
    match facts.ahead {
        Some(Ok(bytes)) => lines.push(format!(
            "device copy: observations are copied to {bytes} bytes on the gpu while they arrive, {PART} bytes at a time"
        )),
        Some(Err(error)) => lines.push(format!(
            "device copy: not possible ({error}); observations are copied by the worker when they are complete"
        )),
        None => {}
    }
    match &facts.huge {
        Some(Ok(bytes)) => lines.push(format!("huge pages: {bytes} of the region's {total} bytes")),
        Some(Err(error)) => lines.push(format!(
            "huge pages: none ({error}); better: Linux 6.1 or later, and free memory in one piece"
        )),
        None if facts.gpu.is_some() => lines.push("huge pages: not asked for; better: --huge".to_owned()),
        None => {}
    }
    if let Some(own) = facts.gpu {
        lines.push(numa(own, facts.near));
    }
    lines
}

fn numa(own: &OwnGpu, placed: Placed) -> String {
    let Some(near) = &own.near else {
        return match (own.nodes, own.gpu.numa_node) {
            (0 | 1, _) => "numa: one node".to_owned(),
            (nodes, _) => format!("numa: {nodes} nodes, and the kernel does not say which the gpu is on"),
        };
    };
    let node = near.node;
    match placed {
        Placed::Near => format!("numa: the gpu is on node {node}, and so are region and frame loop"),
        Placed::RegionOnly => {
            format!("numa: the gpu and the region are on node {node}, the frame loop is where --cpu put it")
        }
        Placed::Anywhere | Placed::Refused => format!(
            "numa: the gpu is on node {node}, the kernel let neither region nor frame loop be put there; \
             better: numactl --cpunodebind={node} --preferred={node}"
        ),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
