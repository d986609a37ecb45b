//! Processes that outlived the program which started them.
//!
//! A worker child leads a group of its own, so ending a step's group does not reach it. As a "child subreaper"
//! (prctl(2)) we become the parent of whatever loses its parent below us, and find it in /proc.

use core::time::Duration;
use std::{fs, io, thread};

use rustix::process::{Pid, Signal, WaitOptions};

use crate::clock::Stopwatch;

/// What an orderly end of a descendant may still take after its step.
const SETTLE: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Becomes the parent of orphans below us.
///
/// # Errors
/// When the system refuses.
pub(crate) fn adopt() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?)
}

/// A process that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Orphan {
    pid: Pid,
    /// Its name, as the kernel has it.
    pub(crate) name: String,
}

/// Our living children. Between two steps these are orphans, since each step waits for what it started.
pub(crate) fn list() -> Vec<Orphan> {
    let parent = rustix::process::getpid().as_raw_nonzero().to_string();
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| orphan_of(&parent, entry.file_name().to_str()?)).collect()
}

/// Waits a little for new orphans to end by themselves; ends those that do not, and returns them.
/// Those in `before` are somebody's lasting daemons (a compiler cache, say) and none of our business.
pub(crate) fn end_new(before: &[Orphan]) -> Vec<Orphan> {
    let new = || list().into_iter().filter(|orphan| !before.contains(orphan)).collect::<Vec<_>>();
    let watch = Stopwatch::start();
    while !new().is_empty() && watch.elapsed() < SETTLE {
        thread::sleep(LOOK_EVERY);
    }
    let left = new();
    for orphan in &left {
        // It may have ended in between; then there is nothing to end, and reaping finds it.
        let _ = rustix::process::kill_process(orphan.pid, Signal::KILL);
        let _ = rustix::process::waitpid(Some(orphan.pid), WaitOptions::empty());
    }
    left
}

/// The process `pid` if it is a living child of `parent`; reaps it if it is a dead one.
fn orphan_of(parent: &str, pid: &str) -> Option<Orphan> {
    let pid = Pid::from_raw(pid.parse().ok()?)?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let Stat { name, state, parent: its_parent } = parse_stat(&stat)?;
    if its_parent != parent {
        return None;
    }
    if state == "Z" {
        // Reaped by somebody else in between is as good.
        let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
        return None;
    }
    Some(Orphan { pid, name: name.to_owned() })
}

#[derive(Debug, PartialEq, Eq)]
struct Stat<'a> {
    name: &'a str,
    state: &'a str,
    parent: &'a str,
}

/// Reads "pid (name) state ppid ..." of proc_pid_stat(5); the name may hold anything, parentheses included.
fn parse_stat(stat: &str) -> Option<Stat<'_>> {
    let (head, tail) = stat.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    let mut fields = tail.split_ascii_whitespace();
    Some(Stat { name, state: fields.next()?, parent: fields.next()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_spaces_is_read_whole() {
        let stat = parse_stat("42 (a) b (c) S 7 42 42 0");
        assert_eq!(stat, Some(Stat { name: "a) b (c", state: "S", parent: "7" }));
        assert_eq!(parse_stat("42 (cut"), None);
        assert_eq!(parse_stat("42 (cut) R"), None);
    }
}
