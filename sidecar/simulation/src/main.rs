//! `sidecar-simulate`: schedules from fresh seeds for a time, or a number of them, or one of them told.

use std::collections::BTreeMap;
use std::process::ExitCode;

use core::time::Duration;
use sidecar_shm::clock;
use sidecar_simulation::{Broken, Coverage, Stage};

const USAGE: &str = "\
usage: sidecar-simulate [--seconds N] [--schedules N] [--first SEED] [--seed SEED]

  --seconds N     go on for this long (60)
  --schedules N   run exactly so many
  --first SEED    count seeds from here; without it from the clock
  --all yes       go on after a failure, and name one seed for each kind of failure
  --seed SEED     this one schedule, with its story";

/// So many schedules meet every kind of fault and every situation.
const ENOUGH: u64 = 100_000;

#[derive(Default)]
struct Arguments {
    seconds: Option<u64>,
    schedules: Option<u64>,
    first: Option<u64>,
    seed: Option<u64>,
    all: bool,
}

fn parse() -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let value = words.next().ok_or_else(|| format!("`{word}` wants a number"))?;
        if word == "--all" {
            arguments.all = value == "yes";
            continue;
        }
        let number = value.parse().map_err(|_| format!("`{value}` is no number"))?;
        match word.as_str() {
            "--seconds" => arguments.seconds = Some(number),
            "--schedules" => arguments.schedules = Some(number),
            "--first" => arguments.first = Some(number),
            "--seed" => arguments.seed = Some(number),
            other => return Err(format!("unexpected argument `{other}`")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("error: {error}\n{USAGE}");
            return ExitCode::FAILURE;
        }
    };
    let stage = match Stage::new() {
        Ok(stage) => stage,
        Err(error) => {
            eprintln!("error: no place for a region: {error}");
            return ExitCode::FAILURE;
        }
    };
    if let Some(seed) = arguments.seed {
        let verdict = stage.run(seed, &mut Coverage::default());
        for line in stage.tell(seed) {
            println!("{line}");
        }
        return report(verdict);
    }
    campaign(&stage, &arguments)
}

fn campaign(stage: &Stage, arguments: &Arguments) -> ExitCode {
    let started = clock::now();
    let first = arguments.first.unwrap_or_else(|| clock::now().as_nanos());
    let most = arguments.schedules.unwrap_or(u64::MAX);
    let time =
        arguments.seconds.or_else(|| arguments.schedules.is_none().then_some(60)).map(Duration::from_secs);
    let mut coverage = Coverage::default();
    let mut verdict = Ok(());
    let mut kinds = BTreeMap::<String, (Broken, u64)>::new();
    for number in 0..most {
        verdict = stage.run(first.wrapping_add(number), &mut coverage);
        if arguments.all
            && let Err(broken) = core::mem::replace(&mut verdict, Ok(()))
        {
            let kind = broken.what.chars().filter(|c| !c.is_ascii_digit()).collect::<String>();
            kinds.entry(kind).or_insert((broken, 0)).1 += 1;
        }
        if verdict.is_err() || time.is_some_and(|time| clock::now().since(started) >= time) {
            break;
        }
    }
    let took = clock::now().since(started).as_secs_f64();
    print!("{coverage}");
    println!("{:.1} s, {:.0} schedules/s, seeds from {first}", took, coverage.schedules as f64 / took);
    for (Broken { seed, what }, count) in kinds.values() {
        println!("{count:>8}  seed {seed}: {what}");
    }
    if let Some((broken, _)) = kinds.into_values().next() {
        return report(Err(broken));
    }
    let missing = coverage.missing();
    if verdict.is_ok() && coverage.schedules >= ENOUGH && !missing.is_empty() {
        eprintln!("error: never met in {} schedules: {}", coverage.schedules, missing.join("; "));
        return ExitCode::FAILURE;
    }
    if let Err(broken) = &verdict {
        println!("\nthe story of seed {}:", broken.seed);
        for line in stage.tell(broken.seed) {
            println!("{line}");
        }
    }
    report(verdict)
}

fn report(verdict: Result<(), Broken>) -> ExitCode {
    match verdict {
        Ok(()) => ExitCode::SUCCESS,
        Err(Broken { seed, what }) => {
            eprintln!("error: seed {seed}: {what}\nhint: cargo xtask simulate --seed {seed}");
            ExitCode::FAILURE
        }
    }
}
