//! The fuzz targets' bodies: each takes bytes of any kind and panics when something that must hold does not. The targets
//! in `fuzz/fuzz_targets` only call them; `tests/corpus.rs` runs them over the corpora in `fuzz/corpus`, without any
//! fuzzer.
//!
//! | target | what the bytes are |
//! |---|---|
//! | [`stream`] | start state, seed of the splits, then what a gateway sends after its 101 |
//! | [`handshake`] | an answer to our upgrade request with [`handshake::KEY`] |
//! | [`control`] | seed of the splits, then a control frame's text |
//! | [`tunnel`] | seed of the splits, then a data message |
//! | [`env_file`] | a state file |
//! | [`region`](sidecar_shm::fuzzing::region) | edits of a dead sidecar's region |
//! | [`descriptors`](sidecar_shm::fuzzing::descriptors) | words that a peer writes into a ring |
//!
//! None of them needs to know what the right answer is, except where an independent parser can say it.

pub mod control;
pub mod env_file;
pub mod handshake;
mod split;
pub mod stream;
pub mod tunnel;

/// The two that look inside of the region.
pub mod shm {
    pub use sidecar_shm::fuzzing::{descriptors, region};
}

/// A target: its name, which is that of its corpus too, and its body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: [Target; 7] = [
    ("stream", stream::run),
    ("handshake", handshake::run),
    ("control", control::run),
    ("tunnel", tunnel::run),
    ("env_file", env_file::run),
    ("region", shm::region),
    ("descriptors", shm::descriptors),
];
