//! Detects races in shared memory: two unordered accesses to the same bytes, at least one of them a write.
//!
//! As in PTX, accesses are ordered by barriers (of a block, of a warp, or in shared memory), and by fences, releases
//! and acquires together with strong accesses. They are not ordered by the fact that the lanes of a warp run in
//! lockstep, nor by shuffles and votes. Writes of the same value do not race. Two accesses that are each strong or
//! volatile do not race either, unless both are volatile and made by lanes of one warp.
//!
//! Whenever a barrier or fence orders threads, a counter called the *tick* advances. Shared memory is divided into
//! parts of 1, 2 or 4 bytes. For each part, the detector remembers three accesses: the last write that changed the
//! part, and two reads by different threads. Of each access, it remembers the thread, the instruction and the tick. Two
//! reads are enough to find that a writer has not waited for the readers, because at least one of them was made by a
//! thread other than the writer. If it is not certain whether two accesses are ordered, they are treated as ordered, so
//! every reported race is real.

mod orderly;
mod phases;

pub use orderly::Row;

use self::phases::Barriers;
use super::lanes;
use crate::code::{BarrierMode, Kernel, MatrixOp, MemoryAction, MemoryOrder, MemorySpace, Op};
use crate::fault::AccessKind;
use crate::limits;

/// An access to a part of shared memory, packed into 64 bits. From the highest bit down: the tick (32 bits), an unused
/// bit, whether several threads wrote the same value (1 bit), the instruction (20 bits) and the thread (10 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd)]
struct Stamp(u64);

/// The bit of a stamp that is set if several threads wrote the same value.
const JOINT: u64 = 1 << 30;

impl Stamp {
    fn new(tick: u32, pc: u32, thread: u32) -> Self {
        Self(u64::from(tick) << 32 | u64::from(pc & 0xf_ffff) << 10 | u64::from(thread))
    }

    #[inline(always)]
    fn thread(self) -> u32 {
        self.0 as u32 & 0x3ff
    }

    fn pc(self) -> u32 {
        self.0 as u32 >> 10 & 0xf_ffff
    }

    fn tick(self) -> u32 {
        (self.0 >> 32) as u32
    }

    fn is_joint(self) -> bool {
        self.0 & JOINT != 0
    }
}

/// An earlier access that is not ordered before the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub thread: u32,
    pub pc: u32,
    pub kind: AccessKind,
}

/// An access of one thread to shared memory.
#[derive(Clone, Copy, Debug)]
pub struct SharedAccess {
    pub thread: u32,
    pub pc: u32,
    pub at: u64,
    pub bytes: u64,
}

#[derive(Debug)]
pub struct Races {
    /// The binary logarithm of a part's size in bytes. A part is as large as the kernel's smallest access, but has at
    /// most 4 bytes.
    shift: u32,
    /// The last write to each part that changed its value.
    writers: Vec<Stamp>,
    /// Up to two reads of each part, by different threads.
    readers: [Vec<Stamp>; 2],
    threads: usize,
    /// The current tick.
    now: u32,
    /// Accesses before this tick are ordered before all accesses from now on.
    base: u32,
    /// For each pair of threads, a tick: the second thread's accesses before this tick are ordered before everything
    /// that the first thread does from now on. The list is empty until a barrier or fence orders only some of the
    /// threads.
    known: Vec<u32>,
    /// Whether threads of different warps were ordered by anything other than a barrier for all threads.
    crosses_warps: bool,
    /// For each barrier and each thread, a tick: the accesses of this thread before the tick will be ordered before
    /// everything that threads do after passing the barrier.
    arrived: Vec<Vec<u32>>,
    /// For each thread, a tick: the thread's accesses before the tick were published by a release, which is either a
    /// release write, or a fence followed by a strong write.
    published: Vec<u32>,
    /// For each thread, the tick that began at its last fence; 0 if it has not executed a fence.
    fenced: Vec<u32>,
    /// For each thread, whether it has made a strong read since its last fence. Such a read may have found a published
    /// value.
    observed: Vec<bool>,
    uses_fences: bool,
    /// Whether the kernel has barriers at which threads arrive without waiting.
    pub has_arrivals: bool,
    barriers: Barriers,
}

/// Returns the host memory that the race detector needs for one block, in bytes.
pub fn state_bytes(kernel: &Kernel, shared_bytes: u64, threads: u64) -> u64 {
    let stamps = (shared_bytes >> grain_shift(kernel)) * 3 * size_of::<Stamp>() as u64;
    let barriers = if kernel.mbarrier_ops.is_empty() { 0 } else { phases::barriers_bytes(threads) };
    stamps + 4 * threads * (threads + limits::BARRIERS as u64 + 3) + barriers
}

