//! Gateways without end: floods of everything that costs them nothing, an answer that trickles in, a peer that never
//! reads. The sidecar stays as small as it was, says little, hears signals, and ends as it should.

use core::time::Duration;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use rustix::process::Signal;
use sidecar_shm::stats::{Counter, Gauge, Stats};

use crate::support::{Region, Running, main_job, wait_for, with_worker};
use crate::wire::{accept, footprint, frame, good};

/// Of the flood of empty observations; each is answered.
const ROUND_TRIPS: usize = 1_000;
const OPEN: &str = r#"{"type":"session_open","session_id":"s"}"#;

fn text(json: &str) -> Vec<u8> {
    frame(0x81, json.as_bytes())
}

/// A data message for a session.
fn data(session: &str, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(session.len()).unwrap().to_be_bytes();
    frame(0x82, &[&length[..], session.as_bytes(), payload].concat())
}

/// What is sent, by name; the connection has to outlive each of them.
fn floods() -> Vec<(&'static str, Vec<u8>)> {
    let fragments =
        |first: &[u8], each: &[u8]| [first, &frame(0x00, each).repeat(65_000), &frame(0x80, b"")].concat();
    let types = (0..20_000).flat_map(|index| text(&format!(r#"{{"type":"t{index}"}}"#)));
    let sessions =
        (0..5_000).flat_map(|index| text(&format!(r#"{{"type":"session_open","session_id":"n{index}"}}"#)));
    let close = text(r#"{"type":"session_close","session_id":"s"}"#);
    let broken_off = [text(OPEN), data("s", &[7; 20_000]), close].concat();
    let deep = format!(r#"{{"type":"warmup","x":{}"#, "[".repeat(20_000));
    vec![
        ("pings", frame(0x89, b"").repeat(500_000)),
        ("large pings", frame(0x89, &[7; 125]).repeat(20_000)),
        ("pongs", frame(0x8a, b"").repeat(500_000)),
        ("empty fragments", fragments(&frame(0x02, b""), b"")),
        ("tiny fragments", fragments(&frame(0x02, &[0, 0, 0, 4, b'g', b'o', b'n', b'e']), b"x")),
        ("empty texts", text("").repeat(100_000)),
        ("types", types.collect()),
        ("deep texts", text(&deep).repeat(200)),
        ("warm-ups", text(r#"{"type":"warmup"}"#).repeat(50_000)),
        ("closes of other sessions", text(r#"{"type":"session_close","session_id":"x"}"#).repeat(50_000)),
        ("data without a session", data("gone", b"payload").repeat(100_000)),
        ("data without a head", frame(0x82, &[0, 0, 1]).repeat(100_000)),
        ("ids past the end", frame(0x82, &[0, 0, 0, 200, b'x']).repeat(100_000)),
        ("sessions that take each other's place", sessions.collect()),
        ("observations whose session is closed at once", broken_off.repeat(1_000)),
        ("warm-up round trips", data("", b"").repeat(ROUND_TRIPS)),
        ("one session again and again", text(OPEN).repeat(5_000)),
    ]
}

/// A sidecar with a warm worker and an open session, and the gateway's end of it.
struct Attacked {
    region: Region,
    sidecar: Running,
    listener: TcpListener,
    stream: TcpStream,
}

fn attacked(policy: &str, arguments: &[&str]) -> Attacked {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/", listener.local_addr().unwrap());
    let region = Region::new();
    // All that it has to say of this gateway is expected.
    region.expect(&[""]);
    let mut command = main_job(&region, &endpoint);
    command.args(["--slot-bytes", "65536"]).args(arguments);
    with_worker(&mut command, policy);
    let mut sidecar = Running::start(&mut command);
    let (mut stream, key) = accept(&listener);
    stream.write_all(&[good(key), text(r#"{"type":"warmup"}"#)].concat()).unwrap();
    sidecar.await_stderr("INFO ready");
    stream.write_all(&text(OPEN)).unwrap();
    sidecar.await_stderr("session open");
    Attacked { region, sidecar, listener, stream }
}

/// Reads on, so that neither end waits for the other; gives the end of what was said.
fn drained(stream: &TcpStream) -> thread::JoinHandle<Vec<u8>> {
    let mut stream = stream.try_clone().unwrap();
    thread::spawn(move || {
        let (mut said, mut bytes) = (Vec::new(), vec![0; 65_536]);
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            said.extend_from_slice(&bytes[..count]);
            let surplus = said.len().saturating_sub(4096);
            said.drain(..surplus);
        }
        said
    })
}

#[test]
fn floods_cost_neither_memory_nor_lines_nor_the_session() {
    for io in ["uring", "epoll"] {
        // No timer of ours may be what carries on where something was forgotten.
        let timers = ["--ping-after", "10m", "--dead-after", "20m", "--close-timeout", "300ms"];
        let Attacked { sidecar, mut stream, region, .. } =
            attacked("echo", &[&["--io", io], &timers[..]].concat());
        let reader = drained(&stream);
        let mut settled = None;
        for (name, bytes) in floods() {
            stream.write_all(&bytes).unwrap_or_else(|error| panic!("{name}: {error}\n{}", sidecar.stderr()));
            settled.get_or_insert_with(|| footprint(sidecar.pid()));
        }
        // Still the same session, and it is still served.
        stream.write_all(&data("s", b"the observation behind it all")).unwrap();
        wait_for("the observation to be counted", || {
            let stats = Stats::open_read_only(&region.path()).unwrap();
            // What was answered of a session before it was closed comes to that.
            stats.counter(Counter::ActionsOut) > ROUND_TRIPS as u64 && stats.gauge(Gauge::Unanswered) == 0
        });
        let (before, after) = (settled.unwrap(), footprint(sidecar.pid()));
        assert!(after.0 < before.0 + 2048, "{io}: {} kB became {} kB", before.0, after.0);
        assert!(after.1 <= before.1, "{io}: {} descriptors became {}", before.1, after.1);
        stream.write_all(&text(r#"{"type":"drain"}"#)).unwrap();
        let (code, said) = sidecar.finish();
        assert_eq!(code, 0, "{io}: {said}");
        assert!(!said.contains("redialling") && !said.contains("panicked"), "{io}: {said}");
        // Each opening and close of a session is a line; of a million other frames there are few.
        let about_sessions = |line: &&str| line.contains("session open") || line.contains("session closed");
        let lines = said.lines().filter(|line| !about_sessions(line)).count();
        assert!(lines < 60, "{io}: {lines} lines:\n{said}");
        let said = reader.join().unwrap();
        assert!(said.windows(2).any(|head| head == [0x88, 0x82]), "{io}: no close frame at the end");
    }
}

#[test]
fn an_answer_that_trickles_in_is_given_up_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("ws://{}/", listener.local_addr().unwrap());
    thread::spawn(move || {
        loop {
            let (mut stream, key) = accept(&listener);
            thread::spawn(move || {
                for byte in good(key) {
                    thread::sleep(Duration::from_millis(20));
                    if stream.write_all(&[byte]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    let region = Region::new();
    region.expect(&["no connection yet: dial failed: no answer in time"]);
    let mut command = main_job(&region, &endpoint);
    command.args(["--dial-timeout", "1s", "--connect-timeout", "300ms", "--backoff-max", "10ms"]);
    let (code, said) = Running::start(&mut command).finish();
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("error[unreachable]") && !said.contains("tunnel is up"), "{said}");
    assert!(said.matches("no answer in time").count() >= 3, "{said}");
}

/// Asks for more answers than a connection holds, and reads none of them.
fn stuff(stream: &mut TcpStream) {
    stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
    let observation = data("s", &[7; 60_000]);
    // It ends when the sidecar reads no more: all its slots hold what it cannot answer.
    while stream.write_all(&observation).is_ok() {}
}

#[test]
fn a_gateway_that_never_reads_is_left_and_dialled_again() {
    for io in ["uring", "epoll"] {
        // Long enough for a worker to be ready in, since this gateway says nothing meanwhile.
        let arguments = ["--io", io, "--ping-after", "1s", "--dead-after", "4s"];
        let Attacked { mut sidecar, mut stream, listener, .. } = attacked("echo", &arguments);
        stuff(&mut stream);
        // Its pings go on as if nothing were, as far as they find room.
        stream.set_nonblocking(true).unwrap();
        wait_for("the end of the connection", || {
            let _ = stream.write(&frame(0x89, b""));
            sidecar.stderr().contains("redialling")
        });
        drop(stream);
        let (mut stream, key) = accept(&listener);
        stream.write_all(&[good(key), text(r#"{"type":"drain"}"#)].concat()).unwrap();
        let reader = drained(&stream);
        sidecar.await_stderr("drain");
        let (code, said) = sidecar.finish();
        assert_eq!(code, 0, "{io}: {said}");
        reader.join().unwrap();
    }
}

#[test]
fn a_signal_is_heard_while_nothing_can_be_sent() {
    for io in ["uring", "epoll"] {
        let Attacked { sidecar, mut stream, .. } =
            attacked("echo", &["--io", io, "--close-timeout", "300ms"]);
        stuff(&mut stream);
        sidecar.signal(Signal::TERM);
        let (code, said) = sidecar.finish();
        assert_eq!(code, 143, "{io}: {said}");
    }
}
