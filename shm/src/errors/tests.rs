//! Tests of the module above.

use super::*;
use crate::layout::DOWN;
use crate::testing::blank;

fn at(nanos: u64) -> Instant {
    Instant::from_nanos(nanos)
}

#[test]
fn the_same_error_is_one_record_with_a_count() {
    let log = ErrorLog::new(blank(DOWN));
    assert_eq!(log.records(), []);
    for time in 1..=1000 {
        log.note(7, "the wire is hot", at(time));
    }
    log.note(8, "the wire is hot", at(5));
    log.note(7, "the wire is cold", at(6));
    let records = log.records();
    assert_eq!(records.len(), 3);
    assert_eq!(
        records[0],
        ErrorRecord { kind: 7, text: "the wire is hot".into(), count: 1000, first: at(1), last: at(1000) }
    );
    assert_eq!((records[1].kind, records[2].text.as_str()), (8, "the wire is cold"));
}

#[test]
fn long_texts_are_cut_between_characters_and_empty_ones_named() {
    let log = ErrorLog::new(blank(DOWN));
    let long = format!("{}\u{20ac}\u{20ac}", "x".repeat(MAX_TEXT - 2));
    log.note(1, &long, at(1));
    log.note(1, &long, at(2));
    log.note(1, "", at(3));
    let records = log.records();
    assert_eq!(records.len(), 2);
    assert_eq!((records[0].text.as_str(), records[0].count), (&long[..MAX_TEXT - 2], 2));
    assert_eq!(records[1].text, "(no text)");
}

#[test]
fn a_full_log_counts_on_in_its_last_record() {
    let log = ErrorLog::new(blank(DOWN));
    for number in 0..200 {
        log.note((number % 10) as u16, &format!("error {number}"), at(number));
    }
    log.note(0, "error 0", at(999));
    let records = log.records();
    assert_eq!(records.len(), RECORDS);
    assert_eq!(records[RECORDS - 1].text, OVERFLOW);
    assert_eq!(records[RECORDS - 1].count, 200 - (RECORDS as u64 - 1));
    assert_eq!((records[0].count, records[0].last), (2, at(999)));
}

#[test]
fn a_kind_whose_texts_a_peer_makes_up_leaves_room_for_the_others() {
    let log = ErrorLog::new(blank(DOWN));
    let told = (0..10_000).filter(|number| log.note(3, &format!("type \"x{number}\""), at(*number))).count();
    assert_eq!(told, MOST_OF_A_KIND);
    assert!(log.note(4, "observation of 9000000 bytes", at(10_001)));
    assert!(!log.note(3, "type \"x0\"", at(10_002)));
    let records = log.records();
    assert_eq!(records.len(), MOST_OF_A_KIND + 2);
    assert_eq!((records[0].count, records[MOST_OF_A_KIND].count), (2, 1));
    let rest = records.last().unwrap();
    assert_eq!((rest.text.as_str(), rest.count), (OVERFLOW, 10_000 - MOST_OF_A_KIND as u64));
}
