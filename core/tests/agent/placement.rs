//! Where payloads are received: in place when the guess was right, moved and counted when not.

use sidecar_core::agent::{Event, Filling, HEADROOM, Notice, Place, Read};
use sidecar_core::tunnel::Epoch;
use sidecar_core::ws::frame::Opcode;

use crate::rig::{
    Cut, Rig, SLOT_BYTES, data, fragments, frame_of, message, millis, pattern, ping, secs, text,
};

/// Receives `size` bytes and answers them; returns how many had to be moved.
fn lockstep(rig: &mut Rig, size: usize) -> u32 {
    rig.play(&data("s", &pattern(size, 7)));
    let seen = rig.seen.last().unwrap().clone();
    assert_eq!(seen.payload, pattern(size, 7));
    rig.answer(seen.epoch, seen.sequence, b"action").unwrap();
    seen.moved
}

#[test]
fn in_lockstep_nothing_is_moved_after_the_first_of_a_size_class() {
    for cut in [Cut::Whole, Cut::One, Cut::random(5)] {
        for size in [0, 1, 64, 120, 121, 5000, 65_530, 65_531, 150_000] {
            let mut rig = Rig::in_session();
            lockstep(&mut rig, size);
            rig.cut = cut.clone();
            for _ in 0..3 {
                assert_eq!(lockstep(&mut rig, size), 0, "{size}");
            }
            assert_eq!(rig.agent.carried(), 0);
        }
    }
}

#[test]
fn a_wrong_guess_of_the_header_is_shifted_in_each_direction() {
    for before in [10, 1000, 100_000] {
        for after in [10, 1000, 100_000] {
            let mut rig = Rig::in_session();
            lockstep(&mut rig, before);
            let moved = lockstep(&mut rig, after);
            assert_eq!(moved, if before == after { 0 } else { after as u32 }, "{before} then {after}");
            assert_eq!(lockstep(&mut rig, after), 0);
        }
    }
}

