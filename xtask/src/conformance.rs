//! The Autobahn cases against the codec: its echo client, built here, and the suite, in a virtual environment of its own.
//!
//! Which case has to come to what is in `core/tests/autobahn/expected.txt`; the program beside it compares.

use core::time::Duration;

use crate::python::{self, CONFORMANCE};
use crate::runner::Stop;
use crate::steps::Context;

const PROGRAM: &str = "core/tests/autobahn/autobahn.py";

/// Plays every case that is not skipped.
///
/// # Errors
/// The client does not build, the suite cannot be had, or a verdict is another than the expected one.
pub(crate) fn step(context: &Context, limit: Duration) -> Result<(), Stop> {
    let client = context.cargo_tool(["build", "--package", "sidecar-core", "--example", "echo"]);
    context.runner.run(client, limit)?;
    python::prepare(CONFORMANCE, &context.root, &context.target, &context.runner)?;
    let suite = CONFORMANCE.interpreter(&context.root, &context.target).args([PROGRAM]);
    context.runner.run(suite.args([context.target.join("debug/examples/echo")]), limit)
}
