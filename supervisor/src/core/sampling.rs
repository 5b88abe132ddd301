//! What samples mean: charges, peaks, and which runner has to go.
//!
//! Two lines are kept here: a runner's own limit, and the machine's floor. Both kill runners only.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;

use super::Core;
use super::event::{Process, Sample};
use super::worker::{State, Worker};

/// A runner that owes next to nothing is not what drowns the machine: killing it would help nobody.
const WORTH_KILLING: Bytes = Bytes::mib(64);

impl Core {
    pub(super) fn sampled(&mut self, sample: &Sample) {
        let mut over = Vec::new();
        let mut reclaimable: BTreeMap<WorkerId, Bytes> = BTreeMap::new();
        for process in &sample.processes {
            let (Process::Worker(worker) | Process::Runner(worker, _)) = process.process;
            let Some(it) = self.workers.get_mut(&worker) else { continue };
            *reclaimable.entry(worker).or_default() += process.reclaimable;
            match process.process {
                Process::Worker(_) => {
                    it.owed = process.owed;
                    // The first look comes right after the hello, whatever it was given to do since.
                    it.owed_when_ready.get_or_insert(process.owed);
                }
                Process::Runner(_, pid) => {
                    let Some(runner) = it.runners.get_mut(&pid) else { continue };
                    runner.owed = process.owed;
                    let owed = process.owed + runner.shared;
                    runner.peak_owed = runner.peak_owed.max(owed);
                    if runner.limit < owed && runner.killed.is_none() {
                        over.push((worker, pid, owed, runner.limit));
                    }
                }
            }
        }
        for (&worker, it) in &mut self.workers {
            it.seen_idle |= it.is_idle();
            let owed = it.tree_owed();
            it.peak_owed = it.peak_owed.max(owed);
            if let State::Leased(lease) = &mut it.state {
                lease.peak_owed = lease.peak_owed.max(owed);
                let reclaimable = reclaimable.get(&worker).copied().unwrap_or_default();
                lease.peak_reclaimable = lease.peak_reclaimable.max(reclaimable);
            }
            self.ledger.measure(worker, owed);
        }
        self.ledger.measure_machine(sample.supervisor_owed, sample.available);
        for (worker, pid, owed, limit) in over {
            self.policy(
                "kill_runner",
                "it owes more than its limit".to_owned(),
                vec![("owed_bytes", owed.get()), ("limit_bytes", limit.get())],
            );
            self.kill_runner(worker, pid, KillReason::RunnerMemory { owed, limit });
        }
        self.keep_the_floor(sample);
    }

    /// Below the floor the newest lease's largest runner goes: it is the likeliest cause and the cheapest loss.
    fn keep_the_floor(&mut self, sample: &Sample) {
        let floor = self.ledger.floor();
        let Some(available) = sample.available.filter(|&available| available < floor) else { return };
        // Memory of the killed takes tens of milliseconds per GiB to come back; one victim at a time.
        let dying =
            |it: &Worker| it.killed.is_some() || it.runners.values().any(|runner| runner.killed.is_some());
        if self.workers.values().any(dying) {
            return;
        }
        let victim = self
            .workers
            .iter()
            .filter_map(|(&worker, it)| {
                let lease = it.lease()?;
                let (&pid, runner) = it.runners.iter().max_by_key(|(_, runner)| runner.owed)?;
                (WORTH_KILLING < runner.owed).then_some((lease.id, worker, pid))
            })
            .max();
        if let Some((_, worker, pid)) = victim {
            self.policy(
                "kill_runner",
                "the machine fell below its floor".to_owned(),
                vec![("available_bytes", available.get()), ("floor_bytes", floor.get())],
            );
            self.kill_runner(worker, pid, KillReason::HostFloor { available, floor });
        }
    }
}
