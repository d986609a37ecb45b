//! Bodies of the fuzz targets that need to look inside: a dead sidecar's file in any state, and a ring written by a peer.
//! Tests run them over the corpora in `fuzz/corpus`. A feature of its own, for the fuzz targets alone.
//!
//! The records of a journal carry checksums, which no fuzzer guesses: after the edits they are made right again, unless
//! the input wants torn ones.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use sidecar_core::record::{self, MAX_RECORD, ToSidecar, ToWorker};
use sidecar_core::tunnel::{AgentId, Epoch, SessionId};

use crate::attach::Candidate;
use crate::descriptor::{DESCRIPTOR_WORDS, Descriptor, MARK_WORD, RECORD_BYTES};
use crate::layout::{CONTROL, Geometry, HEADER, Layout, SEATS_AREA};
use crate::map::Map;
use crate::owner::{FromWorker, Owner};
use crate::region::{Found, Identity, create};
use crate::ring::{Cells, Consumer, Producer};
use crate::slots::Observed;
use crate::stats::Stats;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::{clock, journal};

const GEOMETRY: Geometry =
    Geometry { observation_slots: 2, observation_bytes: 4096, action_slots: 2, action_bytes: 4096 };
/// Bytes of one edit: where (u32) and what (u64).
const EDIT: usize = 12;
/// More edits say nothing that fewer don't.
const MOST_EDITS: usize = 64;

/// A dead sidecar's region, edited and then found by a successor, and by somebody who reads its statistics. The first
/// byte: bit 0 leaves checksums as the edits left them, bit 1 wants another geometry (so that the region is replaced),
/// bit 2 cuts the file short. Then edits of 12 bytes: u32 offset, u64 word, both little-endian.
///
/// # Panics
/// If anything does that must not.
pub fn region(bytes: &[u8]) {
    let Some((&mode, edits)) = bytes.split_first() else { return };
    let mut image = template().clone();
    for edit in edits.chunks_exact(EDIT).take(MOST_EDITS) {
        let (at, word) = edit.split_at(4);
        let at = at.iter().rev().fold(0, |all, byte| all << 8 | usize::from(*byte));
        // Slots hold payloads, which nobody looks at.
        let at = at % SEATS_AREA.max(image.len() / 2) / 8 * 8;
        image[at..at + 8].copy_from_slice(word);
    }
    let directory = directory();
    let path = directory.join("obs");
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.expect("the directory is ours");
    file.write_all_at(&image, 0).expect("room for a small file");
    if mode & 1 == 0 {
        let map = Map::writable(&file, image.len()).expect("a mapping of what was written");
        journal::reseal(&map);
    }
    if mode & 4 != 0 {
        file.set_len((image.len() / 2) as u64).expect("a shorter file");
    }
    drop(file);
    if let Ok(snapshot) = Stats::open_read_only(&path) {
        let _ = format!("{snapshot:?}");
    }
    let mut geometry = GEOMETRY;
    geometry.observation_slots += u32::from(mode & 2 != 0);
    if let Ok(opened) = create(&path, &geometry, &identity(), clock::now()) {
        if let Found::TakenOver { kept, .. } = &opened.found {
            assert!(kept.len() <= geometry.observation_slots as usize);
            assert!(kept.iter().all(|held| held.sequence < opened.resume.next_sequence));
        }
        use_up(opened.owner);
    }
    let _ = std::fs::remove_file(&path);
    // Nothing stays behind; the next input makes it anew.
    let _ = std::fs::remove_dir(&directory);
}

/// Everything that a frame loop does with a region.
fn use_up(mut owner: Owner) {
    // Twice what fits both rings.
    for _ in 0..256 {
        match owner.poll_worker() {
            Ok(None) => break,
            Ok(Some(FromWorker::Action { base, length, .. })) => {
                let length = length as usize;
                let mut copy = vec![0; length];
                // SAFETY: the owner has checked that the bytes lie in an action slot, which is ours until finished.
                unsafe { core::ptr::copy_nonoverlapping(base, copy.as_mut_ptr(), length) };
                owner.finish_action();
            }
            // A poisoned seat is read no more, so this ends.
            Ok(Some(FromWorker::Record { .. })) | Err(_) => {}
        }
    }
    let _ = owner.arm();
    owner.disarm();
    let _ = owner.orphans();
    let joined = owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None });
    owner.deliver_pending();
    let now = clock::now();
    if let Some(slot) = owner.claim_slot() {
        let base = owner.slot_base(slot);
        // SAFETY: the slot is claimed, and at least a page long.
        unsafe { base.write_bytes(1, 4096) };
        let observed =
            Observed { epoch: Epoch(9), sequence: u64::MAX - 1, length: 1, first_byte: now, last_byte: now };
        owner.publish(slot, &observed);
        owner.journal().action_started(observed.sequence);
        owner.answered(observed.sequence);
    }
    owner.close_epoch(Epoch(10));
    assert!(owner.free_slots() <= owner.geometry().observation_slots);
    drop(joined);
    owner.close();
}

