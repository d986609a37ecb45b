//! Peers: WebSocket clients of others in one process, and iceoryx2 for the hop through shared memory.
//!
//! A program of its own, so that what measures does not carry what it measures against. Every client does the same: it
//! answers the gateway of `sidecar_benches::gateway` with the reply that the observation asks for.

mod fast;
mod iceoryx;
mod tungstenite;
mod uring;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sidecar_benches::client::Dial;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A WebSocket client
    Client {
        /// Whose
        library: Library,
        /// The gateway
        #[arg(long)]
        endpoint: String,
        /// The name it dials under
        #[arg(long)]
        agent: String,
    },
    /// One end of a ping-pong over iceoryx2
    Iceoryx(iceoryx::Args),
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Library {
    Fastwebsockets,
    Tungstenite,
    TokioUring,
}

type Failure = Box<dyn core::error::Error>;

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Iceoryx(args) => iceoryx::run(&args),
        Command::Client { library, endpoint, agent } => {
            let dial = Dial { endpoint, agent };
            match library {
                Library::Fastwebsockets => current_thread()?.block_on(fast::run(&dial)),
                Library::Tungstenite => current_thread()?.block_on(tungstenite::run(&dial)),
                Library::TokioUring => tokio_uring::start(uring::run(&dial)),
            }
        }
    }
}

fn current_thread() -> Result<tokio::runtime::Runtime, Failure> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// What a text from the gateway asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Control {
    SayReady,
    Leave,
    Nothing,
}

impl Control {
    fn of(text: &[u8]) -> Self {
        let has = |word: &[u8]| text.windows(word.len()).any(|window| window == word);
        match () {
            () if has(b"\"warmup\"") => Self::SayReady,
            () if has(b"\"drain\"") => Self::Leave,
            () => Self::Nothing,
        }
    }
}
