//! Control frames: however they are cut, they mean the same; and what is accepted is JSON to an independent parser.

use serde::de::IgnoredAny;
use sidecar_core::tunnel::control::{
    Control, ControlError, ControlLexer, MAX_SESSION_CLOSE, write_session_close,
};

use crate::split::pieces;

/// The target's body.
pub fn run(bytes: &[u8]) {
    let Some((&seed, text)) = bytes.split_first() else { return };
    // Of several faults, which one is met first depends on the pieces.
    let whole = read([text].into_iter()).ok();
    assert_eq!(whole, read(pieces(text, seed)).ok(), "cut with seed {seed}");
    assert_eq!(whole, read(pieces(text, 0)).ok(), "byte by byte");
    let Some(control) = whole else { return };
    assert!(serde_json::from_slice::<IgnoredAny>(text).is_ok(), "{control:?} is no JSON");
    // What we would say ourselves is read back to the same.
    if let Control::SessionClose { session, reason } = &control {
        let mut out = [0; MAX_SESSION_CLOSE];
        let length =
            write_session_close(session, reason, &mut out).expect("the buffer is as large as it can get");
        assert_eq!(read([&out[..length]].into_iter()), Ok(control));
    }
}

fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Control, ControlError> {
    let mut lexer = ControlLexer::new();
    for piece in pieces {
        lexer.feed(piece)?;
    }
    lexer.finish()
}
