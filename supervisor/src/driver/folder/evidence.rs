//! Collects the data that a run records in addition to its results: memory samples in blocks, the change in swap during
//! each phase, the pauses between phases, and the command line.
//!
//! This module decides when a block is full, and which of the figures of the whole machine are kept. `record` thins out
//! all other figures.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use opt_shared::ids::WorkerId;
use opt_shared::units::Bytes;

use crate::core::event::Process;
use crate::record::UtcTime;
use crate::record::timeline::{Block, Point, Track, milliseconds};
use crate::store::MAX_POINTS;

/// The longest time between two blocks. If the supervisor is killed, the samples since the last block are lost.
const WRITE_EVERY: Duration = Duration::from_secs(5);
/// The step width for the figures of the whole machine, in milliseconds. MemAvailable changes in every sample. After
/// the first sample of a step, therefore, a sample is kept only if MemAvailable has fallen or swap has grown.
const MACHINE_WIDTH: u64 = 250;

#[derive(Debug, Default)]
pub struct RunSample {
    pub processes: Vec<SampledProcess>,
    pub supervisor: Bytes,
    /// The memory that the whole process tree owes.
    pub owed: Bytes,
    pub reclaimable: Bytes,
    pub swapped: Bytes,
    pub available: Option<Bytes>,
}

/// One process in a sample. Unlike in the core's sample, a runner's figure includes the memory files that are charged
/// to it.
#[derive(Debug)]
pub struct SampledProcess {
    pub process: Process,
    pub pid: u32,
    pub owed: Bytes,
    pub reclaimable: Bytes,
}

/// The samples that have not been returned in a block yet, and the state of swap at the start of each phase.
#[derive(Debug)]
pub struct Evidence {
    block: Block,
    points: usize,
    /// When the current block was begun.
    begun: Instant,
    /// The same moment in milliseconds since 1970 and on the monotonic clock. The times of points are computed from it.
    origin: (u64, Instant),
    /// The latest point of the figures of the whole machine.
    machine: Option<Point>,
    swapped: Bytes,
    /// How much of the run's process tree was in swap when each worker got its lease.
    swapped_before: BTreeMap<WorkerId, Bytes>,
    /// When the last phase ended.
    last_end: Option<Instant>,
    /// For each worker, the time for which no lease had been running when its current phase began. This is known only
    /// for phases that began while no other lease was running, and not for the very first phase.
    switches: BTreeMap<WorkerId, Duration>,
}

impl Evidence {
    /// Begins the first block. `width` is the step width of the samples, in milliseconds.
    pub fn new(width: u64) -> Self {
        let now = Instant::now();
        Self {
            block: Block::new(width),
            points: 0,
            begun: now,
            origin: (milliseconds(UtcTime::now()), now),
            machine: None,
            swapped: Bytes::ZERO,
            swapped_before: BTreeMap::new(),
            last_end: None,
            switches: BTreeMap::new(),
        }
    }

    /// Adds a sample. Returns the block if it is full or due.
    pub fn add(&mut self, sample: &RunSample) -> Option<Block> {
        let elapsed = u64::try_from(self.origin.1.elapsed().as_millis()).unwrap_or(u64::MAX);
        let at = self.origin.0.saturating_add(elapsed);
        self.swapped = sample.swapped;
        self.push(Track::Tree, Point { at, first: sample.owed, second: sample.reclaimable });
        self.push(Track::Supervisor, Point { at, first: sample.supervisor, second: Bytes::ZERO });
        for process in &sample.processes {
            let track = match process.process {
                // The sampler has already added the zygote's memory to its worker's.
                Process::Worker(worker) | Process::Zygote(worker) => {
                    Track::Worker { worker, pid: process.pid }
                }
                Process::Runner(worker, _) => Track::Runner { worker, pid: process.pid },
            };
            self.push(track, Point { at, first: process.owed, second: process.reclaimable });
        }
        if let Some(available) = sample.available {
            let point = Point { at, first: available, second: sample.swapped };
            let is_kept = self.machine.is_none_or(|before| {
                before.at / MACHINE_WIDTH != at / MACHINE_WIDTH
                    || available < before.first
                    || before.second < sample.swapped
            });
            if is_kept {
                self.machine = Some(point);
                self.push(Track::Machine, point);
            }
        }
        // The next sample adds at most one point for each process, and three more. The remaining room is for new
        // processes.
        let room = sample.processes.len() * 2 + 8;
        (MAX_POINTS < self.points + room || WRITE_EVERY <= self.begun.elapsed()).then(|| self.take())
    }

    fn push(&mut self, track: Track, point: Point) {
        self.points += usize::from(self.block.push(track, point));
    }

