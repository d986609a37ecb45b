//! Workers that a dead sidecar left: whether their processes still run.
//!
//! Only the kernel's word that there is no such process, or another one of that pid, is a proof. A system that is short
//! of descriptors, or hides its processes, has said nothing.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use crate::journal::SeatRecord;
use crate::sys;

/// A seat that a dead sidecar left to a worker of which nothing has been heard since.
#[derive(Clone, Copy, Debug)]
pub struct Orphan {
    /// Number of the seat.
    pub seat: u8,
    /// Generation that it was granted with.
    pub generation: u32,
    /// Pid that it had, for messages; 0 across pid namespaces.
    pub pid: u32,
    /// Clock ticks since boot; 0 if unknown.
    start_time: u64,
}

/// What is known of an orphan's process.
#[derive(Debug)]
pub enum Whereabouts {
    /// It runs. The pidfd is readable once it has ended.
    Runs(OwnedFd),
    /// It has ended: [`super::Owner::seat_proved_dead`].
    Gone,
    /// It can never be found from here: it is of another pid namespace, or its start time was not known. It comes back
    /// or stays lost.
    Hidden,
}

impl Orphan {
    pub(super) const fn new(seat: u8, record: &SeatRecord) -> Self {
        Self { seat, generation: record.generation, pid: record.pid, start_time: record.start_time }
    }

    /// Looks for its process.
    ///
    /// # Errors
    /// The system could not tell, as when descriptors have run out. That proves nothing: look again later.
    pub fn look(&self) -> io::Result<Whereabouts> {
        let Some(pid) = Pid::from_raw(self.pid.cast_signed()).filter(|_| self.start_time != 0) else {
            return Ok(Whereabouts::Hidden);
        };
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty());
        if pidfd.as_ref().is_err_and(|errno| *errno == Errno::SRCH) {
            return Ok(Whereabouts::Gone);
        }
        // Looked at after the pidfd was opened: from then on it can't be another process.
        if sys::process_start(self.pid)? == Some(self.start_time) {
            Ok(Whereabouts::Runs(pidfd?))
        } else {
            Ok(Whereabouts::Gone)
        }
    }
}

/// Whether the process of a seat may still run. Only "no" is certain.
pub(super) fn may_run(record: &SeatRecord) -> bool {
    record.pid == 0
        || record.start_time == 0
        || sys::process_start(record.pid).map_or(true, |start| start == Some(record.start_time))
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;
    use crate::testing::process::Parts;

    fn orphan(pid: u32, start_time: u64) -> (Orphan, SeatRecord) {
        let record = SeatRecord { pid, start_time, ..SeatRecord::EMPTY };
        (Orphan::new(0, &record), record)
    }

    #[test]
    fn a_process_runs_is_gone_or_is_hidden() {
        let ours = std::process::id();
        let start = sys::process_start(ours).unwrap().unwrap();
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let theirs = sys::process_start(child.id()).unwrap().unwrap();
        for (pid, start_time, gone) in [
            (ours, start, false),
            (ours, start + 1, true),
            (child.id(), theirs, false),
            (0, 0, false),
            (ours, 0, false),
        ] {
            let (orphan, record) = orphan(pid, start_time);
            assert_eq!(may_run(&record), !gone, "{pid} {start_time}");
            match orphan.look().unwrap() {
                Whereabouts::Runs(_) => assert!(!gone && start_time != 0),
                Whereabouts::Gone => assert!(gone),
                Whereabouts::Hidden => assert_eq!(start_time, 0),
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let (orphan, record) = orphan(child.id(), theirs);
        assert!(!may_run(&record) && matches!(orphan.look().unwrap(), Whereabouts::Gone));
    }

    #[test]
    fn a_system_that_is_short_of_descriptors_proves_nothing() {
        let Some(parts) = Parts::of(|_, _| look_without_descriptors()) else { return };
        let mut child = parts.start("short of descriptors", "there is no region".as_ref());
        assert!(child.wait().unwrap().success());
    }

    fn look_without_descriptors() {
        let pid = rustix::process::getppid().unwrap().as_raw_nonzero().get().cast_unsigned();
        let (orphan, record) = orphan(pid, sys::process_start(pid).unwrap().unwrap());
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).unwrap();
        let (looked, runs, ending) = (orphan.look(), may_run(&record), sys::is_ending(pid));
        setrlimit(Resource::Nofile, limit).unwrap();
        assert!(looked.is_err() && runs && ending.is_none(), "{looked:?} {runs} {ending:?}");
        assert!(matches!(orphan.look().unwrap(), Whereabouts::Runs(_)));
    }
}
