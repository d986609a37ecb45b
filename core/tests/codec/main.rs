//! The WebSocket codec against two implementations that share no line with it: tungstenite and
//! fastwebsockets. Whatever they agree on about a valid stream, the codec has to say too, however the
//! network cuts that stream; and what it sends, both have to read back to the same bytes.
//!
//! Where the two are known to be too lenient, `defects` holds the codec to the RFC instead.

mod chunks;
mod defects;
mod fast;
mod handshake;
mod ours;
#[path = "../../examples/echo/receiver.rs"]
mod receiver;
mod stream;
mod tung;

use chunks::Chunks;
use proptest::prelude::*;
use sidecar_core::ws::Violation;
use sidecar_core::ws::close::CloseError;
use sidecar_core::ws::frame::FrameError;

/// What a receiver makes of a stream, in order.
pub(crate) use receiver::Message as Seen;

/// Which side reads.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Client,
    Server,
}

/// Most bytes in a message, for all three receivers.
pub(crate) const LIMIT: usize = 1 << 20;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_split_of_a_valid_stream_gives_the_messages_that_the_oracles_see(
        frames in stream::frames(), sizes in chunks::sizes(),
    ) {
        let (bytes, expected) = (stream::from_server(&frames), stream::messages(&frames));
        let ours = ours::read(Chunks::new(&bytes, &sizes));
        prop_assert_eq!(ours.violation, None);
        prop_assert_eq!(&ours.seen, &expected);
        let theirs = tung::read(Chunks::new(&bytes, &sizes), Side::Client);
        prop_assert_eq!(theirs.refused, None);
        prop_assert_eq!(&theirs.seen, &expected);
        prop_assert_eq!(&fast::read(Chunks::new(&bytes, &sizes), Side::Client), &expected);
    }

    #[test]
    fn what_a_client_sends_is_read_back_by_both_oracles(
        frames in stream::frames(), sizes in chunks::sizes(), mask: [u8; 4], piece in 1_usize..5000,
    ) {
        let (bytes, expected) = (ours::write_as_client(&frames, mask, piece), stream::messages(&frames));
        let theirs = tung::read(Chunks::new(&bytes, &sizes), Side::Server);
        prop_assert_eq!(theirs.refused, None);
        prop_assert_eq!(&theirs.seen, &expected);
        prop_assert_eq!(&fast::read(Chunks::new(&bytes, &sizes), Side::Server), &expected);
    }

    #[test]
    fn frames_are_encoded_to_the_same_bytes_as_by_both_oracles(frame in stream::frame(), mask: [u8; 4]) {
        let ours = ours::write_as_client(core::slice::from_ref(&frame), mask, usize::MAX);
        prop_assert_eq!(&ours, &fast::write(&frame, Some(mask)));
        prop_assert_eq!(&ours, &tung::write(&frame, Some(mask)));
        prop_assert_eq!(fast::write(&frame, None), tung::write(&frame, None));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_damaged_stream_is_refused_wherever_tungstenite_refuses_it(
        frames in stream::small_frames(), sizes in chunks::sizes(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = stream::from_server(&frames);
        for (place, byte) in damage {
            if !bytes.is_empty() {
                let place = place.index(bytes.len());
                bytes[place] = byte;
            }
        }
        let ours = ours::read(Chunks::new(&bytes, &sizes));
        let theirs = tung::read(Chunks::new(&bytes, &sizes), Side::Client);
        match (ours.violation, &theirs.refused) {
            (None, None) => prop_assert_eq!(ours.seen, theirs.seen),
            (None, Some(error)) => prop_assert!(false, "{error} was not noticed in {bytes:x?}"),
            // What tungstenite lets pass: long forms of short lengths, and codes that it replaces.
            (Some(Violation::Frame(FrameError::NotMinimal { .. })), _)
            | (Some(Violation::Close(CloseError::Code { .. })), _) => {
                prop_assert!(theirs.seen.starts_with(&ours.seen));
            }
            // Tungstenite judges a frame once it is complete, so it may still be waiting for the rest.
            (Some(_), _) => prop_assert_eq!(ours.seen, theirs.seen),
        }
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..64), sizes in chunks::sizes(),
    ) {
        let whole = ours::read(Chunks::new(&bytes, &[bytes.len().max(1)]));
        let pieces = ours::read(Chunks::new(&bytes, &sizes));
        prop_assert_eq!(whole.seen, pieces.seen);
        prop_assert_eq!(whole.violation, pieces.violation);
    }
}
