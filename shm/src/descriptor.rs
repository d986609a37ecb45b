//! What a ring cell says: kind, where a payload lies, whose it is; and its form as seven 64-bit words.
//!
//! | word | bits 0..8 | 8..16 | 16..32 | 32..64 |
//! |---|---|---|---|---|
//! | 0 | kind | flags | bytes of the inline record | epoch |
//! | 1 | sequence ||||
//! | 2 | slot (0..32) ||| generation |
//! | 3 | offset (0..32) ||| length |
//! | 4, 5 | stamps ||||
//! | 6 | a stamp; of an action with [`RETURNED`] the slot (0..32) and generation that go back ||||
//! | 7 | the ring's own: the cell's mark, see [`crate::ring`] ||||
//!
//! Words are in the machine's own byte order: both sides run on one machine. Decoding checks what has meaning without a
//! region (kind, flags, length of the record); slots, offsets and generations are the reader's to check.

use crate::ring::Poison;

/// Words of a cell that hold the descriptor.
pub const DESCRIPTOR_WORDS: usize = 7;
/// The word of a cell that says which message lies there: in the descriptor's cache line, so that who waits for the mark
/// has the message with it.
pub const MARK_WORD: usize = DESCRIPTOR_WORDS;
/// The first word of the inline record.
pub const RECORD_WORD: usize = MARK_WORD + 1;
/// Largest inline record, in bytes; they follow the mark.
pub const RECORD_BYTES: usize = 384;
/// Words of a cell that are used: descriptor, mark and record. The rest of a cell is spare.
pub const USED_WORDS: usize = RECORD_WORD + RECORD_BYTES / 8;

/// Flag: somebody may have seen this observation before.
pub const REDELIVERED: u8 = 1;
/// Flag: the payload is empty.
pub const EMPTY: u8 = 2;
/// Flag of an action: with it the slot of its observation goes back, which the last stamp names.
pub const RETURNED: u8 = 4;
const KNOWN_FLAGS: u8 = REDELIVERED | EMPTY | RETURNED;

const _: () = assert!(RECORD_BYTES == sidecar_core::record::MAX_RECORD, "every record fits a cell");
const _: () = assert!(USED_WORDS * 8 <= crate::layout::CELL, "descriptor and record fit a cell");

/// What a cell is about. Zero is no kind, so that a cell that was never written is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// An observation in a slot, for the worker. Its record, if any, is [`crate::device::Announced::number`] of the device
    /// ring that it also lies in, as a u64.
    Observation = 1,
    /// An action in a slot, for the sidecar.
    Action = 2,
    /// A record in the cell itself.
    Record = 3,
}

/// A message of a ring. Which fields mean something depends on the kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor {
    /// What it is about.
    pub kind: Kind,
    /// [`REDELIVERED`], [`EMPTY`], [`RETURNED`].
    pub flags: u8,
    /// Session it belongs to.
    pub epoch: u32,
    /// Number of the observation, or of the one that is answered.
    pub sequence: u64,
    /// Slot that the payload lies in.
    pub slot: u32,
    /// Generation of the slot or of the seat, as issued.
    pub generation: u32,
    /// First payload byte, from the start of the slot.
    pub offset: u32,
    /// Payload bytes.
    pub length: u32,
    /// Nanoseconds of [`crate::clock`]; which moments is up to the kind.
    pub stamps: [u64; 3],
}

impl Descriptor {
    /// An action with which the slot of its observation goes back.
    pub(crate) const fn returning(mut self, slot: u32, generation: u32) -> Self {
        self.flags |= RETURNED;
        self.stamps[2] = slot as u64 | (generation as u64) << 32;
        self
    }

    /// Slot and generation that go back with this action, if they do.
    pub(crate) const fn returned(&self) -> Option<(u32, u32)> {
        let word = self.stamps[2];
        // The low half first: truncation is meant.
        if self.flags & RETURNED == 0 { None } else { Some((word as u32, (word >> 32) as u32)) }
    }

    /// The words of a cell with a record of `record` bytes, which are at most [`RECORD_BYTES`].
    pub(crate) const fn encode(&self, record: u16) -> [u64; DESCRIPTOR_WORDS] {
        [
            self.kind as u64 | (self.flags as u64) << 8 | (record as u64) << 16 | (self.epoch as u64) << 32,
            self.sequence,
            self.slot as u64 | (self.generation as u64) << 32,
            self.offset as u64 | (self.length as u64) << 32,
            self.stamps[0],
            self.stamps[1],
            self.stamps[2],
        ]
    }

