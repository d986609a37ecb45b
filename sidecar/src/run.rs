//! The main job: `sidecar --shm PATH ...`, from settings to exit code.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use rustix::thread::{CpuSet, sched_setaffinity};
use sha1::{Digest, Sha1};
use sidecar_core::agent::{Agent, Config, Limits, Outcome};
use sidecar_core::tunnel::AgentId;
use sidecar_shm::attach::Listener;
use sidecar_shm::clock;
use sidecar_shm::layout::Geometry;
use sidecar_shm::region::{self, Found, Identity};
use sidecar_shm::spin::Spin;

use crate::bridge::{Bridge, FailurePolicy, Rules};
use crate::cli::{OnFailure, RunArgs};
use crate::config::{self, Lookup, Target, TokenSources};
use crate::control::{self, Host, Signalled, WindDown};
use crate::driver::{self, Preference, SocketOptions};
use crate::exit::Exit;
use crate::frame_loop::{FrameLoop, Waiting};
use crate::report::Failure;

/// Everything that was asked for, checked.
#[derive(Debug)]
struct Settings {
    target: Target,
    config: Config,
    rules: Rules,
    geometry: Geometry,
    tokens: TokenSources,
    token: config::Token,
}

/// Runs until the job is over, a signal asks for the end, or nothing more can be done.
///
/// # Errors
/// Whatever keeps it from starting, and each end that is not the user's or the gateway's wish.
pub fn run(args: &RunArgs) -> Result<Exit, Failure> {
    check_gpu(&args.gpu)?;
    let shm = args.shm.as_deref().expect("clap requires --shm");
    let settings = settle(args)?;
    sidecar_shm::guard::install()
        .map_err(|error| Failure::new("no handler for a damaged region").because(error))?;
    let now = clock::now();
    let identity = Identity {
        job_endpoint_hash: hash(settings.config.job.as_str(), &settings.target.shown),
        agent: settings.config.agent.clone(),
    };
    let opened = region::create(shm, &settings.geometry, &identity, now)
        .map_err(|error| Failure::new(format!("no region at {}", shm.display())).because(error))?;
    if let Some(note) = &opened.note {
        tracing::info!("{note}");
    }
    let listener = Listener::bind(shm).map_err(|error| {
        Failure::new(format!("workers cannot be let in at {}.sock", shm.display()))
            .because(error)
            .hint("free that path, or choose a shorter one for --shm")
    })?;
    let mut config = settings.config;
    config.agent = opened.agent.clone();
    let timers = config.timers;
    let seed = config::random();
    let kept = match &opened.found {
        Found::TakenOver { kept, age } => {
            let seconds = age.as_secs_f32();
            tracing::info!(
                seconds,
                kept = kept.len(),
                "took over the region of a sidecar that ended {seconds:.1} s ago"
            );
            kept.as_slice()
        }
        Found::Replaced { why } => {
            tracing::info!(%why, "replaced what was found at the region's path");
            [].as_slice()
        }
        Found::Fresh => [].as_slice(),
    };
    let agent = Agent::resume(config, opened.resume, seed, now);
    let orphans = opened.owner.orphans();
    let bridge = Bridge::new(agent, opened.owner, settings.rules, kept);
    let doorbell = bridge.owner().doorbell_handle();
    let choice = driver::choose(args.io, bridge.owner().doorbell())?;
    let uring = choice.driver.name() == "uring";
    tracing::info!(
        io = choice.driver.name(),
        why = %choice.why,
        shm = %shm.display(),
        bytes = settings.geometry.total_bytes(),
        endpoint = %settings.target.shown,
        token = settings.token.source(),
        "starting"
    );

    let token_source = settings.token.source().to_owned();
    let (commands, command_queue) = crossbeam_channel::unbounded();
    let (requests, request_queue) = tokio::sync::mpsc::unbounded_channel();
    let (end, ended) = tokio::sync::oneshot::channel();
    let signalled = Signalled::default();
    let setup = control::Setup {
        target: settings.target,
        tokens: settings.tokens,
        token: settings.token,
        worker: args.worker.clone(),
        shm: shm.to_owned(),
        orphans,
        listener,
        warm: bridge.agent().is_warm(),
        metrics: args.metrics,
    };
    let host = if uring && args.io != Preference::Epoll { Host::Uring } else { Host::Plain };
    let signals = signalled.clone();
    let (control_ended, control_result) = mpsc::channel();
    let control = thread::Builder::new()
        .name("control".into())
        .spawn(move || {
            let result = control::run(setup, host, (commands, doorbell), request_queue, ended, signals);
            // The main thread waits for this before it ends the process.
            let _ = control_ended.send(result);
        })
        .map_err(|error| Failure::new("no thread for the control side").because(error))?;

    let socket_options = SocketOptions { user_timeout: timers.dead_after };
    // The frame loop and the worker may spin at the same time. Measured before this thread is pinned, which would leave
    // it one core to count.
    let waiting = Waiting { spin: Spin::measure(args.spin, 2), busy: args.busy_poll };
    if let Some(core) = args.cpu {
        pin(core)?;
    }
    let frame_loop = FrameLoop::new(bridge, choice.driver, command_queue, requests, socket_options, waiting);
    let played = frame_loop.run();
    // However it ended, the control thread ends the worker before the process goes, unless a successor takes it over.
    let wind_down = match &played {
        Ok((Outcome::Left, _)) => WindDown::LeaveWorker,
        _ => WindDown::EndWorker,
    };
    // A control thread that could not start has nothing to wind down.
    let _ = end.send(wind_down);
    let control_result = control_result.recv();
    let (outcome, bridge) = played?;
    if control.join().is_err() {
        return Err(Failure::new("the control thread panicked").hint("report this, with the log above"));
    }
    if let Ok(Err(error)) = control_result {
        return Err(Failure::new("the control thread could not start").because(error));
    }
    finish(outcome, bridge, signalled.exit(), &token_source)
}

