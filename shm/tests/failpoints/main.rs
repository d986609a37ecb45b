//! Processes that are killed at each store that others see, sidecars and workers, and what their peers and successors
//! make of it: no slot is lost or handed out twice, nothing is sent twice, the other side goes on, a new peer attaches.
//!
//! The places are those of the source ([`sites`]). Each script is played once to see which places it passes; then once
//! for each of them, with a process that stops there and is killed. A place that no script passes is a failure.

mod game;
mod process;
mod scripts;
mod sidecar;
mod sites;
mod trial;
mod worker;

use std::collections::{BTreeSet, HashSet};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::Mutex;

use process::Fate;
use scripts::Script;

/// How many deaths are tried at the same time: they mostly wait.
const AT_ONCE: usize = 6;
/// Waits are not always the same: a place that nobody came to is tried again this often.
const RETRIES: u32 = 5;
/// Set for a long run: every death is died.
const ALL: &str = "SIDECAR_SOAK";

#[test]
fn whoever_dies_at_whatever_store_the_others_go_on() {
    if let Some((role, region, fate)) = process::child() {
        return child(&role, &region, &fate);
    }
    let mut tries = Vec::new();
    for script in Script::ALL {
        let places = trial::places(script);
        let chosen = choose(&places);
        println!("{script:?}: {} places passed, {} deaths to try", places.len(), chosen.len());
        tries.extend(chosen.into_iter().map(|(place, pass)| (script, place, pass)));
    }
    let all = sites::all();
    println!("{} places in the source, {} deaths to try", all.len(), tries.len());
    let mut deaths = tries.len();
    let (mut tried, mut failures) = die(tries.clone());
    for _ in 0..RETRIES {
        let missed: Vec<_> = tries.iter().filter(|(_, place, _)| !tried.contains(place)).cloned().collect();
        deaths += missed.len();
        let (more, worse) = die(missed);
        tried.extend(more);
        failures.extend(worse);
    }
    let missed: Vec<_> = all.difference(&tried).collect();
    let unknown: Vec<_> = tried.difference(&all).collect();
    println!("{} of {} places were died at, {} failures", tried.len(), all.len(), failures.len());
    // Read by `cargo xtask soak`, which adds them up.
    println!("tally crashes={deaths} survived={}", deaths - failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(missed.is_empty(), "nobody died at {missed:?}");
    assert!(unknown.is_empty(), "the source does not show {unknown:?}");
}

/// Dies each death; gives the places reached, and what went wrong.
fn die(tries: Vec<(Script, String, u32)>) -> (BTreeSet<String>, Vec<String>) {
    let queue = Mutex::new(tries.into_iter());
    let (reached, failures) = (Mutex::new(BTreeSet::new()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((script, place, pass)) = { queue.lock().unwrap().next() } {
                    let fate = Fate::Stop(place.clone(), pass);
                    match catch_unwind(|| trial::run(script, fate)) {
                        Ok(true) => _ = reached.lock().unwrap().insert(place),
                        // It came there less often than the first time.
                        Ok(false) => {}
                        Err(why) => {
                            let why = why.downcast_ref::<String>().map_or("?", String::as_str).to_owned();
                            failures
                                .lock()
                                .unwrap()
                                .push(format!("{script:?} at {place}, pass {pass}: {why}"));
                        }
                    }
                }
            });
        }
    });
    (reached.into_inner().unwrap(), failures.into_inner().unwrap())
}

/// The deaths worth dying: of places passed several times on end the first and the last, of statistics and error log,
/// on which nothing rests, the first. Where a script does the same again, the first time will do, unless all of them
/// are asked for: what counts as the same is the place and the three before it.
fn choose(places: &[(String, u32)]) -> Vec<(String, u32)> {
    let all = std::env::var_os(ALL).is_some();
    let mut seen = HashSet::new();
    let mut runs = places.chunk_by(|one, other| one.0 == other.0).collect::<Vec<_>>();
    runs.retain(|run| {
        !["stats.rs", "errors.rs"].iter().any(|file| run[0].0.contains(file)) || seen.insert(&run[0].0)
    });
    let mut seen = HashSet::new();
    let mut chosen = Vec::new();
    for (at, run) in runs.iter().enumerate() {
        let before = &runs[at.saturating_sub(3)..=at];
        let context: Vec<&str> = before.iter().map(|run| run[0].0.as_str()).collect();
        if !seen.insert(context) && !all {
            continue;
        }
        chosen.push(run[0].clone());
        if run.len() > 1 {
            chosen.extend(run.last().cloned());
        }
    }
    chosen
}

/// What the test is in the processes that it starts.
fn child(role: &str, region: &Path, fate: &Fate) {
    match fate {
        Fate::Live => {}
        Fate::Note => sidecar_shm::failpoints::note(),
        Fate::Stop(place, pass) => sidecar_shm::failpoints::stop_at(place, *pass),
    }
    if role == "worker" {
        worker::run(region);
    } else {
        scripts::run(Script::named(role), region);
    }
    for (place, pass) in sidecar_shm::failpoints::notes() {
        game::say(format_args!("passed {place} {pass}"));
    }
}
