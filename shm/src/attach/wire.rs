//! The two messages of the handshake: fixed sizes, little-endian, magic and version first.

use sidecar_core::tunnel::clip;

use super::{Candidate, SeatClaim};
use crate::layout::{SEATS, VERSION};

/// Bytes of a hello.
pub(super) const HELLO: usize = 64;
/// Bytes of an answer.
pub(super) const ANSWER: usize = 256;
/// Descriptors of an answer that grants a seat: region, doorbell, wake.
pub(super) const ANSWER_FDS: usize = 3;
/// Version of these messages.
pub(super) const PROTOCOL: u32 = 1;

const HELLO_MAGIC: u64 = u64::from_le_bytes(*b"sidecar?");
const ANSWER_MAGIC: u64 = u64::from_le_bytes(*b"sidecar!");
const TEXT: usize = 56;

fn put<const N: usize>(message: &mut [u8], at: usize, bytes: [u8; N]) {
    message[at..at + N].copy_from_slice(&bytes);
}

fn word32(message: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]])
}

fn word64(message: &[u8], at: usize) -> u64 {
    u64::from(word32(message, at)) | u64::from(word32(message, at + 4)) << 32
}

/// What is wrong with a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("{got} bytes came where {want} were due")]
    Size { got: usize, want: usize },
    #[error("it does not start with the magic number")]
    Magic,
    #[error("it speaks version {theirs} of the attach protocol, this is {PROTOCOL}")]
    Protocol { theirs: u32 },
    #[error("it knows layout {theirs}, the region has {VERSION}")]
    Layout { theirs: u32 },
    #[error("it names seat {0}")]
    Seat(u32),
    #[error("it has status {0}")]
    Status(u32),
}

fn start(message: &[u8], want: usize, magic: u64) -> Result<(), Malformed> {
    if message.len() != want {
        return Err(Malformed::Size { got: message.len(), want });
    }
    if word64(message, 0) != magic {
        return Err(Malformed::Magic);
    }
    match word32(message, 8) {
        PROTOCOL => Ok(()),
        theirs => Err(Malformed::Protocol { theirs }),
    }
}

/// | 0 magic | 8 protocol | 12 layout | 16 pid | 20 returns | 24 start time | 32 region | 40 seat | 44 generation |
pub(super) fn write_hello(candidate: &Candidate) -> [u8; HELLO] {
    let mut message = [0; HELLO];
    put(&mut message, 0, HELLO_MAGIC.to_le_bytes());
    put(&mut message, 8, PROTOCOL.to_le_bytes());
    put(&mut message, 12, VERSION.to_le_bytes());
    put(&mut message, 16, candidate.pid.to_le_bytes());
    put(&mut message, 24, candidate.start_time.to_le_bytes());
    if let Some(claim) = candidate.seat {
        put(&mut message, 20, 1_u32.to_le_bytes());
        put(&mut message, 32, claim.region.to_le_bytes());
        put(&mut message, 40, u32::from(claim.seat).to_le_bytes());
        put(&mut message, 44, claim.generation.to_le_bytes());
    }
    message
}

pub(super) fn read_hello(message: &[u8]) -> Result<Candidate, Malformed> {
    start(message, HELLO, HELLO_MAGIC)?;
    let theirs = word32(message, 12);
    if theirs != VERSION {
        return Err(Malformed::Layout { theirs });
    }
    let seat = match word32(message, 20) {
        0 => None,
        _ => Some(SeatClaim {
            region: word64(message, 32),
            seat: match word32(message, 40) {
                seat if (seat as usize) < SEATS => seat as u8,
                seat => return Err(Malformed::Seat(seat)),
            },
            generation: word32(message, 44),
        }),
    };
    Ok(Candidate { pid: word32(message, 16), start_time: word64(message, 24), seat })
}

/// Why a worker gets no seat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// Another worker has it.
    Taken,
    /// Neither seat is free yet.
    NotYet,
    /// Anything else: the text says what.
    Other,
}

/// An answer without its descriptors.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
    Granted { seat: u8, generation: u32, owner_generation: u32, resumed: bool, region: u64, total: u64 },
    Refused { why: Refusal, pid: u32, text: String },
}

/// | 0 magic | 8 protocol | 12 status | 16 seat | 20 generation | 24 owner | 28 resumed | 32 region | 40 total |
/// | 48 pid | 52 bytes of text | 56 text |
pub(super) fn write_reply(reply: &Reply) -> [u8; ANSWER] {
    let mut message = [0; ANSWER];
    put(&mut message, 0, ANSWER_MAGIC.to_le_bytes());
    put(&mut message, 8, PROTOCOL.to_le_bytes());
    match reply {
        Reply::Granted { seat, generation, owner_generation, resumed, region, total } => {
            put(&mut message, 16, u32::from(*seat).to_le_bytes());
            put(&mut message, 20, generation.to_le_bytes());
            put(&mut message, 24, owner_generation.to_le_bytes());
            put(&mut message, 28, u32::from(*resumed).to_le_bytes());
            put(&mut message, 32, region.to_le_bytes());
            put(&mut message, 40, total.to_le_bytes());
        }
        Reply::Refused { why, pid, text } => {
            let status: u32 = match why {
                Refusal::Taken => 1,
                Refusal::NotYet => 2,
                Refusal::Other => 3,
            };
            put(&mut message, 12, status.to_le_bytes());
            put(&mut message, 48, pid.to_le_bytes());
            let text = clip::<{ ANSWER - TEXT }>(text);
            // At most 200 bytes.
            put(&mut message, 52, (text.len() as u32).to_le_bytes());
            message[TEXT..TEXT + text.len()].copy_from_slice(text.as_bytes());
        }
    }
    message
}

pub(super) fn read_reply(message: &[u8]) -> Result<Reply, Malformed> {
    start(message, ANSWER, ANSWER_MAGIC)?;
    let why = match word32(message, 12) {
        0 => {
            let seat = word32(message, 16);
            if seat as usize >= SEATS {
                return Err(Malformed::Seat(seat));
            }
            return Ok(Reply::Granted {
                // Below two.
                seat: seat as u8,
                generation: word32(message, 20),
                owner_generation: word32(message, 24),
                resumed: word32(message, 28) != 0,
                region: word64(message, 32),
                total: word64(message, 40),
            });
        }
        1 => Refusal::Taken,
        2 => Refusal::NotYet,
        3 => Refusal::Other,
        status => return Err(Malformed::Status(status)),
    };
    let length = (word32(message, 52) as usize).min(ANSWER - TEXT);
    let text = String::from_utf8_lossy(&message[TEXT..TEXT + length]).into_owned();
    Ok(Reply::Refused { why, pid: word32(message, 48), text })
}
