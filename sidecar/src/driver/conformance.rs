//! One suite over both drivers, against plain TCP peers of the standard library.

use core::net::SocketAddr;
use core::time::Duration;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

use rustix::event::{EventfdFlags, eventfd};

use super::{
    Close, Completion, Completions, DOORBELLS, Driver, Epoll, Expect, RingMode, SocketOptions, Taken, Tell,
    Uring, Wait,
};

const OPTIONS: SocketOptions = SocketOptions { user_timeout: Duration::from_secs(5), busy_poll: None };
/// A watchdog, not a measurement: whatever is waited for comes in milliseconds or is broken.
const PATIENCE: Duration = Duration::from_secs(10);

struct Rig {
    driver: Box<dyn Driver>,
    doorbells: [OwnedFd; DOORBELLS],
}

impl Rig {
    fn ring_doorbell(&self, which: usize) {
        rustix::io::write(&self.doorbells[which], &1_u64.to_ne_bytes()).unwrap();
    }

    /// Turns until a completion of the kind that `pick` takes has come; others are an error.
    fn await_one<T>(&mut self, pick: impl Fn(Completion) -> Option<T>) -> T {
        let mut completions = Completions::new();
        for _ in 0..1000 {
            self.driver.turn(Wait::Block(Some(PATIENCE)), &mut completions).unwrap();
            if let Some(completion) = completions.pop() {
                let shown = format!("{completion:?}");
                return pick(completion).unwrap_or_else(|| panic!("unexpected {shown}"));
            }
        }
        panic!("nothing came");
    }

    fn connect(&mut self, address: SocketAddr) -> std::io::Result<()> {
        self.driver.connect(address, OPTIONS)?;
        self.await_one(|completion| match completion {
            Completion::Connected(result) => Some(result),
            _ => None,
        })
    }

    fn receive(&mut self, buffer: &mut [u8], expect: Expect) -> std::io::Result<usize> {
        // SAFETY: the buffer outlives the completion awaited on the next line, and is not looked at before.
        unsafe { self.driver.receive(buffer.as_mut_ptr(), buffer.len(), expect) };
        self.await_one(received)
    }

    fn send(&mut self, bytes: &[u8]) -> std::io::Result<Taken> {
        // SAFETY: the bytes outlive the completion awaited on the next lines.
        unsafe { self.driver.send(bytes.as_ptr(), bytes.len(), Tell::AtOnce) };
        self.await_one(|completion| match completion {
            Completion::Sent(result) => Some(result),
            _ => None,
        })
    }
}

fn received(completion: Completion) -> Option<std::io::Result<usize>> {
    match completion {
        Completion::Received(result) => Some(result),
        _ => None,
    }
}

fn on_both(test: impl Fn(&mut Rig)) {
    let bells =
        || [(); DOORBELLS].map(|()| eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap());
    let doorbells = bells();
    let driver = Box::new(Epoll::new(doorbells.each_ref().map(AsFd::as_fd)).unwrap());
    test(&mut Rig { driver, doorbells });
    for mode in [RingMode::Auto, RingMode::Plain, RingMode::Deferred] {
        let doorbells = bells();
        match Uring::new(doorbells.each_ref().map(AsFd::as_fd), mode) {
            Ok(driver) => test(&mut Rig { driver: Box::new(driver), doorbells }),
            Err(error) => println!("skipped for uring, {mode:?}: it cannot be used here ({error})"),
        }
    }
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

fn connected(rig: &mut Rig) -> TcpStream {
    let (listener, address) = listener();
    rig.connect(address).unwrap();
    listener.accept().unwrap().0
}

#[test]
fn a_refused_connection_is_reported_as_such() {
    on_both(|rig| {
        let (listener, address) = listener();
        drop(listener);
        let refused = rig.connect(address).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn bytes_go_both_ways() {
    on_both(|rig| {
        let mut peer = connected(rig);
        peer.write_all(b"observation").unwrap();
        let mut buffer = [0; 64];
        let length = rig.receive(&mut buffer, Expect::Bytes).unwrap();
        assert_eq!(&buffer[..length], b"observation");
        rig.send(b"action").unwrap();
        let mut answer = [0; 6];
        peer.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"action");
    });
}

#[test]
fn a_send_larger_than_the_socket_buffer_is_sent_whole() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let bytes: Vec<u8> = (0..24_000_000_u32).map(|index| index as u8).collect();
        let expected = bytes.clone();
        let reader = thread::spawn(move || {
            let mut all = vec![0; expected.len()];
            peer.read_exact(&mut all).unwrap();
            assert!(all == expected);
        });
        rig.send(&bytes).unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn a_large_message_arrives_through_several_receives() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let bytes: Vec<u8> = (0..9_000_000_u32).map(|index| (index / 7) as u8).collect();
        let expected = bytes.clone();
        let writer = thread::spawn(move || peer.write_all(&bytes).unwrap());
        let mut all = vec![0; expected.len()];
        let mut filled = 0;
        while filled < all.len() {
            let length = rig.receive(&mut all[filled..], Expect::Remainder).unwrap();
            assert!(length > 0);
            filled += length;
        }
        assert!(all == expected);
        writer.join().unwrap();
    });
}

