use std::collections::VecDeque;
use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::descriptor::{Kind, MARK_WORD, USED_WORDS};

/// A ring in private memory that checks every access and counts loads.
#[derive(Clone, Debug)]
struct TestCells(Arc<Memory>);

#[derive(Debug)]
struct Memory {
    capacity: u32,
    tail: AtomicU32,
    head: AtomicU32,
    words: Vec<AtomicU64>,
    loads: Vec<AtomicU32>,
    position_looks: AtomicU32,
    mark_looks: AtomicU32,
}

impl TestCells {
    fn new(capacity: u32, start: u32) -> Self {
        let words = capacity as usize * USED_WORDS;
        Self(Arc::new(Memory {
            capacity,
            tail: AtomicU32::new(start),
            head: AtomicU32::new(start),
            words: (0..words).map(|_| AtomicU64::new(0)).collect(),
            loads: (0..words).map(|_| AtomicU32::new(0)).collect(),
            position_looks: AtomicU32::new(0),
            mark_looks: AtomicU32::new(0),
        }))
    }

    fn index(&self, cell: u32, word: usize) -> usize {
        assert!(cell < self.0.capacity && word < USED_WORDS, "word {word} of cell {cell}");
        cell as usize * USED_WORDS + word
    }
}

impl Cells for TestCells {
    fn capacity(&self) -> u32 {
        self.0.capacity
    }

    fn tail(&self) -> &AtomicU32 {
        self.0.position_looks.fetch_add(1, Ordering::Relaxed);
        &self.0.tail
    }

    fn head(&self) -> &AtomicU32 {
        self.0.position_looks.fetch_add(1, Ordering::Relaxed);
        &self.0.head
    }

    fn mark(&self, cell: u32) -> &AtomicU64 {
        self.0.mark_looks.fetch_add(1, Ordering::Relaxed);
        &self.0.words[self.index(cell, MARK_WORD)]
    }

    fn load(&self, cell: u32, word: usize) -> u64 {
        let index = self.index(cell, word);
        self.0.loads[index].fetch_add(1, Ordering::Relaxed);
        self.0.words[index].load(Ordering::Relaxed)
    }

    fn store(&self, cell: u32, word: usize, value: u64) {
        self.0.words[self.index(cell, word)].store(value, Ordering::Relaxed);
    }
}

fn message(number: u64) -> Descriptor {
    let low = number as u32;
    Descriptor {
        kind: [Kind::Observation, Kind::Action, Kind::Record][number as usize % 3],
        flags: low as u8 & 3,
        epoch: low ^ 5,
        sequence: number,
        slot: low.wrapping_mul(3),
        generation: low.wrapping_mul(5),
        offset: low.wrapping_mul(7),
        length: low.wrapping_mul(11),
        stamps: [number, !number, u64::MAX],
    }
}

fn record(number: u64) -> Vec<u8> {
    let length = [0, 1, 7, 8, 9, 383, 384][number as usize % 7];
    (0..length).map(|index| (index as u64 ^ number) as u8).collect()
}

fn push<O: Orders>(producer: &mut Producer<TestCells, O>, number: u64) -> Result<(), Full> {
    producer.try_push(&message(number), &record(number))
}

fn pop<O: Orders>(consumer: &mut Consumer<TestCells, O>) -> Result<Option<(Descriptor, Vec<u8>)>, Poison> {
    let mut bytes = [0xAA; RECORD_BYTES];
    Ok(consumer.try_pop(&mut bytes)?.map(|(descriptor, length)| (descriptor, bytes[..length].to_vec())))
}

#[test]
fn an_empty_ring_gives_nothing_one_message_comes_out_and_a_full_ring_takes_no_more() {
    let cells = TestCells::new(4, 0);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
    assert_eq!(pop(&mut consumer), Ok(None));
    push(&mut producer, 1).unwrap();
    assert_eq!(pop(&mut consumer), Ok(Some((message(1), record(1)))));
    assert_eq!(pop(&mut consumer), Ok(None));
    for number in 2..6 {
        assert_eq!(producer.free(), 6 - number as u32);
        push(&mut producer, number).unwrap();
    }
    assert_eq!(producer.free(), 0);
    assert_eq!(push(&mut producer, 6), Err(Full));
    assert_eq!(pop(&mut consumer), Ok(Some((message(2), record(2)))));
    push(&mut producer, 6).unwrap();
    assert_eq!(producer.poison(), None);
}

