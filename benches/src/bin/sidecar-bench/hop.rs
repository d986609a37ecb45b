//! The hop through the region: an observation to a worker in another process, its action back, no socket.
//!
//! The side of the sidecar is played here with the region's own API, as the frame loop uses it; the worker is
//! `sidecar-bench worker`.

use core::time::Duration;
use std::io;
use std::path::PathBuf;
use std::process::Command;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sidecar::driver::{Completions, Driver, Epoll, RingMode, Uring, Wait};
use sidecar_benches::batches::{self, Batches};
use sidecar_core::agent::HEADROOM;
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_shm::attach::{Connection, HANDSHAKE, Listener};
use sidecar_shm::clock::{self, Stamps};
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{self, Identity};
use sidecar_shm::slots::Observed;
use sidecar_shm::spin::{Mode, Spin};

use crate::cores;
use crate::place::Place;
use crate::processes::Process;
use crate::socket::Io;

/// One kind of hop.
#[derive(Debug, Clone)]
pub(crate) struct Hop {
    /// Payload of an observation; actions have 64 bytes, or what the reply's rule says.
    pub(crate) bytes: usize,
    /// The payload is written here and read there.
    pub(crate) touch: bool,
    pub(crate) stamps: Stamps,
    pub(crate) waiting: Waiting,
    /// How long the worker thinks, in microseconds.
    pub(crate) think: u32,
    /// The worker is one in Python whose handler does nothing: interpreter and script.
    pub(crate) python: Option<(PathBuf, PathBuf)>,
    /// Cores of this side and of the worker.
    pub(crate) cores: [usize; 2],
    /// All that there are: what both sides count before they pin themselves.
    pub(crate) all: Vec<usize>,
}

/// How both sides wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// They never sleep.
    Spin,
    /// They spin as long as it pays, then sleep.
    Adaptive,
    /// They sleep at once; this side in that driver's wait.
    Block(Io),
}

/// Microseconds, long after every hop.
const FOR_EVER: &str = "20000";
const PATIENCE: Duration = Duration::from_secs(10);

impl Hop {
    /// Nanoseconds there and back.
    ///
    /// # Errors
    /// If the region, the worker or a wait fails.
    pub(crate) fn run(&self, plan: Batches) -> io::Result<Vec<f64>> {
        let mut ends = self.start()?;
        let nanos = plan.run(|| ends.trip(self))?;
        ends.owner.close();
        // With its end the worker looks whether there is a sidecar.
        drop(ends.connection);
        ends.worker.finish()?;
        Ok(nanos)
    }

    fn start(&self) -> io::Result<Ends> {
        let place = Place::new()?;
        let geometry = Geometry {
            observation_slots: 4,
            observation_bytes: (self.bytes.max(1) as u32).next_multiple_of(4096),
            action_slots: 16,
            action_bytes: 64 << 10,
        };
        let agent =
            AgentId::new("hop").map_err(|_| io::Error::other("an id of three letters is too long"))?;
        let identity = Identity { job_endpoint_hash: [7; 32], agent };
        let opened =
            region::create(&place.region(), &geometry, &identity, clock::now()).map_err(io::Error::other)?;
        let mut owner = opened.owner;
        owner.stamp_by(self.stamps);
        let listener = Listener::bind(&place.region())?;

        let spin = match self.waiting {
            Waiting::Spin => FOR_EVER,
            Waiting::Adaptive => "auto",
            Waiting::Block(_) => "off",
        };
        let core = self.cores[1].to_string();
        let mut worker = if let Some((interpreter, script)) = &self.python {
            let mut worker = Command::new(interpreter);
            worker.arg(script).arg(core).env("PYTHONDONTWRITEBYTECODE", "1");
            worker
        } else {
            let mut worker = Command::new(std::env::current_exe()?);
            worker.args(["worker", "--spin", spin, "--think", &self.think.to_string(), "--core", &core]);
            if self.touch {
                worker.arg("--touch");
            }
            if self.stamps == Stamps::Off {
                worker.arg("--no-stamps");
            }
            worker
        };
        worker.arg("--shm").arg(place.region());
        cores::stay_on(&self.all)?;
        let worker = Process::start("the worker", &mut worker)?;
        let connection = attach(&mut owner, &listener)?;
        owner.deliver_pending();
        let spin = match self.waiting {
            Waiting::Spin => None,
            Waiting::Adaptive => Some(Spin::measure(Mode::Auto, 2)),
            Waiting::Block(_) => Some(Spin::measure(Mode::Off, 2)),
        };
        let io = if let Waiting::Block(io) = self.waiting { io } else { Io::Uring };
        let driver: Box<dyn Driver> = match io {
            Io::Uring => Box::new(Uring::new(owner.doorbells(), RingMode::Auto)?),
            Io::Epoll => Box::new(Epoll::new(owner.doorbells())?),
        };
        cores::stay_on(&self.cores[..1])?;
        Ok(Ends {
            driver,
            spin,
            came: Completions::with_capacity(4),
            sequence: 1,
            owner,
            worker,
            connection,
            _listener: listener,
            _place: place,
        })
    }
}

