//! What becomes of workers that fail: whose words end a run, and who is started again.

mod support;

use std::fs;
use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, Signal};
use sidecar_shm::stats::{Counter, Gauge, Stats};
use sidecar_shm::worker::{AttachOptions, Event, Worker, WorkerError};
use support::{FAST_GATEWAY, Gateway, Region, Running, main_job, sidecar, wait_for};

fn gateway(arguments: &[&str]) -> Gateway {
    Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1", "--step-delay", "3ms"], arguments].concat())
}

fn cartpole(region: &Region) -> Running {
    let mut command = sidecar();
    command.args(["worker", "--policy", "cartpole", "--shm"]).arg(region.path());
    Running::start(&mut command)
}

/// Pid of the attached worker; 0 for none.
fn attached(region: &Region) -> u64 {
    Stats::open_read_only(&region.path()).map_or(0, |stat| stat.gauge(Gauge::WorkerPid))
}

/// Ends a worker that is attached, and waits until its seat is free.
fn end(region: &Region, worker: Running) {
    worker.signal(Signal::KILL);
    worker.finish_alone();
    wait_for("a free seat", || attached(region) == 0);
}

/// Attaches, and fails the warm-up.
fn fail_warmup(region: &Region) -> Worker {
    let mut worker = Worker::attach(&region.path(), &AttachOptions::default()).unwrap();
    while !matches!(worker.next(None).unwrap(), Event::Warmup) {}
    worker.warmup_failed("the weights are gone").unwrap();
    worker
}

#[test]
fn a_failed_warm_up_before_ready_ends_the_run_with_the_workers_words() {
    let region = Region::new();
    region.expect(&["warm-up failed: the weights are gone"]);
    let gateway = gateway(&[]);
    let mut running = Running::start(&mut main_job(&region, &gateway.endpoint));
    running.await_stderr("tunnel is up");
    let _worker = fail_warmup(&region);
    let (code, said) = running.finish();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("why: it said: the weights are gone"), "{said}");
}

/// The session is worth more than one worker's misfortune.
#[test]
fn a_failed_warm_up_of_a_later_worker_costs_that_one_its_seat_alone() {
    let region = Region::new();
    region.expect(&["warm-up failed: the weights are gone", "worker detached", Counter::Poisoned.name()]);
    let gateway = gateway(&["--on-lost", "reask"]);
    let mut running = Running::start(&mut main_job(&region, &gateway.endpoint));
    let first = cartpole(&region);
    running.await_stderr("session open");
    end(&region, first);
    let mut failing = fail_warmup(&region);
    let ended = loop {
        if let Err(error) = failing.next(None) {
            break error;
        }
    };
    assert!(matches!(ended, WorkerError::Detached), "{ended}");
    let third = cartpole(&region);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
    assert_eq!(third.finish().0, 0);
}

/// `--on-failure hold` means: until a restarted worker answers. Ours is restarted by us.
#[test]
fn a_child_that_failed_on_an_observation_is_started_again() {
    let region = Region::new();
    region.expect(&["worker failed", Counter::Failed.name()]);
    let gateway = gateway(&["--payload", "100000"]);
    let directory = tempfile::tempdir().unwrap();
    // The first one answers with what it got, which fits no action slot.
    let script =
        "policy=cartpole; [ -e \"$1\" ] || policy=echo; : > \"$1\"; exec \"$0\" worker --policy $policy";
    let mut command = main_job(&region, &gateway.endpoint);
    command
        .args(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_sidecar")])
        .arg(directory.path().join("again"));
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("to start it again"), "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}

/// What it has to write down when all cases are played, it can.
#[test]
fn a_child_is_not_ended_while_it_ends_by_itself_after_a_drain() {
    let region = Region::new();
    let gateway = gateway(&[]);
    let directory = tempfile::tempdir().unwrap();
    let written = directory.path().join("written");
    let script = "\"$0\" worker --policy cartpole && sleep 0.5 && echo all of it > \"$1\"";
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_sidecar")]).arg(&written);
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(fs::read_to_string(&written).unwrap(), "all of it\n", "{said}");
}

/// Such as one that still loads its model when all cases have been played by others.
#[test]
fn a_child_that_never_attached_is_not_waited_for_after_a_drain() {
    let gateway = gateway(&["--parallel-cap", "2"]);
    let (idle, busy) = (Region::new(), Region::new());
    let mut command = main_job(&idle, &gateway.endpoint);
    command.args(["--", "sleep", "1000"]);
    let mut waiting = Running::start(&mut command);
    waiting.await_stderr("warm-up asked for");
    let mut command = main_job(&busy, &gateway.endpoint);
    support::with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    let (code, said) = waiting.finish();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("drain") && !said.contains("has not ended since the drain"), "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

/// The job is done, whatever a signal does to the worker that takes its time.
#[test]
fn a_signal_after_a_drain_ends_the_worker_and_a_second_one_kills_it() {
    let region = Region::new();
    let gateway = gateway(&[]);
    let script = "trap '' TERM; \"$0\" worker --policy cartpole; sleep 1000";
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--", "sh", "-c", script, env!("CARGO_BIN_EXE_sidecar")]);
    let mut running = Running::start(&mut command);
    running.await_stderr("a signal ends it now");
    running.signal(Signal::TERM);
    running.await_stderr("a second signal kills it");
    running.signal(Signal::TERM);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("the worker is killed") && !said.contains("ends at once"), "{said}");
    assert!(region.leftovers().is_empty(), "{:?}", region.leftovers());
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}

/// Anybody else's worker is not ours to end.
#[test]
fn a_worker_of_somebody_else_that_failed_is_left_alone() {
    let region = Region::new();
    region.expect(&["worker failed", Counter::Failed.name()]);
    let gateway = gateway(&["--payload", "100000"]);
    let mut running = Running::start(&mut main_job(&region, &gateway.endpoint));
    let mut echo = sidecar();
    echo.args(["worker", "--policy", "echo", "--shm"]).arg(region.path());
    let echo = Running::start(&mut echo);
    running.await_stderr("restart the worker: it is not this sidecar's child");
    assert_eq!(attached(&region), u64::from(echo.pid()));
    end(&region, echo);
    let next = cartpole(&region);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
    assert_eq!(next.finish().0, 0);
}

/// However few descriptors are left when a worker comes and dies, its seat is free afterwards.
#[test]
fn a_sidecar_that_is_short_of_descriptors_loses_no_seat() {
    let region = Region::new();
    let gateway = gateway(&["--on-lost", "reask"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--unfreeze", "off"]);
    let mut running = Running::start(&mut command);
    running.await_stderr("tunnel is up");
    let pid = Pid::from_raw(running.pid().cast_signed());
    let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
    let limit =
        |current| rustix::process::prlimit(pid, Resource::Nofile, Rlimit { current, maximum }).unwrap();
    let before = limit(maximum).current;
    for left in 0..12 {
        let used = fs::read_dir(format!("/proc/{}/fd", running.pid())).unwrap().count() as u64;
        limit(Some(used + left));
        let mut worker = Command::new(env!("CARGO_BIN_EXE_sidecar"));
        worker
            .args(["worker", "--policy", "cartpole", "--attach-timeout", "300ms", "--shm"])
            .arg(region.path());
        let worker = Running::start(&mut worker);
        let came = || attached(&region) == u64::from(worker.pid());
        wait_for("a seat, or none", || came() || worker.stderr().contains("error["));
        end(&region, worker);
        limit(before);
    }
    let last = cartpole(&region);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(last.finish().0, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}
