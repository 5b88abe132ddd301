//! Computes the offsets at which the lanes of a warp access one piece of memory, if all accesses are aligned and inside
//! this piece.

use super::first_lane;
use super::warp::Registers;
use crate::code::{Address, File};

/// How the offsets of eight consecutive lanes are related.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Run {
    /// Each access begins where the access of the previous lane ends.
    Consecutive,
    /// All lanes have the same offset.
    Same,
    Mixed,
}

/// The piece of memory that all lanes must access.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The address of the first byte.
    pub start: u64,
    /// The size of the piece, in bytes.
    pub length: u64,
    /// The offset of the first byte, at most 255. Offsets are counted from an aligned address, which may be before the
    /// piece.
    pub lead: u32,
}

/// The offsets of all lanes. Lanes that are not active have the offset of the first active one.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    pub at: [u32; 32],
    /// How the offsets within each group of eight lanes are related.
    pub runs: [Run; 4],
    /// The size of an access, in bytes.
    pub step: u32,
}

impl Offsets {
    /// Finds the offsets of accesses of `bytes` bytes each. Returns `None` if an access is misaligned or not completely
    /// inside the piece, or if the piece is too large for 32-bit offsets. If the addresses have 32 bits, the piece must
    /// also start at 0.
    #[inline(always)]
    pub fn find(
        registers: &Registers,
        address: Address,
        piece: Piece,
        bytes: u32,
        active: u32,
    ) -> Option<Self> {
        let offset = address.offset.cast_unsigned();
        let last = piece.length.checked_sub(u64::from(bytes))?;
        let last = u32::try_from(last).ok().filter(|last| *last < u32::MAX - 255)?;
        let mut at = [0; 32];
        if address.base.file == File::Narrow {
            if piece.start != 0 {
                return None;
            }
            let row = &registers.narrow[address.base.row as usize];
            for (slot, base) in at.iter_mut().zip(row) {
                *slot = base.wrapping_add(offset as u32);
            }
        } else {
            let row = &registers.wide[address.base.row as usize];
            let shift = offset.wrapping_sub(piece.start);
            let mut beyond = 0;
            for (lane, (slot, base)) in at.iter_mut().zip(row).enumerate() {
                let inside = base.wrapping_add(shift);
                beyond |= if active >> lane & 1 == 1 { inside >> 32 } else { 0 };
                *slot = inside as u32;
            }
            if beyond != 0 {
                return None;
            }
        }
        if active != u32::MAX {
            let first = at[first_lane(active)];
            for (lane, slot) in at.iter_mut().enumerate() {
                *slot = if active >> lane & 1 == 1 { *slot } else { first };
            }
        }
        let (mut highest, mut bits) = (0, 0);
        for slot in &mut at {
            highest = highest.max(*slot);
            *slot = slot.wrapping_add(piece.lead);
            bits |= *slot;
        }
        if last < highest || bits & (bytes - 1) != 0 {
            return None;
        }
        let mut runs = [Run::Mixed; 4];
        for (run, eight) in runs.iter_mut().zip(at.as_chunks::<8>().0) {
            *run = Run::of(eight, bytes);
        }
        Some(Self { at, runs, step: bytes })
    }

    /// Returns the offset of all lanes, if it is the same for all.
    #[inline(always)]
    pub fn single(&self) -> Option<u32> {
        let first = self.at[0];
        (self.runs == [Run::Same; 4] && [8, 16, 24].iter().all(|lane| self.at[*lane] == first))
            .then_some(first)
    }

    /// Whether the access of each active lane lies after those of all earlier active lanes.
    #[inline(always)]
    pub fn ascend(&self, bytes: u32, active: u32) -> bool {
        if active == u32::MAX {
            let mut meets = 0;
            for lane in 1..32 {
                meets |= u32::from(self.at[lane] < self.at[lane - 1] + bytes);
            }
            return meets == 0;
        }
        let mut end = 0;
        super::lanes(active).all(|lane| {
            let is_behind = end <= self.at[lane];
            end = self.at[lane] + bytes;
            is_behind
        })
    }
}

impl Run {
    #[inline(always)]
    fn of(at: &[u32; 8], bytes: u32) -> Self {
        let first = at[0];
        let (mut apart, mut moved) = (0, 0);
        for (index, offset) in at.iter().enumerate() {
            apart |= *offset ^ first;
            moved |= *offset ^ first.wrapping_add(bytes * index as u32);
        }
        if moved == 0 {
            Self::Consecutive
        } else if apart == 0 {
            Self::Same
        } else {
            Self::Mixed
        }
    }
}
