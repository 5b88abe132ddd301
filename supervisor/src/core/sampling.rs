//! Evaluates each sample: updates charges and peaks, looks for runners that exceed their limits, and reads the
//! machine's own figures.
//!
//! Kills runners that owe more than their limit. `pressure` handles an exceeded ceiling or floor.

use std::collections::BTreeMap;

use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;

use super::Core;
use super::event::{Moment, Process, Sample};
use super::worker::{State, Worker};

impl Core {
    pub(super) fn sampled(&mut self, now: Moment, sample: &Sample) {
        let mut over = Vec::new();
        let mut reclaimable: BTreeMap<WorkerId, Bytes> = BTreeMap::new();
        for process in &sample.processes {
            let worker = process.process.worker();
            *reclaimable.entry(worker).or_default() += process.reclaimable;
            if let (Process::Runner(_, pid), Some(left)) = (process.process, self.orphans.get_mut(&worker)) {
                if let Some(runner) = left.runners.get_mut(&pid) {
                    runner.owed = process.owed;
                }
                continue;
            }
            let Some(it) = self.workers.get_mut(&worker) else { continue };
            match process.process {
                Process::Worker(_) => {
                    it.owed = process.owed;
                    // A sample lists each worker before its zygote, so the zygote's memory is set below if the zygote
                    // is alive. A zygote that has ended is not in the sample, so its memory remains zero.
                    it.zygote = Bytes::ZERO;
                    // The first sample is taken right after the hello, so it is used as the idle size even if the
                    // worker has work by now.
                    it.owed_when_ready.get_or_insert(process.owed);
                }
                Process::Zygote(_) => it.zygote = process.owed,
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
            let reclaimable = reclaimable.get(&worker).copied().unwrap_or_default();
            if let State::Leased(lease) = &mut it.state {
                lease.peak_owed = lease.peak_owed.max(owed);
                lease.peak_reclaimable = lease.peak_reclaimable.max(reclaimable);
            }
            self.ledger.measure(worker, it.demand());
        }
        let orphans: Vec<WorkerId> = self.orphans.keys().copied().collect();
        for worker in orphans {
            self.settle_account(worker);
        }
        self.ledger.measure_machine(sample.supervisor_owed, sample.available);
        for (worker, pid, owed, limit) in over {
            self.policy(
                "kill_runner",
                "the runner owes more than its limit".to_owned(),
                vec![
                    ("worker", u64::from(worker.0)),
                    ("pid", u64::from(pid)),
                    ("owed_bytes", owed.get()),
                    ("limit_bytes", limit.get()),
                ],
            );
            self.kill_runner(worker, pid, KillReason::RunnerMemory { owed, limit });
        }
        self.note_breaches();
        self.observe_machine(now, sample);
        let exceeded = self.over_ceiling().or_else(|| self.below_floor(sample));
        self.handle_exceeded_limit(now, exceeded);
    }

    /// Records which processes of the run are active while a candidate is timed. There should be none besides the timed
    /// attempt, but processes that should have ended before may still be there.
    fn note_breaches(&mut self) {
        let is_timing = |it: &Worker| it.lease().is_some_and(|lease| lease.order.stage.is_timed());
        let Some((&timed, _)) = self.workers.iter().find(|(_, it)| is_timing(it)) else { return };
        let others = || self.workers.iter().filter(|(id, _)| **id != timed).map(|(_, it)| it);
        let found: Vec<&'static str> = [
            (others().any(|it| matches!(it.state, State::Starting { .. })), "a worker was starting"),
            (others().any(|it| it.lease().is_some()), "another attempt was running"),
            (others().any(|it| !it.runners.is_empty()), "a runner of another worker had not ended"),
            (!self.orphans.is_empty(), "processes of a worker that had ended were still there"),
        ]
        .into_iter()
        .filter_map(|(holds, what)| holds.then_some(what))
        .collect();
        if let Some(State::Leased(lease)) = self.workers.get_mut(&timed).map(|it| &mut it.state) {
            lease.breaches.extend(found);
        }
    }
}
