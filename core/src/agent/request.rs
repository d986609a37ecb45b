//! The upgrade request (tunnel contract A.1): target, key, token. The token passes through here and is kept nowhere.

use core::fmt::Write;

use heapless::String;

use super::config::MAX_PATH;
use super::inbound::Stage;
use super::link::State;
use super::{Agent, Config};
use crate::time::Instant;
use crate::tunnel::{MAX_AGENT_ID, MAX_JOB_ID};
use crate::ws::handshake::{self, RequestParts, encode_key, write_request};

/// Path, both ids with every byte escaped, and their names.
const MAX_TARGET: usize = MAX_PATH + 3 * (MAX_JOB_ID + MAX_AGENT_ID) + 16;

/// The upgrade request could not be written.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RequestError {
    /// The caller connected without having been asked to.
    #[error("no dial was asked for")]
    NotDialing,
    /// Path, job and agent are too long together.
    #[error("the request's path is too long")]
    PathTooLong,
    /// A part of it can't be sent, or the buffer is too short.
    #[error(transparent)]
    Request(#[from] handshake::RequestError),
}

impl Agent {
    pub(super) fn begin_upgrade(
        &mut self,
        _now: Instant,
        token: &str,
        out: &mut [u8],
    ) -> Result<usize, RequestError> {
        let State::Dialing { deadline } = self.link.state else { return Err(RequestError::NotDialing) };
        let key = encode_key(self.entropy.bytes());
        let target = target(&self.config).ok_or(RequestError::PathTooLong)?;
        let parts =
            RequestParts { host: &self.config.endpoint.host, path_and_query: &target, key: &key, token };
        let length = write_request(&parts, out)?;
        self.link.state = State::Upgrading { deadline, key };
        self.ended = None;
        self.inbound.reset(Stage::Answer);
        Ok(length)
    }
}

/// The path with `job=` and `agent=` appended; `None` when it is too long.
fn target(config: &Config) -> Option<String<MAX_TARGET>> {
    let mut target = String::new();
    target.push_str(&config.endpoint.path).ok()?;
    target.push(if config.endpoint.path.contains('?') { '&' } else { '?' }).ok()?;
    target.push_str("job=").ok()?;
    push_escaped(&mut target, &config.job)?;
    target.push_str("&agent=").ok()?;
    push_escaped(&mut target, &config.agent)?;
    Some(target)
}

/// Everything but RFC 3986's unreserved characters as %XX, so that an id never ends the query.
fn push_escaped(target: &mut String<MAX_TARGET>, id: &str) -> Option<()> {
    for byte in id.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            target.push(char::from(byte)).ok()?;
        } else {
            write!(target, "%{byte:02X}").ok()?;
        }
    }
    Some(())
}
