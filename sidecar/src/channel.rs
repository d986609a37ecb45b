//! The way from the control thread to the frame loop: a queue without bounds, and the doorbell after each command.
//!
//! The order is what matters: the command is in the queue before the bell rings, so that whoever is woken finds it, and
//! whoever looks once more before it sleeps does too. In a model the queue is one that loom looks at.

#[cfg(sidecar_loom)]
mod modelled;

#[cfg(not(sidecar_loom))]
pub use crossbeam_channel::{Receiver, Sender, TryRecvError, unbounded};
#[cfg(sidecar_loom)]
pub use modelled::{Receiver, Sender, TryRecvError, unbounded};

use sidecar_shm::owner::DoorbellHandle;

use crate::frame_loop::Command;

/// The way to the frame loop: a command, then the doorbell.
#[derive(Debug, Clone)]
pub struct ToFrameLoop {
    commands: Sender<Command>,
    doorbell: DoorbellHandle,
}

impl ToFrameLoop {
    /// The doorbell is the one that the frame loop's driver listens to.
    pub const fn new(commands: Sender<Command>, doorbell: DoorbellHandle) -> Self {
        Self { commands, doorbell }
    }

    /// Tells the frame loop something. One that is gone needs no more commands.
    pub fn send(&self, command: Command) {
        if self.commands.send(command).is_ok() {
            self.doorbell.ring();
        }
    }
}
