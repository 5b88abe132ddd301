//! Collects statistics on how the warps of a launch access memory: bank conflicts in shared memory, and sectors that
//! are accessed in global memory. Also counts branches at which the lanes of a warp diverge.
//!
//! The statistics include loads, stores and atomic operations on shared and global memory, but not asynchronous copies,
//! `ldmatrix`, `wmma` and branches through a table. If a warp accesses memory through generic addresses, the address of
//! its first active lane determines whether this is an access to shared or to global memory.

use std::collections::BTreeMap;

use super::lanes;
use crate::code::{Kernel, MemoryOp, MemorySpace};
use crate::decode::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};

/// The number of banks of shared memory. Consecutive words of 4 bytes are in consecutive banks.
const BANKS: u64 = 32;
const BANK_BYTES: u64 = 4;
/// The largest number of bytes of shared memory that a warp accesses in one pass.
const PASS_BYTES: u64 = BANKS * BANK_BYTES;
/// The size of a sector, the unit in which global memory is accessed, in bytes.
const SECTOR: u64 = 32;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of branches that only some of a warp's active lanes took.
    pub divergent_branches: u64,
    pub shared: Traffic,
    pub global: Traffic,
}

/// The accesses that warps make to one kind of memory. An access consists of parts: passes over the banks of shared
/// memory, or sectors of 32 bytes of global memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The number of accesses, each of which is made by up to 32 lanes at once.
    pub accesses: u64,
    pub parts: u64,
    /// The smallest number of parts in which the same number of bytes could have been accessed.
    pub fewest: u64,
    /// The PTX line of the instruction with the largest number of unnecessary parts, and its source line, if known.
    /// `None` if no part is unnecessary.
    pub worst: Option<(u32, Option<crate::fault::SourceLine>)>,
}

/// The accesses of one instruction: their number, their parts, and the fewest possible parts.
type Line = [u64; 3];

/// Collects the counts of one host thread.
#[derive(Debug, Default)]
pub struct Counter {
    pub divergent_branches: u64,
    /// The accesses to shared memory and to global memory, by instruction.
    lines: [BTreeMap<u32, Line>; 2],
}

impl Counter {
    pub fn access(&mut self, op: &MemoryOp, addresses: &[u64; 32], active: u32, pc: u32) {
        let within = |window: u64| addresses[super::first_lane(active)].wrapping_sub(window) < WINDOW_BYTES;
        let is_shared = match op.space {
            MemorySpace::Shared => true,
            MemorySpace::Global => false,
            MemorySpace::Generic if within(SHARED_WINDOW) => true,
            MemorySpace::Generic if within(LOCAL_WINDOW) || within(PARAM_WINDOW) => return,
            MemorySpace::Generic => false,
            MemorySpace::Local | MemorySpace::Param => return,
        };
        let bytes = u64::from(op.bytes);
        let (parts, fewest) =
            if is_shared { passes(addresses, active, bytes) } else { sectors(addresses, active, bytes) };
        let line = self.lines[usize::from(!is_shared)].entry(pc).or_default();
        for (sum, more) in line.iter_mut().zip([1, parts, fewest]) {
            *sum += more;
        }
    }

    pub fn absorb(&mut self, other: &Self) {
        self.divergent_branches += other.divergent_branches;
        for (lines, more) in self.lines.iter_mut().zip(&other.lines) {
            for (pc, counts) in more {
                for (sum, count) in lines.entry(*pc).or_default().iter_mut().zip(counts) {
                    *sum += count;
                }
            }
        }
    }

    pub fn counts(&self, kernel: &Kernel, files: &dyn Fn(u32) -> Option<String>) -> Counts {
        let [shared, global] = self.lines.each_ref().map(|lines| traffic(lines, kernel, files));
        Counts { divergent_branches: self.divergent_branches, shared, global }
    }
}

fn traffic(lines: &BTreeMap<u32, Line>, kernel: &Kernel, files: &dyn Fn(u32) -> Option<String>) -> Traffic {
    let sum = |which: usize| lines.values().map(|line| line[which]).sum();
    let worst = lines.iter().max_by_key(|(_, [_, parts, fewest])| parts - fewest);
    let worst = worst.filter(|(_, [_, parts, fewest])| fewest < parts).map(|(pc, _)| {
        let line = kernel.lines.get(*pc as usize).copied().unwrap_or(0);
        (line, super::launch::source_of(kernel, *pc as usize, files))
    });
    Traffic { accesses: sum(0), parts: sum(1), fewest: sum(2), worst }
}

