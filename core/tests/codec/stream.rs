//! Valid streams of frames: messages in any number of fragments, control frames between them, perhaps a
//! close at the end.

use proptest::prelude::*;
use sidecar_core::ws::frame::Opcode;

use crate::{Seen, fast};

/// A frame before it is put on the wire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plain {
    pub(crate) fin: bool,
    pub(crate) opcode: Opcode,
    pub(crate) payload: Vec<u8>,
}

/// A message or a control frame, and where to cut it.
#[derive(Clone, Debug)]
enum Item {
    Message { opcode: Opcode, payload: Vec<u8>, cuts: Vec<prop::sample::Index>, between: Vec<Plain> },
    Control(Plain),
}

/// One stream.
pub(crate) fn frames() -> impl Strategy<Value = Vec<Plain>> {
    stream(payload().boxed())
}

/// One stream with short payloads, of which headers are a good part.
pub(crate) fn small_frames() -> impl Strategy<Value = Vec<Plain>> {
    stream(filled(0..12).boxed())
}

/// One frame that may stand alone, of any kind and length.
pub(crate) fn frame() -> impl Strategy<Value = Plain> {
    let data =
        (any::<bool>(), payload()).prop_map(|(fin, payload)| Plain { fin, opcode: Opcode::Binary, payload });
    prop_oneof![data, control()]
}

fn stream(payload: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = Vec<Plain>> {
    let close =
        prop::option::of((prop::sample::select(&[1000_u16, 1001, 1011, 3000, 4999][..]), "\\PC{0,20}"));
    (prop::collection::vec(item(payload), 0..5), prop::option::of(close)).prop_map(|(items, close)| {
        let mut frames: Vec<Plain> = items.into_iter().flat_map(Item::into_frames).collect();
        frames.extend(close.map(|close| {
            let payload = close
                .map(|(code, reason)| [&code.to_be_bytes()[..], reason.as_bytes()].concat())
                .unwrap_or_default();
            Plain { fin: true, opcode: Opcode::Close, payload }
        }));
        frames
    })
}

fn item(payload: BoxedStrategy<Vec<u8>>) -> impl Strategy<Value = Item> {
    let text = "\\PC{0,40}".prop_map(|text| (Opcode::Text, text.into_bytes()));
    let data = prop_oneof![2 => payload.prop_map(|payload| (Opcode::Binary, payload)), 1 => text];
    let cuts = prop_oneof![Just(vec![]), prop::collection::vec(any::<prop::sample::Index>(), 1..6)];
    let message = (data, cuts, prop::collection::vec(control(), 0..4))
        .prop_map(|((opcode, payload), cuts, between)| Item::Message { opcode, payload, cuts, between });
    prop_oneof![4 => message, 1 => control().prop_map(Item::Control)]
}

fn control() -> impl Strategy<Value = Plain> {
    let opcode = prop::sample::select(&[Opcode::Ping, Opcode::Pong][..]);
    (opcode, filled(0..126)).prop_map(|(opcode, payload)| Plain { fin: true, opcode, payload })
}

/// Payloads with lengths around the edges of the header's forms, and others.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => filled(0..130), 2 => filled(130..5000), 1 => filled(65_533..65_540)]
}

fn filled(lengths: core::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
    (lengths, any::<u8>()).prop_map(|(length, seed)| {
        (0..length).map(|index| seed.wrapping_add((index % 251) as u8).rotate_left(3)).collect()
    })
}

impl Item {
    /// Cuts may fall on the same place or on the ends: empty fragments are valid.
    fn into_frames(self) -> Vec<Plain> {
        let (opcode, payload, cuts, between) = match self {
            Self::Control(frame) => return vec![frame],
            Self::Message { opcode, payload, cuts, between } => (opcode, payload, cuts, between),
        };
        let mut places: Vec<usize> = cuts.iter().map(|cut| cut.index(payload.len() + 1)).collect();
        places.sort_unstable();
        places.push(payload.len());
        let (mut frames, mut between, mut from) = (vec![], between.into_iter(), 0);
        for (index, place) in places.iter().enumerate() {
            frames.push(Plain {
                fin: index + 1 == places.len(),
                opcode: if index == 0 { opcode } else { Opcode::Continuation },
                payload: payload[from..*place].to_vec(),
            });
            from = *place;
            if index + 1 < places.len() {
                frames.extend(between.next());
            }
        }
        frames.extend(between);
        frames
    }
}

/// The stream as a server sends it, written by an encoder that is not ours.
pub(crate) fn from_server(frames: &[Plain]) -> Vec<u8> {
    frames.iter().flat_map(|frame| fast::write(frame, None)).collect()
}

/// What a receiver has to make of the stream.
pub(crate) fn messages(frames: &[Plain]) -> Vec<Seen> {
    let (mut seen, mut message, mut kind) = (vec![], vec![], Opcode::Binary);
    for Plain { fin, opcode, payload } in frames {
        match opcode {
            Opcode::Ping => seen.push(Seen::Ping(payload.clone())),
            Opcode::Pong => seen.push(Seen::Pong(payload.clone())),
            Opcode::Close => seen.push(close(payload)),
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                if *opcode != Opcode::Continuation {
                    kind = *opcode;
                }
                message.extend_from_slice(payload);
                if *fin {
                    seen.push(data(kind, core::mem::take(&mut message)));
                }
            }
        }
    }
    seen
}

fn close(payload: &[u8]) -> Seen {
    match payload {
        [high, low, reason @ ..] => {
            let reason = String::from_utf8(reason.to_vec()).expect("the strategy makes text");
            Seen::Close(Some(u16::from_be_bytes([*high, *low])), reason)
        }
        _ => Seen::Close(None, String::new()),
    }
}

fn data(kind: Opcode, message: Vec<u8>) -> Seen {
    if kind == Opcode::Text {
        Seen::Text(String::from_utf8(message).expect("the strategy makes text"))
    } else {
        Seen::Binary(message)
    }
}
