//! What passes between the sidecar and its worker besides payloads, as postcard bytes.
//!
//! Records travel inline in ring cells, so each has to fit [`MAX_RECORD`] bytes. Both sides may be different
//! builds: variants are only appended, and bytes that do not parse to the last one are an error, since the
//! other side may write anything.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::tunnel::{Epoch, SessionId};

/// Longest encoded record in bytes.
pub const MAX_RECORD: usize = 384;

/// Bytes of a worker's message that are kept.
pub const MAX_MESSAGE: usize = 256;

/// A worker's own words about a failure; cut to [`MAX_MESSAGE`] bytes ([`crate::tunnel::clip`] does it).
pub type Message = heapless::String<MAX_MESSAGE>;

/// From the sidecar to the worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "there is no heap to move the large one to")]
pub enum ToWorker {
    /// Load the model now; answer [`ToSidecar::Ready`] or [`ToSidecar::WarmupFailed`].
    Warmup,
    /// Observations of this epoch belong to this session.
    SessionOpened {
        /// The gateway's name for it.
        session: SessionId,
        /// Our number for it.
        epoch: Epoch,
        /// The same session went on after a reconnect: a context that was built for it stays good.
        resumed: bool,
    },
    /// The session is over; answers for it are dropped.
    SessionClosed {
        /// Which one.
        epoch: Epoch,
    },
    /// No more sessions will come.
    Drain,
}

/// From the worker to the sidecar.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum ToSidecar {
    /// The model is warm.
    Ready,
    /// The model cannot be made warm; the job cannot be played.
    WarmupFailed {
        /// The worker's own words.
        message: Message,
    },
    /// No answer will come for this observation.
    Failed {
        /// The observation's sequence number.
        sequence: u64,
        /// The worker's own words.
        message: Message,
    },
    /// The worker holds no view of this observation slot any more.
    Released {
        /// Index of the slot.
        slot: u32,
        /// The generation under which the slot was handed over, so that a late release hits nobody else.
        generation: u32,
    },
}

/// A record that could not be written or read.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum RecordError {
    /// The buffer is too short; [`MAX_RECORD`] bytes are always enough.
    #[error("a buffer of {capacity} bytes is too short for the record")]
    Short {
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// The bytes are no record of this kind.
    #[error("{length} bytes are not a record")]
    Malformed {
        /// How many bytes there were.
        length: usize,
    },
}

/// Writes `record` to the start of `out` and says how long it is.
///
/// # Errors
/// `Short` if it does not fit.
pub fn encode(record: &impl Serialize, out: &mut [u8]) -> Result<usize, RecordError> {
    let capacity = out.len();
    match postcard::to_slice(record, out) {
        Ok(used) => Ok(used.len()),
        Err(_) => Err(RecordError::Short { capacity }),
    }
}

/// Reads a record that fills all of `bytes`.
///
/// # Errors
/// `Malformed` if it is none, or something follows it.
pub fn decode<'a, R: Deserialize<'a>>(bytes: &'a [u8]) -> Result<R, RecordError> {
    match postcard::take_from_bytes(bytes) {
        Ok((record, [])) => Ok(record),
        _ => Err(RecordError::Malformed { length: bytes.len() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::tunnel::clip;

    fn longest() -> heapless::String<256> {
        core::iter::repeat_n('x', 256).collect()
    }

    #[test]
    fn every_record_comes_back_and_the_largest_fits() {
        let session = SessionId::new(&longest()).unwrap();
        let epoch = Epoch(u32::MAX);
        let mut out = [0; MAX_RECORD];
        for record in [
            ToWorker::Warmup,
            ToWorker::SessionOpened { session: SessionId::default(), epoch: Epoch(0), resumed: true },
            ToWorker::SessionOpened { session, epoch, resumed: false },
            ToWorker::SessionClosed { epoch },
            ToWorker::Drain,
        ] {
            let length = encode(&record, &mut out).unwrap();
            assert_eq!(decode(&out[..length]), Ok(record));
        }
        for record in [
            ToSidecar::Ready,
            ToSidecar::WarmupFailed { message: clip("out of memory") },
            ToSidecar::Failed { sequence: u64::MAX, message: longest() },
            ToSidecar::Released { slot: u32::MAX, generation: u32::MAX },
        ] {
            let length = encode(&record, &mut out).unwrap();
            assert_eq!(decode(&out[..length]), Ok(record));
        }
    }

    #[test]
    fn the_wire_form_is_pinned() {
        // Both sides may be different builds: a change of these bytes breaks a running pair.
        let mut out = [0; MAX_RECORD];
        let record = ToWorker::SessionOpened {
            session: SessionId::new("ab").unwrap(),
            epoch: Epoch(300),
            resumed: true,
        };
        let length = encode(&record, &mut out).unwrap();
        assert_eq!(out[..length], [1, 2, b'a', b'b', 0xac, 0x02, 1]);
        let length = encode(&ToSidecar::Released { slot: 3, generation: 128 }, &mut out).unwrap();
        assert_eq!(out[..length], [3, 3, 0x80, 1]);
    }

    #[test]
    fn cut_records_and_records_with_a_tail_are_refused() {
        let mut out = [0; MAX_RECORD];
        let record = ToSidecar::Failed { sequence: 1 << 40, message: clip("no") };
        let length = encode(&record, &mut out).unwrap();
        for cut in 0..length {
            assert_eq!(decode::<ToSidecar>(&out[..cut]), Err(RecordError::Malformed { length: cut }));
            assert_eq!(encode(&record, &mut [0; 64][..cut]), Err(RecordError::Short { capacity: cut }));
        }
        assert_eq!(decode::<ToSidecar>(&out[..=length]), Err(RecordError::Malformed { length: length + 1 }));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let _ = decode::<ToWorker>(&bytes);
            if let Ok(record) = decode::<ToSidecar>(&bytes) {
                let mut out = [0; MAX_RECORD];
                let length = encode(&record, &mut out).unwrap();
                prop_assert_eq!(decode(&out[..length]), Ok(record));
            }
        }
    }
}
