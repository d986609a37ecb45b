//! The protocol core alone, in time: header decode, action encode, mask. For comparing changes on one machine.

#![allow(missing_docs, reason = "what the macros of criterion make")]

use core::hint::black_box;
use core::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sidecar_benches::observation::{Observation, SESSION};
use sidecar_core::tunnel::SessionId;
use sidecar_core::tunnel::data::{DataHead, MAX_DATA_HEAD, encode_data_head};
use sidecar_core::ws::frame::{Decoded, Header, MAX_HEADER, Opcode, decode, encode};
use sidecar_core::ws::mask;

const KEY: [u8; 4] = [0x12, 0x34, 0x56, 0x78];

fn headers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("header");
    group.measurement_time(Duration::from_secs(2));
    for bytes in [64_usize, 16 << 10, 2 << 20] {
        let observation = Observation::new(bytes);
        let mut head = DataHead::new();
        group.bench_with_input(BenchmarkId::new("decode", bytes), observation.frame(), |bencher, frame| {
            bencher.iter(|| {
                let Ok(Decoded::Header { size, .. }) = decode(black_box(frame)) else { return false };
                head.reset();
                head.feed(&frame[size..]).is_ok()
            });
        });
    }
    let session = SessionId::new(SESSION).expect("it is short enough");
    group.bench_function("encode an action of 64 bytes", |bencher| {
        let mut header = [0; MAX_HEADER];
        let mut out = [0; MAX_DATA_HEAD];
        let mut action = [0x5a_u8; 64];
        bencher.iter(|| {
            let tunnel = encode_data_head(black_box(&session), &mut out);
            let length = (tunnel + action.len()) as u64;
            let size =
                encode(&Header { fin: true, opcode: Opcode::Binary, masked: Some(KEY), length }, &mut header);
            mask::apply(KEY, 0, &mut out[..tunnel]);
            mask::apply(KEY, tunnel, black_box(&mut action));
            size
        });
    });
    group.finish();
}

fn masks(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("mask");
    group.measurement_time(Duration::from_secs(2));
    for bytes in [64_usize, 1 << 10, 16 << 10, 256 << 10, 4 << 20] {
        let mut data = vec![0x5a_u8; bytes];
        group.throughput(Throughput::BytesDecimal(bytes as u64));
        group.bench_function(BenchmarkId::from_parameter(bytes), |bencher| {
            bencher.iter(|| mask::apply(black_box(KEY), 0, black_box(&mut data)));
        });
    }
    group.finish();
}

criterion_group!(benches, headers, masks);
criterion_main!(benches);
