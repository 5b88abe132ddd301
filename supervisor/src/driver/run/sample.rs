//! Samples the memory of the machine and of each process in the run. The core uses the samples to make decisions, and
//! the run writes them to its record.
//!
//! This file keeps the set of watched processes and the high-water marks of the run. The files in `/proc` are read by
//! `memory`, and the decisions are made by the core.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use opt_shared::units::Bytes;

use super::descendants::Descendants;
use crate::core::event::{Process, ProcessSample, Sample};
use crate::core::pace::{IDLE, Pace, SHORTEST};
use crate::driver::folder::evidence::{RunSample, SampledProcess};
use crate::memory::SampleError;
use crate::memory::machine::{MachineSampler, SwapTraffic};
use crate::memory::procfs::{ProcessSampler, Resident};
use crate::record::{MemoryTotals, Sampling};

/// How often to read figures that are slow to read or rarely change: the machine's swap traffic, and the details of
/// processes that have no limit and whose resident size is unchanged.
const FULL_EVERY: Duration = Duration::from_secs(1);

/// The sizes of the memory files that a process is known to use, and of the memory that it shares with its zygote. No
/// page is counted in more than one field.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryFiles {
    /// Files that are charged to this process: it is either the only runner that maps them, or the worker that holds
    /// them.
    pub own: Bytes,
    /// Files that this runner maps, but that are charged to its worker.
    pub of_worker: Bytes,
    /// Copy-on-write memory that a forked runner still shares with its zygote. It is charged to the zygote while the
    /// zygote is alive.
    pub inherited: Bytes,
}

struct Watched {
    pid: u32,
    sampler: ProcessSampler,
    /// The limit that is enforced. Only runners and compilers have one.
    limit: Option<Bytes>,
    files: MemoryFiles,
    /// The pid of the zygote from which the process was forked, if the two still share memory.
    copy_of: Option<u32>,
    /// Whether the memory of descendants is charged to the process. True only for compilers.
    counts_descendants: bool,
    /// The time at which the process was first watched.
    since: Instant,
    last: Option<Last>,
}

/// The last full sample of a process.
#[derive(Clone, Copy)]
struct Last {
    at: Instant,
    resident: Option<Resident>,
    seen: Memory,
}

/// The memory of a process at one moment.
#[derive(Clone, Copy, Default)]
struct Memory {
    owed: Bytes,
    reclaimable: Bytes,
    swapped: Bytes,
}

impl Watched {
    /// Samples the process. Returns `None` if it has ended or cannot be read. `zygotes` are the pids of living zygotes.
    fn sample(&mut self, now: Instant, zygotes: &[u32]) -> Option<Memory> {
        // Reading only the resident size takes a sixth of the time, but leaves out page tables. A runner that maps
        // pages of zeros can therefore owe more while its resident size stays the same. Workers and zygotes are
        // trusted, so the resident size is enough for them.
        let resident = if self.limit.is_none() { self.sampler.resident().ok()?.alive() } else { None };
        if let Some(last) = self.last
            && resident.is_some()
            && last.resident == resident
            && now.duration_since(last.at) < FULL_EVERY
        {
            return Some(last.seen);
        }
        let sample = self.sampler.sample().ok()?.alive()?;
        let inherited = self
            .copy_of
            .filter(|zygote| zygotes.contains(zygote))
            .map_or(Bytes::ZERO, |_| self.files.inherited);
        let seen = Memory {
            owed: private_owed(&sample, self.files.own + self.files.of_worker, inherited),
            reclaimable: sample.rss_file.unwrap_or_default(),
            swapped: sample.vm_swap.unwrap_or_default(),
        };
        self.last = Some(Last { at: now, resident, seen });
        Some(seen)
    }
}

/// The machine's swap traffic. It is read rarely, because `/proc/vmstat` is long.
struct Traffic {
    first: SwapTraffic,
    last: SwapTraffic,
    at: Instant,
}

/// Samples the processes of a run and the machine.
pub struct Sampler {
    watched: BTreeMap<Process, Watched>,
    /// The sampler of the supervisor itself.
    own: Option<ProcessSampler>,
    machine: Option<MachineSampler>,
    /// The machine's swap traffic at the first and the last sample.
    traffic: Option<Traffic>,
    descendants: Descendants,
    pub totals: MemoryTotals,
    pace: Pace,
    /// The instant from which the times that are passed to `pace` are measured.
    began: Instant,
    /// The details of the last sample, which are written to the run's record.
    pub latest: RunSample,
    due: Instant,
    /// The duration of the longest iteration of the main loop so far.
    pub longest_turn: Duration,
}

fn proc_root() -> &'static Path {
    Path::new("/proc")
}