#[test]
fn a_record_of_every_length_comes_out_as_it_went_in() {
    let cells = TestCells::new(1, u32::MAX);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells));
    for length in 0..=RECORD_BYTES {
        let bytes: Vec<u8> = (0..length).map(|index| (index * 31 + length) as u8).collect();
        producer.try_push(&message(2), &bytes).unwrap();
        assert_eq!(pop(&mut consumer), Ok(Some((message(2), bytes))));
    }
}

#[test]
#[should_panic(expected = "a record of 385 bytes")]
fn a_record_that_is_too_long_is_the_callers_mistake() {
    let _ = Producer::new(TestCells::new(1, 0)).try_push(&message(0), &[0; RECORD_BYTES + 1]);
}

#[test]
#[should_panic(expected = "a ring of 3 cells")]
fn a_capacity_that_is_no_power_of_two_is_the_callers_mistake() {
    let _ = Consumer::new(TestCells::new(3, 0));
}

#[test]
fn a_pop_loads_each_word_of_the_peer_once() {
    let cells = TestCells::new(2, 7);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
    push(&mut producer, 5).unwrap();
    let count = |looks: &AtomicU32| looks.swap(0, Ordering::Relaxed);
    count(&cells.0.position_looks);
    count(&cells.0.mark_looks);
    assert_eq!(pop(&mut consumer), Ok(Some((message(5), record(5)))));
    let loads: Vec<u32> = cells.0.loads.iter().map(|count| count.load(Ordering::Relaxed)).collect();
    let used = record(5).len().div_ceil(8);
    // Position 7 is in cell 1.
    assert_eq!(loads[USED_WORDS..][..DESCRIPTOR_WORDS], [1; DESCRIPTOR_WORDS]);
    assert_eq!(loads[USED_WORDS + RECORD_WORD..][..used], vec![1; used]);
    assert_eq!(loads.iter().sum::<u32>() as usize, DESCRIPTOR_WORDS + used);
    // One load of the mark, one store of the head; the producer's position is nothing to the consumer.
    assert_eq!((count(&cells.0.mark_looks), count(&cells.0.position_looks)), (1, 1));
}

#[test]
fn a_push_into_a_ring_that_has_room_does_not_look_at_the_consumer() {
    let cells = TestCells::new(4, 7);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
    cells.0.position_looks.store(0, Ordering::Relaxed);
    (0..4).for_each(|number| push(&mut producer, number).unwrap());
    // Its own position, once a message.
    assert_eq!(cells.0.position_looks.swap(0, Ordering::Relaxed), 4);
    pop(&mut consumer).unwrap();
    cells.0.position_looks.store(0, Ordering::Relaxed);
    push(&mut producer, 4).unwrap();
    assert_eq!(cells.0.position_looks.load(Ordering::Relaxed), 2);
}

#[test]
fn only_the_mark_of_its_position_makes_a_message() {
    for start in [0, 7, u32::MAX] {
        let cells = TestCells::new(4, start);
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
        let cell = start & 3;
        for tail in [start.wrapping_add(1), 5, u32::MAX, 1 << 31] {
            cells.0.tail.store(tail, Ordering::Relaxed);
            assert_eq!(pop(&mut consumer), Ok(None));
        }
        for other in
            [0, 1, mark(start) ^ 1 << 32, mark(start.wrapping_sub(4)), mark(start.wrapping_add(1)), !0]
        {
            cells.mark(cell).store(other, Ordering::Relaxed);
            assert!(!consumer.has_something());
            assert_eq!(pop(&mut consumer), Ok(None));
        }
        push(&mut producer, 1).unwrap();
        assert!(consumer.has_something());
        assert_eq!(pop(&mut consumer), Ok(Some((message(1), record(1)))));
    }
}

#[test]
fn a_producer_that_died_between_mark_and_position_has_published() {
    for start in [0, u32::MAX] {
        let cells = TestCells::new(2, start);
        let mut producer = Producer::new(cells.clone());
        push(&mut producer, 1).unwrap();
        cells.0.tail.store(start, Ordering::Relaxed);
        assert_eq!(published_up_to(&cells), start.wrapping_add(1));
        let mut next = Producer::resume(cells.clone()).unwrap();
        assert_eq!(next.position(), start.wrapping_add(1));
        push(&mut next, 2).unwrap();
        assert_eq!(push(&mut next, 3), Err(Full));
        let mut consumer = Consumer::new(cells.clone());
        for number in [1, 2] {
            assert_eq!(pop(&mut consumer), Ok(Some((message(number), record(number)))));
        }
        assert_eq!(pop(&mut consumer), Ok(None));
        assert_eq!(published_up_to(&cells), start.wrapping_add(2));
    }
}

