//! One job: gateway, sidecar and worker as processes, and what is done to them.

use core::cell::Cell;
use core::time::Duration;
use std::panic::{catch_unwind, resume_unwind};
use std::process::Command;
use std::sync::Mutex;
use std::thread;

use rustix::process::{Pid, Signal};
use serde_json::Value;
use sidecar_shm::clock;
use sidecar_shm::stats::{Counter, Gauge, Snapshot, Stats};

use crate::support::random::Random;
use crate::support::{FAST, Gateway, Region, Running, clean, gateway, main_job, stalls, wait_for};

thread_local! {
    /// Processes that this thread's round has killed so far.
    static KILLED: Cell<u64> = const { Cell::new(0) };
}

/// SIGKILL, counted.
fn end_at_once(process: &Running) {
    KILLED.set(KILLED.get() + 1);
    process.signal(Signal::KILL);
}

/// What a round came to.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    cases: u64,
    solved: u64,
    redelivered: u64,
    reasked: u64,
    lost: u64,
    duplicates: u64,
    resent: u64,
}

/// The gateway's, at a twentieth of life but for its window, which is no matter here: on a busy machine the start of a
/// process takes longer.
const TIMERS: [&str; 6] = ["--ping-interval", "1s", "--read-deadline", "2250ms", "--window", "6s"];

/// A process that takes so long to start is late for the gateway's window, which may have been open for a while.
const STALL: Duration = Duration::from_secs(2);
/// So many rounds of a test are played again because the machine stood still.
const AGAIN: u32 = 10;

/// Plays the rounds, five at a time, and prints the sum. A round that fails while the machine stands still is played
/// again.
pub(crate) fn rounds(test: &str, round: impl Fn(&mut Random) -> Tally + Sync) {
    let count = if std::env::var_os("SIDECAR_SOAK").is_some() { 50 } else { 5 };
    let numbers = Mutex::new(0..count);
    let sum = Mutex::new(Tally::default());
    let failure = Mutex::new(None);
    let crashes = Mutex::new((0, 0));
    let again = Mutex::new(0);
    stalls::watch();
    thread::scope(|scope| {
        for _ in 0..5 {
            scope.spawn(|| {
                while let Some(number) = { numbers.lock().unwrap().next() } {
                    let played = loop {
                        let (mut random, began) = (Random::new(test, number), clock::now());
                        KILLED.set(0);
                        let played = catch_unwind(core::panic::AssertUnwindSafe(|| round(&mut random)));
                        let stall = stalls::longest_since(began);
                        if played.is_ok() || stall < STALL || *again.lock().unwrap() == AGAIN {
                            break played;
                        }
                        *again.lock().unwrap() += 1;
                        println!(
                            "{test}, round {number} is played again: a process took {stall:.1?} to start"
                        );
                    };
                    let killed = KILLED.get();
                    let mut crashes = crashes.lock().unwrap();
                    crashes.0 += killed;
                    match played {
                        Ok(tally) => {
                            crashes.1 += killed;
                            sum.lock().unwrap().add(&tally);
                        }
                        Err(why) => *failure.lock().unwrap() = Some(why),
                    }
                }
            });
        }
    });
    let (sum, (tried, survived)) = (sum.into_inner().unwrap(), crashes.into_inner().unwrap());
    println!("{test}, {count} rounds: {sum:?}");
    // Read by `cargo xtask soak`, which adds them up.
    println!(
        "tally crashes={tried} survived={survived} cases={} solved={} explained={} redelivered={} unfrozen={} twice={}",
        sum.cases,
        sum.solved,
        sum.cases - sum.solved,
        sum.redelivered,
        sum.resent,
        // A step that was asked twice is answered twice.
        sum.duplicates.saturating_sub(sum.reasked + sum.resent)
    );
    if let Some(why) = failure.into_inner().unwrap() {
        resume_unwind(why);
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.cases += other.cases;
        self.solved += other.solved;
        self.redelivered += other.redelivered;
        self.reasked += other.reasked;
        self.lost += other.lost;
        self.duplicates += other.duplicates;
        self.resent += other.resent;
    }
}

