//! The camera of the cart-pole world: an RGB picture of track, cart and pole, of an exact number of bytes.
//!
//! A real rasteriser, so that large observations are real pictures: each frame shows the state, and the ground in
//! front of the track moves with every step, so that no two frames of a case are equal, down to the last byte. There
//! is no checksum in it: what arrives is compared by whoever sent it, or judged by how the policy plays.

use core::ops::Range;

use crate::random::SplitMix;

/// Width of the world that the camera sees, in metres: the track of 2 x 2.4 m and a margin.
const VIEW: f64 = 5.2;
const CART: [f64; 2] = [0.5, 0.25];
const POLE_LENGTH: f64 = 1.0;
const POLE_THICKNESS: f64 = 0.07;

const SKY: [u8; 3] = [214, 228, 240];
const TRACK: [u8; 3] = [60, 60, 66];
const CART_COLOUR: [u8; 3] = [30, 90, 200];
const POLE_COLOUR: [u8; 3] = [200, 110, 40];

/// A camera with a byte budget.
#[derive(Debug, Clone)]
pub(crate) struct Camera {
    width: usize,
    height: usize,
    /// What does not move, cut to the budget.
    backdrop: Vec<u8>,
    /// Byte range of the ground, to the last byte of the picture.
    ground: Range<usize>,
    salt: u8,
}

/// Width and height of the picture for a budget of `bytes`, about 4:3. The last row is cut short where
/// `width * height * 3` exceeds the budget.
#[must_use]
pub fn picture_size(bytes: usize) -> (usize, usize) {
    let pixels = bytes.div_ceil(3);
    if pixels == 0 {
        return (0, 0);
    }
    let width = ((pixels as f64 * 4.0 / 3.0).sqrt().round() as usize).max(1);
    (width, pixels.div_ceil(width))
}

impl Camera {
    pub(crate) fn new(bytes: usize, seed: u64) -> Self {
        let (width, height) = picture_size(bytes);
        let mut backdrop: Vec<u8> = SKY.iter().copied().cycle().take(bytes).collect();
        let ground_rows = height.div_ceil(16);
        let ground = (width * (height - ground_rows) * 3).min(bytes)..bytes;
        let mut camera =
            Self { width, height, backdrop: Vec::new(), ground, salt: SplitMix::new(seed).next() as u8 };
        let track = camera.track_row();
        let thickness = (height / 100).max(1);
        fill(&mut backdrop, width, 0..width, track..track + thickness, TRACK);
        camera.backdrop = backdrop;
        camera
    }

    /// Appends the picture of a cart at `x` metres with its pole at `theta` radians; `step` moves the ground.
    pub(crate) fn render(&self, x: f64, theta: f64, step: u32, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&self.backdrop);
        let picture = &mut out[start..];

        let scale = self.width as f64 / VIEW;
        let centre = (x + VIEW / 2.0) * scale;
        let track = self.track_row() as f64;
        let [cart_width, cart_height] = CART.map(|metres| (metres * scale).max(1.0));
        let top = track - cart_height;
        let columns = span(centre - cart_width / 2.0, cart_width, self.width);
        fill(picture, self.width, columns, span(top, cart_height, self.height), CART_COLOUR);

        // The pole as a row of small squares from the hinge to the tip.
        let thickness = (POLE_THICKNESS * scale).max(1.0);
        let length = POLE_LENGTH * scale;
        let squares = length.ceil().max(1.0) as usize;
        for square in 0..=squares {
            let along = length * square as f64 / squares as f64;
            let columns = span(centre + along * theta.sin() - thickness / 2.0, thickness, self.width);
            let rows = span(top - along * theta.cos() - thickness / 2.0, thickness, self.height);
            fill(picture, self.width, columns, rows, POLE_COLOUR);
        }

        // 37 is odd, so the shade of each ground byte differs from step to step.
        let phase = self.salt.wrapping_add((step as u8).wrapping_mul(37));
        for (index, byte) in picture[self.ground.clone()].iter_mut().enumerate() {
            *byte = 96 + ((index as u8).wrapping_mul(31).wrapping_add(phase) & 0x3F);
        }
    }

    fn track_row(&self) -> usize {
        self.height * 3 / 4
    }
}

/// The pixels that a bar of `length` from `start` covers, cut to the picture.
fn span(start: f64, length: f64, limit: usize) -> Range<usize> {
    // Casts of negative numbers saturate at 0.
    let from = (start.round() as usize).min(limit);
    let to = ((start + length).round() as usize).min(limit);
    from..to
}

/// Paints a rectangle; pixels beyond the cut of the last row are left out.
fn fill(picture: &mut [u8], width: usize, columns: Range<usize>, rows: Range<usize>, colour: [u8; 3]) {
    for row in rows {
        let from = (row * width + columns.start) * 3;
        let to = (row * width + columns.end) * 3;
        if let Some(line) = picture.get_mut(from..to) {
            for pixel in line.as_chunks_mut::<3>().0 {
                *pixel = colour;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(bytes: usize, x: f64, theta: f64, step: u32) -> Vec<u8> {
        let mut out = Vec::new();
        Camera::new(bytes, 7).render(x, theta, step, &mut out);
        out
    }

    #[test]
    fn pictures_have_exactly_the_bytes_of_their_budget() {
        for bytes in (0..300).chain([1000, 65_519, 65_520, 786_416, 1_000_003]) {
            assert_eq!(render(bytes, 0.1, -0.05, 3).len(), bytes);
            let (width, height) = picture_size(bytes);
            assert!(width * height * 3 >= bytes, "{bytes}");
            assert!(bytes == 0 || width * (height - 1) * 3 < bytes, "{bytes}: a row too many");
        }
        assert_eq!(picture_size(640 * 480 * 3), (640, 480));
    }

    #[test]
    fn each_step_changes_the_last_byte() {
        for bytes in [1, 3, 100, 30_000] {
            let frames: Vec<_> = (0..500).map(|step| render(bytes, 0.0, 0.0, step)).collect();
            for pair in frames.windows(2) {
                assert_ne!(pair[0].last(), pair[1].last(), "{bytes}");
            }
        }
    }

    #[test]
    fn the_cart_and_the_pole_are_where_the_state_says() {
        let bytes = 320 * 240 * 3;
        let centre_of = |picture: &[u8], colour: [u8; 3], rows: Range<usize>| {
            let (pixels, _) = picture.as_chunks::<3>();
            let hits: Vec<usize> =
                rows.flat_map(|row| (0..320).filter(move |x| pixels[row * 320 + x] == colour)).collect();
            assert!(!hits.is_empty());
            hits.iter().sum::<usize>() as f64 / hits.len() as f64
        };
        for x in [-2.0, 0.0, 1.5] {
            let picture = render(bytes, x, 0.0, 0);
            let expected = (x + VIEW / 2.0) * 320.0 / VIEW;
            let found = centre_of(&picture, CART_COLOUR, 0..180);
            assert!((found - expected).abs() < 1.5, "cart at {found} instead of {expected}");
        }
        // Leaning to the right, the pole's tip is to the right of its hinge.
        let picture = render(bytes, 0.0, 0.2, 0);
        let tip = centre_of(&picture, POLE_COLOUR, 100..110);
        let hinge = centre_of(&picture, POLE_COLOUR, 150..160);
        assert!(tip > hinge + 5.0, "{tip} {hinge}");
    }

    #[test]
    fn a_cart_off_the_picture_is_cut_and_nothing_breaks() {
        for x in [-9.0, 9.0] {
            for theta in [-3.0, 3.0] {
                assert_eq!(render(3000, x, theta, 0).len(), 3000);
            }
        }
    }
}
