//! The values that the journal's records hold, as plain data with a fixed form of words.

use sidecar_core::time::Instant;
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};

use crate::layout::SEATS;
use crate::slots::Asker;

/// Who owns the region, for which job, and how far its tunnel has come.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Main {
    pub(crate) job_endpoint_hash: [u8; 32],
    /// Boot that the time stamps belong to.
    pub(crate) boot: [u8; 16],
    pub(crate) agent: AgentId,
    pub(crate) connected: bool,
    pub(crate) warmup_seen: bool,
    pub(crate) ready_sent: bool,
    pub(crate) ready_heard: bool,
    pub(crate) drain_seen: bool,
    pub(crate) session: Option<SessionId>,
    /// The last session, if none is open and we closed it: the gateway may not have heard.
    pub(crate) closed: Option<SessionId>,
    /// Of the session that is or was open.
    pub(crate) epoch: Epoch,
    pub(crate) owner_pid: u32,
    pub(crate) owner_since: Instant,
    pub(crate) owner_generation: u32,
}

impl Main {
    /// Nothing that belonged to an earlier agent id holds any more. The epoch stays: it only counts on.
    pub(crate) fn forget_connection(&mut self) {
        self.connected = false;
        self.warmup_seen = false;
        self.ready_sent = false;
        self.ready_heard = false;
        self.drain_seen = false;
        self.session = None;
        self.closed = None;
    }
}

/// How far an action has come on its way to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Progress {
    /// The first byte may have left.
    Started,
    /// All bytes have left.
    Sent,
}

impl Progress {
    pub(super) const fn to_word(self) -> u64 {
        match self {
            Self::Started => 1,
            Self::Sent => 2,
        }
    }

    pub(super) const fn from_word(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::Started),
            2 => Some(Self::Sent),
            _ => None,
        }
    }
}

/// Where a worker's seat stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    /// Nobody has it, and nobody can write its pages any more.
    Empty,
    /// The worker that gets observations.
    Live,
    /// Its connection ended; its process may still write.
    Dying,
    /// It wrote nonsense: nothing more is read from it.
    Poisoned,
}

/// A seat as the journal knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SeatRecord {
    pub(crate) standing: Standing,
    /// Observations may go to it.
    pub(crate) open: bool,
    pub(crate) generation: u32,
    /// For messages, and with the start time to find the process after a restart; 0 across pid namespaces.
    pub(crate) pid: u32,
    /// Clock ticks since boot; 0 if unknown.
    pub(crate) start_time: u64,
}

impl SeatRecord {
    pub(super) const WORDS: usize = 6;
    pub(crate) const EMPTY: Self =
        Self { standing: Standing::Empty, open: false, generation: 0, pid: 0, start_time: 0 };

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        let standing = match self.standing {
            Standing::Empty => 0,
            Standing::Live => 1,
            Standing::Dying => 2,
            Standing::Poisoned => 3,
        };
        [standing, u64::from(self.open), u64::from(self.generation), u64::from(self.pid), self.start_time, 0]
    }

    pub(super) const fn from_words(words: &[u64; Self::WORDS]) -> Option<Self> {
        let standing = match words[0] {
            0 => Standing::Empty,
            1 => Standing::Live,
            2 => Standing::Dying,
            3 => Standing::Poisoned,
            _ => return None,
        };
        Some(Self {
            standing,
            open: words[1] != 0,
            // The three were written from these types.
            generation: words[2] as u32,
            pid: words[3] as u32,
            start_time: words[4],
        })
    }
}

/// A slot as the journal knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SlotRecord {
    /// An observation lies in it, or a worker may still look at one that did.
    pub(crate) held: bool,
    pub(crate) asker: Asker,
    /// An action for it was sent, or its session is over.
    pub(crate) answered: bool,
    /// A worker's action for it was taken out of the worker's ring.
    pub(crate) taken: bool,
    /// It was given to some worker before, or nearly.
    pub(crate) seen: bool,
    /// Issued anew for each observation.
    pub(crate) generation: u32,
    pub(crate) epoch: Epoch,
    pub(crate) sequence: u64,
    /// Payload bytes.
    pub(crate) length: u32,
    /// Workers that died on it.
    pub(crate) deaths: u16,
    pub(crate) first_byte: Instant,
    pub(crate) last_byte: Instant,
    /// Times that it was handed to each seat's worker and not given back.
    pub(crate) lent: [u8; SEATS],
    /// Seat and ring position of the last delivery. It happened if the ring's tail is past that position.
    pub(crate) delivered: Option<(u8, u32)>,
    /// For each seat, the ring position of the last record that changed this slot: the ring was read up to there.
    pub(crate) applied: [Option<u32>; SEATS],
}

impl SlotRecord {
    pub(super) const WORDS: usize = 10;
    pub(crate) const FREE: Self = Self {
        held: false,
        asker: Asker::Gateway,
        answered: false,
        taken: false,
        seen: false,
        generation: 0,
        epoch: Epoch(0),
        sequence: 0,
        length: 0,
        deaths: 0,
        first_byte: Instant::from_nanos(0),
        last_byte: Instant::from_nanos(0),
        lent: [0; SEATS],
        delivered: None,
        applied: [None; SEATS],
    };

    /// Whether its last delivery was to this seat.
    pub(crate) fn delivered_to(&self, seat: usize) -> bool {
        self.delivered.is_some_and(|(to, _)| usize::from(to) == seat)
    }

    pub(super) fn to_words(self) -> [u64; Self::WORDS] {
        let flags = [
            self.held,
            self.answered,
            self.taken,
            self.delivered.is_some(),
            self.applied[0].is_some(),
            self.applied[1].is_some(),
            self.seen,
            self.asker == Asker::Sidecar,
        ];
        let flags = flags.iter().rev().fold(0_u64, |all, flag| all << 1 | u64::from(*flag));
        let (seat, position) = self.delivered.unwrap_or_default();
        let [first, second] = self.applied.map(Option::unwrap_or_default);
        [
            self.sequence,
            u64::from(self.epoch.0) | u64::from(self.generation) << 32,
            u64::from(self.length) | u64::from(self.deaths) << 32 | flags << 48,
            self.first_byte.as_nanos(),
            self.last_byte.as_nanos(),
            u64::from(self.lent[0])
                | u64::from(self.lent[1]) << 8
                | u64::from(seat) << 16
                | u64::from(position) << 32,
            u64::from(first) | u64::from(second) << 32,
            0,
            0,
            0,
        ]
    }

    pub(super) fn from_words(words: &[u64; Self::WORDS]) -> Self {
        let flags = words[2] >> 48;
        let flag = |bit: u32| flags >> bit & 1 == 1;
        // Every cast takes the bits that `to_words` put there.
        Self {
            held: flag(0),
            asker: if flag(7) { Asker::Sidecar } else { Asker::Gateway },
            answered: flag(1),
            taken: flag(2),
            seen: flag(6),
            sequence: words[0],
            epoch: Epoch(words[1] as u32),
            generation: (words[1] >> 32) as u32,
            length: words[2] as u32,
            deaths: (words[2] >> 32) as u16,
            first_byte: Instant::from_nanos(words[3]),
            last_byte: Instant::from_nanos(words[4]),
            lent: [words[5] as u8, (words[5] >> 8) as u8],
            delivered: flag(3).then_some(((words[5] >> 16) as u8, (words[5] >> 32) as u32)),
            applied: [flag(4).then_some(words[6] as u32), flag(5).then_some((words[6] >> 32) as u32)],
        }
    }
}
