//! What page-locking is worth on this machine's GPU: `cargo xtask gpu-test --only rates`, or
//! `cargo run --release --package sidecar-cuda --example copy_rates -- [--rounds N] [--json]`.
//!
//! - **rates**: copies of one size out of page-locked slots and out of plain memory, beside the bus's limit: page-locked
//!   copies of 16 MiB, eight in a row, measured in the same round. A ratio is the median of the rounds' ratios, with the
//!   middle four fifths of them as its spread. Target: 0.95 of the limit from 2 MiB on.
//! - **latency**: from the stamp of the last byte to "on the device", out of a page-locked slot. Both sides are in this
//!   process, one after the other: no wake-up is in it.
//! - **ahead**: the same where parts are copied while the rest is still coming (`--device-copy`), for several sizes of a
//!   part. Bytes arrive at 10 Gbit/s, 16 KiB at a time. Target: 15 us after the last byte at 2 MiB. The part with the
//!   smallest figure there is what `sidecar_cuda::ahead::PART` should be.
//!
//! What a PyTorch user does today is not measured here.

#[path = "../tests/gpu/simulated.rs"]
#[expect(dead_code, reason = "the region is what is needed of it; the driver here is the machine's")]
mod simulated;

use core::time::Duration;
use std::io::Write as _;
use std::sync::Arc;

use sidecar_cuda::ahead::AheadCopier;
use sidecar_cuda::device::{DeviceMemory, OwnedStream};
use sidecar_cuda::discovery::Inventory;
use sidecar_cuda::driver::Driver;
use sidecar_cuda::fence::Fence;
use sidecar_cuda::pin::Pin;
use sidecar_cuda::worker::PinnedWorker;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::slots::Copied;
use simulated::{Side, observation};

const MIB: usize = 1 << 20;
const LARGEST: usize = 16 * MIB;
const SIZES: [usize; 7] = [MIB / 16, MIB / 4, MIB, 2 * MIB, 4 * MIB, 8 * MIB, LARGEST];
/// Copies in a row that show what the bus can do.
const ROW: usize = 8;
/// Three pictures of 224 x 224 and of 480 x 640, and 2 MiB.
const OBSERVATIONS: [usize; 3] = [3 * 224 * 224 * 3, 3 * 480 * 640 * 3, 2 * MIB];
const PARTS: [u32; 5] = [32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];
/// What a receive brings, and what it takes at 10 Gbit/s.
const RECEIVED: usize = 16 << 10;
const BYTES_A_NANOSECOND: f64 = 1.25;
const AHEAD_TARGET_US: f64 = 15.0;
const TARGET: f64 = 0.95;
const TARGET_FROM: usize = 2 * MIB;

type Failed = Box<dyn core::error::Error>;

struct Rig {
    side: Side,
    worker: PinnedWorker,
    memory: DeviceMemory,
    stream: OwnedStream,
    plain: Vec<u8>,
}

/// GB/s of each round.
#[derive(Default)]
struct Rates {
    locked: Vec<f64>,
    plain: Vec<f64>,
    limit: Vec<f64>,
}

/// Sorted figures of the rounds.
struct Figures(Vec<f64>);

