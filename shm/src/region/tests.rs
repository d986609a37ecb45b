//! What lies under a path, and what becomes of it.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use sidecar_core::agent::HEADROOM;
use sidecar_core::tunnel::{Epoch, SessionId};

use super::*;
use crate::clock;
use crate::journal::place;
use crate::layout::{self, header};
use crate::slots::SlotIndex;
use crate::testing::process::Parts;
use crate::testing::{SMALL, Side, directory, identity};

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn open(path: &Path) -> Result<Opened, CreateError> {
    create(path, &SMALL, &identity(1), clock::now())
}

/// A dead region with a session, an answered and an unanswered observation.
fn leave_session(path: &Path) {
    let mut opened = open(path).unwrap();
    let now = clock::now();
    let journal = opened.owner.journal();
    journal.connected();
    journal.note_byte(now);
    journal.warmup_seen();
    journal.ready_sent();
    journal.ready_heard();
    journal.session_opened(&SessionId::new("case-7").unwrap(), Epoch(3));
    for sequence in 1..=2 {
        let slot = opened.owner.claim_slot().unwrap();
        let base = opened.owner.slot_base(slot);
        // SAFETY: inside the claimed slot.
        let payload = unsafe { base.add(HEADROOM as usize) };
        // SAFETY: nobody else uses the slot.
        unsafe { payload.write_bytes(sequence as u8, 100) };
        opened.owner.publish(
            slot,
            &crate::slots::Observed {
                epoch: Epoch(3),
                sequence,
                length: 100,
                first_byte: now,
                last_byte: now,
            },
        );
    }
    opened.owner.journal().action_started(1);
    opened.owner.journal().action_sent(1);
    opened.owner.answered(1);
}

#[test]
fn a_fresh_region_is_private_whole_and_alone() {
    let directory = directory();
    let path = directory.path().join("obs");
    let opened = open(&path).unwrap();
    assert!(matches!(opened.found, Found::Fresh));
    assert_eq!(opened.agent.as_str(), "agent-1");
    let info = fs::metadata(&path).unwrap();
    assert_eq!(info.permissions().mode() & 0o7777, 0o600);
    assert_eq!(info.len(), SMALL.total_bytes() as u64);
    assert!(info.blocks() * 512 >= info.len(), "every byte is reserved: {} blocks", info.blocks());
    assert_eq!(names(directory.path()), ["obs"]);
    opened.owner.close();
    assert_eq!(names(directory.path()), [""; 0], "an orderly end leaves nothing");
}

#[test]
fn a_living_owner_is_named() {
    let directory = directory();
    let path = directory.path().join("obs");
    let now = clock::now();
    let first = create(&path, &SMALL, &identity(1), now).unwrap();
    let before = fs::metadata(&path).unwrap().ino();
    match open(&path) {
        Err(CreateError::InUse { pid, since, .. }) => {
            assert_eq!((pid, since), (std::process::id(), now));
        }
        other => panic!("{other:?}"),
    }
    assert!(open(&path).unwrap_err().to_string().contains("choose another --shm"));
    assert_eq!(fs::metadata(&path).unwrap().ino(), before);
    drop(first);
    open(&path).unwrap();
}

