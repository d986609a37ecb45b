//! Other processes of a test: the test itself once more, told by its environment which part it plays.

use core::time::Duration;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::observation;
use crate::worker::{AttachOptions, Event, Worker, WorkerError};

/// Tells a process that [`Parts`] starts what it is.
const PART: &str = "SIDECAR_SHM_TEST_PART";
/// Names the region to it.
const REGION: &str = "SIDECAR_SHM_TEST_REGION";

/// Starts the other processes of one test.
pub(crate) struct Parts {
    test: &'static str,
}

impl Parts {
    /// The first line of a test that has other processes. In one of those it plays the part and gives nothing: the
    /// test is over there.
    pub(crate) fn of<P: FnOnce(&str, &Path)>(play: P) -> Option<Self> {
        // The type of a closure says where it was written: in which crate, which modules and which test.
        let name = core::any::type_name::<P>().strip_suffix("::{{closure}}");
        let (_, test) = name.and_then(|name| name.split_once("::")).expect("a closure in the test itself");
        // Asked for under another name, it would run no test at all, and that successfully.
        let thread = std::thread::current();
        let here = thread.name().expect("the harness names its threads");
        assert!(here == test || here == "main", "{here} is called {test} by its closure");
        let Ok(part) = std::env::var(PART) else { return Some(Self { test }) };
        let region = std::env::var_os(REGION).expect("set together with the part");
        play(&part, region.as_ref());
        None
    }

    /// Starts the test as a part at this region.
    pub(crate) fn start(&self, part: &str, region: &Path) -> Child {
        self.with(Command::new(std::env::current_exe().unwrap()), part, region)
    }

    /// The same by a command that gets the harness's arguments.
    pub(crate) fn with(&self, mut command: Command, part: &str, region: &Path) -> Child {
        command
            .args(["--exact", self.test, "--nocapture", "--test-threads=1"])
            .env(PART, part)
            .env(REGION, region)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }
}

/// A worker that takes one observation, says that it is ready, and hangs.
pub(crate) fn take_one_and_hang(region: &Path) {
    let mut worker = Worker::attach(region, &AttachOptions::default()).unwrap();
    let seen = observation(&mut worker);
    worker.ready().unwrap();
    std::thread::sleep(Duration::from_secs(60));
    drop(seen);
}

/// A worker that answers observations with themselves until the sidecar ends.
pub(crate) fn echo_until_the_end(region: &Path) {
    let mut worker = Worker::attach(region, &AttachOptions::default()).unwrap();
    loop {
        match worker.next(Some(Duration::from_secs(30))) {
            Ok(Event::Observation(seen)) => {
                let answer = seen.payload().to_vec();
                worker.answer(seen, &answer).unwrap();
            }
            Ok(Event::Timeout) => panic!("nothing came for 30 s"),
            Ok(_) => {}
            Err(WorkerError::Ended) => return,
            Err(error) => panic!("{error}"),
        }
    }
}
