//! The hop's rows: ours, the bare ping-pongs and iceoryx2, a burst of each in every round, in another order each time.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Command;

use sidecar_benches::batches::{self, Batches};
use sidecar_shm::clock::Stamps;

use crate::cores::{self, Cores};
use crate::hop::{Hop, Waiting};
use crate::pingpong;
use crate::processes::Process;
use crate::random::Random;
use crate::socket::Io;
use crate::stats;
use crate::subjects::Programs;

/// One ping-pong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Micro {
    /// A cache line each way, spinning on two cores.
    CacheLine,
    /// Futex and eventfd, sleeping on one core.
    FutexAndEventfd,
    /// Ours, spinning on two cores.
    Hop {
        bytes: usize,
        touch: bool,
        stamps: Stamped,
    },
    /// Ours, sleeping on one core.
    Blocking(Io),
    /// Ours, both sides adaptive on two cores, with an empty handler in this language.
    Handler(Language),
    /// Ours with a worker that thinks, on two cores.
    Thinking(Thinking),
    PublishSubscribe {
        bytes: usize,
        touch: bool,
    },
    RequestResponse {
        bytes: usize,
        touch: bool,
    },
}

/// Whether each descriptor carries times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Stamped {
    Yes,
    No,
}

/// What a worker is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Language {
    Rust,
    Python,
}

/// How both sides wait meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Thinking {
    Adaptive,
    Blocking,
}

/// Microseconds that the worker thinks.
pub(crate) const THINK_US: u32 = 100;
/// Payloads of the hop.
pub(crate) const SIZES: [usize; 3] = [64, 64 << 10, 1 << 20];

/// All of them.
pub(crate) fn all() -> Vec<Micro> {
    let mut all = vec![Micro::CacheLine, Micro::FutexAndEventfd];
    all.extend([Io::Uring, Io::Epoll].map(Micro::Blocking));
    all.extend([Language::Rust, Language::Python].map(Micro::Handler));
    all.extend([Thinking::Adaptive, Thinking::Blocking].map(Micro::Thinking));
    for bytes in SIZES {
        all.push(Micro::Hop { bytes, touch: false, stamps: Stamped::No });
        for touch in [false, true] {
            all.push(Micro::Hop { bytes, touch, stamps: Stamped::Yes });
            all.push(Micro::PublishSubscribe { bytes, touch });
            all.push(Micro::RequestResponse { bytes, touch });
        }
    }
    all
}

/// Median nanoseconds there and back, one for each round; the reason where something could not be measured.
#[derive(Debug, Default)]
pub(crate) struct Medians {
    pub(crate) rounds: HashMap<Micro, Vec<f64>>,
    pub(crate) missing: HashMap<Micro, String>,
}

impl Medians {
    /// Why one of these could not be measured.
    pub(crate) fn why_missing(&self, of: impl IntoIterator<Item = Micro>) -> Option<String> {
        of.into_iter().find_map(|micro| self.missing.get(&micro)).map(|what| format!("missing: {what}"))
    }
}

/// Measures all of them.
///
/// # Errors
/// Something broke; what is merely missing on this machine is in the result.
pub(crate) fn measure(programs: &Programs, cores: &Cores, rounds: u32, seed: u64) -> io::Result<Medians> {
    let mut medians = Medians::default();
    let mut plan = all();
    let mut random = Random(seed);
    for round in 0..rounds {
        random.shuffle(&mut plan);
        for micro in plan.iter().copied() {
            if medians.missing.contains_key(&micro) {
                continue;
            }
            match micro.run(programs, cores, &format!("sidecar-bench-{}-{round}", std::process::id())) {
                Ok(nanos) => medians.rounds.entry(micro).or_default().push(stats::median(&nanos)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    medians.missing.insert(micro, error.to_string());
                }
                Err(error) => return Err(io::Error::new(error.kind(), format!("{micro:?}: {error}"))),
            }
        }
        eprint!("\rhop: round {} of {rounds}   ", round + 1);
    }
    eprintln!();
    cores::stay_on(cores.all())?;
    Ok(medians)
}

