//! Processes under test: started, watched, never left behind; and what their region says in the end.
#![allow(dead_code, reason = "each test binary uses its part")]

pub(crate) mod random;
pub(crate) mod stalls;
mod watcher;

use core::time::Duration;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// The token of all tests; none of them may ever see it in an output.
pub(crate) const TOKEN: &str = "sesame-4f1b7c";
/// A job id.
pub(crate) const JOB: &str = "0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11";
/// Timers at a twentieth of life, on the sidecar's side.
pub(crate) const FAST: [&str; 16] = [
    "--redial-after-silence",
    "3750ms",
    "--redial-after-close",
    "1650ms",
    "--hold-answers",
    "50ms",
    "--ping-after",
    "1s",
    "--dead-after",
    "2s",
    "--backoff-base",
    "12ms",
    "--backoff-max",
    "250ms",
    "--capacity-window",
    "100ms",
];
/// The same on the gateway's.
pub(crate) const FAST_GATEWAY: [&str; 6] =
    ["--ping-interval", "1s", "--read-deadline", "2250ms", "--window", "1500ms"];
/// A watchdog, not a measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How much slower than the tests' timers life is, for a run in real time (SIDECAR_REAL_TIME); 1 otherwise.
pub(crate) fn slower() -> u32 {
    if std::env::var_os("SIDECAR_REAL_TIME").is_some() { 20 } else { 1 }
}

/// The binary under test, with a clean environment as far as its settings go.
pub(crate) fn sidecar() -> Command {
    clean(env!("CARGO_BIN_EXE_sidecar"))
}

