//! Implements the fast path of the race detector, which records the accesses of all lanes of a warp at once. It is used
//! when these accesses cannot race with any access made since the last barrier for all threads. All other accesses are
//! recorded one by one, so that the lane that causes a race is known.

use super::{Races, Stamp};
use crate::execute::lanes;
use crate::execute::offsets::{Offsets, Run};

/// An access by several lanes of a warp.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub warp: u32,
    pub pc: u32,
    pub active: u32,
}

/// The bits of a stamp that hold the thread.
const THREAD: u64 = 0x3ff;

/// Returns true if the recorded access `known` is safe from a race with the thread in `stamp`. Anything recorded before
/// `old` happened before the last barrier for all threads, so it cannot race with later accesses.
#[inline(always)]
fn is_harmless(known: Stamp, old: Stamp, stamp: Stamp) -> bool {
    (known.0 < old.0) | ((known.0 ^ stamp.0) & THREAD == 0)
}

impl Races {
    /// Records the reads of the lanes. Returns false if they must be recorded one by one, for example because a byte
    /// that they read was written since the last barrier for all threads. In this case, some reads may have been
    /// recorded already. It does no harm to record them again.
    #[inline(always)]
    pub fn reads_orderly(&mut self, row: Row, offsets: &Offsets) -> bool {
        let first = Stamp::new(self.now, row.pc, 32 * row.warp);
        let parts = offsets.step >> self.shift;
        let (mut last, mut repeats) = (u32::MAX, 0);
        if row.active == u32::MAX && parts == 1 {
            for (group, eight) in offsets.at.as_chunks::<8>().0.iter().enumerate() {
                let stamp = Stamp(first.0 | (8 * group as u64));
                match offsets.runs[group] {
                    Run::Consecutive if eight[0] != last => {
                        if !self.read_eight(eight[0], stamp) {
                            return false;
                        }
                        (last, repeats) = (eight[7], 0);
                        continue;
                    }
                    Run::Same => {
                        // Only two readers per part are remembered; two are enough.
                        let known = if eight[0] == last { repeats + 1 } else { 0 };
                        for lane in known..2 {
                            if !self.read_part(eight[0], Stamp(stamp.0 + lane - known)) {
                                return false;
                            }
                        }
                        (last, repeats) = (eight[0], known + 7);
                        continue;
                    }
                    _ => {}
                }
                for (lane, at) in eight.iter().enumerate() {
                    repeats = if *at == last { repeats + 1 } else { 0 };
                    last = *at;
                    if repeats < 2 && !self.read_part(*at, Stamp(stamp.0 + lane as u64)) {
                        return false;
                    }
                }
            }
            return true;
        }
        for lane in lanes(row.active) {
            let at = offsets.at[lane];
            repeats = if at == last { repeats + 1 } else { 0 };
            last = at;
            if 2 <= repeats && parts == 1 {
                continue;
            }
            for part in 0..parts {
                if !self.read_part(at + (part << self.shift), Stamp(first.0 | lane as u64)) {
                    return false;
                }
            }
        }
        true
    }

    #[inline(always)]
    fn read_part(&mut self, at: u32, stamp: Stamp) -> bool {
        let old = Stamp::new(self.base, 0, 0);
        let part = (at >> self.shift) as usize;
        let has_known = !self.known.is_empty();
        let [first, second] = &mut self.readers;
        let (Some(writer), Some(one), Some(two)) =
            (self.writers.get(part), first.get_mut(part), second.get_mut(part))
        else {
            return false;
        };
        if old <= *writer {
            return false;
        }
        if is_harmless(*one, old, stamp) {
            *one = stamp;
        } else if is_harmless(*two, old, stamp) {
            *two = stamp;
        } else if has_known {
            return false;
        }
        true
    }

    /// Records that eight consecutive lanes, starting with the thread in `stamp`, each read one of eight consecutive
    /// parts. Returns false if the reads must be recorded one by one.
    #[inline(always)]
    fn read_eight(&mut self, at: u32, stamp: Stamp) -> bool {
        let old = Stamp::new(self.base, 0, 0);
        let parts = (at >> self.shift) as usize..(at >> self.shift) as usize + 8;
        let has_known = !self.known.is_empty();
        let [first, second] = &mut self.readers;
        let (Some(writers), Some(first), Some(second)) =
            (self.writers.get(parts.clone()), first.get_mut(parts.clone()), second.get_mut(parts))
        else {
            return false;
        };
        if writers.iter().fold(false, |any, writer| any | (old.0 <= writer.0)) {
            return false;
        }
        let mut blocked = 0;
        for (lane, (one, two)) in first.iter_mut().zip(second).enumerate() {
            let stamp = Stamp(stamp.0 + lane as u64);
            let is_first = is_harmless(*one, old, stamp);
            let is_second = !is_first & is_harmless(*two, old, stamp);
            *one = if is_first { stamp } else { *one };
            *two = if is_second { stamp } else { *two };
            blocked |= u64::from(!(is_first | is_second));
        }
        blocked == 0 || !has_known
    }

