//! Every target over every file of its corpus, as a fuzzer would, without one; and over mutations of them that need no
//! luck: each file cut short, and with a byte turned over.

use std::fs;
use std::path::{Path, PathBuf};

use sidecar_fuzz_bodies::TARGETS;

fn files(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus").join(target);
    let mut files: Vec<_> = fs::read_dir(&directory)
        .unwrap_or_else(|error| panic!("{}: {error}", directory.display()))
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.clone(), fs::read(&path).unwrap()))
        .collect();
    files.sort_unstable();
    files
}

/// Runs a body and says on which file it failed.
fn run(target: &str, body: fn(&[u8]), what: &Path, bytes: &[u8]) {
    let result = std::panic::catch_unwind(|| body(bytes));
    assert!(result.is_ok(), "{target} failed on {}: {bytes:02x?}", what.display());
}

#[test]
fn every_target_holds_over_its_corpus() {
    for (target, body) in TARGETS {
        let files = files(target);
        assert!(files.len() >= 16, "{target} has {} seeds", files.len());
        for (path, bytes) in &files {
            run(target, body, path, bytes);
        }
    }
}

#[test]
fn every_target_holds_over_cut_and_damaged_seeds() {
    for (target, body) in TARGETS {
        for (path, bytes) in files(target) {
            let stride = 1 + bytes.len() / 12;
            for at in (0..bytes.len()).step_by(stride) {
                run(target, body, &path, &bytes[..at]);
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << (at % 8);
                run(target, body, &path, &damaged);
            }
        }
    }
}

#[test]
fn each_target_of_the_fuzz_crate_is_one_of_these() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz_targets");
    let mut there: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let mut ours: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    there.sort_unstable();
    ours.sort_unstable();
    assert_eq!(there, ours);
}
