//! Executes shuffles, votes, matches, reductions and elections among lanes of a warp.

use super::block::BlockState;
use super::vector::write;
use super::warp::{Part, Warp};
use super::{Stop, first_lane, lanes};
use crate::code::{ReduceOp, ShuffleMode, VoteMode, WarpOp};
use crate::fault::FaultKind;
use crate::memory::UNDEFINED;

impl Warp {
    /// Executes an operation among lanes that are at the same instruction. Lanes with the same mask of members form a
    /// group, and each group executes the operation separately, as soon as all of its members have arrived. Returns the
    /// lanes that have executed the operation.
    pub fn collective_in_groups(
        &mut self,
        block: &mut BlockState<'_>,
        op: &WarpOp,
        active: u32,
        pc: u32,
    ) -> Result<u32, Stop> {
        let Some(row) = op.members() else {
            self.collective(op, active);
            return Ok(active);
        };
        let members = self.registers.narrow[row as usize];
        let (mut rest, mut arrived) = (active, 0);
        while rest != 0 {
            let mask = members[first_lane(rest)];
            let group =
                lanes(rest).filter(|lane| members[*lane] == mask).fold(0, |all, lane| all | 1 << lane);
            rest &= !group;
            let outside = group & !mask;
            if outside != 0 {
                let what = format!("the lane is not in its own mask of members, {mask:#x}");
                return Err(Stop::new(FaultKind::InvalidValue(what), first_lane(outside)));
            }
            if mask & self.live & !group != 0 {
                self.gather(Part { pc, mask: group }, mask);
                continue;
            }
            self.collective(op, group);
            self.note_collective(block, op, group);
            arrived |= group;
        }
        Ok(arrived)
    }

    #[inline(always)]
    fn collective(&mut self, op: &WarpOp, active: u32) {
        match *op {
            WarpOp::Shuffle { .. } => self.shuffle(op, active),
            WarpOp::Vote { mode, to, flag, .. } => {
                let flags = self.registers.flags[flag.row as usize];
                let set = (if flag.negated { !flags } else { flags }) & active;
                let result = match mode {
                    VoteMode::All => u64::from(set == active),
                    VoteMode::Any => u64::from(set != 0),
                    VoteMode::Uniform => u64::from(set == active || set == 0),
                    VoteMode::Ballot => u64::from(set),
                };
                lanes(active).for_each(|lane| self.registers.set(to, lane, result));
            }
            WarpOp::Match { all, to, agree, value, .. } => {
                let values: [u64; 32] = std::array::from_fn(|lane| self.registers.get(value, lane));
                let same =
                    |value: u64| lanes(active).filter(|l| values[*l] == value).fold(0, |m, l| m | 1_u32 << l);
                let all_same = same(values[first_lane(active)]) == active;
                for lane in lanes(active) {
                    let mask = match all {
                        true if all_same => active,
                        true => 0,
                        false => same(values[lane]),
                    };
                    self.registers.narrow[to as usize][lane] = mask;
                }
                if let Some(row) = agree {
                    self.registers.set_flags(row, active, if all_same { u32::MAX } else { 0 });
                }
            }
            WarpOp::Reduce { op, to, value, .. } => {
                let values = self.registers.narrow[value as usize];
                let result =
                    lanes(active).map(|lane| values[lane]).reduce(|a, b| reduced(op, a, b)).unwrap_or(0);
                let row = &mut self.registers.narrow[to as usize];
                lanes(active).for_each(|lane| row[lane] = result);
            }
            WarpOp::Sync { .. } => {}
            WarpOp::Elect { to, flag, .. } => {
                let leader = first_lane(active);
                self.registers.set_flags(flag, active, 1 << leader);
                if let Some(row) = to {
                    let row = &mut self.registers.narrow[row as usize];
                    lanes(active).for_each(|lane| row[lane] = leader as u32);
                }
            }
        }
    }

    #[inline(always)]
    fn shuffle(&mut self, op: &WarpOp, active: u32) {
        let WarpOp::Shuffle { mode, to, in_range, value, lane: lane_row, clamp: clamp_row, .. } = *op else {
            return;
        };
        let registers = &mut self.registers;
        let values = registers.narrow[value as usize];
        let (by, clamps) = (registers.narrow[lane_row as usize], registers.narrow[clamp_row as usize]);
        // For each lane, this determines the lane whose value it gets, and a bit that says whether the requested lane
        // is in range.
        let (from, reached) = match mode {
            ShuffleMode::Up => sources(&by, &clamps, |own, by, segment| {
                let from = own.wrapping_sub(by);
                (from, (own >= by) & (segment.bound <= from))
            }),
            ShuffleMode::Down => {
                sources(&by, &clamps, |own, by, segment| (own + by, own + by <= segment.bound))
            }
            ShuffleMode::Butterfly => {
                sources(&by, &clamps, |own, by, segment| (own ^ by, own ^ by <= segment.bound))
            }
            ShuffleMode::Index => sources(&by, &clamps, |_, by, segment| {
                let from = segment.lowest | by & !segment.mask;
                (from, from <= segment.bound)
            }),
        };
        // PTX does not define what a lane gets from a lane that does not take part.
        write(&mut registers.narrow[to as usize], active, |lane| {
            let from = from[lane] & 31;
            if active >> from & 1 == 0 { UNDEFINED } else { values[from as usize] }
        });
        if let Some(row) = in_range {
            registers.set_flags(row, active, reached);
        }
    }
}

/// The lanes among which a lane shuffles values.
struct Segment {
    /// The bits of a lane's number that are the same in the whole segment.
    mask: u32,
    lowest: u32,
    /// The last lane in the direction of the shuffle. For `ShuffleMode::Up`, this lane is below the others.
    bound: u32,
}

#[inline(always)]
fn sources(
    by: &[u32; 32],
    clamps: &[u32; 32],
    source: impl Fn(u32, u32, Segment) -> (u32, bool),
) -> ([u32; 32], u32) {
    let mut from = [0; 32];
    let mut reached = 0;
    for (lane, slot) in from.iter_mut().enumerate() {
        let own = lane as u32;
        let (clamp, mask) = (clamps[lane] & 31, clamps[lane] >> 8 & 31);
        let segment = Segment { mask, lowest: own & mask, bound: own & mask | clamp & !mask };
        let (other, valid) = source(own, by[lane] & 31, segment);
        *slot = if valid { other } else { own };
        reached |= u32::from(valid) << lane;
    }
    (from, reached)
}

fn reduced(op: ReduceOp, a: u32, b: u32) -> u32 {
    match op {
        ReduceOp::Add => a.wrapping_add(b),
        ReduceOp::MinSigned => (a as i32).min(b as i32) as u32,
        ReduceOp::MaxSigned => (a as i32).max(b as i32) as u32,
        ReduceOp::MinUnsigned => a.min(b),
        ReduceOp::MaxUnsigned => a.max(b),
        ReduceOp::And => a & b,
        ReduceOp::Or => a | b,
        ReduceOp::Xor => a ^ b,
    }
}
