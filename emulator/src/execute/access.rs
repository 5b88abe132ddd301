//! Executes loads, stores and atomic operations lane by lane, and checks the address of each lane before the lane
//! accesses memory.

use super::block::BlockState;
use super::scratch::State;
use super::warp::Warp;
use super::{Stop, lanes};
use crate::code::{Address, File, MemoryAction, MemoryOp, MemorySpace, Slot};
use crate::decode::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_BYTES};
use crate::fault::{Access, AccessKind, FaultKind, Memory};
use crate::memory::Allocation;

/// The memory in which a checked access lies, with the offset of the access in that memory.
pub enum Target<'m> {
    Global(&'m Allocation, u64),
    Shared(u64),
    Local(u64),
    Param(u64),
}

impl Target<'_> {
    pub fn memory(&self) -> Memory {
        match self {
            Self::Global(..) => Memory::Global,
            Self::Shared(_) => Memory::Shared,
            Self::Local(_) | Self::Param(_) => Memory::Local,
        }
    }
}

/// The state space, size and alignment of an access.
#[derive(Clone, Copy)]
pub struct Reach {
    pub space: MemorySpace,
    pub bytes: u64,
    pub align: u64,
}

impl Warp {
    #[inline(always)]
    pub fn memory(
        &mut self,
        block: &mut BlockState<'_>,
        index: u32,
        active: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let kernel = block.kernel;
        let op = &kernel.memory_ops[index as usize];
        if let Some(counter) = &mut block.counter {
            counter.access(op, &self.addresses(op.at), active, pc);
        }
        if self.all_at_once(block, op, active, pc) {
            if op.order.is_strong() {
                self.note_order(block, op, active);
            }
            return Ok(());
        }
        self.one_by_one(block, op, active, pc)
    }

    /// Accesses memory lane by lane.
    #[inline(never)]
    fn one_by_one(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        active: u32,
        pc: u32,
    ) -> Result<(), Stop> {
        let addresses = self.addresses(op.at);
        if block.races.is_some() {
            self.watch(block, op, &addresses, active, pc)?;
            if op.order.is_strong() {
                self.note_order(block, op, active);
            }
        }
        let bytes = u64::from(op.bytes);
        let reach = Reach { space: op.space, bytes, align: bytes };
        match &op.action {
            MemoryAction::Load { .. } => {
                for lane in lanes(active) {
                    let target = self.resolve(block, reach, addresses[lane], lane, AccessKind::Read)?;
                    if let Err(stop) = self.load(block, op, &target, addresses[lane], lane) {
                        block.defer(stop, pc, self.index)?;
                        self.load(block, op, &target, addresses[lane], lane)?;
                    }
                }
            }
            MemoryAction::Store { from } => {
                for lane in lanes(active) {
                    let target = self.resolve(block, reach, addresses[lane], lane, AccessKind::Write)?;
                    self.store(block, op, &target, lane, from);
                }
            }
            MemoryAction::Atomic { .. } if self.atomics_at_once(block, op, active) => {}
            MemoryAction::Atomic { .. } => {
                for lane in lanes(active) {
                    let target = self.resolve(block, reach, addresses[lane], lane, AccessKind::Atomic)?;
                    if let Err(stop) = self.atomic(block, op, &target, addresses[lane], lane) {
                        block.defer(stop, pc, self.index)?;
                        self.atomic(block, op, &target, addresses[lane], lane)?;
                    }
                }
            }
        }
        Ok(())
    }

    pub fn addresses(&self, at: Address) -> [u64; 32] {
        let offset = at.offset.cast_unsigned();
        if at.base.file == File::Wide {
            let row = &self.registers.wide[at.base.row as usize];
            std::array::from_fn(|lane| row[lane].wrapping_add(offset))
        } else {
            // Addresses in 32-bit registers wrap around.
            let row = &self.registers.narrow[at.base.row as usize];
            std::array::from_fn(|lane| u64::from(row[lane].wrapping_add(offset as u32)))
        }
    }