    /// The descriptor and the bytes of its record, at most [`RECORD_BYTES`].
    pub(crate) const fn decode(words: &[u64; DESCRIPTOR_WORDS]) -> Result<(Self, usize), Poison> {
        let [first, sequence, slot, place, s0, s1, s2] = *words;
        let [kind, flags, low, high, ..] = first.to_le_bytes();
        let kind = match kind {
            1 => Kind::Observation,
            2 => Kind::Action,
            3 => Kind::Record,
            found => return Err(Poison::Kind { found }),
        };
        if flags & !KNOWN_FLAGS != 0 {
            return Err(Poison::Flags { found: flags });
        }
        let length = u16::from_le_bytes([low, high]);
        if length as usize > RECORD_BYTES {
            return Err(Poison::RecordLength { found: length });
        }
        let descriptor = Self {
            kind,
            flags,
            epoch: (first >> 32) as u32,
            sequence,
            // The low halves: truncation is meant.
            slot: slot as u32,
            generation: (slot >> 32) as u32,
            offset: place as u32,
            length: (place >> 32) as u32,
            stamps: [s0, s1, s2],
        };
        Ok((descriptor, length as usize))
    }
}

#[cfg(all(test, not(sidecar_loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn descriptors() -> impl Strategy<Value = Descriptor> {
        let kind = prop_oneof![Just(Kind::Observation), Just(Kind::Action), Just(Kind::Record)];
        let words = any::<[u32; 5]>();
        (kind, 0..=KNOWN_FLAGS, words, any::<u64>(), any::<[u64; 3]>()).prop_map(
            |(kind, flags, [epoch, slot, generation, offset, length], sequence, stamps)| Descriptor {
                kind,
                flags,
                epoch,
                sequence,
                slot,
                generation,
                offset,
                length,
                stamps,
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(descriptor in descriptors(), record in 0..=384_u16) {
            prop_assert_eq!(Descriptor::decode(&descriptor.encode(record)), Ok((descriptor, record.into())));
        }

        #[test]
        fn any_words_are_a_descriptor_in_range_or_poison(words in any::<[u64; DESCRIPTOR_WORDS]>()) {
            if let Ok((descriptor, record)) = Descriptor::decode(&words) {
                prop_assert!(record <= RECORD_BYTES);
                // Nothing of the words is lost or made up.
                prop_assert_eq!(descriptor.encode(record as u16), words);
            }
        }
    }

    #[test]
    fn a_blank_cell_is_no_message() {
        assert_eq!(Descriptor::decode(&[0; DESCRIPTOR_WORDS]), Err(Poison::Kind { found: 0 }));
    }

    #[test]
    fn the_words_are_as_the_table_says() {
        let descriptor = Descriptor {
            kind: Kind::Action,
            flags: EMPTY,
            epoch: 0x11,
            sequence: 0x22,
            slot: 0x33,
            generation: 0x44,
            offset: 0x55,
            length: 0x66,
            stamps: [7, 8, 9],
        };
        assert_eq!(
            descriptor.encode(0x0123),
            [0x0011_0123_0202, 0x22, 0x44_0000_0033, 0x66_0000_0055, 7, 8, 9]
        );
    }

    #[test]
    fn each_kind_of_nonsense_has_its_name() {
        let good = Descriptor {
            kind: Kind::Record,
            flags: 0,
            epoch: 0,
            sequence: 0,
            slot: 0,
            generation: 0,
            offset: 0,
            length: 0,
            stamps: [0; 3],
        };
        let mut words = good.encode(384);
        assert!(Descriptor::decode(&words).is_ok());
        words[0] += 1 << 16;
        assert_eq!(Descriptor::decode(&words), Err(Poison::RecordLength { found: 385 }));
        words = good.encode(0);
        words[0] |= 1 << 15;
        assert_eq!(Descriptor::decode(&words), Err(Poison::Flags { found: 0x80 }));
    }

    #[test]
    fn a_slot_goes_back_with_an_action_that_says_so() {
        let action = Descriptor { kind: Kind::Action, stamps: [1, 2, 3], ..crate::cells::RECORD };
        assert_eq!(action.returned(), None);
        let returning = action.returning(u32::MAX, 7);
        assert_eq!((returning.returned(), returning.flags), (Some((u32::MAX, 7)), RETURNED));
        assert_eq!(Descriptor::decode(&returning.encode(0)), Ok((returning, 0)));
    }
}
