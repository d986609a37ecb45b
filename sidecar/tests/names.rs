//! A resolver that hangs: it delays no end, and a redial goes to where the gateway was.
//!
//! The sidecar gets a mount namespace with name files of the test's own, and a name server that never answers. It
//! needs root and `unshare`; where they are missing it is skipped by name.

mod support;

use std::fs;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use support::{Gateway, Region, Running, main_job, wait_for, with_worker, wrapped};

/// Nobody else's: each test has a silent name server of its own.
fn name_server(last: u8) -> String {
    format!("127.77.{}.{last}", std::process::id() % 200)
}

struct Names {
    directory: tempfile::TempDir,
    _silent: UdpSocket,
}

impl Names {
    /// `None` where it can't be done; says why.
    fn new(last: u8) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let server = name_server(last);
        let silent = match UdpSocket::bind((server.as_str(), 53)) {
            Ok(silent) => silent,
            Err(error) => {
                println!("skipped: no name server of its own: {error}");
                return None;
            }
        };
        // As long as glibc allows: far longer than a test waits for anything.
        let resolv = format!("nameserver {server}\noptions timeout:30 attempts:5\n");
        fs::write(directory.path().join("resolv.conf"), resolv).unwrap();
        let names = Self { directory, _silent: silent };
        names.know("");
        let tried = names.inside(&Command::new("true")).output();
        if !tried.as_ref().is_ok_and(|output| output.status.success()) {
            println!("skipped: no mount namespace of its own: {tried:?}");
            return None;
        }
        Some(names)
    }

    fn hosts(&self) -> PathBuf {
        self.directory.path().join("hosts")
    }

    /// What can be resolved from now on.
    fn know(&self, hosts: &str) {
        fs::write(self.hosts(), hosts).unwrap();
    }

    /// The same command with these names.
    fn inside(&self, command: &Command) -> Command {
        let mut inside = Command::new("unshare");
        let script = "mount --bind \"$1\" /etc/hosts && mount --bind \"$2\" /etc/resolv.conf && shift 2 && exec \"$@\"";
        inside.args(["--mount", "sh", "-c", script, "sh"]).arg(self.hosts());
        inside.arg(self.directory.path().join("resolv.conf"));
        wrapped(inside, command)
    }
}

#[test]
fn a_resolver_that_hangs_delays_no_end() {
    let Some(names) = Names::new(1) else { return };
    for io in ["uring", "epoll"] {
        let region = Region::new();
        region.expect(&["no connection yet: dial failed: no answer in time"]);
        let mut command = main_job(&region, "ws://gateway.test/tunnel");
        // The second dial finds the first one's look-up under way.
        command.args(["--io", io, "--connect-timeout", "200ms"]);
        with_worker(&mut command, "cartpole");
        let mut running = Running::start(&mut names.inside(&command));
        running.await_stderr("worker attached");
        running.await_stderr("dialling again");
        running.signal(Signal::TERM);
        let (code, said) = running.finish();
        assert_eq!(code, 143, "{said}");
        assert!(region.leftovers().is_empty(), "{:?}", region.leftovers());
    }
}

#[test]
fn a_redial_goes_to_where_the_gateway_was_when_its_name_cannot_be_resolved() {
    let Some(names) = Names::new(2) else { return };
    let region = Region::new();
    region.expect(&["connection lost"]);
    let gateway =
        Gateway::start(&["--cases", "1", "--step-delay", "2ms", "--on-lost", "reask", "--cut-at", "300"]);
    names.know("127.0.0.1 gateway.test\n");
    let mut command = main_job(&region, &gateway.endpoint.replace("127.0.0.1", "gateway.test"));
    with_worker(&mut command, "cartpole");
    let mut running = Running::start(&mut names.inside(&command));
    wait_for("the first steps", || gateway.count("step") > 0);
    names.know("");
    running.await_stderr("dialling where it was before");
    let (code, said) = running.finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1, "{said}");
}
