//! Runs one block of a grid: its warps take turns until all of them have ended.

use std::cell::Cell;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use super::barrier::{Barrier, Released, release};
use super::counts::Counter;
use super::host::Host;
use super::launch::{Job, Progress, site};
use super::race::{Conflict, Races, SharedAccess};
use super::scratch::Scratch;
use super::warp::{Part, Registers, Warp};
use super::{Stop, first_lane};
use crate::code::{ALWAYS, Kernel, Special};
use crate::fault::{Access, AccessKind, FaultKind, Memory, OtherAccess};
use crate::limits;
use crate::memory::View;

/// The number of turns after which the time limit is checked.
const TURNS_PER_CHECK: u32 = 8;

/// The state that the warps of a block share.
pub struct BlockState<'j> {
    pub kernel: &'j Kernel,
    pub view: &'j View,
    pub params: &'j [u8],
    pub shared: Scratch,
    pub barriers: [Barrier; limits::BARRIERS],
    pub checks_reads: bool,
    pub host: Host,
    /// The number of asynchronous copies to shared memory that are not complete yet.
    pub pending_copies: u64,
    /// The race detector for shared memory, if it is enabled.
    pub races: Option<Box<Races>>,
    /// Counts accesses and branches, if that is enabled.
    pub counter: Option<Box<Counter>>,
    /// The fault of a read of shared memory that was never written. It is reported at the next barrier for all threads,
    /// or when the block ends. If a race is found before that, the race is reported instead, because it is probably the
    /// cause of this fault.
    deferred: Option<BlockFault>,
    /// The position of the block in the grid.
    at: [u32; 3],
    job: &'j Job<'j>,
    progress: &'j Progress,
    /// The number of instructions that this host thread has executed.
    steps: u64,
    /// The number of turns since the time limit was last checked.
    turns: u32,
    /// The additional work of the running instruction, compared with an ordinary one. The unit is the work of an
    /// ordinary instruction.
    pub extra: Cell<u32>,
}

/// A fault, with the instruction and the warp that caused it.
#[derive(Debug)]
pub struct BlockFault {
    pub stop: Stop,
    pub pc: u32,
    pub warp: u32,
}

impl<'j> BlockState<'j> {
    pub fn new(job: &'j Job<'j>, progress: &'j Progress) -> Self {
        Self {
            kernel: job.kernel,
            view: &job.view,
            params: &job.params,
            shared: Scratch::new(job.shared_bytes as usize),
            barriers: Default::default(),
            checks_reads: job.checks_reads,
            host: Host::detect(),
            pending_copies: 0,
            races: job
                .watches_races()
                .then(|| Box::new(Races::new(job.kernel, job.shared_bytes, job.threads_of_a_block()))),
            counter: job.counts.then(Box::default),
            deferred: None,
            at: [0; 3],
            job,
            progress,
            steps: 0,
            turns: 0,
            extra: Cell::new(0),
        }
    }

    /// Returns the extra work of the last instruction. Much extra work is counted as further turns, so that the time
    /// limit is still checked often enough.
    pub fn take_extra(&mut self) -> u32 {
        let extra = self.extra.take();
        self.turns = self.turns.wrapping_add(extra / limits::TURN_INSTRUCTIONS);
        extra
    }

    /// Returns the value of the clock registers, which is the number of instructions that this host thread has
    /// executed. `of_turn` is the number of instructions in the current turn so far.
    pub fn clock(&self, of_turn: u32) -> u64 {
        self.steps + u64::from(of_turn)
    }

