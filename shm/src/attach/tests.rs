//! The handshake, with peers that keep to it and peers that don't.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};

use super::listener::{check_user, proved};
use super::wire::{self, HELLO, Malformed, Refusal, Reply};
use super::*;
use crate::sys;
use crate::testing::process::{Parts, take_one_and_hang};
use crate::testing::{SMALL, Side, directory, until};
use crate::worker::{AttachError, AttachOptions, Worker};

fn listener() -> (tempfile::TempDir, PathBuf, Listener) {
    let directory = directory();
    let region = directory.path().join("obs");
    let listener = Listener::bind(&region).unwrap();
    (directory, region, listener)
}

/// A peer that speaks for itself.
fn raw(region: &Path) -> OwnedFd {
    let socket =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::connect(&socket, &SocketAddrUnix::new(socket_path(region)).unwrap()).unwrap();
    socket
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    rustix::net::send(socket, bytes, SendFlags::NOSIGNAL).unwrap();
}

const CANDIDATE: Candidate = Candidate {
    pid: 77,
    start_time: u64::MAX,
    seat: Some(SeatClaim { region: 1 << 40, seat: 1, generation: 9 }),
};

#[test]
fn messages_come_back_as_they_were() {
    for candidate in [CANDIDATE, Candidate { seat: None, ..CANDIDATE }] {
        assert_eq!(wire::read_hello(&wire::write_hello(&candidate)), Ok(candidate));
    }
    let long = "\u{e9}".repeat(300);
    for reply in [
        Reply::Granted { seat: 1, generation: 2, owner_generation: 3, resumed: true, region: 4, total: 5 },
        Reply::Refused { why: Refusal::Taken, pid: 6, text: "no".into() },
        Reply::Refused { why: Refusal::NotYet, pid: 0, text: String::new() },
        Reply::Refused { why: Refusal::Other, pid: 0, text: long[..200].into() },
    ] {
        assert_eq!(wire::read_reply(&wire::write_reply(&reply)), Ok(reply));
    }
    let cut = wire::write_reply(&Reply::Refused { why: Refusal::Other, pid: 0, text: long });
    assert!(matches!(wire::read_reply(&cut), Ok(Reply::Refused { text, .. }) if text.len() == 200));
}

#[test]
fn messages_that_are_none_are_told_apart() {
    let hello = wire::write_hello(&CANDIDATE);
    let patched = |at: usize, byte: u8| {
        let mut message = hello;
        message[at] = byte;
        wire::read_hello(&message)
    };
    assert_eq!(wire::read_hello(&hello[..HELLO - 1]), Err(Malformed::Size { got: HELLO - 1, want: HELLO }));
    assert_eq!(wire::read_hello(&[]), Err(Malformed::Size { got: 0, want: HELLO }));
    assert_eq!(patched(0, 0), Err(Malformed::Magic));
    assert_eq!(patched(8, 9), Err(Malformed::Protocol { theirs: 9 }));
    assert_eq!(patched(12, 200), Err(Malformed::Layout { theirs: 200 }));
    assert_eq!(patched(40, 2), Err(Malformed::Seat(2)));
    let mut reply = wire::write_reply(&Reply::Refused { why: Refusal::Taken, pid: 0, text: String::new() });
    reply[12] = 77;
    assert_eq!(wire::read_reply(&reply), Err(Malformed::Status(77)));
    reply[12] = 1;
    reply[52..56].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(wire::read_reply(&reply).is_ok(), "a length is never believed beyond the message");
}