impl Micro {
    fn run(self, programs: &Programs, cores: &Cores, service: &str) -> io::Result<Vec<f64>> {
        let peers = programs.peers.as_deref();
        let first = cores.get(0).unwrap_or(0);
        let two = || {
            let second = cores.get(1).ok_or_else(|| missing("a second core"))?;
            Ok::<_, io::Error>([first, second])
        };
        let fast = Batches { trips: 64, batches: 200 };
        let slow = Batches { trips: 8, batches: 60 };
        let hop = |bytes, touch, stamps, waiting, think, cores_of| Hop {
            bytes,
            touch,
            stamps,
            waiting,
            think,
            python: None,
            cores: cores_of,
            all: cores.all().to_vec(),
        };
        match self {
            Self::CacheLine => {
                let [here, there] = two()?;
                pingpong::cache_line(here, there, fast)
            }
            Self::FutexAndEventfd => pingpong::futex_and_eventfd(first, slow),
            Self::Hop { bytes, touch, stamps } => {
                let stamps = if stamps == Stamped::Yes { Stamps::On } else { Stamps::Off };
                let plan = if touch && bytes > 4096 { slow } else { fast };
                hop(bytes, touch, stamps, Waiting::Spin, 0, two()?).run(plan)
            }
            Self::Blocking(io) => hop(64, false, Stamps::On, Waiting::Block(io), 0, [first, first]).run(slow),
            Self::Handler(language) => {
                let rust = hop(64, false, Stamps::On, Waiting::Adaptive, 0, two()?);
                let python = match language {
                    Language::Rust => None,
                    Language::Python => Some(programs.python_script("empty_worker.py")?),
                };
                Hop { python, ..rust }.run(fast)
            }
            Self::Thinking(thinking) => {
                let waiting = match thinking {
                    Thinking::Adaptive => Waiting::Adaptive,
                    Thinking::Blocking => Waiting::Block(Io::Uring),
                };
                hop(64, false, Stamps::On, waiting, THINK_US, two()?).run(slow)
            }
            Self::PublishSubscribe { bytes, touch } => {
                iceoryx(peers, "publish-subscribe", service, bytes, touch, two()?)
            }
            Self::RequestResponse { bytes, touch } => {
                iceoryx(peers, "request-response", service, bytes, touch, two()?)
            }
        }
    }
}

/// A peer that breaks costs its own rows, not the run.
fn iceoryx(
    peers: Option<&Path>,
    pattern: &str,
    service: &str,
    bytes: usize,
    touch: bool,
    cores: [usize; 2],
) -> io::Result<Vec<f64>> {
    run_iceoryx(peers, pattern, service, bytes, touch, cores)
        .map_err(|error| missing(&format!("iceoryx2's {pattern} with {bytes} bytes: {error}")))
}

fn run_iceoryx(
    peers: Option<&Path>,
    pattern: &str,
    service: &str,
    bytes: usize,
    touch: bool,
    [here, there]: [usize; 2],
) -> io::Result<Vec<f64>> {
    let program = peers.ok_or_else(|| missing("sidecar-bench-peers"))?;
    let service = format!("{service}-{pattern}-{bytes}-{touch}");
    let end = |end: &str| {
        let mut command = Command::new(program);
        command.args(["iceoryx", end, "--pattern", pattern, "--service", &service]);
        command.args(["--bytes", &bytes.to_string()]);
        if touch {
            command.arg("--touch");
            command.args(["--trips", "8", "--batches", "60"]);
        }
        command
    };
    cores::stay_on(&[there])?;
    let pong = Process::start("iceoryx2's other end", &mut end("pong"))?;
    cores::stay_on(&[here])?;
    let (ping, output) = Process::start_listening("iceoryx2", &mut end("ping"))?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    ping.finish()?;
    // It polls for ever.
    drop(pong);
    batches::from_line(&line).ok_or_else(|| io::Error::other(format!("iceoryx2 said {line:?}")))
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what.to_owned())
}
