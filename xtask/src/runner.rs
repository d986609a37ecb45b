//! Runs programs to their end, and never longer than they may.
//!
//! Each program leads a process group of its own. However its run ends (by itself, past its limit, by a signal
//! to us, by an error in between), nothing of that group is left: `Running` ends it when it is dropped. What
//! left its group is found by `orphans`.

use core::cell::RefCell;
use core::time::Duration;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::clock::Stopwatch;
use crate::orphans;
use crate::tool::Tool;

/// How often a waiter looks for the child's end and for signals to us.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(20);
/// What an orderly end may take between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long the output of a program that has ended may stay silent and open.
const LAST_LINES: Duration = Duration::from_secs(1);

/// Why a run did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The reason, for the table at the end.
    Failed(String),
    /// We were told to end, by this signal.
    Interrupted(i32),
    /// It cannot be done here, with the reason.
    Skipped(&'static str),
}

impl Stop {
    /// A failure with this reason.
    pub(crate) fn failed(reason: impl Into<String>) -> Self {
        Self::Failed(reason.into())
    }
}

/// Starts programs and watches for signals to us.
pub(crate) struct Runner {
    signals: RefCell<Signals>,
}

impl Runner {
    /// From here on SIGINT, SIGTERM and SIGHUP end a run in order instead of ending us, and what our programs
    /// leave behind becomes our child.
    ///
    /// # Errors
    /// When the system refuses either.
    pub(crate) fn new() -> io::Result<Self> {
        orphans::adopt()?;
        Ok(Self { signals: RefCell::new(Signals::new([SIGINT, SIGTERM, SIGHUP])?) })
    }

    /// Runs a program with its output on ours.
    ///
    /// # Errors
    /// When it is missing, fails, or takes longer than `limit`; when we are told to end.
    pub(crate) fn run(&self, tool: Tool, limit: Duration) -> Result<(), Stop> {
        self.start(tool, Stdio::inherit())?.finish(limit)
    }

    /// Starts a program in the background; its standard output is read line by line, and shown.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_listening(&self, tool: Tool) -> Result<Running<'_>, Stop> {
        let mut running = self.start(tool, Stdio::piped())?;
        if let Some(output) = running.child.stdout.take() {
            running.lines = Some(listen(output));
        }
        Ok(running)
    }

    /// Runs a program to its end, shows what it says, and has every line of it looked at, errors included.
    ///
    /// # Errors
    /// As [`Runner::run`].
    pub(crate) fn run_reading(
        &self,
        mut tool: Tool,
        limit: Duration,
        look: impl FnMut(&str),
    ) -> Result<(), Stop> {
        let no_pipe = |error| Stop::failed(format!("no pipe for `{tool}`: {error}"));
        let (reader, writer) = io::pipe().map_err(no_pipe)?;
        let errors = writer.try_clone().map_err(no_pipe)?;
        tool.command().stderr(errors);
        let mut running = self.start(tool, writer.into())?;
        running.lines = Some(listen(reader));
        running.finish_reading(limit, look)
    }

    /// Starts a program in the background with its standard output in a file.
    ///
    /// # Errors
    /// When it cannot be started.
    pub(crate) fn start_to(&self, tool: Tool, output: File) -> Result<Running<'_>, Stop> {
        self.start(tool, output.into())
    }

    fn start(&self, mut tool: Tool, output: Stdio) -> Result<Running<'_>, Stop> {
        println!("$ {tool}");
        let name = tool.to_string();
        let child = tool.command().process_group(0).stdout(output).spawn().map_err(|error| {
            Stop::failed(match error.kind() {
                io::ErrorKind::NotFound => format!("`{name}` cannot start: not found; {}", tool.if_missing()),
                _ => format!("`{name}` cannot start: {error}"),
            })
        })?;
        let group = Pid::from_child(&child);
        Ok(Running { runner: self, name, child, group, ended: false, lines: None })
    }

    fn interrupted(&self) -> Result<(), Stop> {
        match self.signals.borrow_mut().pending().next() {
            Some(signal) => Err(Stop::Interrupted(signal)),
            None => Ok(()),
        }
    }
}