fn identity() -> Identity {
    Identity { job_endpoint_hash: [1; 32], agent: AgentId::new("agent").expect("a short id") }
}

/// On tmpfs where there is one, so that a fuzzer is fast. One for each process.
fn directory() -> PathBuf {
    let place = if Path::new("/dev/shm").is_dir() { PathBuf::from("/dev/shm") } else { std::env::temp_dir() };
    let thread = format!("{:?}", std::thread::current().id());
    let digits: String = thread.chars().filter(char::is_ascii_digit).collect();
    let directory = place.join(format!("sidecar-fuzz-{}-{digits}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("a directory of our own");
    directory
}

/// The file of a sidecar that died in a session, with a worker that had one observation of two and an action on its way.
fn template() -> &'static Vec<u8> {
    static TEMPLATE: OnceLock<Vec<u8>> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let path = directory().join("template");
        let mut owner = create(&path, &GEOMETRY, &identity(), clock::now()).expect("a region").owner;
        let now = clock::now();
        owner.journal().connected();
        owner.journal().note_byte(now);
        owner.journal().session_opened(&SessionId::new("s").expect("a short id"), Epoch(1));
        owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None }).expect("a seat");
        owner.deliver_pending();
        for sequence in 1..=2 {
            let slot = owner.claim_slot().expect("two slots");
            owner.publish(
                slot,
                &Observed { epoch: Epoch(1), sequence, length: 16, first_byte: now, last_byte: now },
            );
        }
        owner.journal().action_started(1);
        drop(owner);
        let image = std::fs::read(&path).expect("what was written");
        let _ = std::fs::remove_file(&path);
        image
    })
}

/// Words that a peer writes into a ring: each chunk of 8 bytes is one. Every 64 bytes are read as a descriptor, all of
/// it as a record, and a ring gets the words in its cells and positions, between honest pushes and pops.
///
/// # Panics
/// If anything does that must not.
pub fn descriptors(bytes: &[u8]) {
    let words: Vec<u64> = bytes.as_chunks::<8>().0.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    for chunk in words.as_chunks::<DESCRIPTOR_WORDS>().0 {
        if let Ok((descriptor, length)) = Descriptor::decode(chunk) {
            // At most RECORD_BYTES.
            assert_eq!(descriptor.encode(length as u16), *chunk);
        }
    }
    let record = &bytes[..bytes.len().min(RECORD_BYTES)];
    // What is read as a record means the same once it was written.
    let mut written = [0; MAX_RECORD];
    if let Ok(said) = record::decode::<ToSidecar>(record) {
        let length = record::encode(&said, &mut written).expect("whatever can be read can be written");
        assert_eq!(record::decode(&written[..length]), Ok(said));
    }
    if let Ok(told) = record::decode::<ToWorker>(record) {
        let length = record::encode(&told, &mut written).expect("whatever can be read can be written");
        assert_eq!(record::decode(&written[..length]), Ok(told));
    }

    let ring = Ring::default();
    let (mut producer, mut consumer) = (Producer::new(&ring), Consumer::new(&ring));
    for word in words {
        match word % 8 {
            0 => ring.tail.store((word >> 8) as u32, Ordering::Relaxed),
            1 => ring.head.store((word >> 8) as u32, Ordering::Relaxed),
            2 => {
                let _ = producer.try_push(&crate::cells::RECORD, &word.to_le_bytes());
            }
            3 | 4 => {
                let mut record = [0; RECORD_BYTES];
                if let Ok(Some((_, length))) = consumer.try_pop(&mut record) {
                    assert!(length <= RECORD_BYTES);
                }
            }
            _ => ring.words[(word >> 3) as usize % ring.words.len()].store(word, Ordering::Relaxed),
        }
        assert!(producer.free() <= CAPACITY);
    }
}

const CAPACITY: u32 = 4;
const CELL_WORDS: usize = crate::descriptor::USED_WORDS;

/// A ring in private memory.
struct Ring {
    words: [AtomicU64; CAPACITY as usize * CELL_WORDS],
    tail: AtomicU32,
    head: AtomicU32,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            words: core::array::from_fn(|_| AtomicU64::new(0)),
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
        }
    }
}

impl Cells for &Ring {
    fn capacity(&self) -> u32 {
        CAPACITY
    }

    fn tail(&self) -> &AtomicU32 {
        &self.tail
    }

    fn head(&self) -> &AtomicU32 {
        &self.head
    }

    fn mark(&self, cell: u32) -> &AtomicU64 {
        &self.words[cell as usize * CELL_WORDS + MARK_WORD]
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        self.words[cell as usize * CELL_WORDS + word].load(Ordering::Relaxed)
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.words[cell as usize * CELL_WORDS + word].store(value, Ordering::Relaxed);
    }
}

const _: () = assert!(HEADER < CONTROL && Layout::of(GEOMETRY).total() < 1 << 20, "small files only");
