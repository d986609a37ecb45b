//! `sidecar gpus`: which GPUs there are, as `--gpu` counts them.

use std::io::Write;

use serde_json::{Value, json};
use sidecar_cuda::discovery::{Gpu, Inventory};
use sidecar_cuda::driver::Unavailable;

use crate::cli::GpusArgs;
use crate::exit::Exit;
use crate::report::Failure;

/// Prints a table, or one JSON object. That there is none is an answer, and no failure.
///
/// # Errors
/// None at present: what a driver refuses is a part of the answer.
pub fn run(args: &GpusArgs) -> Result<Exit, Failure> {
    let found = Inventory::take();
    let text = if args.json { format!("{}\n", to_json(&found)) } else { to_text(&found) };
    // A closed pipe is a reader that has seen enough.
    let _ = std::io::stdout().lock().write_all(text.as_bytes());
    Ok(Exit::Done)
}

/// `gpus` in bus order; `driver_version`, `cuda_version`, `unavailable` where there are none, `nvml` where that is not
/// there. What is unknown is null.
fn to_json(found: &Result<Inventory, Unavailable>) -> Value {
    let version = |(major, minor): (u32, u32)| format!("{major}.{minor}");
    match found {
        Err(why) => json!({"gpus": [], "unavailable": why.to_string()}),
        Ok(inventory) => {
            let gpus: Vec<Value> = inventory
                .gpus
                .iter()
                .map(|gpu| {
                    json!({
                        "index": gpu.index,
                        "nvidia_smi_index": gpu.smi_index,
                        "name": gpu.name,
                        "uuid": gpu.uuid.as_str(),
                        "pci_bus_id": gpu.bus,
                        "memory_total_bytes": gpu.memory_total,
                        "memory_free_bytes": gpu.memory_free,
                        "compute_capability": version(gpu.compute),
                        "numa_node": gpu.numa_node,
                    })
                })
                .collect();
            json!({
                "driver_version": inventory.driver_version,
                "cuda_version": version(inventory.cuda_version),
                "nvml": inventory.nvml,
                "order": "pci bus",
                "gpus": gpus,
            })
        }
    }
}

fn to_text(found: &Result<Inventory, Unavailable>) -> String {
    let inventory = match found {
        Err(why) => return format!("no GPU: {why}\n"),
        Ok(inventory) => inventory,
    };
    let (major, minor) = inventory.cuda_version;
    let version = inventory.driver_version.as_deref().unwrap_or("of unknown version");
    let mut text = format!("driver {version}, CUDA {major}.{minor}; in bus order, as nvidia-smi has them\n");
    let rows: Vec<[String; 8]> = core::iter::once(
        ["index", "nvidia-smi", "name", "uuid", "bus", "MiB free/total", "compute", "numa"]
            .map(str::to_owned),
    )
    .chain(inventory.gpus.iter().map(row))
    .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 8] = core::array::from_fn(width);
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    if let Some(why) = &inventory.nvml {
        text.push_str(&format!("free memory and nvidia-smi's numbers are unknown: {why}\n"));
    }
    text
}

fn row(gpu: &Gpu) -> [String; 8] {
    let known = |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let free = gpu.memory_free.map_or_else(|| "?".to_owned(), |bytes| (bytes >> 20).to_string());
    let (major, minor) = gpu.compute;
    [
        gpu.index.to_string(),
        known(gpu.smi_index),
        gpu.name.clone(),
        gpu.uuid.to_string(),
        gpu.bus.clone(),
        format!("{free}/{}", gpu.memory_total >> 20),
        format!("{major}.{minor}"),
        known(gpu.numa_node),
    ]
}
