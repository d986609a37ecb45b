//! The header is what cbindgen makes of the sources, and nothing else. To accept a new one:
//! `SIDECAR_ACCEPT_HEADER=1 cargo test --package sidecar-c --test header`.

use core::fmt::Write as _;
use std::path::Path;

use cbindgen::{Builder, Config, DocumentationStyle, Language, Style};
use sidecar_c::status::{ABI_MAJOR, ABI_MINOR, sidecar_abi_version, sidecar_status_name};

/// In the order in which a reader meets them.
const SOURCES: &[&str] = &[
    "agent/src/status.rs",
    "src/failure.rs",
    "src/worker.rs",
    "src/observation.rs",
    "src/answer.rs",
    "src/device.rs",
    "agent/src/config.rs",
    "agent/src/event.rs",
    "agent/src/agent.rs",
    "agent/src/stream.rs",
];

/// Rust's names for types and C's, before the prefix.
const NAMES: &[(&str, &str)] = &[
    ("Worker", "worker"),
    ("WorkerOptions", "worker_options"),
    ("WorkerEvent", "worker_event"),
    ("WorkerInfo", "worker_info"),
    ("Observation", "observation"),
    ("ObservationView", "observation_view"),
    ("Reservation", "reservation"),
    ("Failure", "failure"),
    ("Agent", "agent"),
    ("AgentConfig", "agent_config"),
    ("AgentResume", "agent_resume"),
    ("AgentEvent", "agent_event"),
    ("AgentState", "agent_state"),
    ("ReadPlace", "read"),
];

const TOP: &str = include_str!("header_top.h");
const ACCEPT: &str = "SIDECAR_ACCEPT_HEADER";

#[test]
fn the_header_is_fresh() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = root.join("include/sidecar.h");
    let fresh = header(root);
    if std::env::var_os(ACCEPT).is_some_and(|value| value == "1") {
        std::fs::write(&place, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&place).unwrap_or_default();
    let differs = committed.lines().zip(fresh.lines()).position(|(old, new)| old != new);
    assert!(
        committed == fresh,
        "include/sidecar.h is not what the sources say, from line {} on; accept the new one with {ACCEPT}=1",
        differs.map_or_else(|| committed.lines().count().min(fresh.lines().count()) + 1, |line| line + 1)
    );
}

#[test]
fn header_library_and_source_agree_on_the_version() {
    let header = header(Path::new(env!("CARGO_MANIFEST_DIR")));
    let value = |name: &str| -> u32 {
        let line = header.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
        line.unwrap_or_else(|| panic!("no {name} in the header")).parse().unwrap()
    };
    let (major, minor) = (value("sidecar_ABI_MAJOR"), value("sidecar_ABI_MINOR"));
    assert_eq!((major, minor), (ABI_MAJOR, ABI_MINOR));
    assert_eq!(sidecar_abi_version(), major << 16 | minor);
}

#[test]
fn each_status_has_its_name_and_no_other_number_has_one() {
    let header = header(Path::new(env!("CARGO_MANIFEST_DIR")));
    let name_of = |status: i32| {
        // SAFETY: the function returns a static text that NUL ends.
        let name = unsafe { core::ffi::CStr::from_ptr(sidecar_status_name(status)) };
        name.to_str().unwrap()
    };
    let status = include_str!("../agent/src/status.rs");
    let mut numbers = Vec::new();
    for line in status.lines().filter_map(|line| line.strip_prefix("pub const ")) {
        let Some((name, value)) = line.split_once(": i32 = ") else { continue };
        let value: i32 = value.trim_end_matches(';').parse().unwrap();
        assert_eq!(name_of(value), name);
        let written = if value < 0 { format!("({value})") } else { value.to_string() };
        assert!(header.contains(&format!("#define sidecar_{name} {written}\n")), "{name}");
        assert!(!numbers.contains(&value), "{value} twice");
        numbers.push(value);
    }
    assert_eq!(numbers.len(), 27);
    for other in (-1000..1000).filter(|number| !numbers.contains(number)) {
        assert_eq!(name_of(other), "an unknown status");
    }
}

