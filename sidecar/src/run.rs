//! The main job: `sidecar --shm PATH ...`, from settings to exit code.
//!
//! The start has an order: what can be refused is tried before anything is made, and what was made before a failure is
//! unmade, so that a start that fails leaves no region and no worker behind. Only a region that was taken over stays
//! for the next one.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use rustix::io::Errno;
use sha1::{Digest, Sha1};
use sidecar_core::agent::{Agent, Outcome};
use sidecar_cuda::ahead::AheadCopier;
use sidecar_cuda::numa;
use sidecar_shm::attach::Listener;
use sidecar_shm::clock;
use sidecar_shm::region::{self, CreateError, Found, Identity, Opened, Pages};
use sidecar_shm::spin::Spin;
use sidecar_shm::stats::Gauge;

use crate::bridge::{Bridge, LastingCopier};
use crate::cli::RunArgs;
use crate::config;
use crate::control::{self, Host, Signalled, WindDown};
use crate::driver::{self, Choice, Preference, SocketOptions};
use crate::exit::Exit;
use crate::explain::Code;
use crate::frame_loop::{Command, FrameLoop, Requests, Waiting};
use crate::report::Failure;

mod affinity;
mod gpu;
mod preflight;
mod settings;

use affinity::Affinity;
use gpu::OwnGpu;
use preflight::{Facts, FrameLoopAt, RegionAt};
use settings::Settings;

/// Runs until the job is over, a signal asks for the end, or nothing more can be done.
///
/// # Errors
/// Whatever keeps it from starting, and each end that is not the user's or the gateway's wish.
pub fn run(args: &RunArgs) -> Result<Exit, Failure> {
    let shm = args.shm.as_deref().expect("clap requires --shm");
    let settings = settings::settle(args)?;
    // Ours until this function ends.
    let gpu = gpu::own(args)?;
    sidecar_shm::guard::install().map_err(|error| {
        Failure::new(Code::Start, "a handler for a damaged region (SIGBUS) cannot be installed")
            .because(error)
            .hint("another handler in this process, or a seccomp profile, is in the way: allow sigaction")
    })?;
    // The frame loop and the worker may spin at the same time. Measured before this thread is pinned, which would leave
    // it one core to count.
    let waiting = Waiting { spin: Spin::measure(args.spin, 2), busy: args.busy_poll };
    let (affinity, frame_loop_at) = place(args, gpu.as_ref())?;
    let now = clock::now();
    driver::check_busy_poll(args.socket_busy_poll)?;
    let identity = Identity {
        job_endpoint_hash: hash(settings.config.job.as_str(), &settings.target.shown),
        agent: settings.config.agent.clone(),
    };
    let near = gpu.as_ref().and_then(|own| own.near.as_ref()).map(|near| numa::Near::node(near.node));
    let opened = region::create(shm, &settings.geometry, &identity, now);
    // Its pages were allocated, or lie where a predecessor had them.
    let near = near.map(|near| near.map(drop));
    let opened = opened.map_err(|error| no_region(shm, &error))?;
    let region_at = match (near, opened.pages) {
        (None, _) => RegionAt::Anywhere,
        (Some(_), Pages::Kept) => RegionAt::AsItWas,
        (Some(Ok(())), Pages::Made) => RegionAt::Near,
        (Some(Err(error)), Pages::Made) => RegionAt::Refused(error),
    };
    let mut config = settings.config.clone();
    config.agent = opened.agent.clone();
    tell_found(&opened);
    let huge = args.region.huge.then(|| opened.owner.use_huge_pages());
    // Before workers attach: they look for the ring then.
    let ahead = gpu
        .as_ref()
        .filter(|_| args.device_copy)
        .map(|own| AheadCopier::new(own.gpu.ordinal, &opened.owner).map(LastingCopier::new));
    preflight::tell(&Facts {
        gpu: gpu.as_ref(),
        geometry: settings.geometry,
        huge,
        ahead: ahead.as_ref().map(|made| made.as_ref().map(|copier| copier.bytes())),
        frame_loop: frame_loop_at,
        region: region_at,
    });
    let agent = Agent::resume(config, opened.resume.clone(), config::random(), now);
    let Settings { rules, token, .. } = &settings;
    let (token_source, rules) = (token.source().to_owned(), rules.clone());
    let environment = gpu.as_ref().map(OwnGpu::environment).unwrap_or_default();
    let started = match start(args, shm, settings, affinity, environment, &opened, agent.is_warm()) {
        Ok(started) => started,
        Err(failure) => {
            // What a dead sidecar left stays for the next one, with the worker that waits for it.
            if !matches!(opened.found, Found::TakenOver { .. }) && opened.owner.orphans().is_empty() {
                opened.owner.close();
            }
            return Err(failure);
        }
    };
    let kept = match &opened.found {
        Found::TakenOver { kept, .. } => kept.as_slice(),
        _ => &[],
    };
    let socket_options =
        SocketOptions { user_timeout: agent.config().timers.dead_after, busy_poll: args.socket_busy_poll };
    let mut bridge = Bridge::new(agent, opened.owner, rules, kept);
    if let Some(action) = &opened.last_action {
        bridge.keep_last_action(action);
    }
    if let Some(Ok(copier)) = ahead {
        bridge.copy_ahead(copier);
    }
    let Started { choice, commands, requests, control, end, signalled } = started;
    let frame_loop = FrameLoop::new(bridge, choice.driver, commands, requests, socket_options, waiting);
    let mut played = frame_loop.run();
    // One that comes later shortens the end, and changes nothing about how it came.
    let signalled = signalled.exit();
    // However it ended, the control thread ends the worker before the process goes, unless a successor takes it over.
    let wind_down = match &mut played {
        Ok((Outcome::Left, _)) => WindDown::LeaveWorker,
        Ok((Outcome::Drained, bridge)) => {
            bridge.announce_end();
            WindDown::AwaitWorker
        }
        _ => WindDown::EndWorker,
    };
    // A control thread that panicked winds nothing down any more.
    let _ = end.send(wind_down);
    let panicked = control.join().is_err();
    let (outcome, bridge) = played?;
    if panicked {
        return Err(Failure::new(Code::Bug, "the control thread panicked")
            .at(bridge.standing(clock::now(), Some(&outcome))));
    }
    finish(outcome, bridge, signalled, &token_source)
}

