//! Decides what to do when memory runs short: when the process tree owes more than its ceiling, when the machine falls
//! below its floor or reports memory pressure, and when pages of this run are swapped out.
//!
//! Processes are ended in this order: first those of the offender (the worker that exceeds its lease's reservation
//! most), then spares and idle workers together, then those of the newest lease. Processes of a lease are ended one at
//! a time, because freeing memory takes tens of milliseconds per GiB.

use std::time::Duration;

use opt_shared::ids::WorkerId;
use opt_shared::message::KillReason;
use opt_shared::units::Bytes;

use super::Core;
use super::event::{Moment, Sample};
use super::ledger::{CeilingScope, Demand};
use super::recycle::RecycleReason;
use super::worker::{Runner, Worker};

/// The process of a lease is ended only if this frees more than `WORTH_KILLING`, or if the lease exceeds its
/// reservation by at least `WORTH_KILLING`. While the process tree exceeds a ceiling, any excess is enough.
const WORTH_KILLING: Bytes = Bytes::mib(64);
/// When memory runs short, an idle worker that owes less than this is ended only if it is a spare.
const WORTH_RECYCLING: Bytes = Bytes::mib(16);
/// How long memory must be missing (`check_for_gap`) before the gap is reported. A short gap means nothing, because
/// freed pages stay in per-CPU lists for seconds before Linux counts them as available.
const GAP_TIMEOUT: Duration = Duration::from_secs(10);
/// The time during which no spare (a worker that is started in advance) is started after Linux has reported memory
/// pressure, or after a spare was ended because a limit was exceeded or pages were swapped out. After a policy row
/// `pressure`, no further one is written for the same time, because Linux repeats its report every two seconds while it
/// is short of memory.
const PRESSURE_QUIET: Duration = Duration::from_secs(60);
/// How long to wait for the memory of an idle worker that was told to end, before another process is ended.
const DRAINED_MEMORY_DELAY: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    /// `MemAvailable` and the memory that this run owed in the first sample.
    first: Option<(Bytes, Bytes)>,
    /// The time since which the gap (memory that is missing and that this run does not owe) has been larger than the
    /// floor.
    gap_since: Option<Moment>,
    /// Whether that gap has been reported.
    gap_reported: bool,
    /// The amount that was swapped out when swapping was last reported. It is reset to zero as soon as nothing is
    /// swapped out.
    swapped: Bytes,
    pressure_reported_at: Option<Moment>,
}

/// A limit that was exceeded, with the reason, text and numbers to record if a process is ended for it.
pub(super) struct ExceededLimit {
    /// The kind of memory that the exceeded ceiling limits, or `None` if the machine fell below its floor.
    scope: Option<CeilingScope>,
    reason: KillReason,
    text: &'static str,
    numbers: Vec<(&'static str, u64)>,
}

impl Core {
    pub(super) fn observe_machine(&mut self, now: Moment, sample: &Sample) {
        self.check_for_gap(now, sample);
        if sample.swapped == Bytes::ZERO {
            self.machine.swapped = Bytes::ZERO;
        } else if self.spec.own_swap && self.machine.swapped.saturating_mul(2) < sample.swapped {
            let before = std::mem::replace(&mut self.machine.swapped, sample.swapped);
            self.policy(
                "swapped",
                "pages of this run were swapped out ([memory] swap = \"own\"): timings since then are unreliable, and \
                 idle workers are ended"
                    .to_owned(),
                vec![("swapped_bytes", sample.swapped.get()), ("before_bytes", before.get())],
            );
            self.recycle_the_dispensable(now);
        }
    }

