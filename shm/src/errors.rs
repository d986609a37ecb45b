//! The log of distinct errors: each text once, with how often, first and last time.
//!
//! Ten million repeats stay one record, and the log survives any crash because it lies in the region. Written by the
//! sidecar alone; a record's text never changes once its length is there, so that readers need no lock. When all
//! records are taken, or twelve by one kind (a peer can put what it likes into some texts), further new texts count in
//! the last one.
//!
//! | offset in a record of 256 bytes | type | what |
//! |---|---|---|
//! | 0 | u32 | bytes of the text, stored last; 0: the record is free |
//! | 4 | u32 | kind, the caller's number |
//! | 8 | u64 | count |
//! | 16 | u64 | first time, ns of CLOCK_BOOTTIME |
//! | 24 | u64 | last time |
//! | 32 | 224 bytes | text, UTF-8 |

use std::sync::Arc;

use sidecar_core::time::Instant;
use sidecar_core::tunnel::clip;

use crate::layout::{ERRORS, ERRORS_BYTES};
use crate::map::Map;
use crate::sync::Ordering;

const RECORD: usize = 256;
const TEXT: usize = 32;
const MAX_TEXT: usize = RECORD - TEXT;
const RECORDS: usize = ERRORS_BYTES / RECORD;
/// So that neither a gateway nor a worker fills the log with its own words.
const MOST_OF_A_KIND: usize = 12;
/// Text of the last record, which stands for all that found no record of their own.
const OVERFLOW: &str = "further distinct errors, for which the log has no room";

/// Kind of the errors that this library notes itself: a worker was detached because of nonsense in its pages. Callers
/// number theirs from 1.
pub const KIND_POISONED: u16 = 0;

/// One distinct error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ErrorRecord {
    /// The caller's number for the kind of error.
    pub kind: u16,
    /// What happened; longer texts were cut to 224 bytes.
    pub text: String,
    /// How often.
    pub count: u64,
    /// First time.
    pub first: Instant,
    /// Last time.
    pub last: Instant,
}

/// The owner's side of the log.
#[derive(Clone, Debug)]
pub struct ErrorLog {
    map: Arc<Map>,
    /// Has one writer: not to be shared between threads.
    _one_thread: core::marker::PhantomData<core::cell::Cell<()>>,
}

impl ErrorLog {
    pub(crate) const fn new(map: Arc<Map>) -> Self {
        Self { map, _one_thread: core::marker::PhantomData }
    }

    /// Notes an error: a new record (`true`: worth a line in a log), or one more of the same kind and text. Nothing
    /// secret may be in the text.
    pub fn note(&self, kind: u16, text: &str, now: Instant) -> bool {
        let text = clip::<MAX_TEXT>(text);
        // Length 0 means a free record.
        let text = if text.is_empty() { "(no text)" } else { text.as_str() };
        let mut of_this_kind = 0;
        for index in 0..RECORDS - 1 {
            let length = self.map.word32(at(index)).load(Ordering::Relaxed);
            if length == 0 && of_this_kind < MOST_OF_A_KIND {
                self.write(index, kind, text, now);
                return true;
            }
            if length == 0 {
                break;
            }
            if self.map.word32(at(index) + 4).load(Ordering::Relaxed) != u32::from(kind) {
                continue;
            }
            if length as usize == text.len() && read_text(&self.map, index, length) == text.as_bytes() {
                self.again(index, now);
                return false;
            }
            of_this_kind += 1;
        }
        if self.map.word32(at(RECORDS - 1)).load(Ordering::Relaxed) == 0 {
            self.write(RECORDS - 1, 0, OVERFLOW, now);
        } else {
            self.again(RECORDS - 1, now);
        }
        false
    }

    /// All records, in the order of their first time.
    pub fn records(&self) -> Vec<ErrorRecord> {
        read(&self.map)
    }

    fn write(&self, index: usize, kind: u16, text: &str, now: Instant) {
        let start = at(index);
        self.map.word32(start + 4).store(u32::from(kind), Ordering::Relaxed);
        self.map.word64(start + 8).store(1, Ordering::Relaxed);
        self.map.word64(start + 16).store(now.as_nanos(), Ordering::Relaxed);
        self.map.word64(start + 24).store(now.as_nanos(), Ordering::Relaxed);
        for (word, chunk) in text.as_bytes().chunks(8).enumerate() {
            let mut bytes = [0; 8];
            bytes[..chunk.len()].copy_from_slice(chunk);
            self.map.word64(start + TEXT + word * 8).store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        // Partner: the acquire load in `read`. At most MAX_TEXT.
        self.map.word32(start).store(text.len() as u32, Ordering::Release);
    }

    fn again(&self, index: usize, now: Instant) {
        let count = self.map.word64(at(index) + 8);
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.map.word64(at(index) + 24).store(now.as_nanos(), Ordering::Relaxed);
    }
}

/// All records of a region.
pub(crate) fn read(map: &Map) -> Vec<ErrorRecord> {
    let mut records = Vec::new();
    for index in 0..RECORDS {
        let start = at(index);
        // Partner: the release store in `write`.
        let length = map.word32(start).load(Ordering::Acquire);
        if length == 0 || length as usize > MAX_TEXT {
            continue;
        }
        records.push(ErrorRecord {
            // Written from a u16.
            kind: map.word32(start + 4).load(Ordering::Relaxed) as u16,
            text: String::from_utf8_lossy(&read_text(map, index, length)).into_owned(),
            count: map.word64(start + 8).load(Ordering::Relaxed),
            first: Instant::from_nanos(map.word64(start + 16).load(Ordering::Relaxed)),
            last: Instant::from_nanos(map.word64(start + 24).load(Ordering::Relaxed)),
        });
    }
    records
}

const fn at(index: usize) -> usize {
    ERRORS + index * RECORD
}

fn read_text(map: &Map, index: usize, length: u32) -> Vec<u8> {
    let length = (length as usize).min(MAX_TEXT);
    let mut bytes = Vec::with_capacity(MAX_TEXT);
    for word in 0..length.div_ceil(8) {
        let word = map.word64(at(index) + TEXT + word * 8).load(Ordering::Relaxed);
        bytes.extend_from_slice(&word.to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests;