/// Whether an access through this state space may be an access to shared memory.
fn can_be_shared(space: MemorySpace) -> bool {
    matches!(space, MemorySpace::Shared | MemorySpace::Generic)
}

/// Returns the binary logarithm of a part's size in bytes. A part is as large as the smallest access to shared memory,
/// but has at most 4 bytes.
fn grain_shift(kernel: &Kernel) -> u32 {
    let accesses = kernel.memory_ops.iter().filter(|op| can_be_shared(op.space));
    let elements = accesses.map(|op| op.element.trailing_zeros());
    // When a matrix is stored, different lanes store adjacent elements, so parts must not be larger than an element.
    // Loads of elements do not require smaller parts, because every write covers whole parts, so a write that touches
    // the part with a loaded element covers all of this part.
    let stored = kernel.matrix_ops.iter().filter_map(|op| match op {
        MatrixOp::StoreFragment { from, to } if can_be_shared(to.space) => {
            Some(from.element.bytes().trailing_zeros())
        }
        _ => None,
    });
    elements.chain(stored).min().unwrap_or(2).min(2)
}

/// The strength of an access: weak, volatile, or strong without being volatile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strength {
    Weak,
    Volatile,
    Strong,
}

/// Returns the strength of an instruction's access, and whether the instruction is an atomic operation.
fn strength(kernel: &Kernel, pc: u32) -> (Strength, bool) {
    let Some(Op::Memory(index)) = kernel.code.get(pc as usize).map(|instruction| instruction.op) else {
        return (Strength::Weak, false);
    };
    let op = &kernel.memory_ops[index as usize];
    let is_atomic = matches!(op.action, MemoryAction::Atomic { .. });
    let strength = match op.order {
        _ if is_atomic => Strength::Strong,
        MemoryOrder::Weak => Strength::Weak,
        MemoryOrder::Volatile => Strength::Volatile,
        MemoryOrder::Relaxed | MemoryOrder::Acquire | MemoryOrder::Release | MemoryOrder::AcquireRelease => {
            Strength::Strong
        }
    };
    (strength, is_atomic)
}

/// Whether two unordered accesses are not a race because each of them is strong or volatile. An access is given as its
/// thread and instruction. Two volatile accesses by lanes of one warp are a race nevertheless, because they are typical
/// of kernels that wrongly rely on lockstep execution.
fn is_no_race(kernel: &Kernel, a: (u32, u32), b: (u32, u32)) -> bool {
    let ((first, _), (second, _)) = (strength(kernel, a.1), strength(kernel, b.1));
    let both_volatile = first == Strength::Volatile && second == Strength::Volatile;
    let same_warp = a.0 / 32 == b.0 / 32;
    first != Strength::Weak && second != Strength::Weak && !(both_volatile && same_warp)
}

impl Races {
    pub fn new(kernel: &Kernel, shared_bytes: u64, threads: u32) -> Self {
        let shift = grain_shift(kernel);
        let orders = |op: &crate::code::MemoryOp| {
            matches!(op.order, MemoryOrder::Acquire | MemoryOrder::Release | MemoryOrder::AcquireRelease)
        };
        let uses_fences = kernel.code.iter().any(|instruction| matches!(instruction.op, Op::Fence))
            || kernel.memory_ops.iter().any(orders);
        let threads = threads as usize;
        let parts = (shared_bytes >> shift) as usize + 1;
        Self {
            shift,
            writers: vec![Stamp::default(); parts],
            readers: [vec![Stamp::default(); parts], vec![Stamp::default(); parts]],
            threads,
            now: 1,
            base: 1,
            known: Vec::new(),
            crosses_warps: false,
            arrived: vec![Vec::new(); limits::BARRIERS],
            published: Vec::new(),
            fenced: if uses_fences { vec![0; threads] } else { Vec::new() },
            observed: if uses_fences { vec![false; threads] } else { Vec::new() },
            uses_fences,
            has_arrivals: kernel.barrier_ops.iter().any(|op| op.mode == BarrierMode::Arrive),
            barriers: Barriers::default(),
        }
    }

    /// Starts a block. The accesses of earlier blocks are forgotten.
    pub fn begin(&mut self) {
        if u32::MAX / 2 < self.now {
            self.writers.fill(Stamp::default());
            self.readers.iter_mut().for_each(|readers| readers.fill(Stamp::default()));
            self.known.clear();
            self.arrived.iter_mut().for_each(Vec::clear);
            self.published.clear();
            (self.now, self.base) = (0, 0);
        }
        self.barriers.clear();
        self.crosses_warps = false;
        self.fenced.fill(0);
        self.observed.fill(false);
        self.order_all();
    }

