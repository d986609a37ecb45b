//! What people do today, in their own language: a script that is told sizes and tells times.

use core::time::Duration;
use std::io::{self, BufRead, BufReader, Write};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::processes::Process;

/// Importing PyTorch and starting CUDA in it takes seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// The script, running.
pub(super) struct Habit {
    tell: ChildStdin,
    told: BufReader<ChildStdout>,
    _process: Process,
    /// What it is made with.
    pub(super) version: String,
}

impl Habit {
    /// # Errors
    /// Why it cannot be had here, for people.
    pub(super) fn start(python: &Path, script: &Path) -> Result<Self, String> {
        let mut command = Command::new(python);
        command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
        let name = python.display().to_string();
        let (process, tell, told) =
            Process::start_talking(&name, &mut command).map_err(|error| error.to_string())?;
        let mut habit = Self { tell, told: BufReader::new(told), _process: process, version: String::new() };
        let first = habit.line().map_err(|error| format!("{name}: {error}"))?;
        match first.split_once(' ') {
            Some(("ready", version)) => habit.version = version.to_owned(),
            Some(("missing", why)) => return Err(format!("{name}: {why}")),
            _ => return Err(format!("{name}: it says `{first}`")),
        }
        Ok(habit)
    }

    /// Nanoseconds from having the bytes to having them on the device.
    ///
    /// # Errors
    /// It has ended, or says something else.
    pub(super) fn arrival(&mut self, size: usize) -> io::Result<f64> {
        writeln!(self.tell, "{size}")?;
        let line = self.line()?;
        line.parse().map_err(|_| io::Error::other(format!("PyTorch's script says `{line}`")))
    }

    fn line(&mut self) -> io::Result<String> {
        let timeout = Timespec::try_from(PATIENCE).map_err(io::Error::other)?;
        // It says one line at a time, so nothing waits in the buffer.
        if poll(&mut [PollFd::new(self.told.get_ref(), PollFlags::IN)], Some(&timeout))? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, format!("it said nothing for {PATIENCE:?}")));
        }
        let mut line = String::new();
        match self.told.read_line(&mut line)? {
            0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it ended without a word")),
            _ => Ok(line.trim_end().to_owned()),
        }
    }
}
