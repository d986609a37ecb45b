//! A worker that does whatever its rights allow: random bytes over every word that it may write, its descriptors rung,
//! shut and closed, the region's file cut short. The sidecar says what happened and goes on, or ends with a clear
//! error; it never crashes. An attack takes two seconds; most of a minute with `SIDECAR_SOAK` set.

mod support;

use core::time::Duration;
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::process::{Command, Stdio};

use sidecar_shm::worker::{AttachOptions, Event, Worker};
use sidecar_shm::{clock, layout};
use support::{Gateway, Region, Running, main_job, sidecar};

/// Names the region to the hostile process, which is the test once more.
const REGION: &str = "SIDECAR_TEST_HOSTILE_REGION";
/// Names the attack.
const ATTACK: &str = "SIDECAR_TEST_HOSTILE_ATTACK";

/// Places in the region for the attacker, who needs no library: the first seat, from the start; within the seat its
/// cells and words; the sidecar's position in that ring, from the start.
const SEAT: usize = layout::SEATS_AREA;
const PAGE: usize = layout::PAGE;
const RING: usize = layout::RING_BYTES;
const CELL: usize = layout::CELL;
const CELLS: usize = PAGE;
/// The mark of a cell.
const MARK: usize = sidecar_shm::descriptor::MARK_WORD * 8;
const UP_SEQUENCE: usize = layout::worker_page::UP_SEQUENCE;
const DOWN_WAITERS: usize = layout::worker_page::DOWN_WAITERS;
const WANTS_ROOM: usize = layout::worker_page::WANTS_ROOM;
const BY_DESCRIPTOR: usize = layout::worker_page::BY_DESCRIPTOR;
const UP_HEAD: usize = layout::block(0) + layout::seat_block::UP_HEAD;

/// Starts one test's hostile processes.
struct Hostile {
    test: &'static str,
}

impl Hostile {
    /// The first line of a test, with a closure that marks it. In a process that is to attack this never comes back.
    fn of<M: FnOnce()>(_: M) -> Self {
        // The type of a closure says in which test it was written.
        let name = core::any::type_name::<M>().strip_suffix("::{{closure}}");
        let (_, test) = name.and_then(|name| name.split_once("::")).expect("a closure in the test itself");
        if let Some(region) = std::env::var_os(REGION) {
            attack(region.as_ref(), &std::env::var(ATTACK).unwrap());
        }
        Self { test }
    }

    /// A worker that attacks.
    fn start(&self, region: &Region, attack: &str) -> Running {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(REGION, region.path())
            .env(ATTACK, attack)
            .stdin(Stdio::null());
        Running::start(&mut command)
    }
}

/// A worker as users have it.
fn worker(region: &Region, policy: &str) -> Command {
    let mut command = sidecar();
    command.args(["worker", "--policy", policy, "--shm"]).arg(region.path());
    command
}

fn seconds() -> Duration {
    Duration::from_secs(if std::env::var_os("SIDECAR_SOAK").is_some() { 45 } else { 2 })
}

/// Xorshift: no more is asked of it than to differ.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// Numbers that a check may mistake for good ones come as often as any others.
    fn word(&mut self) -> u64 {
        match self.below(5) {
            0 => self.below(70) as u64,
            1 => self.below(4) as u64 | (self.below(4) as u64) << 8 | (self.below(400) as u64) << 16,
            2 => u64::from(u32::MAX) - self.below(4) as u64,
            3 => 1 << self.below(64),
            _ => self.next(),
        }
    }
}

/// The writable parts of this process's mappings of the region, by the kernel's word: every byte that a worker may
/// write, and no other.
fn writable(region: &Path) -> Vec<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let name = region.to_str().unwrap();
    maps.lines()
        .filter(|line| {
            line.ends_with(name) && line.split(' ').nth(1).is_some_and(|rights| rights.starts_with("rw"))
        })
        .map(|line| {
            let (start, end) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (usize::from_str_radix(start, 16).unwrap(), usize::from_str_radix(end, 16).unwrap())
        })
        .collect()
}

