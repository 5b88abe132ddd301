//! Watches every process of the run and the machine, and says what it saw as one event.
//!
//! Owns which processes are looked at, and the marks of the whole run. Reading is `memory`'s, deciding is the core's.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use opt_shared::units::Bytes;

use super::evidence::{Look, LookedAt};
use crate::core::event::{Process, ProcessSample, Sample};
use crate::memory::machine::MachineSampler;
use crate::memory::procfs::ProcessSampler;
use crate::memory::tree::TreeWalker;
use crate::record::MemoryTotals;

/// A runner can fill memory at about this rate per second: two threads over fresh pages, measured.
const FILL_RATE: u64 = 6 << 30;
const SHORTEST: Duration = Duration::from_millis(2);
const LONGEST: Duration = Duration::from_millis(50);
/// Where nothing runs that could grow.
const IDLE: Duration = Duration::from_millis(200);

struct Watched {
    pid: u32,
    sampler: ProcessSampler,
    /// What it is to stay below; only runners have one.
    limit: Option<Bytes>,
    /// Known memfds that it maps: they are counted once, by their size.
    shared: Bytes,
}

pub struct Sampler {
    watched: BTreeMap<Process, Watched>,
    own: Option<ProcessSampler>,
    machine: Option<MachineSampler>,
    tree: Option<TreeWalker>,
    pub totals: MemoryTotals,
    /// What the last sample was made from, for the record.
    pub look: Look,
    next_in: Duration,
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
            tree: TreeWalker::open(proc_root()).ok(),
            totals,
            look: Look::default(),
            next_in: IDLE,
        }
    }

    pub fn watch(&mut self, process: Process, pid: u32, limit: Option<Bytes>, shared: Bytes) {
        if let Ok(Some(sampler)) = ProcessSampler::open(proc_root(), pid) {
            self.watched.insert(process, Watched { pid, sampler, limit, shared });
            self.next_in = SHORTEST;
        }
    }

    pub fn forget(&mut self, process: Process) {
        self.watched.remove(&process);
    }

    pub fn forget_worker(&mut self, worker: opt_shared::ids::WorkerId) {
        self.watched.retain(|process, _| match process {
            Process::Worker(id) | Process::Runner(id, _) => *id != worker,
        });
    }

    pub fn forget_runners(&mut self, worker: opt_shared::ids::WorkerId) {
        self.watched.retain(|process, _| !matches!(process, Process::Runner(id, _) if *id == worker));
    }

    /// When to look again: before a runner could have filled what is left to it.
    pub fn next_in(&self) -> Duration {
        self.next_in
    }

    pub fn sample(&mut self) -> Sample {
        let mut sample = Sample::default();
        let mut swapped = Bytes::ZERO;
        let mut reclaimable_sum = Bytes::ZERO;
        let mut owed_sum = Bytes::ZERO;
        let mut headroom: Option<Bytes> = None;
        let mut processes = Vec::with_capacity(self.watched.len());
        for (&process, watched) in &mut self.watched {
            let Ok(seen) = watched.sampler.sample() else { continue };
            let Some(seen) = seen.alive() else { continue };
            let mut owed = private_owed(&seen, watched.shared);
            let mut reclaimable = seen.rss_file.unwrap_or_default();
            if matches!(process, Process::Runner(..)) {
                // A compiler has children; a candidate has none.
                let (more, files) = descendants(self.tree.as_mut(), watched.pid);
                owed += more;
                reclaimable += files;
            }
            swapped += seen.vm_swap.unwrap_or_default();
            reclaimable_sum += reclaimable;
            owed_sum += owed + watched.shared;
            if let Some(limit) = watched.limit {
                let left = limit - (owed + watched.shared);
                headroom = Some(headroom.map_or(left, |least| least.min(left)));
            }
            let all = owed + watched.shared;
            processes.push(LookedAt { process, pid: watched.pid, owed: all, reclaimable });
            sample.processes.push(ProcessSample { process, owed, reclaimable });
        }
        if let Some(seen) = self.own.as_mut().and_then(|own| own.sample().ok()?.alive()) {
            sample.supervisor_owed = private_owed(&seen, Bytes::ZERO);
            swapped += seen.vm_swap.unwrap_or_default();
        }
        if let Some(machine) = self.machine.as_mut().and_then(|machine| machine.sample().ok()) {
            sample.available = Some(machine.available);
        }
        self.look = Look {
            processes,
            supervisor: sample.supervisor_owed,
            owed: owed_sum + sample.supervisor_owed,
            reclaimable: reclaimable_sum,
            swapped,
            available: sample.available,
        };
        let totals = MemoryTotals {
            host_ceiling_bytes: None,
            predicted_peak_owed_bytes: None,
            peak_owed_bytes: Some(owed_sum + sample.supervisor_owed),
            peak_reclaimable_bytes: Some(reclaimable_sum),
            min_available_bytes: sample.available,
            swap_peak_bytes: Some(swapped),
        };
        self.totals = self.totals.and_then(totals);
        self.next_in = match headroom {
            Some(left) => {
                Duration::from_nanos(left.saturating_mul(1_000_000_000 / (FILL_RATE >> 20)).get() >> 20)
                    .clamp(SHORTEST, LONGEST)
            }
            None => IDLE,
        };
        sample
    }

    pub fn predicted(&mut self, predicted: Bytes) {
        let predicted =
            predicted + self.totals.predicted_peak_owed_bytes.unwrap_or_default().saturating_sub(predicted);
        self.totals.predicted_peak_owed_bytes = Some(predicted);
    }
}

/// Anonymous, swapped and page-table bytes, and shared ones beyond the known memfds.
fn private_owed(seen: &crate::memory::procfs::ProcessSample, shared: Bytes) -> Bytes {
    seen.rss_anon.unwrap_or_default()
        + seen.vm_swap.unwrap_or_default()
        + seen.vm_pte.unwrap_or_default()
        + (seen.rss_shmem.unwrap_or_default() - shared)
}

fn descendants(tree: Option<&mut TreeWalker>, pid: u32) -> (Bytes, Bytes) {
    let Some(pids) = tree.and_then(|tree| tree.descendants(pid).ok().map(<[u32]>::to_vec)) else {
        return (Bytes::ZERO, Bytes::ZERO);
    };
    pids.into_iter()
        .filter_map(|pid| ProcessSampler::open(proc_root(), pid).ok()??.sample().ok()?.alive())
        .map(|seen| (private_owed(&seen, Bytes::ZERO), seen.rss_file.unwrap_or_default()))
        .fold((Bytes::ZERO, Bytes::ZERO), |(owed, files), (more, other)| (owed + more, files + other))
}