/// A program that was started. Dropping it ends its process group.
pub(crate) struct Running<'a> {
    runner: &'a Runner,
    name: String,
    child: Child,
    group: Pid,
    ended: bool,
    lines: Option<Receiver<String>>,
}

impl Running<'_> {
    /// Waits for a successful end.
    ///
    /// # Errors
    /// Any other end; none within `limit`; a signal to us.
    pub(crate) fn finish(self, limit: Duration) -> Result<(), Stop> {
        self.finish_reading(limit, |_| {})
    }

    /// Whether [`Running::finish`] would not have to wait, for one that was started when `watch` was.
    ///
    /// # Errors
    /// As [`Running::finish`], save for an end that is no success.
    pub(crate) fn has_ended(&self, watch: Stopwatch, limit: Duration) -> Result<bool, Stop> {
        if self.exited()? {
            return Ok(true);
        }
        self.still_waiting(watch, limit, "its end").map(|()| false)
    }

    /// As [`Running::finish`], and shows each line of output to `look` too, if it was started by
    /// [`Runner::start_listening`].
    ///
    /// # Errors
    /// As [`Running::finish`].
    pub(crate) fn finish_reading(mut self, limit: Duration, mut look: impl FnMut(&str)) -> Result<(), Stop> {
        let watch = Stopwatch::start();
        while !self.has_ended(watch, limit)? {
            thread::sleep(LOOK_EVERY);
        }
        let status = self.reap()?;
        if let Some(lines) = &self.lines {
            // Its last lines are shown before the verdict. Only a descendant outside its group can hold the pipe.
            while let Ok(line) = lines.recv_timeout(LAST_LINES) {
                look(&line);
            }
        }
        if status.success() {
            Ok(())
        } else {
            Err(Stop::failed(format!("`{}` {}", self.name, ending(status))))
        }
    }

    /// Waits for the first line of output that `wanted` makes something of.
    ///
    /// # Errors
    /// The end of the output; no such line within `limit`; a signal to us.
    pub(crate) fn line<T>(
        &mut self,
        what: &str,
        limit: Duration,
        wanted: impl Fn(&str) -> Option<T>,
    ) -> Result<T, Stop> {
        let watch = Stopwatch::start();
        loop {
            let next = self.lines.as_ref().map(|lines| lines.recv_timeout(LOOK_EVERY));
            match next {
                Some(Ok(line)) => {
                    if let Some(found) = wanted(&line) {
                        return Ok(found);
                    }
                }
                Some(Err(RecvTimeoutError::Timeout)) => {}
                Some(Err(RecvTimeoutError::Disconnected)) | None => {
                    return Err(Stop::failed(format!("`{}` ended before {what}", self.name)));
                }
            }
            self.still_waiting(watch, limit, what)?;
        }
    }

    fn still_waiting(&self, watch: Stopwatch, limit: Duration, what: &str) -> Result<(), Stop> {
        self.runner.interrupted()?;
        if watch.elapsed() > limit {
            return Err(Stop::failed(format!(
                "`{}`: {} s passed without {what}",
                self.name,
                limit.as_secs()
            )));
        }
        Ok(())
    }

    /// Whether the child is done. It stays unreaped, so that its id still names its group.
    fn exited(&self) -> Result<bool, Stop> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(self.group), options)
            .map(|status| status.is_some())
            .map_err(|error| Stop::failed(format!("`{}` cannot be waited for: {error}", self.name)))
    }

    /// Ends what is left of the group, then reaps the child.
    fn reap(&mut self) -> Result<ExitStatus, Stop> {
        self.signal(Signal::KILL);
        self.ended = true;
        self.child
            .wait()
            .map_err(|error| Stop::failed(format!("`{}` cannot be waited for: {error}", self.name)))
    }

    /// An empty group is no error: then there is nothing to end.
    fn signal(&self, signal: Signal) {
        let _ = rustix::process::kill_process_group(self.group, signal);
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        self.signal(Signal::TERM);
        let watch = Stopwatch::start();
        while watch.elapsed() < GRACE && matches!(self.exited(), Ok(false)) {
            thread::sleep(LOOK_EVERY);
        }
        // After SIGKILL the wait is short, and its result is of no use to anybody.
        let _ = self.reap();
    }
}

