//! Reports the accesses of a warp to shared memory to the race detector, before they are executed.

use super::block::BlockState;
use super::race::SharedAccess;
use super::scratch::State;
use super::warp::Warp;
use super::{Stop, lanes};
use crate::code::{AtomicOp, MemoryAction, MemoryOp, MemorySpace, WarpOp};
use crate::decode::SHARED_WINDOW;
use crate::fault::AccessKind;

impl Warp {
    /// Checks a load, store or atomic operation for races. Stores are also carried out here, so that if the next lane
    /// stores the same value, its store changes nothing. Accesses that are misaligned or outside shared memory are
    /// skipped, because they are refused later, or are to other memory.
    pub fn watch(
        &self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        addresses: &[u64; 32],
        active: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let start = match op.space {
            MemorySpace::Shared => 0,
            MemorySpace::Generic => SHARED_WINDOW,
            MemorySpace::Global | MemorySpace::Local | MemorySpace::Param => return Ok(()),
        };
        let Some(races) = &mut block.races else { return Ok(()) };
        let bytes = u64::from(op.bytes);
        let length = block.shared.len();
        for lane in lanes(active) {
            let at = addresses[lane].wrapping_sub(start);
            if length < bytes || length - bytes < at || at & (bytes - 1) != 0 {
                continue;
            }
            let access = SharedAccess { thread: 32 * self.index + lane as u32, pc, at, bytes };
            let (kind, conflict) = match &op.action {
                MemoryAction::Load { .. } => (AccessKind::Read, races.read(block.kernel, access)),
                MemoryAction::Store { from } => {
                    let mut changes = false;
                    for (index, slot) in from.iter().enumerate() {
                        let to = at + u64::from(op.element) * index as u64;
                        let (old, state) = block.shared.load(to, op.element);
                        let unused = 64 - 8 * op.element;
                        let new = self.registers.get(*slot, lane) << unused >> unused;
                        changes |= state != State::Written || old != new;
                        block.shared.store(to, op.element, new);
                    }
                    (AccessKind::Write, races.write(block.kernel, access, changes))
                }
                MemoryAction::Atomic { op: AtomicOp::CompareExchange, first, .. }
                    if block.shared.load(at, op.element).0 != self.registers.get(*first, lane) =>
                {
                    (AccessKind::Atomic, races.read(block.kernel, access))
                }
                MemoryAction::Atomic { .. } => (AccessKind::Atomic, races.write(block.kernel, access, true)),
            };
            if let Some(conflict) = conflict {
                return Err(block.race(kind, access, conflict));
            }
        }
        Ok(())
    }

    /// Records the order that a strong access creates between threads.
    pub fn note_order(&self, block: &mut BlockState<'_>, op: &MemoryOp, active: u32) {
        let Some(races) = &mut block.races else { return };
        let kind = match op.action {
            MemoryAction::Load { .. } => AccessKind::Read,
            MemoryAction::Store { .. } => AccessKind::Write,
            MemoryAction::Atomic { .. } => AccessKind::Atomic,
        };
        races.synchronise(op.order, kind, self.index, active);
    }

    /// Records that a group of lanes has executed an operation together. Of these operations, only `bar.warp.sync`
    /// orders accesses.
    pub fn note_collective(&self, block: &mut BlockState<'_>, op: &WarpOp, group: u32) {
        if let (WarpOp::Sync { .. }, Some(races)) = (op, &mut block.races) {
            races.order_lanes(self.index, group);
        }
    }

    pub fn note_fence(&self, block: &mut BlockState<'_>, active: u32) {
        if let Some(races) = &mut block.races {
            races.fence(self.index, active);
        }
    }

    /// Checks one lane's read for a race. The bytes that it reads must be inside shared memory.
    pub fn watch_read(
        &self,
        block: &mut BlockState<'_>,
        lane: usize,
        at: u64,
        bytes: u64,
        pc: u32,
    ) -> Result<(), Stop> {
        let Some(races) = &mut block.races else { return Ok(()) };
        let access = SharedAccess { thread: 32 * self.index + lane as u32, pc, at, bytes };
        match races.read(block.kernel, access) {
            Some(conflict) => Err(block.race(AccessKind::Read, access, conflict)),
            None => Ok(()),
        }
    }

    /// Checks one lane's write for a race. The bytes that it writes must be inside shared memory. `changes` says
    /// whether the write changes their values.
    pub fn watch_write(
        &self,
        block: &mut BlockState<'_>,
        lane: usize,
        (at, bytes): (u64, u64),
        changes: bool,
        pc: u32,
    ) -> Result<(), Stop> {
        let Some(races) = &mut block.races else { return Ok(()) };
        let access = SharedAccess { thread: 32 * self.index + lane as u32, pc, at, bytes };
        match races.write(block.kernel, access, changes) {
            Some(conflict) => Err(block.race(AccessKind::Write, access, conflict)),
            None => Ok(()),
        }
    }
}
