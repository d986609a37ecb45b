//! Workers that attach: the handshake on `<region>.sock`, and the watch over each one's connection and process.

use core::time::Duration;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use sidecar_shm::attach::{Candidate, Connection, HANDSHAKE, HelloError, Listener, Pending};
use sidecar_shm::clock;
use sidecar_shm::owner::{Orphan, SeatGrant, SeatRefused, Whereabouts};
use tokio::sync::watch::Sender;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::readable::Readable;
use super::{Shared, WindDown};
use crate::explain::Code;
use crate::frame_loop::Command;

/// So many processes may be about to say hello; more wait for one of them to do so, or to have taken too long.
const HANDSHAKES: usize = 8;
/// How long until another look at a process that the system would not tell about.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Lets workers in until the control thread ends; `readable` watches the listener.
pub(super) async fn serve(shared: Rc<Shared>, listener: Listener, readable: Readable) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
    let mut told = false;
    loop {
        // Never closed.
        let Ok(room) = Arc::clone(&handshakes).acquire_owned().await else { return };
        match listener.accept() {
            Ok(Some(pending)) => {
                told = false;
                tokio::task::spawn_local(welcome(Rc::clone(&shared), pending, room));
            }
            Ok(None) => {
                if readable.wait().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if !core::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "no worker can be let in now; raise the limit on open files (ulimit -n)");
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

/// Watches the process of a seat that a dead sidecar left, for as long as it is not proved dead.
pub(super) async fn watch_orphan(shared: Rc<Shared>, orphan: Orphan) {
    let Orphan { seat, generation, pid, .. } = orphan;
    let mut told = false;
    loop {
        match orphan.look() {
            // It comes back or stays lost.
            Ok(Whereabouts::Hidden) => return,
            Ok(Whereabouts::Gone) => break,
            Ok(Whereabouts::Runs(pidfd)) => {
                if let Ok(process) = Readable::new(pidfd.as_fd()) {
                    ended(&process).await;
                    break;
                }
            }
            Err(error) if !told => {
                told = true;
                tracing::warn!(pid, %error, "cannot tell whether the previous sidecar's worker runs; looking again");
            }
            Err(_) => {}
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    shared.orphans.send_modify(|orphans| *orphans -= 1);
    shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
    shared.frame_loop.send(Command::ProvedDead { seat, generation });
}

/// What a worker is watched with. It is there before the worker gets a seat: one that could not be watched would keep
/// its seat for ever.
struct Eyes {
    process: Readable,
    socket: Readable,
}

async fn welcome(shared: Rc<Shared>, mut pending: Pending, room: OwnedSemaphorePermit) {
    let (candidate, eyes) = match tokio::time::timeout(HANDSHAKE, hello(&mut pending)).await {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => return tracing::warn!(%error, "a connection to the attach socket was refused"),
        Err(_) => return tracing::warn!("a process connected to the attach socket and did not say hello"),
    };
    drop(room);
    let (reply, answer) = oneshot::channel();
    shared.frame_loop.send(Command::Join { candidate, reply });
    match answer.await {
        Ok(Ok(grant)) => seated(&shared, pending, grant, eyes),
        Ok(Err(refused)) => refuse(&shared, pending, &refused),
        // The frame loop has ended, and the process with it.
        Err(_) => {}
    }
}

/// Waits for the first thing that a process says.
async fn hello(pending: &mut Pending) -> Result<(Candidate, Eyes), HelloError> {
    let socket = Readable::new(pending.as_fd()).map_err(HelloError::Silent)?;
    loop {
        if let Some(candidate) = pending.poll_hello()? {
            let no_proof = |source| HelloError::NoProof { pid: candidate.pid, source };
            let pidfd = pending.pidfd().ok_or_else(|| no_proof(io::ErrorKind::NotFound.into()))?;
            let process = Readable::new(pidfd).map_err(no_proof)?;
            return Ok((candidate, Eyes { process, socket }));
        }
        socket.wait().await.map_err(HelloError::Silent)?;
    }
}

/// A worker asks again every few milliseconds for as long as it may help: the same reason is a line once a minute.
const SAME_REFUSAL: Duration = Duration::from_secs(60);

fn refuse(shared: &Shared, pending: Pending, refused: &SeatRefused) {
    let (text, now) = (refused.to_string(), clock::now());
    let mut told = shared.refused.borrow_mut();
    if told.as_ref().is_none_or(|(before, at)| *before != text || now.since(*at) > SAME_REFUSAL) {
        tracing::warn!(code = Code::WorkerRefused.name(), refused = %text, "a worker was refused");
        *told = Some((text, now));
    }
    pending.refuse(refused);
}

fn seated(shared: &Rc<Shared>, pending: Pending, grant: SeatGrant, eyes: Eyes) {
    shared.met.set(true);
    let seat = usize::from(grant.seat);
    let watcher = tokio::task::spawn_local(watch(Rc::clone(shared), pending, grant, eyes)).abort_handle();
    // Its predecessor in this seat has given it up in order, and its process may live on: what becomes of that is no
    // news any more, and a process that attaches again and again must not cost a descriptor each time.
    let before = shared.watchers.borrow_mut()[seat].replace(watcher);
    if let Some(before) = before {
        before.abort();
    }
}

/// The end of the connection is the hint, the end of the process the proof.
async fn watch(shared: Rc<Shared>, pending: Pending, grant: SeatGrant, eyes: Eyes) {
    let (seat, generation) = (grant.seat, grant.generation);
    let _alive = Counted::new(&shared, |shared| &shared.alive);
    match pending.grant(&grant) {
        Ok(connection) => {
            // What was passed on is the worker's.
            drop(grant);
            let attachment = Attachment::new(&shared, seat, generation);
            if *shared.ending.borrow() == Some(WindDown::AwaitWorker) {
                // The others were told before this one had its seat.
                attachment.end.notify_one();
            }
            tokio::select! {
                () = hung_up(&connection, &eyes.socket) => {}
                () = attachment.end.notified() => {}
            }
        }
        Err(error) => tracing::warn!(%error, "the worker went away during the handshake"),
    }
    let Eyes { process, socket } = eyes;
    // With the last descriptor of it the connection ends for the worker, too.
    drop(socket);
    shared.frame_loop.send(Command::ConnectionEnded { seat, generation });
    ended(&process).await;
    tracing::info!(seat, "worker gone");
    shared.frame_loop.send(Command::ProvedDead { seat, generation });
}

/// Counted in one of the numbers that others wait for, for as long as this lives.
struct Counted {
    shared: Rc<Shared>,
    number: fn(&Shared) -> &Sender<u32>,
}

impl Counted {
    fn new(shared: &Rc<Shared>, number: fn(&Shared) -> &Sender<u32>) -> Self {
        number(shared).send_modify(|number| *number += 1);
        Self { shared: Rc::clone(shared), number }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.number)(&self.shared).send_modify(|number| *number -= 1);
    }
}

/// A worker's connection; while this lives, it can be told to end.
struct Attachment {
    counted: Counted,
    end: Rc<Notify>,
}

impl Attachment {
    fn new(shared: &Rc<Shared>, seat: u8, generation: u32) -> Self {
        let end = Rc::new(Notify::new());
        shared.attachments.borrow_mut().push((seat, generation, Rc::clone(&end)));
        Self { counted: Counted::new(shared, |shared| &shared.attached), end }
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.counted.shared.attachments.borrow_mut().retain(|(.., end)| !Rc::ptr_eq(end, &self.end));
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
