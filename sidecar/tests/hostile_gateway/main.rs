//! Gateways that mean no good, against the real sidecar: everything malformed in `corpus`, everything without end in
//! `floods`.

#[path = "../support/mod.rs"]
mod support;

mod corpus;
mod floods;
mod wire;
