//! A policy that balances the rehearsal gateway's cart-pole: four little-endian f32 in front of whatever follows.

/// Weights of position, velocity, angle and angular velocity. Any of a wide range will do: this linear controller
/// survives 500 steps from each of the simulator's starting states.
const WEIGHTS: [f32; 4] = [0.1, 0.4, 4.0, 1.0];

/// 1 to push right, 0 to push left; `None` when `observation` is too short to hold a state.
pub(super) fn action(observation: &[u8]) -> Option<u8> {
    let (state, _picture) = observation.split_at_checked(16)?;
    let (values, _) = state.as_chunks::<4>();
    let pressure: f32 =
        values.iter().zip(WEIGHTS).map(|(bytes, weight)| f32::from_le_bytes(*bytes) * weight).sum();
    Some(u8::from(pressure > 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_pushes_towards_the_side_the_pole_falls_to() {
        let observation = |angle: f32| {
            let mut bytes = vec![0; 20];
            bytes[8..12].copy_from_slice(&angle.to_le_bytes());
            bytes
        };
        assert_eq!(action(&observation(0.1)), Some(1));
        assert_eq!(action(&observation(-0.1)), Some(0));
        assert_eq!(action(&[0; 15]), None);
    }
}