/// Puts this thread, which becomes the frame loop, on the core that was asked for, or else near the GPU.
fn place(args: &RunArgs, gpu: Option<&OwnGpu>) -> Result<(Option<Affinity>, FrameLoopAt), Failure> {
    if let Some(core) = args.cpu {
        return Ok((Some(Affinity::pin(core)?), FrameLoopAt::Core));
    }
    let Some(near) = gpu.and_then(|own| own.near.as_ref()) else { return Ok((None, FrameLoopAt::Anywhere)) };
    // A container may have none of those cores: then it runs where it may, and the preflight says so.
    Ok(match Affinity::near(&near.cores) {
        Ok(affinity) => (Some(affinity), FrameLoopAt::Near),
        Err(error) => (None, FrameLoopAt::Refused(error)),
    })
}

fn no_region(shm: &Path, error: &CreateError) -> Failure {
    let failure = Failure::new(Code::Region, format!("no region at {}", shm.display()));
    match error {
        CreateError::Io { what, path, source } if is_short(source) => failure
            .because(format!("{what} {}: {source}", path.display()))
            .hint("raise the limit on open files (ulimit -n), or close some elsewhere"),
        error => failure
            .because_and_hint(error, "choose another --shm, in a directory on a tmpfs that you may write"),
    }
}

/// The process, or the system, has no descriptor left.
fn is_short(error: &io::Error) -> bool {
    let short = [Errno::MFILE, Errno::NFILE].map(|errno| Some(errno.raw_os_error()));
    short.contains(&error.raw_os_error())
}

/// Says what was found under the region's path.
fn tell_found(opened: &Opened) {
    if let Some(note) = &opened.note {
        tracing::info!("{note}");
    }
    match &opened.found {
        Found::TakenOver { kept, age } => {
            let seconds = age.as_secs_f32();
            tracing::info!(
                seconds,
                kept = kept.len(),
                "took over the region of a sidecar that ended {seconds:.1} s ago"
            );
        }
        Found::Replaced { why } => tracing::info!(%why, "replaced what was found at the region's path"),
        Found::Fresh => {}
    }
}

/// What runs beside the frame loop, and how it is reached.
struct Started {
    choice: Choice,
    commands: crate::channel::Receiver<Command>,
    requests: Requests,
    control: JoinHandle<()>,
    end: tokio::sync::oneshot::Sender<WindDown>,
    signalled: Signalled,
}

