//! What a dead sidecar's journal says, read once and checked whole before any of it is believed.
//!
//! It decides nothing: whether the session goes on is [`crate::region`]'s business, which slots are still held is the
//! ledger's.

use core::str;

use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};

use super::words::{Read, Record};
use super::{
    ACTION_RECORDS, LastAction, Main, MainRecord, Progress, SeatRecord, SlotRecord, action_offset, place,
    seat_offset, slot_offset,
};
use crate::layout::{MAX_OBSERVATION_SLOTS, SEATS};
use crate::map::Map;
use crate::sync::Ordering;

/// No gateway comes that far; a journal that says so is forged, and counting on from there would end.
const MOST_SEQUENCES: u64 = u64::MAX / 2;

/// Everything that a journal holds.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) main: Main,
    pub(crate) last_byte: Option<Instant>,
    pub(crate) next_sequence: u64,
    pub(crate) last_action: Option<LastAction>,
    pub(crate) slots: [SlotRecord; MAX_OBSERVATION_SLOTS as usize],
    pub(crate) seats: [SeatRecord; SEATS],
    actions: [Option<(u64, Progress)>; ACTION_RECORDS],
}

/// Why a journal can't be believed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("its journal does not start with the journal's magic number")]
    Magic,
    #[error("its journal has version {0}, this sidecar reads version {own}", own = super::JOURNAL_VERSION)]
    Version(u32),
    #[error("the {0} record of its journal is damaged")]
    Damaged(&'static str),
}

impl Past {
    /// Reads and checks the journal of a region that nobody owns any more.
    pub(crate) fn read(map: &Map) -> Result<Self, Unreadable> {
        if map.word64(place::MAGIC).load(Ordering::Relaxed) != super::JOURNAL_MAGIC {
            return Err(Unreadable::Magic);
        }
        let version = map.word32(place::VERSION).load(Ordering::Relaxed);
        if version != super::JOURNAL_VERSION {
            return Err(Unreadable::Version(version));
        }
        let (_, main) = MainRecord::open(map, place::MAIN);
        // A journal without a main record was never finished: the file got its name only afterwards.
        let Read::Words(main) = main else { return Err(Unreadable::Damaged("main")) };
        let main = Main::from_words(&main).ok_or(Unreadable::Damaged("main"))?;

        let mut slots = [SlotRecord::FREE; MAX_OBSERVATION_SLOTS as usize];
        for (index, slot) in slots.iter_mut().enumerate() {
            *slot = match Record::open(map, slot_offset(index)).1 {
                Read::Blank => SlotRecord::FREE,
                Read::Corrupt => return Err(Unreadable::Damaged("slot")),
                Read::Words(words) => SlotRecord::from_words(&words),
            };
        }
        let mut seats = [SeatRecord::EMPTY; SEATS];
        for (index, seat) in seats.iter_mut().enumerate() {
            *seat = match Record::open(map, seat_offset(index)).1 {
                Read::Blank => SeatRecord::EMPTY,
                Read::Corrupt => return Err(Unreadable::Damaged("seat")),
                Read::Words(words) => SeatRecord::from_words(&words).ok_or(Unreadable::Damaged("seat"))?,
            };
        }
        let mut actions = [None; ACTION_RECORDS];
        for (index, action) in actions.iter_mut().enumerate() {
            *action = match Record::<2>::open(map, action_offset(index)).1 {
                Read::Blank => None,
                Read::Corrupt => return Err(Unreadable::Damaged("action")),
                Read::Words([sequence, progress]) => {
                    Some((sequence, Progress::from_word(progress).ok_or(Unreadable::Damaged("action"))?))
                }
            };
        }
        let last_byte = match map.word64(place::LAST_BYTE).load(Ordering::Relaxed) {
            0 => None,
            nanos => Some(Instant::from_nanos(nanos)),
        };
        let noted = map.word64(place::NEXT_SEQUENCE).load(Ordering::Relaxed);
        let next_sequence = slots
            .iter()
            .filter(|slot| slot.held)
            .map(|slot| slot.sequence)
            .chain(actions.iter().flatten().map(|(sequence, _)| *sequence))
            .map(|sequence| sequence.saturating_add(1))
            .fold(noted, u64::max);
        if next_sequence > MOST_SEQUENCES {
            return Err(Unreadable::Damaged("sequence"));
        }
        let last_action = LastAction::read(map);
        Ok(Self { main, last_byte, next_sequence, last_action, slots, seats, actions })
    }