/// Overwrites one aligned word of our own mapping.
fn overwrite(address: usize, value: u64) {
    let word = core::ptr::with_exposed_provenance_mut::<u64>(address);
    // SAFETY: an aligned word of a mapping that the kernel says we may write, which lives until this process ends. The
    // library in this process may read it at the same time as its peer would: that is the attack.
    unsafe { word.write_volatile(value) };
}

fn overwrite32(address: usize, value: u32) {
    let word = core::ptr::with_exposed_provenance_mut::<u32>(address);
    // SAFETY: as in `overwrite`.
    unsafe { word.write_volatile(value) };
}

/// Has the cell of this position say that it is the next message.
fn mark(cells: usize, position: u32) {
    let cell = position as usize % (RING / CELL);
    overwrite(cells + cell * CELL + MARK, u64::from(position) | 1 << 32);
}

/// Looks at a word of the mapping.
fn read32(address: usize) -> u32 {
    let word = core::ptr::with_exposed_provenance::<u32>(address);
    // SAFETY: an aligned word of a mapping that lives until this process ends, and which the sidecar writes atomically.
    unsafe { word.read_volatile() }
}

/// Fills every cell with a message that is well-formed: an action that nobody asked for, or a failure of an early
/// observation.
fn fill(cells: usize) {
    for index in 0..RING / CELL {
        let cell = cells + index * CELL;
        // A failure: kind 3, with a record of four bytes: variant, sequence, and a message of one byte.
        let failure = u64::from_ne_bytes([2, (index % 3) as u8, 1, b'x', 0, 0, 0, 0]);
        let action = index % 2 == 0;
        overwrite(cell, if action { 2 | 1 << 32 } else { 3 | 4 << 16 });
        overwrite(cell + 8, 1_000_000);
        // Slot 0 of the first generation.
        overwrite(cell + 16, 1 << 32);
        overwrite(cell + 24, 1 << 32);
        overwrite(cell + 64, failure);
    }
}

/// This process's descriptors above the standard ones, with what they are.
fn descriptors() -> Vec<(i32, String)> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let named = entries.filter_map(|entry| {
        let fd: i32 = entry.file_name().to_str()?.parse().ok()?;
        let target = std::fs::read_link(entry.path()).ok()?.to_str()?.to_owned();
        (fd > 2).then_some((fd, target))
    });
    named.collect()
}

/// Random writes into eventfds and the attach socket: rings without reason, garbage after the handshake.
fn abuse_descriptors(random: &mut Random) {
    for (fd, target) in descriptors() {
        if !(target.contains("eventfd") || target.starts_with("socket:")) {
            continue;
        }
        // SAFETY: the descriptor is open: it was listed a moment ago and this program has one thread that uses it.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        let bytes = random.word().to_ne_bytes();
        // The counter may be full, the socket's peer gone: as good.
        let _ = rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::NONBLOCK);
        let _ = rustix::io::write(fd, &bytes);
        // Full to the brim, and for all who share the description it blocks from now on.
        let _ = rustix::io::write(fd, &(u64::MAX - 1).to_ne_bytes());
        let _ = rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty());
    }
}

