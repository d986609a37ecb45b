//! What a developer and CI run.
fn main() {}