/// Shows each line and passes it on; ends with the output.
fn listen(output: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            println!("{line}");
            // Nobody may want the rest of the lines; they are shown all the same.
            let _ = sender.send(line);
        }
    });
    lines
}

fn ending(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => format!("ended with {status}"),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn tool(program: &str, arguments: &[&str]) -> Tool {
        Tool::new(program, Path::new("/"), "install it").args(arguments.iter().copied())
    }

    fn reason(result: Result<(), Stop>) -> String {
        match result {
            Err(Stop::Failed(reason)) => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_end_of_a_program_decides() {
        let runner = Runner::new().unwrap();
        assert_eq!(runner.run(tool("true", &[]), SOON), Ok(()));
        assert_eq!(reason(runner.run(tool("false", &[]), SOON)), "`false` ended with exit code 1");
    }

    #[test]
    fn a_missing_program_names_the_next_step() {
        let runner = Runner::new().unwrap();
        let reason = reason(runner.run(tool("no-such-program", &["x"]), SOON));
        assert_eq!(reason, "`no-such-program x` cannot start: not found; install it");
    }

    #[test]
    fn a_program_past_its_limit_is_ended() {
        let runner = Runner::new().unwrap();
        let watch = Stopwatch::start();
        let reason = reason(runner.run(tool("sleep", &["1000"]), Duration::from_millis(50)));
        assert!(reason.contains("without its end"), "{reason}");
        assert!(watch.elapsed() < GRACE, "SIGTERM alone was enough");
    }

    #[test]
    fn a_dropped_program_takes_its_group_along() {
        let runner = Runner::new().unwrap();
        // `env` becomes `timeout`, which starts `sleep` in the same group with `--foreground`.
        let running =
            runner.start(tool("timeout", &["--foreground", "1000", "sleep", "1000"]), Stdio::null());
        let group = running.unwrap().group;
        // We adopted the dead; only these are reaped, since other tests wait for theirs.
        let watch = Stopwatch::start();
        while rustix::process::test_kill_process_group(group) != Err(rustix::io::Errno::SRCH) {
            let _ = rustix::process::waitpgid(group, rustix::process::WaitOptions::NOHANG);
            assert!(watch.elapsed() < SOON, "the group is still there");
            thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_line_is_found_or_its_absence_is_told() {
        let runner = Runner::new().unwrap();
        let mut running = runner.start_listening(tool("printf", &["a\\nport 7\\nb\\n"])).unwrap();
        let port = |line: &str| line.strip_prefix("port ").and_then(|port| port.parse::<u16>().ok());
        assert_eq!(running.line("a port", SOON, port), Ok(7));
        let end = running.line("another port", SOON, port).unwrap_err();
        assert_eq!(end, Stop::failed("`printf a\\nport 7\\nb\\n` ended before another port"));
        assert_eq!(running.finish(SOON), Ok(()));
    }

    #[test]
    fn errors_are_read_too() {
        let runner = Runner::new().unwrap();
        let mut read = Vec::new();
        let failed =
            runner.run_reading(tool("ls", &["/no/such/place"]), SOON, |line| read.push(line.to_owned()));
        assert_eq!(reason(failed), "`ls /no/such/place` ended with exit code 2");
        assert!(read.concat().contains("/no/such/place"), "{read:?}");
    }

    #[test]
    fn every_line_is_read_to_the_end() {
        let runner = Runner::new().unwrap();
        let mut read = Vec::new();
        let running = runner.start_listening(tool("printf", &["a\\nb\\nc"])).unwrap();
        assert_eq!(running.finish_reading(SOON, |line| read.push(line.to_owned())), Ok(()));
        assert_eq!(read, ["a", "b", "c"]);
    }
}
