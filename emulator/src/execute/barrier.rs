//! Implements the barriers of a block: counts the threads that arrive, and releases the threads that wait.

use super::block::BlockState;
use super::race::Races;
use super::warp::{Part, Waiting, Warp};
use super::{Stop, first_lane, lanes};
use crate::code::{BarrierMode, Kernel};
use crate::fault::FaultKind;
use crate::limits;

/// One of a block's barriers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Barrier {
    /// The number of threads that have arrived since the last release. In some cases, this includes lanes that have
    /// ended or never existed.
    arrived: u32,
    /// The number of threads that have executed a barrier instruction since the last release.
    present: u32,
    /// The number of threads that are needed; `None` for all threads that have not ended.
    needed: Option<u32>,
    /// The number of threads that have arrived with the predicate set.
    set: u32,
    is_in_use: bool,
}

impl Warp {
    pub fn arrive(&mut self, block: &mut BlockState<'_>, op: u32, part: Part) -> Result<(), Stop> {
        let kernel = block.kernel;
        let barrier_op = &kernel.barrier_ops[op as usize];
        let indices = self.registers.narrow[barrier_op.index as usize];
        // The barrier's number is in a register, so lanes at the same instruction may use different barriers.
        let mut rest = part.mask;
        while rest != 0 {
            let leader = first_lane(rest);
            let index = indices[leader] as usize;
            let mask =
                lanes(rest).filter(|lane| indices[*lane] as usize == index).fold(0, |m, l| m | 1_u32 << l);
            rest &= !mask;
            if limits::BARRIERS <= index {
                let what =
                    format!("barrier {index} does not exist: a block has {} barriers", limits::BARRIERS);
                return Err(Stop::new(FaultKind::InvalidValue(what), leader));
            }
            let barrier = &mut block.barriers[index];
            barrier.is_in_use = true;
            barrier.needed = barrier_op.threads.map(|row| self.registers.narrow[row as usize][leader]);
            if let Some(needed) = barrier.needed.filter(|needed| *needed == 0 || !needed.is_multiple_of(32)) {
                let what = format!(
                    "barrier {index} is for {needed} threads, which is not a positive multiple of 32"
                );
                return Err(Stop::new(FaultKind::InvalidValue(what), leader));
            }
            // If a barrier is for a given number of threads, and all live lanes of a warp arrive together, then the
            // warp's other lanes, which have ended or never existed, are counted as arrived too.
            barrier.arrived += mask.count_ones();
            barrier.present += mask.count_ones();
            if barrier.needed.is_some() && mask == self.live {
                barrier.arrived += 32 - mask.count_ones();
            }
            if let (Some(races), Some(needed)) = (&mut block.races, barrier.needed) {
                races.arrive(index, self.index, mask, needed);
            }
            if let Some(flag) = barrier_op.flag {
                let flags = self.registers.flags[flag.row as usize];
                barrier.set += (mask & if flag.negated { !flags } else { flags }).count_ones();
            }
            if barrier_op.mode == BarrierMode::Arrive {
                self.put(part.pc + 1, mask);
            } else {
                self.waiting.push(Waiting { part: Part { pc: part.pc, mask }, barrier: index, op });
            }
        }
        Ok(())
    }
}

/// The threads that barriers have released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    None,
    Some,
    /// A barrier that orders the accesses of all threads has released all threads that have not ended.
    All,
}

/// Releases the threads that wait at complete barriers.
pub fn release(
    kernel: &Kernel,
    barriers: &mut [Barrier; limits::BARRIERS],
    mut races: Option<&mut Races>,
    warps: &mut [Warp],
    threads: u32,
) -> Result<Released, (Stop, u32, u32)> {
    let mut released = Released::None;
    for (index, slot) in barriers.iter_mut().enumerate() {
        let barrier = *slot;
        if !barrier.is_in_use {
            continue;
        }
        let live: u32 = warps.iter().map(|warp| warp.live.count_ones()).sum();
        if barrier.arrived < barrier.needed.unwrap_or(live) {
            continue;
        }
        let here = |warp: &Warp| {
            warp.waiting.iter().filter(|w| w.barrier == index).fold(0, |all, w| all | w.part.mask)
        };
        let waiting: u32 = warps.iter().map(|warp| here(warp).count_ones()).sum();
        // A barrier for only some of the block's threads does not order the accesses of the other threads, even if
        // these have ended. The same is true of a barrier at which threads may arrive without waiting.
        let for_all = |needed| threads <= needed && races.as_ref().is_none_or(|it| !it.has_arrivals);
        let all = waiting == live && barrier.needed.is_none_or(for_all);
        if let Some(races) = races.as_deref_mut() {
            let masks = warps.iter().map(|warp| (warp.index, here(warp)));
            races.release(index, masks, all);
        }
        for warp in &mut *warps {
            pass(kernel, warp, index, barrier)?;
        }
        *slot = Barrier::default();
        released = if all || released == Released::All { Released::All } else { Released::Some };
    }
    Ok(released)
}

/// Releases the lanes of a warp that wait at a barrier. If the barrier also computes a reduction, the lanes get its
/// result.
fn pass(kernel: &Kernel, warp: &mut Warp, index: usize, barrier: Barrier) -> Result<(), (Stop, u32, u32)> {
    // Usually, all lanes of a warp wait at the same instruction.
    if let [waiting] = warp.waiting.as_slice()
        && waiting.barrier == index
        && kernel.barrier_ops[waiting.op as usize].to.is_none()
    {
        let part = waiting.part;
        warp.waiting.clear();
        warp.put(part.pc + 1, part.mask);
        return Ok(());
    }
    let waiting = std::mem::take(&mut warp.waiting);
    let (passing, staying): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|w| w.barrier == index);
    warp.waiting = staying;
    let aligned = |waiting: &&Waiting| kernel.barrier_ops[waiting.op as usize].aligned;
    let mut positions = passing.iter().filter(aligned).map(|waiting| waiting.part.pc);
    if let Some(first) = positions.next()
        && positions.any(|pc| pc != first)
    {
        let lane = first_lane(passing[0].part.mask);
        return Err((Stop::new(FaultKind::BarrierDivergence, lane), first, warp.index));
    }
    for waiting in passing {
        let op = &kernel.barrier_ops[waiting.op as usize];
        if let Some(slot) = op.to {
            let value = match op.mode {
                BarrierMode::And => u64::from(barrier.set == barrier.present),
                BarrierMode::Or => u64::from(barrier.set != 0),
                _ => u64::from(barrier.set),
            };
            lanes(waiting.part.mask).for_each(|lane| warp.registers.set(slot, lane, value));
        }
        warp.put(waiting.part.pc + 1, waiting.part.mask);
    }
    Ok(())
}
