//! The control thread: everything that may be slow, so that nothing of it can delay a frame.
//!
//! One current-thread runtime, hosted by tokio-uring where io_uring may be used, by tokio alone elsewhere. It talks
//! to the frame loop through a channel and the doorbell, and is told what to do through another channel.

use core::cell::{Cell, RefCell};
use core::net::SocketAddr;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::rc::Rc;

use sidecar_core::time::Instant;
use sidecar_shm::attach::Listener;
use sidecar_shm::layout::SEATS;
use sidecar_shm::owner::{DoorbellHandle, Orphan};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::channel::{Sender, ToFrameLoop};
use crate::config::{Target, Token, TokenSources};
use crate::frame_loop::{Command, Request};
use dial::{Dialler, Wish};
use readable::Readable;

mod attach;
mod child;
mod dial;
mod group;
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
    /// What its environment says besides; it wins over ours.
    pub environment: Vec<(&'static str, OsString)>,
    /// The region's path, handed to the worker in `SIDECAR_SHM`.
    pub shm: PathBuf,
    /// The region's id, handed to the worker so that it is known as ours.
    pub region: u64,
    /// Workers that a dead predecessor left.
    pub orphans: Vec<Orphan>,
    /// Where workers attach.
    pub listener: Listener,
    /// The worker of a dead predecessor was warm.
    pub warm: bool,
    /// `--metrics`: where counters are served.
    pub metrics: Option<SocketAddr>,
}

/// What tasks of the control thread know in common.
#[derive(Debug)]
pub(crate) struct Shared {
    frame_loop: ToFrameLoop,
    /// The region's path.
    shm: PathBuf,
    /// What marks workers that a sidecar of this region started.
    mark: String,
    /// Workers whose connection stands.
    attached: watch::Sender<u32>,
    /// Workers that were attached in this sidecar's time and whose process is not proved dead.
    alive: watch::Sender<u32>,
    /// Workers that a dead predecessor left, and whose process is not proved dead.
    orphans: watch::Sender<u32>,
    /// A worker has attached since one was started last.
    met: Cell<bool>,
    /// Who watches the last worker of each seat.
    watchers: RefCell<[Option<AbortHandle>; SEATS]>,
    /// Why a worker was refused last, and when that was a line of the log.
    refused: RefCell<Option<(String, Instant)>>,
    /// The worker was warm once.
    ready: watch::Sender<bool>,
    /// How to end the connection of each worker: seat, generation, what is told.
    attachments: RefCell<Vec<(u8, u32, Rc<Notify>)>>,
    /// A signal came: nothing is waited for that can be cut short.
    hurry: Notify,
    /// Set when the process winds down.
    ending: watch::Sender<Option<WindDown>>,
}

/// What becomes of the worker when the process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindDown {
    /// It is ended.
    EndWorker,
    /// It is told that the region has ended and ends by itself, with what it has to write down; after a while, or when a
    /// signal comes, it is ended. One that never attached is ended at once.
    AwaitWorker,
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
/// `tell` is called once: with an error when there is no runtime, or what it is there for cannot be watched, and then
/// nothing was begun; else before anything that others could see.
pub fn run(
    setup: Setup,
    host: Host,
    frame_loop: (Sender<Command>, DoorbellHandle),
    requests: mpsc::UnboundedReceiver<Request>,
    end: oneshot::Receiver<WindDown>,
    signalled: Signalled,
    tell: impl FnOnce(io::Result<()>),
) {
    // Last of all to go, also in a panic: the frame loop looks up, and sees that nobody is left to talk to.
    let _bell = Bell(frame_loop.1.clone());
    let runtime = match Runtime::new(host) {
        Ok(runtime) => runtime,
        Err(error) => return tell(Err(error)),
    };
    let to_frame_loop = ToFrameLoop::new(frame_loop.0, frame_loop.1);
    runtime.block_on(async {
        let watched =
            signals::catch().and_then(|caught| Ok((caught, Readable::new(setup.listener.as_fd())?)));
        match watched {
            Ok((caught, door)) => {
                tell(Ok(()));
                serve(setup, (caught, door), to_frame_loop, requests, end, signalled).await;
            }
            Err(error) => tell(Err(error)),
        }
    });
}

/// Rings when it is dropped.
struct Bell(DoorbellHandle);

impl Drop for Bell {
    fn drop(&mut self) {
        self.0.ring();
    }
}

enum Runtime {
    Uring(tokio_uring::Runtime),
    Plain(tokio::runtime::Runtime),
}

