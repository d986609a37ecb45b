//! Workers that write nonsense, or whatever they can.

use super::*;
use crate::descriptor::MARK_WORD;
use crate::sys;

/// Pages of a seat as a hostile worker has them: the granted descriptors, mapped by hand.
struct Hostile {
    map: Arc<Map>,
    layout: Layout,
    seat: usize,
    info: SeatInfo,
}

impl Hostile {
    fn attach(side: &mut Side) -> Self {
        let grant = side.owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None }).unwrap();
        side.owner.deliver_pending();
        let layout = side.owner.parts.layout;
        let map = Map::writable(&File::from(grant.region), layout.total()).unwrap();
        Self {
            map: Arc::new(map),
            layout,
            seat: usize::from(grant.seat),
            info: side.owner.live_seat().unwrap(),
        }
    }

    fn area(&self) -> usize {
        self.layout.seat_area(self.seat)
    }

    /// Writes the words of a cell, its mark aside, and marks it as the next message.
    fn push(&self, words: &[u64]) {
        let tail = self.map.word32(self.area() + worker_page::UP_TAIL);
        let position = tail.load(Ordering::Relaxed);
        for (index, word) in words.iter().enumerate().filter(|(index, _)| *index != MARK_WORD) {
            self.word(position, index).store(*word, Ordering::Relaxed);
        }
        self.mark(position);
        tail.store(position.wrapping_add(1), Ordering::Release);
    }

    fn mark(&self, position: u32) {
        self.word(position, MARK_WORD).store(u64::from(position) | 1 << 32, Ordering::Release);
    }

    /// A word of the cell of a position.
    fn word(&self, position: u32, word: usize) -> &crate::sync::AtomicU64 {
        let cell = (position % crate::layout::RING_CAPACITY) as usize;
        self.map.word64(self.layout.up_cells(self.seat) + cell * crate::layout::CELL + word * 8)
    }
}

const fn action(slot: u32, generation: u32, offset: u32, length: u32, sequence: u64) -> [u64; 8] {
    [
        2 | 1 << 32,
        sequence,
        slot as u64 | (generation as u64) << 32,
        offset as u64 | (length as u64) << 32,
        0,
        0,
        0,
        0, // the mark
    ]
}