impl Figures {
    fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self(figures)
    }

    /// The figure below which `part` of them lie.
    fn at(&self, part: f64) -> f64 {
        // Between the first and the last index.
        self.0[((self.0.len() - 1) as f64 * part).round() as usize]
    }

    fn verdict(&self) -> &'static str {
        match (self.at(0.1) >= TARGET, self.at(0.9) >= TARGET) {
            (true, _) => "pass",
            (_, false) => "miss",
            _ => "undecided",
        }
    }
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let rounds = match arguments.iter().position(|argument| argument == "--rounds") {
        None => 50,
        Some(at) => arguments.get(at + 1).ok_or("--rounds wants a number")?.parse::<usize>()?.max(1),
    };
    let mut out = std::io::stdout().lock();
    let driver = match Driver::open() {
        Ok(driver) => driver,
        Err(why) => return Ok(writeln!(out, "skipped: {why}")?),
    };
    let gpu = Inventory::take()?.gpus.into_iter().find(|gpu| gpu.ordinal == 0).ok_or("no device 0")?;
    if gpu.name.starts_with("Simulated") {
        writeln!(std::io::stderr(), "this driver is a simulated one: no figure below says anything")?;
    }
    let mut rig = rig(driver)?;
    if !json {
        writeln!(out, "{}, {rounds} rounds", gpu.name)?;
        writeln!(out, "     bytes  locked GB/s  plain GB/s  limit GB/s  locked/limit (spread)")?;
    }
    for size in SIZES {
        let Rates { locked, plain, limit } = rates(&mut rig, size, rounds)?;
        let ratio = Figures::of(locked.iter().zip(&limit).map(|(locked, limit)| locked / limit).collect());
        let [locked, plain, limit] = [locked, plain, limit].map(|rates| Figures::of(rates).at(0.5));
        let [low, middle, high] = [0.1, 0.5, 0.9].map(|part| ratio.at(part));
        let verdict = if size >= TARGET_FROM { ratio.verdict() } else { "no target" };
        if json {
            writeln!(
                out,
                r#"{{"rate":{{"bytes":{size},"locked":{locked:.3},"plain":{plain:.3},"limit":{limit:.3},"ratio":{middle:.4},"low":{low:.4},"high":{high:.4},"verdict":"{verdict}"}}}}"#
            )?;
        } else {
            writeln!(
                out,
                "{size:>10}  {locked:>11.2}  {plain:>10.2}  {limit:>10.2}  {middle:.3} ({low:.3} to {high:.3})  {verdict}"
            )?;
        }
    }
    for size in OBSERVATIONS {
        let latency = Figures::of(latencies(&mut rig, size, rounds)?);
        let [p50, p99] = [0.5, 0.99].map(|part| latency.at(part));
        if json {
            writeln!(out, r#"{{"latency":{{"bytes":{size},"p50_us":{p50:.2},"p99_us":{p99:.2}}}}}"#)?;
        } else {
            writeln!(out, "{size:>10}  on the device {p50:.1} us after its last byte (p99 {p99:.1})")?;
        }
    }
    // Its slots are locked for the worker; what copies ahead locks those of a region of its own.
    drop(rig);
    let mut ahead = Ahead::new(driver)?;
    for size in OBSERVATIONS {
        for part in PARTS {
            let latency = Figures::of(ahead.latencies(size, part, rounds)?);
            let [low, p50, high, p99] = [0.1, 0.5, 0.9, 0.99].map(|share| latency.at(share));
            let verdict = match (size == 2 * MIB, low <= AHEAD_TARGET_US, high <= AHEAD_TARGET_US) {
                (false, ..) => "no target",
                (_, _, true) => "pass",
                (_, false, _) => "miss",
                _ => "undecided",
            };
            if json {
                writeln!(
                    out,
                    r#"{{"ahead":{{"bytes":{size},"part":{part},"p50_us":{p50:.2},"p99_us":{p99:.2},"verdict":"{verdict}"}}}}"#
                )?;
            } else {
                writeln!(
                    out,
                    "{size:>10}  in parts of {part:>6} ahead: {p50:.1} us after its last byte (p99 {p99:.1})  {verdict}"
                )?;
            }
        }
    }
    Ok(())
}

/// A sidecar that copies ahead, without a worker.
struct Ahead {
    copier: AheadCopier,
    side: Side,
    bytes: Vec<u8>,
}

impl Ahead {
    fn new(driver: Driver) -> Result<Self, Failed> {
        let largest = OBSERVATIONS.into_iter().max().ok_or("no sizes")?;
        let observation_bytes = u32::try_from(largest)?;
        let geometry =
            Geometry { observation_slots: 2, observation_bytes, action_slots: 1, action_bytes: 4096 };
        let side = Side::of(&geometry);
        let copier = AheadCopier::with(driver, 0, &side.owner)?;
        Ok(Self { copier, side, bytes: vec![1; largest] })
    }