    /// Locks the 8 bytes at an address, so that no other thread sees a strong access or an atomic operation half done.
    pub fn lock_wide(&self, address: u64) -> MutexGuard<'j, ()> {
        self.progress.lock_wide(address)
    }

    /// Runs a block until it ends. Returns false if it was abandoned because an earlier block has failed.
    pub fn run(&mut self, block: [u32; 3], number: u64, warps: &mut [Warp]) -> Result<bool, BlockFault> {
        self.shared.clear();
        self.barriers = Default::default();
        self.pending_copies = 0;
        self.checks_reads = self.job.checks_reads;
        self.deferred = None;
        self.at = block;
        if let Some(races) = &mut self.races {
            races.begin();
        }
        for warp in &mut *warps {
            warp.begin(self.job, block);
        }
        let result = self.run_warps(number, warps);
        match (result, self.deferred.take()) {
            (Err(fault), _) if matches!(*fault.stop.kind, FaultKind::Race { .. }) => Err(fault),
            // A later fault may be a consequence of the value that was read, so the deferred fault is reported instead.
            (Ok(true) | Err(_), Some(deferred)) => Err(deferred),
            (result, _) => result,
        }
    }

    fn run_warps(&mut self, number: u64, warps: &mut [Warp]) -> Result<bool, BlockFault> {
        loop {
            let mut progressed = false;
            for warp in &mut *warps {
                if warp.parts.is_empty() && warp.gathering.is_empty() {
                    continue;
                }
                let steps =
                    warp.take_turn(self).map_err(|(stop, pc)| BlockFault { stop, pc, warp: warp.index })?;
                progressed |= steps != 0;
                self.count(steps, warp)?;
                if self.progress.failed_before(number) {
                    return Ok(false);
                }
            }
            let released = release(
                self.kernel,
                &mut self.barriers,
                self.races.as_deref_mut(),
                warps,
                self.job.threads_of_a_block(),
            )
            .map_err(|(stop, pc, warp)| BlockFault { stop, pc, warp })?;
            if released == Released::All
                && let Some(deferred) = self.deferred.take()
            {
                return Err(deferred);
            }
            progressed |= released != Released::None;
            if warps.iter().all(|warp| warp.live == 0) {
                return Ok(true);
            }
            if !progressed {
                return Err(self.deadlock(warps));
            }
        }
    }

    /// Keeps the fault of a read of shared memory that was never written, so that it can be reported later. Fails with
    /// `stop` if it is another kind of fault, or if races are not watched.
    pub fn defer(&mut self, stop: Stop, pc: u32, warp: u32) -> Result<(), Stop> {
        let FaultKind::Uninitialised(Access { memory: Memory::Shared, .. }) = *stop.kind else {
            return Err(stop);
        };
        if self.races.is_none() {
            return Err(stop);
        }
        self.checks_reads = false;
        self.deferred.get_or_insert(BlockFault { stop, pc, warp });
        Ok(())
    }

    /// Makes the fault of an access that races with an earlier one.
    pub fn race(&self, kind: AccessKind, access: SharedAccess, conflict: Conflict) -> Stop {
        let other = site(self.job, self.at, conflict.thread, conflict.pc);
        let SharedAccess { thread, at, bytes, .. } = access;
        let access = Access { kind, memory: Memory::Shared, address: at, bytes, nearest: None };
        let other = Box::new(OtherAccess { kind: conflict.kind, site: other });
        Stop::new(FaultKind::Race { access, other }, thread as usize % 32)
    }

    /// Counts the instructions of a warp's turn. Fails if the launch has exceeded a limit.
    fn count(&mut self, steps: u32, warp: &Warp) -> Result<(), BlockFault> {
        self.steps += u64::from(steps);
        let all = self.progress.steps.fetch_add(u64::from(steps), Ordering::Relaxed) + u64::from(steps);
        self.turns = self.turns.wrapping_add(1);
        let is_due = TURNS_PER_CHECK <= self.turns;
        if is_due {
            self.turns = 0;
        }
        let late = is_due && self.job.limit.time < self.progress.started.elapsed();
        if all <= self.job.limit.steps && !late {
            return Ok(());
        }
        let what = if late {
            format!("{} ms", self.job.limit.time.as_millis())
        } else {
            format!("{} warp instructions", self.job.limit.steps)
        };
        let part = warp.parts.first().copied().or(warp.waiting.first().map(|waiting| waiting.part));
        let Part { pc, mask } = part.unwrap_or(Part { pc: 0, mask: 1 });
        Err(BlockFault { stop: Stop::new(FaultKind::Timeout(what), first_lane(mask)), pc, warp: warp.index })
    }

    fn deadlock(&self, warps: &[Warp]) -> BlockFault {
        if let Some((warp, part)) =
            warps.iter().find_map(|w| w.gathering.first().map(|(part, _)| (w.index, *part)))
        {
            let stop = Stop::new(FaultKind::WarpDivergence, first_lane(part.mask));
            return BlockFault { stop, pc: part.pc, warp };
        }
        let waiting =
            warps.iter().find_map(|warp| warp.waiting.first().map(|waiting| (warp.index, waiting.part)));
        let (warp, part) = waiting.unwrap_or((0, Part { pc: 0, mask: 1 }));
        BlockFault { stop: Stop::new(FaultKind::Deadlock, first_lane(part.mask)), pc: part.pc, warp }
    }
}

