//! What a client costs at least: one thread, one socket, the same bytes to the same gateway; without a worker, or with
//! one that is only woken up.

use core::time::Duration;
use std::io::{self, Read, Write};
use std::net::TcpStream;

use rustix::event::{PollFd, PollFlags, poll};

use sidecar_benches::client::{self, BINARY, Frame, MOST_FRAME, READY, Replies, TEXT};
use sidecar_shm::clock;

use crate::DialArgs;
use crate::cores::Cores;
use crate::pingpong::Sleepers;

/// How it waits for bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    Block,
    Spin,
}

/// What becomes of an observation before it is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    Nothing,
    /// Another process on this core is woken up, and wakes this one up.
    Relay,
}

/// Answers until `drain`.
///
/// # Errors
/// The connection broke.
pub(crate) fn run(args: &DialArgs, waiting: Waiting, work: Work) -> io::Result<()> {
    let core = Cores::usable()?.get(0).ok_or_else(|| io::Error::other("no core may be used"))?;
    let worker = (work == Work::Relay).then(|| Sleepers::start(core)).transpose()?;
    let mut socket = client::dial(&args.dial())?;
    socket.set_nonblocking(waiting == Waiting::Spin)?;
    let mut buffer = vec![0_u8; MOST_FRAME].into_boxed_slice();
    let mut filled = 0;
    let mut replies = Replies::default();
    loop {
        let frame = match Frame::at(&buffer[..filled]) {
            Some(frame) if frame.end <= filled => frame,
            _ => {
                filled += read(&mut socket, &mut buffer[filled..])?;
                continue;
            }
        };
        let message = &buffer[frame.start..frame.end];
        match frame.opcode {
            BINARY => {
                worker.as_ref().map_or(Ok(()), Sleepers::exchange)?;
                write(&mut socket, replies.to(message))?;
            }
            TEXT if contains(message, b"\"drain\"") => return worker.map_or(Ok(()), Sleepers::finish),
            TEXT if contains(message, b"\"warmup\"") => write(&mut socket, &client::text(READY))?,
            _ => {}
        }
        buffer.copy_within(frame.end..filled, 0);
        filled -= frame.end;
    }
}

fn contains(text: &[u8], word: &[u8]) -> bool {
    text.windows(word.len()).any(|window| window == word)
}

fn read(socket: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    let started = clock::now();
    loop {
        match socket.read(into) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            // It is one of many that are measured by turns: without work it gets out of their way.
            Err(error) if goes_on(&error) && clock::now().since(started) > SPIN => sleep(socket)?,
            Err(error) if goes_on(&error) => core::hint::spin_loop(),
            result => return result,
        }
    }
}

/// Far longer than a gateway takes between two observations.
const SPIN: Duration = Duration::from_millis(2);

fn sleep(socket: &TcpStream) -> io::Result<()> {
    poll(&mut [PollFd::new(socket, PollFlags::IN)], None)?;
    Ok(())
}

fn write(socket: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if goes_on(&error) => core::hint::spin_loop(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn goes_on(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
