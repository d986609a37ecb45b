//! The mask of RFC 6455, section 5.3: each byte is XORed with the byte of a four-byte key at the same place
//! modulo four. It hides nothing; it keeps old proxies from taking payload for requests.
//!
//! Keys come from the caller, who owes each frame a fresh unpredictable one.

/// Bytes that are masked in one step; the compiler takes several steps at once where registers are wider.
const WORD: usize = size_of::<u64>();

/// Masks `data`, or unmasks it: doing it twice gives the bytes back.
///
/// `offset` is the place of `data[0]` in the frame's payload, so that a payload can be masked in pieces.
pub fn apply(mask: [u8; 4], offset: usize, data: &mut [u8]) {
    // Least significant first, whatever the machine: byte 0 of the key meets byte 0 of a word.
    let word = u32::from_le_bytes(mask).rotate_right(8 * (offset % 4) as u32);
    let key = u64::from(word) << 32 | u64::from(word);
    let (words, rest) = data.as_chunks_mut::<WORD>();
    for word in words {
        *word = (u64::from_le_bytes(*word) ^ key).to_le_bytes();
    }
    for (byte, key) in rest.iter_mut().zip(key.to_le_bytes()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_example_of_the_rfc_unmasks() {
        // RFC 6455, section 5.7: a masked "Hello".
        let mut data = [0x7f, 0x9f, 0x4d, 0x51, 0x58];
        apply([0x37, 0xfa, 0x21, 0x3d], 0, &mut data);
        assert_eq!(&data, b"Hello");
    }

    /// Some of the widest registers, and a rest.
    const LONG: usize = 16 * WORD + 3;

    #[test]
    fn every_length_and_offset_around_a_step_agrees_with_the_definition() {
        let mask = [0x11, 0x22, 0x44, 0x88];
        for length in 0..=LONG {
            for offset in 0..8 {
                let mut data = [0x5a; LONG];
                apply(mask, offset, &mut data[..length]);
                for (index, byte) in data.iter().enumerate() {
                    let key = if index < length { mask[(offset + index) % 4] } else { 0 };
                    assert_eq!(*byte, 0x5a ^ key, "byte {index} of {length} from {offset}");
                }
            }
        }
        apply(mask, usize::MAX, &mut [0; 5]);
    }

    proptest! {
        #[test]
        fn pieces_give_the_same_as_the_whole(
            mask: [u8; 4], data in prop::collection::vec(any::<u8>(), 0..200), cut in 0_usize..200,
        ) {
            let cut = cut.min(data.len());
            let (mut whole, mut pieces) = (data.clone(), data);
            apply(mask, 3, &mut whole);
            apply(mask, 3, &mut pieces[..cut]);
            apply(mask, 3 + cut, &mut pieces[cut..]);
            prop_assert_eq!(whole, pieces);
        }
    }
}
