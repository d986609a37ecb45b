//! End to end: every subject at every size, round by round, in another order each time.
//!
//! All subjects of a placement stay connected; one is asked at a time, in a burst, while the others sleep. So whatever
//! the machine does for a while (a neighbour, a clock) meets all of them, and ratios are taken within a round.

use core::time::Duration;
use std::collections::HashMap;
use std::io;

use sidecar_benches::gateway::{Gateway, Tunnel, Waiting};
use sidecar_benches::observation::Observation;
use sidecar_shm::clock;
use sidecar_shm::stats::{Counter, Stats};

use crate::cores::{self, Cores};
use crate::random::Random;
use crate::stats;
use crate::subjects::{Programs, Seating, Started, Subject};

/// Where everybody runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
pub(crate) enum Placement {
    /// All processes on one core: what an exchange costs in CPU time.
    OneCpu,
    /// The gateway spins on one core, as if it were far away; the client's side has another one.
    SpinningGateway,
    /// The gateway blocks on one core; peers block on another, where the sidecar may spin.
    FreeCore,
}

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Load {
    /// Observations of this size in lockstep.
    Lockstep(usize),
    /// Observations of this size, the next one sent before the last one is answered.
    Stream(usize),
}

/// What was measured.
pub(crate) type Cells = HashMap<(Placement, Subject, Load), Vec<Burst>>;

/// One burst: nanoseconds of each exchange, sorted.
#[derive(Debug, Clone)]
pub(crate) struct Burst(pub(crate) Vec<f64>);

impl Burst {
    pub(crate) fn median(&self) -> f64 {
        stats::quantile(&self.0, 0.5).unwrap_or(0.0)
    }
}

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) rounds: u32,
    /// Time of a burst, more or less.
    pub(crate) burst: Duration,
    pub(crate) seed: u64,
}

/// What is measured, by whose programs, where.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work<'a> {
    pub(crate) placement: Placement,
    pub(crate) subjects: &'a [Subject],
    pub(crate) loads: &'a [Load],
    pub(crate) programs: &'a Programs,
    pub(crate) cores: &'a Cores,
}

/// Observations in flight while streaming.
const AHEAD: u32 = 3;
const STREAMED: u32 = 16;
const PATIENCE: Duration = Duration::from_secs(30);
const LEAST: u32 = 4;
const MOST: u32 = 300;

impl Placement {
    /// What tables call it.
    pub(crate) fn describe(self, cores: &Cores) -> String {
        match self {
            Self::OneCpu => "all on one CPU".to_owned(),
            Self::SpinningGateway => "gateway spinning on one core, client side on another".to_owned(),
            Self::FreeCore if cores.count() > 2 => {
                "gateway, frame loop and worker on a core each; peers on the frame loop's".to_owned()
            }
            Self::FreeCore => {
                "gateway and our worker on one core, client or frame loop on another".to_owned()
            }
        }
    }

    fn gateway(self, cores: &Cores) -> (Vec<usize>, Waiting) {
        let first = cores.all()[..1].to_vec();
        let waiting = if self == Self::SpinningGateway { Waiting::Spin } else { Waiting::Block };
        (first, waiting)
    }

    /// `None`: there are too few cores.
    fn seating(self, cores: &Cores, subject: Subject) -> Option<Seating> {
        let first = cores.get(0)?;
        let only = |core| vec![core];
        Some(match self {
            Self::OneCpu => {
                Seating { client: only(first), frame_loop: None, worker: only(first), spin: ["auto", "auto"] }
            }
            Self::SpinningGateway => {
                let second = cores.get(1)?;
                Seating {
                    client: only(second),
                    frame_loop: None,
                    worker: only(second),
                    spin: ["auto", "auto"],
                }
            }
            Self::FreeCore => {
                let second = cores.get(1)?;
                let ours = matches!(subject, Subject::Uring | Subject::Epoll | Subject::UringPython);
                Seating {
                    // The sidecar looks at how many cores there are before it pins itself.
                    client: if ours { cores.all().to_vec() } else { only(second) },
                    frame_loop: ours.then_some(second),
                    worker: only(cores.get(2).unwrap_or(first)),
                    spin: ["auto", if cores.count() > 2 { "1000" } else { "off" }],
                }
            }
        })
    }
}

/// A subject that is connected.
struct Live {
    subject: Subject,
    tunnel: Tunnel,
    started: Started,
}

/// What is known of a sidecar after its exchanges.
#[derive(Debug, Clone, Copy, Default, serde::Serialize)]
pub(crate) struct After {
    /// Payload bytes that were moved in user space, of those that came.
    pub(crate) moved: u64,
    pub(crate) received: u64,
    /// Shares of a core while nothing happens: the sidecar's, the worker's.
    pub(crate) idle: Option<(f64, f64)>,
}

/// What a placement gave.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Subjects that could not be measured, and why.
    pub(crate) missing: Vec<(Subject, String)>,
    pub(crate) after: HashMap<Subject, After>,
}