impl Runtime {
    fn new(host: Host) -> io::Result<Self> {
        crate::descriptors::are_enough()?;
        if host == Host::Uring
            && let Ok(ring) = tokio_uring::Runtime::new(&tokio_uring::builder())
        {
            return Ok(Self::Uring(ring));
        }
        // Where the driver's small ring fitted and this larger one does not: nothing here needs it.
        crate::descriptors::runtime().map(Self::Plain)
    }

    fn block_on(self, body: impl Future<Output = ()>) {
        match self {
            Self::Uring(ring) => ring.block_on(body),
            Self::Plain(runtime) => tokio::task::LocalSet::new().block_on(&runtime, body),
        }
    }
}

async fn serve(
    setup: Setup,
    (caught, door): (signals::Caught, Readable),
    frame_loop: ToFrameLoop,
    mut requests: mpsc::UnboundedReceiver<Request>,
    mut end: oneshot::Receiver<WindDown>,
    signalled: Signalled,
) {
    let Setup { target, tokens, token, worker, environment, shm, region, orphans, listener, warm, metrics } =
        setup;
    let shared = Rc::new(Shared {
        frame_loop,
        shm: shm.clone(),
        mark: group::mark(region),
        attached: watch::Sender::new(0),
        alive: watch::Sender::new(0),
        orphans: watch::Sender::new(u32::try_from(orphans.len()).expect("there are two seats")),
        met: Cell::new(false),
        watchers: RefCell::default(),
        refused: RefCell::default(),
        ready: watch::Sender::new(warm),
        attachments: RefCell::default(),
        hurry: Notify::new(),
        ending: watch::Sender::new(None),
    });
    let survivors = orphans.iter().map(|orphan| orphan.pid).collect();
    signals::obey(&shared, caught, &signalled);
    tokio::task::spawn_local(attach::serve(Rc::clone(&shared), listener, door));
    for orphan in orphans {
        tokio::task::spawn_local(attach::watch_orphan(Rc::clone(&shared), orphan));
    }
    if let Some(address) = metrics {
        tokio::task::spawn_local(metrics::serve(address, shm.clone()));
    }
    let child = (!worker.is_empty()).then(|| {
        let keeper = child::Keeper::new(worker, environment, shm, survivors);
        tokio::task::spawn_local(keeper.run(Rc::clone(&shared)))
    });
    let (wishes, wished) = watch::channel(Wish::default());
    let frame_loop = shared.frame_loop.clone();
    let dialler = Dialler::new(target, tokens, token);
    tokio::task::spawn_local(dialler.serve(wished, move |command| frame_loop.send(command)));
    let mut open = true;
    let wind_down = loop {
        tokio::select! {
            wind_down = &mut end => break wind_down.unwrap_or(WindDown::EndWorker),
            request = requests.recv(), if open => match request {
                Some(request) => answer(request, &wishes, &shared),
                // The frame loop has ended, and how follows.
                None => open = false,
            }
        }
    };
    shared.ending.send_replace(Some(wind_down));
    if wind_down == WindDown::AwaitWorker {
        // A worker looks whether the region has ended when its connection does.
        for (_, _, end) in shared.attachments.borrow().iter() {
            end.notify_one();
        }
    }
    if let Some(child) = child {
        // A panic of the keeper has been reported by its task.
        let _ = child.await;
    }
}

fn answer(request: Request, wishes: &watch::Sender<Wish>, shared: &Shared) {
    match request {
        Request::Dial { dial, reread_token } => {
            wishes.send_replace(Wish { dial, reread_token });
        }
        Request::WorkerReady => {
            shared.ready.send_replace(true);
        }
        Request::DropWorker { worker, why } => {
            let ours = group::kill_if_ours(worker.pid, &shared.mark);
            tracing::warn!(
                %why,
                pid = worker.pid,
                ours,
                "ending the worker's attachment, and its process if it is ours"
            );
            for (seat, generation, end) in shared.attachments.borrow().iter() {
                if (*seat, *generation) == (worker.seat, worker.generation) {
                    end.notify_one();
                }
            }
        }
        Request::RestartWorker { worker, why } => {
            if group::kill_if_ours(worker.pid, &shared.mark) {
                tracing::warn!(%why, pid = worker.pid, "ending the worker, to start it again");
            } else {
                tracing::warn!(%why, pid = worker.pid, "restart the worker: it is not this sidecar's child");
            }
        }
    }
}
