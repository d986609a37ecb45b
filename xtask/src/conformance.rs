//! The Autobahn cases against the codec and against the agent: each by an example of core's, which the step `tests` builds,
//! and the suite in a virtual environment of its own.
//!
//! Which case has to come to what is in the files beside the program that compares.

use core::time::Duration;

use crate::python::{self, CONFORMANCE};
use crate::runner::Stop;
use crate::steps::Context;

const PROGRAM: &str = "core/tests/autobahn/autobahn.py";
/// Example and expectation: all messages through the codec, all ends through the agent.
const PLAYED: [(&str, &str); 2] =
    [("echo", "core/tests/autobahn/codec.txt"), ("noop", "core/tests/autobahn/agent.txt")];

/// Plays every case that is not skipped.
///
/// # Errors
/// The suite cannot be had, or a verdict is another than the expected one.
pub(crate) fn step(context: &Context, limit: Duration) -> Result<(), Stop> {
    python::prepare(CONFORMANCE, &context.root, &context.target, &context.runner)?;
    for (client, expected) in PLAYED {
        let suite = CONFORMANCE.interpreter(&context.root, &context.target).args([PROGRAM]);
        let client = context.target.join("debug/examples").join(client);
        context.runner.run(suite.args([client]).args([expected]), limit)?;
    }
    Ok(())
}