impl Warp {
    /// Creates a warp with its constants in its registers.
    pub fn new(job: &Job<'_>, index: u32) -> Self {
        let kernel = job.kernel;
        let mut registers = Registers {
            flags: vec![0; kernel.flag_rows as usize],
            narrow: vec![[0; 32]; kernel.narrow_rows as usize],
            wide: vec![[0; 32]; kernel.wide_rows as usize],
        };
        registers.flags[ALWAYS as usize] = u32::MAX;
        for (row, value) in &kernel.narrow_constants {
            registers.narrow[*row as usize] = [*value; 32];
        }
        for (row, value) in &kernel.wide_constants {
            registers.wide[*row as usize] = [*value; 32];
        }
        Self {
            index,
            registers,
            live: 0,
            parts: Vec::new(),
            waiting: Vec::new(),
            gathering: Vec::new(),
            local: Scratch::new(32 * kernel.local_bytes as usize),
            copies: Vec::new(),
            groups: [0; 32],
            hint: 0,
            backward: 0,
        }
    }

    fn begin(&mut self, job: &Job<'_>, block: [u32; 3]) {
        let [x, y, z] = job.block;
        let threads = x * y * z;
        let here = threads.saturating_sub(32 * self.index).min(32);
        self.live = if here == 32 { u32::MAX } else { (1 << here) - 1 };
        self.parts.clear();
        self.waiting.clear();
        self.gathering.clear();
        self.parts.push(Part { pc: 0, mask: self.live });
        self.local.forget();
        self.copies.clear();
        self.groups = [0; 32];
        for (row, special) in &job.kernel.specials {
            self.registers.narrow[*row as usize] = std::array::from_fn(|lane| {
                let lane = lane as u32;
                let thread = 32 * self.index + lane;
                match special {
                    Special::Thread(0) => thread % x,
                    Special::Thread(1) => thread / x % y,
                    Special::Thread(_) => thread / x / y,
                    Special::BlockSize(axis) => job.block[*axis],
                    Special::Block(axis) => block[*axis],
                    Special::GridSize(axis) => job.grid[*axis],
                    Special::Lane => lane,
                    Special::Warp => self.index,
                    Special::Warps => threads.div_ceil(32),
                    Special::LanesEqual => 1 << lane,
                    Special::LanesBelow => (1 << lane) - 1,
                    Special::LanesUpTo => u32::MAX >> (31 - lane),
                    Special::LanesAbove => !(u32::MAX >> (31 - lane)),
                    Special::LanesFrom => u32::MAX << lane,
                    Special::DynamicShared => job.dynamic_shared as u32,
                    Special::TotalShared => job.shared_bytes as u32,
                    Special::Number(value) => *value,
                }
            });
        }
    }
}

impl BlockState<'_> {
    pub fn print(&self, text: &str) {
        self.progress.print(text);
    }
}
