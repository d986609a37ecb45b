//! The command line: what can be said, in one place. Meaning is given to it in `run`, `demo`, `stat` and so on.

use core::net::SocketAddr;
use core::time::Duration;
use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use sidecar_cuda::discovery::Choice;
use sidecar_cuda::lock::MOST_SHARERS;
use sidecar_shm::spin::Mode;

use crate::driver::{Preference, RingMode};
use crate::explain::ExplainArgs;
use crate::log::{Format, Level};
use crate::worker::WorkerArgs;

/// Stands between a simulation gateway and an inference worker: owns the tunnel, hands observations over in shared
/// memory.
#[derive(Debug, Parser)]
#[command(name = "sidecar", version, subcommand_negates_reqs = true)]
#[command(after_help = "`sidecar explain CODE` says what an error, a log line or an exit code means.")]
pub struct Cli {
    /// Everything but the main job.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// The main job.
    #[command(flatten)]
    pub run: RunArgs,
    /// How it talks.
    #[command(flatten)]
    pub talk: TalkArgs,
}

impl Cli {
    /// Reads the command line. How the process talks may be said before a subcommand; what belongs to the main job may
    /// not.
    ///
    /// # Errors
    /// What clap has to say about it, also when that is the help.
    pub fn read(
        arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let mut command = Self::command();
        let matches = command.try_get_matches_from_mut(arguments)?;
        if let Some((name, _)) = matches.subcommand() {
            let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
            let ours = RunArgs::augment_args(clap::Command::new("sidecar"));
            if let Some(argument) = ours.get_arguments().find(|argument| given(argument.get_id().as_str())) {
                let argument = argument.get_long().unwrap_or("");
                let text =
                    format!("--{argument} belongs to the main job, not to \"{name}\": leave one of them out");
                return Err(command.error(ErrorKind::ArgumentConflict, text));
            }
        }
        Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
    }
}

/// How the process talks on stderr.
#[derive(Debug, Clone, Copy, Args)]
pub struct TalkArgs {
    /// Form of log lines and errors on stderr
    #[arg(long, value_enum, default_value_t, global = true, help_heading = "Output")]
    pub log_format: Format,
    /// End when the process with this pid, which started this one, ends (for the demo's children)
    #[arg(long, global = true, hide = true, value_name = "PID", help_heading = "Output")]
    pub die_with: Option<u32>,
    /// Say each step
    #[arg(short, long, global = true, conflicts_with = "quiet", help_heading = "Output")]
    pub verbose: bool,
    /// Warnings and errors only
    #[arg(short, long, global = true, help_heading = "Output")]
    pub quiet: bool,
}

impl TalkArgs {
    /// The level that the flags ask for.
    pub fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (_, true) => Level::Verbose,
            _ => Level::Normal,
        }
    }
}

/// Subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Play gateway, sidecar and worker on this machine, in a closed loop, and print a table
    Demo(DemoArgs),
    /// Rehearse against a gateway of your own: the whole server side of the tunnel contract, with faults on request
    Gateway(Box<sidecar_gateway::Args>),
    /// A built-in worker
    Worker(WorkerArgs),
    /// The GPUs of this machine, as `--gpu` counts them
    Gpus(GpusArgs),
    /// Counters and latency percentiles of a running sidecar, read from its region
    Stat(StatArgs),
    /// What the code of an error, of a log line or of an exit means, and what to do; all of them without one
    Explain(ExplainArgs),
}