impl Sampler {
    pub fn new(ceiling: Bytes) -> Self {
        let totals = MemoryTotals { host_ceiling_bytes: Some(ceiling), ..MemoryTotals::default() };
        Self {
            watched: BTreeMap::new(),
            own: ProcessSampler::open(proc_root(), std::process::id()).ok().flatten(),
            machine: MachineSampler::open(proc_root()).ok(),
            traffic: None,
            descendants: Descendants::open(proc_root()),
            totals,
            pace: Pace::default(),
            began: Instant::now(),
            latest: RunSample::default(),
            due: Instant::now() + IDLE,
            longest_turn: Duration::ZERO,
        }
    }

    /// Watches a process. It is not an error if the process has already ended.
    pub fn watch(
        &mut self,
        process: Process,
        pid: u32,
        limit: Option<Bytes>,
        files: MemoryFiles,
        counts_descendants: bool,
    ) -> Result<(), SampleError> {
        if let Some(sampler) = ProcessSampler::open(proc_root(), pid)? {
            let since = Instant::now();
            let copy_of = match process {
                Process::Runner(worker, _) if files.inherited != Bytes::ZERO => {
                    self.watched.get(&Process::Zygote(worker)).map(|zygote| zygote.pid)
                }
                _ => None,
            };
            let watched =
                Watched { pid, sampler, limit, files, copy_of, counts_descendants, since, last: None };
            self.watched.insert(process, watched);
            self.set_next(SHORTEST);
        }
        Ok(())
    }

    /// Sets the size of the memory files that the worker holds and that are not charged to a runner.
    pub fn set_held(&mut self, worker: opt_shared::ids::WorkerId, bytes: Bytes) {
        if let Some(watched) = self.watched.get_mut(&Process::Worker(worker)) {
            watched.files.own = bytes;
            self.set_next(SHORTEST);
        }
    }

    /// Returns the descendants of a compiler. For any other process, the list is empty.
    pub fn descendants_of(&mut self, process: Process) -> Vec<u32> {
        match self.watched.get(&process) {
            Some(watched) if watched.counts_descendants => self.descendants.list(watched.pid),
            _ => Vec::new(),
        }
    }

    /// Returns how long the process has been watched, which is slightly less than its age.
    pub fn age(&self, process: Process) -> Option<Duration> {
        Some(self.watched.get(&process)?.since.elapsed())
    }

    pub fn forget(&mut self, process: Process) {
        if let Some(watched) = self.watched.remove(&process) {
            self.descendants.forget(watched.pid);
        }
    }

    pub fn forget_runners(&mut self, worker: opt_shared::ids::WorkerId) {
        self.watched.retain(|process, _| !matches!(process, Process::Runner(id, _) if *id == worker));
        self.forget_descendants();
    }

    fn forget_descendants(&mut self) {
        self.descendants.keep(|pid| self.watched.values().any(|watched| watched.pid == pid));
    }

    /// Returns the watched processes with their pids.
    pub fn pids(&self) -> impl Iterator<Item = (Process, u32)> {
        self.watched.iter().map(|(&process, watched)| (process, watched.pid))
    }

    /// Returns the time at which the next sample is due. The closer a runner is to its limit, the sooner this is.
    pub fn due(&self) -> Instant {
        self.due
    }

    fn set_next(&mut self, next_in: Duration) {
        self.due = Instant::now() + next_in;
    }