    /// Orders everything that happened before everything that follows.
    pub fn order_all(&mut self) {
        self.advance();
        self.base = self.now;
    }

    fn advance(&mut self) {
        // `begin` resets a tick that has become large, so only a block that orders its threads 2^31 times reaches
        // the limit. From then on, races are missed.
        self.now = (self.now + 1).min(u32::MAX - 1);
    }

    fn known_mut(&mut self, thread: u32) -> &mut [u32] {
        if self.known.is_empty() {
            self.known = vec![0; self.threads * self.threads];
        }
        let from = thread as usize * self.threads;
        &mut self.known[from..from + self.threads]
    }

    /// Orders everything that lanes of a warp have done so far before everything that they do from now on.
    pub fn order_lanes(&mut self, warp: u32, mask: u32) {
        let first = 32 * warp as usize;
        // Unless threads of different warps were ordered, a lane is ordered after other warps only by the last barrier
        // for all threads.
        let columns =
            if self.crosses_warps { 0..self.threads } else { first..(first + 32).min(self.threads) };
        let mut together = vec![0; columns.len()];
        for lane in lanes(mask) {
            let known = &self.known_mut((first + lane) as u32)[columns.clone()];
            together.iter_mut().zip(known).for_each(|(all, one)| *all = (*all).max(*one));
        }
        for lane in lanes(mask) {
            together[first + lane - columns.start] = self.now + 1;
        }
        for lane in lanes(mask) {
            self.known_mut((first + lane) as u32)[columns.clone()].copy_from_slice(&together);
        }
        self.advance();
    }

    /// Records that lanes of a warp arrive at a barrier for `needed` threads.
    pub fn arrive(&mut self, barrier: usize, warp: u32, mask: u32, needed: u32) {
        // A barrier at which all threads wait orders everything, so its arrivals need not be recorded. Arrivals without
        // a wait, and barriers for only some threads, order fewer accesses.
        if !self.has_arrivals && self.threads <= needed as usize {
            return;
        }
        let mut together = std::mem::take(&mut self.arrived[barrier]);
        together.resize(self.threads, 0);
        for lane in lanes(mask) {
            let thread = 32 * warp + lane as u32;
            let known = self.known_mut(thread);
            together.iter_mut().zip(known).for_each(|(all, one)| *all = (*all).max(*one));
            together[thread as usize] = self.now + 1;
        }
        self.arrived[barrier] = together;
        self.advance();
    }

    /// Records that lanes of one or more warps pass a barrier. `all` says whether the barrier orders all threads of the
    /// block.
    pub fn release(&mut self, barrier: usize, passing: impl Iterator<Item = (u32, u32)>, all: bool) {
        let together = std::mem::take(&mut self.arrived[barrier]);
        if all || together.is_empty() {
            return self.order_all();
        }
        self.crosses_warps = true;
        for (warp, mask) in passing {
            for lane in lanes(mask) {
                let known = self.known_mut(32 * warp + lane as u32);
                known.iter_mut().zip(&together).for_each(|(one, all)| *one = (*one).max(*all));
            }
        }
    }

    pub fn fence(&mut self, warp: u32, mask: u32) {
        for lane in lanes(mask) {
            let thread = 32 * warp + lane as u32;
            if std::mem::take(&mut self.observed[thread as usize]) {
                self.acquire(thread);
            }
            self.fenced[thread as usize] = self.now + 1;
        }
        self.advance();
    }

    /// Records a strong access, and the order between threads that this access creates.
    pub fn synchronise(&mut self, order: MemoryOrder, kind: AccessKind, warp: u32, mask: u32) {
        if !self.uses_fences {
            return;
        }
        for lane in lanes(mask) {
            let thread = 32 * warp + lane as u32;
            if kind != AccessKind::Write {
                self.observed[thread as usize] = true;
                if matches!(order, MemoryOrder::Acquire | MemoryOrder::AcquireRelease) {
                    self.acquire(thread);
                }
            }
            if kind != AccessKind::Read {
                let releases = matches!(order, MemoryOrder::Release | MemoryOrder::AcquireRelease);
                let until = if releases { self.now + 1 } else { self.fenced[thread as usize] };
                if until != 0 {
                    self.publish(thread, until);
                }
            }
        }
        self.advance();
    }

    /// Orders everything that other threads have published before everything that this thread does from now on.
    fn acquire(&mut self, thread: u32) {
        self.crosses_warps = true;
        let published = std::mem::take(&mut self.published);
        let known = self.known_mut(thread);
        known.iter_mut().zip(&published).for_each(|(one, all)| *one = (*one).max(*all));
        self.published = published;
    }