#[test]
fn each_kind_of_nonsense_poisons_its_worker_and_the_next_one_works() {
    let bytes = SMALL.action_bytes;
    let release = |slot: u8, generation: u8| {
        let mut words = [0; 9];
        words[0] = 3 | 3 << 16;
        words[8] = u64::from_ne_bytes([3, slot, generation, 0, 0, 0, 0, 0]);
        words
    };
    type Attack<'a> = &'a dyn Fn(&Hostile);
    let cases: &[(&str, Attack<'_>)] = &[
        ("kind", &|worker| worker.push(&[9])),
        ("flags", &|worker| worker.push(&[2 | 0x80 << 8])),
        ("record length", &|worker| worker.push(&[3 | 385 << 16])),
        ("record", &|worker| worker.push(&[3 | 8 << 16, 0, 0, 0, 0, 0, 0, 0, u64::MAX])),
        ("an observation", &|worker| worker.push(&[1])),
        ("action slot", &|worker| worker.push(&action(SMALL.action_slots, worker.info.generation, 0, 1, 1))),
        ("action generation", &|worker| worker.push(&action(0, worker.info.generation + 1, 0, 1, 1))),
        ("action length", &|worker| worker.push(&action(0, worker.info.generation, 0, bytes + 1, 1))),
        ("action offset", &|worker| worker.push(&action(0, worker.info.generation, bytes, 1, 1))),
        ("action overflow", &|worker| worker.push(&action(0, worker.info.generation, u32::MAX, u32::MAX, 1))),
        ("release of no slot", &|worker| worker.push(&release(200, 1))),
        ("release of another generation", &|worker| worker.push(&release(0, 99))),
        ("release twice", &|worker| {
            worker.push(&release(0, 1));
            worker.push(&release(0, 1));
        }),
        ("a cell that was never written", &|worker| worker.mark(0)),
        ("an answer that gives another slot back", &|worker| {
            let mut words = action(0, worker.info.generation, 0, 1, 1);
            words[0] |= u64::from(crate::descriptor::RETURNED) << 8;
            words[6] = 1 | 1 << 32;
            worker.push(&words);
        }),
        ("an answer that gives another generation back", &|worker| {
            let mut words = action(0, worker.info.generation, 0, 1, 1);
            words[0] |= u64::from(crate::descriptor::RETURNED) << 8;
            words[6] = 99 << 32;
            worker.push(&words);
        }),
        ("an answer to nothing that gives a slot back twice", &|worker| {
            let mut words = action(0, worker.info.generation, 0, 1, 77);
            words[0] |= u64::from(crate::descriptor::RETURNED) << 8;
            words[6] = 1 << 32;
            worker.push(&words);
            worker.push(&words);
        }),
        ("head", &|worker| {
            worker.map.word32(worker.area() + worker_page::DOWN_HEAD).store(7000, Ordering::Release);
        }),
    ];
    for (what, attack) in cases {
        let mut side = Side::new(&SMALL);
        let sequence = side.observe(1, b"kept");
        let hostile = Hostile::attach(&mut side);
        attack(&hostile);
        side.observe(1, b"more");
        // How far it has read is looked at when its ring seems full.
        while side.owner.send(&sidecar_core::record::ToWorker::Drain).is_ok() {}
        let poisoned = until(|| match side.poll() {
            Ok(Some(said)) => panic!("{what}: {said:?}"),
            Ok(None) => None,
            Err(poisoned) => Some(poisoned),
        });
        assert_eq!((poisoned.seat, poisoned.generation), (hostile.info.seat, hostile.info.generation));
        assert!(!poisoned.why.is_empty());
        assert_eq!(side.owner.stats().counter(Counter::Poisoned), 1, "{what}");
        assert_eq!(side.owner.errors().records().len(), 1);
        assert!(side.owner.live_seat().is_none());
        assert!(side.poll().unwrap().is_none(), "nothing more is read from it");
        let mut worker = side.attach().unwrap();
        side.owner.deliver_pending();
        let seen = observation(&mut worker);
        assert_eq!((seen.sequence(), seen.payload()), (sequence, &b"kept"[..]), "{what}");
        worker.answer(seen, b"fine").unwrap();
        assert_eq!(side.action().0, sequence);
        side.send(sequence);
        side.settle();
        side.owner.seat_proved_dead(hostile.info.seat, hostile.info.generation);
        assert_eq!(free(&side), 3, "{what}");
    }
}

#[test]
fn a_worker_that_only_says_that_it_left_keeps_what_it_has() {
    let mut side = Side::new(&SMALL);
    let sequence = side.observe(1, b"x");
    let hostile = Hostile::attach(&mut side);
    let say = || hostile.map.word32(hostile.area() + worker_page::LEFT).store(7, Ordering::Release);
    say();
    assert!(side.poll().unwrap().is_none());
    assert_eq!(side.owner.live_seat(), Some(hostile.info), "its connection stands");
    assert_eq!(free(&side), 3);
    // It hangs up and talks on: nothing is read of it once its seat is another's.
    side.owner.seat_connection_ended(hostile.info.seat, hostile.info.generation);
    assert!(side.poll().unwrap().is_none());
    let mut worker = side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, hostile.info.seat);
    side.owner.deliver_pending();
    let seen = observation(&mut worker);
    assert_eq!((seen.sequence(), seen.redelivered()), (sequence, true));
    hostile.push(&[9]);
    let poisoned = until(|| side.poll().err());
    assert_ne!(poisoned.generation, hostile.info.generation, "the successor pays for what is in its pages");
    // A poisoned seat is nobody's until the process is gone, whatever it says.
    say();
    assert!(side.poll().unwrap().is_none());
    let next = side.attach().unwrap();
    assert_ne!(side.owner.live_seat().unwrap().seat, hostile.info.seat);
    drop((seen, worker, next));
}

#[test]
fn nonsense_found_after_the_proof_of_death_frees_the_seat_too() {
    let mut side = Side::new(&SMALL);
    let hostile = Hostile::attach(&mut side);
    hostile.push(&[9]);
    side.owner.seat_proved_dead(hostile.info.seat, hostile.info.generation);
    side.poll().unwrap_err();
    side.attach().unwrap();
    assert_eq!(side.owner.live_seat().unwrap().seat, hostile.info.seat);
}

