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
    pub(super) frame_loop: FrameLoopAt,
    pub(super) region: RegionAt,
}

/// Where the frame loop is.
#[derive(Debug)]
pub(super) enum FrameLoopAt {
    /// Where the kernel puts it: there is no GPU whose node is known.
    Anywhere,
    /// On the core of `--cpu`.
    Core,
    /// On the GPU's node.
    Near,
    /// It was tried, and the kernel refused.
    Refused(io::Error),
}

/// Where the region's pages are.
#[derive(Debug)]
pub(super) enum RegionAt {
    /// Where the kernel put them: there is no GPU whose node is known.
    Anywhere,
    /// On the GPU's node, as far as that had room.
    Near,
    /// Where a predecessor had them.
    AsItWas,
    /// The GPU's node was asked for, and the kernel refused.
    Refused(io::Error),
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
        lines.push(numa(own, &facts.frame_loop, &facts.region));
    }
    lines
}

fn numa(own: &OwnGpu, frame_loop: &FrameLoopAt, region: &RegionAt) -> String {
    let Some(near) = &own.near else {
        return match (own.nodes, own.gpu.numa_node) {
            (0 | 1, _) => "numa: one node".to_owned(),
            (nodes, _) => format!("numa: {nodes} nodes, and the kernel does not say which the gpu is on"),
        };
    };
    let node = near.node;
    placement(node, frame_loop, region)
}

fn placement(node: u32, frame_loop: &FrameLoopAt, region: &RegionAt) -> String {
    let hint = format!("; better: numactl --cpunodebind={node} --preferred={node}");
    let (region, region_hint) = match region {
        RegionAt::Near => ("the region is, too".to_owned(), ""),
        RegionAt::AsItWas => ("the region is where the last sidecar had it".to_owned(), ""),
        RegionAt::Anywhere => ("the region is anywhere".to_owned(), &*hint),
        RegionAt::Refused(error) => (format!("the region is anywhere ({error})"), &*hint),
    };
    let (frame_loop, loop_hint) = match frame_loop {
        FrameLoopAt::Near => ("so is the frame loop".to_owned(), ""),
        FrameLoopAt::Core => ("the frame loop is where --cpu put it".to_owned(), ""),
        FrameLoopAt::Anywhere => ("the frame loop is anywhere".to_owned(), &*hint),
        FrameLoopAt::Refused(error) => (format!("the frame loop is anywhere ({error})"), &*hint),
    };
    let hint = if region_hint.is_empty() { loop_hint } else { region_hint };
    format!("numa: the gpu is on node {node}; {frame_loop}; {region}{hint}")
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_put_near_the_gpu_is_said_to_be_there() {
        let refused = || io::Error::from_raw_os_error(1);
        let cases = [
            (FrameLoopAt::Near, RegionAt::Near, "so is the frame loop; the region is, too", false),
            (FrameLoopAt::Core, RegionAt::Near, "where --cpu put it; the region is, too", false),
            (FrameLoopAt::Near, RegionAt::AsItWas, "the region is where the last sidecar had it", false),
            (
                FrameLoopAt::Near,
                RegionAt::Refused(refused()),
                "so is the frame loop; the region is anywhere (Operation not permitted",
                true,
            ),
            (FrameLoopAt::Refused(refused()), RegionAt::Near, "the frame loop is anywhere (", true),
        ];
        for (frame_loop, region, says, better) in cases {
            let line = placement(3, &frame_loop, &region);
            assert!(line.starts_with("numa: the gpu is on node 3; ") && line.contains(says), "{line}");
            assert_eq!(line.contains("better: numactl --cpunodebind=3 --preferred=3"), better, "{line}");
        }
    }
}