    /// The last action of the open session, if nothing has come since: a cut may have swallowed it.
    pub(crate) fn unacknowledged(&self) -> Option<&LastAction> {
        let last = self.last_action.as_ref()?;
        let newest = self.next_sequence == last.sequence.saturating_add(1);
        let open = self.main.session.is_some() && self.main.epoch == last.epoch;
        (newest && open && self.started(last.sequence)).then_some(last)
    }

    /// Whether an action for this observation may have reached the network: then it counts as sent.
    pub(crate) fn started(&self, sequence: u64) -> bool {
        self.actions.iter().flatten().any(|(of, _)| *of == sequence)
    }

    /// How far the last action for this observation came, if any was started.
    #[cfg(test)]
    pub(super) fn progress(&self, sequence: u64) -> Option<Progress> {
        self.actions.iter().flatten().filter(|(of, _)| *of == sequence).map(|(_, progress)| *progress).max()
    }
}

/// The main record of a region that may be alive: `None` while both copies are being rewritten, which a reader that
/// is slow enough can meet.
pub(crate) fn read_main(map: &Map) -> Option<Main> {
    match MainRecord::open(map, place::MAIN).1 {
        Read::Words(words) => Main::from_words(&words),
        Read::Blank | Read::Corrupt => None,
    }
}

/// Reads length-prefixed text out of a record's bytes.
fn text(bytes: &[u8], length: usize) -> Option<&str> {
    str::from_utf8(bytes.get(..length)?).ok()
}

impl Main {
    /// Words of the main record's payload.
    pub(super) const WORDS: usize = 62;

    /// The fixed form: see the table in [`super`].
    pub(super) fn to_words(&self) -> [u64; Self::WORDS] {
        let mut bytes = [0; Self::WORDS * 8];
        bytes[..32].copy_from_slice(&self.job_endpoint_hash);
        bytes[32..48].copy_from_slice(&self.boot);
        let flags = [
            self.connected,
            self.warmup_seen,
            self.ready_sent,
            self.drain_seen,
            self.session.is_some(),
            self.ready_heard,
            self.closed.is_some(),
        ];
        let flags = flags.iter().rev().fold(0_u32, |all, flag| all << 1 | u32::from(*flag));
        bytes[48..52].copy_from_slice(&flags.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.epoch.0.to_le_bytes());
        bytes[56..60].copy_from_slice(&self.owner_pid.to_le_bytes());
        bytes[60..64].copy_from_slice(&self.owner_generation.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.owner_since.as_nanos().to_le_bytes());
        let agent = self.agent.as_str().as_bytes();
        // At most one of the two is there.
        let session = self.session.as_ref().or(self.closed.as_ref()).map_or("", SessionId::as_str).as_bytes();
        // Both lengths are bounded by their types: 64 and 256.
        bytes[72..74].copy_from_slice(&(agent.len() as u16).to_le_bytes());
        bytes[74..76].copy_from_slice(&(session.len() as u16).to_le_bytes());
        bytes[80..80 + agent.len()].copy_from_slice(agent);
        bytes[144..144 + session.len()].copy_from_slice(session);
        let mut words = [0; Self::WORDS];
        for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        words
    }

    /// Back from the fixed form. `None`: lengths or text are nonsense.
    pub(super) fn from_words(words: &[u64; Self::WORDS]) -> Option<Self> {
        let mut bytes = [0; Self::WORDS * 8];
        for (chunk, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *chunk = word.to_le_bytes();
        }
        let word32 = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let word16 = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
        let flags = word32(48);
        let flag = |bit: u32| flags >> bit & 1 == 1;
        let session = SessionId::new(text(&bytes[144..400], word16(74))?).ok()?;
        Some(Self {
            job_endpoint_hash: *bytes.first_chunk()?,
            boot: *bytes[32..].first_chunk()?,
            connected: flag(0),
            warmup_seen: flag(1),
            ready_sent: flag(2),
            ready_heard: flag(5),
            drain_seen: flag(3),
            closed: (flag(6) && !flag(4)).then(|| session.clone()),
            session: flag(4).then_some(session),
            epoch: Epoch(word32(52)),
            owner_pid: word32(56),
            owner_generation: word32(60),
            owner_since: Instant::from_nanos(u64::from_le_bytes(*bytes[64..].first_chunk()?)),
            agent: AgentId::new(text(&bytes[80..144], word16(72))?).ok()?,
        })
    }
}