    /// Microseconds from the last byte until all of the payload is on the device.
    fn latencies(&mut self, size: usize, part: u32, rounds: usize) -> Result<Vec<f64>, Failed> {
        self.copier.set_part(part);
        let mut latencies = Vec::new();
        for _ in 0..rounds {
            let slot = self.side.owner.claim_slot().ok_or("no slot")?;
            let begun = clock::now();
            let mut landed = 0;
            while landed < size {
                let end = size.min(landed + RECEIVED);
                let due = begun + Duration::from_nanos((end as f64 / BYTES_A_NANOSECOND) as u64);
                while clock::now() < due {
                    core::hint::spin_loop();
                }
                self.side.receive(slot, landed, &self.bytes[landed..end]);
                landed = end;
                if landed < size {
                    self.copier.landed(slot, begun, u32::try_from(landed)?);
                }
            }
            let last_byte = clock::now();
            let copied = self.copier.finish(slot, begun, u32::try_from(size)?);
            self.copier.wait()?;
            latencies.push(clock::now().since(last_byte).as_secs_f64() * 1e6);
            self.side.owner.unclaim(slot);
            if copied == Copied::No {
                let why = self.copier.take_trouble().ok_or("nothing was copied")?;
                return Err(why.into());
            }
        }
        Ok(latencies)
    }
}

fn rig(driver: Driver) -> Result<Rig, Failed> {
    // The largest size fits a slot.
    let observation_bytes = LARGEST as u32;
    let geometry = Geometry { observation_slots: 1, observation_bytes, action_slots: 1, action_bytes: 4096 };
    let mut side = Side::of(&geometry);
    let worker = PinnedWorker::of(side.attach(), Pin::with(driver, 0));
    if let Some(trouble) = worker.trouble() {
        return Err(trouble.to_string().into());
    }
    let context = Arc::clone(worker.pin().ok_or("no device")?.context());
    let memory = DeviceMemory::new(Arc::clone(&context), LARGEST)?;
    let stream = OwnedStream::new(context)?;
    Ok(Rig { side, worker, memory, stream, plain: vec![1; LARGEST] })
}

/// GB/s of `times` copies in a row.
fn rate(rig: &Rig, from: &[u8], times: usize) -> Result<f64, Failed> {
    let mut fence: Fence = rig.worker.pin().ok_or("no device")?.fence();
    let started = clock::now();
    for _ in 0..times {
        // SAFETY: the bytes are borrowed until the wait below, the memory is as large as the largest size, and both it
        // and the stream live in the rig.
        unsafe { fence.copy(from, rig.memory.start(), rig.stream.stream())? };
    }
    fence.wait()?;
    let took = clock::now().since(started).as_secs_f64();
    Ok((from.len() * times) as f64 / took / 1e9)
}

fn rates(rig: &mut Rig, size: usize, rounds: usize) -> Result<Rates, Failed> {
    rig.side.observe(&rig.plain);
    let lent = observation(|| rig.worker.next(Some(Duration::from_secs(5))).expect("an observation"));
    let slot = lent.payload();
    let mut rates = Rates::default();
    for _ in 0..rounds {
        rates.locked.push(rate(rig, &slot[..size], 1)?);
        rates.plain.push(rate(rig, &rig.plain[..size], 1)?);
        rates.limit.push(rate(rig, slot, ROW)?);
    }
    rig.worker.worker().answer(lent, b"")?;
    rig.side.take();
    Ok(rates)
}

/// Microseconds from the last byte's stamp until the payload is on the device.
fn latencies(rig: &mut Rig, size: usize, rounds: usize) -> Result<Vec<f64>, Failed> {
    let mut latencies = Vec::new();
    for _ in 0..rounds {
        rig.side.observe(&rig.plain[..size]);
        let observation =
            observation(|| rig.worker.next(Some(Duration::from_secs(5))).expect("an observation"));
        let last_byte = observation.last_byte();
        let mut fence = rig.worker.pin().ok_or("no device")?.fence();
        // SAFETY: the observation is held until the wait is over; as in `rate`.
        unsafe { fence.copy(observation.payload(), rig.memory.start(), rig.stream.stream())? };
        fence.wait()?;
        latencies.push(clock::now().since(last_byte).as_secs_f64() * 1e6);
        rig.worker.worker().answer(observation, b"")?;
        rig.side.take();
    }
    Ok(latencies)
}
