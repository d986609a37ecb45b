//! The rehearsal gateway: the whole server side of the tunnel contract, with faults on request.
//!
//! It shares nothing with the sidecar's protocol core: hyper does the upgrade, fastwebsockets the framing, so that
//! the codec never tests itself. What it plays is behind a trait ([`simulator::Simulator`]).
//!
//! ```text
//! server   HTTP: who is let in (401, 500, 101-then-close)      job      agents, cases, report; shared
//! tunnel   one agent's state machine, sessions, the window     link     one connection: reading task and outlet
//! inspect  breaches of RFC 6455 that fastwebsockets lets pass  outlet   writing, in unfriendly ways on request
//! ```
//!
//! # Standard output
//!
//! One JSON object a line: first the address, then [`report::GatewayEvent`]s, which all have `event`, and at the end
//! the [`report::Report`], which has none. Numbers are of steps, frames or nanoseconds; cases and steps count from 0.
//!
//! ```json
//! {"endpoint":"ws://127.0.0.1:9000/api/challenge/tunnel","listening":"127.0.0.1:9000"}
//! {"event":"connected","agent":"6f1f...","resumed":false}
//! {"event":"case","case":0,"session":"1728..."}
//! {"event":"step","case":0,"step":25}
//! {"event":"exchange_lost","case":0,"step":30,"why":"cut on request"}
//! {"event":"disconnected","agent":"6f1f...","why":"cut on request"}
//! {"event":"refused","status":401,"why":"there is no such job"}
//! {"event":"case_ended","case":0,"solved":true,"steps":500,"how":"solved"}
//! {"event":"drained","agent":"6f1f..."}
//! {"event":"window_expired","agent":"6f1f..."}
//! {"cases":1,"solved":1,"steps":500,"latency_ns":{"count":499,"p50":90000,"p99":210000,"max":900000},
//!  "lost_exchanges":1,"reasked":1,"duplicate_answers":0,"dropped_frames":0,"unknown_session":0,"connections":2,
//!  "faults_left":0,"failure":null}
//! ```
//!
//! (The report is one line too.) A job ends when each case was played and each agent has closed after `drain`, or with
//! the reconnect window of an agent (`failure`); in the latter case dials are answered with 401 for `--linger` more.
//! Ctrl-C ends it at once (`failure`: interrupted).
//!
//! The window opens however an agent leaves before `drain`, in order (1000) or not. The contract speaks of an unclean
//! close (A.5) and is silent about a clean one; an agent that keeps the window in both cases is right either way.
//!
//! # Lockstep without sequence numbers
//!
//! An answer names its session but not its observation, so the gateway takes any answer while one is outstanding. With
//! `--on-lost reask`, an answer that was kept for longer than `--reask-after` and comes behind the second asking
//! counts for the step after it: real simulators cannot tell either.

pub mod args;
pub mod cartpole;
pub mod duration;
pub mod faults;
mod inspect;
mod job;
mod link;
mod message;
pub mod options;
mod outlet;
pub mod picture;
mod random;
pub mod report;
mod server;
pub mod simulator;
mod tunnel;
mod wire;

use core::time::Duration;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

pub use args::Args;
use job::Job;
use options::Options;
use report::{GatewayEvent, Report};
use simulator::Factory;

/// Why there is no gateway.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// Nothing to compare an agent's token with.
    #[error("no token: set JOB_TOKEN, or pass --token-file FILE")]
    NoToken,
    /// The token file cannot be read.
    #[error("reading the token file {}: {source}", path.display())]
    TokenFile {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The address cannot be listened on.
    #[error("listening on {address}: {source}; choose another --listen")]
    Listen {
        /// The address.
        address: core::net::SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// No runtime.
    #[error("the runtime cannot start: {0}")]
    Runtime(io::Error),
}

/// How often it is looked whether every tunnel is over.
const LOOK: Duration = Duration::from_millis(20);

/// Serves one job on `listener` until it is over: all cases ended, or the reconnect window of an agent passed.
pub async fn serve(
    listener: TcpListener,
    options: Options,
    simulators: Factory,
    events: mpsc::UnboundedSender<GatewayEvent>,
) -> Report {
    play(&listener, &Arc::new(Job::new(options, simulators, events))).await
}

async fn play(listener: &TcpListener, job: &Arc<Job>) -> Report {
    accept_until(listener, job, async {
        let mut looks = tokio::time::interval(LOOK);
        while !job.is_finished() {
            looks.tick().await;
        }
    })
    .await;
    let report = job.report();
    if report.failure.is_some() {
        // Agents that do not know it yet find out.
        accept_until(listener, job, tokio::time::sleep(job.options.timers.linger)).await;
    }
    report
}

async fn accept_until(listener: &TcpListener, job: &Arc<Job>, end: impl Future<Output = ()>) {
    tokio::pin!(end);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    tokio::spawn(server::serve(stream, Arc::clone(job)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(LOOK).await;
                }
            },
            () = &mut end => return,
        }
    }
}

/// Plays the gateway of the command line, telling on standard output; the report is also returned.
///
/// # Errors
/// It cannot start.
pub fn run(args: Args) -> Result<Report, GatewayError> {
    let address = args.listen;
    let (options, simulators) = args.options()?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(GatewayError::Runtime)?;
    runtime.block_on(async {
        let listener =
            TcpListener::bind(address).await.map_err(|source| GatewayError::Listen { address, source })?;
        let address = listener.local_addr().map_err(|source| GatewayError::Listen { address, source })?;
        let endpoint = format!("ws://{address}/api/challenge/tunnel");
        tell(&serde_json::json!({"listening": address.to_string(), "endpoint": endpoint}));
        let (events, mut told) = mpsc::unbounded_channel();
        let teller = tokio::spawn(async move {
            while let Some(event) = told.recv().await {
                tell(&event);
            }
        });
        let job = Arc::new(Job::new(options, simulators, events));
        let report = tokio::select! {
            report = play(&listener, &job) => report,
            Ok(()) = tokio::signal::ctrl_c() => {
                job.end(Some("interrupted".to_owned()));
                job.report()
            }
        };
        drop(job);
        // Connections that are being let go may hold their end of the channel a little longer than the job.
        let _ = tokio::time::timeout(Duration::from_secs(1), teller).await;
        tell(&report);
        Ok(report)
    })
}

fn tell(line: &impl serde::Serialize) {
    let mut text = serde_json::to_string(line).expect("plain values are always JSON");
    text.push('\n');
    let mut out = io::stdout().lock();
    // A closed pipe is a reader that has seen enough; the job goes on.
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}