#[test]
fn the_socket_is_private_replaces_a_stale_one_and_goes_with_its_listener() {
    let (_directory, region, first) = listener();
    let path = socket_path(&region);
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(first.accept().unwrap().is_none(), "it never blocks");
    let second = Listener::bind(&region).unwrap();
    drop(first);
    assert!(path.exists(), "the first one's name is the second one's now");
    drop(second);
    assert!(!path.exists());
    fs::write(&path, "mine").unwrap();
    assert_eq!(Listener::bind(&region).unwrap_err().kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn garbage_silence_and_hanging_up_are_that_peers_own_fault() {
    let mut side = Side::new(&SMALL);
    let listener = Listener::bind(&side.path).unwrap();
    let garbage: &[&[u8]] = &[b"x", &[0; HELLO], &[0xff; HELLO + 1], &[0x55; 60_000]];
    for bytes in garbage {
        let peer = raw(&side.path);
        send(&peer, bytes);
        let mut pending = listener.accept().unwrap().unwrap();
        let error = pending.wait_hello(HANDSHAKE).unwrap_err();
        assert!(matches!(error, HelloError::Malformed(_)), "{error}");
        drop(pending);
        // The peer is told before it is hung up on.
        let mut answer = [0; 512];
        let (received, _) = rustix::net::recv(&peer, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
        assert!(matches!(
            wire::read_reply(&answer[..received]),
            Ok(Reply::Refused { why: Refusal::Other, .. })
        ));
    }
    let peer = raw(&side.path);
    let mut pending = listener.accept().unwrap().unwrap();
    assert_eq!(pending.poll_hello().unwrap(), None);
    let error = pending.wait_hello(Duration::from_millis(10)).unwrap_err();
    assert!(matches!(&error, HelloError::Silent(why) if why.kind() == ErrorKind::TimedOut), "{error}");
    drop(peer);
    let error = pending.wait_hello(HANDSHAKE).unwrap_err();
    assert!(matches!(error, HelloError::Silent(_)), "{error}");
    drop((pending, listener));
    side = side.crash_and_restart();
    side.attach().unwrap();
}

#[test]
fn descriptors_that_nobody_asked_for_are_closed() {
    let (_directory, region, listener) = listener();
    let peer = raw(&region);
    let (junk, other_end) = std::os::unix::net::UnixStream::pair().unwrap();
    let fds = [junk.as_fd(); 8];
    let mut space = [core::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
    let hello = wire::write_hello(&Candidate { seat: None, ..CANDIDATE });
    rustix::net::sendmsg(&peer, &[io::IoSlice::new(&hello)], &mut control, SendFlags::NOSIGNAL).unwrap();
    drop(junk);
    let mut pending = listener.accept().unwrap().unwrap();
    assert_eq!(pending.wait_hello(HANDSHAKE).unwrap().pid, std::process::id());
    // All copies are gone once the other end reads the end.
    assert!(sys::poll_in(&other_end, HANDSHAKE).unwrap());
}

#[test]
fn a_worker_that_hung_up_after_its_hello_gets_no_seat() {
    let (_directory, region, listener) = listener();
    let peer = raw(&region);
    send(&peer, &wire::write_hello(&Candidate { seat: None, ..CANDIDATE }));
    drop(peer);
    let mut pending = listener.accept().unwrap().unwrap();
    let error = pending.wait_hello(HANDSHAKE).unwrap_err();
    assert!(matches!(&error, HelloError::Silent(why) if why.kind() == ErrorKind::UnexpectedEof), "{error}");
}

#[test]
fn only_the_same_user_may_attach() {
    assert!(check_user(1000, 1000).is_ok());
    let error = check_user(0, 1000).unwrap_err();
    assert!(error.to_string().contains("run the worker as the sidecar's user, uid 1000"), "{error}");
}

#[test]
fn without_the_kernels_word_a_process_is_proved_by_its_start_time_or_its_own_pidfd() {
    let pid = std::process::id();
    let start = sys::start_time(pid).unwrap();
    let own = || {
        rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()).unwrap()
    };
    assert!(!sys::poll_in(proved(pid, start, None).unwrap(), Duration::ZERO).unwrap());
    assert!(proved(pid, start + 1, Some(own())).is_err(), "another process under the same pid");
    assert!(proved(0, start, Some(own())).is_ok(), "across pid namespaces");
    assert!(proved(0, start, None).is_err());
    let file: OwnedFd = fs::File::open("/dev/null").unwrap().into();
    assert!(proved(0, start, Some(file)).is_err(), "any descriptor is no proof");

    let mut child = std::process::Command::new("true").spawn().unwrap();
    let gone = child.id();
    child.wait().unwrap();
    assert!(proved(gone, start, None).is_err());
}

#[test]
fn a_peer_without_a_pid_here_is_a_peer() {
    let outside = libc::ucred { pid: 0, uid: 1000, gid: 1000 };
    assert_eq!(sys::Peer::from(outside), sys::Peer { pid: 0, uid: 1000 });
    let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    let us = sys::Peer { pid: std::process::id(), uid: rustix::process::geteuid().as_raw() };
    assert_eq!(sys::peer(&one).unwrap(), us);
}

/// Found in a container beside the worker's: pid 0 was an error, and no worker ever attached.
#[test]
fn a_worker_of_another_pid_namespace_attaches_and_its_death_is_proved() {
    let play = |part: &str, meeting_point: &Path| match part {
        "sidecar" => serve_a_worker_of_another_pid_namespace(meeting_point),
        _ => take_one_and_hang(meeting_point),
    };
    let Some(parts) = Parts::of(play) else { return };
    let unshare = |program: &std::ffi::OsStr| {
        let mut command = std::process::Command::new("unshare");
        command
            .args(["--pid", "--fork", "--kill-child"])
            .arg(program)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    if !unshare("true".as_ref()).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: no right to make a pid namespace");
        return;
    }
    let directory = directory();
    let region = directory.path().join("obs");
    let itself = std::env::current_exe().unwrap();
    let mut sidecar = parts.with(unshare(itself.as_os_str()), "sidecar", &region);
    let mut worker = parts.start("worker", &region);
    until(|| {
        assert_eq!(sidecar.try_wait().unwrap(), None, "it waits for the worker's end");
        region.exists().then_some(())
    });
    worker.kill().unwrap();
    worker.wait().unwrap();
    assert!(sidecar.wait().unwrap().success());
}

fn serve_a_worker_of_another_pid_namespace(meeting_point: &Path) {
    let mut side = Side::new(&SMALL);
    std::os::unix::fs::symlink(socket_path(&side.path), socket_path(meeting_point)).unwrap();
    until(|| side.serve().then_some(()));
    assert_eq!(side.owner.live_seat().unwrap().pid, 0, "it can't be seen from here");
    // This namespace has the other one's /proc: what it says of a pid is about somebody else.
    let own = std::process::id();
    assert!(sys::process_start(own).is_err() && sys::is_ending(own).is_none(), "pid {own}");
    side.owner.deliver_pending();
    let sequence = side.observe(1, b"x");
    until(|| side.poll().unwrap());
    fs::write(meeting_point, "its worker has the observation").unwrap();
    until(|| {
        side.watch();
        side.connections.is_empty().then_some(())
    });
    side.settle();
    let held = side.owner.oldest_unanswered().unwrap();
    assert_eq!((held.sequence, held.deaths), (sequence, 1));
    assert!(side.owner.live_seat().is_none());
}

#[test]
fn a_connection_tells_its_end_and_is_not_fooled_by_chatter() {
    let mut side = Side::new(&SMALL);
    let listener = Listener::bind(&side.path).unwrap();
    let peer = raw(&side.path);
    send(&peer, &wire::write_hello(&Candidate { seat: None, ..CANDIDATE }));
    let mut pending = listener.accept().unwrap().unwrap();
    let candidate = pending.wait_hello(HANDSHAKE).unwrap();
    assert_eq!(candidate.pid, std::process::id(), "the kernel's word, not the peer's");
    let grant = side.owner.seat_join(&candidate).unwrap();
    let connection = pending.grant(&grant).unwrap();
    assert!(!connection.has_ended() && !connection.is_proved_dead());
    for _ in 0..10 {
        send(&peer, &[1; 1000]);
    }
    assert!(!connection.has_ended());
    assert!(!sys::poll_in(connection.socket(), Duration::ZERO).unwrap(), "what it said was thrown away");
    drop(peer);
    // A process that another test forks meanwhile holds a copy until it executes.
    until(|| connection.has_ended().then_some(()));
    assert!(!connection.is_proved_dead(), "the end of a connection proves nothing");
}

#[test]
fn a_worker_waits_for_its_sidecar_or_says_that_there_is_none() {
    let directory = directory();
    let region = directory.path().join("obs");
    let options = AttachOptions { timeout: Duration::from_millis(30), ..AttachOptions::default() };
    let error = Worker::attach(&region, &options).unwrap_err();
    assert!(matches!(error, AttachError::NoSidecar { .. }), "{error}");
    assert!(error.to_string().contains("is one running with this --shm?"));

    let path = region.clone();
    let waiting = std::thread::spawn(move || Worker::attach(&path, &AttachOptions::default()));
    let mut side = Side::at(std::sync::Arc::new(directory), &SMALL, crate::clock::now());
    until(|| {
        side.serve();
        waiting.is_finished().then_some(())
    });
    waiting.join().unwrap().unwrap();
}
