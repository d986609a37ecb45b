//! What a user gets when a run cannot start: the reason, the next step, exit 1, and nothing left behind.

mod support;

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use sidecar::explain::{Code, Kind};
use support::{Gateway, JOB, Region, Running, TOKEN, main_job, sidecar, wait_for, with_worker, wrapped};

/// An endpoint where nobody listens.
const NOBODY: &str = "ws://127.0.0.1:9/tunnel";

fn fails(command: &mut Command, says: &[&str]) -> String {
    let (code, said) = Running::start(command).finish();
    assert_eq!(code, 1, "{said}");
    for text in says {
        assert!(said.contains(text), "{text:?} is missing in:\n{said}");
    }
    assert!(Code::named(code_of(&said)).is_some_and(|code| code.kind() == Kind::End), "{said}");
    said
}

/// The code of the error that ended it.
fn code_of(said: &str) -> &str {
    let error = said.lines().find_map(|line| line.strip_prefix("error["));
    error.and_then(|error| error.split(']').next()).unwrap_or_else(|| panic!("no code in:\n{said}"))
}

#[test]
fn bad_arguments_exit_1_and_help_exits_0() {
    for arguments in [&["--no-such-flag"][..], &["--io", "carrier-pigeon", "--shm", "/x"], &["--gpu", "none"]]
    {
        let said = fails(sidecar().args(arguments), &["--help"]);
        assert_eq!(code_of(&said), "arguments", "{said}");
    }
    assert_eq!(Running::start(sidecar().arg("--help")).finish().0, 0);
}

#[test]
fn every_code_that_ends_a_run_can_be_explained() {
    for code in Code::ALL.iter().map(|code| code.name()).chain(["0", "1", "101", "130", "143"]) {
        let output = sidecar().args(["explain", code]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && said.contains(code) && said.contains("\n  do "), "{said}");
    }
    fails(sidecar().args(["explain", "no-such-code"]), &["no-such-code", "`sidecar explain`"]);
}

#[test]
fn a_missing_token_names_the_variables_and_leaves_no_region() {
    let region = Region::new();
    fails(main_job(&region, NOBODY).env_remove("JOB_TOKEN"), &["no token", "JOB_TOKEN", "hint:"]);
    assert!(region.leftovers().is_empty(), "{:?}", region.leftovers());
}

#[test]
fn a_missing_job_a_bad_endpoint_and_a_gpu_are_each_told_apart() {
    let region = Region::new();
    let shm = region.path();
    fails(sidecar().env("JOB_TOKEN", TOKEN).arg("--shm").arg(&shm), &["no job", "JOB_UUID"]);
    fails(&mut main_job(&region, "http://127.0.0.1/x"), &["endpoint", "http://"]);
    fails(&mut main_job(&region, "wss://127.0.0.1/x"), &["endpoint", "TLS"]);
    let mut gpu = sidecar();
    gpu.args(["--gpu", "first", "--job", JOB, "--shm"]).arg(&shm);
    fails(&mut gpu, &["--gpu", "first", "index"]);
    assert!(region.leftovers().is_empty());
}

