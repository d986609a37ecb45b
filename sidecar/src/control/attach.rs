//! Workers that attach: the handshake on `<region>.sock`, and the watch over each one's connection and process.

use std::os::fd::AsFd;
use std::rc::Rc;

use sidecar_shm::attach::{Candidate, Connection, HANDSHAKE, HelloError, Listener, Pending};
use sidecar_shm::clock;
use sidecar_shm::owner::{Orphan, SeatGrant, SeatRefused};
use tokio::sync::oneshot;

use super::Shared;
use super::readable::Readable;
use crate::explain::Code;
use crate::frame_loop::Command;

/// Lets workers in until the control thread ends.
pub(super) async fn serve(shared: Rc<Shared>, listener: Listener) {
    let readable = match Readable::new(listener.as_fd()) {
        Ok(readable) => readable,
        Err(error) => {
            return tracing::error!(%error, "the attach socket cannot be watched: no worker can attach");
        }
    };
    loop {
        match listener.accept() {
            Ok(Some(pending)) => {
                tokio::task::spawn_local(welcome(Rc::clone(&shared), pending));
            }
            Ok(None) => {
                if readable.wait().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "a worker could not be let in");
                tokio::time::sleep(core::time::Duration::from_millis(10)).await;
            }
        }
    }
}

/// Watches the process of a seat that a dead sidecar left, for as long as it has not attached again.
pub(super) async fn watch_orphan(shared: Rc<Shared>, orphan: Orphan) {
    let Orphan { seat, generation, pid, pidfd } = orphan;
    if pidfd.is_none() && pid == 0 {
        // Of another pid namespace: it can't be found from here and so not be proved dead. It comes back or stays lost.
        return;
    }
    if let Some(process) = pidfd.and_then(|pidfd| Readable::new(pidfd.as_fd()).ok()) {
        let _attached = Attached::new(&shared);
        ended(&process).await;
    }
    // Without a pidfd there is no process of that pid any more.
    shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
    shared.frame_loop.send(Command::ProvedDead { seat, generation });
}

async fn welcome(shared: Rc<Shared>, mut pending: Pending) {
    let candidate = match tokio::time::timeout(HANDSHAKE, hello(&mut pending)).await {
        Ok(Ok(candidate)) => candidate,
        Ok(Err(error)) => return tracing::warn!(%error, "a connection to the attach socket was refused"),
        Err(_) => return tracing::warn!("a process connected to the attach socket and did not say hello"),
    };
    let (reply, answer) = oneshot::channel();
    shared.frame_loop.send(Command::Join { candidate, reply });
    match answer.await {
        Ok(Ok(grant)) => seated(shared, pending, grant).await,
        Ok(Err(refused)) => refuse(&shared, pending, &refused),
        // The frame loop has ended, and the process with it.
        Err(_) => {}
    }
}

/// Waits for the first thing that a process says.
async fn hello(pending: &mut Pending) -> Result<Candidate, HelloError> {
    let readable = Readable::new(pending.as_fd()).map_err(HelloError::Silent)?;
    loop {
        if let Some(candidate) = pending.poll_hello()? {
            return Ok(candidate);
        }
        readable.wait().await.map_err(HelloError::Silent)?;
    }
}

/// A worker asks again every few milliseconds for as long as it may help: the same reason is a line once a minute.
const SAME_REFUSAL: core::time::Duration = core::time::Duration::from_secs(60);

fn refuse(shared: &Shared, pending: Pending, refused: &SeatRefused) {
    let (text, now) = (refused.to_string(), clock::now());
    let mut told = shared.refused.borrow_mut();
    if told.as_ref().is_none_or(|(before, at)| *before != text || now.since(*at) > SAME_REFUSAL) {
        tracing::warn!(code = Code::WorkerRefused.name(), refused = %text, "a worker was refused");
        *told = Some((text, now));
    }
    pending.refuse(refused);
}

async fn seated(shared: Rc<Shared>, pending: Pending, grant: SeatGrant) {
    let (seat, generation) = (grant.seat, grant.generation);
    let process = pending.pidfd().and_then(|pidfd| Readable::new(pidfd).ok());
    match pending.grant(&grant) {
        Ok(connection) => {
            let watcher = tokio::task::spawn_local(watch(Rc::clone(&shared), connection)).abort_handle();
            // Its predecessor in this seat has given it up in order, and its process may live on: what becomes of that
            // is no news any more, and a process that attaches again and again must not cost a descriptor each time.
            let before = shared.watchers.borrow_mut()[usize::from(seat)].replace(watcher);
            if let Some(before) = before {
                before.abort();
            }
        }
        Err(error) => {
            tracing::warn!(%error, "the worker went away during the handshake");
            shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
            if let Some(process) = process {
                ended(&process).await;
                shared.frame_loop.send(Command::ProvedDead { seat, generation });
            }
        }
    }
}

/// The end of the connection is the hint, the end of the process the proof.
async fn watch(shared: Rc<Shared>, connection: Connection) {
    let (seat, generation) = (connection.seat(), connection.generation());
    let process = Readable::new(connection.pidfd());
    let socket = Readable::new(connection.socket());
    let (Ok(process), Ok(socket)) = (process, socket) else {
        tracing::error!("no descriptors left to watch the worker with");
        return shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
    };
    let _attached = Attached::new(&shared);
    tokio::select! {
        () = hung_up(&connection, &socket) => {}
        () = shared.drop_worker.notified() => {}
    }
    drop((connection, socket));
    shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
    ended(&process).await;
    tracing::info!(seat, "worker gone");
    shared.frame_loop.send(Command::ProvedDead { seat, generation });
}

/// A worker that is attached, or was and may still run; counted for as long as this lives.
struct Attached(Rc<Shared>);

impl Attached {
    fn new(shared: &Rc<Shared>) -> Self {
        shared.attached.send_modify(|attached| *attached += 1);
        Self(Rc::clone(shared))
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.0.attached.send_modify(|attached| *attached -= 1);
    }
}

async fn hung_up(connection: &Connection, socket: &Readable) {
    while !connection.has_ended() {
        if socket.wait().await.is_err() {
            return;
        }
    }
}

/// Waits for the end of the process behind a pidfd.
async fn ended(process: &Readable) {
    // A failure means that the runtime is going down.
    let _ = process.wait().await;
}
