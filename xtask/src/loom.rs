//! The models of `loom-tests`: run, and counted.

use core::time::Duration;

use crate::runner::Stop;
use crate::steps::Context;

/// How far models are explored that have too many orders to go through all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What a minute is enough for.
    Shallow,
    /// What each of them says that a soak affords.
    Soak,
}

/// What the models say about themselves (`loom-tests/src/support.rs`).
#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    models: u64,
    executions: u64,
    teeth: u64,
}

impl Count {
    fn read(&mut self, line: &str) {
        // What a test prints may stand behind its name.
        if let Some((_, rest)) = line.split_once("explored ") {
            self.models += 1;
            let number = rest.split(' ').next().and_then(|number| number.parse::<u64>().ok());
            self.executions += number.unwrap_or(0);
        }
        self.teeth += u64::from(line.contains("the teeth of "));
    }
}

/// Runs them with a target directory of their own: the cfg changes every crate, and would rebuild the others' artefacts
/// back and forth.
///
/// # Errors
/// A model that fails, or one that does not although it was weakened.
pub(crate) fn run(context: &Context, depth: Depth, limit: Duration) -> Result<(), Stop> {
    let tool = context
        .cargo_tool(["test", "--package", "sidecar-loom-tests", "--profile", "loom", "--", "--nocapture"])
        .env("RUSTFLAGS", "--cfg sidecar_loom")
        .env("RUST_BACKTRACE", "0")
        .env("CARGO_TARGET_DIR", context.target.join("loom"));
    let tool = match depth {
        Depth::Shallow => tool,
        Depth::Soak => tool.env("SIDECAR_SOAK", "1"),
    };
    let mut count = Count::default();
    context.runner.start_listening(tool)?.finish_reading(limit, |line| count.read(line))?;
    let Count { models, executions, teeth } = count;
    println!("loom: {models} models, {executions} executions explored; {teeth} weakened ones, all found");
    if models == 0 || teeth == 0 {
        return Err(Stop::failed("no model ran: is the cfg `sidecar_loom` still what they ask for?"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_executions_and_teeth_are_counted() {
        let mut count = Count::default();
        for line in [
            "running 3 tests",
            "test a::b ... explored 12 executions of a::b",
            "explored 3 executions of a::c",
            "the teeth of a::teeth_d bite: LostWakeUp",
            "test a::teeth_d ... ok",
        ] {
            count.read(line);
        }
        assert_eq!(count, Count { models: 2, executions: 15, teeth: 1 });
    }
}
