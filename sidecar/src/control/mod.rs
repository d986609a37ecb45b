//! The control thread: everything that may be slow, so that nothing of it can delay a frame.
//!
//! One current-thread runtime, hosted by tokio-uring where io_uring may be used, by tokio alone elsewhere. It talks
//! to the frame loop through a channel and the doorbell, and is told what to do through another channel.

use core::net::SocketAddr;
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

use crossbeam_channel::Sender;
use sidecar_core::agent::DialFailure;
use sidecar_shm::attach::Listener;
use sidecar_shm::owner::{DoorbellHandle, Orphan};
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::config::{Target, Token, TokenSources};
use crate::frame_loop::{Command, Request};

mod attach;
mod child;
mod metrics;
mod readable;
mod signals;

pub use signals::Signalled;

/// What the control thread works with.
#[derive(Debug)]
pub struct Setup {
    /// Where the gateway is.
    pub target: Target,
    /// Where tokens come from.
    pub tokens: TokenSources,
    /// The token read at the start, used until it is refused.
    pub token: Token,
    /// The worker's command line; empty when the user starts the worker.
    pub worker: Vec<OsString>,
    /// The region's path, handed to the worker in `SIDECAR_SHM`.
    pub shm: PathBuf,
    /// Workers that a dead predecessor left.
    pub orphans: Vec<Orphan>,
    /// Where workers attach.
    pub listener: Listener,
    /// The worker of a dead predecessor was warm.
    pub warm: bool,
    /// `--metrics`: where counters are served.
    pub metrics: Option<SocketAddr>,
}

/// The way to the frame loop: a command, then the doorbell.
#[derive(Debug, Clone)]
pub(crate) struct ToFrameLoop {
    commands: Sender<Command>,
    doorbell: DoorbellHandle,
}

impl ToFrameLoop {
    pub(crate) fn new(commands: Sender<Command>, doorbell: DoorbellHandle) -> Self {
        Self { commands, doorbell }
    }

    pub(crate) fn send(&self, command: Command) {
        // A frame loop that is gone needs no more commands.
        if self.commands.send(command).is_ok() {
            self.doorbell.ring();
        }
    }
}

/// What tasks of the control thread know in common.
#[derive(Debug)]
pub(crate) struct Shared {
    frame_loop: ToFrameLoop,
    /// How many workers hold a seat whose process is not proved dead.
    attached: watch::Sender<u32>,
    /// The worker was warm once.
    ready: watch::Sender<bool>,
    /// The frame loop asks for the current worker to be dropped.
    drop_worker: Notify,
    /// Set when the process winds down.
    ending: watch::Sender<Option<WindDown>>,
}

/// What becomes of the worker when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindDown {
    /// It is ended.
    EndWorker,
    /// It stays, for the sidecar that takes over.
    LeaveWorker,
}

/// How the runtime is hosted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    /// tokio-uring around tokio.
    Uring,
    /// tokio alone: no ring is made.
    Plain,
}

/// Runs until `end` is received, then does with the child worker what that says. If the sender is gone the worker is
/// ended.
///
/// # Errors
/// The runtime could not be made.
pub fn run(
    setup: Setup,
    host: Host,
    frame_loop: (Sender<Command>, DoorbellHandle),
    requests: mpsc::UnboundedReceiver<Request>,
    end: oneshot::Receiver<WindDown>,
    signalled: Signalled,
) -> std::io::Result<()> {
    let to_frame_loop = ToFrameLoop::new(frame_loop.0, frame_loop.1);
    let body = serve(setup, to_frame_loop, requests, end, signalled);
    match host {
        Host::Uring => {
            if let Ok(runtime) = tokio_uring::Runtime::new(&tokio_uring::builder()) {
                runtime.block_on(body);
                return Ok(());
            }
            // The driver's small ring fitted, this larger one does not: nothing here needs it.
            plain(body)
        }
        Host::Plain => plain(body),
    }
}

fn plain(body: impl Future<Output = ()>) -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    tokio::task::LocalSet::new().block_on(&runtime, body);
    Ok(())
}

async fn serve(
    setup: Setup,
    frame_loop: ToFrameLoop,
    mut requests: mpsc::UnboundedReceiver<Request>,
    mut end: oneshot::Receiver<WindDown>,
    signalled: Signalled,
) {
    let Setup { target, tokens, token, worker, shm, orphans, listener, warm, metrics } = setup;
    let shared = Rc::new(Shared {
        frame_loop,
        attached: watch::Sender::new(0),
        ready: watch::Sender::new(warm),
        drop_worker: Notify::new(),
        ending: watch::Sender::new(None),
    });
    let survivors = orphans.iter().map(|orphan| orphan.pid).collect();
    signals::watch(&shared, signalled);
    tokio::task::spawn_local(attach::serve(Rc::clone(&shared), listener));
    for orphan in orphans {
        tokio::task::spawn_local(attach::watch_orphan(Rc::clone(&shared), orphan));
    }
    if let Some(address) = metrics {
        tokio::task::spawn_local(metrics::serve(address, shm.clone()));
    }
    let child = (!worker.is_empty()).then(|| {
        let keeper = child::Keeper::new(worker, shm, survivors);
        tokio::task::spawn_local(keeper.run(Rc::clone(&shared)))
    });
    let mut dialler = Dialler { target, tokens, token };
    let mut open = true;
    let wind_down = loop {
        tokio::select! {
            wind_down = &mut end => break wind_down.unwrap_or(WindDown::EndWorker),
            request = requests.recv(), if open => match request {
                Some(request) => answer(request, &mut dialler, &shared).await,
                // The frame loop has ended, and how follows.
                None => open = false,
            }
        }
    };
    shared.ending.send_replace(Some(wind_down));
    if let Some(child) = child {
        // A panic of the keeper has been reported by its task.
        let _ = child.await;
    }
}

async fn answer(request: Request, dialler: &mut Dialler, shared: &Shared) {
    match request {
        Request::Dial { dial, reread_token } => {
            let answer = dialler.prepare(reread_token).await;
            shared.frame_loop.send(Command::Dial { dial, answer });
        }
        Request::WorkerReady => {
            shared.ready.send_replace(true);
        }
        Request::DropWorker { why } => {
            tracing::warn!(%why, "ending the worker's attachment");
            shared.drop_worker.notify_waiters();
        }
    }
}

/// Name resolution and the token, for each dial anew.
#[derive(Debug)]
struct Dialler {
    target: Target,
    tokens: TokenSources,
    token: Token,
}

impl Dialler {
    async fn prepare(&mut self, reread_token: bool) -> Result<(Vec<SocketAddr>, Token), DialFailure> {
        if reread_token {
            match self.tokens.read() {
                Ok(token) => self.token = token,
                Err(failure) => tracing::warn!(%failure, "the token sources could not be read again"),
            }
        }
        match tokio::net::lookup_host((self.target.host.as_str(), self.target.port)).await {
            Ok(addresses) => {
                let addresses: Vec<_> = addresses.collect();
                if addresses.is_empty() { Err(DialFailure::Dns) } else { Ok((addresses, self.token.clone())) }
            }
            Err(error) => {
                tracing::warn!(host = %self.target.host, %error, "the gateway's name cannot be resolved");
                Err(DialFailure::Dns)
            }
        }
    }
}
