//! Limits: memory and descriptors stay what they were over many frames and reconnects, `/dev/shm` holds what it must and
//! nothing else, and what default containers have is enough, or the error says what is missing.
//!
//! 20,000 frames and 30 reconnects over both drivers together; with SIDECAR_SOAK set 1,000,000 and 1,000.

mod support;

use core::net::SocketAddr;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::process::Signal;
use sidecar_shm::stats::{Counter, Gauge, Snapshot, Stats};
use support::{FAST, FAST_GATEWAY, Gateway, Region, Running, gateway, main_job, wait_for, with_worker};

/// Memory that a process may use more at the end than it did early on: allocators round up.
const SLACK_KIB: u64 = 256;

fn times(short: u64, long: u64) -> u64 {
    if std::env::var_os("SIDECAR_SOAK").is_some() { long } else { short }
}

/// What a process holds: private memory in KiB, descriptors, threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Holding {
    memory_kib: u64,
    descriptors: usize,
    threads: u64,
}

impl Holding {
    fn of(pid: u32) -> Self {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let number = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim_start_matches(':').split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
        // The region is shared memory, and all there from the start; a worker sees more of it with each slot.
        Self { memory_kib: number("RssAnon"), descriptors, threads: number("Threads") }
    }

    /// Fails unless this is no more than it was.
    fn assert_flat(&self, who: &str, before: &Self) {
        println!("{who}: {before:?}, then {self:?}");
        assert!(self.memory_kib <= before.memory_kib + SLACK_KIB, "{who} grows: {before:?}, then {self:?}");
        assert!(self.descriptors <= before.descriptors, "{who} leaks: {before:?}, then {self:?}");
        assert!(self.threads <= before.threads, "{who} leaves threads: {before:?}, then {self:?}");
    }
}

fn stat(region: &Region) -> Option<Snapshot> {
    Stats::open_read_only(&region.path()).ok()
}

/// What sidecar and worker hold.
fn holdings(sidecar: &Running, region: &Region) -> [Holding; 2] {
    let worker = stat(region).expect("a region").gauge(Gauge::WorkerPid);
    [Holding::of(sidecar.pid()), Holding::of(u32::try_from(worker).unwrap())]
}

fn assert_flat(before: [Holding; 2], after: [Holding; 2]) {
    for ((who, before), after) in ["sidecar", "worker"].into_iter().zip(before).zip(after) {
        after.assert_flat(who, &before);
    }
}

/// A rehearsal gateway that tells nobody of its steps.
struct Silent {
    process: Running,
    endpoint: String,
    last: thread::JoinHandle<String>,
}

impl Silent {
    fn start(arguments: &[&str]) -> Self {
        let mut process = Running::start(&mut gateway("127.0.0.1:0", &[&FAST_GATEWAY, arguments].concat()));
        let mut output = BufReader::new(process.take_stdout());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let first: serde_json::Value = serde_json::from_str(&first).unwrap();
        let last = thread::spawn(move || output.lines().map_while(Result::ok).last().unwrap_or_default());
        Self { process, endpoint: first["listening"].as_str().unwrap().to_owned(), last }
    }

    fn report(self) -> serde_json::Value {
        self.process.finish();
        serde_json::from_str(&self.last.join().unwrap()).unwrap()
    }
}

/// Plays many cases over one driver.
fn play_many_frames(io: &str) {
    let frames = times(10_000, 500_000);
    // A case that goes well has 500 steps.
    let cases = (frames / 500).to_string();
    let region = Region::new();
    let gateway = Silent::start(&["--cases", &cases]);
    let mut command = main_job(&region, &format!("ws://{}/tunnel", gateway.endpoint));
    command.args(FAST).args(["--io", io, "-q"]);
    with_worker(&mut command, "cartpole");
    let sidecar = Running::start(&mut command);
    let seen = || stat(&region).map_or(0, |stat| stat.counter(Counter::FramesIn));
    wait_for("the first frames", || seen() >= 2000);
    let before = holdings(&sidecar, &region);
    let (mut after, mut last) = (before, 0);
    // It ends soon after.
    while last < frames - 1000 {
        let known = last;
        wait_for("another frame", || {
            last = seen();
            last > known
        });
        after = holdings(&sidecar, &region);
    }
    let (code, said) = sidecar.finish();
    assert_eq!(code, 0, "{said}");
    assert_flat(before, after);
    let report = gateway.report();
    assert_eq!((&report["solved"], &report["connections"]), (&report["cases"], &1.into()), "{report}");
    println!("{io}: {} frames in {} cases", frames, report["cases"]);
}

