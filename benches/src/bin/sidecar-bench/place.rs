//! A directory of shared memory for one sidecar, with the files that it is started with.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

/// Removed with everything in it when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    /// # Errors
    /// If `/dev/shm` takes no more.
    pub(crate) fn new() -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("sidecar-bench-").tempdir_in("/dev/shm")?;
        std::fs::write(directory.path().join("token"), "bench")?;
        std::fs::write(directory.path().join("env"), "")?;
        Ok(Self { directory })
    }

    /// Path of the region.
    pub(crate) fn region(&self) -> PathBuf {
        self.path().join("obs0")
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Arguments of a sidecar that lives here. Pings are put off: an exchange is what is measured.
    pub(crate) fn sidecar_arguments(&self, endpoint: &str, agent: &str) -> Vec<OsString> {
        let path = |name: &str| self.path().join(name).into_os_string();
        vec![
            "--quiet".into(),
            "--gpu".into(),
            "none".into(),
            "--job".into(),
            "0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11".into(),
            "--agent".into(),
            agent.into(),
            "--endpoint".into(),
            endpoint.into(),
            "--token-file".into(),
            path("token"),
            "--env-file".into(),
            path("env"),
            "--shm".into(),
            path("obs0"),
        ]
    }
}
