//! The journal: what a restarted sidecar must know, written by the sidecar alone.
//!
//! It lies at offset 0 and its form is independent of the rest of the layout, so that a sidecar of a later layout
//! still reads it. Small records in two copies (see `words`) are rewritten as things happen: a frame costs a
//! handful of them, tens of nanoseconds. The words that change with each byte or frame and mean nothing together with
//! others (last byte, next sequence) are plain words.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 8 | magic `sidecarJ` |
//! | 8 | 4 | version |
//! | 64 | 8 | when the last byte came from the gateway, ns of CLOCK_BOOTTIME; 0: never |
//! | 128 | 8 | sequence that the next observation gets |
//! | 512 | 2 x 512 | main: job and endpoint hash, boot id, flags, epoch, owner, agent id, session id |
//! | 1,536 | 16 x 2 x 32 | actions: sequence, started or sent; used in turn |
//! | 2,560 | 2 x 2 x 64 | seats: generation, standing, pid and start time of the worker |
//! | 3,072 | 32 x 2 x 96 | slots: what lies in them, answered, in whose hands |
//! | 9,216 | 7,168 | the action that was started last, with its payload unless that is longer |
//!
//! Promises kept with it: an action of which sending was started counts as sent ([`Journal::action_started`] comes
//! before the kernel gets the first byte); an observation that nobody answered is still known after any crash.

mod last_action;
mod past;
mod state;
mod words;

use std::sync::Arc;

use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};

use crate::crash::{Point, point};
use crate::layout::{MAX_OBSERVATION_SLOTS, SEATS};
use crate::map::Map;
use crate::sync::Ordering;
pub use last_action::{LONGEST_KEPT, LastAction};
pub(crate) use past::{Past, Unreadable, read_main};
pub(crate) use state::{Main, Progress, SeatRecord, SlotRecord, Standing};
use words::{Read, Record};

/// First eight bytes of the file.
pub(crate) const JOURNAL_MAGIC: u64 = u64::from_le_bytes(*b"sidecarJ");
/// Version of the journal's own form.
pub(crate) const JOURNAL_VERSION: u32 = 2;
/// Actions go out one after the other, so the last few are all that can matter.
const ACTION_RECORDS: usize = 16;

/// Offsets in the journal.
pub(crate) mod place {
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const LAST_BYTE: usize = 64;
    pub(crate) const NEXT_SEQUENCE: usize = 128;
    pub(crate) const MAIN: usize = 512;
    pub(crate) const ACTIONS: usize = 1536;
    pub(crate) const SEATS: usize = 2560;
    pub(crate) const SLOTS: usize = 3072;
    pub(crate) const LAST_ACTION: usize = 9216;
}

type MainRecord = Record<{ Main::WORDS }>;
type ActionRecord = Record<2>;
type SeatWords = Record<{ SeatRecord::WORDS }>;
type SlotWords = Record<{ SlotRecord::WORDS }>;

const fn action_offset(index: usize) -> usize {
    place::ACTIONS + index * ActionRecord::BYTES
}

const fn seat_offset(index: usize) -> usize {
    place::SEATS + index * SeatWords::BYTES
}

const fn slot_offset(index: usize) -> usize {
    place::SLOTS + index * SlotWords::BYTES
}

const _: () = {
    assert!(place::MAIN + MainRecord::BYTES == place::ACTIONS);
    assert!(action_offset(ACTION_RECORDS) == place::SEATS);
    assert!(seat_offset(SEATS) <= place::SLOTS);
    assert!(slot_offset(MAX_OBSERVATION_SLOTS as usize) <= place::LAST_ACTION);
    assert!(ActionRecord::BYTES == 64 && SeatWords::BYTES == 128 && SlotWords::BYTES == 192);
};

/// Writes the journal of the region that this process owns.
#[derive(Debug)]
pub struct Journal {
    map: Arc<Map>,
    main: Main,
    main_record: MainRecord,
    actions: [ActionRecord; ACTION_RECORDS],
    /// Sequence of the action in each record; `u64::MAX` where there is none.
    action_sequences: [u64; ACTION_RECORDS],
    /// Record of the action that was started last.
    action: usize,
    seats: [SeatWords; SEATS],
    slots: [SlotWords; MAX_OBSERVATION_SLOTS as usize],
}

impl Journal {
    /// Starts a journal in blank memory, or goes on with the one that is there, under a new main record.
    pub(crate) fn write(map: Arc<Map>, main: Main) -> Self {
        let (main_record, _) = MainRecord::open(&map, place::MAIN);
        let mut action_sequences = [u64::MAX; ACTION_RECORDS];
        let actions = core::array::from_fn(|index| {
            let (record, read) = ActionRecord::open(&map, action_offset(index));
            if let Read::Words([sequence, _]) = read {
                action_sequences[index] = sequence;
            }
            record
        });
        // Goes on after the highest sequence, so that the next action overwrites the oldest record.
        let newest = (0..ACTION_RECORDS)
            .filter(|index| action_sequences[*index] != u64::MAX)
            .max_by_key(|index| action_sequences[*index]);
        let mut journal = Self {
            main_record,
            actions,
            action_sequences,
            action: newest.unwrap_or(ACTION_RECORDS - 1),
            seats: core::array::from_fn(|index| SeatWords::open(&map, seat_offset(index)).0),
            slots: core::array::from_fn(|index| SlotWords::open(&map, slot_offset(index)).0),
            main,
            map,
        };
        journal.write_main();
        journal.map.word32(place::VERSION).store(JOURNAL_VERSION, Ordering::Relaxed);
        journal.map.word64(place::MAGIC).store(JOURNAL_MAGIC, Ordering::Release);
        journal
    }

