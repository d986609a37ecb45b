//! The tunnel protocol as a pure state machine.
#![no_std]
#![forbid(unsafe_code)]
