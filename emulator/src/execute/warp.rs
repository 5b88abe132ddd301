//! Executes one warp: holds its registers and the parts into which it has diverged, and runs these parts in turn.

use super::block::BlockState;
use super::copy::PendingCopy;
use super::scratch::Scratch;
use super::{Stop, first_lane, functions, lanes, vector};
use crate::code::{File, FlagOp, Op, Slot};
use crate::fault::FaultKind;
use crate::lane::mask;
use crate::limits;

/// The number of bytes of local memory that can be marked as never written in the time that an instruction takes.
const FORGOTTEN_BYTES_PER_INSTRUCTION: u32 = 1024;

#[derive(Debug)]
pub struct Registers {
    pub flags: Vec<u32>,
    pub narrow: Vec<[u32; 32]>,
    pub wide: Vec<[u64; 32]>,
}

impl Registers {
    #[inline(always)]
    pub fn get(&self, slot: Slot, lane: usize) -> u64 {
        match slot.file {
            File::Flag => u64::from(self.flags[slot.row as usize] >> lane & 1),
            File::Narrow => u64::from(self.narrow[slot.row as usize][lane]),
            File::Wide => self.wide[slot.row as usize][lane],
        }
    }

    #[inline(always)]
    pub fn set(&mut self, slot: Slot, lane: usize, value: u64) {
        match slot.file {
            File::Flag => self.set_flags(slot.row, 1 << lane, ((value & 1) as u32) << lane),
            File::Narrow => self.narrow[slot.row as usize][lane] = mask(value, slot.bits) as u32,
            File::Wide => self.wide[slot.row as usize][lane] = value,
        }
    }

    pub fn set_flags(&mut self, row: u32, mask: u32, value: u32) {
        let row = &mut self.flags[row as usize];
        *row = *row & !mask | value & mask;
    }
}

/// The lanes of a warp that are at the same instruction and run together.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub pc: u32,
    pub mask: u32,
}

/// Lanes that wait at a barrier.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    pub part: Part,
    pub barrier: usize,
    /// An index into `Kernel::barrier_ops`.
    pub op: u32,
}

#[derive(Debug)]
pub struct Warp {
    pub index: u32,
    pub registers: Registers,
    /// The mask of lanes that have not ended.
    pub live: u32,
    /// The parts that can run.
    pub parts: Vec<Part>,
    pub waiting: Vec<Waiting>,
    /// Parts that wait at a collective instruction for other lanes of the warp, each with the mask of the lanes that
    /// the instruction names.
    pub gathering: Vec<(Part, u32)>,
    pub local: Scratch,
    pub copies: Vec<PendingCopy>,
    /// The number of groups of copies that each lane has committed.
    pub groups: [u64; 32],
    /// The index of the last accessed allocation.
    pub hint: usize,
    /// The number of backward branches since a part last yielded. They are counted only while another part could run.
    pub backward: u32,
}

/// The state of a warp's turn: how many instructions are left, and where other parts are.
struct Turn {
    left: u32,
    /// Whether the part that ran last yielded after many backward branches, so that another part must run next.
    yields: bool,
    /// The position of the next part ahead, at which the running part must stop. `u32::MAX` if no part is ahead, or if
    /// another part is behind, which can be the case after a yield.
    ahead: u32,
    others_can_run: bool,
}

/// Why a part of a warp stopped running.
enum Pause {
    /// The part's lanes have ended or are waiting, or have been put back into the list of parts.
    PartStopped,
    /// The turn is over.
    Turn,
}

impl Warp {
    /// Runs until no part can continue or the turn is over. Returns the number of executed instructions.
    pub fn take_turn(&mut self, block: &mut BlockState<'_>) -> Result<u32, (Stop, u32)> {
        let mut turn =
            Turn { left: limits::TURN_INSTRUCTIONS, yields: false, ahead: u32::MAX, others_can_run: false };
        loop {
            if self.parts.is_empty() {
                self.resume_gathered();
            }
            let Some(index) = self.choose(turn.yields) else { break };
            let part = self.parts.swap_remove(index);
            let other = self.parts.iter().map(|part| part.pc).min().unwrap_or(u32::MAX);
            // After a yield, a part may run although another part is behind it.
            turn.ahead = if other < part.pc { u32::MAX } else { other };
            turn.others_can_run = !self.parts.is_empty();
            let mut pc = part.pc;
            match self.run(block, &mut pc, part.mask, &mut turn) {
                Ok(Pause::PartStopped) => {}
                Ok(Pause::Turn) => break,
                Err(stop) => return Err((stop, pc)),
            }
        }
        Ok(limits::TURN_INSTRUCTIONS - turn.left)
    }

    /// Chooses the part that is furthest behind. If the part that ran last yields, chooses among the other parts.
    fn choose(&mut self, yields: bool) -> Option<usize> {
        let parts = self.parts.iter().enumerate();
        if yields {
            // The part that yields is the last in the list.
            let last = self.parts.len().checked_sub(1)?;
            parts
                .filter(|(index, _)| *index != last || last == 0)
                .min_by_key(|(_, part)| part.pc)
                .map(|(i, _)| i)
        } else {
            parts.min_by_key(|(_, part)| part.pc).map(|(index, _)| index)
        }
    }

