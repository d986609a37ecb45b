//! The C library: built, its examples built in strict ways and played against the real binary.

use core::time::Duration;
use std::path::{Path, PathBuf};

use crate::interop;
use crate::python::{self, CMAKE};
use crate::runner::{Running, Stop};
use crate::steps::Context;
use crate::tool::Tool;
use crate::unit;
use crate::watched::Watched;

const NO_SH: &str = "install a POSIX shell";
/// Opens the rehearsal gateway of this run alone, which is gone when the step is over.
const TOKEN: &str = "c-token";
const LISTENS_WITHIN: Duration = Duration::from_secs(20);
const CASES: &str = "2";
/// Only what is lost for certain: the C library keeps what its threads had.
const MEMCHECK: [&str; 5] = [
    "--quiet",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
    "--error-exitcode=9",
];
/// Where it is read by us.
const COUNT_ALLOCATIONS: [&str; 2] = ["--log-fd=1", "--error-exitcode=9"];
const NO_VALGRIND: &str = "install valgrind";
const NO_PROGRAM: &str = "`cargo xtask test --only c-examples --only c-freestanding` makes it";

/// What a program is run under.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Under {
    Nothing,
    Valgrind,
}

/// The committed header is what the sources say.
pub(crate) fn header(context: &Context, limit: Duration) -> Result<(), Stop> {
    context.runner.run(unit::program(context, "bindings/c/tests/header.rs")?, limit)
}

/// Lays libraries, headers and their descriptions out in `target/c`, and says where.
pub(crate) fn build(context: &Context, limit: Duration) -> Result<PathBuf, Stop> {
    let prefix = context.target.join("c");
    script(context, "bindings/c/build.sh", [&prefix], limit)?;
    Ok(prefix)
}

/// Builds examples and border test with strict warnings and under the sanitizers, compares the exported symbols.
pub(crate) fn examples(context: &Context, limit: Duration) -> Result<(), Stop> {
    let prefix = build(context, limit)?;
    script(context, "bindings/c/examples/build.sh", [&prefix, &programs(context)], limit)
}

