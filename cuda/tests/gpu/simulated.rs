//! A simulated driver of a test's own, and a region whose owner is the test.

use core::ffi::{CStr, c_char};
use core::time::Duration;
use std::ffi::CString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sidecar_core::agent::HEADROOM;
use sidecar_core::record::ToSidecar;
use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_cuda::device::{DeviceMemory, OwnedStream};
use sidecar_cuda::driver::{Driver, Unavailable};
use sidecar_cuda::nvml::Nvml;
use sidecar_cuda::worker::{Lent, PinnedWorker};
use sidecar_shm::attach::{Connection, Listener};
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::owner::{FromWorker, Owner};
use sidecar_shm::region::{Identity, create};
use sidecar_shm::slots::{Observed, SlotIndex};
use sidecar_shm::worker::{AttachOptions, Event, Observation, Worker};
use tempfile::TempDir;

pub(crate) const SOON: Option<Duration> = Some(Duration::from_secs(5));

/// A copy of the library under a name of its own is loaded as a library of its own: tests share nothing.
pub(crate) struct Simulated {
    path: PathBuf,
    _directory: TempDir,
    library: libloading::Library,
}

/// Beside the test's own program, where cargo puts the libraries of its dependencies.
pub(crate) fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().join("libsimulated_cuda_driver.so")
}

impl Simulated {
    /// With a line as `simulated_cuda_driver::config` describes it.
    pub(crate) fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("libcuda.so.1");
        std::fs::copy(library(), &path).unwrap();
        // SAFETY: it is our own library, which does nothing when it is loaded.
        let library = unsafe { libloading::Library::new(&path) }.unwrap();
        let line = CString::new(config).unwrap();
        // SAFETY: the signature that the library's own page says.
        let configure =
            unsafe { library.get::<unsafe extern "C" fn(*const c_char) -> u32>("simulated_cuda_configure") };
        let configure = configure.unwrap();
        // SAFETY: the line lives through the call.
        let configured = unsafe { configure(CStr::as_ptr(&line)) };
        assert_eq!(configured, 0, "{config}");
        Self { path, _directory: directory, library }
    }

    pub(crate) fn open(&self) -> Result<Driver, Unavailable> {
        Driver::open_at(&self.path)
    }

    pub(crate) fn driver(&self) -> Driver {
        self.open().unwrap()
    }

    pub(crate) fn nvml(&self) -> Result<Nvml, String> {
        Nvml::open_at(&self.path)
    }

    pub(crate) fn report(&self) -> Vec<String> {
        // SAFETY: the signature that the library's own page says.
        let report = unsafe {
            self.library.get::<unsafe extern "C" fn(*mut c_char, usize) -> usize>("simulated_cuda_report")
        };
        let report = report.unwrap();
        let mut text = vec![0_u8; 64 << 10];
        // SAFETY: valid for the length told.
        let length = unsafe { report(text.as_mut_ptr().cast(), text.len()) };
        text.truncate(length);
        String::from_utf8(text).unwrap().lines().map(str::to_owned).collect()
    }

    /// Violations and leaks so far.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.report().into_iter().filter(|line| !line.starts_with("calls: ")).collect()
    }

    /// How often a call was made.
    pub(crate) fn calls(&self, name: &str) -> u64 {
        let prefix = format!("calls: {name} ");
        let count = |line: &String| line.strip_prefix(&prefix).map(|count| count.parse().unwrap());
        self.report().iter().find_map(count).unwrap_or(0)
    }
}

pub(crate) const GEOMETRY: Geometry =
    Geometry { observation_slots: 2, observation_bytes: 16_384, action_slots: 4, action_bytes: 4096 };

/// A sidecar's side of a region.
pub(crate) struct Side {
    pub(crate) owner: Owner,
    listener: Listener,
    connections: Vec<Connection>,
    path: PathBuf,
    directory: Arc<TempDir>,
    sequence: u64,
}

impl Side {
    pub(crate) fn new() -> Self {
        Self::of(&GEOMETRY)
    }

    pub(crate) fn of(geometry: &Geometry) -> Self {
        let directory = tempfile::Builder::new().prefix("sidecar-cuda-").tempdir_in("/dev/shm").unwrap();
        Self::at(Arc::new(directory), geometry)
    }

    fn at(directory: Arc<TempDir>, geometry: &Geometry) -> Self {
        let path = directory.path().join("obs");
        let identity = Identity { job_endpoint_hash: [1; 32], agent: AgentId::new("agent").unwrap() };
        let owner = create(&path, geometry, &identity, clock::now()).unwrap().owner;
        let listener = Listener::bind(&path).unwrap();
        Self { owner, listener, connections: Vec::new(), path, directory, sequence: 1 }
    }

    /// Dies, and is followed by one with slots of another size: a new region.
    pub(crate) fn follow_with_another_geometry(self) -> Self {
        self.follow_with(&Geometry { observation_bytes: 32_768, ..GEOMETRY })
    }

