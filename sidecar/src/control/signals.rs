//! SIGINT and SIGTERM end the run cleanly, a second one at once; SIGUSR2 leaves without closing the session. Where the
//! run is over already, and only the worker is waited for, the first one ends the worker and the second one kills it.

use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use sidecar_core::agent::Shutdown;
use sidecar_shm::stats::{Gauge, Stats};
use tokio::signal::unix::{SignalKind, signal};

use super::{Shared, WindDown};
use crate::exit::Exit;
use crate::frame_loop::Command;

/// Which signal asked for the end, for the exit code.
#[derive(Debug, Clone, Default)]
pub struct Signalled(Arc<Mutex<Option<Exit>>>);

impl Signalled {
    /// The exit code that a signal asked for.
    pub fn exit(&self) -> Option<Exit> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a signal; `false` when there was one before.
    fn note(&self, exit: Exit) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(exit).is_none()
    }
}

/// Whether a session is open, as an outsider reads it.
fn session_open(shared: &Shared) -> &'static str {
    match Stats::open_read_only(&shared.shm).map(|stats| stats.gauge(Gauge::SessionOpen)) {
        Ok(0) => "none",
        Ok(_) => "open",
        Err(_) => "unknown",
    }
}

/// Signals that are caught from now on: what each means, and how the run ends on it.
pub(super) struct Caught(Vec<(tokio::signal::unix::Signal, Exit, Shutdown)>);

/// Catches them.
///
/// # Errors
/// What the system said: a run that cannot be ended in order is not begun.
pub(super) fn catch() -> io::Result<Caught> {
    let kinds = [
        (SignalKind::interrupt(), Exit::Interrupted, Shutdown::Close),
        (SignalKind::terminate(), Exit::Terminated, Shutdown::Close),
        (SignalKind::user_defined2(), Exit::Done, Shutdown::Leave),
    ];
    kinds
        .into_iter()
        .map(|(kind, exit, how)| Ok((signal(kind)?, exit, how)))
        .collect::<io::Result<_>>()
        .map(Caught)
}

/// Does what they ask for.
pub(super) fn obey(shared: &Rc<Shared>, caught: Caught, signalled: &Signalled) {
    for (stream, exit, how) in caught.0 {
        tokio::task::spawn_local(one(Rc::clone(shared), stream, exit, how, signalled.clone()));
    }
}

async fn one(
    shared: Rc<Shared>,
    mut stream: tokio::signal::unix::Signal,
    exit: Exit,
    how: Shutdown,
    signalled: Signalled,
) {
    while stream.recv().await.is_some() {
        let (first, ending) = (signalled.note(exit), *shared.ending.borrow());
        match (ending, first) {
            (None, true) => {
                tracing::info!(?how, "asked to end; a second signal ends at once");
                shared.frame_loop.send(Command::Shutdown(how));
                shared.hurry.notify_one();
            }
            (None, false) => {
                let session = session_open(&shared);
                let left = if session == "none" {
                    ""
                } else {
                    ". An open session is not closed: a sidecar that is started with the same flags within 30 s takes \
                     it over"
                };
                tracing::warn!(session, "second signal: ending at once{left}");
                super::group::kill_current();
                crate::log::finish();
                #[expect(clippy::exit, reason = "the user asked twice")]
                std::process::exit(exit.code().into());
            }
            // Nothing is waited for.
            (Some(WindDown::LeaveWorker), _) => {}
            (Some(WindDown::AwaitWorker | WindDown::EndWorker), true) => {
                tracing::info!("the run is over: the worker is not waited for; a second signal kills it");
                shared.hurry.notify_one();
            }
            (Some(WindDown::AwaitWorker | WindDown::EndWorker), false) => {
                tracing::warn!("second signal: the run is over, and the worker is killed");
                super::group::kill_all(&shared.mark);
            }
        }
    }
}
