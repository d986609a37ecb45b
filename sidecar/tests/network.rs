//! The network cut silently: gateway and sidecar in network namespaces of their own with one cable between them, and
//! the cable is pulled, or its router drops. No FIN, no reset, no error: only silence.
//!
//! Timers run at a twentieth of life, or as in life with SIDECAR_REAL_TIME set; 5 rounds, or 50 with SIDECAR_SOAK set.
//!
//! It needs root and the programs `ip` and `tc`; where they are missing it is skipped by name.

mod support;

use core::time::Duration;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::thread;

use sidecar_shm::clock;
use sidecar_shm::stats::Counter;
use support::random::Random;
use support::{
    FAST, FAST_GATEWAY, Gateway, Region, Running, gateway, main_job, slower, wait_for, with_worker, wrapped,
};

/// How the cable is cut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// The link goes down.
    Link,
    /// Whatever is sent is dropped.
    Drop,
    /// Only what the gateway sends is dropped.
    DropFromGateway,
    /// Only what the sidecar sends is dropped.
    DropFromSidecar,
}

/// Gateway and sidecar in a namespace each, and a router between them that can be told to drop. Everything goes with it.
struct Cable {
    /// The gateway's, the sidecar's, the router's.
    names: [String; 3],
}

/// Of gateway and sidecar; the router is .254 on either side.
const NETS: [&str; 2] = ["10.223.7", "10.223.8"];
/// The router's two ends.
const ROUTER: [&str; 2] = ["to-gateway", "to-sidecar"];
/// A queue of one byte: no packet fits. Every kernel with queueing disciplines has this one. It stands in the router
/// because TCP is told of what its own host drops, and gives up sooner.
const DROP: &str = "root bfifo limit 1";

impl Cable {
    /// `None` where it can't be laid; says why.
    fn lay(test: &str, round: u32) -> Option<Self> {
        let names = ["g", "s", "r"].map(|end| format!("sc{}-{test}{round}{end}", std::process::id()));
        let cable = Self { names };
        let laid = cable.try_lay();
        if let Err(why) = &laid {
            println!("skipped: no network namespace of its own: {why}");
        }
        laid.is_ok().then_some(cable)
    }

    fn try_lay(&self) -> Result<(), String> {
        for name in &self.names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        let router = &self.names[2];
        for end in 0..2 {
            let (name, net, other) = (&self.names[end], NETS[end], ROUTER[end]);
            let (ours, theirs) = (format!("02:00:00:00:0{end}:01"), format!("02:00:00:00:0{end}:fe"));
            ip(&format!(
                "-n {name} link add cable address {ours} type veth peer name {other} address {theirs} netns {router}"
            ))?;
            ip(&format!("-n {name} addr add {net}.1/24 dev cable"))?;
            ip(&format!("-n {router} addr add {net}.254/24 dev {other}"))?;
            ip(&format!("-n {name} link set cable up"))?;
            ip(&format!("-n {router} link set {other} up"))?;
            // Addresses that never have to be asked for: only what is sent is lost.
            ip(&format!("-n {name} neigh replace {net}.254 lladdr {theirs} dev cable nud permanent"))?;
            ip(&format!("-n {router} neigh replace {net}.1 lladdr {ours} dev {other} nud permanent"))?;
            ip(&format!("-n {name} route add default via {net}.254"))?;
        }
        run("ip", &format!("netns exec {router} sysctl -q -w net.ipv4.ip_forward=1"))?;
        // Where a qdisc can't be had, better no test at all than half of one.
        self.set(Cut::Drop, true)?;
        self.set(Cut::Drop, false)
    }

