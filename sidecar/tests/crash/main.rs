//! Crashes for real: processes of a running job are killed or stopped at random moments, and the job goes on.
//!
//! Timers run at a twentieth of life. Each round of a test is a job of its own with a seed that is printed. Without
//! further wishes there are 5 rounds of each; with SIDECAR_SOAK set there are 50. SIDECAR_TEST_WORKER has another worker
//! play than the built-in one: the workers of the bindings promise the same.

#[path = "../support/mod.rs"]
mod support;

mod game;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::Signal;
use sidecar_shm::stats::{Counter, Stats};

use game::{Game, rounds};
use support::{FAST, FAST_GATEWAY, Gateway, Region, Running, main_job, wait_for, with_worker};

/// The gateway asks a step again if an exchange was lost.
const REASK: [&str; 4] = ["--on-lost", "reask", "--reask-after", "300ms"];
const STALL: [&str; 2] = ["--on-lost", "stall"];

#[test]
fn a_worker_killed_before_while_or_after_it_takes_an_observation_costs_nothing() {
    rounds("worker", |random| {
        let mut game = Game::start(&REASK, &[]);
        // Before: it is stopped when the observation comes.
        game.play_for(random.millis(100, 300));
        game.worker.signal(Signal::STOP);
        game.await_unanswered(1);
        game.kill_worker();
        // While: it thinks.
        game.play_for(random.millis(100, 300));
        game.await_unanswered(1);
        game.kill_worker();
        // After: its action is on its way or there.
        game.play_for(random.millis(100, 300));
        game.await_unanswered(0);
        game.kill_worker();
        // Whenever.
        game.play_for(random.millis(100, 300));
        game.kill_worker();
        game.solved()
    });
}

#[test]
fn a_killed_sidecar_costs_a_redial_and_the_worker_lives_on() {
    rounds("sidecar", |random| {
        let mut game = Game::start(&REASK, &[]);
        let worker = game.worker.pid();
        for _ in 0..3 {
            game.play_for(random.millis(100, 400));
            game.kill_sidecar();
        }
        assert!(game::is_running(worker), "{}", game.worker.stderr());
        game.solved()
    });
}

#[test]
fn sidecar_and_worker_killed_together_are_both_followed() {
    rounds("both", |random| {
        let mut game = Game::start(&REASK, &[]);
        for turn in 0..2 {
            game.play_for(random.millis(100, 400));
            game.kill_both(turn == 0);
        }
        game.solved()
    });
}

/// A stalling simulator waits for an answer that the dead sidecar may have taken with it: no client can do more
/// (promise 4). Then the gateway has noted an exchange that was under way.
#[test]
fn without_reasking_a_killed_sidecar_loses_at_most_the_exchange_under_way() {
    let stalled = ["--case-timeout", "4s"];
    rounds("stall", |random| {
        let mut game = Game::start(&[&STALL[..], &stalled].concat(), &["--unfreeze", "off"]);
        // A busy machine may still be playing when the case's time is over.
        game.expect(&[Counter::DroppedActions.name()]);
        game.play_for(random.millis(100, 600));
        game.kill_sidecar();
        game.explained()
    });
}

#[test]
fn without_reasking_a_killed_worker_loses_nothing() {
    rounds("stall, worker", |random| {
        let mut game = Game::start(&STALL, &["--unfreeze", "off"]);
        for _ in 0..3 {
            game.play_for(random.millis(100, 300));
            game.kill_worker();
        }
        game.solved()
    });
}

#[test]
fn a_cut_with_a_stalling_simulator_is_unfrozen() {
    rounds("unfreeze", |random| {
        let how = ["after", "before", "mid-frame"][(random.next() % 3) as usize];
        let cut = format!("{}:{how}", random.next() % 400 + 20);
        let game = Game::start(&[&STALL[..], &["--cut-at", &cut]].concat(), &["--unfreeze", "500ms"]);
        game.expect(&["connection lost", "an action was sent once more", Counter::Resent.name()]);
        game.solved()
    });
}

/// The third death on one observation is no accident any more: the failure policy answers, and the job goes on.
#[test]
fn three_deaths_on_one_observation_leave_it_to_the_failure_policy() {
    let directory = tempfile::tempdir().unwrap();
    let reply = directory.path().join("reply");
    fs::write(&reply, [1]).unwrap();
    let reply = reply.to_str().unwrap();
    let mut game = Game::start(&STALL, &["--on-failure", "reply", "--failure-reply", reply]);
    game.expect(&["3 workers died on one observation"]);
    let mut deaths = 0;
    while game.noted("3 workers died on one observation") == 0 {
        game.kill_worker_for_a_slow_one();
        deaths += 1;
        // Not every one has taken the observation by the time it dies.
        assert!(deaths <= 20, "still held after {deaths} deaths");
    }
    assert!(deaths >= 3);
    game.kill_worker();
    game.solved();
}

/// A worker that is stopped over the change of its seat wakes up as somebody whose place is taken: it writes into no
/// other worker's slots, and ends.
#[test]
fn a_worker_stopped_past_a_seat_change_spoils_nothing_when_it_wakes() {
    rounds("stopped", |random| {
        let mut game = Game::start(&REASK, &[]);
        game.expect(&[Counter::DroppedActions.name()]);
        game.play_for(random.millis(100, 400));
        game.worker.signal(Signal::STOP);
        game.kill_sidecar();
        let stopped = game.replace_worker();
        game.play_for(random.millis(50, 200));
        stopped.signal(Signal::CONT);
        game.play_for(random.millis(50, 200));
        let tally = game.solved();
        // It asks for its seat for a while; then it says who has it, unless the job is over before.
        let (code, said) = stopped.finish();
        assert!(code == 0 || said.contains("has taken this one's place"), "{said}");
        tally
    });
}