#[test]
fn a_worker_that_writes_random_words_all_over_its_pages_hurts_only_itself() {
    let mut state = 0x9e37_79b9_u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 24
    };
    for round in 0..200 {
        let mut side = Side::new(&SMALL);
        let sequence = side.observe(1, b"kept");
        let hostile = Hostile::attach(&mut side);
        let reach = if round % 2 == 0 { PAGE } else { PAGE + RING_BYTES };
        let mut poisoned = false;
        for _ in 0..400 {
            let offset = hostile.area() + (random() as usize % reach) / 8 * 8;
            let small = random() % 4 == 0;
            let value = if small { random() % 70 } else { random() };
            hostile.map.word64(offset).store(value, Ordering::Relaxed);
            match side.poll() {
                Ok(_) => {}
                Err(_) => poisoned = true,
            }
            let _ = side.owner.arm();
            side.owner.disarm();
            assert!(side.owner.free_slots() <= 3, "round {round}: an unanswered observation lost its slot");
        }
        if !poisoned {
            side.owner.seat_poison("enough");
        }
        assert!(side.owner.live_seat().is_none());
        let mut worker = side.attach().unwrap();
        side.owner.deliver_pending();
        let seen = observation(&mut worker);
        assert_eq!((seen.sequence(), seen.payload()), (sequence, &b"kept"[..]));
    }
}

/// A worker that drained the doorbell in a loop took the control thread's rings with it, signals and all; one that filled
/// it and made it block could have kept that thread for good.
#[test]
fn what_a_worker_does_with_its_doorbell_keeps_nobody_but_itself() {
    let mut side = Side::new(&SMALL);
    let grant = side.owner.seat_join(&Candidate { pid: 0, start_time: 0, seat: None }).unwrap();
    let [own, ..] = side.owner.doorbells();
    rustix::fs::fcntl_setfl(&grant.doorbell, rustix::fs::OFlags::empty()).unwrap();
    // One less than the most that it takes: whatever is added waits (eventfd(2)).
    rustix::io::write(&grant.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    let handle = side.owner.doorbell_handle();
    let ringing = std::thread::spawn(move || handle.ring());
    until(|| ringing.is_finished().then_some(()));
    doorbell::clear(grant.doorbell.as_fd());
    assert!(!sys::poll_in(bell(&side, 0), Duration::ZERO).unwrap());
    assert!(sys::poll_in(own, Duration::ZERO).unwrap(), "the ring is there, whoever empties the other bell");

    // Its successor rings while it still runs, and the next one in its seat does.
    rustix::io::write(&grant.doorbell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    side.owner.seat_poison("enough");
    for seat in [1, 0] {
        let mut worker = side.attach().unwrap();
        assert_eq!(side.owner.live_seat().unwrap().seat, seat);
        side.settle();
        assert!(side.owner.arm());
        let ringing = std::thread::spawn(move || {
            worker.ready().unwrap();
            worker
        });
        assert!(sys::poll_in(bell(&side, seat.into()), Duration::from_secs(10)).unwrap());
        side.owner.disarm();
        until(|| ringing.is_finished().then_some(()));
        let worker = ringing.join().unwrap();
        let info = kill(&mut side, worker);
        side.owner.seat_proved_dead(info.seat, info.generation);
        side.settle();
        side.owner.seat_proved_dead(grant.seat, grant.generation);
    }
}

#[test]
fn a_worker_can_write_its_own_pages_and_the_slots_only() {
    let (side, worker) = pair();
    let layout = side.owner.parts.layout;
    let (memory, length) = worker.observation_memory();
    assert_eq!(length, layout.total() - layout.observations());
    // The kernel's word on what is writable, by reading from /proc/self/maps.
    let base = memory.addr() - layout.observations();
    let writable = |address: usize| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        maps.lines()
            .find_map(|line| {
                let (range, rest) = line.split_once(' ')?;
                let (start, end) = range.split_once('-')?;
                let start = usize::from_str_radix(start, 16).ok()?;
                let end = usize::from_str_radix(end, 16).ok()?;
                (start..end).contains(&address).then(|| rest.starts_with("rw"))
            })
            .unwrap()
    };
    for (offset, expected) in [
        (0, false),
        (crate::layout::HEADER, false),
        (crate::layout::CONTROL, false),
        (crate::layout::STATS, false),
        (crate::layout::down_cells(0), false),
        (layout.seat_area(0), true),
        (layout.action(0, 3), true),
        (layout.seat_area(1), false),
        (layout.action(1, 0), false),
        (layout.slot(0), true),
        (layout.total() - 1, true),
    ] {
        assert_eq!(writable(base + offset), expected, "offset {offset}");
    }
}

#[test]
fn a_worker_that_talks_without_end_keeps_nobody() {
    let mut side = Side::new(&SMALL);
    let hostile = Hostile::attach(&mut side);
    let words = action(0, hostile.info.generation, 0, 1, 77);
    for cell in 0..crate::layout::RING_CAPACITY {
        for (index, word) in words.iter().enumerate() {
            hostile.word(cell, index).store(*word, Ordering::Relaxed);
        }
    }
    let stop = crate::sync::AtomicBool::new(false);
    let block = block(hostile.seat);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let started = clock::now();
            // The second bound is for an owner that never comes back.
            while !stop.load(Ordering::Relaxed) && clock::now().since(started) < crate::testing::WATCHDOG {
                let head = hostile.map.word32(block + seat_block::UP_HEAD).load(Ordering::Relaxed);
                (0..crate::layout::RING_CAPACITY).for_each(|ahead| hostile.mark(head.wrapping_add(ahead)));
            }
        });
        // Each call comes back, though there is always more.
        let dropped = |side: &Side| side.owner.stats().counter(Counter::DroppedActions);
        let most = until(|| {
            let before = dropped(&side);
            assert!(side.poll().unwrap().is_none());
            let in_one_call = dropped(&side) - before;
            (dropped(&side) > 2000).then_some(in_one_call)
        });
        assert!(most <= crate::layout::RING_CAPACITY.into(), "{most} messages were dealt with in one call");
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
    });
    assert!(side.owner.live_seat().is_some(), "rude, but no nonsense");
}