#[test]
fn a_ping_or_text_in_front_costs_only_a_move() {
    let mut rig = Rig::in_session();
    lockstep(&mut rig, 1000);
    for front in [ping(b"hello"), text(r#"{"type":"news"}"#), data("gone", &[1; 30])] {
        rig.play(&[front, data("s", &pattern(1000, 1))].concat());
        let seen = rig.seen.last().unwrap();
        assert_eq!(seen.payload, pattern(1000, 1));
        assert_eq!(seen.moved, 1000);
    }
    assert_eq!(lockstep(&mut rig, 1000), 0);
}

#[test]
fn alone_in_their_reads_they_cost_nothing() {
    let mut rig = Rig::in_session();
    lockstep(&mut rig, 1000);
    rig.play(&ping(b"hello"));
    rig.play(&text(r#"{"type":"news"}"#));
    rig.play(&data("gone", &[1; 30]));
    assert_eq!(lockstep(&mut rig, 1000), 0);
}

#[test]
fn the_first_receive_starts_so_that_the_payload_lands_in_its_place() {
    let mut rig = Rig::in_session();
    lockstep(&mut rig, 1000);
    rig.pump();
    let offset = HEADROOM - (4 + 4 + 1);
    let Read::At { place, offset: at, max, exact } = rig.agent.poll_read() else { panic!() };
    assert_eq!((place, at, exact), (Place::Slot, offset, false));
    assert_eq!(max, HEADROOM + SLOT_BYTES - offset);
    // While an answer is owed, little of a following frame may come along.
    rig.agent.set_unanswered(1);
    let Read::At { max, .. } = rig.agent.poll_read() else { panic!() };
    assert_eq!(max, 64 << 10);
    lockstep(&mut rig, 150_000);
    rig.agent.set_unanswered(1);
    rig.pump();
    let Read::At { max, .. } = rig.agent.poll_read() else { panic!() };
    assert_eq!(max, 150_000 + 4 + 1 + 10);
}

#[test]
fn a_following_frame_is_carried_and_arrives_intact() {
    let frames =
        [data("s", &pattern(900, 1)), data("s", &pattern(800, 2)), ping(b"p"), data("s", &pattern(3, 3))];
    let mut rig = Rig::in_session();
    lockstep(&mut rig, 900);
    rig.play(&frames.concat());
    let payloads: Vec<_> = rig.seen[1..].iter().map(|seen| (seen.payload.clone(), seen.moved)).collect();
    assert_eq!(payloads, [(pattern(900, 1), 0), (pattern(800, 2), 800), (pattern(3, 3), 3)]);
    let behind_first = frames[1..].iter().map(Vec::len).sum::<usize>() as u64;
    assert_eq!(rig.agent.carried(), behind_first);
    assert_eq!(rig.pongs(), [b"p"]);
}

#[test]
fn what_has_landed_is_told_while_the_rest_is_still_coming() {
    let mut rig = Rig::in_session();
    assert_eq!(rig.agent.filling(), None);
    let (payload, head) = (pattern(100_000, 3), 10 + 4 + 1);
    let bytes = data("s", &payload);
    let (begun, mut at) = (rig.now, 0);
    for filled in [0, 1, 50_000, 99_999] {
        rig.play(&bytes[at..head + filled]);
        at = head + filled;
        assert_eq!(rig.agent.filling(), Some(Filling { first_byte: begun, filled: filled as u32 }));
        assert!(rig.ahead == payload[..filled]);
        rig.pass(millis(5));
    }
    // The connection is lost, and the next message begins in the same slot.
    rig.cut_and_redial();
    assert_eq!(rig.agent.filling(), None);
    rig.play(&bytes[..head + 7]);
    assert_eq!(rig.agent.filling(), Some(Filling { first_byte: rig.now, filled: 7 }));
    let first_byte = rig.now;
    rig.pass(millis(5));
    rig.play(&bytes[head + 7..]);
    assert_eq!(rig.agent.filling(), None);
    assert_eq!((rig.seen[0].payload == payload, rig.seen[0].first_byte), (true, first_byte));
    // Of what fits no slot or is nobody's, nothing is told.
    for message in [data("s", &pattern(SLOT_BYTES as usize + 1, 1)), data("gone", &payload)] {
        rig.play(&message[..message.len() - 1]);
        assert_eq!(rig.agent.filling(), None);
        rig.play(&message[message.len() - 1..]);
    }
}

#[test]
fn a_message_of_a_slot_and_not_a_byte_more_fits() {
    for cut in [Cut::Whole, Cut::random(11)] {
        let mut rig = Rig::in_session();
        rig.cut = cut;
        rig.play(&data("s", &pattern(SLOT_BYTES as usize, 1)));
        assert_eq!(rig.seen[0].payload, pattern(SLOT_BYTES as usize, 1));
        rig.events.clear();
        rig.play(&data("s", &pattern(SLOT_BYTES as usize + 1, 1)));
        let size = u64::from(SLOT_BYTES) + 1;
        assert_eq!(rig.flow(), [&Event::ObservationTooLarge { epoch: Epoch(1), sequence: 2, size }]);
        rig.play(&data("s", b"next"));
        assert_eq!((rig.seen[1].payload.as_slice(), rig.seen[1].sequence), (&b"next"[..], 3));
    }
}

#[test]
fn a_length_that_is_only_claimed_reserves_nothing() {
    for claimed in [48_u64 << 20, 1 << 62, (1 << 63) - 1] {
        let mut rig = Rig::in_session();
        rig.play(&[&[0x82, 127], &claimed.to_be_bytes()[..], &message("s", &pattern(5000, 1))].concat());
        // Read past, outside of the slot, which stays free for a message that comes.
        let Read::At { place, .. } = rig.agent.poll_read() else { panic!("it is not read past") };
        assert_eq!(place, Place::Scratch);
        rig.agent.handle_received(rig.now, 0);
        assert!(rig.take_back_slot());
        assert!(rig.flow().is_empty() && rig.seen.is_empty());
        rig.cut_and_redial();
        rig.play(&data("s", b"next"));
        assert_eq!(rig.seen[0].payload, b"next");
    }
}

#[test]
fn an_oversized_message_in_fragments_is_discarded_in_sequence() {
    let size = SLOT_BYTES as usize + 70_000;
    let bytes = fragments(&message("s", &pattern(size, 1)), 4096, true, &ping(b"alive"));
    for cut in [Cut::Whole, Cut::random(4)] {
        let mut rig = Rig::in_session();
        rig.cut = cut;
        rig.play(&[bytes.clone(), data("s", b"next")].concat());
        let too_large = Event::ObservationTooLarge { epoch: Epoch(1), sequence: 1, size: size as u64 };
        assert_eq!(rig.flow()[0], &too_large);
        assert_eq!(rig.seen[0].payload, b"next");
        assert!(rig.pongs().len() >= 4 && rig.pongs().iter().all(|pong| pong == b"alive"));
    }
}

#[test]
fn with_all_slots_taken_reading_stops_behind_the_next_header() {
    let mut rig = Rig::in_session();
    rig.release = false;
    rig.pump();
    rig.free = 0;
    rig.play(&data("s", &pattern(1000, 1)));
    // Pings in front of the next data message are still answered.
    rig.play(&ping(b"before"));
    assert_eq!(rig.pongs(), [b"before"]);
    rig.events.clear();
    rig.play(&[data("s", &pattern(2000, 2)), ping(b"behind")].concat());
    assert_eq!(rig.seen.len(), 1);
    assert_eq!(rig.notices(), [&Notice::Blocked]);
    assert_eq!(rig.agent.poll_read(), Read::Idle);
    assert!(rig.wire.len() > 1000, "what doesn't fit stays in the network: {}", rig.wire.len());
    // Unsolicited pongs, and no death.
    rig.sent.clear();
    rig.pass(secs(100));
    assert_eq!(rig.pongs().len(), 6);
    assert!(rig.sent.iter().all(|sent| sent.opcode == Opcode::Pong && sent.payload.is_empty()));
    assert!(rig.agent.is_open());
    rig.free = 1;
    rig.pump();
    assert_eq!(rig.seen[1].payload, pattern(2000, 2));
    assert_eq!(rig.notices(), [&Notice::Blocked, &Notice::Unblocked, &Notice::Pinged]);
    assert_eq!(*rig.pongs().last().unwrap(), b"behind");
    // From here the silence counts again.
    rig.pass(millis(39_999));
    assert!(rig.agent.is_open());
    rig.pass(millis(1));
    assert!(!rig.agent.is_open());
}

#[test]
fn the_silence_of_a_time_without_reading_counts_for_nothing() {
    let mut rig = Rig::in_session();
    rig.pump();
    rig.free = 0;
    rig.release = false;
    // All of the second one is here, so that nothing has to be received once there is a slot.
    rig.play(&[data("s", b"one"), data("s", b"two")].concat());
    assert!(rig.wire.is_empty());
    rig.pass(secs(600));
    rig.free = 1;
    rig.pump();
    assert_eq!(rig.seen[1].payload, b"two");
    rig.pass(millis(39_999));
    assert!(rig.agent.is_open());
    rig.pass(millis(1));
    assert!(!rig.agent.is_open());
}

#[test]
fn a_connection_lost_while_blocked_is_redialled_however_long_it_was() {
    let mut rig = Rig::in_session();
    rig.pump();
    rig.free = 0;
    rig.release = false;
    rig.play(&[data("s", b"one"), data("s", b"two")].concat());
    rig.pass(secs(600));
    rig.events.clear();
    rig.end(sidecar_core::agent::End::Reset);
    assert_eq!(rig.dials(), [(1, false)]);
    let Event::Disconnected { redial_until, .. } = rig.flow()[1] else { panic!() };
    assert_eq!(*redial_until, Some(rig.now + secs(75)));
}

#[test]
fn an_empty_observation_needs_a_slot_too() {
    let mut rig = Rig::in_session();
    rig.pump();
    rig.release = false;
    rig.free = 0;
    rig.play(&[data("s", b""), data("s", b"")].concat());
    assert_eq!(rig.seen.len(), 1);
    rig.free = 1;
    rig.pump();
    assert_eq!(rig.seen.len(), 2);
}

#[test]
fn a_slot_is_taken_back_only_while_nothing_lies_in_it() {
    let mut rig = Rig::in_session();
    rig.pump();
    assert!(!rig.take_back_slot(), "a read into it was handed out");
    rig.agent.handle_received(rig.now, 0);
    assert!(rig.take_back_slot());
    assert!(!rig.take_back_slot(), "none is on offer");
    let bytes = data("s", &pattern(1000, 1));
    rig.play(&bytes[..500]);
    rig.agent.handle_received(rig.now, 0);
    assert!(!rig.take_back_slot(), "half a message lies in it");
    rig.play(&bytes[500..]);
    assert_eq!(rig.seen[0].payload, pattern(1000, 1));
}

#[test]
fn half_a_message_of_a_lost_connection_is_forgotten() {
    let mut rig = Rig::in_session();
    rig.play(&frame_of(Opcode::Binary, false, &message("s", &pattern(1000, 1))));
    rig.cut_and_redial();
    rig.play(&data("s", &pattern(500, 2)));
    assert_eq!((rig.seen[0].payload.clone(), rig.seen[0].sequence), (pattern(500, 2), 1));
}

#[test]
fn the_agent_is_a_few_kilobytes() {
    assert!(
        size_of::<sidecar_core::agent::Agent>() < 14 << 10,
        "{}",
        size_of::<sidecar_core::agent::Agent>()
    );
}