#[test]
fn a_ring_that_was_wiped_is_empty_at_any_position() {
    let cells = TestCells::new(2, 0);
    let mut producer = Producer::new(cells.clone());
    push(&mut producer, 1).unwrap();
    push(&mut producer, 2).unwrap();
    cells.0.tail.store(0, Ordering::Relaxed);
    // The marks of the last one's messages would be taken for the next one's.
    assert!(Consumer::new(cells.clone()).has_something());
    wipe(&cells);
    assert_eq!(Producer::resume(cells.clone()).unwrap().position(), 0);
    assert_eq!(pop(&mut Consumer::new(cells)), Ok(None));
}

#[test]
fn a_head_that_is_ahead_or_goes_back_is_poison_for_good() {
    for head in [3, 0, u32::MAX, 1 << 31] {
        let cells = TestCells::new(4, 0);
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
        push(&mut producer, 0).unwrap();
        push(&mut producer, 1).unwrap();
        pop(&mut consumer).unwrap();
        assert_eq!(producer.free(), 3);
        cells.0.head.store(head, Ordering::Relaxed);
        assert_eq!(producer.free(), 0);
        assert_eq!(producer.poison(), Some(Poison::Head { head, seen: 1, tail: 2 }));
        cells.0.head.store(1, Ordering::Relaxed);
        assert_eq!(push(&mut producer, 2), Err(Full));
        assert_eq!(producer.free(), 0);
    }
}

#[test]
fn nonsense_in_a_cell_is_poison_for_good() {
    let cells = TestCells::new(2, 0);
    let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
    push(&mut producer, 0).unwrap();
    cells.store(0, 0, 9);
    assert_eq!(pop(&mut consumer), Err(Poison::Kind { found: 9 }));
    cells.store(0, 0, 1);
    assert_eq!(pop(&mut consumer), Err(Poison::Kind { found: 9 }));
}

#[test]
fn who_takes_over_checks_the_distance() {
    for (tail, head, good) in [(0, 0, true), (2, 0, true), (1, u32::MAX, true), (3, 0, false), (0, 1, false)]
    {
        let cells = TestCells::new(2, 0);
        cells.0.tail.store(tail, Ordering::Relaxed);
        cells.0.head.store(head, Ordering::Relaxed);
        let producer = Producer::resume(cells.clone());
        assert_eq!(producer.is_ok(), good, "{tail} {head}");
        if let Ok(mut producer) = producer {
            assert_eq!(producer.position(), tail);
            assert_eq!(producer.free(), 2 - tail.wrapping_sub(head));
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Push,
    Pop,
    /// The side is dropped and built anew on the same words.
    ReplaceProducer,
    ReplaceConsumer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => Just(Step::Push),
        5 => Just(Step::Pop),
        1 => Just(Step::ReplaceProducer),
        1 => Just(Step::ReplaceConsumer)
    ];
    prop::collection::vec(step, 0..120)
}

/// Near the wrap-around in half of the cases.
fn starts() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0..40_u32).prop_map(|back| u32::MAX - back)]
}

