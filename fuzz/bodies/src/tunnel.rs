//! Heads of data frames: however they are cut, they mean the same, and are written back to the same bytes.

use sidecar_core::tunnel::SessionId;
use sidecar_core::tunnel::data::{DataError, DataHead, MAX_DATA_HEAD, Progress, encode_data_head};

use crate::split::pieces;

/// The target's body.
pub fn run(bytes: &[u8]) {
    let Some((&seed, message)) = bytes.split_first() else { return };
    let whole = read([message].into_iter());
    assert_eq!(whole, read(pieces(message, seed)), "cut with seed {seed}");
    assert_eq!(whole, read(pieces(message, 0)), "byte by byte");
    if let Ok(Some((session, consumed))) = whole {
        let session = SessionId::new(&session).expect("the parser knows the limit too");
        let mut out = [0; MAX_DATA_HEAD];
        let length = encode_data_head(&session, &mut out);
        assert_eq!(&out[..length], &message[..consumed]);
    }
}

/// Session and length of the head; `None`: it goes on.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Option<(String, usize)>, DataError> {
    let mut head = DataHead::new();
    let mut taken = 0;
    for piece in pieces {
        match head.feed(piece)? {
            Progress::NeedMore => taken += piece.len(),
            Progress::Complete { consumed } => {
                let session = head.session().expect("a complete head has a session");
                return Ok(Some((session.to_owned(), taken + consumed)));
            }
        }
    }
    Ok(None)
}