pub(crate) struct Game {
    region: Region,
    gateway: Gateway,
    gateway_arguments: Vec<String>,
    pub(crate) sidecar: Running,
    sidecar_arguments: Vec<String>,
    child: Vec<String>,
    pub(crate) worker: Running,
}

impl Game {
    /// With a worker that is nobody's child.
    pub(crate) fn start(gateway_arguments: &[&str], sidecar_arguments: &[&str]) -> Self {
        let region = Region::new();
        let worker = Running::start(&mut worker(&region, THINK));
        Self::with(region, gateway_arguments, sidecar_arguments, &[], worker)
    }

    pub(crate) fn start_with_child(gateway_arguments: &[&str]) -> Self {
        Self::with_command(gateway_arguments, &[], &worker_line())
    }

    pub(crate) fn start_supervised(gateway_arguments: &[&str]) -> Self {
        Self::with_command(gateway_arguments, &["--supervise"], &worker_line())
    }

    /// With a worker whose shell outlives it.
    pub(crate) fn start_with_stubborn_child(gateway_arguments: &[&str]) -> Self {
        let line = format!("{} & trap '' TERM; sleep 1000", worker_line().join(" "));
        Self::with_command(gateway_arguments, &[], &["sh".into(), "-c".into(), line])
    }

    fn with_command(gateway_arguments: &[&str], sidecar_arguments: &[&str], child: &[String]) -> Self {
        // Nobody: there is one worker process for each game, here it is the sidecar's.
        let nobody = Running::start(&mut Command::new("true"));
        Self::with(Region::new(), gateway_arguments, sidecar_arguments, child, nobody)
    }

    fn with(
        region: Region,
        gateway_arguments: &[&str],
        sidecar_arguments: &[&str],
        child: &[String],
        worker: Running,
    ) -> Self {
        let common = ["--cases", "1", "--step-delay", "3ms"];
        let gateway_arguments = owned(&[&TIMERS[..], &common, gateway_arguments].concat());
        let gateway = Gateway::run(&mut gateway_command("127.0.0.1:0", &gateway_arguments));
        let sidecar_arguments = owned(sidecar_arguments);
        let child = child.to_vec();
        let sidecar = Running::start(&mut job(&region, &gateway, &sidecar_arguments, &child));
        let game = Self { region, gateway, gateway_arguments, sidecar, sidecar_arguments, child, worker };
        wait_for("the first steps", || game.gateway.count("step") > 0 || game.is_over());
        game
    }

    /// A gateway that has not yet seen the end of a dead sidecar's connection turns the next one away at once.
    fn expect_early_redial(&self) {
        self.expect(&["connection lost: closed right after the upgrade"]);
    }

    pub(crate) fn expect(&self, entries: &[&str]) {
        self.region.expect(entries);
    }

    pub(crate) fn expect_late_frames(&self) {
        self.region.expect_late_frames();
    }

    fn is_over(&self) -> bool {
        self.gateway.count("case_ended") > 0
    }

    pub(crate) fn play_for(&self, time: Duration) {
        thread::sleep(time);
    }

    fn stat(&self) -> Option<Snapshot> {
        Stats::open_read_only(&self.region.path()).ok()
    }

    /// Waits until so many observations have no action yet, or the job is over.
    pub(crate) fn await_unanswered(&self, count: u64) {
        wait_for("an observation", || {
            let seen = self.stat().is_some_and(|stat| stat.gauge(Gauge::Unanswered) == count);
            let working = is_running(self.worker.pid());
            assert!(working || self.is_over(), "{}\n{}", self.worker.stderr(), self.sidecar.stderr());
            seen || self.is_over()
        });
    }

    /// The process that is attached.
    pub(crate) fn worker_pid(&self) -> u32 {
        let mut pid = 0;
        wait_for("an attached worker", || {
            let stat = self.stat();
            pid = stat.map_or(0, |stat| u32::try_from(stat.gauge(Gauge::WorkerPid)).unwrap());
            pid != 0
        });
        pid
    }

