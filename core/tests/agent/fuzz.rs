//! Seeded noise: whatever a gateway sends and whatever a caller calls, nothing panics, nothing is read or written
//! outside of its place (the rig checks each access), and the agent comes to rest.

use rand_chacha::ChaCha8Rng;
use rand_core::{Rng as _, SeedableRng as _};
use sidecar_core::agent::{DialFailure, End, Shutdown};
use sidecar_core::tunnel::{AgentId, Epoch};
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Cut, Rig, close, config, data, fragments, frame_of, message, millis, pattern, ping, text};

fn small() -> sidecar_core::agent::Config {
    let mut config = config();
    // So that "too large" is common.
    config.limits.slot_bytes = 3000;
    config.limits.text_bytes = 1000;
    config.limits.fragments = 50;
    config.fresh_agent_on_wedge = true;
    config
}

struct Noise(ChaCha8Rng);

impl Noise {
    fn below(&mut self, bound: usize) -> usize {
        self.0.next_u64() as usize % bound
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.0.fill_bytes(&mut bytes);
        bytes
    }

    fn frames(&mut self) -> Vec<u8> {
        let size = [0, 1, 120, 121, 125, 126, 700, 2999, 3000, 3001, 4000, 9000][self.below(12)];
        let session = ["s", "s", "s", "t", "", "a-longer-session-id-than-the-others"][self.below(6)];
        let salt = self.below(256) as u8;
        match self.below(12) {
            0..=3 => data(session, &pattern(size, salt)),
            4 => {
                let (step, empty_end) = (1 + self.below(3000), self.below(2) == 0);
                fragments(
                    &message(session, &pattern(size % 5000, salt)),
                    step.max(size / 40),
                    empty_end,
                    &ping(b"p"),
                )
            }
            5 => ping(&pattern(size % 126, salt)),
            6 => text(r#"{"type":"warmup"}"#),
            7 => text(&format!(r#"{{"type":"session_open","session_id":"{session}"}}"#)),
            8 => text(&format!(r#"{{"reason":"x\u00e9","type":"session_close","session_id":"{session}"}}"#)),
            9 => frame_of(Opcode::Pong, true, &pattern(size % 126, salt)),
            10 => text(r#"{"type":"queued","reason":"no_gpu_available"}"#),
            _ => frame_of(Opcode::Binary, true, &self.bytes(size % 300)),
        }
    }

    fn mutate(&mut self, bytes: &mut Vec<u8>) {
        for _ in 0..self.below(3) {
            if bytes.is_empty() {
                return;
            }
            let index = self.below(bytes.len().min(40));
            match self.below(4) {
                0 => bytes[index] ^= 1 << self.below(8),
                1 => bytes[index] = self.below(256) as u8,
                2 => drop(bytes.remove(index)),
                _ => bytes.insert(index, self.below(256) as u8),
            }
        }
    }

    fn cut(&mut self) -> Cut {
        match self.below(4) {
            0 => Cut::Whole,
            1 => Cut::One,
            _ => Cut::random(self.0.next_u64()),
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    for seed in 0..2000 {
        let mut noise = Noise(ChaCha8Rng::seed_from_u64(seed));
        let mut rig = if seed % 2 == 0 { Rig::in_session_with(small()) } else { Rig::with(small()) };
        if seed % 2 == 1 {
            rig.connected();
        }
        rig.cut = noise.cut();
        let length = noise.below(600);
        let bytes = noise.bytes(length);
        rig.play(&bytes);
    }
}

#[test]
fn mutated_streams_and_any_order_of_calls_never_panic() {
    for seed in 0..1500 {
        let mut noise = Noise(ChaCha8Rng::seed_from_u64(seed));
        let mut rig = Rig::in_session_with(small());
        rig.cut = noise.cut();
        rig.release = seed % 3 != 0;
        let mutated = seed % 2 == 0;
        for _ in 0..25 {
            let mut bytes: Vec<u8> = (0..1 + noise.below(3)).flat_map(|_| noise.frames()).collect();
            if mutated {
                noise.mutate(&mut bytes);
            }
            rig.play(&bytes);
            let (epoch, sequence) = (Epoch(noise.below(4) as u32), noise.below(30) as u64);
            match noise.below(24) {
                0 => rig.end(if mutated { End::Eof } else { End::Reset }),
                1 => rig.play(&close(1001, "bye")),
                2 => drop(rig.take_back_slot()),
                3 => rig.agent.close_session(rig.now, epoch, "noise"),
                4 => rig.writable = !rig.writable,
                5 => rig.agent.replace_agent(rig.now, AgentId::new("other").unwrap()),
                6 => rig.agent.worker_ready(rig.now),
                7 => rig.agent.set_unanswered(noise.below(3) as u32),
                8 => rig.agent.handle_action_sent(rig.now, epoch, sequence),
                9 => drop(rig.begin(epoch, sequence, b"left half way")),
                10 => rig.agent.handle_dial_failed(rig.now, DialFailure::Other),
                11 if noise.below(10) == 0 => rig.play(&text(r#"{"type":"drain"}"#)),
                12 if noise.below(10) == 0 => rig.agent.shutdown(rig.now, Shutdown::Close),
                13 if noise.below(10) == 0 => rig.agent.worker_failed(rig.now),
                14..=18 => drop(rig.answer(epoch, sequence, b"answer")),
                _ => rig.free += 1,
            }
            rig.pass(millis(noise.below(20_000) as u64));
            if rig.outcome().is_some() {
                break;
            }
            if !rig.agent.is_open() && rig.dials().len() > rig.causes().len().saturating_sub(1) {
                try_to_upgrade(&mut rig, &mut noise);
            }
        }
    }
}

/// The dial may be out, or not due yet.
fn try_to_upgrade(rig: &mut Rig, noise: &mut Noise) {
    rig.pump();
    let mut out = [0; 4096];
    if noise.below(8) == 0 {
        return rig.dial_fails(DialFailure::Timeout);
    }
    let Ok(length) = rig.agent.handle_connected(rig.now, crate::rig::TOKEN, &mut out) else { return };
    let request = String::from_utf8(out[..length].to_vec()).unwrap();
    let answer = Rig::accept(&request);
    let mut bytes = answer.into_bytes();
    bytes.extend(noise.frames());
    rig.play(&bytes);
}

#[test]
fn valid_streams_deliver_exactly_what_was_sent() {
    for seed in 0..400 {
        let mut noise = Noise(ChaCha8Rng::seed_from_u64(seed));
        let mut rig = Rig::in_session();
        rig.cut = noise.cut();
        if matches!(rig.cut, Cut::One) {
            rig.cut = Cut::random(seed);
        }
        let mut expected = Vec::new();
        let mut bytes = Vec::new();
        for _ in 0..20 {
            let size = [0, 1, 119, 120, 121, 122, 65_530, 65_531, 700, 20_000][noise.below(10)];
            let payload = pattern(size, noise.below(256) as u8);
            bytes.extend(match noise.below(3) {
                0 => fragments(
                    &message("s", &payload),
                    1 + noise.below(9000),
                    noise.below(2) == 0,
                    &ping(b"p"),
                ),
                _ => data("s", &payload),
            });
            if noise.below(3) == 0 {
                bytes.extend(ping(b"q"));
            }
            expected.push(payload);
        }
        rig.play(&bytes);
        let seen: Vec<_> = rig.seen.iter().map(|seen| seen.payload.clone()).collect();
        assert!(seen == expected, "seed {seed}");
    }
}
