//! See `sidecar_fuzz_bodies`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sidecar_fuzz_bodies::env_file::run(bytes));