#[test]
fn data_and_fin_that_came_together_are_both_seen() {
    on_both(|rig| {
        let mut peer = connected(rig);
        peer.write_all(b"last words").unwrap();
        drop(peer);
        // Both are in the socket before the first look, so that one edge announces both.
        thread::sleep(Duration::from_millis(50));
        let mut buffer = [0; 64];
        assert_eq!(rig.receive(&mut buffer, Expect::Bytes).unwrap(), 10);
        assert_eq!(rig.receive(&mut buffer, Expect::Bytes).unwrap(), 0);
    });
}

#[test]
fn a_reset_ends_a_receive_with_an_error() {
    on_both(|rig| {
        let peer = connected(rig);
        rig.send(b"never read").unwrap();
        // Closing a socket that holds unread bytes resets the connection.
        thread::sleep(Duration::from_millis(50));
        drop(peer);
        let mut buffer = [0; 64];
        let reset = rig.receive(&mut buffer, Expect::Bytes).unwrap_err();
        assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    });
}

#[test]
fn what_came_before_a_reset_is_received_before_it() {
    on_both(|rig| {
        let mut peer = connected(rig);
        peer.write_all(b"a close frame").unwrap();
        // Closing with unread bytes resets the connection (RFC 2525, section 2.17).
        rig.send(b"unread").unwrap();
        let mut there = [0; 6];
        while peer.peek(&mut there).unwrap() < there.len() {}
        drop(peer);
        let mut buffer = [0; 64];
        let length = rig.receive(&mut buffer, Expect::Bytes).unwrap();
        assert_eq!(&buffer[..length], b"a close frame");
        assert_eq!(
            rig.receive(&mut buffer, Expect::Bytes).unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
    });
}

#[test]
fn the_doorbell_wakes_a_blocked_turn_each_time_and_keeps_no_ring_back() {
    on_both(|rig| {
        for round in 0..4 {
            for which in [round % DOORBELLS, round % DOORBELLS, 0] {
                rig.ring_doorbell(which);
            }
            rig.await_one(|completion| matches!(completion, Completion::Doorbell).then_some(()));
            let mut completions = Completions::new();
            rig.driver.turn(Wait::Block(Some(Duration::from_millis(5))), &mut completions).unwrap();
            assert!(completions.is_empty(), "round {round}: {completions:?}");
        }
        for which in 0..DOORBELLS {
            let doorbell = rig.doorbells[which].try_clone().unwrap();
            let ringer = thread::spawn(move || {
                thread::sleep(Duration::from_millis(30));
                rustix::io::write(&doorbell, &1_u64.to_ne_bytes()).unwrap();
            });
            rig.await_one(|completion| matches!(completion, Completion::Doorbell).then_some(()));
            ringer.join().unwrap();
        }
    });
}

#[test]
fn a_wait_ends_by_its_own_timeout() {
    on_both(|rig| {
        let _peer = connected(rig);
        let mut buffer = [0; 8];
        // SAFETY: the connection is closed below, before the buffer goes.
        unsafe { rig.driver.receive(buffer.as_mut_ptr(), buffer.len(), Expect::Bytes) };
        let mut completions = Completions::new();
        rig.driver.turn(Wait::Block(Some(Duration::from_millis(20))), &mut completions).unwrap();
        assert!(completions.is_empty(), "{completions:?}");
        assert!(rig.driver.is_receiving());
        rig.driver.close(Close::Abort);
    });
}

#[test]
fn closing_gives_the_memory_back_and_a_new_connection_starts_clean() {
    on_both(|rig| {
        let mut first = connected(rig);
        let mut buffer = vec![0_u8; 4096];
        // SAFETY: the connection is closed on the next line, before the buffer is looked at.
        unsafe { rig.driver.receive(buffer.as_mut_ptr(), buffer.len(), Expect::Remainder) };
        rig.driver.close(Close::Abort);
        assert!(!rig.driver.is_receiving() && !rig.driver.is_sending());
        let _ = first.write_all(b"to the old connection");
        let mut second = connected(rig);
        assert!(buffer.iter().all(|&byte| byte == 0), "the kernel wrote after the close");
        second.write_all(b"new").unwrap();
        let length = rig.receive(&mut buffer, Expect::Bytes).unwrap();
        assert_eq!(&buffer[..length], b"new");
    });
}

#[test]
fn an_orderly_end_loses_no_byte_even_when_the_peer_is_sending() {
    on_both(|rig| {
        let mut peer = connected(rig);
        peer.write_all(&[7; 1000]).unwrap();
        let reader = thread::spawn(move || {
            thread::sleep(Duration::from_millis(50));
            let mut all = Vec::new();
            peer.read_to_end(&mut all).unwrap();
            peer.shutdown(Shutdown::Both).unwrap();
            all
        });
        let mut buffer = [0; 8];
        // SAFETY: the connection is closed below, before the buffer goes.
        unsafe { rig.driver.receive(buffer.as_mut_ptr(), buffer.len(), Expect::Bytes) };
        let bytes = vec![9; 200_000];
        // SAFETY: the bytes outlive the loop below, which ends with the send's completion.
        unsafe { rig.driver.send(bytes.as_ptr(), bytes.len(), Tell::AtOnce) };
        let mut completions = Completions::new();
        while rig.driver.is_sending() {
            rig.driver.turn(Wait::Block(Some(PATIENCE)), &mut completions).unwrap();
        }
        rig.driver.close(Close::Orderly);
        assert_eq!(reader.join().unwrap().len(), bytes.len());
    });
}

#[test]
fn a_receive_pending_while_a_send_is_blocked_still_completes() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let bytes = vec![1_u8; 24_000_000];
        // SAFETY: the connection is closed below, before the bytes go.
        unsafe { rig.driver.send(bytes.as_ptr(), bytes.len(), Tell::AtOnce) };
        peer.write_all(b"ping").unwrap();
        let mut buffer = [0; 16];
        let length = rig.receive(&mut buffer, Expect::Bytes).unwrap();
        assert_eq!(&buffer[..length], b"ping");
        assert!(rig.driver.is_sending());
        rig.driver.close(Close::Abort);
    });
}

