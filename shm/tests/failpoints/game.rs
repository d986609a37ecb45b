//! What is played between a sidecar and its worker: an observation's first byte says what the worker does with it, the
//! rest is made from its sequence, so that a slot that is written while somebody has it shows.

use std::io::Write;

/// What the worker does with an observation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Move {
    /// Answers with the sequence.
    Echo = 1,
    /// Keeps it until it has the next one, then answers both.
    Hold = 2,
    /// Says that it failed on it, and gives it back.
    Fail = 3,
    /// Answers, then waits as somebody does who has a poll loop.
    Poll = 4,
    /// Answers, then ends; another process follows.
    Leave = 5,
}

impl Move {
    /// The move of a payload's first byte; what is none is answered like any other.
    pub(crate) fn of(byte: u8) -> Self {
        let others = [Self::Hold, Self::Fail, Self::Poll, Self::Leave];
        others.into_iter().find(|other| *other as u8 == byte).unwrap_or(Self::Echo)
    }
}

/// The payload of an observation: a few hundred to a few thousand bytes.
pub(crate) fn payload(sequence: u64, what: Move) -> Vec<u8> {
    let length = 200 + usize::try_from(sequence * 1013 % 4000).unwrap();
    let mut payload = vec![what as u8];
    payload.extend_from_slice(&sequence.to_le_bytes());
    payload.extend((0..length).map(|at| (sequence.wrapping_mul(31) as usize + at * 7) as u8));
    payload
}

/// What the worker is to do, if this is the payload of that observation and nothing else was written over it.
pub(crate) fn read(bytes: &[u8], sequence: u64) -> Option<Move> {
    let what = Move::of(*bytes.first()?);
    (bytes == payload(sequence, what)).then_some(what)
}

/// Says something to the process that watches this one, at once.
pub(crate) fn say(text: core::fmt::Arguments<'_>) {
    // What the test harness says on the same stream lacks the mark. Nobody listening is as good as being killed.
    let _ = writeln!(std::io::stdout(), "@{text}");
}
