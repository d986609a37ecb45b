//! The few system calls that neither rustix nor std wraps as needed: open-file-description locks, the peer of a socket
//! and its pidfd.

use core::time::Duration;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

/// `SO_PEERPIDFD`, since Linux 6.5; libc has no name for it on every target.
const SO_PEERPIDFD: libc::c_int = 77;

/// A lock description over the whole file.
fn whole_file(kind: libc::c_int) -> libc::flock {
    // SAFETY: `flock` is a struct of plain integers, for which all-zero bytes are a value.
    let mut lock: libc::flock = unsafe { core::mem::zeroed() };
    // The lock types are 0, 1 and 2.
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock
}

/// Takes the write lock that belongs to this open file description. `Ok(false)`: somebody else has it.
///
/// It ends with the last descriptor and mapping made from this very `open`, so a lock descriptor must not be handed
/// to another process nor mapped.
pub(crate) fn try_lock(file: &File) -> io::Result<bool> {
    let lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `lock` outlives the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN | libc::EACCES) => Ok(false),
        _ => Err(error),
    }
}

/// Whether another open file description has the lock.
pub(crate) fn is_locked(file: &File) -> io::Result<bool> {
    let mut lock = whole_file(libc::F_WRLCK);
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and `lock` is valid for writing.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
}

/// Who made the other end of a unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Peer {
    /// As seen from our pid namespace; 0 if it can't be seen from here.
    pub(crate) pid: u32,
    pub(crate) uid: u32,
}

impl From<libc::ucred> for Peer {
    fn from(peer: libc::ucred) -> Self {
        // The kernel never says a negative one.
        Self { pid: peer.pid.cast_unsigned(), uid: peer.uid }
    }
}

