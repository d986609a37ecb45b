//! Reads what sidecars leave in their regions: the log of distinct errors and the counters that mean trouble. A region
//! is gone when its sidecar has ended in order, so each one gets a second name, elsewhere, as soon as it appears.

use core::time::Duration;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use sidecar_shm::stats::{Counter, Stats};
use sidecar_shm::sync::{AtomicBool, Ordering};

/// What was found.
#[derive(Debug, Default)]
pub(crate) struct Noted {
    /// Texts of the error log, and how often.
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) counters: BTreeMap<&'static str, u64>,
    /// Regions that were looked at.
    pub(crate) regions: usize,
}

impl Noted {
    pub(crate) fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(counter.name()).copied().unwrap_or(0)
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Watcher {
    names: Arc<tempfile::TempDir>,
    expected: Mutex<Vec<String>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start(region: PathBuf) -> Self {
        // A second name has to be on the same file system.
        let beside = region.parent().and_then(Path::parent).unwrap();
        let names =
            Arc::new(tempfile::Builder::new().prefix("sidecar-test-names-").tempdir_in(beside).unwrap());
        let over = Arc::new(AtomicBool::new(false));
        let (is_over, directory) = (Arc::clone(&over), Arc::clone(&names));
        let thread = thread::spawn(move || {
            let mut known = HashSet::new();
            while !is_over.load(Ordering::Relaxed) {
                keep(&region, directory.path(), &mut known);
                thread::sleep(Duration::from_millis(3));
            }
        });
        Self { names, expected: Mutex::default(), over, thread: Some(thread) }
    }

    pub(crate) fn expect(&self, entries: &[&str]) {
        self.expected.lock().unwrap().extend(entries.iter().map(|entry| (*entry).to_owned()));
    }

    pub(crate) fn noted(&self) -> Noted {
        let mut noted = Noted::default();
        for entry in fs::read_dir(self.names.path()).unwrap() {
            // What is no region, or not yet one, has nothing to say.
            let Ok(snapshot) = Stats::open_read_only(&entry.unwrap().path()) else { continue };
            noted.regions += 1;
            for record in &snapshot.errors {
                *noted.errors.entry(record.text.clone()).or_insert(0) += record.count;
            }
            for counter in Counter::ALL {
                *noted.counters.entry(counter.name()).or_insert(0) += snapshot.counter(*counter);
            }
        }
        noted
    }

    fn surprises(&self) -> Vec<String> {
        let noted = self.noted();
        let trouble = Counter::TROUBLE.into_iter().filter(|counter| noted.counter(*counter) > 0);
        let entries = trouble.map(|counter| counter.name().to_owned()).chain(noted.errors.keys().cloned());
        let expected = self.expected.lock().unwrap();
        entries.filter(|entry| !expected.iter().any(|start| entry.starts_with(start))).collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        if !thread::panicking() {
            let surprises = self.surprises();
            assert!(surprises.is_empty(), "the region's error log or counters hold {surprises:?}");
        }
    }
}

/// Gives the region that is there now a name of our own.
fn keep(region: &Path, names: &Path, known: &mut HashSet<u64>) {
    let Ok(info) = fs::symlink_metadata(region) else { return };
    if info.is_file()
        && known.insert(info.ino())
        && fs::hard_link(region, names.join(info.ino().to_string())).is_err()
    {
        // It vanished or was replaced in between.
        known.remove(&info.ino());
    }
}