/// `sidecar --shm PATH ...`
#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// GPU that this sidecar is for: its index in `sidecar gpus`, its UUID, or `none`
    #[arg(long, default_value = "none", value_parser = gpu, value_name = "INDEX|UUID|none")]
    pub gpu: GpuChoice,
    /// Share the GPU among this many sidecars, each started with the same flag
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=i64::from(MOST_SHARERS)))]
    pub share_gpu: Option<u32>,
    /// Copy observations to the GPU while the rest of them is still coming; the worker finds them there
    #[arg(long)]
    pub device_copy: bool,
    /// Path of the shared region; its directory belongs on a tmpfs (/dev/shm/...): the kernel writes others to disk
    #[arg(long, required = true, value_name = "PATH")]
    pub shm: Option<PathBuf>,
    /// Job UUID [env: JOB_UUID]
    #[arg(long, value_name = "UUID")]
    pub job: Option<String>,
    /// Gateway [env: TUNNEL_ENDPOINT] [default: ws://120.92.88.78/api/challenge/tunnel]
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// Agent id of this process; a random UUID unless a predecessor's region says otherwise
    #[arg(long, value_name = "ID")]
    pub agent: Option<String>,
    /// File with the bearer token, instead of JOB_TOKEN or CHALLENGE_TOKEN
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// State file with KEY=VALUE lines [default: ~/.simubotix-challenge.env]
    #[arg(long, value_name = "FILE")]
    pub env_file: Option<PathBuf>,
    /// I/O driver of the frame loop
    #[arg(long, value_enum, default_value_t)]
    pub io: Preference,
    /// How long to spin before a sleep: `auto` (as long as a wake-up costs, where cores are to spare), `off`, or a
    /// number of microseconds
    #[arg(long, default_value = "auto", value_parser = spin, value_name = "auto|off|MICROSECONDS")]
    pub spin: Mode,
    /// Never sleep in the frame loop; for a core of its own
    #[arg(long)]
    pub busy_poll: bool,
    /// Have the kernel poll the network card for this long before a receive sleeps (SO_BUSY_POLL); wants a card and a
    /// driver that can, and CAP_NET_ADMIN
    #[arg(long, value_parser = micros, value_name = "MICROSECONDS")]
    pub socket_busy_poll: Option<Duration>,
    /// How the ring of --io uring is set up, for measurements
    #[arg(long, value_enum, default_value_t, hide = true)]
    pub ring: RingMode,
    /// Pin the frame loop to this core
    #[arg(long, value_name = "CORE")]
    pub cpu: Option<usize>,
    /// File with an observation that the worker gets before `ready`, so that a forward pass really runs
    #[arg(long, value_name = "FILE")]
    pub warmup_payload: Option<PathBuf>,
    /// Stay as a parent that starts the sidecar again when it crashes (a signal, a panic); the next one takes region,
    /// worker and session over
    #[arg(long)]
    pub supervise: bool,
    /// Serve counters over HTTP in Prometheus' text format
    #[arg(long, value_name = "ADDR")]
    pub metrics: Option<SocketAddr>,
    /// Worker to start and keep running; without one, start it yourself against --shm
    #[arg(last = true, value_name = "CMD")]
    pub worker: Vec<OsString>,
    /// Sizes of the region.
    #[command(flatten)]
    pub region: RegionArgs,
    /// What to do when things go wrong.
    #[command(flatten)]
    pub failure: FailureArgs,
    /// Timers.
    #[command(flatten)]
    pub timers: TimerArgs,
}

/// Sizes.
#[derive(Debug, Clone, Copy, Args)]
#[command(next_help_heading = "Region")]
pub struct RegionArgs {
    /// Observation slots
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub slots: u32,
    /// Bytes of an observation slot, rounded up to pages
    #[arg(long, default_value_t = 8 << 20, value_name = "BYTES")]
    pub slot_bytes: u32,
    /// Action slots of a worker (a power of two)
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub action_slots: u32,
    /// Bytes of an action slot
    #[arg(long, default_value_t = 64 << 10, value_name = "BYTES")]
    pub action_bytes: u32,
    /// Put the region into huge pages where there are some
    #[arg(long)]
    pub huge: bool,
}

/// `--gpu`
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuChoice {
    /// `none`
    None,
    /// One of the machine's.
    Of(Choice),
}

impl core::fmt::Display for GpuChoice {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Of(Choice::Index(index)) => write!(f, "{index}"),
            Self::Of(Choice::Uuid(uuid)) => f.write_str(uuid),
        }
    }
}