/// Measures one placement.
///
/// # Errors
/// A subject answered wrongly or went away: then nothing measured is worth anything.
pub(crate) fn measure(
    work: &Work<'_>,
    effort: Effort,
    idle: Option<Duration>,
    cells: &mut Cells,
) -> io::Result<Outcome> {
    let Work { placement, subjects, loads, programs, cores } = *work;
    let mut outcome = Outcome::default();
    let gateway = Gateway::bind()?;
    let mut live = Vec::new();
    for subject in subjects {
        let Some(seating) = placement.seating(cores, *subject) else {
            outcome.missing.push((*subject, "a second core".to_owned()));
            continue;
        };
        match connect(*subject, programs, &seating, &gateway) {
            Ok(connected) => live.push(connected),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                outcome.missing.push((*subject, error.to_string()));
            }
            Err(error) => return Err(named(*subject, error)),
        }
    }
    let (own, waiting) = placement.gateway(cores);
    cores::stay_on(&own)?;
    for live in &mut live {
        live.tunnel.wait_by(waiting)?;
    }
    let mut observations = loads.iter().map(|load| load.observation()).collect::<Vec<_>>();
    let mut plan = (0..live.len())
        .flat_map(|who| (0..loads.len()).map(move |what| (who, what)))
        .filter(|(who, what)| live[*who].subject.takes_empty() || loads[*what].size() > 0)
        .collect::<Vec<_>>();
    let mut random = Random(effort.seed);
    for round in 0..effort.rounds {
        random.shuffle(&mut plan);
        for (who, what) in plan.iter().copied() {
            for live in &mut live {
                live.tunnel.serve_idle().map_err(|error| named(live.subject, error))?;
            }
            let Live { subject, tunnel, .. } = &mut live[who];
            let burst = burst(tunnel, loads[what], &mut observations[what], effort.burst)
                .map_err(|error| named(*subject, error))?;
            cells.entry((placement, *subject, loads[what])).or_default().push(burst);
        }
        eprint!("\r{placement:?}: round {} of {}   ", round + 1, effort.rounds);
    }
    eprintln!();
    for live in &mut live {
        if let Some(after) = after(live, idle).map_err(|error| named(live.subject, error))? {
            outcome.after.insert(live.subject, after);
        }
    }
    for Live { subject, tunnel, started } in live {
        tunnel.drain().map_err(|error| named(subject, error))?;
        for process in started.processes {
            process.finish()?;
        }
    }
    cores::stay_on(cores.all())?;
    Ok(outcome)
}

impl Load {
    pub(crate) const fn size(self) -> usize {
        match self {
            Self::Lockstep(size) | Self::Stream(size) => size,
        }
    }

    fn observation(self) -> Observation {
        Observation::new(self.size())
    }
}

fn connect(subject: Subject, programs: &Programs, seating: &Seating, gateway: &Gateway) -> io::Result<Live> {
    let started = subject.start(programs, seating, gateway.endpoint(), &format!("{subject:?}"))?;
    let tunnel = gateway.accept(PATIENCE)?;
    Ok(Live { subject, tunnel, started })
}

fn burst(
    tunnel: &mut Tunnel,
    load: Load,
    observation: &mut Observation,
    time: Duration,
) -> io::Result<Burst> {
    let mut nanos = Vec::new();
    match load {
        Load::Stream(_) => {
            tunnel.exchange(observation)?;
            let took = tunnel.stream(observation, STREAMED, AHEAD)?;
            nanos.push(took.as_nanos() as f64 / f64::from(STREAMED));
        }
        Load::Lockstep(_) => {
            // The first one finds caches and sleepers as the last subject left them.
            let first = tunnel.exchange(observation)?.max(tunnel.exchange(observation)?);
            let count = time.as_nanos() / first.as_nanos().max(1);
            let count = u32::try_from(count).unwrap_or(MOST).clamp(LEAST, MOST);
            for _ in 0..count {
                nanos.push(tunnel.exchange(observation)?.as_nanos() as f64);
            }
        }
    }
    nanos.sort_by(f64::total_cmp);
    Ok(Burst(nanos))
}

/// Sizes at which moved bytes are counted, each for some exchanges after two that show the sidecar the size.
const COUNTED: [usize; 4] = [64, 16 << 10, 256 << 10, 2 << 20];
const COUNTED_EXCHANGES: u32 = 20;

/// Only sidecars have a place.
fn after(live: &mut Live, idle: Option<Duration>) -> io::Result<Option<After>> {
    let Live { tunnel, started, .. } = live;
    let Some(place) = &started.place else { return Ok(None) };
    let counters = || {
        let snapshot = Stats::open_read_only(&place.region()).map_err(io::Error::other)?;
        Ok::<_, io::Error>([Counter::MovedBytes, Counter::BytesIn].map(|counter| snapshot.counter(counter)))
    };
    let mut after = After::default();
    for size in COUNTED {
        let mut observation = Observation::new(size);
        let mut exchange = |times| (0..times).try_for_each(|_| tunnel.exchange(&mut observation).map(drop));
        exchange(2)?;
        let before = counters()?;
        exchange(COUNTED_EXCHANGES)?;
        let [moved, received] = counters()?;
        after.moved += moved - before[0];
        after.received += received - before[1];
    }
    if let (Some(time), [sidecar, worker]) = (idle, &started.processes[..]) {
        let before = (sidecar.cpu_time()?, worker.cpu_time()?);
        let start = clock::now();
        std::thread::sleep(time);
        let took = clock::now().since(start).as_secs_f64();
        let share = |process: &crate::processes::Process, before: Duration| {
            Ok::<_, io::Error>((process.cpu_time()?.saturating_sub(before)).as_secs_f64() / took)
        };
        after.idle = Some((share(sidecar, before.0)?, share(worker, before.1)?));
    }
    Ok(Some(after))
}

fn named(subject: Subject, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", subject.name()))
}
