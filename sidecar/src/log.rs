//! Logs: talk on stderr, human by default, one JSON object a line on request.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::time::SystemTime;

/// How log lines and errors are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Human,
    /// One JSON object a line.
    Json,
}

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Errors and warnings.
    Quiet,
    /// What a person who started it wants to see.
    #[default]
    Normal,
    /// Each step.
    Verbose,
}

/// Installs the process's logger. `SIDECAR_LOG` (a `tracing` filter) overrides the level.
pub fn start(format: Format, level: Level) {
    let default = match level {
        Level::Quiet => "warn",
        Level::Normal => "info",
        Level::Verbose => "debug",
    };
    let filter = EnvFilter::try_from_env("SIDECAR_LOG").unwrap_or_else(|_| EnvFilter::new(default));
    let colour =
        std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_target(false)
        .with_timer(SystemTime);
    // A second logger in one process can only come from a test; the first one stays.
    let _ = match format {
        Format::Human => builder.with_ansi(colour).try_init(),
        Format::Json => builder.with_ansi(false).json().flatten_event(true).try_init(),
    };
}
