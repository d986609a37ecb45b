//! The demo, played and broken off: it leaves no process and no file behind, however it ends.

mod support;

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use support::random::Random;
use support::{Running, sidecar, wait_for};

/// In the environment of a demo and of all that it starts.
const MARK: &str = "SIDECAR_TEST_DEMO";

struct Demo {
    running: Running,
    mark: String,
}

impl Demo {
    fn start(test: &str, arguments: &[&str]) -> Self {
        let mark = format!("{MARK}={}-{}", std::process::id(), Random::new(test, 0).next());
        let (name, value) = mark.split_once('=').unwrap();
        let mut command: Command = sidecar();
        command.arg("demo").args(arguments).env(name, value);
        Self { running: Running::start(&mut command), mark }
    }

    /// Command lines of its processes that run.
    fn processes(&self) -> Vec<Vec<String>> {
        let entries = fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        let ours = pids.filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == self.mark.as_bytes())
        });
        ours.map(|pid| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect()
        })
        .collect()
    }

    /// Waits until gateway, sidecar and worker play; gives the region's path.
    fn play(&self) -> PathBuf {
        let mut region = None;
        wait_for("all four processes", || {
            let processes = self.processes();
            region = processes.iter().find_map(|words| {
                let at = words.iter().position(|word| word == "--shm")?;
                Some(PathBuf::from(words[at + 1].clone()))
            });
            processes.len() == 4 && region.as_ref().is_some_and(|region| region.exists())
        });
        region.unwrap()
    }
}

#[test]
fn a_demo_solves_its_cases_and_leaves_nothing() {
    let demo = Demo::start("solved", &["--cases", "1", "--payload", "20000"]);
    let region = demo.play();
    let mark = demo.mark.clone();
    let (code, said) = demo.running.finish();
    assert_eq!(code, 0, "{said}");
    let left = Demo { running: Running::start(&mut Command::new("true")), mark }.processes();
    assert!(left.is_empty(), "{left:?}");
    assert!(!region.exists());
}

#[test]
fn a_demo_that_is_broken_off_leaves_neither_processes_nor_files() {
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::KILL, 128 + 9)] {
        // Far more than it will come to.
        let mut demo = Demo::start(&format!("{signal:?}"), &["--cases", "1000"]);
        let region = demo.play();
        demo.running.signal(signal);
        assert_eq!(demo.running.wait(), code, "{}", demo.running.stderr());
        if signal == Signal::KILL {
            // They see it, and end by themselves.
            wait_for("the end of all processes", || demo.processes().is_empty());
        }
        assert!(demo.processes().is_empty(), "{:?}", demo.processes());
        let directory = fs::read_dir(region.parent().unwrap()).unwrap();
        let name = region.file_name().unwrap().to_str().unwrap().to_owned();
        let left = directory.flatten().map(|entry| entry.file_name().into_string().unwrap());
        let left: Vec<String> = left.filter(|file| file.contains(&name)).collect();
        assert!(left.is_empty(), "{signal:?}: {left:?}\n{}", demo.running.stderr());
    }
}
