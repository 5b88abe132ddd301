//! Generates random blocks of samples for the tests of all modules that handle blocks.

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;
use proptest::prelude::*;

use super::{Block, Point, Track};

fn any_track() -> impl Strategy<Value = Track> {
    let ids = (0u32..4, 1u32..6).prop_map(|(worker, pid)| (WorkerId(worker), pid));
    prop_oneof![
        Just(Track::Tree),
        Just(Track::Machine),
        Just(Track::Supervisor),
        ids.clone().prop_map(|(worker, pid)| Track::Worker { worker, pid }),
        ids.prop_map(|(worker, pid)| Track::Runner { worker, pid }),
    ]
}

/// Generates blocks in which times never decrease. Amounts of memory are whole KiB, and can be larger than the memory
/// of any machine.
pub(crate) fn any_block() -> impl Strategy<Value = Block> {
    let figure = prop_oneof![0u64..64, 0u64..(1 << 54)].prop_map(Bytes::kib);
    let step = (any_track(), 0u64..300, figure.clone(), figure);
    (0u64..1_900_000_000_000, proptest::collection::vec(step, 0..60)).prop_map(|(start, steps)| {
        let mut block = Block::new(1);
        let mut at = start;
        for (track, later, first, second) in steps {
            at += later;
            block.push(track, Point { at, first, second });
        }
        block
    })
}
