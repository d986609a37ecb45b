//! `sidecar gateway`: the rehearsal gateway, a crate of its own that shares nothing with the sidecar's protocol core.

use crate::exit::Exit;
use crate::report::Failure;

/// Plays the gateway until its cases are done.
///
/// # Errors
/// It cannot listen, has no token, or the job ended without all its cases having been played.
pub fn run(args: sidecar_gateway::Args) -> Result<Exit, Failure> {
    todo!()
}
