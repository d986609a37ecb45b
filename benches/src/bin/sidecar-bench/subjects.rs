//! Who is measured end to end, and how each one is started.

use std::io;
use std::path::PathBuf;
use std::process::Command;

use crate::place::Place;
use crate::processes::Process;

/// Where the programs are that a run needs.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Programs {
    /// The sidecar
    #[arg(long, value_name = "PATH")]
    pub(crate) sidecar: PathBuf,
    /// `sidecar-bench-peers`; without it those peers are missing
    #[arg(long, value_name = "PATH")]
    pub(crate) peers: Option<PathBuf>,
    /// The client on Boost.Beast
    #[arg(long, value_name = "PATH")]
    pub(crate) beast: Option<PathBuf>,
    /// Interpreter of the environment with picows, websockets and our package
    #[arg(long, value_name = "PATH")]
    pub(crate) python: Option<PathBuf>,
    /// Directory of the Python peers' sources
    #[arg(long, value_name = "PATH")]
    pub(crate) scripts: Option<PathBuf>,
    /// How io_uring is set up: for comparing
    #[arg(long, default_value = "auto", value_name = "MODE")]
    pub(crate) ring: String,
}

/// One who answers the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    /// One thread, blocking.
    Floor,
    /// One thread that spins.
    SpinningFloor,
    /// One thread, blocking, and a process that is woken up for each observation.
    Relay,
    /// Our drivers, codec and way to wait, without a worker.
    SocketUring,
    SocketEpoll,
    /// Three processes.
    Uring,
    Epoll,
    /// Three processes, the worker in Python.
    UringPython,
    Fastwebsockets,
    Tungstenite,
    TokioUring,
    Beast,
    Picows,
    Websockets,
}

/// The worker of a sidecar: on which cores, and how it waits.
#[derive(Debug, Clone)]
pub(crate) struct Seating {
    /// Cores of a client that is one process, or of the sidecar.
    pub(crate) client: Vec<usize>,
    /// The frame loop pins itself there.
    pub(crate) frame_loop: Option<usize>,
    /// Cores of the worker.
    pub(crate) worker: Vec<usize>,
    /// `--spin` of the sidecar and of the worker.
    pub(crate) spin: [&'static str; 2],
}

impl Subject {
    /// What tables and pictures call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Floor => "bare blocking client",
            Self::SpinningFloor => "bare spinning client",
            Self::Relay => "bare client and worker",
            Self::SocketUring => "socket side, uring",
            Self::SocketEpoll => "socket side, epoll",
            Self::Uring => "sidecar, uring",
            Self::Epoll => "sidecar, epoll",
            Self::UringPython => "sidecar, Python worker",
            Self::Fastwebsockets => "fastwebsockets",
            Self::Tungstenite => "tokio-tungstenite",
            Self::TokioUring => "tokio-uring",
            Self::Beast => "Boost.Beast",
            Self::Picows => "picows",
            Self::Websockets => "Python websockets",
        }
    }

    /// Whether observations without a payload can be compared: a worker library's serve loop answers them by itself.
    pub(crate) const fn takes_empty(self) -> bool {
        !matches!(self, Self::UringPython)
    }

    /// Starts it; it will dial `endpoint` as `agent`.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] with what is missing on this machine, in a few words.
    pub(crate) fn start(
        self,
        programs: &Programs,
        seating: &Seating,
        endpoint: &str,
        agent: &str,
    ) -> io::Result<Started> {
        let own = || -> io::Result<Command> { Ok(Command::new(std::env::current_exe()?)) };
        let mut command = match self {
            Self::Uring => return sidecar("uring", Worker::Rust, programs, seating, endpoint, agent),
            Self::Epoll => return sidecar("epoll", Worker::Rust, programs, seating, endpoint, agent),
            Self::UringPython => return sidecar("uring", Worker::Python, programs, seating, endpoint, agent),
            Self::Floor | Self::SpinningFloor | Self::Relay => {
                let mut command = own()?;
                command.arg(match self {
                    Self::SpinningFloor => "spinning-floor",
                    Self::Relay => "relay",
                    _ => "floor",
                });
                command
            }
            Self::SocketUring | Self::SocketEpoll => {
                let mut command = own()?;
                let io = if self == Self::SocketUring { "uring" } else { "epoll" };
                command.args(["socket", "--io", io, "--ring", &programs.ring]);
                command
            }
            Self::Fastwebsockets => peer(programs, "fastwebsockets")?,
            Self::Tungstenite => peer(programs, "tungstenite")?,
            Self::TokioUring => peer(programs, "tokio-uring")?,
            Self::Beast => {
                let program = programs.beast.as_ref().ok_or_else(|| missing("libboost-dev or g++"))?;
                let rest = endpoint.trim_start_matches("ws://");
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                let (host, port) = host.split_once(':').unwrap_or((host, "80"));
                let mut command = Command::new(program);
                command.args([host, port, &format!("/{path}"), agent]);
                return one(self, seating, command);
            }
            Self::Picows | Self::Websockets => {
                let script = if self == Self::Picows { "picows_client.py" } else { "websockets_client.py" };
                let mut command = python(programs, script)?;
                command.args([endpoint, agent]);
                return one(self, seating, command);
            }
        };
        command.args(["--endpoint", endpoint, "--agent", agent]);
        one(self, seating, command)
    }
}