    /// The same command inside of one of the namespaces.
    fn inside(&self, end: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.names[end]]);
        wrapped(inside, command)
    }

    fn set(&self, cut: Cut, broken: bool) -> Result<(), String> {
        let router = &self.names[2];
        if cut == Cut::Link {
            let state = if broken { "down" } else { "up" };
            ip(&format!("-n {router} link set {} {state}", ROUTER[0]))?;
            if !broken {
                // A link that went down has forgotten it.
                let (net, end) = (NETS[0], ROUTER[0]);
                ip(&format!(
                    "-n {router} neigh replace {net}.1 lladdr 02:00:00:00:00:01 dev {end} nud permanent"
                ))?;
            }
            return Ok(());
        }
        let change = if broken { "add" } else { "del" };
        for (end, not) in ROUTER.iter().zip([Cut::DropFromGateway, Cut::DropFromSidecar]) {
            if cut != not {
                run("tc", &format!("-n {router} qdisc {change} dev {end} {DROP}"))?;
            }
        }
        Ok(())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            // Those that were never made are as good as gone.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(line: &str) -> Result<(), String> {
    run("ip", line)
}

fn run(program: &str, line: &str) -> Result<(), String> {
    let output = Command::new(program).args(line.split_whitespace()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{program} {line}: {said}")) }
}

/// A job over a cable that is cut for a while.
struct Job {
    cable: Cable,
    region: Region,
    gateway: Gateway,
    sidecar: Running,
}

impl Job {
    fn start(cable: Cable, on_lost: &[&str], arguments: &[&str]) -> Self {
        let region = Region::new();
        // The first dial of a busy machine; a later one would be a second connection.
        region.expect(&["no connection yet: dial failed"]);
        let common = ["--cases", "1", "--step-delay", "7ms"];
        let (timers, timers_of_gateway): (&[&str], &[&str]) =
            if slower() == 1 { (&FAST, &FAST_GATEWAY) } else { (&[], &[]) };
        // A dial into the silence is given up in time for another one.
        let attempts: &[&str] = if slower() == 1 { &["--connect-timeout", "500ms"] } else { &[] };
        let arguments_of_gateway = [timers_of_gateway, &common, on_lost].concat();
        let address = format!("{}.1:0", NETS[0]);
        let gateway = Gateway::run(&mut cable.inside(0, &gateway(&address, &arguments_of_gateway)));
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(timers).args(attempts).args(arguments);
        with_worker(&mut command, "cartpole");
        let sidecar = Running::start(&mut cable.inside(1, &command));
        wait_for("the first steps", || gateway.count("step") > 0);
        Self { cable, region, gateway, sidecar }
    }

    /// Cuts for a time. `false`: a busy machine took so long over the commands that it was more than `most`, or that the
    /// job was over before, and nothing can be concluded.
    fn cut_for(&self, cut: Cut, time: Duration, most: Duration) -> bool {
        let started = clock::now();
        self.cable.set(cut, true).unwrap();
        let in_time = self.gateway.count("case_ended") == 0;
        thread::sleep(time * slower());
        self.cable.set(cut, false).unwrap();
        let took = clock::now().since(started);
        let meant = in_time && took <= most.saturating_mul(slower());
        if !meant {
            println!("skipped: {cut:?} for {took:?} instead of {:?}, in time: {in_time}", time * slower());
            self.region.expect(&["connection lost"]);
        }
        meant
    }

    /// Exit code and report, and what was said.
    fn end(self) -> (i32, serde_json::Value, String, Region) {
        let (code, said) = self.sidecar.finish();
        let report = self.gateway.report();
        (code, report, said, self.region)
    }
}

/// The gateway asks again.
const REASK: [&str; 4] = ["--on-lost", "reask", "--reask-after", "300ms"];
const CUTS: [Cut; 4] = [Cut::Link, Cut::Drop, Cut::DropFromGateway, Cut::DropFromSidecar];

/// One test at a time: the kernel changes networks one after the other, and a cut must not wait for that.
static ALONE: Mutex<()> = Mutex::new(());

/// Rounds of a test, five at the same time: they sleep most of it.
fn rounds(test: &str, play: impl Fn(Cable, Cut, &mut Random) + Sync) {
    let count: u32 = if std::env::var_os("SIDECAR_SOAK").is_some() { 50 } else { 5 };
    let numbers: Vec<u32> = (0..count).collect();
    // One that failed has left nothing behind.
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for batch in numbers.chunks(5) {
        thread::scope(|scope| {
            for &round in batch {
                let play = &play;
                scope.spawn(move || {
                    let Some(cable) = Cable::lay(test, round) else { return };
                    let mut random = Random::new(test, round);
                    play(cable, CUTS[round as usize % CUTS.len()], &mut random);
                });
            }
        });
    }
}

/// Too short for anybody to give the connection up: TCP repairs it.
#[test]
fn a_cut_that_nobody_notices_costs_time_alone() {
    rounds("short", |cable, cut, random| {
        let job = Job::start(cable, &REASK, &[]);
        thread::sleep(random.millis(50, 300));
        let meant = job.cut_for(cut, random.millis(100, 500), Duration::from_millis(900));
        let (code, report, said, _region) = job.end();
        if !meant {
            return;
        }
        assert_eq!((code, &report["solved"]), (0, &report["cases"]), "{cut:?} {report}\n{said}");
        assert_eq!((&report["connections"], &report["duplicate_answers"]), (&1.into(), &0.into()), "{said}");
        println!("tally cases=1 solved=1 twice=0");
    });
}

/// The sidecar gives up after 2 s of silence; the gateway 2.25 s after the last pong, which may be a second old by then,
/// and its window ends 1.5 s later.
#[test]
fn a_cut_shorter_than_the_window_is_redialled_and_the_session_goes_on() {
    rounds("window", |cable, cut, random| {
        let (lost, unfreeze): (&[&str], _) = if random.next() % 2 == 0 {
            (&REASK, "off")
        } else {
            (&["--on-lost", "stall"], if slower() == 1 { "500ms" } else { "10s" })
        };
        let job = Job::start(cable, lost, &["--unfreeze", unfreeze]);
        job.region.expect(&["connection lost: ", "an action was sent once more", Counter::Resent.name()]);
        thread::sleep(random.millis(50, 300));
        let meant = job.cut_for(cut, random.millis(2050, 2300), Duration::from_millis(2400));
        let (code, report, said, region) = job.end();
        if !meant {
            return;
        }
        assert_eq!((code, &report["solved"]), (0, &report["cases"]), "{cut:?} {report}\n{said}");
        // Who still hears something gives up later; the other one may not have noticed by then.
        let redialled = report["connections"].as_u64().unwrap() > 1;
        assert!(redialled || cut == Cut::DropFromSidecar, "{cut:?} {report}\n{said}");
        let extra = region.noted().counter(Counter::Resent) + report["reasked"].as_u64().unwrap();
        assert!(report["duplicate_answers"].as_u64().unwrap() <= extra, "{cut:?} {report}\n{said}");
        println!("tally cases=1 solved=1 unfrozen={} twice=0", region.noted().counter(Counter::Resent));
    });
}

/// The session is lost, and the sidecar says so with exit code 1.
#[test]
fn a_cut_longer_than_the_window_ends_the_job() {
    rounds("long", |cable, cut, random| {
        let job = Job::start(cable, &["--on-lost", "stall"], &[]);
        job.region.expect(&["connection lost: "]);
        thread::sleep(random.millis(50, 300));
        // However much longer it is.
        let meant = job.cut_for(cut, random.millis(4500, 5500), Duration::MAX);
        let (code, report, said, _region) = job.end();
        if !meant {
            return;
        }
        assert_eq!(code, 1, "{cut:?} {report}\n{said}");
        assert!(said.contains("error[window-over]: ") && said.contains("hint: "), "{said}");
        assert!(said.contains("open; the gateway keeps nothing of it any more"), "{said}");
        assert_eq!(report["failure"], "reconnect window expired", "{report}");
        println!("tally long_cuts=1 expired=1");
    });
}