    /// Adds lanes that can run from a position. If a part is already at that position, merges the lanes into that part.
    pub fn put(&mut self, pc: u32, mask: u32) {
        if mask == 0 {
            return;
        }
        match self.parts.iter_mut().find(|part| part.pc == pc) {
            Some(part) => part.mask |= mask,
            None => self.parts.push(Part { pc, mask }),
        }
    }

    /// Makes a part wait at a collective instruction for missing lanes. If no lane is missing, puts the part back into
    /// the list of parts, together with the lanes that wait at the instruction with the same mask of members.
    pub fn gather(&mut self, part: Part, members: u32) {
        let known =
            self.gathering.iter().position(|(gathered, mask)| (gathered.pc, *mask) == (part.pc, members));
        let already_there = known.map_or(0, |index| self.gathering.swap_remove(index).0.mask);
        let mask = part.mask | already_there;
        if members & self.live & !mask == 0 {
            self.put(part.pc, mask);
        } else {
            self.gathering.push((Part { pc: part.pc, mask }, members));
        }
    }

    /// Resumes parts whose missing lanes have ended.
    fn resume_gathered(&mut self) {
        for (part, members) in std::mem::take(&mut self.gathering) {
            self.gather(part, members);
        }
    }

    /// Runs a part until it ends, waits, splits, yields or meets another part, or the turn is over.
    fn run(
        &mut self,
        block: &mut BlockState<'_>,
        at: &mut u32,
        mask: u32,
        turn: &mut Turn,
    ) -> Result<Pause, Stop> {
        if block.host.has_wide_vectors() {
            // SAFETY: the CPU has the instructions that the function uses.
            #[cfg(target_arch = "x86_64")]
            return unsafe { self.run_with_wide_vectors(block, at, mask, turn) };
            #[cfg(not(target_arch = "x86_64"))]
            return self.run_on::<true>(block, at, mask, turn);
        }
        self.run_on::<false>(block, at, mask, turn)
    }

    /// Calls `run_on`, compiled to use wide vectors and other optional instructions of the CPU.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2,fma,lzcnt,popcnt")]
    fn run_with_wide_vectors(
        &mut self,
        block: &mut BlockState<'_>,
        at: &mut u32,
        mask: u32,
        turn: &mut Turn,
    ) -> Result<Pause, Stop> {
        self.run_on::<true>(block, at, mask, turn)
    }

