//! How bytes are cut into pieces: by a seed of one byte, so that a fuzzer can choose it.

/// Cuts `bytes` into pieces of 1 to 64 bytes; seed 0 into single bytes, 255 not at all.
pub(crate) fn pieces(bytes: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    let mut state = u32::from(seed) * 0x9e37 + 1;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let size = match seed {
            0 => 1,
            255 => rest.len(),
            _ => {
                state ^= state << 13;
                state ^= state >> 17;
                state ^= state << 5;
                // Small pieces are where headers are cut.
                1 + (state % if state & 1 == 0 { 4 } else { 64 }) as usize
            }
        };
        let (piece, more) = rest.split_at(size.min(rest.len()));
        rest = more;
        Some(piece)
    })
}