    /// A byte came from the gateway. One plain store: call it for every receive.
    pub fn note_byte(&mut self, now: Instant) {
        point(Point::JournalBefore);
        self.map.word64(place::LAST_BYTE).store(now.as_nanos().max(1), Ordering::Relaxed);
        point(Point::JournalAfter);
    }

    /// The gateway accepted the connection of this agent id for the first time.
    pub fn connected(&mut self) {
        self.set(|main| &mut main.connected);
    }

    /// The gateway asked for the warm-up (tunnel contract A.4).
    pub fn warmup_seen(&mut self) {
        self.set(|main| &mut main.warmup_seen);
    }

    /// `ready` left for the gateway.
    pub fn ready_sent(&mut self) {
        self.set(|main| &mut main.ready_sent);
    }

    /// The gateway did what it does after `ready` only.
    pub fn ready_heard(&mut self) {
        self.set(|main| &mut main.ready_heard);
    }

    /// The gateway told us to drain: no redial will follow.
    pub fn drain_seen(&mut self) {
        self.set(|main| &mut main.drain_seen);
    }

    /// A session opened, also one that takes the place of another.
    pub fn session_opened(&mut self, session: &SessionId, epoch: Epoch) {
        self.main.session = Some(session.clone());
        self.main.closed = None;
        self.main.epoch = epoch;
        self.write_main();
    }

    /// The open session is over. `by_us`: the gateway may not hear of it before this process dies.
    pub fn session_closed(&mut self, by_us: bool) {
        self.main.closed = self.main.session.take().filter(|_| by_us);
        self.write_main();
    }

    /// This action is about to be started: what a successor needs to send it once more.
    pub fn last_action(&mut self, action: &LastAction<&[u8]>) {
        action.write(&self.map);
    }

    /// Bytes of the action for this observation are about to be given to the kernel: from now on it counts as sent.
    pub fn action_started(&mut self, sequence: u64) {
        if self.action_sequences[self.action] != sequence {
            self.action = (self.action + 1) % ACTION_RECORDS;
            self.action_sequences[self.action] = sequence;
        }
        self.write_action(Progress::Started);
    }

    /// The last byte of the action that was started for this observation went to the kernel.
    pub fn action_sent(&mut self, sequence: u64) {
        if self.action_sequences[self.action] == sequence {
            self.write_action(Progress::Sent);
        }
    }

    /// Goes on under another agent id: what was known of the connection belonged to the old one.
    pub fn agent(&mut self, agent: &AgentId) {
        self.main.agent = agent.clone();
        self.main.forget_connection();
        self.map.word64(place::LAST_BYTE).store(0, Ordering::Relaxed);
        self.write_main();
    }

    /// The number that the next observation gets. Slots note it for those that they hold.
    pub fn next_sequence(&mut self, sequence: u64) {
        point(Point::JournalBefore);
        self.map.word64(place::NEXT_SEQUENCE).store(sequence, Ordering::Relaxed);
        point(Point::JournalAfter);
    }

    /// The session that a dead sidecar left does not go on: its last byte was another agent's. Sequences and epochs are
    /// never taken back within a file, since workers that live on know the old ones.
    pub(crate) fn forget_last_byte(map: &Map) {
        map.word64(place::LAST_BYTE).store(0, Ordering::Release);
    }

    /// In another file, goes on from where the last journal ended.
    pub(crate) fn go_on_from(&mut self, past: &Past) {
        self.next_sequence(past.next_sequence);
        if let Some(action) = &past.last_action {
            self.last_action(&action.borrowed());
            if past.started(action.sequence) {
                self.action_started(action.sequence);
            }
        }
        if let Some(last_byte) = past.last_byte {
            self.note_byte(last_byte);
        }
    }

    pub(crate) fn slot(&mut self, index: usize, record: &SlotRecord) {
        self.slots[index].write(&self.map, &record.to_words());
    }

    pub(crate) fn seat(&mut self, index: usize, record: &SeatRecord) {
        self.seats[index].write(&self.map, &record.to_words());
    }

    pub(crate) const fn main(&self) -> &Main {
        &self.main
    }

    fn set(&mut self, flag: impl Fn(&mut Main) -> &mut bool) {
        let flag = flag(&mut self.main);
        if !*flag {
            *flag = true;
            self.write_main();
        }
    }

    fn write_action(&mut self, progress: Progress) {
        let words = [self.action_sequences[self.action], progress.to_word()];
        self.actions[self.action].write(&self.map, &words);
    }

    fn write_main(&mut self) {
        self.main_record.write(&self.map, &self.main.to_words());
    }
}

/// Makes every checksum of a journal right again.
#[cfg(feature = "fuzzing")]
pub(crate) fn reseal(map: &Map) {
    MainRecord::reseal(map, place::MAIN);
    (0..ACTION_RECORDS).for_each(|index| ActionRecord::reseal(map, action_offset(index)));
    (0..SEATS).for_each(|index| SeatWords::reseal(map, seat_offset(index)));
    (0..MAX_OBSERVATION_SLOTS as usize).for_each(|index| SlotWords::reseal(map, slot_offset(index)));
}

#[cfg(test)]
mod tests;