fn finish(
    outcome: Outcome,
    bridge: Bridge,
    signalled: Option<Exit>,
    token_source: &str,
) -> Result<Exit, Failure> {
    // For an upgrade, or where a session may be open still, the region stays: whoever comes next takes it over.
    if !matches!(outcome, Outcome::Left | Outcome::RedialBudget { .. }) {
        bridge.remove_region();
    }
    match (signalled, outcome) {
        // The job was done before the signal came.
        (_, Outcome::Drained) => Ok(Exit::Done),
        (Some(exit), _) => Ok(exit),
        (None, outcome) => match Exit::of(&outcome) {
            Exit::Done => Ok(Exit::Done),
            _ => Err(outcome_failure(&outcome, token_source)),
        },
    }
}

/// Pins this thread, which becomes the frame loop; the control thread and the worker stay where they are.
fn pin(core: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    if core < CpuSet::MAX_CPU {
        set.set(core);
    }
    sched_setaffinity(None, &set).map_err(|error| {
        Failure::new(format!("--cpu {core}: the frame loop cannot be pinned there"))
            .because(error)
            .hint("name a core that this process may use; `taskset -p $$` shows them")
    })
}

fn check_gpu(gpu: &str) -> Result<(), Failure> {
    if gpu == "none" {
        return Ok(());
    }
    Err(Failure::new(format!("--gpu {gpu}: this version cannot use a GPU itself"))
        .because("page-locking and GPU discovery are not part of it yet")
        .hint("use --gpu none; the worker may use any GPU it sees"))
}

fn settle(args: &RunArgs) -> Result<Settings, Failure> {
    let lookup = Lookup::new(args.env_file.clone())?;
    let job = args.job.clone().or_else(|| lookup.value("JOB_UUID")).ok_or_else(|| {
        Failure::new("no job")
            .because("neither --job nor JOB_UUID is set")
            .hint("pass the job response's uuid with --job")
    })?;
    let job = config::parse_job(&job)?;
    let endpoint = args.endpoint.clone().or_else(|| lookup.value("TUNNEL_ENDPOINT"));
    let target = config::parse_endpoint(endpoint.as_deref().unwrap_or(config::DEFAULT_ENDPOINT))?;
    let agent = match &args.agent {
        None => config::fresh_agent_id(),
        Some(agent) => parse_agent(agent)?,
    };
    let tokens = TokenSources { file: args.token_file.clone(), env_file: lookup.path() };
    let token = tokens.read()?;
    let geometry = Geometry {
        observation_slots: args.region.slots,
        observation_bytes: args.region.slot_bytes.next_multiple_of(4096),
        action_slots: args.region.action_slots,
        action_bytes: args.region.action_bytes,
    };
    let rules = Rules {
        on_failure: failure_policy(args, geometry.action_bytes)?,
        worker_timeout: args.failure.worker_timeout.0,
        warmup_payload: args
            .warmup_payload
            .as_deref()
            .map(|path| read_payload("--warmup-payload", path, geometry.observation_bytes, "--slot-bytes"))
            .transpose()?,
    };
    let config = Config {
        endpoint: target.endpoint.clone(),
        job,
        agent,
        timers: args.timers.timers(),
        limits: Limits { slot_bytes: geometry.observation_bytes, ..Limits::default() },
        unfreeze: args.failure.unfreeze.0,
        wedge_after: args.failure.wedge_after.0,
        fresh_agent_on_wedge: args.failure.fresh_agent_on_wedge,
        wait_for_slot: args.failure.wait_for_slot,
    };
    Ok(Settings { target, config, rules, geometry, tokens, token })
}