    /// Runs a part. `FUSED` says whether the host multiplies and adds in one instruction.
    #[inline(always)]
    fn run_on<const FUSED: bool>(
        &mut self,
        block: &mut BlockState<'_>,
        at: &mut u32,
        mask: u32,
        turn: &mut Turn,
    ) -> Result<Pause, Stop> {
        let Turn { ahead, others_can_run, .. } = *turn;
        turn.yields = false;
        let kernel = block.kernel;
        loop {
            let pc = *at;
            if ahead <= pc || turn.left == 0 {
                self.put(pc, mask);
                return Ok(if turn.left == 0 { Pause::Turn } else { Pause::PartStopped });
            }
            turn.left -= 1;
            let Some(instruction) = kernel.code.get(pc as usize) else {
                return Err(Stop::new(FaultKind::Trap, first_lane(mask)));
            };
            let active = match instruction.guard {
                None => mask,
                Some(guard) => {
                    let flags = self.registers.flags[guard.row as usize];
                    mask & if guard.negated { !flags } else { flags }
                }
            };
            if active == 0 {
                *at += 1;
                continue;
            }
            let r = &mut self.registers;
            match instruction.op {
                Op::Narrow2(op, to, a, b) => vector::run_narrow(op, r, active, to, a, b),
                Op::Wide2(op, to, a, b) => vector::run_wide(op, r, active, to, a, b),
                Op::FmaF32 { flush, rows } => vector::fma_f32::<FUSED>(flush, r, active, rows),
                Op::Memory(index) => self.memory(block, index, active, pc)?,
                Op::MoveNarrow { to, from } => vector::move_narrow(r, active, to, from),
                Op::MoveWide { to, from } => vector::move_wide(r, active, to, from),
                Op::Compare(compare, kind, to, a, b) => vector::compare(compare, kind, r, active, [to, a, b]),
                Op::MulWiden { signed, rows } => vector::mul_widen(signed, r, active, rows),
                Op::MadWiden { signed, rows } => vector::mad_widen(signed, r, active, rows),
                Op::MadNarrow(to, a, b, c) => vector::mad_narrow(r, active, [to, a, b, c]),
                Op::MadWide(to, a, b, c) => vector::mad_wide(r, active, [to, a, b, c]),
                Op::WideShift(op, to, a, b) => vector::shift_wide(op, r, active, to, a, b),
                Op::Widen { signed, to, from } => vector::widen(signed, r, active, to, from),
                Op::Truncate { to, from } => vector::truncate(r, active, to, from),
                Op::SelectNarrow { to, yes, no, flag } => vector::select_narrow(r, active, to, yes, no, flag),
                Op::SelectWide { to, yes, no, flag } => vector::select_wide(r, active, to, yes, no, flag),
                Op::FmaF64(to, a, b, c) => vector::fma_f64::<FUSED>(r, active, [to, a, b, c]),
                Op::Lane(index) => functions::run(&kernel.lane_ops[index as usize], r, active),
                Op::Flags(op, to, a, b) => {
                    let (x, y) = (r.flags[a as usize], r.flags[b as usize]);
                    let value = match op {
                        FlagOp::And => x & y,
                        FlagOp::Or => x | y,
                        FlagOp::Xor => x ^ y,
                    };
                    r.set_flags(to, active, value);
                }
                Op::FlagNot { to, from } => {
                    let value = !r.flags[from as usize];
                    r.set_flags(to, active, value);
                }
                Op::FlagMove { to, from } => {
                    let value = r.flags[from as usize];
                    r.set_flags(to, active, value);
                }
                Op::Branch { target } => {
                    if let Some(counter) = &mut block.counter
                        && active != mask
                    {
                        counter.divergent_branches += 1;
                    }
                    if target <= pc && others_can_run {
                        self.backward += 1;
                    }
                    if others_can_run && limits::BRANCHES_BEFORE_YIELD < self.backward {
                        self.backward = 0;
                        // The part is put at the end of the list, so that another part is chosen.
                        self.put(pc + 1, mask & !active);
                        self.parts.push(Part { pc: target, mask: active });
                        turn.yields = true;
                        return Ok(Pause::PartStopped);
                    }
                    if active == mask && (target > pc || !others_can_run) {
                        *at = target;
                        continue;
                    }
                    if active == mask && pc < ahead && ahead != u32::MAX {
                        // All other parts are ahead, so this part may continue.
                        *at = target;
                        continue;
                    }
                    self.put(pc + 1, mask & !active);
                    self.put(target, active);
                    return Ok(Pause::PartStopped);
                }
                Op::BranchTable { index, table } => {
                    let table = &kernel.tables[table as usize];
                    for lane in lanes(active) {
                        let index = self.registers.narrow[index as usize][lane];
                        let Some(target) = table.get(index as usize) else {
                            return Err(Stop::new(FaultKind::Trap, lane));
                        };
                        self.put(*target, 1 << lane);
                    }
                    self.put(pc + 1, mask & !active);
                    return Ok(Pause::PartStopped);
                }
                Op::Exit => {
                    self.live &= !active;
                    self.put(pc + 1, mask & !active);
                    return Ok(Pause::PartStopped);
                }
                Op::Trap => return Err(Stop::new(FaultKind::Trap, first_lane(active))),
                Op::Barrier(op) => {
                    self.put(pc + 1, mask & !active);
                    self.arrive(block, op, Part { pc, mask: active })?;
                    return Ok(Pause::PartStopped);
                }
                Op::Warp(index) => {
                    let arrived =
                        self.collective_in_groups(block, &kernel.warp_ops[index as usize], active, pc)?;
                    if arrived != active {
                        self.put(pc + 1, mask & !active | arrived);
                        return Ok(Pause::PartStopped);
                    }
                }
                Op::Matrix(index) => {
                    if self.live & !active != 0 {
                        self.put(pc + 1, mask & !active);
                        self.gather(Part { pc, mask: active }, u32::MAX);
                        return Ok(Pause::PartStopped);
                    }
                    self.matrix(block, index, active, pc)?;
                }
                Op::Copy(index) => self.copy(block, index, active, pc)?,
                Op::Mbarrier(index) => self.mbarrier(block, index, active, pc)?,
                Op::Call(index) => {
                    self.call(block, &kernel.call_ops[index as usize], active)?;
                    turn.left = turn.left.saturating_sub(block.take_extra());
                }
                Op::ActiveMask { to } => {
                    let row = &mut r.narrow[to as usize];
                    lanes(active).for_each(|lane| row[lane] = active);
                }
                Op::Clock { to } => {
                    let now = block.clock(limits::TURN_INSTRUCTIONS - turn.left);
                    lanes(active).for_each(|lane| r.set(to, lane, now));
                }
                Op::Fence => {
                    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
                    self.note_fence(block, active);
                }
                Op::EnterLocal { offset, bytes } => {
                    let each = block.kernel.local_bytes;
                    for lane in lanes(active) {
                        self.local.forget_range(lane as u64 * each + u64::from(offset), u64::from(bytes));
                    }
                    turn.left = turn
                        .left
                        .saturating_sub(active.count_ones() * (bytes / FORGOTTEN_BYTES_PER_INSTRUCTION));
                }
                Op::Nothing => {}
            }
            *at += 1;
        }
    }
}