    /// Reports if much of the memory that was available at the first sample is missing although this run does not owe
    /// it.
    fn check_for_gap(&mut self, now: Moment, sample: &Sample) {
        let Some(available) = sample.available else { return };
        let owed = self.ledger.owed().host;
        let &mut (first_available, first_owed) = self.machine.first.get_or_insert((available, owed));
        let gap = (first_available - available) - (owed - first_owed);
        let floor = self.ledger.floor();
        if gap < floor.fraction(0.5) || floor == Bytes::ZERO {
            self.machine.gap_reported = false;
        }
        if gap <= floor || floor == Bytes::ZERO {
            self.machine.gap_since = None;
            return;
        }
        let since = *self.machine.gap_since.get_or_insert(now);
        if self.machine.gap_reported || now < since + GAP_TIMEOUT {
            return;
        }
        self.machine.gap_reported = true;
        self.policy(
            "attribution_gap",
            "the machine has much less memory available than before, and this run does not owe it: another program or \
             Linux itself holds it"
                .to_owned(),
            vec![
                ("gap_bytes", gap.get()),
                ("available_bytes", available.get()),
                ("available_at_first_bytes", first_available.get()),
                ("owed_bytes", owed.get()),
                ("owed_at_first_bytes", first_owed.get()),
            ],
        );
    }

    /// Ends spare workers after Linux has reported that processes wait for memory.
    pub(super) fn pressure(&mut self, now: Moment) {
        if self.machine.pressure_reported_at.is_none_or(|at| at + PRESSURE_QUIET <= now) {
            self.machine.pressure_reported_at = Some(now);
            let owed = self.ledger.owed().sum();
            self.policy(
                "pressure",
                "processes on this machine are waiting for memory: spare workers are ended".to_owned(),
                vec![("owed_bytes", owed.get())],
            );
        }
        self.no_spare_before = now + PRESSURE_QUIET;
        for worker in self.spares() {
            self.recycle(now, worker, RecycleReason::Pressure);
        }
    }

    /// Returns the ceiling that the process tree exceeds, if there is one.
    pub(super) fn over_ceiling(&self) -> Option<ExceededLimit> {
        let (scope, owed, ceiling) = self.ledger.ceilings().over(self.ledger.owed())?;
        let numbers = vec![("owed_bytes", owed.get()), ("ceiling_bytes", ceiling.get())];
        let (reason, text) = match scope {
            CeilingScope::Host | CeilingScope::Unified => {
                (KillReason::HostCeiling { owed, ceiling }, "the process tree owes more than its ceiling")
            }
            CeilingScope::Device => (
                KillReason::DeviceCeiling { owed, ceiling },
                "the process tree holds more memory on the device than its ceiling allows",
            ),
        };
        Some(ExceededLimit { scope: Some(scope), reason, text, numbers })
    }

    pub(super) fn below_floor(&self, sample: &Sample) -> Option<ExceededLimit> {
        let floor = self.ledger.floor();
        let available = sample.available.filter(|&available| available < floor)?;
        let mut numbers = vec![("available_bytes", available.get()), ("floor_bytes", floor.get())];
        numbers.extend(sample.free.map(|free| ("free_bytes", free.get())));
        let text = "the machine fell below its floor";
        Some(ExceededLimit { scope: None, reason: KillReason::HostFloor { available, floor }, text, numbers })
    }

    pub(super) fn handle_exceeded_limit(&mut self, now: Moment, exceeded: Option<ExceededLimit>) {
        let Some(exceeded) = exceeded else { return };
        if self.eviction_is_under_way(now) {
            return;
        }
        if let Some(offender) = self.offender(&exceeded) {
            let exceeded = self.with_reason_for(offender, exceeded);
            self.end_the_largest(offender, exceeded);
        } else if !self.recycle_the_dispensable(now)
            && let Some(newest) = self.newest_lease()
        {
            self.end_the_largest(newest, exceeded);
        }
    }

    fn eviction_is_under_way(&self, now: Moment) -> bool {
        let ending = |it: &Worker| {
            let order = it.drain_order.filter(|order| order.reason == Some(RecycleReason::Pressure));
            // If a killed worker does not die, `death_overdue` ends the run.
            it.killed.is_some()
                || order.is_some_and(|order| now < order.at + DRAINED_MEMORY_DELAY)
                || it.runners.values().any(|runner| runner.killed.is_some())
        };
        self.orphans.values().any(|it| !it.overdue) || self.workers.values().any(ending)
    }

