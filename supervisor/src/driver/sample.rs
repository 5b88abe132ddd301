//! Watches every process of the run and the machine, and says what it saw as one event.
//!
//! Owns which processes are looked at, and the marks of the whole run. Reading is `memory`'s, deciding is the core's.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use opt_shared::units::Bytes;

use super::kin::Kin;
use crate::core::event::{Process, ProcessSample, Sample};
use crate::memory::machine::MachineSampler;
use crate::memory::procfs::ProcessSampler;
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
    /// A compiler has children; a candidate has none.
    tree: bool,
}

pub struct Sampler {
    watched: BTreeMap<Process, Watched>,
    own: Option<ProcessSampler>,
    machine: Option<MachineSampler>,
    kin: Kin,
    pub totals: MemoryTotals,
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
            kin: Kin::open(proc_root()),
            totals,
            next_in: IDLE,
        }
    }

    pub fn watch(&mut self, process: Process, pid: u32, limit: Option<Bytes>, shared: Bytes, tree: bool) {
        if let Ok(Some(sampler)) = ProcessSampler::open(proc_root(), pid) {
            self.watched.insert(process, Watched { pid, sampler, limit, shared, tree });
            self.next_in = SHORTEST;
        }
    }

    pub fn forget(&mut self, process: Process) {
        if let Some(watched) = self.watched.remove(&process) {
            self.kin.forget(watched.pid);
        }
    }

    pub fn forget_worker(&mut self, worker: opt_shared::ids::WorkerId) {
        self.watched.retain(|process, _| match process {
            Process::Worker(id) | Process::Runner(id, _) => *id != worker,
        });
        self.forget_kin();
    }

    pub fn forget_runners(&mut self, worker: opt_shared::ids::WorkerId) {
        self.watched.retain(|process, _| !matches!(process, Process::Runner(id, _) if *id == worker));
        self.forget_kin();
    }

    fn forget_kin(&mut self) {
        self.kin.keep(|pid| self.watched.values().any(|watched| watched.pid == pid));
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
        for (&process, watched) in &mut self.watched {
            let Ok(seen) = watched.sampler.sample() else { continue };
            let Some(seen) = seen.alive() else { continue };
            let mut owed = private_owed(&seen, watched.shared);
            let mut reclaimable = seen.rss_file.unwrap_or_default();
            if watched.tree {
                let weigh = |seen: &crate::memory::procfs::ProcessSample| private_owed(seen, Bytes::ZERO);
                let (more, files) = self.kin.weigh(proc_root(), watched.pid, weigh);
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
            sample.processes.push(ProcessSample { process, owed, reclaimable });
        }
        if let Some(seen) = self.own.as_mut().and_then(|own| own.sample().ok()?.alive()) {
            sample.supervisor_owed = private_owed(&seen, Bytes::ZERO);
            swapped += seen.vm_swap.unwrap_or_default();
        }
        if let Some(machine) = self.machine.as_mut().and_then(|machine| machine.sample().ok()) {
            sample.available = Some(machine.available);
        }
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