/// Processes of one subject. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Started {
    /// The one that holds the socket first.
    pub(crate) processes: Vec<Process>,
    /// Region and files of a sidecar.
    pub(crate) place: Option<Place>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Worker {
    Rust,
    Python,
}

fn one(subject: Subject, seating: &Seating, mut command: Command) -> io::Result<Started> {
    crate::cores::stay_on(&seating.client)?;
    let process = Process::start(subject.name(), &mut command)?;
    Ok(Started { processes: vec![process], place: None })
}

fn sidecar(
    io: &str,
    worker: Worker,
    programs: &Programs,
    seating: &Seating,
    endpoint: &str,
    agent: &str,
) -> io::Result<Started> {
    let place = Place::new()?;
    let mut worker = match worker {
        Worker::Rust => {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["worker", "--spin", seating.spin[1], "--shm"]);
            command
        }
        Worker::Python => python(programs, "sidecar_worker.py")?,
    };
    worker.arg(place.region());
    let mut command = Command::new(&programs.sidecar);
    command.args(place.sidecar_arguments(endpoint, agent));
    command.args(["--io", io, "--spin", seating.spin[0], "--ring", &programs.ring]);
    if let Some(core) = seating.frame_loop {
        command.arg("--cpu").arg(core.to_string());
    }
    crate::cores::stay_on(&seating.client)?;
    let sidecar = Process::start("the sidecar", &mut command)?;
    crate::cores::stay_on(&seating.worker)?;
    let worker = Process::start("the worker", &mut worker)?;
    Ok(Started { processes: vec![sidecar, worker], place: Some(place) })
}

fn peer(programs: &Programs, name: &str) -> io::Result<Command> {
    let program = programs.peers.as_ref().ok_or_else(|| missing("sidecar-bench-peers"))?;
    let mut command = Command::new(program);
    command.args(["client", name]);
    Ok(command)
}

fn python(programs: &Programs, script: &str) -> io::Result<Command> {
    let (interpreter, script) = programs.python_script(script)?;
    let mut command = Command::new(interpreter);
    command.arg(script).env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

impl Programs {
    /// The interpreter and one of the scripts.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] where there is no Python environment.
    pub(crate) fn python_script(&self, script: &str) -> io::Result<(PathBuf, PathBuf)> {
        match (&self.python, &self.scripts) {
            (Some(python), Some(scripts)) => Ok((python.clone(), scripts.join(script))),
            _ => Err(missing("the Python environment")),
        }
    }
}

fn missing(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, what.to_owned())
}
