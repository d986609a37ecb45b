//! Regions of plays, looked at afterwards: their log of distinct errors, and the counters that mean trouble. What nobody
//! expected is a failure, whatever the programs said.
//!
//! A region is gone when its sidecar has ended in order, so it gets a second name as soon as it appears.

use core::time::Duration;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::Value;

use crate::clock::Stopwatch;
use crate::runner::{LOOK_EVERY, Stop};
use crate::steps::Context;

/// A sidecar makes its region within milliseconds.
const APPEARS_WITHIN: Duration = Duration::from_secs(20);

/// A region's second name. Dropping it takes the name away.
pub(crate) struct Watched(PathBuf);

impl Watched {
    /// Waits for the region to appear.
    ///
    /// # Errors
    /// It does not, or its directory takes no second name.
    pub(crate) fn start(region: &Path) -> Result<Self, Stop> {
        let mut name = region.as_os_str().to_owned();
        name.push(".watched");
        let name = PathBuf::from(name);
        let watch = Stopwatch::start();
        loop {
            match fs::hard_link(region, &name) {
                Ok(()) => return Ok(Self(name)),
                Err(error) if watch.elapsed() > APPEARS_WITHIN => {
                    return Err(Stop::failed(format!("{} got no second name: {error}", region.display())));
                }
                Err(_) => thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Fails on each error and each counter of trouble whose text or name does not begin with one of these.
    ///
    /// # Errors
    /// As said; the statistics cannot be read.
    pub(crate) fn expect(&self, context: &Context, expected: &[&str], limit: Duration) -> Result<(), Stop> {
        let stat = context.sidecar().args(["stat", "--json", "--shm"]).args([&self.0]);
        let found = context.runner.start_listening(stat)?.line("the region's statistics", limit, noted)?;
        let unexpected: Vec<_> = found
            .into_iter()
            .filter(|entry| !expected.iter().any(|start| entry.starts_with(start)))
            .collect();
        if unexpected.is_empty() {
            return Ok(());
        }
        Err(Stop::failed(format!("the region tells of trouble: {}", unexpected.join("; "))))
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        // In a directory for everybody; the next run would name another one.
        let _ = fs::remove_file(&self.0);
    }
}

/// Counters of trouble and texts of errors in what `sidecar stat --json` prints.
fn noted(line: &str) -> Option<Vec<String>> {
    let stat: Value = serde_json::from_str(line).ok()?;
    let counters = stat["trouble"].as_object()?.iter().map(|(name, count)| format!("{name}: {count}"));
    let errors = stat["errors"].as_array()?.iter();
    Some(counters.chain(errors.filter_map(|error| error["text"].as_str().map(str::to_owned))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_and_errors_are_noted_and_anything_else_is_no_statistics() {
        let line = r#"{"trouble": {"failed": 2}, "errors": [{"text": "worker failed: x", "count": 2}]}"#;
        assert_eq!(noted(line), Some(vec!["failed: 2".to_owned(), "worker failed: x".to_owned()]));
        assert_eq!(noted(r#"{"trouble": {}, "errors": []}"#), Some(vec![]));
        assert_eq!(noted("frames_in 3"), None);
        assert_eq!(noted("{}"), None);
    }
}
