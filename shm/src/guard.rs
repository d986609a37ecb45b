//! What happens when the file under a mapping is cut short: a load of a page that is gone is a SIGBUS, which ends the
//! process without a word. Anybody who may write the file can do that, also the worker, through the descriptor it got.
//!
//! A process that called [`install`] lives on: the handler puts zeroed private pages in place of the whole mapping and
//! marks it as lost, and whoever owns the mapping asks (`Watched::is_lost`) and ends with a clear error. Nothing in
//! such a mapping can be believed any more, but nothing that is read from it was ever believed here.
//!
//! Libraries don't touch their process's signals: only the `sidecar` command installs this. A SIGBUS at any other
//! address goes to the handler that was there before. System calls that are given such pages fail with `EFAULT` instead;
//! that is the caller's to notice ([`crate::owner::Owner::damage`]).

use std::io;
use std::sync::OnceLock;

use crate::sync::Ordering;
use crate::sync::plain::{AtomicBool, AtomicUsize};

/// Mappings that are watched at once. A process has one region, and for moments those that it looks at.
const WATCHED: usize = 64;

/// One watched mapping. `length` is 0 while the entry is free or being changed.
struct Entry {
    taken: AtomicBool,
    start: AtomicUsize,
    length: AtomicUsize,
    lost: AtomicBool,
}

static ENTRIES: [Entry; WATCHED] = [const {
    Entry {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        length: AtomicUsize::new(0),
        lost: AtomicBool::new(false),
    }
}; WATCHED];

/// Whom a SIGBUS of others goes to. Set before the handler is installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping in the table, for as long as this lives. Drop it before the mapping.
#[derive(Debug)]
pub(crate) struct Watched {
    /// `None`: the table is full, and the mapping unguarded.
    entry: Option<usize>,
}

impl Watched {
    /// Enters the `length` bytes of a mapping at `start`.
    pub(crate) fn new(start: *const u8, length: usize) -> Self {
        let free = |entry: &Entry| !entry.taken.swap(true, Ordering::Acquire);
        let entry = ENTRIES.iter().position(free);
        if let Some(index) = entry {
            let entry = &ENTRIES[index];
            entry.lost.store(false, Ordering::Relaxed);
            entry.start.store(start.addr(), Ordering::Relaxed);
            // Partner: the handler's load. From here on the entry counts.
            entry.length.store(length, Ordering::Release);
        }
        Self { entry }
    }

    /// The mapping's file was cut short, and pages of zeroes are in its place.
    pub(crate) fn is_lost(&self) -> bool {
        self.entry.is_some_and(|entry| ENTRIES[entry].lost.load(Ordering::Relaxed))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.map(|entry| &ENTRIES[entry]) {
            entry.length.store(0, Ordering::Release);
            entry.taken.store(false, Ordering::Release);
        }
    }
}

/// Has every mapping of a region in this process survive that its file is cut short. Once per process; more calls
/// change nothing.
///
/// # Errors
/// The system refuses the handler.
pub fn install() -> io::Result<()> {
    if BEFORE.get().is_some() {
        return Ok(());
    }
    // SAFETY: `sigaction` is a struct of integers, a set of bits and a nullable function pointer: all-zero is a value.
    let mut before: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a null new action only asks; `before` is valid for writing.
    let asked = unsafe { libc::sigaction(libc::SIGBUS, core::ptr::null(), &raw mut before) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = handle;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: `action` is complete, and its handler does only what a handler may: see there.
    let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, core::ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs in the middle of any load or store: atomics and plain system calls only, no lock, no allocation.
extern "C" fn handle(_signal: libc::c_int, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO.
    let info_ref = unsafe { &*info };
    // SAFETY: a SIGBUS carries an address; for one that was sent by a process these are other bytes of the same
    // struct, ruled out by the code below.
    let address = unsafe { info_ref.si_addr() }.addr();
    // BUS_ADRERR: the page has no bytes behind it. Sent signals and hardware errors have other codes.
    let no_page = info_ref.si_code == libc::BUS_ADRERR;
    if no_page && replace(address) {
        return;
    }
    // Back to who was there: the access is tried again and fails again, into their hands.
    if let Some(before) = BEFORE.get() {
        // SAFETY: `before` is what the system itself reported as an action of this signal.
        unsafe { libc::sigaction(libc::SIGBUS, before, core::ptr::null_mut()) };
    }
    // One that was sent is not repeated by itself.
    if info_ref.si_code <= 0 {
        // SAFETY: raises a signal on this thread; it is delivered when the handler returns.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}

/// Puts zeroed pages in place of the mapping that has this address. `false`: none is watched, or it can't be done.
fn replace(address: usize) -> bool {
    for entry in &ENTRIES {
        let length = entry.length.load(Ordering::Acquire);
        let start = entry.start.load(Ordering::Relaxed);
        if !(start..start.saturating_add(length)).contains(&address) {
            continue;
        }
        // SAFETY: errno is a thread's own and always valid; what is interrupted must not see it change.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: as above.
        let kept = unsafe { *errno };
        // SAFETY: the range is a live mapping of a region (`Watched` is dropped before it), in which nobody holds
        // references to plain bytes; words and pointers into it stay valid, and read zero.
        let placed = unsafe {
            libc::mmap(
                core::ptr::without_provenance_mut(start),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        // SAFETY: as above.
        unsafe { *errno = kept };
        if placed == libc::MAP_FAILED {
            return false;
        }
        entry.lost.store(true, Ordering::Relaxed);
        return true;
    }
    false
}

#[cfg(test)]
mod tests {
    use crate::map::Map;
    use crate::sync::Ordering;

    /// One test, since a process has one handler: what it rescues, and what it does not.
    #[test]
    fn a_mapping_outlives_its_file_and_says_so_and_others_are_not_touched() {
        super::install().unwrap();
        super::install().unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let map = Map::writable(&file, 8192).unwrap();
        map.word64(4096).store(7, Ordering::Relaxed);
        let other = crate::testing::blank(4096);
        file.set_len(0).unwrap();
        assert!(!map.is_lost(), "nobody has looked at it yet");
        assert_eq!(map.word64(4096).load(Ordering::Relaxed), 0);
        assert!(map.is_lost() && !other.is_lost());
        map.word64(0).store(9, Ordering::Relaxed);
        assert_eq!(map.word64(0).load(Ordering::Relaxed), 9, "the pages in its place can be written");
        drop(map);
        // The entry is free again and starts anew.
        file.set_len(4096).unwrap();
        let again = Map::readable(&file, 4096).unwrap();
        assert!(!again.is_lost());
        file.set_len(0).unwrap();
        assert_eq!(again.word32(0).load(Ordering::Relaxed), 0);
        assert!(again.is_lost());
    }
}