    /// Returns the exceeded limit with the reason for ending the offender. If host and device share one memory, and the
    /// offender exceeds its reservation by more on the device than on the host, the reason names the device's ceiling.
    fn with_reason_for(&self, offender: WorkerId, exceeded: ExceededLimit) -> ExceededLimit {
        let excess = self.ledger.excess(offender);
        match exceeded.reason {
            KillReason::HostCeiling { owed, ceiling } if excess.host < excess.device => {
                ExceededLimit { reason: KillReason::DeviceCeiling { owed, ceiling }, ..exceeded }
            }
            _ => exceeded,
        }
    }

    /// Returns the worker that exceeds its lease's reservation most. `None` if no lease exceeds its reservation. If the
    /// machine fell below its floor, a lease that exceeds its reservation by less than `WORTH_KILLING` does not count.
    /// Idle workers do not count, because they have no lease.
    fn offender(&self, exceeded: &ExceededLimit) -> Option<WorkerId> {
        let min_excess = if exceeded.scope.is_some() { Bytes::new(1) } else { WORTH_KILLING };
        let part = |demand: Demand| exceeded.scope.map_or(demand.sum(), |scope| scope.part_of(demand));
        self.workers
            .iter()
            .filter(|(_, it)| it.lease().is_some())
            .map(|(&worker, _)| (part(self.ledger.excess(worker)), worker))
            .filter(|&(excess, _)| min_excess <= excess)
            .max()
            .map(|(_, worker)| worker)
    }

    /// Returns the worker with the newest lease, among the leases for which ending one process would free enough
    /// memory.
    fn newest_lease(&self) -> Option<WorkerId> {
        self.workers
            .iter()
            .filter_map(|(&worker, it)| {
                let lease = it.lease()?;
                let largest = it.runners.values().map(Runner::total_owed).max().unwrap_or_default();
                let held = largest.max(it.owed).max(it.demand().device);
                (WORTH_KILLING < held).then_some((lease.id, worker))
            })
            .max()
            .map(|(_, worker)| worker)
    }

    /// Ends the worker's largest runner, or the worker if it owes more than each of its runners.
    fn end_the_largest(&mut self, worker: WorkerId, exceeded: ExceededLimit) {
        let excess = self.ledger.excess(worker).device;
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let is_device = matches!(exceeded.reason, KillReason::DeviceCeiling { .. });
        let held_by_runner = |runner: &Runner| if is_device { runner.device } else { runner.total_owed() };
        let held_by_worker = if is_device { it.device } else { it.owed };
        let runner = it.runners.iter().max_by_key(|(_, runner)| held_by_runner(runner));
        let largest =
            runner.filter(|(_, runner)| held_by_worker <= held_by_runner(runner)).map(|(&pid, _)| pid);
        let held = it.demand().device;
        if is_device
            && excess != Bytes::ZERO
            && let Some(lease) = it.lease_mut()
        {
            lease.over_device = Some(held);
        }
        let mut numbers = vec![("worker", u64::from(worker.0))];
        numbers.extend(exceeded.numbers);
        if is_device {
            numbers.push(("held_bytes", held.get()));
            numbers.push(("reserved_bytes", (held - excess).get()));
        }
        match largest {
            Some(pid) => {
                self.policy("kill_runner", exceeded.text.to_owned(), numbers);
                self.kill_runner(worker, pid, exceeded.reason);
            }
            None => {
                self.policy("kill_worker", exceeded.text.to_owned(), numbers);
                self.kill_worker(worker, exceeded.reason);
            }
        }
    }

    /// Ends all spares, and all idle workers that owe at least `WORTH_RECYCLING`. Returns true if any worker was told
    /// to end.
    fn recycle_the_dispensable(&mut self, now: Moment) -> bool {
        let mut any_ended = false;
        for worker in self.dispensable() {
            let spare = self.workers.get(&worker).is_some_and(Worker::is_spare);
            if spare {
                self.no_spare_before = now + PRESSURE_QUIET;
            }
            if spare || WORTH_RECYCLING <= self.ledger.measured(worker).sum() {
                self.recycle(now, worker, RecycleReason::Pressure);
                any_ended = true;
            }
        }
        any_ended
    }
}