proptest! {
    #[test]
    fn it_is_a_bounded_queue_from_any_position_and_through_any_take_over(
        steps in steps(),
        start in starts(),
        power in 0..4_u32,
    ) {
        let capacity = 1 << power;
        let cells = TestCells::new(capacity, start);
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
        let mut model = VecDeque::new();
        let mut number = 0;
        for step in steps {
            match step {
                Step::Push => {
                    let pushed = push(&mut producer, number);
                    prop_assert_eq!(pushed.is_ok(), model.len() < capacity as usize);
                    if pushed.is_ok() {
                        model.push_back(number);
                        number += 1;
                    }
                }
                Step::Pop => {
                    let expected = model.pop_front().map(|number| (message(number), record(number)));
                    prop_assert_eq!(pop(&mut consumer), Ok(expected));
                }
                Step::ReplaceProducer => producer = Producer::resume(cells.clone()).unwrap(),
                Step::ReplaceConsumer => consumer = Consumer::new(cells.clone()),
            }
            prop_assert_eq!(producer.free() as usize, capacity as usize - model.len());
            prop_assert_eq!(producer.position(), start.wrapping_add(number as u32));
        }
    }

    #[test]
    fn a_peer_that_writes_anything_anywhere_is_poison_at_worst(
        attacks in prop::collection::vec((0..6_u8, any::<u32>(), any::<u64>()), 0..200),
        start in starts(),
        power in 0..4_u32,
    ) {
        let cells = TestCells::new(1 << power, start);
        let (mut producer, mut consumer) = (Producer::new(cells.clone()), Consumer::new(cells.clone()));
        // Everything that can go wrong in memory is asserted by the cells themselves.
        for (attack, small, large) in attacks {
            match attack {
                0 => {
                    // Near what is true, where half-right checks fail.
                    let near = consumer.position().wrapping_add(small % 32).wrapping_sub(16);
                    cells.0.tail.store(if large % 2 == 0 { near } else { small }, Ordering::Relaxed);
                }
                1 => {
                    let near = producer.position().wrapping_add(small % 32).wrapping_sub(16);
                    cells.0.head.store(if large % 2 == 0 { near } else { small }, Ordering::Relaxed);
                }
                2 => cells.store(small % (1 << power), large as usize % USED_WORDS, large),
                3 => {
                    let free = producer.free();
                    prop_assert!(free <= 1 << power);
                    prop_assert_eq!(push(&mut producer, large).is_ok(), free > 0);
                }
                _ => {
                    let position = consumer.position();
                    let popped = pop(&mut consumer);
                    if let Err(poison) = popped {
                        prop_assert_eq!(consumer.position(), position);
                        prop_assert_eq!(pop(&mut consumer), Err(poison));
                    }
                }
            }
        }
    }
}

#[test]
fn a_peer_that_scribbles_while_we_read_and_write_is_poison_at_worst() {
    let cells = TestCells::new(4, u32::MAX - 1);
    let stop = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // xorshift; any seed does.
            let mut state = 0x9E37_79B9_7F4A_7C15_u64;
            while stop.load(Ordering::Relaxed) == 0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                let near = (state >> 32) as u32 % 8;
                match state % 4 {
                    0 => cells
                        .0
                        .tail
                        .store(cells.0.head.load(Ordering::Relaxed).wrapping_add(near), Ordering::Relaxed),
                    1 => cells
                        .0
                        .head
                        .store(cells.0.tail.load(Ordering::Relaxed).wrapping_sub(near), Ordering::Relaxed),
                    _ => cells.store(near % 4, (state >> 8) as usize % 9, state >> 16 & 0x0F0F_0303),
                }
            }
        });
        let (mut poisons, mut popped) = (0, 0);
        let mut round = 0;
        // On a busy machine the peer may sleep through any number of rounds.
        while round < 20_000 || poisons == 0 || popped == 0 {
            round += 1;
            if round > 20_000 {
                std::thread::yield_now();
            }
            let mut producer = Producer::new(cells.clone());
            let mut consumer = Consumer::new(cells.clone());
            for number in 0..4 {
                let _ = push(&mut producer, round + number);
                match pop(&mut consumer) {
                    Ok(found) => popped += usize::from(found.is_some()),
                    Err(_) => poisons += 1,
                }
            }
        }
        stop.store(1, Ordering::Relaxed);
    });
}

#[test]
fn two_threads_see_every_message_once_and_in_order() {
    const MESSAGES: u64 = 100_000;
    let cells = TestCells::new(8, u32::MAX - 1000);
    std::thread::scope(|scope| {
        let mut producer = Producer::new(cells.clone());
        scope.spawn(move || {
            for number in 0..MESSAGES {
                while producer.try_push(&message(number), &number.to_ne_bytes()).is_err() {
                    std::thread::yield_now();
                }
            }
        });
        let mut consumer = Consumer::new(cells.clone());
        for number in 0..MESSAGES {
            let popped = loop {
                match pop(&mut consumer).unwrap() {
                    Some(popped) => break popped,
                    None => std::thread::yield_now(),
                }
            };
            assert_eq!(popped, (message(number), number.to_ne_bytes().to_vec()));
        }
    });
}
