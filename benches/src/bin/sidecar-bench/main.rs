//! The harness of what crosses processes. `cargo xtask bench` builds everything that it needs and runs it.
//!
//! | modules | what |
//! | --- | --- |
//! | `run`, `rows`, `stats`, `report`, `chart`, `machine` | the whole run: what is compared, what that says, how it looks |
//! | `rounds`, `subjects` | end to end: the gateway here, everybody who answers it in processes of their own |
//! | `micro`, `hop`, `pingpong` | the hop through the region, and what it is compared with |
//! | `gpu` | copies to a GPU, and when an observation is there |
//! | `calls` | system calls a frame, under strace |
//! | `floor`, `socket`, `worker` | what is started: bare clients, the socket side alone, a worker |
//! | `cores`, `place`, `processes`, `random` | tools |

mod calls;
mod chart;
mod cores;
mod floor;
mod gpu;
mod hop;
mod machine;
mod micro;
mod pingpong;
mod place;
mod processes;
mod random;
mod report;
mod rounds;
mod rows;
mod run;
mod socket;
mod stats;
mod subjects;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use floor::{Waiting, Work};
use sidecar::driver::RingMode;
use sidecar_benches::client::Dial;
use sidecar_shm::spin::Mode;

/// Measures the sidecar beside floors and peers.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Everything, with a report
    Run(Box<run::Args>),
    /// System calls a frame of the sidecar, under strace, against the design's limits
    Calls {
        /// The sidecar
        #[arg(long, value_name = "PATH")]
        sidecar: PathBuf,
    },
    /// What a GPU gets of an observation, and when; skipped where there is none
    Gpu(gpu::Args),
    /// A worker that replies as the gateway expects it
    Worker(worker::Args),
    /// The other process of the bare ping-pong
    Partner(pingpong::Partner),
    /// A bare client that blocks
    Floor(DialArgs),
    /// A bare client that spins
    SpinningFloor(DialArgs),
    /// A bare client that blocks, and wakes another process for each observation
    Relay(DialArgs),
    /// The socket side of the sidecar, without a worker
    Socket {
        #[command(flatten)]
        dial: DialArgs,
        /// Which driver
        #[arg(long, value_enum)]
        io: socket::Io,
        /// How it waits
        #[arg(long, default_value = "auto", value_parser = worker::mode)]
        spin: Mode,
        /// How the ring is set up
        #[arg(long, value_enum, default_value_t)]
        ring: RingMode,
    },
}

/// Where to dial, and as whom.
#[derive(Debug, clap::Args)]
struct DialArgs {
    /// The gateway
    #[arg(long)]
    endpoint: String,
    /// The name it dials under
    #[arg(long)]
    agent: String,
}

impl DialArgs {
    fn dial(&self) -> Dial {
        Dial { endpoint: self.endpoint.clone(), agent: self.agent.clone() }
    }
}

fn main() -> ExitCode {
    let done = |result: std::io::Result<()>| result.map(|()| ExitCode::SUCCESS);
    let result = match Cli::parse().command {
        Command::Run(args) => run::run(&args),
        Command::Calls { sidecar } => calls::run(&sidecar),
        Command::Gpu(args) => gpu::run(&args),
        Command::Worker(args) => done(worker::run(&args)),
        Command::Partner(partner) => done(partner.run()),
        Command::Floor(args) => done(floor::run(&args, Waiting::Block, Work::Nothing)),
        Command::SpinningFloor(args) => done(floor::run(&args, Waiting::Spin, Work::Nothing)),
        Command::Relay(args) => done(floor::run(&args, Waiting::Block, Work::Relay)),
        Command::Socket { dial, io, spin, ring } => done(socket::run(&dial, io, spin, ring)),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}
