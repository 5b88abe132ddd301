//! Implements the fast path for loads and stores, which executes them for all lanes at once. Unusual accesses take the
//! slow path (`access`), which goes lane by lane and reports faults. All lanes are checked before anything is written.

use std::sync::atomic::Ordering;

use super::block::BlockState;
use super::lanes;
use super::offsets::{Offsets, Piece, Run};
use super::race::Row;
use super::vector::write;
use super::warp::{Registers, Warp};
use crate::code::{File, MemoryAction, MemoryOp, MemorySpace, Slot};
use crate::decode::SHARED_WINDOW;
use crate::memory::Allocation;

impl Warp {
    /// Tries to perform an access. Returns false if the slow path has to perform it. Changes that were made here before
    /// are then made again by the slow path.
    #[inline(always)]
    pub fn all_at_once(&mut self, block: &mut BlockState<'_>, op: &MemoryOp, active: u32, pc: u32) -> bool {
        if op.order.is_strong() && op.element == 8 {
            return false;
        }
        match (op.space, &op.action) {
            (_, MemoryAction::Atomic { .. }) | (MemorySpace::Local, _) => false,
            (MemorySpace::Param, MemoryAction::Load { signed, to }) => {
                self.load_params(block, op, *signed, to, active)
            }
            (MemorySpace::Param, MemoryAction::Store { .. }) => false,
            (MemorySpace::Shared, MemoryAction::Load { signed, to }) => {
                self.load_shared(block, op, (*signed, to.as_slice()), active, pc)
            }
            (MemorySpace::Shared, MemoryAction::Store { from }) => {
                self.store_shared(block, op, from, active, pc)
            }
            (MemorySpace::Global, MemoryAction::Load { signed, to }) => {
                self.load_global(block, op, *signed, to, active)
            }
            (MemorySpace::Global, MemoryAction::Store { from }) => self.store_global(block, op, from, active),
            (MemorySpace::Generic, _) => self.generic(block, op, active, pc),
        }
    }

    /// Tries an access through generic addresses. All of them must be in the state space of the first active lane's
    /// address.
    #[inline(never)]
    fn generic(&mut self, block: &mut BlockState<'_>, op: &MemoryOp, active: u32, pc: u32) -> bool {
        if op.at.base.file == File::Narrow {
            return false;
        }
        let base = self.registers.wide[op.at.base.row as usize][super::first_lane(active)];
        let address = base.wrapping_add(op.at.offset.cast_unsigned());
        let is_shared = address.wrapping_sub(SHARED_WINDOW) < block.shared.len();
        match &op.action {
            MemoryAction::Load { signed, to } if is_shared => {
                self.load_shared(block, op, (*signed, to.as_slice()), active, pc)
            }
            MemoryAction::Store { from } if is_shared => self.store_shared(block, op, from, active, pc),
            MemoryAction::Load { signed, to } => self.load_global(block, op, *signed, to, active),
            MemoryAction::Store { from } => self.store_global(block, op, from, active),
            MemoryAction::Atomic { .. } => false,
        }
    }

