//! A gateway that sends every malformed thing of the fuzz corpora, each on a connection of its own: answers to the
//! upgrade, frame streams, control frames, data messages. The sidecar takes each for what it is, dials again, grows
//! neither in memory nor in descriptors, and still ends as it should.

use core::time::Duration;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use crate::support::{Region, Running, main_job, wait_for, with_worker};
use crate::wire::{accept, footprint, frame, good, pending, say};

/// Seeds that end a job, as they should: each would end the game.
const ENDINGS: [&str; 9] = [
    "json-drain",
    "drain",
    "reason-of-1000",
    "type-twice",
    "type-escaped",
    "status-401",
    "status-403",
    "close-1013-try-again",
    "good-and-a-close-behind",
];
/// What [`accept_for`] stands for in the corpus of handshakes: the answer to the example key of RFC 6455 section 1.3.
const EXAMPLE: &[u8] = b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";
/// Connections until the sidecar has everything that it will ever have.
const SETTLED: usize = 40;

/// One connection's worth.
enum Case {
    /// The answer to the upgrade.
    Answer(Vec<u8>),
    /// What follows a good answer and an open session.
    Frames(Vec<u8>),
}

fn corpus(name: &str) -> Vec<(String, Vec<u8>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus").join(name);
    let files = fs::read_dir(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    let files: BTreeMap<_, _> = files
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap()))
        .collect();
    files.into_iter().filter(|(name, _)| !ENDINGS.contains(&name.as_str())).collect()
}

/// Every seed once; answers between the others, since in a row they would use up the time for a redial.
fn cases() -> Vec<(String, Case)> {
    let rest = |bytes: &[u8], skip: usize| bytes.get(skip..).unwrap_or_default().to_vec();
    let streams = corpus("stream").into_iter().map(|(name, bytes)| (name, Case::Frames(rest(&bytes, 2))));
    let controls = corpus("control")
        .into_iter()
        .map(|(name, bytes)| (name, Case::Frames(frame(0x81, &rest(&bytes, 1)))));
    let messages =
        corpus("tunnel").into_iter().map(|(name, bytes)| (name, Case::Frames(frame(0x82, &rest(&bytes, 1)))));
    let mut answers = corpus("handshake").into_iter().map(|(name, bytes)| (name, Case::Answer(bytes)));
    let mut cases = Vec::new();
    for case in streams.chain(controls).chain(messages) {
        cases.push(case);
        cases.extend(answers.next());
    }
    assert!(answers.next().is_none() && cases.len() > 120, "{} cases", cases.len());
    cases
}

/// Plays everything, then ends with `last` on each further connection; gives exit code and log.
fn play(io: &str, last: impl Fn(&mut TcpStream, [u8; 28])) -> (i32, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/", listener.local_addr().unwrap());
    let region = Region::new();
    // All that it has to say of this gateway is expected.
    region.expect(&[""]);
    let mut command = main_job(&region, &endpoint);
    command.args(["--io", io, "--slot-bytes", "65536", "--backoff-base", "1ms", "--backoff-max", "5ms"]);
    with_worker(&mut command, "noop");
    let mut sidecar = Running::start(&mut command);

    // Once in order: warm, and a session open.
    let (mut stream, key) = accept(&listener);
    stream.write_all(&[good(key), frame(0x81, br#"{"type":"warmup"}"#)].concat()).unwrap();
    sidecar.await_stderr("INFO ready");
    let session = frame(0x81, br#"{"type":"session_open","session_id":"s"}"#);
    say(&mut stream, &session);
    drop(stream);
    let cases = cases();
    let mut settled = None;
    for (index, (name, case)) in cases.iter().enumerate() {
        if index == SETTLED {
            settled = Some(footprint(sidecar.pid()));
        }
        let (mut stream, key) = accept(&listener);
        match case {
            Case::Answer(bytes) => {
                let at = bytes.windows(EXAMPLE.len()).position(|window| window == EXAMPLE);
                let mut bytes = bytes.clone();
                if let Some(at) = at {
                    bytes[at..at + EXAMPLE.len()].copy_from_slice(&key);
                }
                say(&mut stream, &bytes);
            }
            Case::Frames(bytes) => say(&mut stream, &[good(key), session.clone(), bytes.clone()].concat()),
        }
        drop(stream);
        wait_for(&format!("a dial after {name}; so far:\n{}", sidecar.stderr()), || pending(&listener));
    }
    let (before, after) = (settled.unwrap(), footprint(sidecar.pid()));
    assert!(after.0 < before.0 + 2048, "{} kB became {} kB", before.0, after.0);
    assert!(after.1 <= before.1 + 2, "{} descriptors became {}", before.1, after.1);
    // The last word, as often as it is asked for.
    let (code, said) = std::thread::scope(|scope| {
        let ended = scope.spawn(|| sidecar.finish());
        while !ended.is_finished() {
            if pending(&listener) {
                let (mut stream, key) = accept(&listener);
                last(&mut stream, key);
            } else {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        ended.join().unwrap()
    });
    assert!(!said.contains("panicked"), "{said}");
    // It was really put to the test: most of the frames cost a connection or a line.
    for (what, least) in [
        ("protocol violation", 20),
        ("data frame dropped", 3),
        ("upgrade failed", 10),
        ("upgrade refused", 4),
    ] {
        let count = said.matches(what).count();
        assert!(count >= least, "{what} was said {count} times:\n{said}");
    }
    (code, said)
}

#[test]
fn everything_malformed_is_survived_and_a_refused_token_ends_it_with_1() {
    let (code, said) = play("uring", |stream, _| {
        say(stream, b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n");
    });
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("401") && said.contains("hint: "), "{said}");
}

#[test]
fn everything_malformed_is_survived_and_a_drain_ends_it_with_0() {
    let (code, said) = play("epoll", |stream, key| {
        say(stream, &[good(key), frame(0x81, br#"{"type":"drain"}"#)].concat());
    });
    assert_eq!(code, 0, "{said}");
}
