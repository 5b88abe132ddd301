//! Implements the device's global memory, which is shared by the host threads that run blocks. Addresses of freed
//! allocations are reused as late as possible.

mod copy;
mod written;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use self::written::Written;
use crate::fault::{Access, AccessKind, Fault, FaultKind, Memory, Nearest};

/// The first address of the heap. The windows of shared, local and parameter memory are below it.
const HEAP_START: u64 = 1 << 40;
const HEAP_END: u64 = 1 << 47;
/// The alignment of allocations, in bytes.
const ALIGNMENT: u64 = 256;
/// The smallest unused gap after an allocation, in bytes.
const GAP: u64 = 64 << 10;
/// The number of freed allocations that are remembered, so that a use after free can be distinguished from other
/// invalid addresses.
const MAX_REMEMBERED: usize = 4096;

/// A live allocation.
#[derive(Debug)]
pub struct Allocation {
    pub start: u64,
    pub bytes: u64,
    pub read_only: bool,
    words: Words,
    written: Written,
}

/// The words of an allocation.
#[derive(Debug)]
enum Words {
    Owned(Box<[AtomicU32]>),
    /// Memory of the process. `base` is the address of word 0. The words from `from` up to, but not including, `to`
    /// exist.
    Mapped {
        base: usize,
        from: usize,
        to: usize,
    },
}

impl Words {
    /// Returns the words that contain `bytes` bytes at `memory`, which has the offset `lead` from word 0.
    fn mapped(memory: usize, bytes: u64, lead: u64) -> Self {
        let base = memory.wrapping_sub(lead as usize);
        Self::Mapped { base, from: (lead / 4) as usize, to: (lead + bytes).div_ceil(4) as usize }
    }

    #[inline(always)]
    fn at(&self, index: usize) -> &AtomicU32 {
        match self {
            Self::Owned(words) => &words[index],
            Self::Mapped { base, from, to } => {
                assert!(*from <= index && index < *to, "a word outside its allocation");
                let pointer = std::ptr::with_exposed_provenance::<AtomicU32>(base.wrapping_add(4 * index));
                // SAFETY: `base` is a multiple of 4, and the caller of `Heap::map` guarantees that the word stays
                // mapped. Read-only memory is only loaded from.
                unsafe { &*pointer }
            }
        }
    }
}

impl Allocation {
    #[inline(always)]
    fn word(&self, offset: u64) -> &AtomicU32 {
        self.words.at((offset / 4) as usize)
    }

    /// The offset of an access, or `None` if it is not completely inside. Offsets are counted from the last multiple of
    /// `ALIGNMENT` at or before `start`, so an offset is aligned if its address is.
    #[inline(always)]
    pub fn offset(&self, address: u64, bytes: u64) -> Option<u64> {
        let inside = address.wrapping_sub(self.start);
        (inside < self.bytes && bytes <= self.bytes - inside).then_some(inside + self.start % ALIGNMENT)
    }

    /// Whether the allocation is mapped memory of the process.
    fn is_mapped(&self) -> bool {
        matches!(self.words, Words::Mapped { .. })
    }

    /// Reads 1, 2, 4 or 8 aligned bytes.
    #[inline(always)]
    pub fn load(&self, offset: u64, bytes: u32) -> u64 {
        let low = u64::from(self.word(offset).load(Ordering::Relaxed));
        match bytes {
            4 => low,
            8 => low | u64::from(self.word(offset + 4).load(Ordering::Relaxed)) << 32,
            2 => low >> (8 * (offset % 4)) & 0xffff,
            _ => low >> (8 * (offset % 4)) & 0xff,
        }
    }

    /// Returns the words that exist, and the index of the first of them. Word 0 is at offset 0.
    #[inline(always)]
    pub fn words(&self) -> (&[AtomicU32], usize) {
        match &self.words {
            Words::Owned(words) => (words, 0),
            Words::Mapped { base, from, to } => {
                let first = base.wrapping_add(4 * from);
                let pointer = std::ptr::with_exposed_provenance::<AtomicU32>(first);
                // SAFETY: `base` is a multiple of 4, and the caller of `Heap::map` guarantees that the words stay
                // mapped. Read-only memory is only loaded from.
                (unsafe { std::slice::from_raw_parts(pointer, to - from) }, *from)
            }
        }
    }

    #[inline(always)]
    pub fn tracks_writes(&self) -> bool {
        self.written.is_tracked()
    }

    /// The offset of the first byte.
    #[inline(always)]
    pub fn lead(&self) -> u32 {
        (self.start % ALIGNMENT) as u32
    }

