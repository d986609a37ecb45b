//! Signs of life, theirs and ours.

use sidecar_core::agent::{Disconnect, Timers};
use sidecar_core::ws::frame::Opcode;

use crate::rig::{Rig, config, data, frame_of, millis, ping, secs};

fn pings(rig: &Rig) -> usize {
    rig.sent.iter().filter(|sent| sent.opcode == Opcode::Ping).count()
}

#[test]
fn a_ping_is_answered_with_its_payload() {
    let mut rig = Rig::open();
    for payload in [&b""[..], b"x", &[9; 125]] {
        rig.play(&ping(payload));
        assert_eq!(rig.pongs().last(), Some(&payload));
    }
}

#[test]
fn silence_is_met_with_a_ping_and_then_given_up() {
    let mut rig = Rig::in_session();
    rig.pass(millis(19_999));
    assert_eq!(pings(&rig), 0);
    rig.pass(millis(1));
    assert_eq!(pings(&rig), 1);
    rig.pass(millis(19_999));
    assert!(rig.agent.is_open());
    assert_eq!(pings(&rig), 1);
    rig.pass(millis(1));
    assert_eq!(rig.causes(), [Disconnect::Silent]);
}

#[test]
fn any_byte_is_a_sign_of_life() {
    let mut rig = Rig::in_session();
    let slow = data("s", &[7; 40]);
    for byte in &slow {
        rig.pass(secs(19));
        rig.play(&[*byte]);
    }
    assert_eq!(pings(&rig), 0);
    assert_eq!(rig.seen[0].payload, [7; 40]);
}

#[test]
fn an_idle_tunnel_lives_on_pongs_for_hours() {
    let mut rig = Rig::in_session();
    for round in 1..=360 {
        rig.pass(secs(20));
        assert_eq!(pings(&rig), round);
        rig.pass(millis(50));
        rig.play(&frame_of(Opcode::Pong, true, b""));
    }
    assert!(rig.agent.is_open());
}

#[test]
fn an_answer_sent_late_in_a_silence_still_leaves_time_for_the_pong() {
    let mut rig = Rig::in_session();
    rig.play(&data("s", b"question"));
    rig.pass(secs(19));
    rig.answer(sidecar_core::tunnel::Epoch(1), 1, b"answer").unwrap();
    rig.pass(secs(1));
    assert_eq!(pings(&rig), 1, "20 s before it counts as dead, not 1 s");
}

#[test]
fn scaled_timers_are_all_faster() {
    let (plain, fast) = (Timers::default(), Timers::default().scaled(20));
    let all = |timers: Timers| {
        [
            timers.dial,
            timers.connect,
            timers.redial_after_silence,
            timers.redial_after_close,
            timers.capacity_window,
            timers.hold_answers,
            timers.ping_after,
            timers.dead_after,
            timers.blocked_pong,
            timers.ready_warning,
            timers.drain,
            timers.close,
            timers.backoff_first,
            timers.backoff_base,
            timers.backoff_max,
        ]
    };
    assert!(all(plain).into_iter().zip(all(fast)).all(|(plain, fast)| plain / 20 == fast));
    assert_eq!(plain.scaled(0), plain);
    let mut config = config();
    config.timers = fast;
    let mut rig = Rig::with(config);
    rig.upgrade();
    rig.pass(millis(1999));
    assert!(rig.agent.is_open());
    rig.pass(millis(1));
    assert_eq!(rig.causes(), [Disconnect::Silent]);
}