/// Projects of others find the library and link it, in another place than where it was laid out.
pub(crate) fn consumers(context: &Context, limit: Duration) -> Result<(), Stop> {
    python::prepare(CMAKE, &context.root, &context.target, &context.runner)?;
    // CMake of the requirements first: every machine tries the same one.
    let own = CMAKE.directory(&context.target).join("bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(core::iter::once(own).chain(std::env::split_paths(&path)))
        .map_err(|error| Stop::failed(format!("PATH: {error}")))?;
    let check = Tool::new("sh", &context.root, NO_SH)
        .args(["bindings/c/tests/consumer/check.sh"])
        .args([context.target.join("c"), context.target.join("c-consumer")])
        .env("PATH", path);
    context.runner.run(check, limit)
}

/// Proves that the agent's library has no allocator, and leaves its example.
pub(crate) fn freestanding(context: &Context, limit: Duration) -> Result<(), Stop> {
    let out = programs(context);
    std::fs::create_dir_all(&out)
        .map_err(|error| Stop::failed(format!("{} cannot be made: {error}", out.display())))?;
    let tool = Tool::new("sh", &context.root, NO_SH)
        .args(["bindings/c/freestanding/check.sh"])
        .args([out.join("direct_agent-freestanding")])
        .env("CARGO_TARGET_DIR", context.target.join("freestanding"));
    context.runner.run(tool, limit)
}

/// Every example plays cart-pole to the last case: as it is, and under the sanitizers.
pub(crate) fn play(context: &Context, limit: Duration) -> Result<(), Stop> {
    child(context, "worker-c99", limit)?;
    for program in [
        "worker-c11",
        "worker-c++17",
        "serve-c++17",
        "misuse-c99",
        "worker-sanitized",
        "worker-c++17-sanitized",
        "serve-c++17-sanitized",
        "misuse-sanitized",
    ] {
        worker(context, Under::Nothing, program, 1, &[], limit)?;
    }
    for program in
        ["worker-c11", "serve-c++17", "batch-sanitized", "worker-sanitized", "worker-c++17-sanitized"]
    {
        worker(context, Under::Nothing, program, 3, &[], limit)?;
    }
    let push = programs(context).join("push");
    std::fs::write(&push, [1])
        .map_err(|error| Stop::failed(format!("{} can't be written: {error}", push.display())))?;
    let push = push.display().to_string();
    let policy = ["--on-failure", "reply", "--failure-reply", &push];
    worker(context, Under::Nothing, "failing-sanitized", 1, &policy, limit)?;
    let cuts = ["--cut-at", "100:after,200:mid-frame", "--on-lost", "reask", "--reask-after", "100ms"];
    let pieces = ["--payload", "70000", "--fragment", "4096", "--empty-final", "--ping-between-fragments"];
    for program in
        ["direct_agent-c99", "direct_agent-c11", "direct_agent-sanitized", "direct_agent-freestanding"]
    {
        direct_agent(context, Under::Nothing, program, &[], limit)?;
        direct_agent(context, Under::Nothing, program, &cuts, limit)?;
        direct_agent(context, Under::Nothing, program, &pieces, limit)?;
    }
    Ok(())
}

/// A worker in C is killed at random moments, and nothing is lost.
pub(crate) fn crash(context: &Context, limit: Duration) -> Result<(), Stop> {
    context.crash(&[programs(context).join("slow_worker-c11")], limit)
}

/// The same under Valgrind, where it is installed. The direct agent may not allocate at all.
pub(crate) fn valgrind(context: &Context, limit: Duration) -> Result<(), Stop> {
    let version = Tool::new("valgrind", &context.root, NO_VALGRIND).args(["--version"]);
    if context.runner.run(version, limit).is_err() {
        return Err(Stop::Skipped("valgrind is not installed"));
    }
    let abi = Tool::new("valgrind", &context.root, NO_VALGRIND)
        .args(MEMCHECK)
        .args([programs(context).join("abi-c11")]);
    context.runner.run(abi, limit)?;
    for program in ["worker-c11", "serve-c++17", "misuse-c99"] {
        worker(context, Under::Valgrind, program, 1, &[], limit)?;
    }
    direct_agent(context, Under::Valgrind, "direct_agent-freestanding", &[], limit)
}

fn programs(context: &Context) -> PathBuf {
    context.target.join("c-examples")
}

fn script<const N: usize>(
    context: &Context,
    path: &str,
    arguments: [&PathBuf; N],
    limit: Duration,
) -> Result<(), Stop> {
    let tool = Tool::new("sh", &context.root, NO_SH).args([path]).args(arguments);
    context.runner.run(tool.env("CARGO_TARGET_DIR", &context.target), limit)
}

/// `sidecar -- program` against the rehearsal gateway.
fn child(context: &Context, program: &str, limit: Duration) -> Result<(), Stop> {
    let mut gateway = gateway(context, &["--warmup-frame"])?;
    let endpoint = gateway.line("the address it listens on", LISTENS_WITHIN, interop::endpoint)?;
    let sidecar =
        sidecar(context, &endpoint, &region(0)).args(["--"]).args([programs(context).join(program)]);
    let sidecar = context.runner.start_listening(sidecar)?;
    let watched = Watched::start(&region(0))?;
    sidecar.finish(limit)?;
    // The gateway's own exit code says whether every case was solved.
    gateway.finish(limit)?;
    watched.expect(context, &[], limit)
}

/// One worker on several regions, each with a sidecar and a gateway of its own. It is nobody's child, so that its own
/// end is seen: a sidecar ends its child with SIGTERM, and then no leak is told.
fn worker(
    context: &Context,
    under: Under,
    program: &str,
    regions: usize,
    policy: &[&str],
    limit: Duration,
) -> Result<(), Stop> {
    let mut others = Vec::new();
    for number in 0..regions {
        let mut gateway = gateway(context, &["--warmup-frame"])?;
        let endpoint = gateway.line("the address it listens on", LISTENS_WITHIN, interop::endpoint)?;
        let sidecar = sidecar(context, &endpoint, &region(number)).args(policy.iter().copied());
        let sidecar = context.runner.start_listening(sidecar)?;
        others.push((sidecar, gateway, Watched::start(&region(number))?));
    }
    let expected = troubles(program);
    let program = programs(context).join(program);
    let worker = match under {
        Under::Nothing => Tool::new(&program, &context.root, NO_PROGRAM),
        Under::Valgrind => Tool::new("valgrind", &context.root, NO_VALGRIND).args(MEMCHECK).args([program]),
    };
    let worker = worker.args((0..regions).map(region)).env("SIDECAR_SHM", region(0));
    context.runner.run(worker, limit)?;
    for (sidecar, gateway, watched) in others {
        sidecar.finish(limit)?;
        gateway.finish(limit)?;
        watched.expect(context, expected, limit)?;
    }
    Ok(())
}

/// What the region of this worker may tell of afterwards.
fn troubles(program: &str) -> &'static [&'static str] {
    if program.starts_with("failing") { &["failed", "worker failed"] } else { &[] }
}