/// Returns the number of sectors that the lanes access, and the smallest number of sectors that could contain the same
/// number of bytes.
fn sectors(addresses: &[u64; 32], active: u32, bytes: u64) -> (u64, u64) {
    let mut found: Vec<u64> = lanes(active).map(|lane| addresses[lane]).collect();
    if !found.is_sorted() {
        found.sort_unstable();
    }
    found.dedup();
    let needed = (found.len() as u64 * bytes).div_ceil(SECTOR).max(1);
    found.dedup_by_key(|address| *address / SECTOR);
    ((found.len() as u64).max(needed), needed)
}

/// Returns the number of passes over the banks, and the number that would suffice without bank conflicts. In each pass,
/// a bank can serve one word, which may be for several lanes. If the 32 lanes access more than 4 bytes each, they need
/// several passes, each of which serves some of the lanes.
fn passes(addresses: &[u64; 32], active: u32, bytes: u64) -> (u64, u64) {
    let lanes_at_once = (PASS_BYTES / bytes.max(BANK_BYTES)) as usize;
    let (mut all, mut fewest) = (0, 0);
    for first in (0..32).step_by(lanes_at_once) {
        let group = lanes(active).filter(|lane| (first..first + lanes_at_once).contains(lane));
        let mut words: Vec<u64> = group
            .flat_map(|lane| (0..bytes.div_ceil(BANK_BYTES)).map(move |word| (lane, word)))
            .map(|(lane, word)| addresses[lane] / BANK_BYTES + word)
            .collect();
        if words.is_empty() {
            continue;
        }
        words.sort_unstable();
        words.dedup();
        let mut banks = [0_u64; BANKS as usize];
        for word in &words {
            banks[(word % BANKS) as usize] += 1;
        }
        all += banks.iter().copied().max().unwrap_or(0);
        fewest += (words.len() as u64).div_ceil(BANKS);
    }
    (all, fewest)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the addresses of all lanes, where lane `l` accesses `address(l)`.
    fn at(address: impl Fn(u64) -> u64) -> [u64; 32] {
        std::array::from_fn(|lane| address(lane as u64))
    }

    #[test]
    fn sectors_follow_the_stride_of_the_lanes() {
        const ALL: u32 = u32::MAX;
        // Each row contains the addresses, the active lanes, the bytes that each lane accesses, and the expected
        // numbers of sectors: those that are accessed, and the fewest that would suffice.
        for (addresses, active, bytes, expected) in [
            (at(|lane| 4 * lane), ALL, 4, (4, 4)),
            (at(|lane| 124 - 4 * lane), ALL, 4, (4, 4)),
            (at(|lane| 8 * lane), ALL, 4, (8, 4)),
            (at(|lane| 128 * lane), ALL, 4, (32, 4)),
            (at(|lane| 4 * lane + 4), ALL, 4, (5, 4)),
            (at(|lane| 16 * lane), ALL, 16, (16, 16)),
            (at(|lane| 2 * lane), ALL, 2, (2, 2)),
            (at(|_| 64), ALL, 4, (1, 1)),
            (at(|lane| 128 * lane), 1, 4, (1, 1)),
            (at(|lane| 128 * lane), 0xff, 4, (8, 1)),
        ] {
            assert_eq!(sectors(&addresses, active, bytes), expected, "{addresses:?} {active:x} {bytes}");
        }
    }

    #[test]
    fn passes_follow_the_banks_of_the_lanes() {
        const ALL: u32 = u32::MAX;
        for (addresses, active, bytes, expected) in [
            (at(|lane| 4 * lane), ALL, 4, (1, 1)),
            (at(|lane| 4 * (31 - lane)), ALL, 4, (1, 1)),
            (at(|lane| 8 * lane), ALL, 4, (2, 1)),
            (at(|lane| 128 * lane), ALL, 4, (32, 1)),
            // With rows of 33 words, every lane accesses a different bank.
            (at(|lane| 132 * lane), ALL, 4, (1, 1)),
            (at(|_| 64), ALL, 4, (1, 1)),
            (at(|lane| lane), ALL, 1, (1, 1)),
            (at(|lane| 8 * lane), ALL, 8, (2, 2)),
            (at(|lane| 16 * lane), ALL, 16, (4, 4)),
            (at(|lane| 128 * lane), ALL, 16, (32, 4)),
            (at(|lane| 128 * lane), 0x3, 4, (2, 1)),
        ] {
            assert_eq!(passes(&addresses, active, bytes), expected, "{addresses:?} {active:x} {bytes}");
        }
    }
}