#[test]
fn values_come_from_the_state_file_when_nothing_else_has_them() {
    let region = Region::new();
    region.expect(&["no connection yet: dial failed: connection refused"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("state.env");
    let text = format!("export JOB_UUID=\"{JOB}\"\nTUNNEL_ENDPOINT={NOBODY}\nJOB_TOKEN='{TOKEN}'\n");
    fs::write(&file, text).unwrap();
    let mut command = sidecar();
    command.arg("--env-file").arg(&file).arg("--shm").arg(region.path()).args(["--dial-timeout", "200ms"]);
    let said = fails(&mut command, &["could not be reached", "refused"]);
    assert!(said.contains("JOB_TOKEN in "), "the token's source is not named:\n{said}");
}

#[test]
fn a_gateway_that_cannot_be_reached_ends_the_run_after_the_dial_timeout() {
    let region = Region::new();
    region.expect(&["no connection yet: dial failed"]);
    let mut command = main_job(&region, NOBODY);
    fails(command.args(["--dial-timeout", "300ms"]), &["could not be reached", "refused", "--dial-timeout"]);
    let mut command = main_job(&region, "ws://no-such-host.invalid/tunnel");
    fails(command.args(["--dial-timeout", "300ms"]), &["could not be reached", "resolved"]);
}

#[test]
fn a_refused_job_says_where_the_token_came_from() {
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1", "--refuse", "401:1000"]);
    let mut command = main_job(&region, &gateway.endpoint);
    let said = fails(&mut command, &["401", "JOB_UUID", "JOB_TOKEN", "no tunnel was ever up"]);
    assert_eq!(code_of(&said), "token-refused", "{said}");
}

#[test]
fn over_the_parallelism_cap_says_so_or_keeps_trying_when_told_to() {
    let region = Region::new();
    region.expect(&["no connection yet: closed right after the upgrade"]);
    let gateway = Gateway::start(&["--cases", "1", "--instant-close", "1000"]);
    fails(&mut main_job(&region, &gateway.endpoint), &["parallelism", "--wait-for-slot"]);
    let region = Region::new();
    region.expect(&["no connection yet: closed right after the upgrade"]);
    let gateway = Gateway::start(&["--cases", "1", "--instant-close", "2"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.arg("--wait-for-slot");
    with_worker(&mut command, "cartpole");
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 0, "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

#[test]
fn a_handshake_cut_short_at_any_byte_is_tried_again_until_the_timeout() {
    let answer = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/tunnel", listener.local_addr().unwrap());
    thread::spawn(move || {
        for (round, stream) in listener.incoming().enumerate() {
            let mut stream = stream.unwrap();
            // The client may be gone before it has said all.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(&answer.as_bytes()[..(round * 17) % (answer.len() + 1)]);
        }
    });
    let region = Region::new();
    region.expect(&["no connection yet: end of stream"]);
    let mut command = main_job(&region, &endpoint);
    fails(
        command.args(["--dial-timeout", "1500ms", "--backoff-base", "10ms", "--backoff-max", "20ms"]),
        &["could not be reached"],
    );
}

#[test]
fn a_gateway_that_never_answers_the_upgrade_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/tunnel", listener.local_addr().unwrap());
    let region = Region::new();
    region.expect(&["no connection yet: dial failed: no answer in time"]);
    let mut command = main_job(&region, &endpoint);
    command.args(["--dial-timeout", "500ms", "--connect-timeout", "100ms"]);
    fails(&mut command, &["could not be reached"]);
    drop(listener);
}

#[test]
fn a_second_sidecar_on_the_same_region_is_refused_with_the_first_ones_pid() {
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut first = Running::start(&mut main_job(&region, &gateway.endpoint));
    first.await_stderr("tunnel is up");
    let said = fails(&mut main_job(&region, &gateway.endpoint), &["in use", "--shm"]);
    assert!(said.contains(&first.pid().to_string()), "{said}");
    first.signal(rustix::process::Signal::TERM);
    let (code, said) = first.finish();
    assert_eq!(code, 143, "{said}");
    assert!(region.leftovers().is_empty(), "{:?}", region.leftovers());
}

#[test]
fn a_second_worker_is_refused_by_name_and_the_first_goes_on() {
    let region = Region::new();
    // Longer than a second worker is kept waiting for the end of the first one.
    let gateway = Gateway::start(&["--cases", "1", "--step-delay", "10ms"]);
    let mut command = main_job(&region, &gateway.endpoint);
    with_worker(&mut command, "cartpole");
    let mut first = Running::start(&mut command);
    first.await_stderr("worker attached");
    let mut second = sidecar();
    second.args(["worker", "--policy", "noop", "--shm"]).arg(region.path());
    fails(&mut second, &["attach"]);
    let (code, said) = first.finish();
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("a worker was refused"), "{said}");
    assert_eq!(gateway.report()["solved"], 1);
}

#[test]
fn whatever_else_lies_at_the_regions_path_is_left_alone() {
    let region = Region::new();
    let path = region.path();
    fs::write(&path, "somebody's notes").unwrap();
    fails(&mut main_job(&region, NOBODY), &["no region", "--shm"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's notes");
    fs::remove_file(&path).unwrap();

    let target = region.path().with_file_name("target");
    fs::write(&target, "x").unwrap();
    symlink(&target, &path).unwrap();
    fails(&mut main_job(&region, NOBODY), &["no region", "--shm"]);
    assert_eq!(fs::read_to_string(&target).unwrap(), "x");
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    fails(&mut main_job(&region, NOBODY), &["no region", "--shm"]);
}

/// Starts a sidecar, kills it, and leaves its region.
fn orphaned_region(region: &Region) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/tunnel", listener.local_addr().unwrap());
    let running = Running::start(&mut main_job(region, &endpoint));
    let socket = region.path().with_file_name("obs0.sock");
    wait_for("the region and its socket", || region.path().exists() && socket.exists());
    running.signal(rustix::process::Signal::KILL);
    assert_eq!(running.finish().0, 128 + 9);
    assert!(region.path().exists());
}

#[test]
fn a_region_of_somebody_else_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only root can give a file away");
    }
    let region = Region::new();
    orphaned_region(&region);
    chown(region.path(), Some(12_345), None).unwrap();
    fails(&mut main_job(&region, NOBODY), &["region", "12345"]);
}

#[test]
fn a_region_of_a_newer_layout_is_refused_with_both_versions() {
    let region = Region::new();
    orphaned_region(&region);
    let mut bytes = fs::read(region.path()).unwrap();
    let offset = sidecar_shm::layout::header::VERSION;
    let version = u32::from_le_bytes(bytes[offset..offset + 4].try_into().unwrap());
    bytes[offset..offset + 4].copy_from_slice(&(version + 1).to_le_bytes());
    fs::write(region.path(), bytes).unwrap();
    fails(&mut main_job(&region, NOBODY), &["newer", &(version + 1).to_string(), &version.to_string()]);
}

#[test]
fn the_region_is_for_its_owner_alone() {
    let region = Region::new();
    orphaned_region(&region);
    for path in [region.path(), region.path().with_file_name("obs0.sock")] {
        let mode = fs::symlink_metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
    }
}

#[test]
fn a_full_tmpfs_is_reported_with_what_is_needed_and_nothing_stays() {
    let directory = tempfile::tempdir().unwrap();
    let mount = |arguments: &[&str]| Command::new("mount").args(arguments).arg(directory.path()).output();
    if !mount(&["-t", "tmpfs", "-o", "size=4m", "tmpfs"]).is_ok_and(|output| output.status.success()) {
        return println!("skipped: a tmpfs cannot be mounted here");
    }
    struct Unmount<'a>(&'a Path);
    impl Drop for Unmount<'_> {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg(self.0).status();
        }
    }
    let _unmount = Unmount(directory.path());
    let mut command = sidecar();
    command
        .args(["--gpu", "none", "--job", JOB, "--endpoint", NOBODY, "--shm"])
        .arg(directory.path().join("obs0"));
    fails(command.env("JOB_TOKEN", TOKEN), &["are free", "--slot-bytes", "--shm-size"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_worker_that_keeps_the_gateway_waiting_is_looked_for() {
    let region = Region::new();
    region.expect(&["the worker is not ready yet"]);
    let gateway = Gateway::start(&["--cases", "1"]);
    for child in [&[][..], &["--", "sleep", "1000"]] {
        let mut command = main_job(&region, &gateway.endpoint);
        command.args(["--ready-warning", "100ms"]).args(child);
        let mut running = Running::start(&mut command);
        running.await_stderr("none is attached: start it against --shm");
        running.signal(rustix::process::Signal::TERM);
        let (code, said) = running.finish();
        assert_eq!(code, 143, "{said}");
        assert!(said.contains("ended on request"), "{said}");
    }
}

/// A worker that leaves word of itself, for a start that must not come so far.
fn with_witness(command: &mut Command, region: &Region) -> std::path::PathBuf {
    let witness = region.path().with_file_name("witness");
    command.args(["--", "sh", "-c", "echo $$ > \"$0\"; exec sleep 1000"]).arg(&witness);
    witness
}

#[test]
fn a_start_that_is_refused_leaves_neither_region_nor_worker() {
    let refusals: [(&[&str], &[&str]); 2] = [
        (&["--cpu", "4000"], &["--cpu 4000", "taskset"]),
        (&[], &["workers cannot be let in", "obs0.sock", "in the way"]),
    ];
    for (arguments, says) in refusals {
        let region = Region::new();
        let in_the_way = region.path().with_file_name("obs0.sock");
        fs::write(&in_the_way, "somebody's notes").unwrap();
        let mut command = main_job(&region, NOBODY);
        command.args(arguments);
        with_witness(&mut command, &region);
        fails(&mut command, says);
        assert_eq!(region.leftovers(), ["obs0.sock"]);
        assert_eq!(fs::read_to_string(&in_the_way).unwrap(), "somebody's notes");
    }
}

/// However few files it may open, a start fails in order: with a reason and a next step, and nothing left behind.
#[test]
fn a_start_with_too_few_descriptors_leaves_nothing_wherever_it_fails() {
    let mut failed = std::collections::BTreeSet::new();
    for io in ["uring", "epoll", "auto"] {
        for files in 4..24 {
            let region = Region::new();
            region.expect(&["no connection yet: dial failed"]);
            let mut job = main_job(&region, NOBODY);
            job.args(["--io", io, "--dial-timeout", "50ms", "--metrics", "127.0.0.1:0"]);
            let witness = with_witness(&mut job, &region);
            let mut shell = Command::new("sh");
            shell.args(["-c", &format!("ulimit -n {files}; exec \"$@\""), "sh"]);
            let mut command = wrapped(shell, &job);
            let (code, said) = Running::start(&mut command).finish();
            if code == 127 {
                // The loader needs some for itself.
                continue;
            }
            assert_eq!(code, 1, "{io}, {files} files: {said}");
            assert!(said.contains("error[") && said.contains("hint:"), "{io}, {files} files: {said}");
            let error = said.lines().find(|line| line.starts_with("error[")).unwrap();
            failed.insert(error.replace(&region.path().display().to_string(), "PATH"));
            // A worker may have been started where the run came so far; it has ended with it.
            if let Ok(pid) = fs::read_to_string(&witness) {
                assert!(!Path::new(&format!("/proc/{}", pid.trim())).exists(), "{io}, {files} files: {said}");
                fs::remove_file(&witness).unwrap();
            }
            assert!(region.leftovers().is_empty(), "{io}, {files} files: {:?}\n{said}", region.leftovers());
        }
    }
    println!("{failed:#?}");
    assert!(failed.iter().any(|error| error.contains("--io uring")), "{failed:#?}");
    assert!(failed.iter().any(|error| error.contains("control thread")), "{failed:#?}");
}

#[test]
fn a_worker_that_cannot_be_started_ends_the_run() {
    let region = Region::new();
    let gateway = Gateway::start(&["--cases", "1"]);
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--", "/no/such/worker"]);
    fails(&mut command, &["cannot be started", "/no/such/worker"]);
    let region = Region::new();
    let mut command = main_job(&region, &gateway.endpoint);
    command.args(["--", "sh", "-c", "exit 3"]);
    fails(&mut command, &["before it was ready", "exit status: 3"]);
}