#[test]
fn a_send_that_nobody_waits_for_is_told_when_something_else_ends_the_turn() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let mut buffer = [0; 64];
        // SAFETY: the bytes are static.
        unsafe { rig.driver.send(b"action".as_ptr(), 6, Tell::AtTurnEnd) };
        // SAFETY: the buffer outlives the completion, which is awaited below.
        unsafe { rig.driver.receive(buffer.as_mut_ptr(), buffer.len(), Expect::Silence) };
        let answer = thread::spawn(move || {
            let mut action = [0; 6];
            peer.read_exact(&mut action).unwrap();
            peer.write_all(b"observation").unwrap();
            (peer, action)
        });
        let (mut sent, mut received) = (0, 0);
        let mut completions = Completions::new();
        while received == 0 {
            rig.driver.turn(Wait::Block(Some(PATIENCE)), &mut completions).unwrap();
            for completion in completions.drain(..) {
                match completion {
                    Completion::Sent(Ok(_)) => sent += 1,
                    Completion::Received(Ok(length)) => received += length,
                    other => panic!("unexpected {other:?}"),
                }
            }
        }
        assert_eq!((sent, received), (1, 11));
        assert!(!rig.driver.is_sending());
        assert_eq!(&answer.join().unwrap().1, b"action");
    });
}