/// Asks the kernel who is at the other end of a unix socket. rustix has the call as well, with a pid that can't be 0.
pub(crate) fn peer(socket: impl AsFd) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: libc::uid_t::MAX, gid: libc::gid_t::MAX };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` and `length` are valid for writes of the sizes told, and the socket is open while borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    if length as usize != size_of::<libc::ucred>() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(peer.into())
}

/// The pidfd of the process that made the other end of a unix socket.
///
/// # Errors
/// `ENOPROTOOPT` on a kernel before 6.5; `ESRCH`/`ENODATA` if that process has ended and was reaped.
pub(crate) fn peer_pidfd(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut fd: libc::c_int = -1;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `fd` and `length` are valid for writes of the sizes told, and the socket is open while borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut fd).cast(),
            &raw mut length,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us (close-on-exec is always set on it); nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Start time of a running process in clock ticks since boot: with the pid it names a process. `None` also if the system
/// does not tell.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    process_start(pid).ok().flatten()
}

/// Start time of a process in clock ticks since boot, field 22 of `/proc/PID/stat` (proc_pid_stat(5)). `None`: there is
/// no such process, or it has ended and waits for its parent.
///
/// # Errors
/// The system does not tell: no descriptor is left, say, or there is no `/proc`.
pub(crate) fn process_start(pid: u32) -> io::Result<Option<u64>> {
    #[cfg(feature = "simulation")]
    if let Some(simulated) = crate::simulation::start_time(pid) {
        return Ok(simulated);
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // Elsewhere the pid is another process's, or nobody's.
    if !proc_is_ours() {
        return Err(io::Error::other("/proc is not there, or is another pid namespace's"));
    }
    let text = match text {
        Ok(text) => text,
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    start_time_in(&text)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat is not of the form that is known")))
}

/// Whether `/proc` names processes as this one does: a pid namespace can be made without a `/proc` of its own.
fn proc_is_ours() -> bool {
    std::fs::read_link("/proc/self").is_ok_and(|own| own.as_os_str() == &*std::process::id().to_string())
}

/// `Some(None)`: it has ended. `None`: that is no such text.
fn start_time_in(stat: &str) -> Option<Option<u64>> {
    let fields = fields(stat)?;
    let start = fields.get(19)?.parse().ok()?;
    Some((!has_ended(&fields)?).then_some(start))
}

/// The fields of such a text from the third one on, which is the state.
fn fields(stat: &str) -> Option<Vec<&str>> {
    // The command in parentheses may hold anything, also spaces and parentheses.
    let (_, fields) = stat.rsplit_once(')')?;
    Some(fields.split_ascii_whitespace().collect())
}

fn has_ended(fields: &[&str]) -> Option<bool> {
    // A process of which only the first thread has ended looks dead, and its other threads go on; they are counted in
    // field 20 (proc_pid_stat(5)).
    let threads: u32 = fields.get(17)?.parse().ok()?;
    Some(is_dead(fields)? && threads <= 1)
}

fn is_dead(fields: &[&str]) -> Option<bool> {
    Some(matches!(*fields.first()?, "Z" | "X"))
}

/// Whether a process has ended or is about to: a killed one lets go of its locks and sockets only after its memory, and
/// takes long for that if it has much. `None`: it can't be seen. It has ended, is of another pid namespace, or the system
/// does not tell.
pub fn is_ending(pid: u32) -> Option<bool> {
    #[cfg(feature = "simulation")]
    if let Some(simulated) = crate::simulation::start_time(pid) {
        return Some(simulated.is_none());
    }
    let [stat, status] =
        ["stat", "status"].map(|name| std::fs::read_to_string(format!("/proc/{pid}/{name}")));
    let (stat, status) = (stat.ok()?, status.ok()?);
    proc_is_ours().then(|| is_ending_in(&stat, &status))?
}

fn is_ending_in(stat: &str, status: &str) -> Option<bool> {
    /// linux/sched.h.
    const PF_EXITING: u32 = 4;
    /// In a set of signals.
    const SIGKILL: u64 = 1 << 8;
    // The flag is set late: what io_uring has under way is cancelled first. And the first thread may look dead while
    // others are on their way.
    if pending(status)? & SIGKILL != 0 {
        return Some(true);
    }
    let fields = fields(stat)?;
    if is_dead(&fields)? {
        return has_ended(&fields);
    }
    // Field 9.
    let flags: u32 = fields.get(6)?.parse().ok()?;
    Some(flags & PF_EXITING != 0)
}

/// The signals that a process, or its first thread, was sent and has not dealt with (proc_pid_status(5)). A SIGKILL stays
/// in the process's set for as long as the process can be seen.
fn pending(status: &str) -> Option<u64> {
    let set = |name| {
        let digits = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(digits.trim(), 16).ok()
    };
    Some(set("SigPnd:")? | set("ShdPnd:")?)
}

/// The id of this boot: CLOCK_BOOTTIME stamps of another boot mean nothing.
pub(crate) fn boot_id() -> [u8; 16] {
    let mut id = [0; 16];
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let mut digits = text.chars().filter_map(|c| c.to_digit(16));
    for byte in &mut id {
        let (Some(high), Some(low)) = (digits.next(), digits.next()) else { break };
        // Two hexadecimal digits are below 256.
        *byte = (high * 16 + low) as u8;
    }
    id
}

/// Free bytes of the file system that holds `directory`, for messages.
pub(crate) fn free_bytes(directory: &Path) -> u64 {
    rustix::fs::statvfs(directory).map_or(0, |info| info.f_bavail.saturating_mul(info.f_frsize))
}

/// Eight random bytes.
pub(crate) fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    // Requests of up to 256 bytes are never cut short (getrandom(2)).
    debug_assert_eq!(count, 8);
    Ok(u64::from_ne_bytes(bytes))
}

/// Waits until a descriptor can be read or has hung up. `Ok(false)`: not within `timeout`, or a signal came.
pub(crate) fn poll_in(fd: impl AsFd, timeout: Duration) -> io::Result<bool> {
    let fd = fd.as_fd();
    let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::IN)];
    // A timeout that does not fit is for ever.
    let timeout = Timespec::try_from(timeout).ok();
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether a descriptor is a pidfd: only those have a `Pid:` line in their fdinfo (pidfd_open(2)).
pub(crate) fn is_pidfd(fd: impl AsFd) -> bool {
    let path = format!("/proc/self/fdinfo/{}", fd.as_fd().as_raw_fd());
    std::fs::read_to_string(path).is_ok_and(|text| text.lines().any(|line| line.starts_with("Pid:")))
}

#[cfg(test)]
mod tests {
    use super::{is_ending_in, start_time_in};

    /// Found by reading: a worker whose first thread had left was taken for dead, and its slots for free. Found by killing
    /// sidecars on a busy machine: one was taken for alive after its SIGKILL.
    #[test]
    fn a_process_has_ended_when_its_last_thread_has() {
        let stat = |state: &str, threads: u32| {
            format!(
                "77 (a) b) c) {state} 1 77 77 0 -1 0 1 0 0 0 1 2 0 0 20 0 {threads} 0 4242 9 9 9 9 9 9 9 9 0"
            )
        };
        let pending = |thread: u64, process: u64| {
            format!("Name:\ta\nThreads:\t3\nSigPnd:\t{thread:016x}\nShdPnd:\t{process:016x}\nSigBlk:\t0\n")
        };
        let exiting = stat("D", 3).replacen("-1 0", "-1 4", 1);
        assert_eq!(is_ending_in(&exiting, &pending(0, 0)), Some(true), "it gives back its memory");
        assert_eq!(
            is_ending_in(&stat("R", 3), &pending(256, 0)),
            Some(true),
            "no processor was free for its death yet"
        );
        assert_eq!(is_ending_in(&stat("D", 3), &pending(0, 256)), Some(true), "its ring is being emptied");
        assert_eq!(is_ending_in(&stat("Z", 3), &pending(0, 256)), Some(true), "other threads die, too");
        assert_eq!(is_ending_in(&stat("R", 3), &pending(2, 2)), Some(false), "it may live on");
        for (state, threads, expected) in [
            ("S", 1, Some(4242)),
            ("R", 9, Some(4242)),
            ("Z", 1, None),
            ("Z", 0, None),
            ("X", 0, None),
            ("Z", 2, Some(4242)),
        ] {
            assert_eq!(start_time_in(&stat(state, threads)), Some(expected), "{state} {threads}");
            let ending = is_ending_in(&stat(state, threads), &pending(0, 0));
            assert_eq!(ending, Some(expected.is_none()), "{state} {threads}");
        }
        assert_eq!(start_time_in("77 (a) S 1"), None);
        assert_eq!(is_ending_in(&stat("R", 1), "Name:\ta\n"), None);
        assert_eq!(
            Some(super::start_time(std::process::id())),
            start_time_in(&std::fs::read_to_string("/proc/self/stat").unwrap())
        );
    }
}
