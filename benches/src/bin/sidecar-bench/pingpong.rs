//! What the hop through the region is compared with: two threads, or two processes where the kernel has to switch between
//! them, that throw a ball, and nothing else.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use core::time::Duration;
use memmap2::{MmapOptions, MmapRaw};
use rustix::event::{EventfdFlags, eventfd};
use sidecar_benches::batches::Batches;
use sidecar_shm::eventcount::EventCount;
use sidecar_shm::futex;
use sidecar_shm::sync::{AtomicU32, AtomicU64, Ordering};

use crate::cores;
use crate::place::Place;
use crate::processes::Process;

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

/// Words that two processes share. All zero is a good start.
#[derive(Debug, Default)]
#[repr(C)]
struct Bell {
    sequence: AtomicU32,
    waiters: AtomicU32,
    over: AtomicU32,
}

/// A [`Bell`] in a file.
#[derive(Debug)]
struct SharedBell(MmapRaw);

impl SharedBell {
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(4096)?;
        Ok(Self(MmapOptions::new().len(4096).map_raw(&file)?))
    }

    fn bell(&self) -> &Bell {
        // SAFETY: a mapped page of a file as long, aligned, valid while `self` is borrowed; whatever bytes it holds are
        // good atomics, and both processes reach them as such alone.
        unsafe { &*self.0.as_ptr().cast::<Bell>() }
    }
}

const LONG: Duration = Duration::from_secs(10);

/// `sidecar-bench partner`: the other side of [`Sleepers`].
#[derive(Debug, clap::Args)]
pub(crate) struct Partner {
    /// The words
    #[arg(long, value_name = "PATH")]
    bell: PathBuf,
    /// The descriptor, inherited
    #[arg(long)]
    eventfd: RawFd,
    /// Stays on this core
    #[arg(long)]
    core: usize,
}

impl Partner {
    /// Throws each ball back, until it is over.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn run(&self) -> io::Result<()> {
        let shared = SharedBell::open(&self.bell)?;
        // SAFETY: who started this process left the descriptor open for it, and nothing else here knows of it.
        let back = unsafe { OwnedFd::from_raw_fd(self.eventfd) };
        cores::stay_on(&[self.core])?;
        answer(shared.bell(), &back)
    }
}

/// This process and a [`Partner`], who both sleep while the other one has the ball: a futex one way and an eventfd the
/// other, which is what the region does, bare.
#[derive(Debug)]
pub(crate) struct Sleepers {
    shared: SharedBell,
    back: OwnedFd,
    partner: Process,
    _place: Place,
}

impl Sleepers {
    /// Starts the partner on `core`.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn start(core: usize) -> io::Result<Self> {
        let place = Place::new()?;
        let path = place.path().join("bell");
        let shared = SharedBell::open(&path)?;
        // Without CLOEXEC: the partner inherits it.
        let back = eventfd(0, EventfdFlags::empty())?;
        let mut partner = Command::new(std::env::current_exe()?);
        partner.args(["partner", "--eventfd", &back.as_raw_fd().to_string(), "--core", &core.to_string()]);
        let partner = Process::start("the partner", partner.arg("--bell").arg(&path))?;
        Ok(Self { shared, back, partner, _place: place })
    }

    /// Throws the ball, and sleeps until it is back.
    ///
    /// # Errors
    /// If the system refuses.
    pub(crate) fn exchange(&self) -> io::Result<()> {
        self.ring();
        rustix::io::read(&self.back, &mut [0_u8; 8])?;
        Ok(())
    }

    fn ring(&self) {
        let bell = self.shared.bell();
        bell.sequence.fetch_add(1, Ordering::SeqCst);
        futex::wake(&bell.sequence);
    }

    /// Ends the partner.
    ///
    /// # Errors
    /// It did not end, or not well.
    pub(crate) fn finish(self) -> io::Result<()> {
        self.shared.bell().over.store(1, Ordering::SeqCst);
        self.ring();
        self.partner.finish()
    }
}

/// [`Sleepers`] on one core.
///
/// # Errors
/// If the system refuses.
pub(crate) fn futex_and_eventfd(core: usize, plan: Batches) -> io::Result<Vec<f64>> {
    cores::stay_on(&[core])?;
    let sleepers = Sleepers::start(core)?;
    let nanos = plan.run(|| sleepers.exchange())?;
    sleepers.finish()?;
    Ok(nanos)
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
        let (shared, back) = (Bell::default(), eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        thread::scope(|scope| {
            let partner = scope.spawn(|| answer(&shared, &back));
            for _ in 0..5 {
                shared.sequence.fetch_add(1, Ordering::SeqCst);
                futex::wake(&shared.sequence);
                rustix::io::read(&back, &mut [0_u8; 8]).unwrap();
            }
            shared.over.store(1, Ordering::SeqCst);
            shared.sequence.fetch_add(1, Ordering::SeqCst);
            futex::wake(&shared.sequence);
            partner.join().unwrap().unwrap();
        });
        let core = cores::Cores::usable().unwrap().get(0).unwrap();
        if let Some(other) = cores::Cores::usable().unwrap().get(1) {
            assert_eq!(cache_line(core, other, PLAN).unwrap().len(), 3);
        }
    }
}