/// The next worker's connection.
///
/// # Errors
/// None comes.
pub(crate) fn attach(owner: &mut Owner, listener: &Listener) -> io::Result<Connection> {
    let timeout = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
    loop {
        if poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the worker does not attach"));
        }
        let Some(mut pending) = listener.accept()? else { continue };
        let candidate = pending.wait_hello(HANDSHAKE).map_err(io::Error::other)?;
        let grant = owner.seat_join(&candidate).map_err(io::Error::other)?;
        return pending.grant(&grant);
    }
}

struct Ends {
    /// First, since it listens to the owner's doorbell.
    driver: Box<dyn Driver>,
    /// `None`: it never sleeps.
    spin: Option<Spin>,
    came: Completions,
    sequence: u64,
    owner: Owner,
    worker: Process,
    connection: Connection,
    _listener: Listener,
    _place: Place,
}

impl Ends {
    fn trip(&mut self, hop: &Hop) -> io::Result<()> {
        let slot = loop {
            if let Some(slot) = self.owner.claim_slot() {
                break slot;
            }
            // Given back together with the action, which was taken; only its record may be due.
            self.owner.poll_worker().map_err(io::Error::other)?;
        };
        if hop.touch {
            let base = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize);
            // SAFETY: the slot is claimed, and has room for headroom and payload: nobody else uses these bytes. As
            // `MaybeUninit` nothing is read from them.
            let payload = unsafe { core::slice::from_raw_parts_mut(base.cast(), hop.bytes) };
            batches::write_if(true, payload);
        }
        let sequence = self.sequence;
        self.sequence += 1;
        let now = hop.stamps.now();
        let length = hop.bytes as u32;
        self.owner
            .publish(slot, &Observed { epoch: Epoch(1), sequence, length, first_byte: now, last_byte: now });
        loop {
            match self.owner.poll_worker().map_err(io::Error::other)? {
                Some(FromWorker::Action { sequence: answered, .. }) => {
                    self.owner.finish_action();
                    self.owner.answered(answered);
                    return if answered == sequence {
                        Ok(())
                    } else {
                        Err(io::Error::other("another answer"))
                    };
                }
                Some(FromWorker::Record { .. }) => {}
                None => self.wait()?,
            }
        }
    }

    fn wait(&mut self) -> io::Result<()> {
        let Self { driver, spin, came, owner, .. } = self;
        let Some(spin) = spin else {
            while !owner.has_something() {
                core::hint::spin_loop();
            }
            return Ok(());
        };
        if spin.wait(|| owner.has_something()) {
            return Ok(());
        }
        let started = clock::now();
        if owner.arm() {
            driver.turn(Wait::Block(Some(PATIENCE)), came)?;
            came.clear();
        }
        owner.disarm();
        spin.slept(clock::now().since(started));
        Ok(())
    }
}
