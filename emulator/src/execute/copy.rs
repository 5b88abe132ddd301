//! Executes asynchronous copies to shared memory. A copy completes as late as possible, which is when its thread waits
//! for the copy. Until then, the bytes that the copy will write are marked, so that a read without a wait is reported.

use super::access::{Reach, Target};
use super::block::BlockState;
use super::warp::Warp;
use super::{Stop, lanes};
use crate::code::{CopyOp, MemorySpace, SourceBytes};
use crate::fault::{AccessKind, FaultKind, Memory};

/// A copy that is not complete yet.
#[derive(Debug)]
pub struct PendingCopy {
    lane: u8,
    /// The number of the copy's group, counted from the thread's start.
    group: u64,
    /// The address in shared memory to which the bytes are copied.
    to: u64,
    words: [u32; 4],
    bytes: u8,
    /// The instruction that started the copy.
    pc: u32,
}

/// One lane's `cp.async`.
struct CopyStart {
    lane: usize,
    to: u64,
    from: u64,
    bytes: u32,
    /// The number of bytes that are read from the source. The rest of the target is filled with zeros.
    read: u32,
    pc: u32,
}

impl Warp {
    pub fn copy(&mut self, block: &mut BlockState<'_>, index: u32, active: u32, pc: u32) -> Result<(), Stop> {
        match block.kernel.copy_ops[index as usize] {
            CopyOp::Start { to, from, bytes, source } => {
                let (to, from) = (self.addresses(to), self.addresses(from));
                for lane in lanes(active) {
                    let read = match source {
                        SourceBytes::All => bytes,
                        SourceBytes::Some(slot) => self.registers.get(slot, lane) as u32,
                        SourceBytes::Unless(guard) => {
                            let is_set = self.registers.flags[guard.row as usize] >> lane & 1 == 1;
                            if is_set != guard.negated { 0 } else { bytes }
                        }
                    };
                    let start = CopyStart { lane, to: to[lane], from: from[lane], bytes, read, pc };
                    self.start_copy(block, start)?;
                }
            }
            CopyOp::Commit => lanes(active).for_each(|lane| self.groups[lane] += 1),
            CopyOp::WaitForGroups(groups) => {
                let limits = self.groups.map(|open| open.saturating_sub(u64::from(groups)));
                self.finish_copies(block, active, |copy| copy.group < limits[usize::from(copy.lane)])?;
            }
            CopyOp::WaitForAll => self.finish_copies(block, active, |_| true)?,
        }
        Ok(())
    }

    fn start_copy(
        &mut self,
        block: &mut BlockState<'_>,
        CopyStart { lane, to, from, bytes, read, pc }: CopyStart,
    ) -> Result<(), Stop> {
        if bytes < read {
            let what = format!("`cp.async` reads {read} bytes for a copy of only {bytes} bytes");
            return Err(Stop::new(FaultKind::InvalidValue(what), lane));
        }
        let align = u64::from(bytes);
        let mut words = [0_u32; 4];
        if 0 < read {
            let reach = Reach { space: MemorySpace::Global, bytes: u64::from(read), align };
            let source = self.resolve(block, reach, from, lane, AccessKind::Read)?;
            for (index, word) in words.iter_mut().enumerate() {
                let at = 4 * index as u32;
                *word = self.word(block, &source, from, at, read.saturating_sub(at).min(4), lane)?;
            }
        }
        let reach = Reach { space: MemorySpace::Shared, bytes: align, align };
        let Target::Shared(to) = self.resolve(block, reach, to, lane, AccessKind::Write)? else {
            return Ok(());
        };
        // There can be more pending copies than words of shared memory only if several copies write the same word.
        if block.shared.len() / 4 <= block.pending_copies {
            let what = "more pending copies than the block's shared memory has words".to_owned();
            return Err(Stop::new(FaultKind::Unsupported(what), lane));
        }
        if let Err(race) = self.watch_write(block, lane, (to, align), true, pc) {
            // Several lanes of a warp may copy the same bytes to the same place.
            let same = |copy: &PendingCopy| copy.pc == pc && copy.to == to && copy.words == words;
            if !self.copies.iter().any(same) {
                return Err(race);
            }
        }
        block.pending_copies += 1;
        block.shared.mark_pending(to, align);
        let group = self.groups[lane];
        self.copies.push(PendingCopy { lane: lane as u8, group, to, words, bytes: bytes as u8, pc });
        Ok(())
    }

    /// Reads up to 4 bytes of a copy's source, and returns them as a word that is padded with zeros.
    fn word(
        &self,
        block: &BlockState<'_>,
        source: &Target<'_>,
        address: u64,
        at: u32,
        bytes: u32,
        lane: usize,
    ) -> Result<u32, Stop> {
        if bytes == 4 {
            let (value, state) = self.element(block, 4, source, u64::from(at));
            state.check(block.checks_reads, Memory::Global, address + u64::from(at), 4, lane)?;
            return Ok(value as u32);
        }
        let mut word = 0;
        for byte in 0..bytes {
            let at = u64::from(at + byte);
            let (value, state) = self.element(block, 1, source, at);
            state.check(block.checks_reads, Memory::Global, address + at, 1, lane)?;
            word |= (value as u32) << (8 * byte);
        }
        Ok(word)
    }

    pub fn finish_copies(
        &mut self,
        block: &mut BlockState<'_>,
        active: u32,
        is_awaited: impl Fn(&PendingCopy) -> bool,
    ) -> Result<(), Stop> {
        let mut copies = std::mem::take(&mut self.copies);
        let mut race = None;
        copies.retain(|copy| {
            let arrives = active >> copy.lane & 1 == 1 && is_awaited(copy);
            if arrives {
                // The copy may have written these bytes at any time until now, so the write is checked for races.
                // Copies by the same instruction were already compared when they were started.
                let (lane, bytes) = (usize::from(copy.lane), u64::from(copy.bytes));
                let found = self.watch_write(block, lane, (copy.to, bytes), true, copy.pc);
                let is_other = |stop: &Stop| match &*stop.kind {
                    FaultKind::Race { other, .. } => other.site.line != block.kernel.lines[copy.pc as usize],
                    _ => true,
                };
                race = race.take().or(found.err().filter(is_other));
                for index in 0..copy.bytes / 4 {
                    let word = u64::from(copy.words[usize::from(index)]);
                    block.shared.store(copy.to + 4 * u64::from(index), 4, word);
                }
                block.pending_copies -= 1;
            }
            !arrives
        });
        self.copies = copies;
        race.map_or(Ok(()), Err)
    }
}