/// The hostile process: a worker as any other, until it has an observation in hand.
fn attack(region: &Path, attack: &str) -> ! {
    let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ u64::from(std::process::id()));
    eprintln!("seed {:#x}", random.0);
    let mut worker = Worker::attach(region, &AttachOptions::default()).unwrap();
    loop {
        match worker.next(Some(Duration::from_secs(20))).unwrap() {
            Event::Warmup => worker.ready().unwrap(),
            Event::Observation(observation) => {
                core::mem::forget(observation);
                break;
            }
            _ => {}
        }
    }
    let parts = writable(region);
    assert_eq!(parts.len(), 2, "the seat and the slots: {parts:?}");
    let base = parts[0].0 - SEAT;
    let file = || std::fs::File::options().write(true).open(region).unwrap();
    match attack {
        "cut" => file().set_len(0).unwrap(),
        "half" => file().set_len(200_000).unwrap(),
        "wipe" => {
            let file = file();
            let bytes = file.metadata().unwrap().len();
            file.set_len(0).unwrap();
            file.set_len(bytes).unwrap();
        }
        "header" => {
            let mut file = file();
            file.seek(SeekFrom::Start(16_384)).unwrap();
            file.write_all(&[0xff; 4096]).unwrap();
        }
        "flood" => fill(parts[0].0 + CELLS),
        _ => {}
    }
    eprintln!("attacking");
    let started = clock::now();
    let mut written: u64 = 0;
    // What a worker writes that talks: ring and control page.
    let said = (PAGE + RING) / 8;
    while clock::now().since(started) < seconds() {
        match attack {
            // The control page and the ring's cells: what the sidecar reads most.
            "words" => {
                overwrite(parts[0].0 + random.below(said) * 8, random.word());
                // Chance does not find the one mark that has the sidecar read a cell.
                if written.is_multiple_of(64) {
                    mark(parts[0].0 + CELLS, read32(base + UP_HEAD));
                }
            }
            // Everything, and the descriptors from time to time.
            "everything" => {
                let (start, end) = parts[random.below(2)];
                overwrite(start + random.below((end - start) / 8) * 8, random.word());
                if written.is_multiple_of(64) {
                    mark(parts[0].0 + CELLS, read32(base + UP_HEAD));
                }
                if written.is_multiple_of(4096) {
                    abuse_descriptors(&mut random);
                }
            }
            "flood" => {
                // Every cell says that it is the next message, or one of those after it.
                let head = read32(base + UP_HEAD);
                for ahead in 0..(RING / CELL) as u32 {
                    mark(parts[0].0 + CELLS, head.wrapping_add(ahead));
                }
            }
            "descriptors" => {
                abuse_descriptors(&mut random);
                overwrite(parts[0].0 + UP_SEQUENCE, random.word());
                // Asks to be woken by its descriptor, all the time.
                overwrite32(parts[0].0 + DOWN_WAITERS, 1);
                overwrite32(parts[0].0 + WANTS_ROOM, 1);
                overwrite32(parts[0].0 + BY_DESCRIPTOR, 1);
            }
            // Sits on the observation.
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        written += 1;
    }
    eprintln!("{written} attacks");
    // No order in the end: what the library would do on the way out is not to be trusted any more.
    let killed = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    unreachable!("{killed:?}")
}

/// What a region whose worker attacks may hold afterwards: its nonsense, what it said, and that it went.
const TRACES: [&str; 8] = [
    "poisoned",
    "the worker with pid",
    "worker detached",
    "dropped_actions",
    "failed",
    "worker failed",
    "warm-up failed",
    "data frame dropped",
];

/// A game that needs one good worker, and goes on for as long as it has none.
fn game(region: &Region, arguments: &[&str]) -> (Gateway, Running) {
    region.expect(&TRACES);
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "1ms"]);
    let mut command = main_job(region, &gateway.endpoint);
    command.args(arguments).args(["--slots", "4", "--slot-bytes", "65536"]);
    let sidecar = Running::start(&mut command);
    (gateway, sidecar)
}

