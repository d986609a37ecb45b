//! Whether the machine stood still: a round with a gateway's timers says nothing then.

use core::time::Duration;
use std::process::Command;
use std::sync::{Mutex, Once, PoisonError};
use std::thread;

use sidecar_core::time::Instant;
use sidecar_shm::clock;

const PAUSE: Duration = Duration::from_millis(100);
/// What is worth being remembered.
const STALL: Duration = Duration::from_millis(500);

struct Watch {
    /// When the start of a process was tried last.
    tried: Option<Instant>,
    /// When a stall was over, and how long it was.
    stalls: Vec<(Instant, Duration)>,
}

static WATCH: Mutex<Watch> = Mutex::new(Watch { tried: None, stalls: Vec::new() });

/// From now on, for as long as the test program runs, it is seen how long a process takes to start and to end.
pub(crate) fn watch() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        thread::spawn(|| {
            loop {
                thread::sleep(PAUSE);
                let began = clock::now();
                lock().tried = Some(began);
                let ended = Command::new("true").status();
                assert!(ended.is_ok_and(|status| status.success()), "`true` cannot be run");
                let mut watch = lock();
                watch.tried = None;
                let now = clock::now();
                if now.since(began) > STALL {
                    watch.stalls.push((now, now.since(began)));
                }
            }
        });
    });
}

/// The longest stall that has ended since then, or goes on.
pub(crate) fn longest_since(then: Instant) -> Duration {
    let watch = lock();
    let over = watch.stalls.iter().filter(|(end, _)| *end >= then).map(|(_, length)| *length);
    over.chain(watch.tried.map(|tried| clock::now().since(tried))).max().unwrap_or_default()
}

fn lock() -> std::sync::MutexGuard<'static, Watch> {
    WATCH.lock().unwrap_or_else(PoisonError::into_inner)
}
