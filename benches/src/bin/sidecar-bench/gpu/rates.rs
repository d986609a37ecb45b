//! Copies to the device: out of a region's page-locked slots, out of plain memory, and out of memory of the driver's own,
//! which shows what the bus can do.

use core::time::Duration;
use std::io;
use std::sync::Arc;

use sidecar_cuda::device::{DeviceMemory, OwnedStream};
use sidecar_cuda::driver::Driver;
use sidecar_cuda::host::HostMemory;
use sidecar_cuda::pin::Pin;
use sidecar_cuda::worker::PinnedWorker;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::worker::{Event, Observation};

use super::DEVICE;
use super::rounds::LARGEST;
use super::side::Side;

/// Copies in a row, waited for once: a rate, and not what it takes to start one.
pub(super) const ROW: usize = 8;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(5));

/// Whose memory is copied from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize)]
pub(crate) enum Memory {
    /// A slot of the region, page-locked.
    Slot,
    /// Memory as any program has it.
    Plain,
    /// Memory of the driver's own.
    Driver,
}

/// See the module's text.
pub(super) struct Rates {
    // In the order in which they end: what reads before what is read.
    stream: OwnedStream,
    device: DeviceMemory,
    host: HostMemory,
    /// Keeps its slot for the copies.
    held: Observation,
    worker: PinnedWorker,
    side: Side,
    plain: Vec<u8>,
}

impl Rates {
    /// # Errors
    /// The region cannot be had, or its slots cannot be page-locked: then there is nothing to be measured.
    pub(super) fn new(driver: Driver) -> io::Result<Self> {
        // The largest size has 25 bits. One slot is held for the copies, the other one is received into.
        let observation_bytes = LARGEST as u32;
        let geometry =
            Geometry { observation_slots: 2, observation_bytes, action_slots: 2, action_bytes: 4096 };
        let mut side = Side::new(&geometry)?;
        let mut worker = PinnedWorker::of(side.attach()?, Pin::with(driver, DEVICE));
        if let Some(trouble) = worker.trouble() {
            return Err(io::Error::other(trouble.to_string()));
        }
        let context = worker.pin().map(|pin| Arc::clone(pin.context()));
        let context = context.ok_or_else(|| io::Error::other("the worker has no device"))?;
        let device = DeviceMemory::new(Arc::clone(&context), LARGEST).map_err(io::Error::other)?;
        let stream = OwnedStream::new(Arc::clone(&context)).map_err(io::Error::other)?;
        let host = HostMemory::new(context, LARGEST).map_err(io::Error::other)?;
        let plain = vec![1; LARGEST];
        side.observe(&plain)?;
        let held = next(&mut worker)?;
        Ok(Self { stream, device, host, held, worker, side, plain })
    }

    /// Nanoseconds of one copy of this size.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn copy(&self, memory: Memory, size: usize) -> io::Result<f64> {
        let started = clock::now();
        match memory {
            Memory::Slot => self.row(&self.held.payload()[..size])?,
            Memory::Plain => self.row(&self.plain[..size])?,
            Memory::Driver => {
                self.host.send(size, ROW, &self.device, &self.stream).map_err(io::Error::other)?;
            }
        }
        Ok(clock::now().since(started).as_nanos() as f64 / ROW as f64)
    }

    /// As a worker copies: each one named to what gives its slot back.
    fn row(&self, from: &[u8]) -> io::Result<()> {
        let pin = self.worker.pin().ok_or_else(|| io::Error::other("the worker has no device"))?;
        let mut fence = pin.fence();
        for _ in 0..ROW {
            // SAFETY: the bytes are borrowed until the stream was waited for below, or until the fence, which is dropped
            // on every way out, has done so; the device's memory is as large as the largest size.
            unsafe { fence.copy(from, self.device.start(), self.stream.stream()) }
                .map_err(io::Error::other)?;
        }
        self.stream.synchronize().map_err(io::Error::other)
    }

    /// Nanoseconds from an observation's last byte until its worker has it on the device.
    ///
    /// # Errors
    /// The driver or the region refuses.
    pub(super) fn arrival(&mut self, size: usize) -> io::Result<f64> {
        self.side.observe(&self.plain[..size])?;
        let observation = next(&mut self.worker)?;
        let last_byte = observation.last_byte();
        let mut lent = self.worker.lend(observation);
        // SAFETY: the device's memory is as large as the largest size, and lives, with the stream, as long as this.
        unsafe { lent.copy_to(self.device.start(), self.stream.stream()) }.map_err(io::Error::other)?;
        self.stream.synchronize().map_err(io::Error::other)?;
        let took = clock::now().since(last_byte).as_nanos() as f64;
        self.worker.answer(lent, b"").map_err(io::Error::other)?;
        self.side.take()?;
        Ok(took)
    }
}

fn next(worker: &mut PinnedWorker) -> io::Result<Observation> {
    loop {
        match worker.next(PATIENCE).map_err(io::Error::other)? {
            Event::Observation(observation) => return Ok(observation),
            Event::Timeout => return Err(io::Error::new(io::ErrorKind::TimedOut, "no observation came")),
            _ => {}
        }
    }
}