/// Both at a time: in lockstep one game leaves most of two processors idle.
#[test]
fn memory_and_descriptors_are_flat_over_many_frames() {
    thread::scope(|scope| {
        for io in ["uring", "epoll"] {
            scope.spawn(move || play_many_frames(io));
        }
    });
}

/// Passes bytes on between sidecar and gateway, and cuts the connection when told to.
#[derive(Clone)]
struct Relay {
    address: SocketAddr,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Relay {
    fn to(gateway: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let relay = Self { address: listener.local_addr().unwrap(), open: Arc::default() };
        let open = Arc::clone(&relay.open);
        thread::spawn(move || {
            for ours in listener.incoming().map_while(Result::ok) {
                // Without a gateway the job is over.
                let Ok(theirs) = TcpStream::connect(&gateway) else { return };
                let ends = [(&ours, &theirs), (&theirs, &ours)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()));
                for (from, to) in ends {
                    let _ = to.set_nodelay(true);
                    thread::spawn(move || pump(from, to));
                }
                open.lock().unwrap().extend([ours, theirs]);
            }
        });
        relay
    }

    fn cut(&self) {
        for end in self.open.lock().unwrap().drain(..) {
            // It may have ended by itself.
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn memory_and_descriptors_are_flat_over_many_reconnects() {
    let cuts = times(15, 500);
    for io in ["uring", "epoll"] {
        let region = Region::new();
        region.expect(&["connection lost", "an action was sent once more", Counter::Resent.name()]);
        // More than are played: the job ends when it has been cut often enough.
        let gateway = Silent::start(&["--cases", "1000000", "--on-lost", "reask", "--reask-after", "5ms"]);
        let relay = Relay::to(gateway.endpoint.clone());
        let mut command = main_job(&region, &format!("ws://{}/tunnel", relay.address));
        command.args(FAST).args(["--io", io, "-q"]);
        with_worker(&mut command, "cartpole");
        let sidecar = Running::start(&mut command);
        let seen = || stat(&region).map_or(0, |stat| stat.counter(Counter::FramesIn));
        let mut before = None;
        for cut in 0..=cuts {
            let known = seen();
            wait_for("the game to go on", || seen() > known + 20);
            if cut == cuts / 5 {
                before = Some(holdings(&sidecar, &region));
            }
            if cut < cuts {
                relay.cut();
            }
        }
        let after = holdings(&sidecar, &region);
        let redials = stat(&region).unwrap().counter(Counter::Redials);
        sidecar.signal(Signal::TERM);
        region.expect_late_frames();
        let (code, said) = sidecar.finish();
        assert_eq!(code, 143, "{said}");
        assert_flat(before.unwrap(), after);
        assert!(redials >= cuts, "{redials} redials after {cuts} cuts");
        println!("{io}: {redials} redials after {cuts} cuts");
        gateway.process.signal(Signal::KILL);
    }
}

/// What a crash leaves is what the next start goes on with: the same file, and nothing beside it.
#[test]
fn a_crash_leaves_what_the_next_start_goes_on_with_and_an_orderly_end_leaves_nothing() {
    let region = Region::new();
    region.expect(&["connection lost"]);
    let gateway =
        Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1", "--step-delay", "5ms"], &REASK].concat());
    let job = || {
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(FAST);
        with_worker(&mut command, "cartpole");
        command
    };
    let first = Running::start(&mut job());
    wait_for("the first steps", || gateway.count("step") > 0);
    let inode = fs::metadata(region.path()).unwrap().ino();
    first.signal(Signal::KILL);
    let second = Running::start(&mut job());
    assert_eq!(first.finish_alone().0, 128 + 9);
    let mut left = region.leftovers();
    left.sort_unstable();
    assert_eq!(left, ["obs0", "obs0.sock"]);
    assert_eq!(fs::metadata(region.path()).unwrap().ino(), inode);
    let (code, said) = second.finish();
    assert_eq!(code, 0, "{said}");
    assert!(region.leftovers().is_empty(), "{:?}\n{said}", region.leftovers());
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}

const REASK: [&str; 4] = ["--on-lost", "reask", "--reask-after", "300ms"];

/// Plays one case with default settings, but for `before`: a shell's words in front of the sidecar. `None`: they can't
/// be said here.
fn plays_after(before: &str) -> Option<(i32, String)> {
    let allowed = Command::new("unshare").args(["-m", "sh", "-c", &format!("{before} true")]).output();
    let allowed = allowed.is_ok_and(|output| output.status.success());
    if !allowed {
        return None;
    }
    let gateway = Gateway::start(&["--cases", "1", "--payload", "786432"]);
    let region = Region::new();
    let mut job = main_job(&region, &gateway.endpoint);
    with_worker(&mut job, "cartpole");
    // In its own mount namespace, so that its /dev/shm is nobody else's.
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &format!("{before} exec \"$@\""), "sh"]).arg(job.get_program());
    let shm = region.path();
    let path = |argument: &std::ffi::OsStr| {
        if argument == shm.as_os_str() { "/dev/shm/obs0".into() } else { argument.to_owned() }
    };
    command.args(job.get_args().map(path));
    let set: BTreeMap<_, _> = job.get_envs().collect();
    for (name, value) in set {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ended = Running::start(&mut command).finish();
    if ended.0 == 0 {
        assert_eq!(gateway.report()["solved"], 1, "{}", ended.1);
    } else {
        gateway.process.signal(Signal::KILL);
    }
    Some(ended)
}

#[test]
fn the_defaults_fit_a_containers_64_mb_of_shared_memory() {
    let Some((code, said)) = plays_after("mount -t tmpfs -o size=64m tmpfs /dev/shm &&") else {
        return println!("skipped: no mount namespace of its own can be had here");
    };
    assert_eq!(code, 0, "{said}");
    // Half of it is not enough, and the error says so.
    let (code, said) = plays_after("mount -t tmpfs -o size=32m tmpfs /dev/shm &&").unwrap();
    assert_eq!(code, 1, "{said}");
    for text in ["are free", "--slot-bytes", "--shm-size"] {
        assert!(said.contains(text), "{text:?} is missing in:\n{said}");
    }
}

#[test]
fn the_defaults_need_no_more_than_64_kib_of_locked_memory() {
    let Some((code, said)) = plays_after("ulimit -l 64 && mount -t tmpfs -o size=64m tmpfs /dev/shm &&")
    else {
        return println!("skipped: no mount namespace of its own can be had here");
    };
    assert_eq!(code, 0, "{said}");
}

/// Nobody whose actions are short, or who forbids the second sending, has to read of it.
#[test]
fn an_action_that_is_too_long_for_a_successor_is_said_once() {
    for (bytes, unfreeze, lines) in [("10000", "60s", 1), ("5000", "60s", 0), ("10000", "off", 0)] {
        let region = Region::new();
        region.expect_late_frames();
        let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "3", "--payload", bytes]].concat());
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(["--unfreeze", unfreeze]);
        with_worker(&mut command, "echo");
        let (code, said) = Running::start(&mut command).finish();
        assert_eq!(code, 0, "{said}");
        assert_eq!(said.matches("action-not-kept").count(), lines, "{said}");
    }
}
