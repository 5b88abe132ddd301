//! Tests how Linux counts page-locked memory, and whether freeing it returns the memory to the system.

use anyhow::Result;

use crate::Arguments;
use crate::cuda::{Device, Pinned};
use crate::row::{Row, change, mib, resident};

const BYTES: usize = 512 << 20;
const BYTES_OF_TWIN: usize = 16 << 20;

pub(crate) fn rows(arguments: &Arguments) -> Result<Vec<Row>> {
    let open = Device::open(arguments)?;
    let bytes = arguments.size(BYTES, BYTES_OF_TWIN);
    let before = resident();
    let mut pinned = Pinned::allocate(&open, bytes)?;
    let allocated = resident();
    pinned.as_mut_slice().fill(1);
    let written = resident();
    pinned.release()?;
    let freed = resident();
    let total = |kinds: &[(&str, u64); 5]| kinds[..3].iter().map(|(_, bytes)| bytes).sum::<u64>();
    let stays = total(&freed).saturating_sub(total(&before));
    let given_back = if stays < bytes as u64 / 10 { "yes" } else { "no" };
    Ok(vec![
        Row::measured(
            format!("what kind of memory does pinned memory count as ({})?", mib(bytes as u64)),
            change(&before, &written),
            format!("right after the allocation, unwritten: {}", change(&before, &allocated)),
        ),
        Row::measured(
            "does freeing pinned memory lower RSS?",
            given_back,
            format!("{}; {} remain", change(&written, &freed), mib(stays)),
        ),
    ])
}