fn gateway<'a>(context: &'a Context, how: &[&str]) -> Result<Running<'a>, Stop> {
    let gateway = context.sidecar().args(["gateway", "--listen", "127.0.0.1:0", "--cases", CASES]);
    context.runner.start_listening(gateway.args(how.iter().copied()).env("JOB_TOKEN", TOKEN))
}

fn region(number: usize) -> PathBuf {
    PathBuf::from(format!("/dev/shm/sidecar-c-{}-{number}", std::process::id()))
}

fn sidecar(context: &Context, endpoint: &str, region: &Path) -> Tool {
    let sidecar = context.sidecar().args(["--gpu", "none", "--job", "c", "--endpoint", endpoint, "--shm"]);
    sidecar.args([region]).env("JOB_TOKEN", TOKEN)
}

/// A client of its own against the rehearsal gateway, which misbehaves as told.
fn direct_agent(
    context: &Context,
    under: Under,
    program: &str,
    faults: &[&str],
    limit: Duration,
) -> Result<(), Stop> {
    let mut gateway = gateway(context, faults)?;
    let endpoint = gateway.line("the address it listens on", LISTENS_WITHIN, interop::endpoint)?;
    let (address, port, path) =
        parts(&endpoint).ok_or_else(|| Stop::failed(format!("`{endpoint}` is no endpoint")))?;
    let program = programs(context).join(program);
    let client = match under {
        Under::Nothing => Tool::new(&program, &context.root, NO_PROGRAM),
        Under::Valgrind => {
            Tool::new("valgrind", &context.root, NO_VALGRIND).args(COUNT_ALLOCATIONS).args([program])
        }
    };
    let client = client.args([address, port, path]).env("JOB_TOKEN", TOKEN);
    let mut client = context.runner.start_listening(client)?;
    if under == Under::Valgrind {
        client.line("the word that nothing was allocated", limit, |line| {
            line.contains("total heap usage: 0 allocs").then_some(())
        })?;
    }
    client.finish(limit)?;
    gateway.finish(limit)
}

/// Address, port and path of an endpoint.
fn parts(endpoint: &str) -> Option<(&str, &str, &str)> {
    let rest = endpoint.strip_prefix("ws://")?;
    let (authority, _) = rest.split_once('/')?;
    let (address, port) = authority.split_once(':')?;
    Some((address, port, &rest[authority.len()..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_three_parts() {
        assert_eq!(parts("ws://127.0.0.1:4000/a/b"), Some(("127.0.0.1", "4000", "/a/b")));
        assert_eq!(parts("ws://127.0.0.1/a"), None);
        assert_eq!(parts("127.0.0.1:4000/a"), None);
    }
}