fn header(root: &Path) -> String {
    let mut builder = Builder::new().with_config(config());
    for source in SOURCES {
        builder = builder.with_src(root.join(source));
    }
    let mut text = Vec::new();
    builder.generate().expect("cbindgen reads our sources").write(&mut text);
    polish(&String::from_utf8(text).unwrap())
}

fn config() -> Config {
    let mut config = Config {
        language: Language::C,
        style: Style::Tag,
        header: Some(format!("{}\n\n#ifndef SIDECAR_H\n#define SIDECAR_H", TOP.trim_end())),
        no_includes: true,
        sys_includes: vec!["stddef.h".to_owned(), "stdint.h".to_owned()],
        cpp_compat: true,
        usize_is_size_t: true,
        documentation_style: DocumentationStyle::C99,
        line_length: 110,
        after_includes: Some("\n/* Marks what changes hands with a call. */\n#define sidecar_OWN".to_owned()),
        trailer: Some(format!("{}\n\n#endif /* SIDECAR_H */", sizes())),
        ..Config::default()
    };
    config.export.prefix = Some("sidecar_".to_owned());
    config.export.rename = NAMES.iter().map(|(rust, c)| ((*rust).to_owned(), (*c).to_owned())).collect();
    config
}

/// What cbindgen has no word for: what is owned, handles that are marked, names in comments, negative macros.
fn polish(text: &str) -> String {
    let mut polished = text.replace("*own_", "*sidecar_OWN ");
    for (_, name) in NAMES {
        polished =
            polished.replace(&format!("sidecar_Marked<sidecar_{name}>"), &format!("struct sidecar_{name}"));
    }
    let lines = polished.lines().map(|line| {
        match line.strip_prefix("#define ").and_then(|rest| rest.split_once(" -")) {
            Some((name, number)) => format!("#define {name} (-{number})\n"),
            None => format!("{}\n", with_prefixes(line)),
        }
    });
    lines.collect()
}

/// Rust's constants have no prefix; in a comment of the header they get it.
fn with_prefixes(line: &str) -> String {
    let Some((code, comment)) = line.split_once("// ") else { return line.to_owned() };
    let mut pieces = comment.split('`');
    let mut whole = format!("{code}// {}", pieces.next().unwrap_or_default());
    for (at, piece) in pieces.enumerate() {
        let is_name =
            at % 2 == 0 && piece.len() > 1 && piece.chars().take(2).all(|letter| letter.is_ascii_uppercase());
        whole.push('`');
        whole.push_str(if is_name { "sidecar_" } else { "" });
        whole.push_str(piece);
    }
    whole
}

/// Assertions for compilers that have them: the structs are those that the library was built with.
fn sizes() -> String {
    use sidecar_c::{agent, config, event, failure, observation, stream, worker};
    let sizes = [
        ("failure", size_of::<failure::Failure>()),
        ("worker_options", size_of::<worker::WorkerOptions>()),
        ("worker_event", size_of::<worker::WorkerEvent>()),
        ("worker_info", size_of::<worker::WorkerInfo>()),
        ("observation_view", size_of::<observation::ObservationView>()),
        ("agent_config", size_of::<config::AgentConfig>()),
        ("agent_resume", size_of::<config::AgentResume>()),
        ("agent_event", size_of::<event::AgentEvent>()),
        ("agent_state", size_of::<agent::AgentState>()),
        ("read", size_of::<stream::ReadPlace>()),
    ];
    let mut text = String::from(
        "#if defined(__cplusplus) && __cplusplus >= 201103L\n\
         #define sidecar_ASSERT_SIZE(type, size) static_assert(sizeof(type) == (size), #type)\n\
         #elif defined(__STDC_VERSION__) && __STDC_VERSION__ >= 201112L\n\
         #define sidecar_ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type)\n\
         #endif\n\
         #if defined(sidecar_ASSERT_SIZE) && UINTPTR_MAX == UINT64_MAX\n",
    );
    for (name, size) in sizes {
        writeln!(text, "sidecar_ASSERT_SIZE(struct sidecar_{name}, {size});").unwrap();
    }
    text.push_str("#endif\n#undef sidecar_ASSERT_SIZE");
    text
}