    /// The process that owns the region.
    pub(crate) fn owner_pid(&self) -> u32 {
        let mut pid = 0;
        wait_for("an owner", || {
            let owner = self.stat().and_then(|stat| stat.owner).filter(|owner| owner.alive);
            pid = owner.map_or(0, |owner| owner.pid);
            pid != 0
        });
        pid
    }

    pub(crate) fn kill_worker(&mut self) {
        if self.is_over() {
            return;
        }
        self.follow_worker(THINK);
    }

    /// Kills the worker; another one follows once it is gone: before that, it would be one too many.
    fn follow_worker(&mut self, think: &str) {
        end_at_once(&self.worker);
        let pid = self.worker.pid();
        wait_for("the worker's end", || !is_running(pid));
        wait_for("the sidecar's notice of it", || {
            self.stat().is_none_or(|stat| stat.gauge(Gauge::WorkerPid) != u64::from(pid))
        });
        let next = Running::start(&mut worker(&self.region, think));
        core::mem::replace(&mut self.worker, next).finish();
    }

    /// Kills the worker; the next one takes the observation that waits, and thinks about it for ever.
    pub(crate) fn kill_worker_for_a_slow_one(&mut self) {
        self.follow_worker(SLOW);
        wait_for("a worker at work, or a decision", || {
            if !is_running(self.worker.pid()) {
                // It was let in by nobody: the death of the one before was not known yet.
                self.worker = Running::start(&mut worker(&self.region, SLOW));
            }
            let pid = u64::from(self.worker.pid());
            let busy =
                |stat: Snapshot| stat.gauge(Gauge::WorkerPid) == pid && stat.gauge(Gauge::Unanswered) > 0;
            self.stat().is_some_and(busy) || self.noted("3 workers died") > 0
        });
        // Until it has taken what it was given; one that has not dies innocent.
        thread::sleep(Duration::from_millis(50));
    }

    /// How often something of this beginning stands in the region's error log.
    pub(crate) fn noted(&self, start: &str) -> u64 {
        let noted = self.region.noted();
        noted.errors.iter().filter(|(text, _)| text.starts_with(start)).map(|(_, count)| count).sum()
    }

    pub(crate) fn kill_sidecar(&mut self) {
        self.kill_sidecar_and(|| {});
    }

    /// Does something between the end of one sidecar and the start of the next.
    pub(crate) fn kill_sidecar_and(&mut self, then: impl FnOnce()) {
        if self.is_over() {
            return;
        }
        self.expect_early_redial();
        end_at_once(&self.sidecar);
        // Each of its threads: one of them is the worker's parent.
        self.sidecar.wait();
        then();
        let next = self.next_sidecar();
        let (code, said) = core::mem::replace(&mut self.sidecar, next).finish_alone();
        assert_eq!(code, 128 + 9, "{said}");
    }

    /// Another sidecar for the same job.
    pub(crate) fn next_sidecar(&self) -> Running {
        Running::start(&mut job(&self.region, &self.gateway, &self.sidecar_arguments, &self.child))
    }

    pub(crate) fn kill_both(&mut self, worker_first: bool) {
        if self.is_over() {
            return;
        }
        self.expect_early_redial();
        let first = if worker_first { &self.worker } else { &self.sidecar };
        let second = if worker_first { &self.sidecar } else { &self.worker };
        end_at_once(first);
        end_at_once(second);
        let pids = [self.sidecar.pid(), self.worker.pid()];
        wait_for("the end of both", || !pids.into_iter().any(is_running));
        let (sidecar, worker) = (self.next_sidecar(), Running::start(&mut worker(&self.region, THINK)));
        core::mem::replace(&mut self.sidecar, sidecar).finish();
        core::mem::replace(&mut self.worker, worker).finish();
    }

    /// Kills the supervised sidecar.
    pub(crate) fn kill_owner(&self) {
        self.expect_early_redial();
        let pid = self.owner_pid();
        kill(pid);
        wait_for("another owner", || self.owner_pid() != pid);
    }