    /// Dies, and is followed by one that takes its region over if the geometry is the same.
    pub(crate) fn follow_with(self, geometry: &Geometry) -> Self {
        let (directory, sequence) = (Arc::clone(&self.directory), self.sequence);
        drop(self);
        Self { sequence, ..Self::at(directory, geometry) }
    }

    pub(crate) fn serve(&mut self) {
        while let Some(mut pending) = self.listener.accept().unwrap() {
            let Ok(candidate) = pending.wait_hello(Duration::from_secs(2)) else { continue };
            match self.owner.seat_join(&candidate) {
                Ok(grant) => self.connections.push(pending.grant(&grant).unwrap()),
                Err(refused) => pending.refuse(&refused),
            }
        }
        self.owner.deliver_pending();
    }

    /// What `act` gives, which runs in another thread while this serves.
    pub(crate) fn while_serving<T: Send>(&mut self, act: impl FnOnce(&Path) -> T + Send) -> T {
        let path = self.path.clone();
        std::thread::scope(|scope| {
            let acting = scope.spawn(move || act(&path));
            until(|| {
                self.serve();
                acting.is_finished().then_some(())
            });
            acting.join().unwrap()
        })
    }

    pub(crate) fn attach(&mut self) -> Worker {
        self.while_serving(|path| Worker::attach(path, &AttachOptions::default()).unwrap())
    }

    pub(crate) fn observe(&mut self, payload: &[u8]) -> u64 {
        let slot = self.owner.claim_slot().expect("a free slot");
        self.receive(slot, 0, payload);
        self.publish(slot, payload.len(), clock::now())
    }

    /// Bytes of a payload arrive in a claimed slot.
    pub(crate) fn receive(&mut self, slot: SlotIndex, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.owner.geometry().observation_bytes as usize);
        let start = self.owner.slot_base(slot).wrapping_add(HEADROOM as usize + at);
        // SAFETY: the bytes fit the slot (asserted above), which is claimed: nobody else uses it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    pub(crate) fn publish(&mut self, slot: SlotIndex, length: usize, first_byte: Instant) -> u64 {
        let (now, sequence) = (clock::now(), self.sequence);
        self.sequence += 1;
        let length = u32::try_from(length).unwrap();
        let seen = Observed { epoch: Epoch(1), sequence, length, first_byte, last_byte: now };
        self.owner.publish(slot, &seen);
        self.owner.deliver_pending();
        sequence
    }

    /// Takes all that the worker said; what was answered counts as sent.
    pub(crate) fn take(&mut self) -> Vec<Said> {
        let mut all = Vec::new();
        while let Some(said) = self.owner.poll_worker().unwrap() {
            match said {
                FromWorker::Action { sequence, base, length, .. } => {
                    let mut action = vec![0; length as usize];
                    // SAFETY: the owner has checked that the bytes lie in an action slot, ours until it is finished.
                    unsafe { core::ptr::copy_nonoverlapping(base, action.as_mut_ptr(), action.len()) };
                    self.owner.finish_action();
                    self.owner.journal().action_started(sequence);
                    self.owner.journal().action_sent(sequence);
                    self.owner.answered(sequence);
                    all.push(Said::Action(action));
                }
                FromWorker::Record { record: ToSidecar::Failed { sequence, message }, .. } => {
                    self.owner.answered(sequence);
                    all.push(Said::Failed(message.as_str().to_owned()));
                }
                FromWorker::Record { .. } => {}
            }
        }
        all
    }
}

/// What a worker said of an observation.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Said {
    Action(Vec<u8>),
    Failed(String),
}

/// Waits for a condition, under a watchdog.
pub(crate) fn until<T>(mut condition: impl FnMut() -> Option<T>) -> T {
    let started = clock::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(clock::now().since(started) < Duration::from_secs(20), "nothing happened");
        std::thread::yield_now();
    }
}

/// The next observation.
pub(crate) fn observation(mut next: impl FnMut() -> Event) -> Observation {
    loop {
        match next() {
            Event::Observation(observation) => return observation,
            Event::Timeout => panic!("no observation came"),
            _ => {}
        }
    }
}

/// The next observation, lent to the device.
pub(crate) fn lent(worker: &mut PinnedWorker) -> Lent {
    let observation = observation(|| worker.next(SOON).unwrap());
    worker.lend(observation)
}

/// Memory on the worker's device for one observation, and a stream to copy on.
pub(crate) fn device(worker: &PinnedWorker) -> (DeviceMemory, OwnedStream) {
    let context = worker.pin().expect("a device").context();
    let memory = DeviceMemory::new(Arc::clone(context), GEOMETRY.observation_bytes as usize).unwrap();
    (memory, OwnedStream::new(Arc::clone(context)).unwrap())
}