    /// Records the writes of the lanes. The lanes must write different bytes, in ascending order, and no other thread
    /// may have accessed these bytes since the last barrier for all threads. (Reads by other threads are allowed if the
    /// write does not change the value.) If these conditions are not met, nothing is changed, and false is returned.
    /// `changed` is the mask of the lanes whose writes change values in memory.
    #[inline(always)]
    pub fn writes_orderly(&mut self, row: Row, offsets: &Offsets, changed: u32) -> bool {
        if !offsets.ascend(offsets.step, row.active) {
            return false;
        }
        let first = Stamp::new(self.now, row.pc, 32 * row.warp);
        let parts = offsets.step >> self.shift;
        let is_consecutive = offsets.runs == [Run::Consecutive; 4] && parts == 1 && row.active == u32::MAX;
        if is_consecutive {
            let eights = || offsets.at.iter().step_by(8).zip((0..).step_by(8));
            let stamp = |lane: u32| Stamp(first.0 | u64::from(lane));
            if !eights().all(|(at, lane)| self.may_write_eight(*at, stamp(lane), changed >> lane)) {
                return false;
            }
            for (at, lane) in eights() {
                self.write_eight(*at, stamp(lane), changed >> lane);
            }
            return true;
        }
        for lane in lanes(row.active) {
            let stamp = Stamp(first.0 | lane as u64);
            for part in 0..parts {
                if !self.may_write(offsets.at[lane] + (part << self.shift), stamp, changed >> lane & 1 == 1) {
                    return false;
                }
            }
        }
        for lane in lanes(row.active & changed) {
            let from = (offsets.at[lane] >> self.shift) as usize;
            self.writers[from..from + parts as usize].fill(Stamp(first.0 | lane as u64));
        }
        true
    }

    #[inline(always)]
    fn may_write(&self, at: u32, stamp: Stamp, changes: bool) -> bool {
        let old = Stamp::new(self.base, 0, 0);
        let part = (at >> self.shift) as usize;
        let (Some(writer), Some(one), Some(two)) =
            (self.writers.get(part), self.readers[0].get(part), self.readers[1].get(part))
        else {
            return false;
        };
        is_harmless(*writer, old, stamp)
            && (!changes || is_harmless(*one, old, stamp) && is_harmless(*two, old, stamp))
    }

    /// Returns true if `write_eight` may record that eight consecutive lanes, starting with the thread in `stamp`, each
    /// write one of eight consecutive parts.
    #[inline(always)]
    fn may_write_eight(&self, at: u32, stamp: Stamp, changed: u32) -> bool {
        let old = Stamp::new(self.base, 0, 0);
        let parts = (at >> self.shift) as usize..(at >> self.shift) as usize + 8;
        let [first, second] = &self.readers;
        let (Some(writers), Some(first), Some(second)) =
            (self.writers.get(parts.clone()), first.get(parts.clone()), second.get(parts))
        else {
            return false;
        };
        let mut may = true;
        for (lane, (writer, (one, two))) in writers.iter().zip(first.iter().zip(second)).enumerate() {
            let stamp = Stamp(stamp.0 + lane as u64);
            let changes = changed >> lane & 1 == 1;
            let is_unread = is_harmless(*one, old, stamp) & is_harmless(*two, old, stamp);
            may &= is_harmless(*writer, old, stamp) & (!changes | is_unread);
        }
        may
    }

    #[inline(always)]
    fn write_eight(&mut self, at: u32, stamp: Stamp, changed: u32) {
        let part = (at >> self.shift) as usize;
        for (lane, writer) in self.writers[part..part + 8].iter_mut().enumerate() {
            let new = Stamp(stamp.0 + lane as u64);
            *writer = if changed >> lane & 1 == 1 { new } else { *writer };
        }
    }
}
