//! Tests how memory samples are stored: thinned out to stay within their limit, and refused when damaged.

use opt_shared::ids::WorkerId;
use opt_shared::message::Role;
use opt_shared::units::Bytes;

use super::super::*;
use super::fixtures::{at, started_store, store_with_events};
use crate::record::timeline::{Block, Group, Kind, MarkKind, Point, Track, milliseconds};

const VERIFIER: Track = Track::Worker { worker: WorkerId(3), pid: 4242 };

/// Returns five seconds of samples at intervals of two milliseconds. All of them differ, and the highest is `peak`.
fn changing_samples(start: u64, width: u64, peak: Bytes) -> Block {
    let mut block = Block::new(width);
    for step in 0..2500 {
        let owed = if step == 1234 { peak } else { Bytes::kib(50_000 + (step * 7919) % 4001) };
        let point = Point { at: start + 2 * step, first: owed, second: Bytes::ZERO };
        block.push(Track::Tree, point);
        block.push(VERIFIER, point);
    }
    block
}

fn stored_bytes(store: &Store) -> Bytes {
    store
        .connection
        .query_row("SELECT coalesce(sum(bytes), 0) FROM sample", [], |row| {
            Ok(Bytes::new(row.get::<_, i64>(0)?.unsigned_abs()))
        })
        .expect("reads")
}

#[test]
fn long_run_stays_within_its_sample_budget_and_keeps_its_peak() {
    const BUDGET: Bytes = Bytes::kib(256);
    let folder = tempfile::tempdir().expect("folder");
    let mut store = store_with_events(folder.path());
    let start = milliseconds(at(0));
    let peak = Bytes::gib(3);
    let (mut width, mut most) = (1, Bytes::ZERO);
    for number in 0..400 {
        let peak = if number == 77 { peak } else { Bytes::mib(60) };
        width = store
            .samples_within(&changing_samples(start + number * 5000, width, peak), BUDGET)
            .expect("keeps");
        most = most.max(stored_bytes(&store));
    }
    assert!(1 < width, "it had to be thinned out");
    assert_eq!(store.samples_width().expect("reads"), width);
    // Thinning happens after a write, so the total may exceed the budget by one block.
    assert!(most <= BUDGET + Bytes::kib(64), "{most}");
    let timeline = store.timeline(500).expect("loads");
    assert_eq!(timeline.tree.peak(), peak);
    let lane = timeline.lanes.iter().find(|lane| lane.worker == WorkerId(3)).expect("its worker");
    assert_eq!((lane.role, lane.series.peak()), (Role::Verifier, peak));
    assert_eq!(timeline.groups[&Group::Workers(Kind::Verifier)].peak(), peak);
    assert_eq!((timeline.from, timeline.to), (start, start + 400 * 5000 - 2));
    assert!(timeline.tree.points.len() <= 2 * 501, "{}", timeline.tree.points.len());
}

#[test]
fn timeline_has_phases_and_kills() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = store_with_events(folder.path());
    store.samples(&changing_samples(milliseconds(at(0)), 1, Bytes::gib(1))).expect("keeps");
    store.samples(&Block::new(1)).expect("nothing to keep is no error");
    drop(store);
    let timeline = Store::read(folder.path()).expect("opens").timeline(100).expect("loads");
    assert_eq!(timeline.phases.len(), 1);
    assert_eq!(timeline.phases[0].candidate.as_deref(), Some("fast.c"));
    let kinds: Vec<MarkKind> = timeline.marks.iter().map(|mark| mark.kind).collect();
    assert!(kinds.contains(&MarkKind::KilledRunner), "{kinds:?}");
}

#[test]
fn run_without_samples_has_an_empty_timeline() {
    let folder = tempfile::tempdir().expect("folder");
    assert!(started_store(folder.path()).timeline(100).expect("loads").is_empty());
}

#[test]
fn damaged_samples_are_refused_with_the_number_of_their_block() {
    let folder = tempfile::tempdir().expect("folder");
    let mut store = started_store(folder.path());
    for second in 0..3 {
        store.samples(&changing_samples(milliseconds(at(second * 5)), 1, Bytes::gib(1))).expect("keeps");
    }
    store
        .connection
        .execute(
            "UPDATE sample SET data = CAST(substr(data, 1, 40) || x'00ff00' || substr(data, 44) AS BLOB) WHERE key = 2",
            [],
        )
        .expect("damages");
    let error = store.timeline(100).expect_err("refuses");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    assert!(error.to_string().contains("block 2 of the samples: its checksum is wrong"), "{error}");
    // The rest of the run is still readable.
    assert!(store.load().is_ok());
}
