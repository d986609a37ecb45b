//! Settings: flags, then the environment, then the state file, then defaults.

use std::path::PathBuf;

use sidecar_core::tunnel::{AgentId, JobId};

mod endpoint;
mod env_file;
mod token;

pub use endpoint::{DEFAULT as DEFAULT_ENDPOINT, Target, parse as parse_endpoint};
pub use env_file::{EnvFile, default_path as default_env_file};
pub use token::{Token, TokenSources, VARIABLES as TOKEN_VARIABLES};

use crate::explain::Code;
use crate::report::Failure;

/// Looks names up in the environment and then in the state file; an empty value counts as absent.
#[derive(Debug, Default)]
pub struct Lookup {
    file: EnvFile,
    path: Option<PathBuf>,
}

impl Lookup {
    /// Reads the state file at `path`, or the default one.
    ///
    /// # Errors
    /// The file is there and cannot be read.
    pub fn new(path: Option<PathBuf>) -> Result<Self, Failure> {
        if let Some(named) = path.as_ref().filter(|path| !path.exists()) {
            return Err(Failure::new(
                Code::Settings,
                format!("the state file {} is not there", named.display()),
            )
            .hint("correct --env-file, or leave it out"));
        }
        let path = path.or_else(default_env_file);
        let file = match &path {
            None => EnvFile::default(),
            Some(path) => EnvFile::load(path).map_err(|error| {
                Failure::new(Code::Settings, format!("the state file {} cannot be read", path.display()))
                    .because(error)
                    .hint("fix its permissions, or name another one with --env-file")
            })?,
        };
        Ok(Self { file, path })
    }

    /// The value of `name`.
    pub fn value(&self, name: &str) -> Option<String> {
        std::env::var(name)
            .ok()
            .filter(|value| !value.is_empty())
            .or_else(|| self.file.value(name).map(ToOwned::to_owned))
    }

    /// The state file's path, for the token sources.
    pub fn path(&self) -> Option<PathBuf> {
        self.path.clone()
    }
}

/// A job id: the job response's `uuid`, as it goes into the dial's query.
///
/// # Errors
/// Empty, longer than 64 bytes, or with characters that a query cannot carry as they are.
pub fn parse_job(text: &str) -> Result<JobId, Failure> {
    let bad = |why: &str| {
        Failure::new(Code::Settings, format!("the job id \"{}\" cannot be used", text.escape_debug()))
            .because(why)
            .hint("give the job response's uuid, not its numeric id: --job or JOB_UUID")
    };
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)) {
        return Err(bad(
            "it is empty, or holds characters other than letters, digits, '-', '_', '.' and '~'",
        ));
    }
    JobId::new(text).map_err(|error| bad(&error.to_string()))
}

/// A new agent id: a random UUID, version 4 (tunnel contract A.1).
pub fn fresh_agent_id() -> AgentId {
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let text = format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
    AgentId::new(&text).expect("36 characters are at most 64")
}

/// Bytes from the kernel's generator.
///
/// # Panics
/// When the kernel has no random bytes to give, which Linux rules out for requests of at most 256 bytes.
pub fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(length) => filled += length,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("getrandom failed: {error}"),
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fresh_agent_id_is_a_version_4_uuid_and_new_each_time() {
        let (first, second) = (fresh_agent_id(), fresh_agent_id());
        assert_ne!(first.as_str(), second.as_str());
        let shape: Vec<usize> = first.as_str().split('-').map(str::len).collect();
        assert_eq!(shape, [8, 4, 4, 4, 12]);
        assert_eq!(&first.as_str()[14..15], "4");
        assert!("89ab".contains(&first.as_str()[19..20]));
    }

    #[test]
    fn a_job_id_that_would_change_the_query_is_refused() {
        assert!(parse_job("0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11").is_ok());
        for bad in ["", "a&agent=b", "a b", "a\nb", &"x".repeat(65)] {
            assert!(parse_job(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_environment_comes_before_the_state_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("env");
        std::fs::write(&path, "PATH=from-file\nSIDECAR_TEST_ONLY_IN_FILE=yes\n").unwrap();
        let lookup = Lookup::new(Some(path)).unwrap();
        assert_ne!(lookup.value("PATH").unwrap(), "from-file");
        assert_eq!(lookup.value("SIDECAR_TEST_ONLY_IN_FILE").unwrap(), "yes");
    }
}