#[test]
fn a_killed_owners_lock_is_free_and_its_session_goes_on() {
    let Some(parts) = Parts::of(|_, region| die_with_a_session(region)) else { return };
    let directory = directory();
    let path = directory.path().join("obs");
    let mut child = parts.start("owner", &path);
    let status = child.wait().unwrap();
    assert!(!status.success(), "{status}");
    let inode = fs::metadata(&path).unwrap().ino();
    let opened = open(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "taken over as it is");
    match opened.found {
        Found::TakenOver { kept, age } => {
            let resume = opened.resume;
            assert!(resume.connected_once && resume.warmup_seen && resume.ready_sent && !resume.drain_seen);
            assert!(resume.ready_heard);
            assert_eq!(resume.session.unwrap().as_str(), "case-7");
            assert_eq!((resume.epoch, resume.next_sequence), (Epoch(3), 3));
            assert_eq!(kept.len(), 1);
            assert_eq!((kept[0].sequence, kept[0].length, kept[0].deaths), (2, 100, 0));
            assert!(age < RESUME_WITHIN);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(opened.agent.as_str(), "agent-1");
    assert_eq!((opened.owner.unanswered(), opened.owner.free_slots()), (1, 3));
}

fn die_with_a_session(path: &Path) {
    leave_session(path);
    // The owner of `leave_session` was dropped like a crashed one; a second one dies with its lock held.
    let _owner = open(path).unwrap();
    std::process::abort();
}

#[test]
fn another_job_or_a_stale_session_gets_a_fresh_agent_in_the_same_file() {
    let directory = directory();
    for (name, identity_now, later) in [
        ("job", identity(2), Duration::ZERO),
        ("stale", Identity { agent: AgentId::new("agent-2").unwrap(), ..identity(1) }, RESUME_WITHIN * 2),
    ] {
        let path = directory.path().join(name);
        leave_session(&path);
        let inode = fs::metadata(&path).unwrap().ino();
        let mut opened = create(&path, &SMALL, &identity_now, clock::now() + later).unwrap();
        assert!(matches!(&opened.found, Found::Replaced { why } if !why.is_empty()), "{:?}", opened.found);
        assert_eq!(opened.agent.as_str(), "agent-2");
        assert_eq!(fs::metadata(&path).unwrap().ino(), inode, "a worker stays attached");
        assert_eq!((opened.owner.unanswered(), opened.owner.free_slots()), (0, 4));
        // Its worker may have observations 1 and 2 of session 3 still: their numbers are used up.
        let Resume { connected_once, ready_sent, session, epoch, next_sequence, .. } = &opened.resume;
        assert_eq!((*epoch, *next_sequence), (Epoch(3), 3), "{name}");
        assert!(!connected_once && !ready_sent && session.is_none(), "{name}");
        let slot = opened.owner.claim_slot().unwrap();
        let now = clock::now();
        opened.owner.journal().note_byte(now);
        opened.owner.publish(
            slot,
            &crate::slots::Observed {
                epoch: Epoch(4),
                sequence: 3,
                length: 0,
                first_byte: now,
                last_byte: now,
            },
        );
        drop(opened);
        let again = create(&path, &SMALL, &identity_now, now).unwrap();
        match again.found {
            Found::TakenOver { kept, .. } => {
                assert_eq!(kept.iter().map(|held| held.sequence).collect::<Vec<_>>(), [3], "{name}");
                assert_eq!(again.resume.next_sequence, 4);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The moment between the last byte and the new main record: with the old byte there, a second start of the new job
/// would have found a session to go on with, and the last job's observations in it.
#[test]
fn a_start_for_another_job_that_dies_on_its_way_leaves_no_session_to_anyone() {
    let directory = directory();
    let path = directory.path().join("obs");
    leave_session(&path);
    {
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let map = Arc::new(Map::writable(&file, layout::CONTROL).unwrap());
        let id = identity(2);
        let past = Past::read(&map).unwrap();
        drop(go_on(&map, &past, &id, clock::now(), SessionKept::No));
    }
    let opened = create(&path, &SMALL, &identity(2), clock::now()).unwrap();
    assert!(matches!(opened.found, Found::Replaced { .. }), "{:?}", opened.found);
    assert_eq!((opened.owner.unanswered(), opened.owner.free_slots()), (0, 4));
}

#[test]
fn a_region_of_before_the_last_boot_has_no_session() {
    let directory = directory();
    let path = directory.path().join("obs");
    leave_session(&path);
    {
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let map = Arc::new(Map::writable(&file, layout::CONTROL).unwrap());
        let main = Past::read(&map).unwrap().main;
        Journal::write(map, Main { boot: [0; 16], ..main });
    }
    assert!(matches!(open(&path).unwrap().found, Found::Replaced { .. }));
}

#[test]
fn other_slots_make_a_new_file_that_keeps_what_waits() {
    let directory = directory();
    let path = directory.path().join("obs");
    leave_session(&path);
    let inode = fs::metadata(&path).unwrap().ino();
    let wider = Geometry { observation_slots: 3, observation_bytes: 100, ..SMALL };
    let opened = create(&path, &wider, &identity(1), clock::now()).unwrap();
    assert_ne!(fs::metadata(&path).unwrap().ino(), inode);
    assert_eq!(names(directory.path()), ["obs"]);
    assert!(opened.note.is_some());
    let Found::TakenOver { kept, .. } = opened.found else { panic!("{:?}", opened.found) };
    assert_eq!(opened.resume.session.unwrap().as_str(), "case-7");
    assert_eq!((kept.len(), kept[0].sequence, kept[0].length), (1, 2, 100));
    // SAFETY: inside the slot.
    let last = unsafe { opened.owner.slot_base(kept[0].slot).add(HEADROOM as usize + 99) };
    // SAFETY: nobody else uses the slot.
    assert_eq!(unsafe { last.read() }, 2);
    drop(opened.owner);

    let narrower = Geometry { observation_bytes: 99, ..SMALL };
    let opened = create(&path, &narrower, &identity(1), clock::now()).unwrap();
    let Found::TakenOver { kept, .. } = opened.found else { panic!("{:?}", opened.found) };
    assert_eq!(kept.len(), 0, "an observation that does not fit any more can't be kept");
}

/// What a successor needs to send the last action once more goes along, also into a file of other slots, until the next
/// observation or the session's end.
#[test]
fn the_last_action_is_handed_on_until_an_observation_comes() {
    let directory = directory();
    let path = directory.path().join("obs");
    let mut opened = open(&path).unwrap();
    let journal = opened.owner.journal();
    journal.connected();
    journal.note_byte(clock::now());
    journal.session_opened(&SessionId::new("s").unwrap(), Epoch(1));
    journal.next_sequence(5);
    let last = LastAction {
        epoch: Epoch(1),
        sequence: 4,
        resent: false,
        longest_wait: Duration::from_millis(3),
        mask: [0; 4],
        payload: b"left".to_vec(),
    };
    journal.last_action(&last.borrowed());
    drop(opened);
    assert_eq!(open(&path).unwrap().last_action, None, "it was not started");

    open(&path).unwrap().owner.journal().action_started(4);
    let wider = Geometry { observation_slots: 3, ..SMALL };
    for geometry in [SMALL, wider, wider] {
        let opened = create(&path, &geometry, &identity(1), clock::now()).unwrap();
        assert_eq!(opened.last_action.as_ref(), Some(&last));
        let resumed = opened.resume.last_action.unwrap();
        assert_eq!((resumed.sequence, resumed.resent, resumed.longest_wait), (4, false, last.longest_wait));
    }

    let mut opened = create(&path, &wider, &identity(1), clock::now()).unwrap();
    opened.owner.journal().next_sequence(6);
    drop(opened);
    let opened = create(&path, &wider, &identity(1), clock::now()).unwrap();
    assert_eq!((opened.last_action, opened.resume.last_action), (None, None), "an observation came");
}

#[test]
fn damage_to_a_dead_region_is_seen_and_answered_with_a_new_file() {
    let directory = directory();
    let intact = directory.path().join("intact");
    leave_session(&intact);
    let bytes = fs::read(&intact).unwrap();
    let cases: &[(&str, usize, &[u8])] = &[
        ("magic of the header", header::MAGIC, &[0]),
        ("older layout", header::VERSION, &0_u32.to_le_bytes()),
        ("byte order", header::ENDIAN, &0x0403_0201_u32.to_le_bytes()),
        ("no slots", header::OBSERVATION_SLOTS, &0_u32.to_le_bytes()),
        ("too many slots", header::OBSERVATION_SLOTS, &u32::MAX.to_le_bytes()),
        ("huge slots", header::OBSERVATION_BYTES, &u32::MAX.to_le_bytes()),
        ("huge actions", header::ACTION_BYTES, &u32::MAX.to_le_bytes()),
        ("other size", header::TOTAL, &12_u64.to_le_bytes()),
        ("journal's magic", place::MAGIC, &[0]),
        ("journal's version", place::VERSION, &9_u32.to_le_bytes()),
    ];
    for (what, offset, patch) in cases {
        let path = directory.path().join("damaged");
        let mut damaged = bytes.clone();
        damaged[*offset..offset + patch.len()].copy_from_slice(patch);
        fs::write(&path, &damaged).unwrap();
        let inode = fs::metadata(&path).unwrap().ino();
        let opened = open(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_ne!(fs::metadata(&path).unwrap().ino(), inode, "{what}");
        // A journal that is whole still tells the session; slots only with a header that is whole.
        match opened.found {
            Found::TakenOver { kept, .. } => {
                assert!(!what.starts_with("journal") && kept.is_empty(), "{what}")
            }
            Found::Replaced { .. } => assert!(what.starts_with("journal"), "{what}"),
            Found::Fresh => panic!("{what}"),
        }
        opened.owner.close();
    }
    let cut = directory.path().join("cut");
    fs::write(&cut, &bytes[..bytes.len() - 1]).unwrap();
    assert!(matches!(open(&cut).unwrap().found, Found::TakenOver { .. }));

    // Both copies of the record gone: what it said is not to be had, and nothing of it is made up.
    let path = directory.path().join("damaged");
    let mut damaged = bytes.clone();
    for offset in [place::MAIN + 100, place::MAIN + 512 + 100] {
        damaged[offset] ^= 1;
    }
    fs::write(&path, &damaged).unwrap();
    assert!(matches!(open(&path).unwrap().found, Found::Replaced { .. }));
}

#[test]
fn random_damage_never_panics_and_never_loses_the_path() {
    let directory = directory();
    let path = directory.path().join("obs");
    leave_session(&path);
    let bytes = fs::read(&path).unwrap();
    let mut state = 0x1234_5678_u64;
    for round in 0..60 {
        let mut damaged = bytes.clone();
        for _ in 0..1 + round % 8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let offset = (state >> 33) as usize % (layout::CONTROL + 4096);
            damaged[offset] = (state >> 20) as u8;
        }
        fs::write(&path, &damaged).unwrap();
        match open(&path) {
            Ok(opened) => {
                assert_eq!(opened.owner.free_slots() + opened.owner.unanswered(), 4, "round {round}");
            }
            Err(CreateError::NewerLayout { .. } | CreateError::NotARegion { .. }) => {}
            Err(error) => panic!("round {round}: {error}"),
        }
        assert!(path.exists());
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn a_newer_layout_is_refused_untouched() {
    let directory = directory();
    let path = directory.path().join("obs");
    leave_session(&path);
    let mut bytes = fs::read(&path).unwrap();
    bytes[header::VERSION..header::VERSION + 4].copy_from_slice(&(layout::VERSION + 1).to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let error = open(&path).unwrap_err();
    assert!(matches!(error, CreateError::NewerLayout { theirs, ours, .. } if theirs == ours + 1), "{error}");
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn what_is_no_region_is_refused_untouched() {
    let directory = directory();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("text"), "dear diary").unwrap();
    fs::write(at("long"), "dear diary".repeat(10_000)).unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::create_dir(at("directory")).unwrap();
    symlink(at("long"), at("link")).unwrap();
    symlink(at("nowhere"), at("dangling")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    for name in ["text", "long", "empty", "directory", "link", "dangling", "socket", "fifo"] {
        let error = open(&at(name)).unwrap_err();
        assert!(matches!(error, CreateError::NotARegion { .. }), "{name}: {error}");
        assert!(error.to_string().contains("remove it, or choose another --shm"), "{error}");
    }
    assert_eq!(fs::read_to_string(at("text")).unwrap(), "dear diary");
    assert_eq!(fs::metadata(at("long")).unwrap().len(), 100_000);
    assert_eq!(names(directory.path()).len(), 8);
    assert!(matches!(open(&at("no/such/directory")), Err(CreateError::Io { .. })));
    assert!(matches!(open(Path::new("/")), Err(CreateError::NotARegion { .. })));
}

#[test]
fn another_users_file_is_refused() {
    let directory = directory();
    let path = directory.path().join("obs");
    drop(open(&path).unwrap());
    if std::os::unix::fs::chown(&path, Some(12_345), None).is_err() {
        eprintln!("skipped: only root can give files to another user");
        return;
    }
    assert!(matches!(open(&path), Err(CreateError::NotOurs { uid: 12_345, .. })));
    assert!(path.exists());
}

#[test]
fn a_path_too_long_for_the_socket_beside_it_is_refused() {
    let directory = directory();
    let stem = directory.path().as_os_str().len() + 1;
    let longest = directory.path().join("x".repeat(MAX_PATH - stem));
    let side = open(&longest).unwrap();
    crate::attach::Listener::bind(&longest).unwrap();
    drop(side);
    let error = open(&directory.path().join("x".repeat(MAX_PATH - stem + 1))).unwrap_err();
    assert!(matches!(error, CreateError::PathTooLong { length, most, .. } if length == most + 1), "{error}");
    assert!(matches!(
        create(&longest, &Geometry { action_slots: 0, ..SMALL }, &identity(1), clock::now()),
        Err(CreateError::Geometry(_))
    ));
}

#[test]
fn a_full_file_system_is_named_and_nothing_is_left() {
    let directory = directory();
    let mount = directory.path().join("small");
    fs::create_dir(&mount).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&mount)
        .stderr(std::process::Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !mounted {
        eprintln!("skipped: no right to mount a tmpfs");
        return;
    }
    let large = Geometry { observation_bytes: 1 << 20, ..SMALL };
    let path = mount.join("obs");
    let result = create(&path, &large, &identity(1), clock::now());
    let left = names(&mount);
    // A region that fits still works there: the failed attempt gave its space back.
    let small =
        Geometry { observation_slots: 1, observation_bytes: 4096, action_slots: 1, action_bytes: 4096 };
    let fits = create(&path, &small, &identity(1), clock::now()).map(drop);
    let unmounted = std::process::Command::new("umount").arg(&mount).status().unwrap();
    match result {
        Err(CreateError::NoSpace { needed, free, .. }) => {
            assert_eq!(needed, large.total_bytes() as u64);
            assert!(free > 0 && free <= 1 << 20, "{free}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(left, [""; 0]);
    fits.unwrap();
    assert!(unmounted.success());
}

#[test]
fn of_many_that_start_at_once_one_owns_the_region() {
    for round in 0..10 {
        let directory = directory();
        let path = directory.path().join("obs");
        if round % 2 == 1 {
            // All find a dead region of another geometry, which has to be replaced.
            drop(create(&path, &Geometry { action_slots: 1, ..SMALL }, &identity(1), clock::now()).unwrap());
        }
        let start = std::sync::Barrier::new(4);
        let results: Vec<_> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        start.wait();
                        open(&path)
                    })
                })
                .collect();
            starting.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let (owners, refused): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert_eq!(owners.len(), 1, "round {round}: {refused:?}");
        for error in refused.into_iter().map(Result::unwrap_err) {
            assert!(matches!(error, CreateError::InUse { .. } | CreateError::Contended { .. }), "{error}");
        }
        assert_eq!(names(directory.path()), ["obs"]);
    }
}

#[test]
fn what_a_killed_start_left_is_swept_and_a_running_one_is_left_alone() {
    let directory = directory();
    let path = directory.path().join("obs");
    fs::write(directory.path().join(".obs.new-0123"), "left").unwrap();
    fs::write(directory.path().join(".other.new-0123"), "another region's").unwrap();
    let building = directory.path().join(".obs.new-4567");
    let file = fs::File::create(&building).unwrap();
    assert!(sys::try_lock(&file).unwrap());
    let _opened = open(&path).unwrap();
    assert_eq!(names(directory.path()), [".obs.new-4567", ".other.new-0123", "obs"]);
}

#[test]
fn an_owner_that_was_replaced_removes_nobody_elses_name() {
    let directory = directory();
    let path = directory.path().join("obs");
    let first = open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let second = open(&path).unwrap();
    first.owner.close();
    assert!(path.exists());
    second.owner.close();
    assert!(!path.exists());
}

#[test]
fn a_second_take_over_knows_no_less_than_the_first() {
    let mut side = Side::new(&SMALL);
    side.owner.journal().connected();
    side.owner.journal().note_byte(clock::now());
    side.owner.journal().session_opened(&SessionId::new("s").unwrap(), Epoch(1));
    let sequence = side.observe(1, b"abc");
    for _ in 0..5 {
        side = side.crash_and_restart();
        assert!(matches!(&side.found, Found::TakenOver { kept, .. } if kept.len() == 1), "{:?}", side.found);
        assert_eq!(side.owner.oldest_unanswered().unwrap().sequence, sequence);
    }
    side.owner.journal().action_started(sequence);
    side = side.crash_and_restart();
    assert_eq!((side.owner.unanswered(), side.owner.free_slots()), (0, 4), "what was started counts as sent");
    let claimed: Vec<SlotIndex> = core::iter::from_fn(|| side.owner.claim_slot()).collect();
    assert_eq!(claimed.len(), 4);
}

/// Found by killing sidecars on a busy machine: the next one was told that the region is in use, by a process that was
/// giving back its memory and had not yet come to its files.
#[test]
fn a_killed_owner_that_has_its_lock_for_a_while_longer_is_waited_for() {
    let directory = directory();
    let path = directory.path().join("obs");
    let mut gone = std::process::Command::new("true").spawn().unwrap();
    let owner_pid = gone.id();
    gone.wait().unwrap();
    let (id, now) = (identity(1), clock::now());
    let built = Built::new(&path, &SMALL).unwrap();
    let main = Main { owner_pid, ..main_of(&id, id.agent.clone(), now, 1) };
    drop(Journal::write(Arc::clone(&built.map), main));
    let parts = built.publish_new(&path).unwrap().unwrap();
    let lock = std::thread::spawn(move || {
        std::thread::sleep(3 * LOCK_PAUSE * LOCK_LOOKS);
        drop(parts);
    });
    let opened = open(&path).unwrap();
    assert!(lock.is_finished() || clock::now().since(now) >= 3 * LOCK_PAUSE * LOCK_LOOKS);
    assert!(!matches!(opened.found, Found::Fresh), "{:?}", opened.found);
    lock.join().unwrap();
}
