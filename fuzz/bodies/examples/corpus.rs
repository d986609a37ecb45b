//! Writes the seeds of the corpora in `fuzz/corpus`: `cargo run -p sidecar-fuzz-bodies --example corpus`. What a fuzzer
//! found and somebody put beside them stays.
//!
//! A seed is named for what it is. For `stream` these are the malformed things that other clients were found to accept
//! (masked, RSV, reserved opcodes, long control frames, long forms, a message inside another, limits over fragments,
//! text that is none, close codes that may not be sent) and the valid ones around them.

use std::fs;
use std::path::Path;

use sidecar_fuzz_bodies::handshake::ACCEPT;

fn main() -> std::io::Result<()> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    for (target, seeds) in [
        ("stream", stream()),
        ("handshake", handshake()),
        ("control", with_split(control())),
        ("tunnel", with_split(tunnel())),
        ("env_file", env_file()),
        ("region", region()),
        ("descriptors", descriptors()),
    ] {
        let directory = corpus.join(target);
        fs::create_dir_all(&directory)?;
        for (name, bytes) in &seeds {
            fs::write(directory.join(name), bytes)?;
        }
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}

type Seed = (String, Vec<u8>);

fn seed(name: &str, bytes: impl Into<Vec<u8>>) -> Seed {
    (name.to_owned(), bytes.into())
}

/// In front of each the seed of its splits.
fn with_split(seeds: Vec<Seed>) -> Vec<Seed> {
    let numbered = seeds.into_iter().enumerate();
    // There are fewer than 256.
    numbered.map(|(index, (name, bytes))| (name, [vec![index as u8 + 1], bytes].concat())).collect()
}

/// A frame with this first byte; the length in its shortest form.
fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let length = payload.len();
    let mut bytes = vec![first];
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ ..=125), _) => bytes.push(length),
        (_, Ok(length)) => {
            bytes.push(126);
            bytes.extend(length.to_be_bytes());
        }
        _ => {
            bytes.push(127);
            bytes.extend((length as u64).to_be_bytes());
        }
    }
    bytes.extend_from_slice(payload);
    bytes
}

/// A data message for a session.
fn message(session: &str, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(session.len()).expect("short");
    [&length.to_be_bytes(), session.as_bytes(), payload].concat()
}

