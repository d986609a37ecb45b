//! See `sidecar_fuzz_bodies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sidecar_fuzz_bodies::handshake::run(bytes));
