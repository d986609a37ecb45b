//! The first simulator: a pole on a cart, with the standard constants (Barto, Sutton, Anderson 1983).
//!
//! Observation: position (m), velocity (m/s), angle (rad, positive to the right), angular velocity (rad/s) as four
//! little-endian f32, followed by the camera's picture where one is asked for. Action: one byte, 0 pushes left and 1
//! pushes right. A case is solved when 500 actions were survived.

use crate::picture::Camera;
use crate::random::SplitMix;
use crate::simulator::{Simulator, Step};

/// Bytes of the state in front of the picture.
pub const STATE_BYTES: usize = 16;
/// Actions that must be survived.
pub const STEPS: u32 = 500;

const GRAVITY: f64 = 9.8;
const CART_MASS: f64 = 1.0;
const POLE_MASS: f64 = 0.1;
const TOTAL_MASS: f64 = CART_MASS + POLE_MASS;
/// Half of the pole's length: the distance from the hinge to its centre of mass.
const HALF_LENGTH: f64 = 0.5;
const FORCE: f64 = 10.0;
const TICK: f64 = 0.02;
const ANGLE_LIMIT: f64 = 12.0 * core::f64::consts::PI / 180.0;
const TRACK_LIMIT: f64 = 2.4;
/// Each of the four numbers starts within plus and minus this.
const START: f64 = 0.05;

#[derive(Debug, Clone, Copy, PartialEq)]
struct State {
    x: f64,
    x_dot: f64,
    theta: f64,
    theta_dot: f64,
}

impl State {
    /// One Euler step under a force on the cart.
    fn pushed(self, force: f64) -> Self {
        let (sin, cos) = self.theta.sin_cos();
        let moment = POLE_MASS * HALF_LENGTH;
        let pull = (force + moment * self.theta_dot * self.theta_dot * sin) / TOTAL_MASS;
        let theta_acceleration =
            (GRAVITY * sin - cos * pull) / (HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * cos * cos / TOTAL_MASS));
        let x_acceleration = pull - moment * theta_acceleration * cos / TOTAL_MASS;
        Self {
            x: self.x + TICK * self.x_dot,
            x_dot: self.x_dot + TICK * x_acceleration,
            theta: self.theta + TICK * self.theta_dot,
            theta_dot: self.theta_dot + TICK * theta_acceleration,
        }
    }
}

/// A case of cart-pole.
#[derive(Debug, Clone)]
pub struct CartPole {
    state: State,
    survived: u32,
    camera: Option<Camera>,
}

impl CartPole {
    /// Case `case` of a job seeded with `seed`. With `payload` each observation is of exactly that many bytes, the
    /// state and a picture (at least [`STATE_BYTES`]); without, it is the state alone.
    #[must_use]
    pub fn new(seed: u64, case: u32, payload: Option<usize>) -> Self {
        let mut random = SplitMix::new(SplitMix::new(seed).next() ^ u64::from(case));
        let mut start = || random.symmetric(START);
        let state = State { x: start(), x_dot: start(), theta: start(), theta_dot: start() };
        let camera = payload.map(|bytes| Camera::new(bytes.saturating_sub(STATE_BYTES), random.next()));
        Self { state, survived: 0, camera }
    }
}

impl Simulator for CartPole {
    fn observe(&mut self, out: &mut Vec<u8>) {
        let State { x, x_dot, theta, theta_dot } = self.state;
        for number in [x, x_dot, theta, theta_dot] {
            out.extend_from_slice(&(number as f32).to_le_bytes());
        }
        if let Some(camera) = &self.camera {
            camera.render(x, theta, self.survived, out);
        }
    }

