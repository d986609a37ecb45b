//! The agent as its caller sees it: a scripted gateway at the level of bytes, memory in vectors, time by hand.

#![allow(missing_docs, reason = "a test binary has no readers of documentation")]

mod ending;
mod fuzz;
mod handshake;
mod heartbeat;
mod placement;
mod redial;
mod rig;
mod rules;
mod sessions;
mod stream;