fn stream() -> Vec<Seed> {
    let (text, binary, more, close, ping, pong) = (0x81, 0x82, 0x80, 0x88, 0x89, 0x8a);
    let data = |length: usize| frame(binary, &message("s", &vec![7; length]));
    let fragments = |count: usize, size: usize| {
        let mut bytes = frame(0x02, &message("s", &vec![1; size]));
        (1..count).for_each(|_| bytes.extend(frame(0x00, &vec![2; size])));
        bytes.extend(frame(more, &[]));
        bytes
    };
    let json = |json: &str| frame(text, json.as_bytes());
    let frames: Vec<(&str, Vec<u8>)> = vec![
        ("masked", [&[binary, 0x85, 1, 2, 3, 4][..], &[9; 5]].concat()),
        ("rsv1", frame(0xc2, &message("s", &[1]))),
        ("rsv2", frame(0xa2, &message("s", &[1]))),
        ("rsv3-ping", frame(0x99, &[])),
        ("reserved-opcode-3", frame(0x83, &[1])),
        ("reserved-opcode-b", frame(0x8b, &[1])),
        ("ping-of-126", frame(ping, &[1; 126])),
        ("pong-of-300", frame(pong, &[1; 300])),
        ("close-of-302", frame(close, &[[0x03, 0xe8].as_slice(), &[b'a'; 300]].concat())),
        ("ping-in-fragments", frame(0x09, b"half")),
        ("length-of-5-in-16-bits", [&[binary, 126, 0, 5][..], &message("s", &[])].concat()),
        ("length-of-5-in-64-bits", [&[binary, 127, 0, 0, 0, 0, 0, 0, 0, 5][..], &message("s", &[])].concat()),
        ("length-of-65535-in-64-bits", vec![binary, 127, 0, 0, 0, 0, 0, 0, 0xff, 0xff]),
        ("length-with-top-bit", vec![binary, 127, 0x80, 0, 0, 0, 0, 0, 0, 0]),
        ("length-of-48-mib-and-no-more", vec![binary, 127, 0, 0, 0, 0, 3, 0, 0, 0]),
        ("message-in-a-message", [frame(0x02, &message("s", &[1])), data(3)].concat()),
        ("text-in-a-message", [frame(0x02, &message("s", &[1])), json(r#"{"type":"drain"}"#)].concat()),
        ("continuation-of-nothing", frame(more, &[1, 2, 3])),
        ("fragments-over-the-limit", fragments(10, 600)),
        ("too-many-fragments", fragments(60, 1)),
        ("too-many-empty-fragments", {
            let mut bytes = frame(0x02, &message("s", &[1]));
            (0..60).for_each(|_| bytes.extend(frame(0x00, &[])));
            bytes
        }),
        ("text-that-is-none", frame(text, &[b'{', 0xff, 0xfe, b'}'])),
        ("text-cut-in-a-character", [frame(0x01, &[b'"', 0xc3]), frame(more, &[0x28])].concat()),
        ("text-over-the-limit", frame(text, &[b' '; 1001])),
        ("close-of-1-byte", frame(close, &[3])),
        ("close-1005", frame(close, &[0x03, 0xed])),
        ("close-1006", frame(close, &[0x03, 0xee])),
        ("close-999", frame(close, &[0x03, 0xe7])),
        ("close-5000", frame(close, &[0x13, 0x88])),
        ("close-reason-that-is-no-text", frame(close, &[0x03, 0xe8, 0xff])),
        ("frames-after-a-close", [frame(close, &[0x03, 0xe8]), data(4), frame(ping, b"late")].concat()),
        ("close-without-code", frame(close, &[])),
        ("close-1013-try-again", frame(close, &[[0x03, 0xf5].as_slice(), b"at capacity"].concat())),
        ("data-of-3-bytes", frame(binary, &[0, 0, 0])),
        ("data-empty", frame(binary, &[])),
        ("data-session-past-the-end", frame(binary, &[0, 0, 0, 200, b's'])),
        ("data-session-of-257", frame(binary, &[[0, 0, 1, 1].as_slice(), &[b'x'; 300]].concat())),
        ("data-session-of-4-gib", frame(binary, &[0xff, 0xff, 0xff, 0xff, b's'])),
        ("data-session-that-is-no-text", frame(binary, &[0, 0, 0, 1, 0xff, 1])),
        ("data-of-another-session", frame(binary, &message("t", &[1]))),
        ("data-as-large-as-a-slot", data(3000)),
        ("data-one-larger-than-a-slot", data(3001)),
        ("data-far-too-large", data(9000)),
        ("data-in-fragments-with-an-empty-end", fragments(5, 300)),
        ("data-with-a-ping-inside", {
            let whole = message("s", &[5; 200]);
            [frame(0x02, &whole[..3]), frame(ping, b"in between"), frame(more, &whole[3..])].concat()
        }),
        ("data-three-in-a-row", [data(1), data(126), data(0)].concat()),
        ("json-broken", json("{")),
        ("json-array", json("[]")),
        ("json-unknown-type", json(r#"{"type":"from_the_future","x":{"y":[1,2,{}]}}"#)),
        ("json-session-open-twice", json(r#"{"type":"session_open","session_id":"s"}"#).repeat(2)),
        ("json-session-replaced", json(r#"{"type":"session_open","session_id":"t"}"#)),
        ("json-session-without-id", json(r#"{"type":"session_open"}"#)),
        ("json-session-with-empty-id", json(r#"{"type":"session_open","session_id":""}"#)),
        ("json-close-then-data", [json(r#"{"type":"session_close","session_id":"s"}"#), data(2)].concat()),
        ("json-wrong-direction", json(r#"{"type":"ready"}"#)),
        ("json-drain", json(r#"{"type":"drain","reason":"job done"}"#)),
        ("json-warmup-queued", [json(r#"{"type":"warmup"}"#), json(r#"{"type":"queued"}"#)].concat()),
        ("http-instead-of-frames", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("zeroes", vec![0; 64]),
        ("ones", vec![0xff; 64]),
    ];
    let numbered = frames.into_iter().enumerate();
    // In a session where data is spoken of, behind the 101 where that is the more interesting state.
    numbered
        .map(|(index, (name, bytes))| seed(name, [vec![1, index as u8 * 4 + 1], bytes].concat()))
        .collect()
}

fn handshake() -> Vec<Seed> {
    let answer =
        |status: &str, headers: &[&str]| format!("HTTP/1.1 {status}\r\n{}\r\n\r\n", headers.join("\r\n"));
    let accept = format!("Sec-WebSocket-Accept: {ACCEPT}");
    let (upgrade, connection) = ("Upgrade: websocket", "Connection: Upgrade");
    let good = [upgrade, connection, &accept];
    let switching = "101 Switching Protocols";
    let with = |more: &str| answer(switching, &[&good[..], &[more]].concat());
    let many: Vec<String> = (0..100).map(|index| format!("X-{index}: 1")).collect();
    let seeds = [
        ("good", answer(switching, &good)),
        ("good-and-a-close-behind", answer(switching, &good) + "\u{8}\u{2}"),
        ("good-in-other-case", answer(switching, &good).to_lowercase().replace("http/1.1", "HTTP/1.1")),
        ("good-token-list", answer(switching, &[upgrade, "Connection: keep-alive, Upgrade", &accept])),
        ("good-bare-newlines", answer(switching, &good).replace("\r\n", "\n")),
        ("good-http-1.0", answer(switching, &good).replace("HTTP/1.1", "HTTP/1.0")),
        ("good-folded-header", with("X: a\r\n b")),
        (
            "wrong-accept",
            answer(switching, &[upgrade, connection, "Sec-WebSocket-Accept: AAAAAAAAAAAAAAAAAAAAAAAAAAA="]),
        ),
        ("no-accept", answer(switching, &[upgrade, connection])),
        ("accept-twice", with(&accept)),
        ("no-upgrade", answer(switching, &[connection, &accept])),
        ("no-connection", answer(switching, &[upgrade, &accept])),
        ("upgrade-to-h2c", answer(switching, &["Upgrade: h2c", connection, &accept])),
        ("extension-never-offered", with("Sec-WebSocket-Extensions: permessage-deflate")),
        ("protocol-never-offered", with("Sec-WebSocket-Protocol: chat")),
        ("status-400", answer("400 Bad Request", &["Content-Length: 2"]) + "no"),
        ("status-401", answer("401 Unauthorized", &["Content-Length: 0"])),
        ("status-403", answer("403 Forbidden", &["Connection: close"])),
        ("status-409", answer("409 Conflict", &["Content-Length: 0"])),
        ("status-503", answer("503 Service Unavailable", &["Retry-After: 1"])),
        ("status-302", answer("302 Found", &["Location: http://elsewhere/"])),
        ("status-200", answer("200 OK", &["Transfer-Encoding: chunked"]) + "0\r\n\r\n"),
        ("status-100-first", answer("100 Continue", &["X: y"]) + &answer(switching, &good)),
        ("status-999", answer("999 ?", &["X: y"])),
        ("status-without-reason", answer("101", &good)),
        ("status-that-is-none", answer("1O1 Switching", &good)),
        ("too-many-headers", answer(switching, &many.iter().map(String::as_str).collect::<Vec<_>>())),
        ("header-without-end", format!("HTTP/1.1 101 S\r\nX: {}", "a".repeat(20_000))),
        ("no-http", "SSH-2.0-OpenSSH_9.6\r\n".to_owned()),
        ("half", "HTTP/1.1 101 Swi".to_owned()),
        ("empty-lines-first", "\r\n\r\n".to_owned() + &answer(switching, &good)),
        ("nul-in-a-header", with("X: a\0b")),
    ];
    let mut seeds: Vec<Seed> = seeds.into_iter().map(|(name, text)| seed(name, text)).collect();
    seeds.push(seed("bytes-that-are-no-text", [b"HTTP/1.1 101 S\r\nX: ".as_slice(), &[0xff; 9]].concat()));
    seeds
}

fn control() -> Vec<Seed> {
    let deep = |depth: usize| format!(r#"{{"type":"x","v":{}{}}}"#, "[".repeat(depth), "]".repeat(depth));
    let id = |length: usize| format!(r#"{{"type":"session_open","session_id":"{}"}}"#, "i".repeat(length));
    let texts = [
        ("warmup", r#"{"type":"warmup"}"#.to_owned()),
        ("queued", r#"{"type":"queued","reason":"no_gpu_available"}"#.to_owned()),
        ("open", r#"{"session_id":"abc","type":"session_open"}"#.to_owned()),
        ("close", r#"{"type":"session_close","session_id":"abc","reason":"done"}"#.to_owned()),
        ("drain", " {\t\"type\" : \"drain\"\r\n} ".to_owned()),
        ("unknown", r#"{"type":"later","a":[1,-2.5e+3,true,false,null,{"b":"c"}]}"#.to_owned()),
        (
            "escapes",
            r#"{"type":"session_close","session_id":"\u0061\"\\\/\b\f\n\r\t","reason":"\u00e9\ud83d\ude00"}"#
                .to_owned(),
        ),
        ("lone-surrogate", r#"{"type":"session_open","session_id":"\ud83d"}"#.to_owned()),
        ("surrogates-reversed", r#"{"type":"x","r":"\ude00\ud83d"}"#.to_owned()),
        ("escape-that-is-none", r#"{"type":"\x"}"#.to_owned()),
        ("escape-cut", r#"{"type":"\u00"#.to_owned()),
        ("id-of-256", id(256)),
        ("id-of-257", id(257)),
        ("id-empty", id(0)),
        ("reason-of-1000", format!(r#"{{"type":"drain","reason":"{}"}}"#, "é".repeat(500))),
        ("type-of-100", format!(r#"{{"type":"{}"}}"#, "t".repeat(100))),
        ("type-twice", r#"{"type":"warmup","type":"drain"}"#.to_owned()),
        ("type-escaped", r#"{"\u0074ype":"\u0064rain"}"#.to_owned()),
        ("type-a-number", r#"{"type":1}"#.to_owned()),
        ("type-missing", r#"{"session_id":"a"}"#.to_owned()),
        ("deep-30", deep(30)),
        ("deep-31", deep(31)),
        ("deep-32", deep(32)),
        ("deep-200", deep(200)),
        ("numbers", r#"{"type":"x","n":[0,-0,10,1.5,1e9,1E-9,123456789012345678901234567890]}"#.to_owned()),
        ("number-leading-zero", r#"{"type":"x","n":01}"#.to_owned()),
        ("number-bare-point", r#"{"type":"x","n":1.}"#.to_owned()),
        ("number-bare-minus", r#"{"type":"x","n":-}"#.to_owned()),
        ("comma-at-the-end", r#"{"type":"warmup",}"#.to_owned()),
        ("two-objects", r#"{"type":"warmup"}{"type":"drain"}"#.to_owned()),
        ("text-behind", r#"{"type":"warmup"} x"#.to_owned()),
        ("array", "[]".to_owned()),
        ("string", r#""warmup""#.to_owned()),
        ("nothing", String::new()),
        ("control-character", "{\"type\":\"a\u{1}b\"}".to_owned()),
        ("byte-order-mark", "\u{feff}{\"type\":\"warmup\"}".to_owned()),
        ("single-quotes", "{'type':'warmup'}".to_owned()),
        ("literal-cut", r#"{"type":"x","v":tru}"#.to_owned()),
    ];
    let mut seeds: Vec<Seed> = texts.into_iter().map(|(name, text)| seed(name, text)).collect();
    seeds.push(seed("no-text", [b"{\"type\":\"".as_slice(), &[0xc3, 0x28], b"\"}"].concat()));
    seeds.push(seed("no-text-overlong", [b"{\"type\":\"".as_slice(), &[0xc0, 0xaf], b"\"}"].concat()));
    seeds
}

fn tunnel() -> Vec<Seed> {
    let head = |length: u32, rest: &[u8]| [&length.to_be_bytes(), rest].concat();
    vec![
        seed("warm-up", message("", b"payload")),
        seed("usual", message("1a513e40-72b8-4f08-afdb-3cd464bc889c", &[1; 40])),
        seed("no-payload", message("s", &[])),
        seed("id-of-256", message(&"x".repeat(256), &[1])),
        seed("id-of-257", message(&"x".repeat(257), &[1])),
        seed("id-of-4-gib", head(u32::MAX, b"x")),
        seed("id-of-2-gib", head(1 << 31, b"x")),
        seed("id-past-the-end", head(9, b"abc")),
        seed("id-no-text", head(2, &[0xff, 0xfe, 1])),
        seed("id-cut-in-a-character", head(1, "é".as_bytes())),
        seed("id-with-nul", message("a\0b", &[1])),
        seed("id-of-two-scripts", message("é漢😀", &[1])),
        seed("little-endian-length", [1, 0, 0, 0, b's', 9]),
        seed("three-bytes", [0, 0, 0]),
        seed("one-byte", [0]),
        seed("nothing", []),
    ]
}

fn env_file() -> Vec<Seed> {
    let long = format!("A={}", "x".repeat(5000));
    [
        ("usual", "export JOB_UUID=0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11\nexport JOB_TOKEN='sesame'\n"),
        ("endpoint", "TUNNEL_ENDPOINT=ws://gate.example:8080/api/challenge/tunnel?x=1\n"),
        ("endpoint-ipv6", "TUNNEL_ENDPOINT=ws://[::1]:9/\n"),
        ("endpoint-user", "TUNNEL_ENDPOINT=ws://user:word@gate/\n"),
        ("endpoint-spaces", "TUNNEL_ENDPOINT='ws://ga te/a b'\n"),
        ("endpoint-port-too-large", "TUNNEL_ENDPOINT=ws://gate:99999/\n"),
        ("endpoint-no-host", "TUNNEL_ENDPOINT=ws:///x\n"),
        ("endpoint-header-injection", "TUNNEL_ENDPOINT=\"ws://gate/\rX: y\"\n"),
        ("quotes", "A=\"a \\\"b\\\" \\\\ \\$c\"\nJOB_TOKEN='a \"b\"'\n"),
        ("quote-open", "A=\"never closed\nJOB_TOKEN='neither\n"),
        ("backslash-at-the-end", "A=\"x\\\n"),
        ("comments", "# A=1\nA=2 # two\nA=#\n"),
        ("crlf", "A=1\r\nJOB_TOKEN=x\r\n"),
        ("carriage-returns", "A=1\rB=2\r"),
        ("tabs", "\texport\tA=\t1\n"),
        ("twice", "A=1\nA=2\nA=\n"),
        ("no-name", "=1\n"),
        ("names", "1A=1\nA-B=2\n_=3\nÄ=4\n"),
        ("export-only", "export\nexport \nexport=1\nexportA=1\n"),
        ("expansion", "A=$(rm -rf /)\nJOB_TOKEN=`id`\n"),
        ("byte-order-mark", "\u{feff}A=1\n"),
        ("nul", "A=\0\nJOB_TOKEN=a\0b\n"),
        ("separators", "A=1\u{2028}JOB_UUID=2\u{85}\u{b}\u{c}\n"),
        ("long", &long),
        ("nothing", ""),
    ]
    .into_iter()
    .map(|(name, text)| seed(name, text))
    .chain([seed("no-text", [b'A', b'=', 0xff])])
    .collect()
}

/// Offsets of the region's parts are those of the layout's table.
fn region() -> Vec<Seed> {
    let edits = |mode: u8, edits: &[(u32, u64)]| {
        let mut bytes = vec![mode];
        for (at, word) in edits {
            bytes.extend(at.to_le_bytes());
            bytes.extend(word.to_le_bytes());
        }
        bytes
    };
    let (header, control, down, seat) = (16_384, 20_480, 90_112, 155_648);
    // Main record: its second copy starts after 64 words.
    let main = |copy: u32, word: u32| 512 + copy * 512 + (1 + word) * 8;
    let slot = |index: u32, copy: u32, word: u32| 3072 + index * 192 + copy * 96 + word * 8;
    vec![
        seed("untouched", edits(0, &[])),
        seed("another-geometry", edits(2, &[])),
        seed("cut", edits(4, &[])),
        seed("journal-magic", edits(0, &[(0, 0)])),
        seed("journal-version", edits(0, &[(8, 9)])),
        seed("last-byte-in-the-future", edits(0, &[(64, u64::MAX)])),
        seed("next-sequence-at-the-end", edits(0, &[(128, u64::MAX)])),
        seed("main-torn", edits(1, &[(main(0, 3), 1)])),
        seed("main-both-torn", edits(1, &[(main(0, 3), 1), (main(1, 3), 1)])),
        seed("main-flags", edits(0, &[(main(0, 6), u64::MAX), (main(1, 6), u64::MAX)])),
        seed("main-owner", edits(0, &[(main(0, 7), u64::MAX), (main(1, 7), u64::MAX)])),
        seed("main-lengths", edits(0, &[(main(0, 9), u64::MAX), (main(1, 9), u64::MAX)])),
        seed("main-agent-no-text", edits(0, &[(main(0, 10), u64::MAX), (main(1, 10), u64::MAX)])),
        seed("main-session-no-text", edits(0, &[(main(0, 18), u64::MAX), (main(1, 18), u64::MAX)])),
        seed("action-progress", edits(0, &[(1536 + 16, 77), (1536 + 32 + 16, 77)])),
        seed("action-sequence", edits(0, &[(1536 + 8, u64::MAX), (1536 + 32 + 8, u64::MAX - 1)])),
        seed("seat-standing", edits(0, &[(2560 + 8, u64::MAX), (2560 + 64 + 8, u64::MAX)])),
        seed("seat-pid", edits(0, &[(2560 + 16, 1), (2560 + 64 + 16, 1), (2560 + 24, 1)])),
        seed("slot-flags", edits(0, &[(slot(0, 0, 1), u64::MAX), (slot(0, 1, 1), u64::MAX)])),
        seed("slot-length", edits(0, &[(slot(0, 0, 3), u64::MAX), (slot(0, 1, 3), u64::MAX)])),
        seed("slot-sequence", edits(0, &[(slot(1, 0, 2), u64::MAX), (slot(1, 1, 2), u64::MAX)])),
        seed("slot-count", edits(0, &[(slot(1, 0, 0), u64::MAX - 1), (slot(1, 1, 0), u64::MAX)])),
        seed("slot-beyond-the-geometry", edits(0, &[(slot(20, 1, 0), 1), (slot(20, 1, 1), 1)])),
        seed("header-magic", edits(0, &[(header, 0)])),
        seed("header-version", edits(0, &[(header + 8, 0x0102_0304_0000_0002)])),
        seed("header-endian", edits(0, &[(header + 8, 0x0403_0201_0000_0001)])),
        seed("header-no-slots", edits(0, &[(header + 16, 0)])),
        seed("header-huge-slots", edits(0, &[(header + 16, u64::MAX)])),
        seed("header-actions", edits(0, &[(header + 24, u64::MAX)])),
        seed("header-total", edits(0, &[(header + 32, u64::MAX)])),
        seed("down-tail", edits(0, &[(control + 512 + 256, 0xffff_fff0)])),
        seed("up-head", edits(0, &[(control + 512 + 384, 40)])),
        seed("down-head", edits(0, &[(seat, 77)])),
        seed("up-tail", edits(0, &[(seat + 128, 65)])),
        seed("up-tail-back", edits(0, &[(seat + 128, 0xffff_ffff)])),
        seed("up-empty-cell", edits(0, &[(seat + 128, 1)])),
        seed(
            "up-action",
            edits(
                0,
                &[
                    (seat + 4096, 2 | 1 << 32),
                    (seat + 4096 + 8, 2),
                    (seat + 4096 + 16, 1 << 32),
                    (seat + 4096 + 24, 16 << 32),
                    (seat + 128, 1),
                ],
            ),
        ),
        seed(
            "up-record",
            edits(0, &[(seat + 4096, 3 | 3 << 16), (seat + 4096 + 64, 0x01_0103), (seat + 128, 1)]),
        ),
        seed("down-cell", edits(0, &[(down, u64::MAX), (down + 8, u64::MAX)])),
        seed("statistics", edits(0, &[(24_576, u64::MAX), (24_576 + 4096, u64::MAX)])),
        seed("errors", edits(0, &[(73_728, u64::MAX), (73_736, u64::MAX), (73_744, u64::MAX)])),
    ]
}

fn descriptors() -> Vec<Seed> {
    let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<u8>>();
    let (push, pop, store) = (2, 3, 5);
    let tail = |to: u64| to << 8;
    let head = |to: u64| to << 8 | 1;
    let mut seeds = vec![
        seed("observation", words(&[1 | 1 << 32, 5, 1 << 32, 4096 | 100 << 32, 1, 2, 3, 0])),
        seed("action", words(&[2 | 1 << 32, 5, 1 << 32, 7 << 32, 1, 2, 0, 0])),
        seed("redelivered-empty", words(&[1 | 3 << 8, 5, 1 << 32, 4096, 1, 2, 3, 0])),
        seed("no-kind", words(&[0; 8])),
        seed("all-ones", words(&[u64::MAX; 8])),
        seed("unknown-flags", words(&[1 | 4 << 8, 0, 0, 0, 0, 0, 0, 0])),
        seed("record-too-long", words(&[3 | 385 << 16, 0, 0, 0, 0, 0, 0, 0])),
        seed("record-longest", words(&[3 | 384 << 16, 0, 0, 0, 0, 0, 0, 0])),
        seed("ring-push-pop", words(&[push, pop, push, push, pop, pop])),
        seed("ring-full", words(&[push, push, push, push, push, pop, push])),
        seed("ring-tail-far", words(&[tail(5), pop])),
        seed("ring-tail-back", words(&[push, pop, tail(0), pop])),
        seed("ring-tail-wrapped", words(&[tail(0xffff_ffff), pop])),
        seed("ring-head-far", words(&[head(9), push])),
        seed("ring-head-back", words(&[push, pop, push, head(0xffff_fffe), push, push, push, push])),
        seed("ring-empty-cell", words(&[tail(1), pop])),
        seed("ring-spoilt-cell", words(&[push, store | 9 << 3, pop, pop])),
        seed("ring-around", words(&[push, pop].repeat(9))),
    ];
    for (name, record) in [
        ("record-ready", &[0][..]),
        ("record-failed", &[2, 5, 1, b'x']),
        ("record-released", &[3, 1, 1]),
        ("record-variant", &[9]),
        ("record-varint-without-end", &[3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ("record-text-past-the-end", &[2, 5, 200, b'x']),
        ("record-text-that-is-none", &[2, 5, 2, 0xff, 0xfe]),
        ("record-session", &[1, 1, b's', 1, 0]),
    ] {
        seeds.push(seed(name, record));
    }
    seeds
}