    #[inline(never)]
    fn load_params(
        &mut self,
        block: &BlockState<'_>,
        op: &MemoryOp,
        signed: bool,
        to: &[Option<Slot>],
        active: u32,
    ) -> bool {
        let piece = Piece { start: 0, length: block.params.len() as u64, lead: 0 };
        let found = Offsets::find(&self.registers, op.at, piece, op.bytes, active);
        let Some(at) = found.and_then(|offsets| offsets.single()) else { return false };
        for (index, slot) in to.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let from = at as usize + op.element as usize * index;
            let bytes = &block.params[from..from + op.element as usize];
            let value = bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
            put(&mut self.registers, *slot, &[extended(value, op.element, signed); 32], active);
        }
        true
    }

    #[inline(always)]
    fn load_shared(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        (signed, to): (bool, &[Option<Slot>]),
        active: u32,
        pc: u32,
    ) -> bool {
        let Some(offsets) = self.shared_offsets(block, op, active) else { return false };
        let checks = block.checks_reads;
        let shared = &block.shared;
        let parts = || to.iter().zip((0..).step_by(op.element as usize));
        if !parts()
            .all(|(slot, from)| slot.is_none() || shared.allows_reads(&offsets, from, op.element, checks))
        {
            return false;
        }
        if let Some(races) = &mut block.races
            && !races.reads_orderly(Row { warp: self.index, pc, active }, &offsets)
        {
            return false;
        }
        for (slot, from) in parts() {
            let Some(slot) = slot else { continue };
            if op.element == 4 && slot.file == File::Narrow {
                let words = block.shared.load_words(&offsets, from);
                write(&mut self.registers.narrow[slot.row as usize], active, |lane| words[lane]);
            } else {
                let one = |at: u32| block.shared.load(u64::from(at + from), op.element).0;
                let values = offsets.at.map(|at| extended(one(at), op.element, signed));
                put(&mut self.registers, *slot, &values, active);
            }
        }
        true
    }

    #[inline(always)]
    fn store_shared(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        from: &[Slot],
        active: u32,
        pc: u32,
    ) -> bool {
        let Some(offsets) = self.shared_offsets(block, op, active) else { return false };
        let parts = || from.iter().zip((0..).step_by(op.element as usize));
        let registers = &self.registers;
        let is_words = |slot: &Slot| op.element == 4 && slot.file == File::Narrow;
        if let Some(races) = &mut block.races {
            let mut changed = 0;
            for (slot, to) in parts() {
                changed |= if is_words(slot) {
                    block.shared.changed_words(&offsets, to, &registers.narrow[slot.row as usize])
                } else {
                    let unused = 64 - 8 * op.element;
                    lanes(active)
                        .filter(|lane| {
                            let new = registers.get(*slot, *lane) << unused >> unused;
                            block.shared.changes(u64::from(offsets.at[*lane] + to), op.element, new)
                        })
                        .fold(0, |all, lane| all | 1 << lane)
                };
            }
            if !races.writes_orderly(Row { warp: self.index, pc, active }, &offsets, changed) {
                return false;
            }
        }
        for (slot, to) in parts() {
            if is_words(slot) {
                block.shared.store_words(&offsets, to, &registers.narrow[slot.row as usize], active);
            } else {
                for lane in lanes(active) {
                    let value = registers.get(*slot, lane);
                    block.shared.store(u64::from(offsets.at[lane] + to), op.element, value);
                }
            }
        }
        true
    }

    #[inline(always)]
    pub fn shared_offsets(&self, block: &BlockState<'_>, op: &MemoryOp, active: u32) -> Option<Offsets> {
        let start = if op.space == MemorySpace::Shared { 0 } else { SHARED_WINDOW };
        let piece = Piece { start, length: block.shared.len(), lead: 0 };
        Offsets::find(&self.registers, op.at, piece, op.bytes, active)
    }

    /// Returns the allocation that the first active lane accesses, and the offsets of all lanes in it, if all active
    /// lanes access this allocation.
    #[inline(always)]
    pub fn global_offsets<'m>(
        &mut self,
        block: &BlockState<'m>,
        op: &MemoryOp,
        active: u32,
    ) -> Option<(&'m Allocation, Offsets)> {
        if op.at.base.file == File::Narrow {
            return None;
        }
        let base = self.registers.wide[op.at.base.row as usize][super::first_lane(active)];
        let address = base.wrapping_add(op.at.offset.cast_unsigned());
        let (allocation, _) = block.view.find(address, 1, &mut self.hint)?;
        let piece = Piece { start: allocation.start, length: allocation.bytes, lead: allocation.lead() };
        Some((allocation, Offsets::find(&self.registers, op.at, piece, op.bytes, active)?))
    }

    #[inline(always)]
    fn load_global(
        &mut self,
        block: &BlockState<'_>,
        op: &MemoryOp,
        signed: bool,
        to: &[Option<Slot>],
        active: u32,
    ) -> bool {
        let Some((allocation, offsets)) = self.global_offsets(block, op, active) else { return false };
        let parts = || to.iter().zip((0..).step_by(op.element as usize));
        if allocation.tracks_writes() && block.checks_reads {
            let is_written = |from: u32| {
                offsets.at.iter().all(|at| allocation.is_written(u64::from(at + from), op.element.into()))
            };
            if !parts().all(|(slot, from)| slot.is_none() || is_written(from)) {
                return false;
            }
        }
        for (slot, from) in parts() {
            let Some(slot) = slot else { continue };
            if op.element == 4 && slot.file == File::Narrow {
                let words = load_words(allocation, &offsets, from);
                write(&mut self.registers.narrow[slot.row as usize], active, |lane| words[lane]);
            } else {
                load_elements(
                    &mut self.registers,
                    allocation,
                    &offsets,
                    from,
                    (op.element, signed),
                    *slot,
                    active,
                );
            }
        }
        true
    }

    #[inline(always)]
    fn store_global(&mut self, block: &BlockState<'_>, op: &MemoryOp, from: &[Slot], active: u32) -> bool {
        let Some((allocation, offsets)) = self.global_offsets(block, op, active) else { return false };
        if allocation.read_only {
            return false;
        }
        for (slot, to) in from.iter().zip((0..).step_by(op.element as usize)) {
            if op.element == 4 && slot.file == File::Narrow {
                let row = &self.registers.narrow[slot.row as usize];
                let (words, first) = allocation.words();
                for lane in lanes(active) {
                    let at = offsets.at[lane] + to;
                    words[(at / 4) as usize - first].store(row[lane], Ordering::Relaxed);
                    allocation.mark(at.into(), 4);
                }
            } else {
                store_elements(&self.registers, allocation, &offsets, to, op.element, *slot, active);
            }
        }
        true
    }
}