#[test]
fn a_send_that_nobody_waits_for_goes_on_by_itself_when_the_socket_is_full() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let bytes: Vec<u8> = (0..24_000_000_u32).map(|index| (index / 3) as u8).collect();
        let expected = bytes.clone();
        // SAFETY: the bytes outlive the loop below, which ends with the send's completion.
        unsafe { rig.driver.send(bytes.as_ptr(), bytes.len(), Tell::AtTurnEnd) };
        let mut completions = Completions::new();
        // The peer does not read yet: the kernel takes a part.
        rig.driver.turn(Wait::Poll, &mut completions).unwrap();
        assert!(completions.is_empty() && rig.driver.is_sending(), "{completions:?}");
        let reader = thread::spawn(move || {
            let mut all = vec![0; expected.len()];
            peer.read_exact(&mut all).unwrap();
            assert!(all == expected);
            peer
        });
        rig.await_one(|completion| matches!(completion, Completion::Sent(Ok(_))).then_some(()));
        // It is told once.
        rig.driver.turn(Wait::Block(Some(Duration::from_millis(5))), &mut completions).unwrap();
        assert!(completions.is_empty(), "{completions:?}");
        reader.join().unwrap();
    });
}

#[test]
fn a_send_that_nobody_waits_for_is_told_when_it_fails() {
    on_both(|rig| {
        let peer = connected(rig);
        rig.send(b"never read").unwrap();
        thread::sleep(Duration::from_millis(50));
        drop(peer);
        thread::sleep(Duration::from_millis(50));
        // SAFETY: the bytes are static.
        unsafe { rig.driver.send(b"action".as_ptr(), 6, Tell::AtTurnEnd) };
        let error = rig.await_one(|completion| match completion {
            Completion::Sent(result) => Some(result.unwrap_err()),
            _ => None,
        });
        assert!(
            matches!(error.kind(), std::io::ErrorKind::ConnectionReset | std::io::ErrorKind::BrokenPipe),
            "{error}"
        );
    });
}

#[test]
fn closing_ends_a_send_that_nobody_waits_for() {
    on_both(|rig| {
        let mut peer = connected(rig);
        let action = b"action".to_vec();
        // SAFETY: the connection is closed on the next line, before the bytes go.
        unsafe { rig.driver.send(action.as_ptr(), action.len(), Tell::AtTurnEnd) };
        rig.driver.close(Close::Abort);
        assert!(!rig.driver.is_sending());
        let mut all = Vec::new();
        // It may have left or not.
        let _ = peer.read_to_end(&mut all);
        assert!(all.is_empty() || all == action, "{all:?}");
    });
}

#[test]
fn a_receive_that_expects_silence_is_started_all_the_same() {
    on_both(|rig| {
        let mut peer = connected(rig);
        peer.write_all(b"ping").unwrap();
        let mut buffer = [0; 16];
        // SAFETY: the buffer outlives the loop below, which ends with the completion.
        unsafe { rig.driver.receive(buffer.as_mut_ptr(), buffer.len(), Expect::Silence) };
        let mut completions = Completions::new();
        // Without one turn that waits.
        while completions.is_empty() {
            rig.driver.turn(Wait::Poll, &mut completions).unwrap();
        }
        assert!(matches!(completions[..], [Completion::Received(Ok(4))]), "{completions:?}");
    });
}

#[test]
fn a_socket_polls_the_card_only_where_that_is_granted() {
    let time = Duration::from_micros(50);
    match super::socket::try_busy_poll(time) {
        Ok(()) => {
            let (_listener, address) = listener();
            assert!(
                super::socket::start(address, SocketOptions { busy_poll: Some(time), ..OPTIONS }).is_ok()
            );
        }
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied, "{error}"),
    }
}

#[test]
fn system_calls_are_counted_and_so_are_those_for_nothing() {
    on_both(|rig| {
        let _peer = connected(rig);
        rig.driver.take_calls();
        let mut completions = Completions::new();
        rig.driver.turn(Wait::Block(Some(Duration::from_millis(5))), &mut completions).unwrap();
        let calls = rig.driver.take_calls();
        assert!(calls.made > 0 && calls.empty == 0, "{calls:?}");
        for _ in 0..3 {
            rig.driver.turn(Wait::Poll, &mut completions).unwrap();
        }
        let calls = rig.driver.take_calls();
        assert_eq!(calls.made, calls.empty, "{calls:?}");
        assert_eq!(rig.driver.take_calls(), super::Calls::default());
    });
}
