//! The fast path for accesses of one element for each lane, executed for all lanes at once. Unusual accesses use the
//! slow path, which goes lane by lane and reports faults. All lanes are checked before anything is written.

use super::block::BlockState;
use super::lanes;
use super::warp::Warp;
use crate::code::{File, MemoryAction, MemoryOp, MemorySpace, Slot};
use crate::memory::Allocation;

/// The pattern of the addresses of all 32 lanes.
enum Pattern {
    /// Consecutive words.
    Row,
    /// The same address in all lanes.
    Same,
    Other,
}

#[inline(always)]
fn pattern(addresses: &[u64; 32], active: u32, bytes: u32) -> Pattern {
    if active != u32::MAX || bytes != 4 {
        return Pattern::Other;
    }
    let first = addresses[0];
    let (mut row, mut same) = (true, true);
    for (lane, address) in addresses.iter().enumerate() {
        row &= *address == first.wrapping_add(4 * lane as u64);
        same &= *address == first;
    }
    match (row, same) {
        (true, _) => Pattern::Row,
        (_, true) => Pattern::Same,
        _ => Pattern::Other,
    }
}

impl Warp {
    /// Tries to do the access. Returns false if the slow path has to do it.
    pub fn all_at_once(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        at: &[u64; 32],
        active: u32,
    ) -> bool {
        if op.element != op.bytes || op.element == 1 || (op.order.is_strong() && op.element == 8) {
            return false;
        }
        match &op.action {
            MemoryAction::Load { signed, to } => {
                let [Some(slot)] = to.as_slice() else { return false };
                if slot.file == File::Flag || (*signed && op.element * 8 != slot.bits) {
                    return false;
                }
                match op.space {
                    MemorySpace::Shared => match op.element {
                        2 => self.load_shared::<2>(block, *slot, at, active),
                        4 => self.load_shared::<4>(block, *slot, at, active),
                        _ => self.load_shared::<8>(block, *slot, at, active),
                    },
                    MemorySpace::Global => match op.element {
                        2 => self.load_global::<2>(block, *slot, at, active),
                        4 => self.load_global::<4>(block, *slot, at, active),
                        _ => self.load_global::<8>(block, *slot, at, active),
                    },
                    _ => false,
                }
            }
            MemoryAction::Store { from } => {
                let [slot] = from.as_slice() else { return false };
                match op.space {
                    MemorySpace::Shared => match op.element {
                        2 => self.store_shared::<2>(block, *slot, at, active),
                        4 => self.store_shared::<4>(block, *slot, at, active),
                        _ => self.store_shared::<8>(block, *slot, at, active),
                    },
                    MemorySpace::Global => match op.element {
                        2 => self.store_global::<2>(block, *slot, at, active),
                        4 => self.store_global::<4>(block, *slot, at, active),
                        _ => self.store_global::<8>(block, *slot, at, active),
                    },
                    _ => false,
                }
            }
            MemoryAction::Atomic { .. } => false,
        }
    }

    fn load_shared<const BYTES: u32>(
        &mut self,
        block: &BlockState<'_>,
        slot: Slot,
        at: &[u64; 32],
        active: u32,
    ) -> bool {
        let shared = &block.shared;
        if slot.file == File::Narrow {
            let row = &mut self.registers.narrow[slot.row as usize];
            match pattern(at, active, BYTES) {
                Pattern::Row => return shared.load_row(at[0], row, block.checks_reads),
                Pattern::Same => {
                    let Some((value, state)) = shared.get(at[0], 4) else { return false };
                    if !state.allows_read(block.checks_reads) {
                        return false;
                    }
                    *row = [value as u32; 32];
                    return true;
                }
                Pattern::Other => {}
            }
        }
        let mut values = [0; 32];
        for lane in lanes(active) {
            match shared.get(at[lane], BYTES) {
                Some((value, state)) if state.allows_read(block.checks_reads) => values[lane] = value,
                _ => return false,
            }
        }
        self.put_values(slot, &values, active);
        true
    }

    fn store_shared<const BYTES: u32>(
        &mut self,
        block: &mut BlockState<'_>,
        slot: Slot,
        at: &[u64; 32],
        active: u32,
    ) -> bool {
        let length = block.shared.len();
        let fits =
            |at: u64| at.is_multiple_of(u64::from(BYTES)) && at < length && u64::from(BYTES) <= length - at;
        if !lanes(active).all(|lane| fits(at[lane])) {
            return false;
        }
        for lane in lanes(active) {
            let value = self.registers.get(slot, lane);
            block.shared.store(at[lane], BYTES, value);
        }
        true
    }

    fn load_global<const BYTES: u32>(
        &mut self,
        block: &BlockState<'_>,
        slot: Slot,
        at: &[u64; 32],
        active: u32,
    ) -> bool {
        let Some(allocation) = self.allocation(block, at, active) else { return false };
        if allocation.tracks_writes() {
            return false;
        }
        if slot.file == File::Narrow {
            let row = &mut self.registers.narrow[slot.row as usize];
            match pattern(at, active, BYTES) {
                Pattern::Row if at[0].is_multiple_of(4) => {
                    let Some(offset) = allocation.offset(at[0], 128) else { return false };
                    allocation.load_row(offset, row);
                    return true;
                }
                Pattern::Same if at[0].is_multiple_of(4) => {
                    let Some(offset) = allocation.offset(at[0], 4) else { return false };
                    *row = [allocation.load_word(offset); 32];
                    return true;
                }
                _ => {}
            }
        }
        let mut values = [0; 32];
        for lane in lanes(active) {
            let Some(offset) = aligned_offset::<BYTES>(allocation, at[lane]) else { return false };
            values[lane] = allocation.load(offset, BYTES);
        }
        self.put_values(slot, &values, active);
        true
    }

    fn store_global<const BYTES: u32>(
        &mut self,
        block: &BlockState<'_>,
        slot: Slot,
        at: &[u64; 32],
        active: u32,
    ) -> bool {
        let Some(allocation) = self.allocation(block, at, active) else { return false };
        if allocation.read_only
            || !lanes(active).all(|lane| aligned_offset::<BYTES>(allocation, at[lane]).is_some())
        {
            return false;
        }
        for lane in lanes(active) {
            allocation.store(at[lane] - allocation.start, BYTES, self.registers.get(slot, lane));
        }
        true
    }

    /// The allocation that the first lane accesses. The other lanes probably access the same one.
    fn allocation<'m>(
        &mut self,
        block: &BlockState<'m>,
        at: &[u64; 32],
        active: u32,
    ) -> Option<&'m Allocation> {
        let (allocation, _) = block.view.find(at[super::first_lane(active)], 1, &mut self.hint)?;
        Some(allocation)
    }

    fn put_values(&mut self, slot: Slot, values: &[u64; 32], active: u32) {
        if slot.file == File::Wide {
            let row = &mut self.registers.wide[slot.row as usize];
            lanes(active).for_each(|lane| row[lane] = values[lane]);
        } else {
            let row = &mut self.registers.narrow[slot.row as usize];
            lanes(active).for_each(|lane| row[lane] = values[lane] as u32);
        }
    }
}

#[inline(always)]
fn aligned_offset<const BYTES: u32>(allocation: &Allocation, address: u64) -> Option<u64> {
    // Allocations are aligned to 256 bytes.
    allocation.offset(address, u64::from(BYTES)).filter(|offset| offset & u64::from(BYTES - 1) == 0)
}
