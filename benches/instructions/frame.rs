//! Instructions of what the protocol core does in a frame, counted by callgrind: the same on every machine with the same
//! compiler, however busy it is. More than a budget is a failure.
//!
//! The frame is the contest's form: a session id of 36 bytes, a UUID.

#![allow(clippy::exit, unused_qualifications, missing_docs, reason = "what the macros of gungraun make")]

use core::hint::black_box;

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind, LibraryBenchmarkConfig};
use sidecar_core::tunnel::SessionId;
use sidecar_core::tunnel::data::{MAX_DATA_HEAD, data_head_size, encode_data_head, skip_data_head};
use sidecar_core::ws::frame::{Decoded, Header, MAX_HEADER, Opcode, decode, encode};
use sidecar_core::ws::mask;

/// The design's, for decoding an observation's header and encoding an action of 64 bytes.
const FRAME: u64 = 250;
/// What each half took when it was measured (107 and 146), rounded up.
const DECODE: u64 = 110;
const ENCODE: u64 = 150;

type Payload = (usize, u64);

const SESSION: &str = "0b0c1c0e-5b64-4a8e-9a2b-6f9d1f0e7a11";
const KEY: [u8; 4] = [0x12, 0x34, 0x56, 0x78];
const ACTION: usize = 64;

/// What a frame starts from: the first bytes of an observation of 2 MiB, a session, room
/// for an action.
struct Start {
    received: [u8; MAX_HEADER + MAX_DATA_HEAD],
    session: SessionId,
    head: [u8; MAX_HEADER + MAX_DATA_HEAD],
    /// Its length is not known before it is there, as in life.
    action: Box<[u8]>,
}

fn start() -> Box<Start> {
    let session = SessionId::new(SESSION).expect("a UUID is short enough");
    let mut received = [0; MAX_HEADER + MAX_DATA_HEAD];
    let mut header = [0; MAX_HEADER];
    let length = (4 + SESSION.len() + (2 << 20)) as u64;
    let size = encode(&Header { fin: true, opcode: Opcode::Binary, masked: None, length }, &mut header);
    received[..size].copy_from_slice(&header[..size]);
    encode_data_head(&session, &mut received[size..]);
    Box::new(Start {
        received,
        session,
        head: [0; MAX_HEADER + MAX_DATA_HEAD],
        action: vec![0x5a; black_box(ACTION)].into_boxed_slice(),
    })
}

/// The headers of an observation; where its payload starts, and how long it is.
#[inline(always)]
fn take_observation(start: &mut Start) -> Option<Payload> {
    let Ok(Decoded::Header { header, size }) = decode(black_box(&start.received)) else { return None };
    let head = skip_data_head(&start.received[size..], &start.session)?;
    Some((size + head, header.length - head as u64))
}

/// A whole action: both headers, and its payload masked.
#[inline(always)]
fn make_action(start: &mut Start) -> usize {
    let tunnel = data_head_size(&start.session);
    let length = (tunnel + start.action.len()) as u64;
    let (front, _) = start.head.split_first_chunk_mut().expect("it has room for a header and more");
    let size = encode(&Header { fin: true, opcode: Opcode::Binary, masked: Some(KEY), length }, front);
    encode_data_head(&start.session, &mut start.head[size..]);
    mask::apply(KEY, 0, &mut start.head[size..size + tunnel]);
    mask::apply(KEY, tunnel, &mut start.action);
    size + tunnel
}

fn at_most(instructions: u64) -> LibraryBenchmarkConfig {
    let callgrind = Callgrind::default().hard_limits([(EventKind::Ir, instructions)]).clone();
    LibraryBenchmarkConfig::default().tool(callgrind).clone()
}

#[library_benchmark(config = at_most(DECODE))]
#[bench::observation(start())]
fn decode_observation(mut start: Box<Start>) -> (Option<Payload>, Box<Start>) {
    (take_observation(black_box(&mut start)), start)
}

#[library_benchmark(config = at_most(ENCODE))]
#[bench::action(start())]
fn encode_action(mut start: Box<Start>) -> (usize, Box<Start>) {
    (make_action(black_box(&mut start)), start)
}

#[library_benchmark(config = at_most(FRAME))]
#[bench::both(start())]
fn frame(mut start: Box<Start>) -> (Option<Payload>, usize, Box<Start>) {
    let frame = black_box(&mut start);
    (take_observation(frame), make_action(frame), start)
}

library_benchmark_group!(name = core_frame, benchmarks = [decode_observation, encode_action, frame]);
main!(library_benchmark_groups = core_frame);
