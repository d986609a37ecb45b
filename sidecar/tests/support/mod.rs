//! Processes under test: started, watched, never left behind.

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
/// A watchdog, not a measurement.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The binary under test, with a clean environment as far as its settings go.
pub(crate) fn sidecar() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sidecar"));
    for variable in
        ["JOB_TOKEN", "CHALLENGE_TOKEN", "JOB_UUID", "TUNNEL_ENDPOINT", "SIDECAR_SHM", "SIDECAR_LOG"]
    {
        command.env_remove(variable);
    }
    command.env("HOME", "/nonexistent").env("NO_COLOR", "1").stdin(Stdio::null());
    command
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

    /// The exit code (128 + signal for a death by signal) and everything that was said.
    pub(crate) fn finish(mut self) -> (i32, String) {
        use std::os::unix::process::ExitStatusExt;
        let mut status = None;
        wait_for(&format!("the end of the process; so far:\n{}", self.stderr()), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        // The pipe ends with the last process that holds it.
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        let status = status.unwrap();
        let said = self.stderr();
        assert!(!said.contains(TOKEN), "the token was shown:\n{said}");
        (status.code().unwrap_or_else(|| 128 + status.signal().unwrap()), said)
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
    let rounds = PATIENCE.as_millis() / 10;
    for _ in 0..rounds {
        if condition() {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("waited too long for {what}");
}

/// A region path of its own for a test, with everything beside it removed at the end.
#[derive(Debug)]
pub(crate) struct Region {
    directory: tempfile::TempDir,
}

impl Region {
    pub(crate) fn new() -> Self {
        let shm = Path::new("/dev/shm");
        let parent = if shm.is_dir() { shm.to_owned() } else { std::env::temp_dir() };
        Self { directory: tempfile::Builder::new().prefix("sidecar-test-").tempdir_in(parent).unwrap() }
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

impl Gateway {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = sidecar();
        command
            .args(["gateway", "--listen", "127.0.0.1:0", "--job", JOB])
            .args(arguments)
            .env("JOB_TOKEN", TOKEN);
        let mut process = Running::start(&mut command);
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

    /// Waits for the end and gives the report, the last line.
    pub(crate) fn report(self) -> serde_json::Value {
        let (code, said) = self.process.finish();
        self.reader.join().unwrap();
        let report = self.lines.lock().unwrap().last().cloned();
        report.unwrap_or_else(|| panic!("no report (exit {code}):\n{said}"))
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
