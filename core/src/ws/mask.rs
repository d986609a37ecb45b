//! The mask of RFC 6455, section 5.3: each byte is XORed with the byte of a four-byte key at the same place
//! modulo four. It hides nothing; it keeps old proxies from taking payload for requests.
//!
//! Keys come from the caller, who owes each frame a fresh unpredictable one.

/// Bytes that are masked in one step: wide enough for the compiler to use the widest registers there are.
const WIDTH: usize = 32;

/// Masks `data`, or unmasks it: doing it twice gives the bytes back.
///
/// `offset` is the place of `data[0]` in the frame's payload, so that a payload can be masked in pieces.
pub fn apply(mask: [u8; 4], offset: usize, data: &mut [u8]) {
    let mut key = mask;
    key.rotate_left(offset % 4);
    let mut wide = [0; WIDTH];
    for (index, byte) in wide.iter_mut().enumerate() {
        *byte = key[index % 4];
    }
    let (chunks, tail) = data.as_chunks_mut::<WIDTH>();
    for chunk in chunks {
        for (byte, key) in chunk.iter_mut().zip(&wide) {
            *byte ^= key;
        }
    }
    for (byte, key) in tail.iter_mut().zip(&wide) {
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

    #[test]
    fn every_length_and_offset_around_a_step_agrees_with_the_definition() {
        let mask = [0x11, 0x22, 0x44, 0x88];
        for length in 0..=2 * WIDTH + 3 {
            for offset in 0..8 {
                let mut data = [0x5a; 2 * WIDTH + 3];
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
