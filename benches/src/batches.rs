//! Round trips in batches: where one takes a few hundred nanoseconds, reading the clock for each would be a good part of
//! it.

use core::mem::MaybeUninit;

use sidecar_shm::clock;

/// How many.
#[derive(Debug, Clone, Copy)]
pub struct Batches {
    /// Trips between two readings of the clock.
    pub trips: u32,
    /// Batches.
    pub batches: u32,
}

impl Batches {
    /// Nanoseconds of a trip, a mean for each batch. The first batch is not counted.
    ///
    /// # Errors
    /// The first trip's that fails.
    pub fn run<E>(self, mut trip: impl FnMut() -> Result<(), E>) -> Result<Vec<f64>, E> {
        let mut nanos = Vec::with_capacity(self.batches as usize);
        for batch in 0..=self.batches {
            let started = clock::now();
            for _ in 0..self.trips {
                trip()?;
            }
            if batch > 0 {
                nanos.push(clock::now().since(started).as_nanos() as f64 / f64::from(self.trips));
            }
        }
        Ok(nanos)
    }
}

/// One line that [`from_line`] reads.
#[must_use]
pub fn to_line(nanos: &[f64]) -> String {
    nanos.iter().map(|nanos| format!("{nanos:.1}")).collect::<Vec<_>>().join(" ")
}

/// What [`to_line`] wrote; `None` if it is something else.
#[must_use]
pub fn from_line(line: &str) -> Option<Vec<f64>> {
    let nanos = line.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>()?;
    (!nanos.is_empty()).then_some(nanos)
}

/// Writes all of a payload, or none of it.
pub fn write_if(touch: bool, payload: &mut [MaybeUninit<u8>]) {
    if touch {
        payload.fill(MaybeUninit::new(0x5a));
    }
}

/// Reads all of a payload, or none of it; what comes back depends on each byte.
#[must_use]
pub fn read_if(touch: bool, payload: &[u8]) -> u64 {
    if !touch {
        return 0;
    }
    let (words, tail) = payload.as_chunks::<8>();
    let sum = words.iter().fold(0_u64, |sum, word| sum.wrapping_add(u64::from_le_bytes(*word)));
    tail.iter().fold(sum, |sum, byte| sum.wrapping_add(u64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_back_and_the_first_batch_is_not_in_it() {
        let mut trips = 0;
        let plan = Batches { trips: 3, batches: 4 };
        let trip = || -> Result<(), ()> {
            trips += 1;
            Ok(())
        };
        let nanos = plan.run(trip).unwrap();
        assert_eq!((trips, nanos.len()), (15, 4));
        assert_eq!(from_line(&to_line(&[1.5, 20.0])), Some(vec![1.5, 20.0]));
        assert_eq!(from_line("error: x"), None);
        assert_eq!(from_line(""), None);
        assert_eq!(plan.run(|| Err(7)), Err(7));
    }

    #[test]
    fn touching_reads_every_byte() {
        let payload = [3; 100];
        for at in 0..100 {
            let mut other = payload;
            other[at] += 1;
            assert_ne!(read_if(true, &payload), read_if(true, &other));
        }
        assert_eq!(read_if(false, &payload), 0);
    }
}
