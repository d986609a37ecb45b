//! Everything that the main job was asked for, gathered from flags, environment and files, and checked before anything
//! is made.

use std::path::Path;

use sidecar_core::agent::{Config, Limits};
use sidecar_core::tunnel::AgentId;
use sidecar_shm::layout::Geometry;

use crate::bridge::{FailurePolicy, Rules};
use crate::cli::{OnFailure, RunArgs};
use crate::config::{self, Lookup, Target, TokenSources};
use crate::explain::Code;
use crate::report::Failure;

/// Everything that was asked for, checked.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) target: Target,
    pub(super) config: Config,
    pub(super) rules: Rules,
    pub(super) geometry: Geometry,
    pub(super) tokens: TokenSources,
    pub(super) token: config::Token,
}

/// Gathers it.
///
/// # Errors
/// Whatever is missing or makes no sense.
pub(super) fn settle(args: &RunArgs) -> Result<Settings, Failure> {
    let lookup = Lookup::new(args.env_file.clone())?;
    let job = args.job.clone().or_else(|| lookup.value("JOB_UUID")).ok_or_else(|| {
        Failure::new(Code::Settings, "no job")
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
        Failure::new(Code::Settings, format!("the agent id \"{}\" cannot be used", text.escape_debug()))
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
        Failure::new(Code::Settings, format!("{flag} {shown} cannot be read"))
            .because(error)
            .hint("name a file that can be read")
    })?;
    if bytes.len() > most as usize {
        return Err(Failure::new(Code::Settings, format!("{flag} {shown} has {} bytes", bytes.len()))
            .because(format!("at most {most} fit a slot"))
            .hint(format!("raise {limit_flag}")));
    }
    Ok(bytes)
}