    fn act(&mut self, action: &[u8]) -> Step {
        let force = match action {
            [0] => -FORCE,
            [1] => FORCE,
            [other] => return Step::Rejected(format!("the action is {other}, neither 0 nor 1")),
            _ => return Step::Rejected(format!("the action is {} bytes long instead of 1", action.len())),
        };
        self.state = self.state.pushed(force);
        if self.state.theta.abs() > ANGLE_LIMIT {
            return Step::Failed(format!("the pole fell to {:.1} degrees", self.state.theta.to_degrees()));
        }
        if self.state.x.abs() > TRACK_LIMIT {
            return Step::Failed(format!("the cart left the track at {:.2} m", self.state.x));
        }
        self.survived += 1;
        if self.survived == STEPS { Step::Solved } else { Step::Running }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(world: &mut CartPole) -> [f32; 4] {
        let mut out = Vec::new();
        world.observe(&mut out);
        let (numbers, _) = out.as_chunks::<4>();
        [0, 1, 2, 3].map(|index| f32::from_le_bytes(numbers[index]))
    }

    #[test]
    fn three_steps_are_those_of_the_equations() {
        // Computed apart from this code, in double precision.
        let expected = [
            [0.009_600_000_000_000_001, 0.174_679_195_747_555_25, 0.0308, -0.243_068_717_960_008_15],
            [
                0.013_093_583_914_951_107,
                -0.020_868_848_948_191_993,
                0.025_938_625_640_799_833,
                0.059_167_999_939_416_54,
            ],
            [
                0.012_676_206_935_987_267,
                0.173_871_774_873_481_3,
                0.027_121_985_639_588_165,
                -0.225_219_572_559_673_31,
            ],
        ];
        let mut state = State { x: 0.01, x_dot: -0.02, theta: 0.03, theta_dot: 0.04 };
        for (force, [x, x_dot, theta, theta_dot]) in [FORCE, -FORCE, FORCE].into_iter().zip(expected) {
            state = state.pushed(force);
            for (got, want) in
                [(state.x, x), (state.x_dot, x_dot), (state.theta, theta), (state.theta_dot, theta_dot)]
            {
                assert!((got - want).abs() < 1e-14, "{got} instead of {want}");
            }
        }
    }

    #[test]
    fn a_simple_controller_solves_every_seed() {
        for seed in 0..50 {
            let mut world = CartPole::new(seed, 0, None);
            let mut steps = 0;
            loop {
                let [x, x_dot, theta, theta_dot] = seen(&mut world);
                let push = 0.1 * x + 0.4 * x_dot + 4.0 * theta + theta_dot > 0.0;
                steps += 1;
                match world.act(&[u8::from(push)]) {
                    Step::Running => {}
                    end => {
                        assert_eq!(end, Step::Solved, "seed {seed}, step {steps}");
                        break;
                    }
                }
            }
            assert_eq!(steps, STEPS);
        }
    }

    #[test]
    fn pushing_one_way_loses_the_pole() {
        let mut world = CartPole::new(1, 0, None);
        let end = (0..STEPS).map(|_| world.act(&[1])).find(|step| *step != Step::Running).unwrap();
        assert!(matches!(&end, Step::Failed(why) if why.contains("degrees")), "{end:?}");
    }

    #[test]
    fn what_is_no_action_is_rejected_and_changes_nothing() {
        let mut world = CartPole::new(1, 0, None);
        let before = seen(&mut world);
        for action in [&[][..], &[2], &[0, 1], &[255]] {
            assert!(matches!(world.act(action), Step::Rejected(_)), "{action:?}");
        }
        assert_eq!(seen(&mut world), before);
    }

    #[test]
    fn cases_start_apart_and_repeat_with_their_seed() {
        let start = |seed, case| seen(&mut CartPole::new(seed, case, None));
        assert_eq!(start(3, 1), start(3, 1));
        assert_ne!(start(3, 1), start(3, 2));
        assert_ne!(start(3, 1), start(4, 1));
        assert!(start(3, 1).into_iter().all(|number| number.abs() <= 0.05));
    }

    #[test]
    fn an_observation_with_a_picture_has_the_size_asked_for() {
        for bytes in [16, 17, 20_000] {
            let mut out = vec![9];
            CartPole::new(0, 0, Some(bytes)).observe(&mut out);
            assert_eq!(out.len(), 1 + bytes);
        }
    }
}