/// A program in such an environment.
pub(crate) fn clean(program: &str) -> Command {
    let mut command = Command::new(program);
    for variable in
        ["JOB_TOKEN", "CHALLENGE_TOKEN", "JOB_UUID", "TUNNEL_ENDPOINT", "SIDECAR_SHM", "SIDECAR_LOG"]
    {
        command.env_remove(variable);
    }
    command.env("HOME", "/nonexistent").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// `outer` with the whole of `inner` behind its arguments: the same program and environment in another setting.
pub(crate) fn wrapped(mut outer: Command, inner: &Command) -> Command {
    outer.arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer.stdin(Stdio::null());
    outer
}

/// A process whose stderr is collected; killed when dropped.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    stderr: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pipe = child.stderr.take().unwrap();
        let stderr = Arc::new(Mutex::new(String::new()));
        let collected = Arc::clone(&stderr);
        let reader = thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = pipe.read(&mut chunk) {
                collected.lock().unwrap().push_str(&String::from_utf8_lossy(&chunk[..length]));
            }
        });
        Self { child, stderr, reader: Some(reader) }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn take_stdout(&mut self) -> ChildStdout {
        self.child.stdout.take().unwrap()
    }

    pub(crate) fn stderr(&self) -> String {
        self.stderr.lock().unwrap().clone()
    }

    /// Waits for `text` to appear in stderr.
    pub(crate) fn await_stderr(&mut self, text: &str) {
        wait_for(&format!("{text:?} in the output"), || {
            let ended = self.child.try_wait().unwrap();
            let found = self.stderr().contains(text);
            assert!(found || ended.is_none(), "ended ({ended:?}) without {text:?}:\n{}", self.stderr());
            found
        });
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_raw(self.pid().cast_signed()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// The exit code (128 + signal for a death by signal) and everything that was said, by it and by those that it
    /// started.
    pub(crate) fn finish(mut self) -> (i32, String) {
        let code = self.wait();
        // The pipe ends with the last process that holds it.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let said = self.stderr();
        assert!(!said.contains(TOKEN), "the token was shown:\n{said}");
        (code, said)
    }

    /// As [`Running::finish`], but what it started may go on.
    pub(crate) fn finish_alone(mut self) -> (i32, String) {
        let code = self.wait();
        (code, self.stderr())
    }

    /// Waits for its end; gives the exit code as [`Running::finish`] does.
    pub(crate) fn wait(&mut self) -> i32 {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        wait_for(&format!("the end of the process; so far:\n{}", self.stderr()), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for a condition, under a watchdog.
pub(crate) fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let rounds = (PATIENCE * slower()).as_millis() / 10;
    for _ in 0..rounds {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited too long for {what}");
}

/// A region path of its own for a test, with everything beside it removed at the end. What the sidecars note in the
/// regions there has to be what the test expects.
#[derive(Debug)]
pub(crate) struct Region {
    directory: tempfile::TempDir,
    watcher: watcher::Watcher,
}

impl Region {
    pub(crate) fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        let directory = tempfile::Builder::new().prefix("sidecar-test-").tempdir_in(parent).unwrap();
        let watcher = watcher::Watcher::start(directory.path().join("obs0"));
        Self { directory, watcher }
    }

    /// Entries of the error log that start like this, and counters of this name, are no surprise.
    pub(crate) fn expect(&self, entries: &[&str]) {
        self.watcher.expect(entries);
    }

    /// We close the session while an observation may be on its way to us, or its action on the way back.
    pub(crate) fn expect_late_frames(&self) {
        self.expect(&["dropped_actions", "dropped_frames", "data frame dropped: its session is not open"]);
    }

    /// Everything that was noted and counted, over all regions that were there; the watch goes on.
    pub(crate) fn noted(&self) -> watcher::Noted {
        self.watcher.noted()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("obs0")
    }

    pub(crate) fn leftovers(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.directory.path()).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// A rehearsal gateway in a process of its own.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) process: Running,
    pub(crate) endpoint: String,
    lines: Arc<Mutex<Vec<serde_json::Value>>>,
    reader: JoinHandle<()>,
}

/// `sidecar gateway --listen ADDRESS ...`, with the token in its environment.
pub(crate) fn gateway(address: &str, arguments: &[&str]) -> Command {
    let mut command = sidecar();
    command.args(["gateway", "--listen", address, "--job", JOB]).args(arguments).env("JOB_TOKEN", TOKEN);
    command
}

impl Gateway {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::run(&mut gateway("127.0.0.1:0", arguments))
    }

    pub(crate) fn run(command: &mut Command) -> Self {
        let mut process = Running::start(command);
        let mut output = BufReader::new(process.take_stdout());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        let first: serde_json::Value = serde_json::from_str(&first)
            .unwrap_or_else(|_| panic!("no address: {first:?} {}", process.stderr()));
        let endpoint = format!("ws://{}/api/challenge/tunnel", first["listening"].as_str().unwrap());
        let lines = Arc::new(Mutex::new(Vec::new()));
        let collected = Arc::clone(&lines);
        let reader = thread::spawn(move || {
            for line in output.lines() {
                let line = serde_json::from_str(&line.unwrap()).unwrap();
                collected.lock().unwrap().push(line);
            }
        });
        Self { process, endpoint, lines, reader }
    }

    /// Host and port.
    pub(crate) fn address(&self) -> String {
        self.endpoint.trim_start_matches("ws://").split('/').next().unwrap().to_owned()
    }

    /// What it told so far.
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        self.lines.lock().unwrap().clone()
    }

    /// How many events of a kind it told so far.
    pub(crate) fn count(&self, event: &str) -> usize {
        self.events().iter().filter(|line| line["event"] == event).count()
    }

    /// Waits for the end and gives the report, the last line.
    pub(crate) fn report(self) -> serde_json::Value {
        self.end().0
    }

    /// The same, and what was said on stderr.
    pub(crate) fn end(self) -> (serde_json::Value, String) {
        let (code, said) = self.process.finish();
        self.reader.join().unwrap();
        let report = self.lines.lock().unwrap().last().cloned();
        (report.unwrap_or_else(|| panic!("no report (exit {code}):\n{said}")), said)
    }
}

/// `sidecar --gpu none --shm ... --job ... --endpoint ...`, with the token in its environment.
pub(crate) fn main_job(region: &Region, endpoint: &str) -> Command {
    let mut command = sidecar();
    command.args(["--gpu", "none", "--job", JOB, "--endpoint", endpoint, "--shm"]).arg(region.path());
    command.env("JOB_TOKEN", TOKEN);
    command
}

/// Appends `-- sidecar worker --policy POLICY`; the region's path reaches the worker through SIDECAR_SHM.
pub(crate) fn with_worker(command: &mut Command, policy: &str) {
    command.args(["--", env!("CARGO_BIN_EXE_sidecar"), "worker", "--policy", policy]);
}