#[test]
fn a_region_that_is_cut_wiped_or_overwritten_is_damaged() {
    crate::guard::install().unwrap();
    let cut = |file: &File, bytes: u64| file.set_len(bytes).unwrap();
    let total = SMALL.total_bytes() as u64;
    type Attack<'a> = (&'a str, &'a dyn Fn(&File));
    let attacks: [Attack<'_>; 4] = [
        ("cut to nothing", &|file| cut(file, 0)),
        ("cut at the end", &|file| cut(file, total - 1)),
        ("cut and grown again", &|file| {
            cut(file, 0);
            cut(file, total);
        }),
        ("header", &|file| {
            std::os::unix::fs::FileExt::write_all_at(file, &[0; 8], crate::layout::HEADER as u64).unwrap();
        }),
    ];
    for (what, attack) in attacks {
        let mut side = Side::new(&SMALL);
        side.observe(1, b"lost");
        assert_eq!((side.owner.damage(), side.owner.is_lost()), (None, false), "{what}");
        let file = File::options().read(true).write(true).open(&side.path).unwrap();
        attack(&file);
        assert!(side.owner.damage().is_some(), "{what}");
        // Everything can still be called.
        let _ = side.poll();
        let _ = side.owner.arm();
        side.owner.disarm();
        side.owner.close_epoch(Epoch(2));
        side.owner.answered(1);
        if let Some(slot) = side.owner.claim_slot() {
            side.fill(slot, 1, b"into nowhere");
        }
        assert!(side.owner.damage().is_some(), "{what}");
        let Side { owner, path, directory, .. } = side;
        owner.close();
        assert!(!path.exists(), "{what}: the next start finds room");
        drop(directory);
    }
}

#[test]
fn a_worker_that_says_it_wrote_more_than_a_ring_holds_is_not_waited_for() {
    let mut side = Side::new(&SMALL);
    let hostile = Hostile::attach(&mut side);
    for tail in [65, 1 << 30, u32::MAX] {
        hostile.map.word32(hostile.area() + worker_page::UP_TAIL).store(tail, Ordering::Release);
        assert_eq!(side.owner.seats[hostile.seat].link.up_tail(), crate::layout::RING_CAPACITY);
    }
}
