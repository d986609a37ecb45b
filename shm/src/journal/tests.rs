//! Tests of the module above.

use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};

use super::words::{Read, Record};
use super::*;
use crate::layout::JOURNAL_BYTES;
use crate::map::Map;
use crate::slots::Asker;
use crate::testing::blank;

fn main() -> Main {
    Main {
        job_endpoint_hash: [7; 32],
        boot: [9; 16],
        agent: AgentId::new(&"a".repeat(64)).unwrap(),
        connected: false,
        warmup_seen: false,
        ready_sent: false,
        ready_heard: false,
        drain_seen: false,
        session: None,
        closed: None,
        epoch: Epoch(0),
        owner_pid: 4711,
        owner_since: Instant::from_nanos(123),
        owner_generation: 5,
    }
}

fn slot(sequence: u64) -> SlotRecord {
    SlotRecord {
        held: true,
        asker: Asker::Sidecar,
        seen: true,
        generation: 0xffff_fffe,
        epoch: Epoch(0x8000_0001),
        sequence,
        length: u32::MAX,
        deaths: 3,
        first_byte: Instant::from_nanos(u64::MAX),
        last_byte: Instant::from_nanos(1),
        lent: [1, 255],
        delivered: Some((1, u32::MAX)),
        applied: [None, Some(77)],
        ..SlotRecord::FREE
    }
}

/// Overwrites one byte as no writer of a journal would.
fn spoil(map: &Map, offset: usize) {
    let byte = map.range(offset, 1);
    // SAFETY: inside the mapping, which this test alone uses.
    unsafe { *byte ^= 0x55 };
}

#[test]
fn a_record_survives_damage_to_either_copy_but_not_to_both() {
    let map = blank(4096);
    let (mut record, read) = Record::<3>::open(&map, 64);
    assert_eq!(read, Read::Blank);
    record.write(&map, &[1, 2, 3]);
    record.write(&map, &[4, 5, 6]);
    let copy = Record::<3>::BYTES / 2;
    // The second version lies in the first copy: each byte of it is covered.
    for offset in 64..64 + copy {
        spoil(&map, offset);
        assert_eq!(Record::<3>::open(&map, 64).1, Read::Words([1, 2, 3]), "byte {offset}");
        spoil(&map, offset);
        assert_eq!(Record::<3>::open(&map, 64).1, Read::Words([4, 5, 6]));
    }
    spoil(&map, 64 + copy + 8);
    assert_eq!(Record::<3>::open(&map, 64).1, Read::Words([4, 5, 6]), "the older copy does not matter");
    spoil(&map, 64 + 8);
    assert_eq!(Record::<3>::open(&map, 64).1, Read::Corrupt);
}

/// Found by simulation: a sidecar killed in the middle of a record's very first write left a journal that its
/// successor called damaged, and the session was given up.
#[test]
fn a_first_version_that_was_torn_was_never_there() {
    for words in 1..=4 {
        let map = blank(4096);
        let (mut record, _) = Record::<3>::open(&map, 64);
        record.write(&map, &[u64::MAX; 3]);
        // What a writer that was killed had not stored yet.
        let copy = 64 + Record::<3>::BYTES / 2;
        for word in words..=4 {
            map.word64(copy + word * 8).store(0, Ordering::Relaxed);
        }
        let (mut record, read) = Record::<3>::open(&map, 64);
        assert_eq!(read, Read::Blank, "{words} words were stored");
        record.write(&map, &[1, 2, 3]);
        assert_eq!(Record::<3>::open(&map, 64).1, Read::Words([1, 2, 3]));
    }
}

#[test]
fn a_record_at_another_place_is_not_believed() {
    let map = blank(4096);
    let (mut record, _) = Record::<2>::open(&map, 0);
    record.write(&map, &[1, 2]);
    for word in 0..Record::<2>::BYTES / 8 {
        let value = map.word64(word * 8).load(Ordering::Relaxed);
        map.word64(1024 + word * 8).store(value, Ordering::Relaxed);
    }
    assert_eq!(Record::<2>::open(&map, 1024).1, Read::Corrupt);
}

/// What we closed is kept until another session opens: the gateway may restore it, and has to be told again then.
#[test]
fn a_session_that_we_closed_is_read_back_as_closed() {
    let map = blank(JOURNAL_BYTES);
    let mut journal = Journal::write(Arc::clone(&map), main());
    let session = SessionId::new("s").unwrap();
    let told = |map| {
        let main = Past::read(map).unwrap().main;
        (main.session, main.closed)
    };
    journal.session_opened(&session, Epoch(1));
    assert_eq!(told(&map), (Some(session.clone()), None));
    journal.session_closed(true);
    assert_eq!(told(&map), (None, Some(session.clone())));
    journal.session_opened(&session, Epoch(2));
    assert_eq!(told(&map), (Some(session), None));
    journal.session_closed(false);
    assert_eq!(told(&map), (None, None));
}