    pub fn load_word(&self, offset: u64) -> u32 {
        self.word(offset).load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub fn store(&self, offset: u64, bytes: u32, value: u64) {
        self.mark(offset, u64::from(bytes));
        match bytes {
            4 => self.word(offset).store(value as u32, Ordering::Relaxed),
            8 => {
                self.word(offset).store(value as u32, Ordering::Relaxed);
                self.word(offset + 4).store((value >> 32) as u32, Ordering::Relaxed);
            }
            _ => {
                let shift = 8 * (offset % 4) as u32;
                let mask = if bytes == 2 { 0xffff } else { 0xff } << shift;
                let value = (value as u32) << shift & mask;
                self.update(offset, |old| old & !mask | value);
            }
        }
    }

    /// Changes the word at an offset atomically, and returns its old value.
    pub fn update(&self, offset: u64, change: impl Fn(u32) -> u32) -> u32 {
        let word = self.word(offset);
        let mut old = word.load(Ordering::Relaxed);
        loop {
            match word.compare_exchange_weak(old, change(old), Ordering::AcqRel, Ordering::Relaxed) {
                Ok(old) => return old,
                Err(now) => old = now,
            }
        }
    }

    /// Marks bytes as written.
    #[inline(always)]
    pub fn mark(&self, offset: u64, bytes: u64) {
        self.written.mark(offset, bytes);
    }

    /// Marks bytes as never written.
    fn forget(&self, offset: u64, bytes: u64) {
        self.written.forget(offset, bytes, u64::from(self.lead()) + self.bytes);
    }

    /// Whether any of up to 8 aligned bytes was ever written. True if writes are not tracked.
    #[inline(always)]
    pub fn is_written(&self, offset: u64, bytes: u64) -> bool {
        self.written.has_any(offset, bytes)
    }

    fn write(&self, offset: u64, data: &[u8]) {
        self.mark(offset, data.len() as u64);
        let mut at = offset;
        let mut rest = data;
        while !at.is_multiple_of(4) && !rest.is_empty() {
            self.store(at, 1, u64::from(rest[0]));
            (at, rest) = (at + 1, &rest[1..]);
        }
        let (words, tail) = rest.as_chunks::<4>();
        for word in words {
            self.word(at).store(u32::from_le_bytes(*word), Ordering::Relaxed);
            at += 4;
        }
        for (index, byte) in tail.iter().enumerate() {
            self.store(at + index as u64, 1, u64::from(*byte));
        }
    }

    fn read(&self, offset: u64, data: &mut [u8]) {
        let mut at = offset;
        let mut rest = data;
        while !at.is_multiple_of(4) && !rest.is_empty() {
            rest[0] = self.load(at, 1) as u8;
            (at, rest) = (at + 1, &mut rest[1..]);
        }
        let (words, tail) = rest.as_chunks_mut::<4>();
        for word in words {
            *word = self.load_word(at).to_le_bytes();
            at += 4;
        }
        for (index, byte) in tail.iter_mut().enumerate() {
            *byte = self.load(at + index as u64, 1) as u8;
        }
    }
}

/// The value of new memory, and of other undefined values. It is NaN as a float of any size and large as an integer, so
/// results that are computed from it are recognisably wrong.
pub const UNDEFINED: u32 = 0x7fff_7fff;

/// All allocations of a device.
#[derive(Debug)]
pub struct Heap {
    live: BTreeMap<u64, Arc<Allocation>>,
    freed: VecDeque<(u64, u64)>,
    next: u64,
    capacity: u64,
    used: u64,
    peak: u64,
    tracks_writes: bool,
}

impl Heap {
    pub fn new(capacity: u64, tracks_writes: bool) -> Self {
        Self {
            live: BTreeMap::new(),
            freed: VecDeque::new(),
            next: HEAP_START,
            capacity,
            used: 0,
            peak: 0,
            tracks_writes,
        }
    }

    pub fn used(&self) -> u64 {
        self.used
    }

    pub fn peak(&self) -> u64 {
        self.peak
    }

    pub fn set_peak_to_used(&mut self) {
        self.peak = self.used;
    }

    pub fn allocate(&mut self, bytes: u64, read_only: bool) -> Result<u64, Fault> {
        if bytes == 0 {
            return Err(Fault::invalid("an allocation of no bytes".to_owned()));
        }
        let free = self.capacity - self.used;
        let out_of_memory = Fault::new(FaultKind::OutOfMemory { wanted: bytes, free });
        if free < bytes {
            return Err(out_of_memory);
        }
        let Some(start) = self.find_gap(bytes) else { return Err(out_of_memory) };
        let length = bytes.div_ceil(4) as usize;
        let mut words = Vec::new();
        let written = if self.tracks_writes { Written::nothing(bytes) } else { Some(Written::default()) };
        let (Some(written), Ok(())) = (written, words.try_reserve_exact(length)) else {
            return Err(out_of_memory);
        };
        words.resize_with(length, || AtomicU32::new(UNDEFINED));
        let allocation =
            Allocation { start, bytes, read_only, words: Words::Owned(words.into_boxed_slice()), written };
        self.live.insert(start, Arc::new(allocation));
        self.used += bytes;
        self.peak = self.peak.max(self.used);
        self.next = (start + bytes).next_multiple_of(ALIGNMENT) + GAP;
        Ok(start)
    }