/// `sidecar gpus`
#[derive(Debug, Clone, Copy, Args)]
pub struct GpusArgs {
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What becomes of an observation that the worker failed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum OnFailure {
    /// Keep it for a restarted worker
    #[default]
    Hold,
    /// Answer with the bytes of --failure-reply
    Reply,
    /// Close the session
    Close,
}

/// Failure policy and reconnect choices.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Failure")]
pub struct FailureArgs {
    /// What becomes of an observation that the worker failed on
    #[arg(long, value_enum, default_value_t)]
    pub on_failure: OnFailure,
    /// File with the bytes for --on-failure reply
    #[arg(long, value_name = "FILE", required_if_eq("on_failure", "reply"))]
    pub failure_reply: Option<PathBuf>,
    /// How long the worker may take for one answer before --on-failure decides, or `off`
    #[arg(long, default_value = "off", value_parser = duration_or_off, value_name = "TIME")]
    pub worker_timeout: MaybeDuration,
    /// Send the last action once more when nothing has come for this long after a cut, or `off`
    #[arg(long, default_value = "60s", value_parser = duration_or_off, value_name = "TIME")]
    pub unfreeze: MaybeDuration,
    /// Report a tunnel that is up with an open session and silent for this long, or `off`
    #[arg(long, default_value = "120s", value_parser = duration_or_off, value_name = "TIME")]
    pub wedge_after: MaybeDuration,
    /// Go on under a fresh agent id when wedged; forfeits the session
    #[arg(long)]
    pub fresh_agent_on_wedge: bool,
    /// Keep dialling when the parallelism cap is reached
    #[arg(long)]
    pub wait_for_slot: bool,
}

/// A time, or none: a type of its own, since clap reads `Option` as "may be absent".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaybeDuration(pub Option<Duration>);

macro_rules! timers {
    ($($(#[doc = $doc:literal])* $name:ident = $flag:literal, $default:literal;)+) => {
        /// Every timer of the tunnel, so that a rehearsal can run faster than life.
        #[derive(Debug, Clone, Copy, Args)]
        #[command(next_help_heading = "Timers")]
        pub struct TimerArgs {
            $($(#[doc = $doc])* #[arg(long = $flag, default_value = $default, value_parser = duration, value_name = "TIME")] pub $name: Duration,)+
        }

        impl TimerArgs {
            /// What the flags say; without any, the design's timers (a test compares).
            pub fn timers(&self) -> sidecar_core::agent::Timers {
                sidecar_core::agent::Timers { $($name: self.$name,)+ ..Default::default() }
            }
        }
    };
}

timers! {
    /// First dial: keep trying for this long
    dial = "dial-timeout", "5m";
    /// One attempt: connection and upgrade
    connect = "connect-timeout", "10s";
    /// Redial until this long after the last byte, when the connection fell silent
    redial_after_silence = "redial-after-silence", "75s";
    /// Redial until this long after a close or FIN
    redial_after_close = "redial-after-close", "33s";
    /// A close this soon after the upgrade means the parallelism cap
    capacity_window = "capacity-window", "2s";
    /// After a redial, kept answers wait this long for a first frame
    hold_answers = "hold-answers", "1s";
    /// Ping after this long without a byte either way
    ping_after = "ping-after", "20s";
    /// Give the connection up after this long without a byte received
    dead_after = "dead-after", "40s";
    /// Unsolicited pongs while all slots are taken: this long between two
    blocked_pong = "blocked-pong", "15s";
    /// Warn when the worker is not ready after this long
    ready_warning = "ready-warning", "60s";
    /// How long a drain waits for answers
    drain = "drain-timeout", "60s";
    /// How long a close handshake may take
    close = "close-timeout", "5s";
    /// First delay of the redial backoff
    backoff_base = "backoff-base", "250ms";
    /// Largest delay of the redial backoff
    backoff_max = "backoff-max", "5s";
}

/// `sidecar demo`
#[derive(Debug, Clone, Args)]
pub struct DemoArgs {
    /// Cases to play, with and without images
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub cases: u32,
    /// Bytes of an observation with an image
    #[arg(long, default_value_t = 786_432, value_name = "BYTES")]
    pub payload: u32,
    /// I/O driver of the sidecar
    #[arg(long, value_enum, default_value_t)]
    pub io: Preference,
    /// Seed of the cases
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print the table as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `sidecar stat`
#[derive(Debug, Clone, Args)]
pub struct StatArgs {
    /// Path of the region
    #[arg(long, value_name = "PATH")]
    pub shm: PathBuf,
    /// Print one JSON object and end
    #[arg(long)]
    pub json: bool,
    /// Print once and end
    #[arg(long)]
    pub once: bool,
    /// Time between two prints
    #[arg(long, default_value = "1s", value_parser = duration, value_name = "TIME")]
    pub every: Duration,
}

/// `20s`, `500ms`, `2m`, `150us`; a bare number is seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    sidecar_gateway::duration::parse(text).map_err(|error| error.to_string())
}

fn gpu(text: &str) -> Result<GpuChoice, String> {
    if text == "none" { Ok(GpuChoice::None) } else { text.parse().map(GpuChoice::Of) }
}

pub(crate) fn spin(text: &str) -> Result<Mode, String> {
    match text {
        "auto" => Ok(Mode::Auto),
        "off" => Ok(Mode::Off),
        number => match number.parse() {
            Ok(micros @ 0..=1_000_000) => Ok(Mode::Fixed(Duration::from_micros(micros))),
            _ => Err("it is neither auto, nor off, nor a number of microseconds up to 1000000".to_owned()),
        },
    }
}

fn micros(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(micros @ 1..=1_000_000) => Ok(Duration::from_micros(micros)),
        _ => Err("it is no number of microseconds from 1 to 1000000".to_owned()),
    }
}

fn duration_or_off(text: &str) -> Result<MaybeDuration, String> {
    if text == "off" { Ok(MaybeDuration(None)) } else { duration(text).map(|time| MaybeDuration(Some(time))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Cli, clap::Error> {
        Cli::read([&["sidecar"], arguments].concat())
    }

    fn run(arguments: &[&str]) -> RunArgs {
        read(arguments).unwrap().run
    }

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_main_job_takes_a_worker_behind_two_dashes() {
        let run = run(&["--gpu", "none", "--shm", "/dev/shm/obs0", "--", "python", "worker.py", "--x"]);
        assert_eq!(run.worker, ["python", "worker.py", "--x"]);
        assert_eq!(run.shm, Some("/dev/shm/obs0".into()));
    }

    #[test]
    fn the_region_is_required_for_the_main_job_and_for_nothing_else() {
        assert!(read(&[]).is_err());
        assert!(read(&["demo"]).is_ok());
    }

    #[test]
    fn how_it_talks_may_be_said_before_a_subcommand_and_behind_it() {
        for (arguments, level) in [
            (&["demo"][..], Level::Normal),
            (&["-q", "demo"], Level::Quiet),
            (&["demo", "-q"], Level::Quiet),
            (
                &["--verbose", "--log-format", "json", "worker", "--policy", "echo", "--shm", "/x"],
                Level::Verbose,
            ),
            (&["-q", "--shm", "/x"], Level::Quiet),
        ] {
            let cli = read(arguments).unwrap();
            assert_eq!(cli.talk.level(), level, "{arguments:?}");
        }
    }

    #[test]
    fn what_belongs_to_the_main_job_is_refused_before_a_subcommand() {
        for (arguments, named) in [
            (&["--shm", "/x", "demo"][..], "--shm belongs"),
            (&["-q", "--supervise", "stat", "--shm", "/x"], "--supervise"),
            (&["--ping-after", "1s", "demo"], "--ping-after"),
        ] {
            let error = read(arguments).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::ArgumentConflict, "{arguments:?}");
            assert!(error.to_string().contains(named), "{error}");
        }
    }

    #[test]
    fn timers_and_switches_take_units_and_off() {
        let run =
            run(&["--shm", "/x", "--ping-after", "500ms", "--unfreeze", "off", "--worker-timeout", "3"]);
        let default = sidecar_core::agent::Timers::default();
        let ping_after = Duration::from_millis(500);
        assert_eq!(run.timers.timers(), sidecar_core::agent::Timers { ping_after, ..default });
        assert_eq!(run.failure.unfreeze, MaybeDuration(None));
        assert_eq!(run.failure.worker_timeout, MaybeDuration(Some(Duration::from_secs(3))));
        assert!(read(&["--shm", "/x", "--dial-timeout", "soon"]).is_err());
    }

    #[test]
    fn the_help_shows_the_endpoint_of_life_and_the_designs_timers() {
        let timers = run(&["--shm", "/x"]).timers.timers();
        assert_eq!(timers, sidecar_core::agent::Timers::default());
        let command = Cli::command();
        let is_timer = |argument: &&clap::Arg| argument.get_help_heading() == Some("Timers");
        for argument in command.get_arguments().filter(is_timer) {
            assert!(!argument.get_default_values().is_empty(), "{}", argument.get_id());
        }
        let endpoint = command.get_arguments().find(|argument| argument.get_id() == "endpoint");
        let help = endpoint.and_then(clap::Arg::get_help).map(ToString::to_string);
        assert!(help.unwrap().ends_with(&format!("[default: {}]", crate::config::DEFAULT_ENDPOINT)));
    }

    #[test]
    fn spinning_is_automatic_off_or_a_number() {
        assert_eq!(run(&["--shm", "/x"]).spin, Mode::Auto);
        assert_eq!(run(&["--shm", "/x", "--spin", "off"]).spin, Mode::Off);
        assert_eq!(run(&["--shm", "/x", "--spin", "50"]).spin, Mode::Fixed(Duration::from_micros(50)));
        assert!(read(&["--shm", "/x", "--spin", "-1"]).is_err());
    }

    #[test]
    fn a_gpu_is_an_index_a_uuid_or_none() {
        assert_eq!(run(&["--shm", "/x"]).gpu, GpuChoice::None);
        for text in ["0", "17", "GPU-51", "MIG-0a", "none"] {
            assert_eq!(run(&["--shm", "/x", "--gpu", text]).gpu.to_string(), text);
        }
        assert!(Cli::try_parse_from(["sidecar", "--shm", "/x", "--gpu", "first"]).is_err());
        assert_eq!(run(&["--shm", "/x", "--gpu", "0", "--share-gpu", "3"]).share_gpu, Some(3));
        for among in ["0", "1", "17"] {
            assert!(Cli::try_parse_from(["sidecar", "--shm", "/x", "--share-gpu", among]).is_err());
        }
    }

    #[test]
    fn a_configured_reply_needs_its_bytes() {
        assert!(read(&["--shm", "/x", "--on-failure", "reply"]).is_err());
    }
}