/// Reads a word for each lane. All words must be aligned and inside the allocation.
#[inline(always)]
fn load_words(allocation: &Allocation, offsets: &Offsets, from: u32) -> [u32; 32] {
    let (words, first) = allocation.words();
    let mut row = [0; 32];
    let groups = row.as_chunks_mut::<8>().0.iter_mut();
    for ((slots, run), eight) in groups.zip(&offsets.runs).zip(offsets.at.as_chunks::<8>().0) {
        let index = ((eight[0] + from) / 4) as usize - first;
        match run {
            Run::Consecutive if offsets.step == 4 => {
                for (slot, word) in slots.iter_mut().zip(&words[index..index + 8]) {
                    *slot = word.load(Ordering::Relaxed);
                }
            }
            Run::Same => *slots = [words[index].load(Ordering::Relaxed); 8],
            _ => {
                for (slot, at) in slots.iter_mut().zip(eight) {
                    *slot = words[((at + from) / 4) as usize - first].load(Ordering::Relaxed);
                }
            }
        }
    }
    row
}

#[inline(never)]
fn load_elements(
    registers: &mut Registers,
    allocation: &Allocation,
    offsets: &Offsets,
    from: u32,
    (bytes, signed): (u32, bool),
    slot: Slot,
    active: u32,
) {
    let one = |at: u32| extended(allocation.load(u64::from(at + from), bytes), bytes, signed);
    let values = match offsets.single() {
        Some(at) => [one(at); 32],
        None => offsets.at.map(one),
    };
    put(registers, slot, &values, active);
}

#[inline(never)]
fn store_elements(
    registers: &Registers,
    allocation: &Allocation,
    offsets: &Offsets,
    to: u32,
    bytes: u32,
    slot: Slot,
    active: u32,
) {
    let (words, first) = allocation.words();
    for (group, eight) in offsets.at.as_chunks::<8>().0.iter().enumerate() {
        let mask = active >> (8 * group) & 0xff;
        let at = eight[0] + to;
        let in_pairs = bytes == 2 && offsets.step == 2 && offsets.runs[group] == Run::Consecutive;
        if in_pairs && mask == 0xff && at.is_multiple_of(4) && slot.file == File::Narrow {
            // Two lanes write the two halves of a word.
            let row = &registers.narrow[slot.row as usize].as_chunks::<8>().0[group];
            for (index, [low, high]) in row.as_chunks::<2>().0.iter().enumerate() {
                let word = &words[(at / 4) as usize - first + index];
                word.store(low & 0xffff | high << 16, Ordering::Relaxed);
            }
            allocation.mark(at.into(), 16);
            continue;
        }
        for lane in lanes(mask) {
            let value = registers.get(slot, 8 * group + lane);
            allocation.store(u64::from(eight[lane] + to), bytes, value);
        }
    }
}

/// Returns the bits of an element in a register of 64 bits.
#[inline(always)]
fn extended(value: u64, bytes: u32, signed: bool) -> u64 {
    let unused = 64 - 8 * bytes;
    if signed { ((value << unused).cast_signed() >> unused).cast_unsigned() } else { value }
}

fn put(registers: &mut Registers, slot: Slot, values: &[u64; 32], active: u32) {
    match slot.file {
        File::Wide => write(&mut registers.wide[slot.row as usize], active, |lane| values[lane]),
        File::Narrow => {
            let mask = crate::lane::mask(u64::from(u32::MAX), slot.bits) as u32;
            write(&mut registers.narrow[slot.row as usize], active, |lane| values[lane] as u32 & mask);
        }
        File::Flag => lanes(active).for_each(|lane| registers.set(slot, lane, values[lane])),
    }
}