    fn publish(&mut self, thread: u32, until: u32) {
        let mut published = std::mem::take(&mut self.published);
        published.resize(self.threads, 0);
        let known = self.known_mut(thread);
        published.iter_mut().zip(known).for_each(|(all, one)| *all = (*all).max(*one));
        let own = &mut published[thread as usize];
        *own = (*own).max(until);
        self.published = published;
    }

    /// Whether an access is ordered before everything that a thread does from now on.
    #[inline(always)]
    fn is_ordered(&self, stamp: Stamp, thread: u32) -> bool {
        let other = stamp.thread();
        if stamp.tick() < self.base || other == thread {
            return true;
        }
        let index = thread as usize * self.threads + other as usize;
        self.known.get(index).is_some_and(|known| stamp.tick() < *known)
    }

    fn conflict(
        &self,
        kernel: &Kernel,
        stamp: Stamp,
        access: SharedAccess,
        is_write: bool,
    ) -> Option<Conflict> {
        if self.is_ordered(stamp, access.thread)
            || is_no_race(kernel, (stamp.thread(), stamp.pc()), (access.thread, access.pc))
        {
            return None;
        }
        let kind = match strength(kernel, stamp.pc()) {
            (_, true) => AccessKind::Atomic,
            _ if is_write => AccessKind::Write,
            _ => AccessKind::Read,
        };
        Some(Conflict { thread: stamp.thread(), pc: stamp.pc(), kind })
    }

    fn parts(&self, access: SharedAccess) -> std::ops::Range<usize> {
        (access.at >> self.shift) as usize..((access.at + access.bytes - 1) >> self.shift) as usize + 1
    }

    /// Returns the last write and two reads of a part.
    #[inline(always)]
    fn stamps(&self, part: usize) -> (Stamp, [Stamp; 2]) {
        (self.writers[part], [self.readers[0][part], self.readers[1][part]])
    }

    /// Records a read, and returns the write that it races with, if there is one. The bytes must lie inside shared
    /// memory.
    #[inline(always)]
    pub fn read(&mut self, kernel: &Kernel, access: SharedAccess) -> Option<Conflict> {
        let stamp = Stamp::new(self.now, access.pc, access.thread);
        let old = Stamp::new(self.base, 0, 0);
        for part in self.parts(access) {
            let (writer, [first, second]) = self.stamps(part);
            if old <= writer
                && !writer.is_joint()
                && let Some(conflict) = self.conflict(kernel, writer, access, true)
            {
                return Some(conflict);
            }
            if first < old || first.thread() == access.thread {
                self.readers[0][part] = stamp;
            } else if second < old || second.thread() == access.thread {
                self.readers[1][part] = stamp;
            } else if !self.known.is_empty() {
                let readers = &[first, second];
                if let Some(index) = readers.iter().position(|reader| self.is_ordered(*reader, access.thread))
                {
                    self.readers[index][part] = stamp;
                }
            }
        }
        None
    }

    /// Records a write, and returns the access that it races with, if there is one. The bytes must lie inside shared
    /// memory. `changes` says whether the write changes their values. If not, it races with nothing.
    pub fn write(&mut self, kernel: &Kernel, access: SharedAccess, changes: bool) -> Option<Conflict> {
        let stamp = Stamp::new(self.now, access.pc, access.thread);
        let old = Stamp::new(self.base, 0, 0);
        for part in self.parts(access) {
            let (writer, readers) = self.stamps(part);
            if !changes {
                // Threads that write the same value race neither with each other nor with threads that read it.
                if !self.is_ordered(writer, access.thread) {
                    self.writers[part] = Stamp(writer.0 | JOINT);
                }
                continue;
            }
            if old <= writer
                && let Some(conflict) = self.conflict(kernel, writer, access, true)
            {
                return Some(conflict);
            }
            for reader in readers {
                if old <= reader
                    && let Some(conflict) = self.conflict(kernel, reader, access, false)
                {
                    return Some(conflict);
                }
            }
            self.writers[part] = stamp;
        }
        None
    }
}

/// Whether a kernel can have races in shared memory at all.
pub fn can_race(kernel: &Kernel) -> bool {
    kernel.memory_ops.iter().any(|op| can_be_shared(op.space))
        || !kernel.copy_ops.is_empty()
        || !kernel.mbarrier_ops.is_empty()
        || kernel.matrix_ops.iter().any(|op| match op {
            MatrixOp::Load { space, .. } => can_be_shared(*space),
            MatrixOp::LoadFragment { from: stored, .. } | MatrixOp::StoreFragment { to: stored, .. } => {
                can_be_shared(stored.space)
            }
            MatrixOp::Product(_) => false,
        })
}
