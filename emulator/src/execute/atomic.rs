//! Executes atomic operations, for all lanes of a warp at once where possible.

use super::access::Target;
use super::block::BlockState;
use super::warp::{Registers, Warp};
use super::{Stop, lanes};
use crate::code::{AtomicKind, AtomicOp, MemoryAction, MemoryOp, MemorySpace};
use crate::fault::{Access, AccessKind};
use crate::lane::{HalfFunction, HalfOp, Type};

impl Warp {
    /// Tries to do an atomic operation on one word for each active lane. Returns false, without having changed any
    /// word, if the operation must be done lane by lane.
    pub fn atomics_at_once(&mut self, block: &mut BlockState<'_>, op: &MemoryOp, active: u32) -> bool {
        let MemoryAction::Atomic { op: atomic, kind, to, first, second } = op.action else { return false };
        if op.bytes != 4 {
            return false;
        }
        let operands = |registers: &Registers, lane| {
            (registers.get(first, lane), second.map_or(0, |slot| registers.get(slot, lane)))
        };
        match op.space {
            MemorySpace::Shared => {
                let Some(offsets) = self.shared_offsets(block, op, active) else { return false };
                if !block.shared.allows_reads(&offsets, 0, 4, needs_written(block, atomic)) {
                    return false;
                }
                for lane in lanes(active) {
                    let (operand, other) = operands(&self.registers, lane);
                    let at = u64::from(offsets.at[lane]);
                    let (old, _) = block.shared.load(at, 4);
                    block.shared.store(at, 4, changed(atomic, kind, old, operand, other));
                    if let Some(slot) = to {
                        self.registers.set(slot, lane, old);
                    }
                }
            }
            MemorySpace::Global => {
                let found = self.global_offsets(block, op, active);
                let Some((allocation, offsets)) = found.filter(|(it, _)| !it.read_only) else { return false };
                let is_written = |lane: usize| allocation.is_written(offsets.at[lane].into(), 4);
                if allocation.tracks_writes()
                    && needs_written(block, atomic)
                    && !lanes(active).all(is_written)
                {
                    return false;
                }
                for lane in lanes(active) {
                    let (operand, other) = operands(&self.registers, lane);
                    let at = u64::from(offsets.at[lane]);
                    let change = |old: u32| changed(atomic, kind, old.into(), operand, other) as u32;
                    let old = allocation.update(at, change);
                    allocation.mark(at, 4);
                    if let Some(slot) = to {
                        self.registers.set(slot, lane, old.into());
                    }
                }
            }
            MemorySpace::Local | MemorySpace::Param | MemorySpace::Generic => return false,
        }
        true
    }

    pub fn atomic(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        target: &Target<'_>,
        address: u64,
        lane: usize,
    ) -> Result<(), Stop> {
        let MemoryAction::Atomic { op: atomic, kind, to, first, second } = op.action else { return Ok(()) };
        let operand = self.registers.get(first, lane);
        let other = second.map_or(0, |slot| self.registers.get(slot, lane));
        let change = |old: u64| changed(atomic, kind, old, operand, other);
        let (found, state) = self.element(block, op.element, target, 0);
        if !state.allows_read(needs_written(block, atomic)) {
            let memory = target.memory();
            let bytes = u64::from(op.bytes);
            let access = Access { kind: AccessKind::Atomic, memory, address, bytes, nearest: None };
            return Err(state.stop(access, lane));
        }
        let old = match target {
            Target::Global(allocation, offset) if op.bytes == 4 => {
                let old = allocation.update(*offset, |old| change(u64::from(old)) as u32);
                allocation.mark(*offset, 4);
                u64::from(old)
            }
            Target::Global(allocation, offset) if op.bytes == 2 => {
                let shift = 8 * (offset % 4) as u32;
                let part = |word: u32| u64::from(word >> shift & 0xffff);
                let old = allocation.update(*offset, |word| {
                    word & !(0xffff << shift) | (change(part(word)) as u32 & 0xffff) << shift
                });
                allocation.mark(*offset, 2);
                part(old)
            }
            Target::Global(allocation, offset) => {
                // The value consists of two words, so a lock is needed.
                let _lock = block.lock_wide(address);
                let old = allocation.load(*offset, 8);
                allocation.store(*offset, 8, change(old));
                old
            }
            _ => {
                self.store_element(block, op.element, false, target, 0, change(found));
                found
            }
        };
        if let Some(slot) = to {
            self.registers.set(slot, lane, old);
        }
        Ok(())
    }
}

/// Whether it is a fault if an operation reads a value that was never written.
fn needs_written(block: &BlockState<'_>, op: AtomicOp) -> bool {
    block.checks_reads && op != AtomicOp::Exchange
}

#[inline(always)]
fn changed(op: AtomicOp, kind: AtomicKind, old: u64, operand: u64, other: u64) -> u64 {
    match op {
        AtomicOp::And => old & operand,
        AtomicOp::Or => old | operand,
        AtomicOp::Xor => old ^ operand,
        AtomicOp::Exchange => operand,
        AtomicOp::CompareExchange => {
            if old == operand {
                other
            } else {
                old
            }
        }
        AtomicOp::Increment => {
            if operand <= old {
                0
            } else {
                old + 1
            }
        }
        AtomicOp::Decrement => {
            if old == 0 || operand < old {
                operand
            } else {
                old - 1
            }
        }
        AtomicOp::Add => added(kind, old, operand),
        AtomicOp::Min => {
            if less(kind, operand, old) {
                operand
            } else {
                old
            }
        }
        AtomicOp::Max => {
            if less(kind, old, operand) {
                operand
            } else {
                old
            }
        }
    }
}

fn less(kind: AtomicKind, a: u64, b: u64) -> bool {
    match kind {
        AtomicKind::Signed32 => (a as u32 as i32) < (b as u32 as i32),
        AtomicKind::Signed64 => (a as i64) < (b as i64),
        _ => a < b,
    }
}

fn added(kind: AtomicKind, old: u64, operand: u64) -> u64 {
    let half = |ty| HalfFunction::new(HalfOp::Add, ty).apply([old, operand, 0, 0]);
    match kind {
        AtomicKind::F32 => {
            let sum = f32::from_bits(old as u32) + f32::from_bits(operand as u32);
            u64::from(if sum.is_nan() { 0x7fff_ffff } else { sum.to_bits() })
        }
        AtomicKind::F64 => (f64::from_bits(old) + f64::from_bits(operand)).to_bits(),
        AtomicKind::F16 => half(Type::F16),
        AtomicKind::Bf16 => half(Type::Bf16),
        AtomicKind::F16x2 => half(Type::F16x2),
        AtomicKind::Bf16x2 => half(Type::Bf16x2),
        _ => old.wrapping_add(operand),
    }
}