    /// Makes memory of the process accessible on the device, and returns its address there. Both addresses have the
    /// same remainder modulo `phase`, a divisor of `ALIGNMENT`. The memory is not counted as used.
    ///
    /// # Safety
    /// The words of 4 bytes that contain the memory must stay readable, and writable unless it is `read_only`, as long
    /// as this heap and its views exist. Nothing else may write to them during an operation of the device.
    pub unsafe fn map(
        &mut self,
        memory: *mut u8,
        bytes: u64,
        phase: u64,
        read_only: bool,
    ) -> Result<u64, Fault> {
        let memory = memory.expose_provenance();
        let lead = memory as u64 % phase.clamp(4, ALIGNMENT);
        let gap = self.find_gap(bytes.saturating_add(ALIGNMENT));
        let Some(aligned) = gap.filter(|_| 0 < bytes) else {
            return Err(Fault::invalid(format!(
                "a mapping of {bytes} bytes is empty or larger than any free range of addresses"
            )));
        };
        let start = aligned + lead;
        let words = Words::mapped(memory, bytes, lead);
        self.live.insert(
            start,
            Arc::new(Allocation { start, bytes, read_only, words, written: Written::default() }),
        );
        self.next = (start + bytes).next_multiple_of(ALIGNMENT) + GAP;
        Ok(start)
    }

    /// Returns the start of a free address range that is large enough. The search begins after the last allocation, and
    /// continues at the start of the heap when it reaches the end.
    fn find_gap(&self, bytes: u64) -> Option<u64> {
        let needed = bytes.checked_add(GAP)?;
        for from in [self.next, HEAP_START] {
            let mut start = from;
            // An allocation may begin before `start` and reach beyond it.
            if let Some((_, before)) = self.live.range(..start).next_back() {
                start = start.max((before.start + before.bytes).next_multiple_of(ALIGNMENT) + GAP);
            }
            for (next, allocation) in self.live.range(start..) {
                if start + needed <= *next {
                    break;
                }
                start = (allocation.start + allocation.bytes).next_multiple_of(ALIGNMENT) + GAP;
            }
            if start.checked_add(needed)? <= HEAP_END {
                return Some(start);
            }
        }
        None
    }

    pub fn free(&mut self, start: u64) -> Result<(), Fault> {
        let is_own = self.live.get(&start).is_some_and(|allocation| !allocation.is_mapped());
        let Some(allocation) = is_own.then(|| self.live.remove(&start)).flatten() else {
            return Err(Fault::invalid(format!("{start:#x} is not the address of an allocation")));
        };
        self.used -= allocation.bytes;
        if MAX_REMEMBERED <= self.freed.len() {
            self.freed.pop_front();
        }
        self.freed.push_back((start, allocation.bytes));
        Ok(())
    }

    fn containing(&self, address: u64, bytes: u64) -> Result<(&Allocation, u64), Fault> {
        let before = self.live.range(..=address).next_back();
        let found = before.and_then(|(_, a)| a.offset(address, bytes).map(|offset| (a.as_ref(), offset)));
        found.ok_or_else(|| {
            Fault::invalid(format!("{bytes} bytes at {address:#x} are not inside one allocation"))
        })
    }

