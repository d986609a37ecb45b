//! Child processes that end with whoever started them.

use core::time::Duration;
use std::io;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A child; killed when dropped.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    child: Child,
}

/// What an end in order may take.
const LAST_WORDS: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(5);

impl Process {
    /// # Errors
    /// If it cannot be started; the text names it.
    pub(crate) fn start(name: &str, command: &mut Command) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let child = child.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        Ok(Self { name: name.to_owned(), child })
    }

    /// As [`Process::start`], and gives its output.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(crate) fn start_listening(name: &str, command: &mut Command) -> io::Result<(Self, ChildStdout)> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("a pipe was asked for"))?;
        Ok((Self { name: name.to_owned(), child }, output))
    }

    /// As [`Process::start`], to be talked with.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub(crate) fn start_talking(
        name: &str,
        command: &mut Command,
    ) -> io::Result<(Self, ChildStdin, ChildStdout)> {
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("two pipes were asked for"));
        };
        Ok((Self { name: name.to_owned(), child }, input, output))
    }

    /// What all its threads have used of processors.
    ///
    /// # Errors
    /// If it has ended, or the kernel keeps no such account.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        let mut nanos = 0;
        for task in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
            let first = text.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
            nanos += first.ok_or_else(|| io::Error::other("schedstat has another form"))?;
        }
        Ok(Duration::from_nanos(nanos))
    }

    /// Waits for its end after it was told to end.
    ///
    /// # Errors
    /// It did not end, or not well.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let mut left = LAST_WORDS;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(io::Error::other(format!("{}: {status}", self.name))),
                None if left.is_zero() => {
                    return Err(io::Error::other(format!("{}: it does not end", self.name)));
                }
                None => {
                    std::thread::sleep(LOOK_EVERY);
                    left = left.saturating_sub(LOOK_EVERY);
                }
            }
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already ended is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
