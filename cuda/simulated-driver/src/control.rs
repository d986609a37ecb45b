//! How a test talks to the driver that it loaded.
//!
//! | symbol | |
//! |---|---|
//! | `simulated_cuda_configure(const char *line)` | before `cuInit`; 0, or 1 if the line cannot be read |
//! | `simulated_cuda_report(char *into, size_t length)` | the report so far; gives its length, writes what fits |
//!
//! The report has a line for each fact: `violation: ...`, `leak: ...`, `calls: NAME N`; a copy whose host side was not
//! page-locked is counted as `pageable` besides.

use core::ffi::{CStr, c_char};
use core::fmt::Write as _;
use std::io::Write as _;

use crate::config::Config;
use crate::state;

/// See the module's text.
///
/// # Safety
/// `line` is a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_configure(line: *const c_char) -> u32 {
    // SAFETY: a C string, says the caller.
    let line = unsafe { CStr::from_ptr(line) };
    let Some(config) = line.to_str().ok().and_then(|line| Config::parse(line).ok()) else { return 1 };
    state::with(|state| state.config = Some(config));
    0
}

/// See the module's text.
///
/// # Safety
/// `into` is valid for writes of `length` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn simulated_cuda_report(into: *mut c_char, length: usize) -> usize {
    let report = report();
    let fits = report.len().min(length);
    // SAFETY: valid for `length` bytes, says the caller, and the report is ours.
    unsafe { core::ptr::copy_nonoverlapping(report.as_ptr(), into.cast::<u8>(), fits) };
    report.len()
}

fn report() -> String {
    state::with(|state| {
        let mut text = String::new();
        for violation in state.violations() {
            let _ = writeln!(text, "violation: {violation}");
        }
        for gone in state.memory.unmapped() {
            let _ = writeln!(text, "violation: {gone}");
        }
        for leak in state.leaks() {
            let _ = writeln!(text, "leak: {leak}");
        }
        for (name, count) in state.calls() {
            let _ = writeln!(text, "calls: {name} {count}");
        }
        text
    })
}

/// The configuration of this process, and its report at the end if one is asked for.
pub(crate) fn from_environment() -> Config {
    if std::env::var_os("SIMULATED_CUDA_REPORT").is_some() {
        // SAFETY: `at_end` is a function that neither panics nor unwinds.
        unsafe { libc::atexit(at_end) };
    }
    let line = std::env::var("SIMULATED_CUDA").unwrap_or_default();
    Config::parse(&line).unwrap_or_else(|part| {
        state_a_mistake(&part);
        Config { devices: 0, ..Config::default() }
    })
}

fn state_a_mistake(part: &str) {
    let _ = writeln!(std::io::stderr(), "SIMULATED_CUDA: `{part}` cannot be read; there are no devices");
}

extern "C" fn at_end() {
    let Some(path) = std::env::var_os("SIMULATED_CUDA_REPORT") else { return };
    let pid = std::process::id();
    let lines: String = report().lines().map(|line| format!("{pid} {line}\n")).collect();
    let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
    // One write, so that processes that end at once do not mix their lines; a test that misses them fails.
    let _ = file.and_then(|mut file| file.write_all(lines.as_bytes()));
}
