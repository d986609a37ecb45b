//! One external program: what to run, with what, and what to do when it is missing.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::{Command, Stdio};

/// A program with its arguments; no shell reads them. It runs in the directory that it is given, with no input.
#[derive(Debug)]
pub(crate) struct Tool {
    command: Command,
    shown: String,
    if_missing: &'static str,
}

impl Tool {
    /// `if_missing` is the next step for a reader whose machine lacks the program.
    pub(crate) fn new(program: impl AsRef<OsStr>, directory: &Path, if_missing: &'static str) -> Self {
        let program = program.as_ref();
        let name = Path::new(program).file_name().unwrap_or(program);
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null());
        Self { command, shown: name.display().to_string(), if_missing }
    }

    /// Calls the program by another name than its file's.
    pub(crate) fn shown_as(mut self, name: &str) -> Self {
        name.clone_into(&mut self.shown);
        self
    }

    /// Adds arguments.
    pub(crate) fn args<I>(mut self, arguments: I) -> Self
    where
        I: IntoIterator,
        I::Item: Into<OsString>,
    {
        for argument in arguments {
            let argument = argument.into();
            self.shown = format!("{} {}", self.shown, argument.display());
            self.command.arg(argument);
        }
        self
    }

    /// Sets a variable of its environment.
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// The program as the standard library starts it.
    pub(crate) fn command(&mut self) -> &mut Command {
        &mut self.command
    }

    /// What a reader can do when the program is not there.
    pub(crate) fn if_missing(&self) -> &'static str {
        self.if_missing
    }
}

impl fmt::Display for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
