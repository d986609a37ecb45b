//! Copies ahead (`--device-copy`): parts go to the device while the rest of an observation is still coming.

use core::time::Duration;
use std::io;

use sidecar_cuda::ahead::AheadCopier;
use sidecar_cuda::driver::Driver;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::slots::Copied;

use super::DEVICE;
use super::rounds::OBSERVATIONS;
use super::side::Side;

/// What a receive brings, and how fast at 10 Gbit/s.
const RECEIVED: usize = 16 << 10;
const BYTES_A_NANOSECOND: f64 = 1.25;

/// A sidecar that copies ahead, without a worker.
pub(super) struct Ahead {
    copier: AheadCopier,
    side: Side,
    bytes: Vec<u8>,
}

impl Ahead {
    /// # Errors
    /// The region or the ring on the device cannot be had.
    pub(super) fn new(driver: Driver) -> io::Result<Self> {
        let largest = OBSERVATIONS.into_iter().max().unwrap_or_default();
        let observation_bytes = u32::try_from(largest).map_err(io::Error::other)?;
        let geometry =
            Geometry { observation_slots: 2, observation_bytes, action_slots: 1, action_bytes: 4096 };
        let side = Side::new(&geometry)?;
        let device = i32::try_from(DEVICE).map_err(io::Error::other)?;
        let copier = AheadCopier::with(driver, device, &side.owner).map_err(io::Error::other)?;
        Ok(Self { copier, side, bytes: vec![1; largest] })
    }

    /// Nanoseconds from an observation's last byte until all of it is on the device.
    ///
    /// # Errors
    /// The driver refuses.
    pub(super) fn arrival(&mut self, part: u32, size: usize) -> io::Result<f64> {
        self.copier.set_part(part);
        let slot = self.side.claim()?;
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
                // The largest size has 22 bits.
                self.copier.landed(slot, begun, landed as u32);
            }
        }
        let last_byte = clock::now();
        let copied = self.copier.finish(slot, begun, size as u32);
        self.copier.wait().map_err(io::Error::other)?;
        let took = clock::now().since(last_byte).as_nanos() as f64;
        self.side.owner.unclaim(slot);
        match (copied, self.copier.take_trouble()) {
            (Copied::Yes, None) => Ok(took),
            (_, Some(trouble)) => Err(io::Error::other(trouble)),
            (Copied::No, None) => Err(io::Error::other("nothing was copied ahead")),
        }
    }
}