    /// Starts workers until one is let in; gives the one that was there.
    pub(crate) fn replace_worker(&mut self) -> Running {
        let mut taken = None;
        wait_for("a seat", || {
            assert!(is_running(self.sidecar.pid()), "{}", self.sidecar.stderr());
            let next = Running::start(&mut worker(&self.region, THINK));
            let attached =
                || self.stat().is_some_and(|stat| stat.gauge(Gauge::WorkerPid) == u64::from(next.pid()));
            wait_for("a seat, or none", || {
                attached() || !is_running(next.pid()) || !is_running(self.sidecar.pid())
            });
            taken = attached().then_some(next);
            taken.is_some()
        });
        core::mem::replace(&mut self.worker, taken.unwrap())
    }

    pub(crate) fn restart_gateway(&mut self) {
        let address = self.gateway.address();
        end_at_once(&self.gateway.process);
        wait_for("the port", || std::net::TcpStream::connect(&address).is_err());
        let next = Gateway::run(&mut gateway_command(&address, &self.gateway_arguments));
        self.gateway = next;
    }

    /// Plays on to the end: every case is solved.
    pub(crate) fn solved(self) -> Tally {
        let (tally, report, said) = self.end();
        assert_eq!(tally.solved, tally.cases, "{report}\n{said}");
        tally
    }

    /// Plays on to the end: a case that was not solved has a lost exchange to explain it.
    pub(crate) fn explained(self) -> Tally {
        let (tally, report, said) = self.end();
        assert!(tally.solved + tally.lost >= tally.cases, "{report}\n{said}");
        tally
    }

    fn end(self) -> (Tally, Value, String) {
        let (code, said) = self.sidecar.finish();
        assert_eq!(code, 0, "{said}");
        let report = self.gateway.report();
        let noted = self.region.noted();
        let number = |name: &str| report[name].as_u64().unwrap();
        let tally = Tally {
            cases: number("cases"),
            solved: number("solved"),
            redelivered: noted.counter(Counter::Redelivered),
            reasked: number("reasked"),
            lost: number("lost_exchanges"),
            duplicates: number("duplicate_answers"),
            resent: noted.counter(Counter::Resent),
        };
        // A step that was asked twice is answered twice; nothing else is.
        assert!(tally.duplicates <= tally.reasked + tally.resent, "{report}\n{said}");
        assert!(self.region.leftovers().is_empty(), "{:?}\n{said}", self.region.leftovers());
        (tally, report, said)
    }
}

/// SIGKILL.
pub(crate) fn kill(pid: u32) {
    KILLED.set(KILLED.get() + 1);
    signal(pid, Signal::KILL);
}

pub(crate) fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}

/// Whether there is such a process, other than as a zombie.
pub(crate) fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// How long a worker thinks about each observation, in seconds.
const THINK: &str = "0.001";
/// One that never comes to an end.
const SLOW: &str = "1000";
/// A worker to be tested in the place of the built-in one: a command, its words separated by blanks. It finds its region
/// in SIDECAR_SHM, and is told as its last argument how many seconds to think about each observation.
const OTHER: &str = "SIDECAR_TEST_WORKER";

fn worker_words(think: &str) -> Vec<String> {
    if let Ok(other) = std::env::var(OTHER) {
        return other.split_whitespace().chain([think]).map(str::to_owned).collect();
    }
    let think = format!("{think}s");
    owned(&[env!("CARGO_BIN_EXE_sidecar"), "worker", "--policy", "cartpole", "--think", &think])
}

fn worker_line() -> Vec<String> {
    worker_words(THINK)
}

fn worker(region: &Region, think: &str) -> Command {
    let words = worker_words(think);
    let mut command = clean(&words[0]);
    command.args(&words[1..]).env("SIDECAR_SHM", region.path());
    command
}

fn job(region: &Region, gateway: &Gateway, arguments: &[String], child: &[String]) -> Command {
    let mut command = main_job(region, &gateway.endpoint);
    command.args(FAST).args(arguments);
    if !child.is_empty() {
        command.arg("--").args(child);
    }
    command
}

fn gateway_command(address: &str, arguments: &[String]) -> Command {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    gateway(address, &arguments)
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|argument| (*argument).to_owned()).collect()
}
