//! Which driver runs here, and why.

use core::time::Duration;
use std::io;

use super::{Doorbells, Driver, Epoll, RingMode, Uring, socket};
use crate::explain::Code;
use crate::report::Failure;

/// `--io`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Preference {
    /// io_uring where it works, else epoll.
    #[default]
    Auto,
    /// io_uring or nothing.
    Uring,
    /// epoll; no ring is made anywhere in the process.
    Epoll,
}

/// The driver taken, and the reason in words for the log.
pub struct Choice {
    /// Ready to connect.
    pub driver: Box<dyn Driver>,
    /// One clause: why this one.
    pub why: String,
}

impl core::fmt::Debug for Choice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Choice").field("driver", &self.driver.name()).field("why", &self.why).finish()
    }
}

/// Makes the driver that `preference` allows.
///
/// # Errors
/// The driver asked for does not run here.
pub fn choose(preference: Preference, doorbells: Doorbells<'_>, ring: RingMode) -> Result<Choice, Failure> {
    match preference {
        Preference::Epoll => epoll(doorbells, "asked for".to_owned()),
        Preference::Uring => match Uring::new(doorbells, ring) {
            Ok(driver) => Ok(Choice { driver: Box::new(driver), why: "asked for".to_owned() }),
            Err(error) => Err(Failure::new(Code::Io, "--io uring: io_uring cannot be used here")
                .because(explain(&error))
                .hint("use --io auto or --io epoll, or allow io_uring in the container's seccomp profile")),
        },
        Preference::Auto => match Uring::new(doorbells, ring) {
            Ok(driver) => Ok(Choice { driver: Box::new(driver), why: "the probe passed".to_owned() }),
            Err(error) => epoll(doorbells, format!("io_uring cannot be used here: {}", explain(&error))),
        },
    }
}

/// Refuses `--socket-busy-poll` where the system would: at the start, not at each dial.
///
/// # Errors
/// It would.
pub fn check_busy_poll(time: Option<Duration>) -> Result<(), Failure> {
    let Some(time) = time else { return Ok(()) };
    socket::try_busy_poll(time).map_err(|error| {
        Failure::new(
            Code::Settings,
            format!("--socket-busy-poll {}: the kernel refuses it", time.as_micros()),
        )
        .because(error)
        .hint("give the process CAP_NET_ADMIN, or leave it out: net.core.busy_read sets it for all sockets")
    })
}

fn epoll(doorbells: Doorbells<'_>, why: String) -> Result<Choice, Failure> {
    let driver = Epoll::new(doorbells).map_err(|error| {
        Failure::new(Code::Io, "no epoll instance").because(error).hint("raise the open files limit")
    })?;
    Ok(Choice { driver: Box::new(driver), why })
}

/// The usual causes have the same error number as other things; say what it means for io_uring.
fn explain(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the kernel refused it (kernel.io_uring_disabled, or a container's seccomp profile)".to_owned()
        }
        io::ErrorKind::OutOfMemory => "the locked-memory limit is too small (ulimit -l)".to_owned(),
        _ => error.to_string(),
    }
}