    /// Like `containing`, for a copy or fill by the host. The host may change constant memory, but not mapped memory
    /// that is read-only.
    fn changeable(&self, address: u64, bytes: u64) -> Result<(&Allocation, u64), Fault> {
        let (allocation, offset) = self.containing(address, bytes)?;
        if allocation.read_only && allocation.is_mapped() {
            let (kind, memory) = (AccessKind::Write, Memory::Global);
            let nearest = Some(Nearest { start: allocation.start, bytes: allocation.bytes, distance: None });
            return Err(Fault::new(FaultKind::ReadOnly(Access { kind, memory, address, bytes, nearest })));
        }
        Ok((allocation, offset))
    }

    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), Fault> {
        if data.is_empty() {
            return Ok(());
        }
        let (allocation, offset) = self.changeable(address, data.len() as u64)?;
        allocation.write(offset, data);
        Ok(())
    }

    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), Fault> {
        if data.is_empty() {
            return Ok(());
        }
        let (allocation, offset) = self.containing(address, data.len() as u64)?;
        allocation.read(offset, data);
        Ok(())
    }

    pub fn fill(&self, address: u64, byte: u8, bytes: u64) -> Result<(), Fault> {
        let block = [byte; 4096];
        if bytes == 0 {
            return Ok(());
        }
        let (allocation, offset) = self.changeable(address, bytes)?;
        let mut at = 0;
        while at < bytes {
            let length = (bytes - at).min(4096);
            allocation.write(offset + at, &block[..length as usize]);
            at += length;
        }
        Ok(())
    }

    pub fn forget(&self, address: u64, bytes: u64) -> Result<(), Fault> {
        if bytes == 0 {
            return Ok(());
        }
        let (allocation, offset) = self.containing(address, bytes)?;
        allocation.forget(offset, bytes);
        Ok(())
    }

    /// Makes the view of the allocations that a launch uses.
    pub fn view(&self) -> View {
        View { live: self.live.values().cloned().collect(), freed: self.freed.iter().copied().collect() }
    }
}

/// The allocations during a launch, by address.
#[derive(Debug)]
pub struct View {
    live: Vec<Arc<Allocation>>,
    freed: Vec<(u64, u64)>,
}

impl View {
    /// Returns the allocation that contains an access, and the offset of the access in the allocation. `hint` is the
    /// index of the allocation that was found last.
    #[inline(always)]
    pub fn find(&self, address: u64, bytes: u64, hint: &mut usize) -> Option<(&Allocation, u64)> {
        if let Some(allocation) = self.live.get(*hint)
            && let Some(offset) = allocation.offset(address, bytes)
        {
            return Some((allocation, offset));
        }
        let after = self.live.partition_point(|allocation| allocation.start <= address);
        let index = after.checked_sub(1)?;
        let offset = self.live[index].offset(address, bytes)?;
        *hint = index;
        Some((&self.live[index], offset))
    }

    pub fn was_freed(&self, address: u64) -> bool {
        self.freed.iter().any(|(start, bytes)| address.wrapping_sub(*start) < *bytes)
    }

    /// Returns the live buffer that is nearest to an access, or the freed buffer that contains the access's address.
    pub fn nearest(&self, address: u64, bytes: u64) -> Option<Nearest> {
        if let Some((start, length)) = self.freed.iter().rev().find(|(s, b)| address.wrapping_sub(*s) < *b) {
            return Some(Nearest { start: *start, bytes: *length, distance: None });
        }
        let after = self.live.partition_point(|allocation| allocation.start <= address);
        let before = after.checked_sub(1).map(|index| &self.live[index]);
        let behind = self.live.get(after);
        let past = |a: &Arc<Allocation>| address.saturating_sub(a.start + a.bytes);
        let ahead = |a: &Arc<Allocation>| a.start.saturating_sub(address);
        let nearest = |a: &Arc<Allocation>, distance| Nearest { start: a.start, bytes: a.bytes, distance };
        match (before, behind) {
            (Some(a), _) if address < a.start + a.bytes => Some(nearest(a, None)),
            (Some(a), Some(b)) if ahead(b).saturating_sub(bytes) < past(a) => {
                Some(nearest(b, Some(-(ahead(b).cast_signed()))))
            }
            (Some(a), _) => Some(nearest(a, Some(past(a).cast_signed()))),
            (None, Some(b)) => Some(nearest(b, Some(-(ahead(b).cast_signed())))),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_is_read_and_written_in_place() {
        let mut memory = [0x0403_0201u32, 0x0807_0605, 0x0c0b_0a09];
        let first = memory.as_mut_ptr().cast::<u8>();
        let mut heap = Heap::new(0, true);
        // SAFETY: the bytes are within words of `memory`, which outlives the heap and is not used meanwhile.
        let start = unsafe { heap.map(first.wrapping_add(1), 9, 16, false) }.expect("a mapping");
        let mut bytes = [0; 9];
        heap.read(start, &mut bytes).expect("readable");
        assert_eq!(bytes, [2, 3, 4, 5, 6, 7, 8, 9, 10]);
        heap.write(start + 2, &[70, 80, 90, 100, 110]).expect("writable");
        heap.read(start + 1, &mut bytes).expect_err("one byte beyond the end");
        let view = heap.view();
        let (allocation, _) = view.find(start, 1, &mut 0).expect("the mapping");
        let (words, from) = allocation.words();
        assert_eq!((words.len(), from), (3, first as usize % 16 / 4));
        drop((view, heap));
        assert_eq!(memory, [0x4603_0201, 0x6e64_5a50, 0x0c0b_0a09]);
    }
}
