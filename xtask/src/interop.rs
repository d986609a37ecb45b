//! Games against software that was not written here: the Python `websockets` package at either end.

use core::time::Duration;

use crate::python;
use crate::runner::Stop;
use crate::steps::Context;

const CLIENT: &str = "sidecar/gateway/interop/a7_client.py";
const GATEWAY: &str = "sidecar/tests/interop/gateway_b.py";
/// The gateway binds a socket and prints where; nothing slow lies before that.
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
const CASES: &str = "5";
/// Opens the rehearsal gateway of this run alone, which is gone when the step is over.
const TOKEN: &str = "interop-token";

/// The client of tunnel contract A.7 plays cart-pole against the rehearsal gateway, to the last case.
pub(crate) fn client(context: &Context, limit: Duration) -> Result<(), Stop> {
    let gateway = context.sidecar().args(["gateway", "--listen", "127.0.0.1:0", "--cases", CASES]);
    let mut gateway = context.runner.start_listening(gateway.env("JOB_TOKEN", TOKEN))?;
    let endpoint = gateway.line("the address it listens on", LISTENS_WITHIN, endpoint)?;
    let client = python::INTEROP
        .interpreter(&context.root, &context.target)
        .args([CLIENT, &endpoint])
        .env("JOB_TOKEN", TOKEN);
    context.runner.run(client, limit)?;
    // The gateway's own exit code says whether every case was solved.
    gateway.finish(limit)
}

/// The gateway on `websockets` plays its scenario against the real sidecar and its echo worker.
pub(crate) fn gateway(context: &Context, driver: &str, limit: Duration) -> Result<(), Stop> {
    let binary = context.sidecar_path();
    let gateway = python::INTEROP.interpreter(&context.root, &context.target).args([GATEWAY]).args([binary]);
    context.runner.run(gateway.args([driver]), limit)
}

/// The WebSocket URL in a line of the gateway's output.
pub(crate) fn endpoint(line: &str) -> Option<String> {
    let url = &line[line.find("ws://")?..];
    url.split(|end: char| end.is_whitespace() || "\"',)".contains(end)).next().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_endpoint_is_found_in_a_line() {
        let url = Some("ws://127.0.0.1:4000/tunnel".to_owned());
        assert_eq!(endpoint("listening on ws://127.0.0.1:4000/tunnel"), url);
        assert_eq!(endpoint("{\"endpoint\":\"ws://127.0.0.1:4000/tunnel\"}"), url);
        assert_eq!(endpoint("starting"), None);
    }
}
