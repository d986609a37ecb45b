//! No secret in argv, logs, errors, the region, metrics (promise 6). The token is looked for in everything that a run
//! shows to others: what it says at its loudest and as JSON, the command lines and environments of what it starts, the
//! whole region, the metrics, `stat`, `explain`'s kin of errors. Core dumps and /proc/PID/environ of the sidecar itself
//! belong to its own user, who knows the token.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;

use rustix::process::Signal;
use support::{
    FAST, FAST_GATEWAY, Gateway, Region, Running, TOKEN, main_job, sidecar, wait_for, with_worker,
};

fn assert_absent(place: &str, bytes: &[u8]) {
    let shown = bytes.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes());
    assert!(!shown, "the token is in {place}:\n{}", String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]));
}

/// Pids of a process and all below it.
fn family(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let more = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let mut all = vec![pid];
    let below: Vec<u32> = more
        .chain([children])
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    for child in below {
        all.extend(family(child));
    }
    all
}

fn metrics(address: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = Vec::new();
    stream.read_to_end(&mut page).unwrap();
    assert!(page.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&page));
    page
}

#[test]
fn the_token_is_nowhere_that_others_can_look() {
    for format in ["human", "json"] {
        let region = Region::new();
        let gateway =
            Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1", "--step-delay", "50ms"]].concat());
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(FAST).args(["-v", "--log-format", format, "--metrics", &free]);
        command.env("SIDECAR_LOG", "trace");
        with_worker(&mut command, "cartpole");
        let running = Running::start(&mut command);
        wait_for("the first steps", || gateway.count("step") > 5);
        let family = family(running.pid());
        assert!(family.len() > 1, "the worker is its child");
        for pid in &family {
            assert_absent("a command line", &fs::read(format!("/proc/{pid}/cmdline")).unwrap());
        }
        for pid in &family[1..] {
            // A worker has no need of it.
            assert_absent("a worker's environment", &fs::read(format!("/proc/{pid}/environ")).unwrap());
        }
        // Looking through the region takes longer than the job may last.
        assert_absent("the metrics", &metrics(&free));
        assert_absent("the region", &fs::read(region.path()).unwrap());
        for json in [&["--json"][..], &["--once"][..]] {
            let mut stat = sidecar();
            stat.arg("stat").arg("--shm").arg(region.path()).args(json);
            let output = stat.output().unwrap();
            assert_absent("`stat`", &[output.stdout, output.stderr].concat());
        }
        running.signal(Signal::TERM);
        region.expect_late_frames();
        let (code, said) = running.finish();
        assert_eq!(code, 143, "{said}");
        assert!(said.len() > 1000, "the loudest log says little: {said}");
        assert_absent("the log", said.as_bytes());
    }
}

/// Every error on the way of a token: refused at first, refused later, not sendable, in a file that is wrong.
#[test]
fn the_token_is_in_no_error() {
    let errors = |arguments: &[&str], set: &dyn Fn(&mut std::process::Command)| {
        let region = Region::new();
        region.expect(&["connection lost", "no connection yet"]);
        let gateway = Gateway::start(&[&FAST_GATEWAY[..], &["--cases", "1"], arguments].concat());
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(FAST).args(["-v"]);
        set(&mut command);
        with_worker(&mut command, "cartpole");
        let (code, said) = Running::start(&mut command).finish();
        assert_eq!(code, 1, "{said}");
        assert_absent("an error", said.as_bytes());
        assert!(said.contains("hint:"), "{said}");
    };
    errors(&["--refuse", "401:1000"], &|_| {});
    errors(&["--instant-close", "1000"], &|_| {});
    // What no header can carry.
    errors(&[], &|command| {
        command.env("JOB_TOKEN", format!("{TOKEN}\u{7}{TOKEN}"));
    });
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("token");
    fs::write(&file, format!("{TOKEN}\n{TOKEN} two lines\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    let path = file.clone();
    errors(&[], &move |command| {
        command.arg("--token-file").arg(&path);
    });
    // A flag that there is not, and that somebody might try.
    let (code, said) = Running::start(sidecar().args(["--gpu", "none", "--token", TOKEN])).finish_alone();
    assert_eq!(code, 1, "{said}");
    assert_absent("an error", said.as_bytes());
}
