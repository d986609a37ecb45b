//! The demo's gateway process and what it says on its standard output.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;

use serde_json::Value;

use super::Kept;
use crate::cli::DemoArgs;
use crate::report::Failure;

/// How often the demo looks at the region and the progress.
const POLL: core::time::Duration = core::time::Duration::from_millis(50);

/// What the gateway says at the end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Report {
    pub(super) cases: u64,
    pub(super) solved: u64,
    pub(super) steps: u64,
    /// Nanoseconds from observation to action.
    pub(super) p50: u64,
    pub(super) p99: u64,
    pub(super) max: u64,
}

/// A running gateway.
pub(super) struct GatewayProcess {
    _process: Kept,
    lines: Receiver<Value>,
    pub(super) endpoint: String,
    pub(super) cases: u32,
    case: u64,
}