/// Resident memory and open descriptors of a process.
fn footprint(pid: u32) -> (u64, usize) {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (kilobytes, std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// The attack runs its time and is killed; then the next worker plays the whole game.
fn survived(hostile: &Hostile, attack: &str, io: &str) -> String {
    let region = Region::new();
    let (gateway, mut sidecar) = game(&region, &["--io", io]);
    let mut attacker = hostile.start(&region, attack);
    attacker.await_stderr("attacking");
    let before = footprint(sidecar.pid());
    let (code, said) = attacker.finish();
    assert!(code > 128, "{attack}: the attacker itself failed ({code}):\n{said}");
    sidecar.await_stderr("worker gone");
    let after = footprint(sidecar.pid());
    assert!(after.0 < before.0 + 4096, "{attack}: grew from {} to {} kB", before.0, after.0);
    assert!(after.1 <= before.1 + 2, "{attack}: {} descriptors became {}", before.1, after.1);
    let mut good = worker(&region, "cartpole");
    let good = Running::start(&mut good);
    let (code, said) = sidecar.finish();
    assert_eq!(code, 0, "{attack}: {said}");
    assert!(!said.contains("panicked"), "{attack}: {said}");
    assert!(said.len() < 200_000, "{attack}: the log was flooded with {} bytes", said.len());
    assert!(gateway.report()["steps"].as_u64().unwrap() > 0, "{attack}: {said}");
    assert_eq!(good.finish().0, 0, "{attack}: {said}");
    said
}

#[test]
fn random_words_over_ring_and_control_page_cost_the_worker_its_seat_and_nobody_else_anything() {
    let hostile = Hostile::of(|| ());
    for io in ["uring", "epoll"] {
        let said = survived(&hostile, "words", io);
        assert!(said.contains("broke the shared region's rules"), "{said}");
        assert!(said.contains("was detached"), "{said}");
    }
}

#[test]
fn random_bytes_over_everything_and_rung_descriptors_are_survived() {
    let hostile = Hostile::of(|| ());
    survived(&hostile, "everything", "uring");
    survived(&hostile, "descriptors", "epoll");
}

#[test]
fn a_flood_of_well_formed_messages_keeps_nobody_and_fills_no_log() {
    let hostile = Hostile::of(|| ());
    survived(&hostile, "flood", "uring");
    survived(&hostile, "flood", "epoll");
}

#[test]
fn a_region_that_a_worker_damages_ends_the_run_with_a_clear_error_and_the_next_start_works() {
    let hostile = Hostile::of(|| ());
    for (attack, io) in [
        ("cut", "uring"),
        ("cut", "epoll"),
        ("half", "uring"),
        ("half", "epoll"),
        ("wipe", "epoll"),
        ("header", "uring"),
    ] {
        let region = Region::new();
        let (gateway, sidecar) = game(&region, &["--io", io]);
        let mut attacker = hostile.start(&region, attack);
        attacker.await_stderr("attacking");
        // It sits on an observation, so nothing touches the region until it goes and another one comes.
        drop(attacker);
        let next = Running::start(&mut worker(&region, "noop"));
        ended_damaged(attack, &region, sidecar, gateway, next);
    }
}

fn ended_damaged(attack: &str, region: &Region, sidecar: Running, gateway: Gateway, next: Running) {
    let (code, said) = sidecar.finish();
    assert_eq!(code, 1, "{attack}: {said}");
    assert!(said.contains("error[region-damaged]: "), "{attack}: {said}");
    // What is left to save is named with the time that is left for it.
    assert!(said.contains("open; the gateway keeps the tunnel for 30 s at most"), "{attack}: {said}");
    assert!(said.contains("hint: "), "{attack}: {said}");
    assert!(!region.path().exists(), "{attack}: the broken region is in the way of the next start");
    // Its session is lost with it; the gateway would wait for it.
    drop((gateway, next));
    let (gateway, sidecar) = game(region, &[]);
    let good = Running::start(&mut worker(region, "cartpole"));
    let (code, said) = sidecar.finish();
    assert_eq!((code, good.finish().0), (0, 0), "{attack}: {said}");
    assert_eq!(gateway.report()["solved"], 1, "{attack}: {said}");
}

#[test]
fn a_region_whose_name_is_removed_serves_on_and_lets_the_next_worker_in() {
    let region = Region::new();
    let (gateway, mut sidecar) = game(&region, &[]);
    let first = Running::start(&mut worker(&region, "cartpole"));
    sidecar.await_stderr("session open");
    std::fs::remove_file(region.path()).unwrap();
    first.signal(rustix::process::Signal::KILL);
    sidecar.await_stderr("worker gone");
    let good = Running::start(&mut worker(&region, "cartpole"));
    let (code, said) = sidecar.finish();
    assert_eq!((code, good.finish().0), (0, 0), "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}
