//! Process groups of workers that a sidecar of this region started: how they are known, and how they are ended.
//!
//! Each has the region's id in its environment, so that a sidecar that took the region over knows its predecessor's
//! worker, also one that had not attached yet, and never ends one of another sidecar, or of nobody.

use core::time::Duration;
use std::collections::HashSet;
use std::sync::Mutex;

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group};

/// In the environment of each worker that a sidecar started: the id of its region.
pub(super) const MARK: &str = "SIDECAR_CHILD";
/// Between SIGTERM and SIGKILL, and after SIGKILL.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// The group of the running child, for the end that a second signal asks for.
static GROUP: Mutex<Option<Pid>> = Mutex::new(None);

/// The group of the worker that is kept running.
pub(super) fn current() -> Option<Pid> {
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

pub(super) fn set_current(group: Option<Pid>) {
    *GROUP.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = group;
}

/// SIGKILL for the group of the worker that is kept running.
pub(super) fn kill_current() {
    if let Some(group) = current() {
        // It may be empty by now.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// SIGKILL for the groups of all workers that sidecars of this region started.
pub(super) fn kill_all(mark: &str) {
    kill_current();
    for group in all_marked(mark) {
        // It may be empty by now.
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// What the mark says for a region.
pub(super) fn mark(region: u64) -> String {
    format!("{region:016x}")
}

/// Ends the process of an attached worker with its group, if a sidecar of this region started it; says whether it did.
pub(super) fn kill_if_ours(pid: u32, mark: &str) -> bool {
    let of = Kin::of(pid).and_then(|kin| kin.group);
    let group = of.filter(|group| Some(*group) == current()).or_else(|| of_marked(pid, mark));
    group.is_some_and(|group| kill_process_group(group, Signal::KILL).is_ok())
}

/// The process group of a worker, if a sidecar of this region started it. What such a worker put into a session of its
/// own is not meant to end with it.
pub(super) fn of_marked(pid: u32, mark: &str) -> Option<Pid> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let marked = |variable: &[u8]| {
        variable.strip_prefix(MARK.as_bytes()).and_then(|rest| rest.strip_prefix(b"="))
            == Some(mark.as_bytes())
    };
    if !environment.split(|byte| *byte == 0).any(marked) {
        return None;
    }
    let (theirs, ours) = (Kin::of(pid)?, Kin::of(std::process::id())?);
    (theirs.group != ours.group && theirs.group != theirs.session).then_some(theirs.group)?
}

/// The process group and the session of a process. Each is absent where its leader is outside of this pid namespace, as
/// with the first process of a container: the system says 0 then, which as a group to signal would be our own.
struct Kin {
    group: Option<Pid>,
    session: Option<Pid>,
}

impl Kin {
    /// Read from `/proc`, not by `getpgid` and `getsid`: rustix takes their 0 for a broken promise and panics.
    fn of(pid: u32) -> Option<Self> {
        Self::read(&std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    }

    /// proc(5): the third and fourth field after the name, which ends at the last parenthesis.
    fn read(stat: &str) -> Option<Self> {
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(2);
        let mut leader = || fields.next()?.parse().ok().map(Pid::from_raw);
        Some(Self { group: leader()?, session: leader()? })
    }
}

/// The groups of all workers that sidecars of this region started and that still run.
pub(super) fn all_marked(mark: &str) -> HashSet<Pid> {
    let Ok(processes) = std::fs::read_dir("/proc") else { return HashSet::new() };
    let pids = processes.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid| of_marked(pid, mark)).collect()
}

/// SIGTERM for all these groups, then SIGKILL after [`GRACE`] for what is left of them.
pub(super) async fn end(groups: impl IntoIterator<Item = Pid>) {
    let mut groups: Vec<Pid> = groups.into_iter().collect();
    groups.retain(|group| kill_process_group(*group, Signal::TERM).is_ok());
    if !are_gone(&mut groups, GRACE).await {
        tracing::warn!("the worker did not end on SIGTERM: SIGKILL");
        kill(groups).await;
    }
}

/// SIGKILL for all these groups; waits a moment for their end.
pub(super) async fn kill(groups: impl IntoIterator<Item = Pid>) {
    let mut groups: Vec<Pid> = groups.into_iter().collect();
    groups.retain(|group| kill_process_group(*group, Signal::KILL).is_ok());
    if !are_gone(&mut groups, GRACE).await {
        tracing::warn!("the worker's processes take their time to end after SIGKILL");
    }
}

/// Waits until the groups are empty, for `patience` at most.
pub(super) async fn are_gone(groups: &mut Vec<Pid>, patience: Duration) -> bool {
    let deadline = tokio::time::Instant::now() + patience;
    loop {
        groups.retain(|group| {
            // Our own child stays a zombie, and its group alive, until it is reaped.
            let _ = rustix::process::waitpid(Some(*group), WaitOptions::NOHANG);
            rustix::process::test_kill_process_group(*group).is_ok()
        });
        if groups.is_empty() || tokio::time::Instant::now() >= deadline {
            return groups.is_empty();
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    use super::*;

    fn started(command: &mut Command, mark: Option<&str>) -> Child {
        command.env_remove(MARK).envs(mark.map(|mark| (MARK, mark)));
        let child = command.spawn().unwrap();
        // Before the exec its environment is ours.
        let name = format!("/proc/{}/comm", child.id());
        while std::fs::read_to_string(&name).unwrap().trim() != "sleep" {
            std::thread::yield_now();
        }
        child
    }

    #[test]
    fn a_leader_outside_of_the_pid_namespace_is_nobody() {
        let kin = |stat| Kin::read(stat).map(|kin| (kin.group, kin.session));
        assert_eq!(kin("7 (a) b) S 1 5 3 0 -1 4194560"), Some((Pid::from_raw(5), Pid::from_raw(3))));
        assert_eq!(kin("7 (sh) S 1 0 0 0 -1 4194560"), Some((None, None)));
        assert_eq!(kin("7 (sh) S 1 x 0"), None);
        assert_eq!(kin("7 (sh) S 1 5"), None);
        assert_eq!(kin(""), None);
    }

    #[test]
    fn only_a_worker_that_a_sidecar_of_this_region_started_is_ended() {
        let (ours, other) = (mark(0xabc), mark(0xabcd));
        let sleep = || {
            let mut sleep = Command::new("sleep");
            sleep.arg("1000");
            sleep
        };
        let mut session = Command::new("setsid");
        session.args(["sleep", "1000"]);
        let mut children = [
            (started(sleep().process_group(0), Some(&ours)), true),
            (started(sleep().process_group(0), Some(&other)), false),
            (started(sleep().process_group(0), None), false),
            // In the group of this process.
            (started(&mut sleep(), Some(&ours)), false),
            // It was sent into a session of its own, to outlive the worker.
            (started(&mut session, Some(&ours)), false),
        ];
        let marked = all_marked(&ours);
        for (child, is_ours) in &mut children {
            let group = Pid::from_child(child);
            assert_eq!(of_marked(child.id(), &ours).is_some(), *is_ours);
            assert_eq!(marked.contains(&group), *is_ours);
            assert_eq!(kill_if_ours(child.id(), &ours), *is_ours);
            if !*is_ours {
                assert!(child.try_wait().unwrap().is_none());
                child.kill().unwrap();
            }
            child.wait().unwrap();
        }
        assert!(all_marked(&ours).is_empty());
        assert!(!kill_if_ours(0, &ours));
    }
}