    pub fn sample(&mut self) -> Sample {
        let now = Instant::now();
        self.pace.record_delay(now.saturating_duration_since(self.due));
        let moment = now.saturating_duration_since(self.began);
        let mut sample = Sample::default();
        let mut reclaimable_sum = Bytes::ZERO;
        let mut owed_sum = Bytes::ZERO;
        let mut headroom: Option<Bytes> = None;
        let mut processes: Vec<SampledProcess> = Vec::with_capacity(self.watched.len());
        // `Process` values are sorted: workers come first, then zygotes, then runners.
        let mut zygotes = Vec::new();
        for (&process, watched) in &mut self.watched {
            let before = watched.last;
            let Some(mut seen) = watched.sample(now, &zygotes) else { continue };
            if matches!(process, Process::Zygote(_)) {
                zygotes.push(watched.pid);
            }
            if let (Some(before), Some(_)) = (before, watched.limit) {
                self.pace.observe(moment, seen.owed - before.seen.owed, now.duration_since(before.at));
            }
            if watched.counts_descendants {
                let owed_part = |seen: &crate::memory::procfs::ProcessSample| {
                    private_owed(seen, Bytes::ZERO, Bytes::ZERO)
                };
                let (more, files) = self.descendants.memory_of(proc_root(), watched.pid, owed_part);
                seen.owed += more;
                seen.reclaimable += files;
            }
            sample.swapped += seen.swapped;
            reclaimable_sum += seen.reclaimable;
            owed_sum += seen.owed + watched.files.own;
            if let Some(limit) = watched.limit {
                let room = limit - (seen.owed + watched.files.own);
                headroom = Some(headroom.map_or(room, |least| least.min(room)));
            }
            let zygotes_worker = match process {
                Process::Zygote(worker) => {
                    processes.iter_mut().find(|seen| seen.process == Process::Worker(worker))
                }
                _ => None,
            };
            match zygotes_worker {
                Some(worker) => {
                    worker.owed += seen.owed;
                    worker.reclaimable += seen.reclaimable;
                }
                None => processes.push(SampledProcess {
                    process,
                    pid: watched.pid,
                    owed: seen.owed + watched.files.own,
                    reclaimable: seen.reclaimable,
                }),
            }
            // For runners, the core itself adds the memory files that are charged to them.
            let held_files = if watched.limit.is_none() { watched.files.own } else { Bytes::ZERO };
            sample.processes.push(ProcessSample {
                process,
                owed: seen.owed + held_files,
                reclaimable: seen.reclaimable,
            });
        }
        if let Some(seen) = self.own.as_mut().and_then(|own| own.sample().ok()?.alive()) {
            sample.supervisor_owed = private_owed(&seen, Bytes::ZERO, Bytes::ZERO);
            sample.swapped += seen.vm_swap.unwrap_or_default();
        }
        if let Some(machine) = self.machine.as_mut().and_then(|machine| machine.sample().ok()) {
            (sample.available, sample.free) = (Some(machine.available), Some(machine.free));
        }
        self.latest = RunSample {
            processes,
            supervisor: sample.supervisor_owed,
            owed: owed_sum + sample.supervisor_owed,
            reclaimable: reclaimable_sum,
            swapped: sample.swapped,
            available: sample.available,
        };
        self.sample_traffic(now);
        let totals = MemoryTotals {
            host_ceiling_bytes: None,
            predicted_peak_owed_bytes: None,
            peak_owed_bytes: Some(owed_sum + sample.supervisor_owed),
            peak_reclaimable_bytes: Some(reclaimable_sum),
            min_available_bytes: sample.available,
            swap_peak_bytes: Some(sample.swapped),
            machine_swapped_in_bytes: self.since_first(|traffic| traffic.read),
            device_ceiling_bytes: None,
            device_peak_bytes: None,
            machine_swapped_out_bytes: self.since_first(|traffic| traffic.written),
            sampling: Some(Sampling {
                worst_fill_bytes_per_second: self.pace.rate_at(moment),
                worst_delay_us: u64::try_from(self.pace.worst_delay().as_micros()).unwrap_or(u64::MAX),
                overshoot_bound_bytes: self.pace.overshoot_bound(moment),
                worst_turn_us: u64::try_from(self.longest_turn.as_micros()).ok(),
            }),
        };
        self.totals = self.totals.combined_with(totals);
        self.set_next(self.pace.next(moment, headroom));
        sample
    }

    fn sample_traffic(&mut self, now: Instant) {
        if self.traffic.as_ref().is_some_and(|traffic| now.duration_since(traffic.at) < FULL_EVERY) {
            return;
        }
        let Some(last) = self.machine.as_mut().and_then(|machine| machine.swap_traffic().ok()) else {
            return;
        };
        let first = self.traffic.as_ref().map_or(last, |traffic| traffic.first);
        self.traffic = Some(Traffic { first, last, at: now });
    }

    /// Returns the traffic since the first sample.
    fn since_first(&self, which: fn(&SwapTraffic) -> Option<Bytes>) -> Option<Bytes> {
        let traffic = self.traffic.as_ref()?;
        Some(which(&traffic.last)? - which(&traffic.first)?)
    }

    /// Raises the predicted peak of the run to `predicted`, if that is higher.
    pub fn raise_predicted_peak(&mut self, predicted: Bytes) {
        let predicted =
            predicted + self.totals.predicted_peak_owed_bytes.unwrap_or_default().saturating_sub(predicted);
        self.totals.predicted_peak_owed_bytes = Some(predicted);
    }
}

/// Returns the memory that only this process owes: anonymous memory (without `inherited`, which its zygote owes),
/// swapped memory, page tables, and shared memory outside the known memory files.
fn private_owed(seen: &crate::memory::procfs::ProcessSample, shared: Bytes, inherited: Bytes) -> Bytes {
    (seen.rss_anon.unwrap_or_default() - inherited)
        + seen.vm_swap.unwrap_or_default()
        + seen.vm_pte.unwrap_or_default()
        + (seen.rss_shmem.unwrap_or_default() - shared)
}
