//! A rehearsal gateway.