fn parse_agent(text: &str) -> Result<AgentId, Failure> {
    let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte));
    AgentId::new(text).ok().filter(|_| plain && !text.is_empty()).ok_or_else(|| {
        Failure::new(format!("the agent id \"{}\" cannot be used", text.escape_debug()))
            .because("it has to be 1 to 64 letters, digits, '-', '_', '.' or '~'")
            .hint("leave --agent out: a UUID is generated")
    })
}

fn failure_policy(args: &RunArgs, action_bytes: u32) -> Result<FailurePolicy, Failure> {
    match (args.failure.on_failure, &args.failure.failure_reply) {
        (OnFailure::Hold, _) => Ok(FailurePolicy::Hold),
        (OnFailure::Close, _) => Ok(FailurePolicy::Close),
        (OnFailure::Reply, path) => {
            let path = path.as_deref().expect("clap requires --failure-reply with --on-failure reply");
            read_payload("--failure-reply", path, action_bytes, "--action-bytes").map(FailurePolicy::Reply)
        }
    }
}

/// Reads a file whose bytes have to fit a slot of `most` bytes.
fn read_payload(flag: &str, path: &Path, most: u32, limit_flag: &str) -> Result<Vec<u8>, Failure> {
    let shown = path.display();
    let bytes = std::fs::read(path).map_err(|error| {
        Failure::new(format!("{flag} {shown} cannot be read"))
            .because(error)
            .hint("name a file that can be read")
    })?;
    if bytes.len() > most as usize {
        return Err(Failure::new(format!("{flag} {shown} has {} bytes", bytes.len()))
            .because(format!("at most {most} fit a slot"))
            .hint(format!("raise {limit_flag}")));
    }
    Ok(bytes)
}

/// What makes a predecessor's journal ours: the same job at the same endpoint.
fn hash(job: &str, endpoint: &str) -> [u8; 32] {
    let digest = Sha1::new().chain_update(job).chain_update([0]).chain_update(endpoint).finalize();
    let mut hash = [0; 32];
    hash[..digest.len()].copy_from_slice(&digest);
    hash
}

fn outcome_failure(outcome: &Outcome, token_source: &str) -> Failure {
    match outcome {
        Outcome::TokenRefused { status, first: true } => {
            Failure::new(format!("the gateway refused the token with {status}"))
                .because("token and job do not belong together, or the job has ended")
                .hint(format!(
                    "compare JOB_UUID with the job that the token from {token_source} was issued for"
                ))
        }
        Outcome::TokenRefused { status, .. } => {
            Failure::new(format!("the gateway refused the redial with {status}"))
                .because("the job has ended while the tunnel was down")
                .hint("look at the job's result before submitting a new one")
        }
        Outcome::Capacity => Failure::new("the gateway closed the tunnel right after the upgrade")
            .because("as many agents as the job's parallelism allows are connected already")
            .hint("end another agent, or wait for one to end with --wait-for-slot"),
        Outcome::DialBudget { last } => {
            Failure::new("the gateway could not be reached within --dial-timeout")
                .because(last)
                .hint("check --endpoint and the network, or raise --dial-timeout")
        }
        Outcome::RedialBudget { last } => Failure::new("the tunnel could not be restored in time")
            .because(last)
            .hint("the gateway's reconnect window has passed: the open session is lost, submit a new job"),
        Outcome::WorkerFailed => Failure::new("the worker could not be warmed up")
            .because(
                "it reported a failure, or ended again and again before it was ready; see the lines above",
            )
            .hint("run the worker's command by hand, and look at its output"),
        Outcome::Drained | Outcome::Closed | Outcome::Left => Failure::new("the run ended"),
    }
}
