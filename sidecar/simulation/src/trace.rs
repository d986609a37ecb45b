//! What a person reads of a schedule: the events of the world, and in between the sidecar's own log.

use core::cell::RefCell;
use std::io;
use std::sync::Once;

use tracing_subscriber::fmt::MakeWriter;

thread_local! {
    static LOG: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Panics are part of the game: they are kept for the verdict, and not printed.
pub(crate) fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if sidecar_shm::simulation::is_active() {
                let place = info.location().map(ToString::to_string).unwrap_or_default();
                PANIC.with_borrow_mut(|last| *last = place);
            } else {
                before(info);
            }
        }));
    });
}

/// Where the last panic of this thread was.
pub(crate) fn last_panic() -> String {
    PANIC.with_borrow(Clone::clone)
}

/// Lines of the sidecar's log since the last call.
pub(crate) fn logged() -> Vec<String> {
    LOG.with_borrow_mut(core::mem::take)
}

/// Runs with the sidecar's log kept for [`logged`].
pub(crate) fn with_log<T>(run: impl FnOnce() -> T) -> T {
    let subscriber = tracing_subscriber::fmt()
        .with_writer(Lines)
        .without_time()
        .with_ansi(false)
        .with_target(false)
        .with_max_level(tracing::Level::DEBUG)
        .finish();
    tracing::subscriber::with_default(subscriber, run)
}

struct Lines;

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let time = crate::world::shown(sidecar_shm::clock::now().as_nanos());
        LOG.with_borrow_mut(|log| {
            log.extend(text.lines().map(|line| format!("{time}    | {}", line.trim())))
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}