#[test]
fn a_restarted_gateway_finds_the_sidecar_again() {
    rounds("gateway", |random| {
        let mut game = Game::start(&REASK, &[]);
        game.expect(&["connection lost", Counter::DroppedActions.name()]);
        game.play_for(random.millis(100, 400));
        game.restart_gateway();
        game.solved()
    });
}

#[test]
fn a_supervised_sidecar_comes_back_by_itself_and_the_worker_ends_with_it() {
    rounds("supervise", |random| {
        let game = Game::start_supervised(&REASK);
        let worker = game.worker_pid();
        for _ in 0..2 {
            game.play_for(random.millis(100, 400));
            game.kill_owner();
        }
        assert_eq!(game.worker_pid(), worker, "the worker keeps its process");
        let tally = game.solved();
        wait_for("the worker's end", || !game::is_running(worker));
        tally
    });
}

/// The program may be in the middle of being replaced: that ends no supervision.
#[test]
fn a_supervisor_that_cannot_start_the_next_sidecar_tries_again() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("sidecar");
    let allow = |mode| fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
    fs::copy(env!("CARGO_BIN_EXE_sidecar"), &program).unwrap();
    let region = Region::new();
    region.expect(&["connection lost: closed right after the upgrade"]);
    let gateway =
        Gateway::start(&[&FAST_GATEWAY[..], &REASK, &["--cases", "1", "--step-delay", "3ms"]].concat());
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(FAST).arg("--supervise");
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut from(&program, &command));
    running.await_stderr("session open");
    allow(0o644);
    game::kill(Stats::open_read_only(&region.path()).unwrap().owner.unwrap().pid);
    running.await_stderr("the sidecar cannot be started");
    allow(0o755);
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}

/// The same command with another program.
fn from(program: &Path, command: &Command) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args()).stdin(Stdio::null());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

#[test]
fn a_supervisor_passes_signals_on_and_restarts_nothing_then() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let game = Game::start_supervised(&REASK);
        game.expect_late_frames();
        let (worker, owner) = (game.worker_pid(), game.owner_pid());
        game.sidecar.signal(signal);
        let (ended, said) = game.sidecar.finish();
        assert_eq!(ended, code, "{said}");
        assert!(!said.contains("starting it again"), "{said}");
        assert!(!game::is_running(owner) && !game::is_running(worker));
    }
}

/// The survivor was started by the dead sidecar; the one that took it over ends it, though it would not go by itself.
#[test]
fn a_survivor_is_ended_by_the_sidecar_that_took_it_over() {
    let mut game = Game::start_with_stubborn_child(&REASK);
    let worker = game.worker_pid();
    game.kill_sidecar();
    game.play_for(core::time::Duration::from_millis(300));
    assert_eq!(game.worker_pid(), worker);
    game.solved();
    wait_for("the worker's end", || !game::is_running(worker));
}

/// The design gives a survivor 2 s to come back. One that is stopped would keep its model's memory from the next one.
#[test]
fn a_stopped_survivor_is_followed_by_another_worker() {
    let mut game = Game::start_with_child(&REASK);
    let worker = game.worker_pid();
    // Not before: the kernel wakes what is stopped in a process group whose parent dies, with SIGHUP.
    game.kill_sidecar_and(|| game::signal(worker, Signal::STOP));
    wait_for("another worker", || game.worker_pid() != worker);
    assert!(!game::is_running(worker));
    let next = game.worker_pid();
    game.solved();
    wait_for("the worker's end", || !game::is_running(next));
}

/// A worker that was still loading when its sidecar died has no seat yet. Two of them would fight for one.
#[test]
fn a_worker_that_had_not_attached_yet_is_known_to_the_next_sidecar() {
    let region = Region::new();
    region.expect(&["connection lost: closed right after the upgrade"]);
    let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1"]].concat());
    let job = |binary: &str| {
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(FAST).args(["--", "sh", "-c", binary]);
        Running::start(&mut command)
    };
    let mut first = job("sleep 1000 & wait");
    first.await_stderr("worker started");
    let said = first.stderr();
    let loading = said.split("worker started pid=").nth(1).unwrap().split_whitespace().next().unwrap();
    let loading: u32 = loading.parse().unwrap();
    first.await_stderr("warm-up asked for");
    first.signal(Signal::KILL);
    first.finish_alone();
    assert!(game::is_running(loading));
    let second = job(&format!("exec {} worker --policy cartpole", env!("CARGO_BIN_EXE_sidecar")));
    let (code, said) = second.finish_alone();
    assert_eq!(code, 0, "{said}");
    assert!(!game::is_running(loading), "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

/// SIGUSR2 is for an upgrade: the worker keeps its model, also one that the old sidecar had started.
#[test]
fn an_upgrade_leaves_the_child_worker_to_the_next_sidecar() {
    let mut game = Game::start_with_child(&REASK);
    let worker = game.worker_pid();
    game.expect(&["connection lost: closed right after the upgrade"]);
    game.sidecar.signal(Signal::USR2);
    wait_for("the old sidecar's end", || !game::is_running(game.sidecar.pid()));
    let next = game.next_sidecar();
    let left: Running = core::mem::replace(&mut game.sidecar, next);
    let (code, said) = left.finish_alone();
    assert_eq!(code, 0, "{said}");
    game.play_for(core::time::Duration::from_millis(200));
    assert_eq!(game.worker_pid(), worker);
    game.solved();
    wait_for("the worker's end", || !game::is_running(worker));
}
