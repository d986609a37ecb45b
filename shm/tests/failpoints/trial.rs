//! One death, and whether everything is as it should be afterwards.

use std::collections::BTreeSet;

use sidecar_shm::region::Found;

use crate::game::Move;
use crate::process::{End, Fate, Keeper, Kept, Process};
use crate::scripts::{self, Script};
use crate::sidecar::Sidecar;

/// Plays a script with a fate. `true`: its place was reached.
pub(crate) fn run(script: Script, fate: Fate) -> bool {
    let place = if std::path::Path::new("/dev/shm").is_dir() { "/dev/shm" } else { "/tmp" };
    let directory = tempfile::Builder::new().prefix("sidecar-test-").tempdir_in(place).unwrap();
    let path = directory.path().join("obs");
    let reached = if script.of_sidecar() {
        let keeper = Keeper::start(&path, Fate::Live);
        let mut due = if script.has_past() { scripts::past(&path) } else { Vec::new() };
        let (end, said, errors) = Process::start(&script.name(), &path, &fate).finish();
        assert_ne!(end, End::Failed, "the sidecar failed by itself: {errors}");
        due.extend(told(&said, "published"));
        let (geometry, job) = script.settings();
        let successor = Sidecar::start(&path, geometry, job, false);
        nothing_lost(script, &due, &said, &successor);
        let taken_over = matches!(successor.found, Found::TakenOver { .. });
        let resumed = taken_over && script != Script::NextJob;
        let found = format!("{:?}", successor.found);
        let started: BTreeSet<u64> = told(&said, "started").collect();
        let answered = afterwards(successor, script);
        let twice: Vec<_> = started.intersection(&answered).collect();
        // In another region, or for another job, sequences start anew.
        assert!(twice.is_empty() || !resumed, "sent twice: {twice:?}; found {found}");
        check_worker(resumed, &keeper.end());
        end == End::There
    } else {
        let keeper = Keeper::start(&path, fate);
        afterwards(scripts::beside_a_worker(script, &path), script);
        let kept = keeper.end();
        check_worker(true, &kept);
        kept.first == Some(End::There)
    };
    let left: Vec<_> =
        std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    reached
}

/// The places that a script passes.
pub(crate) fn places(script: Script) -> Vec<(String, u32)> {
    let directory = tempfile::Builder::new().prefix("sidecar-test-").tempdir().unwrap();
    let path = directory.path().join("obs");
    let said = if script.of_sidecar() {
        let keeper = Keeper::start(&path, Fate::Live);
        if script.has_past() {
            scripts::past(&path);
        }
        let (end, said, errors) = Process::start(&script.name(), &path, &Fate::Note).finish();
        assert_eq!(end, End::Done, "{errors}");
        keeper.end();
        said
    } else {
        let keeper = Keeper::start(&path, Fate::Note);
        afterwards(scripts::beside_a_worker(script, &path), script);
        keeper.end().lines
    };
    let noted = said.iter().filter_map(|line| line.strip_prefix("passed "));
    // The measurement of a wake-up works on words of its own process.
    let noted = noted.filter(|line| !line.starts_with("shm/src/spin"));
    noted
        .map(|line| {
            let (place, pass) = line.split_once(' ').unwrap();
            (place.to_owned(), pass.parse().unwrap())
        })
        .collect()
}

/// Everything that was published and not begun to be sent is known to the successor.
fn nothing_lost(script: Script, due: &[u64], said: &[String], successor: &Sidecar) {
    if script == Script::NextJob {
        return;
    }
    let begun: BTreeSet<u64> = told(said, "starting").collect();
    let lost: Vec<_> =
        due.iter().filter(|due| !begun.contains(due) && !successor.due.contains_key(due)).collect();
    assert!(lost.is_empty(), "lost: {lost:?}; found {:?}", successor.found);
}

/// The exchange goes on, every slot comes back, a new peer attaches. Gives what was answered.
fn afterwards(mut sidecar: Sidecar, script: Script) -> BTreeSet<u64> {
    for what in [Move::Echo, Move::Echo, Move::Hold, Move::Echo, Move::Echo, Move::Echo] {
        if what == Move::Hold {
            sidecar.publish(what);
        } else {
            sidecar.exchange(what);
        }
    }
    sidecar.finish();
    let before = sidecar.joined;
    sidecar.exchange(Move::Leave);
    sidecar.exchange(Move::Echo);
    assert!(sidecar.joined > before, "another worker came");
    sidecar.finish();
    let expected = script.expected_errors();
    let unexpected: Vec<_> = sidecar
        .owner
        .errors()
        .records()
        .into_iter()
        .filter(|it| !expected.contains(&it.text.as_str()))
        .collect();
    assert!(unexpected.is_empty(), "in the region's error log: {unexpected:?}");
    let answered = core::mem::take(&mut sidecar.answered);
    sidecar.close();
    answered
}

/// `resumed`: sequences never started anew.
fn check_worker(resumed: bool, kept: &Kept) {
    for line in &kept.lines {
        assert!(!line.starts_with("spoiled") && !line.starts_with("broken"), "the worker: {line}");
    }
    if !resumed {
        return;
    }
    let mut fresh = BTreeSet::new();
    for line in &kept.lines {
        if let Some(sequence) = line.strip_prefix("took ").and_then(|rest| rest.strip_suffix(" first")) {
            assert!(
                fresh.insert(sequence),
                "{sequence} was delivered twice without a flag: {:?}",
                kept.lines
            );
        }
    }
}

fn told<'a>(said: &'a [String], what: &'static str) -> impl Iterator<Item = u64> + 'a {
    said.iter().filter_map(move |line| line.strip_prefix(what)?.trim().parse().ok())
}