#[test]
fn everything_written_is_read_back() {
    let map = blank(JOURNAL_BYTES);
    let mut journal = Journal::write(Arc::clone(&map), main());
    let session = SessionId::new(&"\u{e9}".repeat(128)).unwrap();
    journal.connected();
    journal.warmup_seen();
    journal.ready_sent();
    journal.ready_heard();
    journal.drain_seen();
    journal.session_opened(&session, Epoch(9));
    journal.note_byte(Instant::from_nanos(55));
    journal.next_sequence(12);
    journal.slot(31, &slot(11));
    let seat = SeatRecord {
        standing: Standing::Dying,
        open: true,
        generation: u32::MAX,
        pid: u32::MAX - 1,
        start_time: u64::MAX,
    };
    journal.seat(1, &seat);
    journal.action_started(10);
    journal.action_sent(10);
    journal.action_started(11);

    let past = Past::read(&map).unwrap();
    let expected = Main {
        connected: true,
        warmup_seen: true,
        ready_sent: true,
        ready_heard: true,
        drain_seen: true,
        session: Some(session),
        epoch: Epoch(9),
        ..main()
    };
    assert_eq!(past.main, expected);
    assert_eq!(past.last_byte, Some(Instant::from_nanos(55)));
    assert_eq!(past.next_sequence, 12);
    assert_eq!(past.slots[31], slot(11));
    assert_eq!(past.slots[0], SlotRecord::FREE);
    assert_eq!(past.seats, [SeatRecord::EMPTY, seat]);
    assert_eq!(past.progress(10), Some(Progress::Sent));
    assert_eq!(past.progress(11), Some(Progress::Started));
    assert!(past.started(11) && !past.started(12));
}

#[test]
fn an_action_that_was_started_counts_through_many_later_ones_and_restarts() {
    let map = blank(JOURNAL_BYTES);
    let mut journal = Journal::write(Arc::clone(&map), main());
    for sequence in 1..=100 {
        journal.action_started(sequence);
        // Sent again to unfreeze a simulator: still one record.
        journal.action_started(sequence);
        journal.action_sent(sequence);
        if sequence % 7 == 0 {
            journal = Journal::write(Arc::clone(&map), main());
        }
        let past = Past::read(&map).unwrap();
        for recent in sequence.saturating_sub(15).max(1)..=sequence {
            assert!(past.started(recent), "{recent} of {sequence}");
        }
        assert_eq!(past.next_sequence, sequence + 1, "no sequence is given twice");
    }
}

#[test]
fn the_sequence_goes_on_after_whatever_is_the_highest() {
    let map = blank(JOURNAL_BYTES);
    let mut journal = Journal::write(Arc::clone(&map), main());
    journal.slot(0, &slot(40));
    assert_eq!(
        Past::read(&map).unwrap().next_sequence,
        41,
        "killed between the slot's record and the counter"
    );
    journal.slot(0, &SlotRecord { answered: true, ..slot(40) });
    assert_eq!(Past::read(&map).unwrap().next_sequence, 41, "a worker may still have it");
    journal.next_sequence(41);
    journal.slot(0, &SlotRecord::FREE);
    journal.note_byte(Instant::from_nanos(1));
    Journal::forget_last_byte(&map);
    let past = Past::read(&map).unwrap();
    assert_eq!((past.next_sequence, past.last_byte), (41, None), "what is forgotten is no number");
}

#[test]
fn a_fresh_agent_keeps_nothing_of_the_old_connection() {
    let map = blank(JOURNAL_BYTES);
    let mut journal = Journal::write(Arc::clone(&map), main());
    journal.connected();
    journal.ready_sent();
    journal.session_opened(&SessionId::new("s").unwrap(), Epoch(3));
    journal.note_byte(Instant::from_nanos(1));
    journal.agent(&AgentId::new("b").unwrap());
    let past = Past::read(&map).unwrap();
    let expected = Main { agent: AgentId::new("b").unwrap(), epoch: Epoch(3), ..main() };
    assert_eq!(past.main, expected);
    assert_eq!(past.last_byte, None);
}

#[test]
fn what_is_no_journal_is_told_apart() {
    let map = blank(JOURNAL_BYTES);
    assert_eq!(Past::read(&map).unwrap_err(), Unreadable::Magic);
    let mut journal = Journal::write(Arc::clone(&map), main());
    for sequence in 0..40 {
        journal.action_started(sequence);
        journal.slot(0, &slot(sequence));
        journal.seat(0, &SeatRecord::EMPTY);
    }
    journal.connected();
    Past::read(&map).unwrap();
    map.word32(place::VERSION).store(JOURNAL_VERSION + 1, Ordering::Relaxed);
    assert_eq!(Past::read(&map).unwrap_err(), Unreadable::Version(JOURNAL_VERSION + 1));
    map.word32(place::VERSION).store(JOURNAL_VERSION, Ordering::Relaxed);
    for (offset, copy, what) in [
        (place::MAIN, 512, "main"),
        (place::ACTIONS, 32, "action"),
        (place::SEATS, 64, "seat"),
        (place::SLOTS, 96, "slot"),
    ] {
        spoil(&map, offset + 8);
        Past::read(&map).unwrap();
        spoil(&map, offset + copy + 8);
        assert_eq!(Past::read(&map).unwrap_err(), Unreadable::Damaged(what));
        spoil(&map, offset + 8);
        spoil(&map, offset + copy + 8);
    }
    Past::read(&map).unwrap();
}