    /// Finds the target of an access. Fails with a fault if the access is not allowed.
    pub fn resolve<'m>(
        &mut self,
        block: &BlockState<'m>,
        Reach { space, bytes, align }: Reach,
        address: u64,
        lane: usize,
        kind: AccessKind,
    ) -> Result<Target<'m>, Stop> {
        let (space, at) = match space {
            MemorySpace::Generic => generic(address),
            space => (space, address),
        };
        let inside = |length: u64| at < length && bytes <= length - at;
        let (memory, found) = match space {
            MemorySpace::Shared => (Memory::Shared, inside(block.shared.len()).then_some(Target::Shared(at))),
            MemorySpace::Local => {
                let each = block.kernel.local_bytes;
                (Memory::Local, inside(each).then(|| Target::Local(lane as u64 * each + at)))
            }
            MemorySpace::Param => {
                (Memory::Param, inside(block.params.len() as u64).then_some(Target::Param(at)))
            }
            MemorySpace::Global | MemorySpace::Generic => {
                let found = block.view.find(address, bytes, &mut self.hint);
                (Memory::Global, found.map(|(allocation, offset)| Target::Global(allocation, offset)))
            }
        };
        let access = |nearest| Access { kind, memory, address, bytes, nearest };
        if at & (align - 1) != 0 {
            let nearest = if memory == Memory::Global { block.view.nearest(address, bytes) } else { None };
            return Err(Stop::new(FaultKind::Misaligned(access(nearest)), lane));
        }
        match found {
            Some(Target::Global(allocation, _)) if allocation.read_only && kind != AccessKind::Read => {
                Err(Stop::new(FaultKind::ReadOnly(access(None)), lane))
            }
            Some(Target::Param(_)) if kind != AccessKind::Read => {
                Err(Stop::new(FaultKind::ReadOnly(access(None)), lane))
            }
            Some(target) => Ok(target),
            None if memory == Memory::Global => {
                let access = access(block.view.nearest(address, bytes));
                let fault = if block.view.was_freed(address) {
                    FaultKind::UseAfterFree(access)
                } else {
                    FaultKind::IllegalAddress(access)
                };
                Err(Stop::new(fault, lane))
            }
            None => Err(Stop::new(FaultKind::IllegalAddress(access(None)), lane)),
        }
    }

    fn load(
        &mut self,
        block: &BlockState<'_>,
        op: &MemoryOp,
        target: &Target<'_>,
        address: u64,
        lane: usize,
    ) -> Result<(), Stop> {
        let MemoryAction::Load { signed, to } = &op.action else { return Ok(()) };
        let is_locked = op.order.is_strong() && op.element == 8;
        for (index, slot) in to.iter().enumerate() {
            let Some(slot) = slot else { continue };
            let from = u64::from(op.element) * index as u64;
            let _lock = is_locked.then(|| block.lock_wide(address + from));
            let (value, state) = self.element(block, op.element, target, from);
            let bytes = u64::from(op.element);
            state.check(block.checks_reads, target.memory(), address + from, bytes, lane)?;
            let unused = 64 - 8 * op.element;
            let value = if *signed { (((value << unused) as i64) >> unused) as u64 } else { value };
            self.registers.set(*slot, lane, value);
        }
        Ok(())
    }

    /// Reads an element, and returns its value and its state.
    pub fn element(
        &self,
        block: &BlockState<'_>,
        bytes: u32,
        target: &Target<'_>,
        from: u64,
    ) -> (u64, State) {
        match target {
            Target::Global(allocation, offset) => {
                let at = offset + from;
                let is_written = allocation.is_written(at, u64::from(bytes));
                (allocation.load(at, bytes), if is_written { State::Written } else { State::Unwritten })
            }
            Target::Shared(at) => block.shared.load(at + from, bytes),
            Target::Local(at) => self.local.load(at + from, bytes),
            Target::Param(at) => {
                let at = (at + from) as usize;
                let bytes = &block.params[at..at + bytes as usize];
                (bytes.iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte)), State::Written)
            }
        }
    }

    fn store(
        &mut self,
        block: &mut BlockState<'_>,
        op: &MemoryOp,
        target: &Target<'_>,
        lane: usize,
        from: &[Slot],
    ) {
        for (index, slot) in from.iter().enumerate() {
            let value = self.registers.get(*slot, lane);
            let to = u64::from(op.element) * index as u64;
            self.store_element(block, op.element, op.order.is_strong(), target, to, value);
        }
    }

    pub fn store_element(
        &mut self,
        block: &mut BlockState<'_>,
        bytes: u32,
        is_strong: bool,
        target: &Target<'_>,
        to: u64,
        value: u64,
    ) {
        match target {
            Target::Global(allocation, offset) => {
                let address = allocation.start + offset - u64::from(allocation.lead()) + to;
                let _lock = (is_strong && bytes == 8).then(|| block.lock_wide(address));
                allocation.store(offset + to, bytes, value);
            }
            Target::Shared(at) => block.shared.store(at + to, bytes, value),
            Target::Local(at) => self.local.store(at + to, bytes, value),
            // `resolve` has already refused a store to a parameter.
            Target::Param(_) => {}
        }
    }

    /// Reads a byte at a generic address, for the strings of `printf` and of assertions.
    pub fn byte(&mut self, block: &BlockState<'_>, address: u64, lane: usize) -> Result<u8, Stop> {
        Ok(self.read(block, address, 1, lane)? as u8)
    }

    /// Reads 1, 4 or 8 bytes at a generic address, which must be aligned.
    pub fn read(
        &mut self,
        block: &BlockState<'_>,
        address: u64,
        bytes: u32,
        lane: usize,
    ) -> Result<u64, Stop> {
        let size = u64::from(bytes);
        let reach = Reach { space: MemorySpace::Generic, bytes: size, align: size };
        let target = self.resolve(block, reach, address, lane, AccessKind::Read)?;
        Ok(self.element(block, bytes, &target, 0).0)
    }
}

/// Returns the state space of a generic address, and the address within that space.
fn generic(address: u64) -> (MemorySpace, u64) {
    let within = |window: u64| Some(address.wrapping_sub(window)).filter(|at| *at < WINDOW_BYTES);
    if let Some(at) = within(SHARED_WINDOW) {
        (MemorySpace::Shared, at)
    } else if let Some(at) = within(LOCAL_WINDOW) {
        (MemorySpace::Local, at)
    } else if let Some(at) = within(PARAM_WINDOW) {
        (MemorySpace::Param, at)
    } else {
        (MemorySpace::Global, address)
    }
}
