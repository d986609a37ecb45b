//! What the hop through the region is compared with: two threads that throw a ball, and nothing else.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use core::time::Duration;
use rustix::event::{EventfdFlags, eventfd};
use sidecar_benches::batches::Batches;
use sidecar_shm::eventcount::EventCount;
use sidecar_shm::futex;
use sidecar_shm::sync::{AtomicU32, AtomicU64, Ordering};

use crate::cores;

/// A word alone in its lines: neighbours are fetched in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Line(AtomicU64);

const END: u64 = u64::MAX;

/// One cache line each way, both sides spinning, on two cores: nanoseconds there and back.
///
/// # Errors
/// If a core cannot be had.
pub(crate) fn cache_line(here: usize, there: usize, plan: Batches) -> io::Result<Vec<f64>> {
    let (forth, back) = (Line::default(), Line::default());
    thread::scope(|scope| {
        let partner = scope.spawn(|| -> io::Result<()> {
            cores::stay_on(&[there])?;
            let mut last = 0;
            loop {
                let ball = forth.0.load(Ordering::Acquire);
                if ball == END {
                    return Ok(());
                }
                if ball != last {
                    last = ball;
                    back.0.store(ball, Ordering::Release);
                }
                core::hint::spin_loop();
            }
        });
        let result = cores::stay_on(&[here]).and_then(|()| {
            let mut ball = 0;
            plan.run(|| {
                ball += 1;
                forth.0.store(ball, Ordering::Release);
                while back.0.load(Ordering::Acquire) != ball {
                    // A partner that could not be pinned is gone.
                    if partner.is_finished() {
                        return Err(io::Error::other("the partner is gone"));
                    }
                    core::hint::spin_loop();
                }
                Ok(())
            })
        });
        forth.0.store(END, Ordering::Release);
        partner.join().map_err(|_| io::Error::other("the partner panicked"))??;
        result
    })
}

#[derive(Debug, Default)]
struct Bell {
    sequence: AtomicU32,
    waiters: AtomicU32,
    over: AtomicU32,
}

const LONG: Duration = Duration::from_secs(10);

/// A futex one way and an eventfd the other, both sides sleeping, on one core: what the region does, bare.
///
/// # Errors
/// If the system refuses.
pub(crate) fn futex_and_eventfd(core: usize, plan: Batches) -> io::Result<Vec<f64>> {
    let bell = Bell::default();
    let back = eventfd(0, EventfdFlags::CLOEXEC)?;
    cores::stay_on(&[core])?;
    thread::scope(|scope| {
        let partner = scope.spawn(|| answer(&bell, &back));
        let ring = || {
            bell.sequence.fetch_add(1, Ordering::SeqCst);
            futex::wake(&bell.sequence);
        };
        let result = plan.run(|| {
            ring();
            rustix::io::read(&back, &mut [0_u8; 8]).map(drop)
        });
        bell.over.store(1, Ordering::SeqCst);
        ring();
        partner.join().map_err(|_| io::Error::other("the partner panicked"))??;
        Ok(result?)
    })
}

fn answer(bell: &Bell, back: &OwnedFd) -> io::Result<()> {
    let mut last = 0;
    loop {
        let events = EventCount::new(&bell.sequence, &bell.waiters);
        let ticket = events.prepare();
        if ticket.sequence() == last {
            futex::wait(&bell.sequence, ticket, LONG)?;
            events.cancel();
            continue;
        }
        events.cancel();
        last = ticket.sequence();
        if bell.over.load(Ordering::SeqCst) == 1 {
            return Ok(());
        }
        rustix::io::write(back.as_fd(), &1_u64.to_ne_bytes())?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Batches = Batches { trips: 5, batches: 3 };

    #[test]
    fn every_ball_comes_back() {
        let core = cores::Cores::usable().unwrap().get(0).unwrap();
        assert_eq!(futex_and_eventfd(core, PLAN).unwrap().len(), 3);
        if let Some(other) = cores::Cores::usable().unwrap().get(1) {
            assert_eq!(cache_line(core, other, PLAN).unwrap().len(), 3);
        }
    }
}
