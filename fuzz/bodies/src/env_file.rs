//! State files and the values in them: any text is read, and nothing of it gets where it does not belong.

use sidecar::config::{EnvFile, parse_endpoint, parse_job};

/// The target's body.
pub fn run(bytes: &[u8]) {
    // A file that is no text is an error of reading, before the parser.
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let file = EnvFile::parse(text);
    for name in ["JOB_TOKEN", "CHALLENGE_TOKEN", "JOB_UUID", "TUNNEL_ENDPOINT", "A"] {
        let Some(value) = file.value(name) else { continue };
        assert!(!value.is_empty() && text.contains(name));
        assert!(!value.contains('\n'), "a value is a part of one line");
        // The same, written plainly by somebody else.
        if !value.contains(['\'', '\r']) {
            let again = EnvFile::parse(&format!("export {name}='{value}'\n"));
            assert_eq!(again.value(name), Some(value));
        }
        let _ = parse_job(value);
        if let Ok(target) = parse_endpoint(value) {
            assert!(
                !target.endpoint.host.contains(['\r', '\n', ' ']),
                "{:?} in a request",
                target.endpoint.host
            );
            assert!(
                !target.endpoint.path.contains(['\r', '\n', ' ']),
                "{:?} in a request",
                target.endpoint.path
            );
        }
    }
    // Later lines win, so the end of a file decides.
    let last = EnvFile::parse(&format!("{text}\nA=last"));
    assert_eq!(last.value("A"), Some("last"));
}
