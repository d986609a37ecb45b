//! Unit tests of the control frame reader; serde_json is the oracle for what JSON is.

extern crate std;
use std::format;
use std::string::{String, ToString};

use proptest::prelude::*;

use super::*;

fn read(text: impl AsRef<[u8]>) -> Result<Control, ControlError> {
    let mut lexer = ControlLexer::new();
    let _ = lexer.feed(text.as_ref());
    lexer.finish()
}

fn open(session: &str) -> Result<Control, ControlError> {
    Ok(Control::SessionOpen { session: SessionId::new(session).unwrap() })
}

#[test]
fn the_frames_of_the_contract_are_read_at_every_cut_point() {
    let session = SessionId::new("abc-1").unwrap();
    for (text, expected) in [
        (r#"{"type":"warmup"}"#, Control::Warmup),
        (r#"{"type":"ready"}"#, Control::Ready),
        (
            r#"{"type":"queued","reason":"no_gpu_available"}"#,
            Control::Queued { reason: clip("no_gpu_available") },
        ),
        (
            r#"{"type":"session_open","session_id":"abc-1"}"#,
            Control::SessionOpen { session: session.clone() },
        ),
        (
            " {\n\t\"reason\" : \"düne \\ud834\\udd1e\" ,\r\n\"session_id\":\"abc-1\", \"type\":\"session_close\" } ",
            Control::SessionClose { session, reason: clip("düne 𝄞") },
        ),
        (r#"{"type":"drain"}"#, Control::Drain { reason: clip("") }),
        (r#"{"type":"maintenance","at":[1,{"x":null}]}"#, Control::Unknown { kind: clip("maintenance") }),
    ] {
        let bytes = text.as_bytes();
        let mut lexer = ControlLexer::new();
        for cut in 0..=bytes.len() {
            assert_eq!(lexer.feed(&bytes[..cut]), Ok(()));
            assert_eq!(lexer.feed(&bytes[cut..]), Ok(()));
            assert_eq!(lexer.finish(), Ok(expected.clone()), "{text} cut at {cut}");
        }
        for byte in bytes {
            assert_eq!(lexer.feed(&[*byte]), Ok(()));
        }
        assert_eq!(lexer.finish(), Ok(expected));
    }
}

#[test]
fn a_frame_that_ends_early_is_unfinished_at_every_cut_point() {
    let text = r#"{"type":"session_open","session_id":"s","n":[-1.5e+3,true]}"#;
    for cut in 0..text.len() {
        assert_eq!(read(&text[..cut]), Err(ControlError::Unfinished), "cut at {cut}");
    }
}

#[test]
fn names_and_values_may_be_escaped() {
    let text = r#"{"\u0074ype":"session\u005fopen","session_\u0069d":"a\/b\u00fc\\"}"#;
    assert_eq!(read(text), open("a/bü\\"));
}

#[test]
fn unknown_fields_of_every_shape_are_skipped() {
    for value in [
        "null",
        "true",
        "false",
        "0",
        "-0.5E-7",
        "12345678901234567890123",
        r#""text""#,
        "[]",
        "{}",
        r#"[1,"a",[[]],{"type":"drain","session_id":"inner"}]"#,
        r#"{"type":"drain","session_id":"inner","reason":["x"]}"#,
    ] {
        let text =
            format!(r#"{{"x":{value},"type":"session_open","y":{value},"session_id":"s","z":{value}}}"#);
        assert_eq!(read(&text), open("s"), "{text}");
    }
}

#[test]
fn of_fields_that_come_twice_the_last_one_counts() {
    assert_eq!(read(r#"{"type":"drain","type":"warmup"}"#), Ok(Control::Warmup));
    assert_eq!(read(r#"{"type":"session_open","session_id":"long one","session_id":"b"}"#), open("b"));
    let gone = r#"{"type":"session_open","session_id":"a","session_id":null}"#;
    assert_eq!(read(gone), Err(ControlError::NoSession));
}

#[test]
fn session_ids_up_to_the_limit_are_kept_and_longer_ones_refused() {
    for (unit, count) in [("x", 256), ("ü", 128), ("\\u00fc", 128), ("𝄞", 64)] {
        let fits = unit.repeat(count);
        let text = |id: &str, kind: &str| format!(r#"{{"type":"{kind}","session_id":"{id}"}}"#);
        assert!(matches!(read(text(&fits, "session_open")), Ok(Control::SessionOpen { .. })));
        let long = fits + "x";
        assert_eq!(read(text(&long, "session_open")), Err(ControlError::SessionTooLong));
        assert_eq!(read(text(&long, "session_close")), Err(ControlError::SessionTooLong));
        // It is ignored where none is needed.
        assert_eq!(read(text(&long, "warmup")), Ok(Control::Warmup));
    }
}

#[test]
fn a_session_frame_without_a_usable_session_is_refused() {
    for field in ["", r#","session_id":"""#, r#","session_id":7"#, r#","session_id":{"session_id":"s"}"#] {
        let text = format!(r#"{{"type":"session_open"{field}}}"#);
        assert_eq!(read(&text), Err(ControlError::NoSession), "{text}");
    }
}

#[test]
fn reasons_are_cut_between_characters_and_need_not_be_strings() {
    let long = format!(r#"{{"type":"drain","reason":"{}ü and more"}}"#, "x".repeat(255));
    assert_eq!(read(&long), Ok(Control::Drain { reason: clip(&"x".repeat(255)) }));
    for reason in ["null", "3", r#"{"code":3}"#] {
        let text = format!(r#"{{"type":"queued","reason":{reason}}}"#);
        assert_eq!(read(&text), Ok(Control::Queued { reason: clip("") }));
    }
}

#[test]
fn a_long_type_is_unknown_and_cut() {
    let text = format!(r#"{{"type":"warmup{}"}}"#, "p".repeat(100_000));
    assert_eq!(read(text), Ok(Control::Unknown { kind: clip(&format!("warmup{}", "p".repeat(26))) }));
    assert_eq!(read(r#"{"type":""}"#), Ok(Control::Unknown { kind: clip("") }));
    assert_eq!(read(r#"{"type":"Warmup"}"#), Ok(Control::Unknown { kind: clip("Warmup") }));
}

#[test]
fn a_frame_without_a_type_is_refused() {
    for text in
        ["{}", r#"{"type":null}"#, r#"{"type":["warmup"]}"#, r#"{"Type":"warmup"}"#, r#"{"type_":"warmup"}"#]
    {
        assert_eq!(read(text), Err(ControlError::NoType), "{text}");
    }
    let long_key = format!(r#"{{"type{}":"warmup"}}"#, "\\u0000".repeat(40));
    assert_eq!(read(long_key), Err(ControlError::NoType));
}

#[test]
fn what_is_no_object_is_refused() {
    for text in ["[]", "null", "\"warmup\"", "7", "warmup", "\u{feff}{}"] {
        assert_eq!(read(text), Err(ControlError::NotAnObject), "{text}");
    }
    assert_eq!(read(""), Err(ControlError::Unfinished));
    assert_eq!(read("  \n"), Err(ControlError::Unfinished));
}

#[test]
fn the_first_wrong_byte_is_named() {
    for (text, position) in [
        (r#"{"type":"warmup"}x"#, 17),
        (r#"{"type":"warmup",}"#, 17),
        (r#"{type:"warmup"}"#, 1),
        (r#"{"type" "warmup"}"#, 8),
        (r#"{"type":'warmup'}"#, 8),
        (r#"{"a":[1,]}"#, 8),
        (r#"{"a":[1}}"#, 7),
        (r#"{"a":{"b":1]}"#, 11),
        (r#"{"a":01}"#, 6),
        (r#"{"a":1.}"#, 7),
        (r#"{"a":+1}"#, 5),
        (r#"{"a":nul}"#, 8),
        (r#"{"a":truee}"#, 9),
        (r#"{"a":NaN}"#, 5),
        (r#"{"a":"\x"}"#, 7),
        ("{\"a\":\"\n\"}", 6),
    ] {
        let byte = text.as_bytes()[position];
        let position = position as u64;
        assert_eq!(read(text), Err(ControlError::Unexpected { byte, position }), "{text}");
    }
}

#[test]
fn nesting_is_limited() {
    let nested = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        read(format!(r#"{{"x":{open}{close},"type":"warmup"}}"#))
    };
    assert_eq!(nested(MAX_DEPTH as usize - 1), Ok(Control::Warmup));
    assert_eq!(nested(MAX_DEPTH as usize), Err(ControlError::TooDeep));
    assert_eq!(nested(100_000), Err(ControlError::TooDeep));
}

#[test]
fn bytes_that_are_no_text_are_that_before_anything_else() {
    assert_eq!(read(b"{\"type\":\"\xff\"}"), Err(ControlError::NotUtf8));
    assert_eq!(read(b"no json \xc3"), Err(ControlError::NotUtf8));
    let mut lexer = ControlLexer::new();
    assert_eq!(lexer.feed(b"no json"), Err(ControlError::NotAnObject));
    assert_eq!(lexer.feed(b"still none"), Err(ControlError::NotAnObject));
    assert_eq!(lexer.feed(b"\x80"), Err(ControlError::NotUtf8));
    assert_eq!(lexer.feed(b"text"), Err(ControlError::NotUtf8));
    assert_eq!(lexer.finish(), Err(ControlError::NotUtf8));
    assert_eq!(lexer.feed(br#"{"type":"drain"}"#), Ok(()));
    assert!(lexer.finish().is_ok());
}

fn json(depth: u32) -> impl Strategy<Value = serde_json::Value> {
    use serde_json::Value;
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,8}".prop_map(Value::from),
        "[\\x00-\\x7f]{0,8}".prop_map(Value::from),
    ];
    let key = prop_oneof!["\\PC{0,6}", Just("type".to_string()), Just("session_id".to_string())];
    leaf.prop_recursive(depth, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key.clone(), inner), 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect())),
        ]
    })
}

/// What a reader that holds the whole frame in memory makes of it.
fn oracle(text: &str) -> Option<(String, Option<String>, Option<String>)> {
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    let field = |name: &str| value.get(name)?.as_str().map(ToString::to_string);
    Some((value.as_object().and_then(|_| field("type"))?, field("session_id"), field("reason")))
}

fn compare(text: &str) -> Result<(), TestCaseError> {
    let (read, expected) = (read(text), oracle(text));
    match (read, expected) {
        (Ok(control), Some((kind, session, reason))) => {
            let reason = clip(&reason.unwrap_or_default());
            let session = session.map(|session| SessionId::new(&session).unwrap());
            let expected = match (kind.as_str(), session) {
                ("warmup", _) => Control::Warmup,
                ("ready", _) => Control::Ready,
                ("queued", _) => Control::Queued { reason },
                ("drain", _) => Control::Drain { reason },
                ("session_open", Some(session)) => Control::SessionOpen { session },
                ("session_close", Some(session)) => Control::SessionClose { session, reason },
                (other, _) => Control::Unknown { kind: clip(other) },
            };
            prop_assert_eq!(control, expected);
        }
        (Err(ControlError::NoSession), Some((kind, session, _))) => {
            prop_assert!(kind.starts_with("session_") && session.is_none_or(|session| session.is_empty()));
        }
        (Err(_), None) => {}
        (read, expected) => prop_assert!(false, "{text}: {read:?} instead of {expected:?}"),
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_object_is_read_as_serde_json_reads_it(
        kind in prop::sample::select(&["warmup", "queued", "session_open", "session_close", "drain", "new"][..]),
        session in prop::option::of("\\PC{0,12}"), reason in prop::option::of("\\PC{0,12}"),
        mut fields in prop::collection::vec(("[a-z\\\\\"\u{e9}]{1,4}", json(3)), 0..4), seed: u64,
    ) {
        use serde_json::Value;
        fields.push(("type".to_string(), Value::from(kind)));
        fields.extend(session.map(|session| ("session_id".to_string(), Value::from(session))));
        fields.extend(reason.map(|reason| ("reason".to_string(), Value::from(reason))));
        let turn = seed as usize % fields.len();
        fields.rotate_left(turn);
        let fields = fields.iter().map(|(key, value)| format!("{} : {value}", Value::from(key.as_str())));
        let text = format!("{{{}}}", fields.collect::<std::vec::Vec<_>>().join(", "));
        compare(&text)?;
    }

    #[test]
    fn a_damaged_object_is_refused_exactly_when_serde_json_refuses_it(
        value in json(3), place: prop::sample::Index, damage in "[\\[\\]{}:,\"\\\\0-9a-z. +-]{0,2}", drop in 0_usize..3,
    ) {
        let text = format!(r#"{{"type":"drain","x":{value}}}"#);
        let mut characters: std::vec::Vec<char> = text.chars().collect();
        let start = place.index(characters.len());
        let end = (start + drop).min(characters.len());
        characters.splice(start..end, damage.chars());
        let text: String = characters.into_iter().collect();
        // Numbers out of range and lone surrogates are the oracle's own limits, not the grammar's.
        let oracle = serde_json::from_str::<serde_json::Value>(&text);
        prop_assume!(!oracle.is_err_and(|error| {
            let error = error.to_string();
            error.contains("out of range") || error.contains("surrogate") || error.contains("hex escape")
        }));
        compare(&text)?;
    }

    #[test]
    fn any_pieces_give_the_same_as_the_whole(
        bytes in prop::collection::vec(any::<u8>(), 0..40), cut: prop::sample::Index, value in json(2),
    ) {
        let text = format!(r#"{{"reason":{value},"type":"queued"}}"#);
        for bytes in [&bytes[..], text.as_bytes()] {
            let cut = cut.index(bytes.len() + 1);
            let mut lexer = ControlLexer::new();
            let _ = lexer.feed(&bytes[..cut]);
            let _ = lexer.feed(&bytes[cut..]);
            prop_assert_eq!(lexer.finish(), read(bytes));
        }
    }
}