/// Everything that can fail once there is a region. After a failure nothing of it is left.
fn start(
    args: &RunArgs,
    shm: &Path,
    settings: Settings,
    affinity: Option<Affinity>,
    environment: Vec<(&'static str, OsString)>,
    opened: &Opened,
    warm: bool,
) -> Result<Started, Failure> {
    let owner = &opened.owner;
    let listener = Listener::bind(shm).map_err(|error| {
        Failure::new(Code::Region, format!("workers cannot be let in at {}.sock", shm.display()))
            .because(error)
            .hint("free that path, or choose another one for --shm, a shorter one if it is too long")
    })?;
    let choice = driver::choose(args.io, owner.doorbells(), args.ring)?;
    owner.stats().set(Gauge::Driver, if choice.driver.name() == "uring" { 1 } else { 2 });
    tracing::info!(
        io = choice.driver.name(),
        why = %choice.why,
        shm = %shm.display(),
        bytes = settings.geometry.total_bytes(),
        endpoint = %settings.target.shown,
        token = settings.token.source(),
        "starting"
    );
    let host = match choice.driver.name() {
        "uring" if args.io != Preference::Epoll => Host::Uring,
        _ => Host::Plain,
    };
    let (command_sender, commands) = crate::channel::unbounded();
    let (requests, request_queue) = tokio::sync::mpsc::unbounded_channel();
    let (end, ended) = tokio::sync::oneshot::channel();
    let signalled = Signalled::default();
    let setup = control::Setup {
        target: settings.target,
        tokens: settings.tokens,
        token: settings.token,
        worker: args.worker.clone(),
        environment,
        shm: shm.to_owned(),
        region: owner.region_id(),
        orphans: owner.orphans(),
        listener,
        warm,
        metrics: args.metrics,
    };
    let way = (command_sender, owner.doorbell_handle());
    let (runs, running) = mpsc::channel();
    let signals = signalled.clone();
    let refused = |error| {
        Failure::new(Code::Start, "the control thread cannot start")
            .because(error)
            .hint("raise the limits on open files and threads (ulimit -n, ulimit -u), then start it again")
    };
    let control = thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            // Whoever waits for it is this function.
            let tell = |result| drop(runs.send(result));
            if let Some(Err(error)) = affinity.map(Affinity::undo) {
                return tell(Err(error));
            }
            control::run(setup, host, way, request_queue, ended, signals, tell);
        })
        .map_err(refused)?;
    let began = match running.recv() {
        Ok(began) => began,
        Err(_) => Err(io::Error::other("it panicked; see above")),
    };
    if let Err(error) = began {
        // With it goes what it was given: the attach socket.
        let _ = control.join();
        return Err(refused(error));
    }
    Ok(Started { choice, commands, requests, control, end, signalled })
}

fn finish(
    outcome: Outcome,
    bridge: Bridge,
    signalled: Option<Exit>,
    token_source: &str,
) -> Result<Exit, Failure> {
    let standing = bridge.standing(clock::now(), Some(&outcome));
    let warmup_failure = bridge.warmup_failure().map(str::to_owned);
    // For an upgrade, or where a session may be open still, the region stays: whoever comes next takes it over.
    if !matches!(outcome, Outcome::Left | Outcome::RedialBudget { .. }) {
        bridge.remove_region();
    }
    match (signalled, outcome) {
        // The job was done before the signal came.
        (_, Outcome::Drained) => Ok(Exit::Done),
        (Some(exit), _) => {
            tracing::info!(at = %standing, "ended on request");
            Ok(exit)
        }
        (None, outcome) => match Exit::of(&outcome) {
            Exit::Done => Ok(Exit::Done),
            _ => Err(outcome_failure(&outcome, token_source, warmup_failure).at(standing)),
        },
    }
}

/// What makes a predecessor's journal ours: the same job at the same endpoint.
fn hash(job: &str, endpoint: &str) -> [u8; 32] {
    let digest = Sha1::new().chain_update(job).chain_update([0]).chain_update(endpoint).finalize();
    let mut hash = [0; 32];
    hash[..digest.len()].copy_from_slice(&digest);
    hash
}

/// What keeps an outcome from being a success; why, and what to do about it, is said by its code.
fn outcome_failure(outcome: &Outcome, token_source: &str, warmup_failure: Option<String>) -> Failure {
    match outcome {
        Outcome::TokenRefused { status, first: true } => Failure::new(
            Code::TokenRefused,
            format!("the gateway refused the token from {token_source} with {status}"),
        ),
        Outcome::TokenRefused { status, .. } => {
            Failure::new(Code::JobOver, format!("the gateway refused the redial with {status}"))
        }
        Outcome::Capacity => {
            Failure::new(Code::Capacity, "the gateway closed the tunnel right after the upgrade")
        }
        Outcome::DialBudget { last } => {
            Failure::new(Code::Unreachable, "the gateway could not be reached within --dial-timeout")
                .because(last)
        }
        Outcome::RedialBudget { last } => {
            Failure::new(Code::WindowOver, "the tunnel could not be restored in time").because(last)
        }
        Outcome::WorkerFailed => {
            let failure = Failure::new(Code::WorkerFailed, "the worker could not be warmed up");
            warmup_failure.into_iter().fold(failure, Failure::because)
        }
        Outcome::Drained | Outcome::Closed | Outcome::Left => Failure::new(Code::Bug, "the run ended"),
    }
}
