//! Tests of the module above.

use core::time::Duration;

use sidecar_core::time::Instant;

use super::*;
use crate::layout::DOWN;
use crate::testing::{SMALL, Side, blank};

#[test]
fn buckets_cover_every_duration_in_order_and_closely() {
    let mut last = 0;
    for exponent in 0..42 {
        for offset in [0_u64, 1, 2, 3] {
            let nanos = (1_u64 << exponent) + offset * (1 << exponent) / 4;
            let found = bucket(nanos);
            assert!(found >= last && found < BUCKETS, "{nanos} ns in bucket {found} after {last}");
            last = found;
            if exponent <= LAST_EXPONENT {
                let top = bucket_top(found);
                assert!(top >= nanos && (top - nanos) * 31 <= nanos, "{nanos} ns has top {top}");
                assert_eq!(bucket(top), found);
                assert_eq!(bucket(top + 1), (found + 1).min(BUCKETS - 1));
            }
        }
    }
    assert_eq!(bucket(u64::MAX), BUCKETS - 1);
}

#[test]
fn percentiles_are_those_of_the_recorded_values() {
    let stats = Stats::new(blank(DOWN));
    assert_eq!(stats.snapshot().stage(Stage::Worker), Summary::default());
    for micros in 1..=1000 {
        stats.record(Stage::Worker, Duration::from_micros(micros));
    }
    let summary = stats.snapshot().stage(Stage::Worker);
    assert_eq!(summary.count, 1000);
    for (found, exact) in [(summary.p50, 500), (summary.p90, 900), (summary.p99, 990)] {
        let exact = Duration::from_micros(exact);
        assert!(found >= exact && found <= exact + exact / 31, "{found:?} for {exact:?}");
    }
    assert_eq!(summary.max, Duration::from_millis(1));
    assert_eq!(summary.mean, Duration::from_nanos(500_500));
    stats.record(Stage::Send, Duration::from_secs(1 << 40));
    let longest = stats.snapshot().stage(Stage::Send);
    assert_eq!(longest.p50, longest.max, "what has no bucket of its own is at most the maximum");
    assert_eq!(stats.snapshot().stage(Stage::Total).count, 0);
}

#[test]
fn a_region_is_read_from_outside_while_its_owner_lives_and_after() {
    let side = Side::new(&SMALL);
    side.owner.stats().add(Counter::BytesIn, 77);
    side.owner.stats().set(Gauge::Phase, 2);
    side.owner.errors().note(3, "something", Instant::from_nanos(9));
    let snapshot = Stats::open_read_only(&side.path).unwrap();
    assert_eq!((snapshot.counter(Counter::BytesIn), snapshot.gauge(Gauge::Phase)), (77, 2));
    assert_eq!(snapshot.errors[0].text, "something");
    let owner = snapshot.owner.unwrap();
    assert_eq!((owner.pid, owner.alive, owner.ended), (std::process::id(), true, false));
    assert_eq!(owner.agent, "agent-1");

    let (path, directory) = (side.path.clone(), Arc::clone(&side.directory));
    drop(side);
    assert!(!Stats::open_read_only(&path).unwrap().owner.unwrap().alive);
    std::fs::write(&path, "short").unwrap();
    assert!(matches!(Stats::open_read_only(&path), Err(SnapshotError::NotARegion { .. })));
    assert!(matches!(Stats::open_read_only(directory.path()), Err(SnapshotError::NotARegion { .. })));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(Stats::open_read_only(&path), Err(SnapshotError::Io { .. })));
}