    /// Returns all points that have not been returned yet.
    pub fn take(&mut self) -> Block {
        (self.points, self.begun) = (0, Instant::now());
        let width = self.block.width;
        std::mem::replace(&mut self.block, Block::new(width))
    }

    /// Sets the step width that the store asks for, in milliseconds.
    pub fn widen(&mut self, width: u64) {
        self.block.width = width;
    }

    /// Records that a worker was sent a lease. `alone` means that no other lease is running.
    pub fn phase_started(&mut self, worker: WorkerId, alone: bool) {
        self.swapped_before.insert(worker, self.swapped);
        if let Some(end) = self.last_end.filter(|_| alone) {
            self.switches.insert(worker, end.elapsed());
        }
    }

    /// Records that a worker reported the end of its phase, or died.
    pub fn phase_ended(&mut self) {
        self.last_end = Some(Instant::now());
    }

    /// Returns how long no lease had been running when this worker's phase began, in microseconds, if this is known.
    pub fn phase_switch(&mut self, worker: WorkerId) -> Option<u64> {
        u64::try_from(self.switches.remove(&worker)?.as_micros()).ok()
    }

    /// Returns the change in the swapped bytes of the run's process tree since the phase began. It is negative if less
    /// is swapped.
    pub fn phase_swap(&mut self, worker: WorkerId) -> Option<i64> {
        let before = self.swapped_before.remove(&worker)?;
        let signed = |bytes: Bytes| i64::try_from(bytes.get()).unwrap_or(i64::MAX);
        Some(signed(self.swapped) - signed(before))
    }
}

/// Returns the command line, quoted for a shell.
pub fn command_line() -> String {
    let arguments = std::env::args_os().skip(1).map(|argument| quoted(&argument.to_string_lossy()));
    std::iter::once("opt-supervisor".to_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=,:+@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(runners: u32, owed: Bytes, available: Bytes) -> RunSample {
        let processes = (0..runners).map(|pid| SampledProcess {
            process: Process::Runner(WorkerId(1), pid),
            pid,
            owed,
            reclaimable: Bytes::ZERO,
        });
        RunSample { processes: processes.collect(), available: Some(available), owed, ..RunSample::default() }
    }

    #[test]
    fn block_is_returned_before_it_is_too_large() {
        let mut evidence = Evidence::new(1);
        for step in 0.. {
            // At most two points of a track are kept within one step width (1 ms), so the loop runs until enough real
            // time has passed.
            if let Some(block) = evidence.add(&sample(100, Bytes::mib(step), Bytes::gib(1))) {
                assert!(block.points() <= MAX_POINTS);
                break;
            }
        }
        assert_eq!(evidence.take().points(), 0);
    }

    #[test]
    fn minimum_of_fluctuating_available_memory_is_kept() {
        let mut evidence = Evidence::new(1);
        for step in 0..50 {
            let available = if step == 30 { Bytes::gib(3) } else { Bytes::gib(4) + Bytes::mib(step) };
            assert_eq!(evidence.add(&sample(0, Bytes::ZERO, available)), None);
        }
        let block = evidence.take();
        let machine = &block.series[&Track::Machine];
        assert_eq!(machine.points.iter().map(|point| point.first).min(), Some(Bytes::gib(3)));
    }

    #[test]
    fn command_line_can_be_pasted_into_a_shell() {
        assert_eq!(quoted("configs/demo.toml"), "configs/demo.toml");
        assert_eq!(quoted("it's a $HOME"), r"'it'\''s a $HOME'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn phase_records_its_change_in_swap() {
        let mut evidence = Evidence::new(1);
        let swapped = |mib| RunSample { swapped: Bytes::mib(mib), ..RunSample::default() };
        evidence.add(&swapped(5));
        evidence.phase_started(WorkerId(1), true);
        evidence.add(&swapped(3));
        assert_eq!(evidence.phase_swap(WorkerId(1)), Some(-(2 << 20)));
        assert_eq!(evidence.phase_swap(WorkerId(1)), None);
    }

    #[test]
    fn switch_lasts_from_the_last_end_to_a_lease_that_runs_alone() {
        let mut evidence = Evidence::new(1);
        let (first, beside, next) = (WorkerId(1), WorkerId(2), WorkerId(3));
        evidence.phase_started(first, true);
        evidence.phase_started(beside, false);
        evidence.phase_ended();
        evidence.phase_started(next, true);
        assert_eq!(evidence.phase_switch(first), None, "it is the first phase");
        assert_eq!(evidence.phase_switch(beside), None, "another lease was running");
        assert!(evidence.phase_switch(next).is_some());
        assert_eq!(evidence.phase_switch(next), None, "reported once");
    }
}
