//! The gateway's end of a connection, by hand: nothing here keeps to a rule that it was not told.

use core::time::Duration;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use sidecar_core::ws::handshake::accept_for;

use crate::support::PATIENCE;

/// How long an answer may take on this machine, where one is waited for.
const LINGER: Duration = Duration::from_millis(25);

/// A frame with this first byte, unmasked.
pub(crate) fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = u16::try_from(payload.len()).unwrap();
    let head = if length < 126 { vec![first, length as u8] } else { vec![first, 126] };
    let long = if length < 126 { vec![] } else { length.to_be_bytes().to_vec() };
    [&head, &long[..], payload].concat()
}

/// Takes a connection and reads its request; gives the accept value that its key asks for.
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, [u8; 28]) {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        assert_eq!(stream.read(&mut byte).unwrap(), 1, "the request ended early: {request:?}");
        request.push(byte[0]);
    }
    let request = String::from_utf8(request).unwrap();
    let (_, key) = request.split_once("Sec-WebSocket-Key: ").unwrap();
    let key = key.as_bytes().first_chunk().unwrap();
    (stream, accept_for(key))
}

pub(crate) fn good(accept: [u8; 28]) -> Vec<u8> {
    let head = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ";
    [&head[..], &accept, b"\r\n\r\n"].concat()
}

/// What the peer makes of it is its own affair here: it may have hung up already.
pub(crate) fn say(stream: &mut TcpStream, bytes: &[u8]) {
    let _ = stream.write_all(bytes);
    stream.set_read_timeout(Some(LINGER)).unwrap();
    let mut heard = [0; 4096];
    while let Ok(1..) = stream.read(&mut heard) {}
}

/// Resident private memory in kB and open descriptors of a process.
pub(crate) fn footprint(pid: u32) -> (u64, usize) {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    let kilobytes = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    (kilobytes, fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count())
}

/// Whether somebody waits to be accepted.
pub(crate) fn pending(listener: &TcpListener) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(listener, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}
