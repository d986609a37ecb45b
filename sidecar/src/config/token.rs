//! Where the bearer token comes from, and a type that cannot be printed by accident.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use super::env_file::EnvFile;
use crate::explain::Code;
use crate::report::Failure;

/// The variables that may hold a token, in the order in which each source is asked.
pub const VARIABLES: [&str; 2] = ["JOB_TOKEN", "CHALLENGE_TOKEN"];

/// A bearer token. `Debug` and `Display` show that there is one, never what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    secret: String,
    source: String,
}

impl Token {
    /// The secret itself, for the request's `Authorization` line and nothing else.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The variable or file it was read from.
    pub fn source(&self) -> &str {
        &self.source
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token(from {})", self.source)
    }
}

/// The places a token is looked for; kept, because a redial that meets `401` reads them again.
#[derive(Clone, Debug)]
pub struct TokenSources {
    /// `--token-file`: when given, the only source.
    pub file: Option<PathBuf>,
    /// The state file; read again at each look-up.
    pub env_file: Option<PathBuf>,
}

impl TokenSources {
    /// Reads the sources in turn: `--token-file`, the environment, the state file; in each, `JOB_TOKEN` before
    /// `CHALLENGE_TOKEN` (tunnel contract A.1), an empty value counting as absent.
    ///
    /// # Errors
    /// When no source has one, or the named file cannot be read or holds no token.
    pub fn read(&self) -> Result<Token, Failure> {
        self.read_with(|name| std::env::var(name).ok())
    }

    fn read_with(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Token, Failure> {
        if let Some(path) = &self.file {
            return from_file(path);
        }
        for name in VARIABLES {
            if let Some(secret) = environment(name).filter(|value| !value.trim().is_empty()) {
                return checked(&secret, name.to_owned());
            }
        }
        if let Some(path) = &self.env_file {
            let file = EnvFile::load(path).map_err(|error| {
                Failure::new(Code::Settings, format!("the state file {} cannot be read", path.display()))
                    .because(error)
                    .hint("fix its permissions, or set JOB_TOKEN in the environment")
            })?;
            for name in VARIABLES {
                if let Some(secret) = file.value(name) {
                    return checked(secret, format!("{name} in {}", path.display()));
                }
            }
        }
        Err(Failure::new(Code::Token, "no token for the tunnel")
            .because("neither JOB_TOKEN nor CHALLENGE_TOKEN is set, and no --token-file was given")
            .hint("export JOB_TOKEN (the job response's job_token), or pass --token-file FILE"))
    }
}

fn from_file(path: &Path) -> Result<Token, Failure> {
    let text = fs::read_to_string(path).map_err(|error| {
        Failure::new(Code::Token, format!("the token file {} cannot be read", path.display()))
            .because(error)
            .hint("name a file with the token as its only line")
    })?;
    checked(&text, path.display().to_string())
}

/// A token travels in a header line, so anything but visible ASCII is refused here, before it meets the codec.
fn checked(text: &str, source: String) -> Result<Token, Failure> {
    let secret = text.trim();
    if secret.is_empty() || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::new(Code::Token, format!("the token from {source} is not usable"))
            .because("it is empty, or holds white space or characters that a header cannot carry")
            .hint("store the token alone, on one line, without quotes"));
    }
    Ok(Token { secret: secret.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(directory: &tempfile::TempDir, env_text: &str) -> TokenSources {
        let path = directory.path().join("state.env");
        fs::write(&path, env_text).unwrap();
        TokenSources { file: None, env_file: Some(path) }
    }

    #[test]
    fn a_source_is_exhausted_before_the_next_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let sources = sources(&directory, "JOB_TOKEN=from-file");
        let token = sources.read_with(|name| (name == "CHALLENGE_TOKEN").then(|| "from-env".into())).unwrap();
        assert_eq!((token.secret(), token.source()), ("from-env", "CHALLENGE_TOKEN"));
    }

    #[test]
    fn an_empty_value_counts_as_absent() {
        let directory = tempfile::tempdir().unwrap();
        let sources = sources(&directory, "JOB_TOKEN=\nCHALLENGE_TOKEN='login'");
        let token = sources.read_with(|_| Some(String::new())).unwrap();
        assert_eq!(token.secret(), "login");
    }

    #[test]
    fn a_token_file_is_the_only_source_when_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        fs::write(&path, "abc\n").unwrap();
        let sources = TokenSources { file: Some(path.clone()), env_file: None };
        assert_eq!(sources.read_with(|_| Some("env".into())).unwrap().secret(), "abc");
        fs::write(&path, "\n").unwrap();
        assert!(sources.read_with(|_| Some("env".into())).is_err());
    }

    #[test]
    fn the_secret_shows_in_no_message() {
        let directory = tempfile::tempdir().unwrap();
        let sources = sources(&directory, "JOB_TOKEN='two words'");
        let failure = sources.read_with(|_| None).unwrap_err();
        assert!(!failure.to_string().contains("two words"), "{failure}");
        let token = checked("sesame", "JOB_TOKEN".into()).unwrap();
        assert_eq!(format!("{token:?}"), "Token(from JOB_TOKEN)");
    }
}
