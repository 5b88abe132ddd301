//! Tracks whether the device can be used: whether dead workers have given back its memory, and whether it is lost.
//!
//! ```text
//!            a worker that used it has ended         not back in time (device_not_returned)
//!   Usable ──────────────────────────────────▶ Returning ──────────────────────────────────▶ Quarantined
//!      ▲                                          │ its memory is back                           │ its memory is back
//!      └──────────────────────────────────────────┴──────────────────────────────────────────────┘
//!   any state ── NVML says that it is lost ──▶ Lost
//! ```
//! Unattributed memory is used device memory that belongs to no process that this run can see. The memory of a dead
//! worker is back when NVML no longer lists the worker's processes and unattributed memory has fallen to about its
//! earlier level. While the device is `Returning`, steps that need it wait. While it is `Quarantined` or `Lost`,
//! `without_device` handles these steps.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use opt_shared::ids::{UnitId, WorkerId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Blame, Body, Head, Report, Status};
use opt_shared::units::Bytes;

use super::Core;
use super::event::{AttemptEnd, DeviceSample, Moment, Process, Stage};
use super::ledger::{Ceilings, Demand};
use super::unit::{SecondPass, Unit};
use super::worker::{Lease, State, Worker};

/// How long the run waits for the device memory of a dead worker to come back. Some drivers take minutes, which is too
/// long for a run to wait.
pub(super) const DEVICE_RETURN_TIMEOUT: Duration = Duration::from_secs(30);
/// How far unattributed memory may stay above its earlier level, because drivers keep some memory for the next context.
const KEPT_BY_DRIVER: Bytes = Bytes::mib(64);
/// A device with at least this utilisation, in per cent, counts as busy.
const BUSY: u32 = 10;
/// An attempt that was ended because it held more device memory than its lease reserved is repeated up to this many
/// times, in a fresh worker. After that, the unit is blamed.
const MAX_OVER_DEVICE: u32 = 1;

#[derive(Debug, Default)]
pub(super) struct Device {
    /// The reason why the device is lost. `None` if it is not lost.
    lost: Option<String>,
    /// The dead workers whose device memory has not been freed yet.
    unreturned: BTreeMap<WorkerId, Unreturned>,
    /// Whether the device has been sampled.
    is_watched: bool,
    /// The unattributed memory in the last sample at which no living worker had used the device yet and all memory of
    /// dead workers was back.
    idle_unattributed: Option<Bytes>,
    /// Whether other programs used the device in the last sample. If so, the policy log says it already.
    others_reported: bool,
    /// Whether the device was busy in the last sample although no process was listed. If so, the policy log says it
    /// already.
    busy_reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Unreturned {
    since: Moment,
    bytes: Bytes,
    /// Whether `DEVICE_RETURN_TIMEOUT` has passed. The device is then quarantined.
    overdue: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceState {
    Usable,
    /// The memory of a dead worker is not free yet.
    Returning,
    /// The memory of a dead worker was not free in time.
    Quarantined,
    /// NVML has reported the device as lost.
    Lost,
}

impl DeviceState {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Usable => "usable",
            Self::Returning => "returning",
            Self::Quarantined => "quarantined",
            Self::Lost => "lost",
        }
    }
}

impl Device {
    pub(super) fn state(&self) -> DeviceState {
        if self.lost.is_some() {
            DeviceState::Lost
        } else if self.unreturned.values().any(|it| it.overdue) {
            DeviceState::Quarantined
        } else if self.unreturned.is_empty() {
            DeviceState::Usable
        } else {
            DeviceState::Returning
        }
    }

    /// Returns the device memory of a dead worker that is not back yet.
    pub(super) fn unreturned_by(&self, worker: WorkerId) -> Option<Bytes> {
        Some(self.unreturned.get(&worker)?.bytes)
    }

    pub(super) fn with_unreturned(&self) -> impl Iterator<Item = WorkerId> {
        self.unreturned.keys().copied()
    }

    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.unreturned.values().filter(|it| !it.overdue).map(|it| it.since + DEVICE_RETURN_TIMEOUT).min()
    }
}

impl Core {
    pub fn ceilings(&self) -> Ceilings {
        self.ledger.ceilings()
    }

    pub fn device_state(&self) -> DeviceState {
        self.device.state()
    }

    pub fn device_is_leased(&self) -> bool {
        self.workers.values().any(|it| it.lease().is_some_and(|lease| lease.device != Bytes::ZERO))
    }

    pub(super) fn device_sampled(&mut self, now: Moment, sample: &DeviceSample) {
        if self.device.lost.is_some() {
            return;
        }
        self.device.is_watched = true;
        for worker in self.workers.values_mut() {
            worker.device = Bytes::ZERO;
            worker.runners.values_mut().for_each(|runner| runner.device = Bytes::ZERO);
        }
        for &(process, bytes) in &sample.processes {
            let id = process.worker();
            let Some(worker) = self.workers.get_mut(&id) else { continue };
            worker.on_device = true;
            match process {
                Process::Worker(_) | Process::Zygote(_) => worker.device += bytes,
                Process::Runner(_, pid) => {
                    if let Some(runner) = worker.runners.get_mut(&pid) {
                        runner.device = bytes;
                    }
                }
            }
        }
        for (&id, worker) in &mut self.workers {
            if worker.on_device {
                worker.record_device_peak();
            }
            self.ledger.measure(id, worker.demand());
        }
        self.ledger.measure_device(sample.free);
        self.check_returning_memory(now, sample);
        self.report_other_users(sample);
        self.handle_exceeded_limit(now, self.over_ceiling());
    }

    fn check_returning_memory(&mut self, now: Moment, sample: &DeviceSample) {
        let dead_listed: BTreeMap<WorkerId, Bytes> = sample.left.iter().copied().collect();
        let live_listed: BTreeSet<WorkerId> =
            sample.processes.iter().map(|(process, _)| process.worker()).collect();
        let on_device = || self.workers.iter().filter(|(_, it)| it.on_device).map(|(&id, _)| id);
        // If NVML reports the pids of another PID namespace, the memory of living workers counts as unattributed. The
        // growth of unattributed memory then means nothing, so it is taken to be zero.
        let all_live_listed = on_device().all(|id| live_listed.contains(&id));
        let unattributed_growth = match (sample.unattributed, self.device.idle_unattributed) {
            (Some(current), Some(idle)) if all_live_listed => current - idle,
            _ => Bytes::ZERO,
        };
        let state_before = self.device.state();
        let mut back = Vec::new();
        for (&worker, it) in &mut self.device.unreturned {
            match dead_listed.get(&worker) {
                Some(&bytes) => it.bytes = bytes,
                // No sample has listed this worker, so its memory is not known separately.
                None if KEPT_BY_DRIVER < unattributed_growth && it.bytes == Bytes::ZERO => {
                    it.bytes = unattributed_growth;
                }
                None if KEPT_BY_DRIVER < unattributed_growth => it.bytes = it.bytes.min(unattributed_growth),
                None => back.push((worker, it.since)),
            }
        }
        for &(worker, _) in &back {
            self.device.unreturned.remove(&worker);
        }
        let affected: Vec<WorkerId> =
            back.iter().map(|&(worker, _)| worker).chain(self.device.with_unreturned()).collect();
        for worker in affected {
            self.settle_account(worker);
        }
        if self.device.unreturned.is_empty() && !self.workers.values().any(|it| it.on_device) {
            self.device.idle_unattributed = sample.unattributed;
        }
        if let Some(&(worker, since)) = back.last()
            && state_before == DeviceState::Quarantined
            && self.device.state() != DeviceState::Quarantined
        {
            let took = now.saturating_sub(since).as_millis();
            self.policy(
                "device_returned",
                "the device's memory has been returned, so the device is used again".to_owned(),
                vec![("worker", u64::from(worker.0)), ("took_ms", u64::try_from(took).unwrap_or(u64::MAX))],
            );
        }
    }

    fn report_other_users(&mut self, sample: &DeviceSample) {
        let in_use = 0 < sample.other_processes;
        if in_use && !self.device.others_reported {
            self.policy(
                "device_in_use",
                "other processes use the device: they make times unreliable, and take device memory"
                    .to_owned(),
                vec![("processes", u64::from(sample.other_processes)), ("device_bytes", sample.others.get())],
            );
        }
        self.device.others_reported = in_use;
        let busy = sample.utilisation.filter(|&percent| BUSY <= percent);
        let busy = busy.filter(|_| !in_use && sample.processes.is_empty() && !self.device_is_leased());
        if let Some(percent) = busy
            && !self.device.busy_reported
        {
            self.policy(
                "device_busy",
                "the device is busy, but NVML lists no process: another container or a virtual machine may be using it"
                    .to_owned(),
                vec![("utilisation_percent", u64::from(percent))],
            );
        }
        self.device.busy_reported = busy.is_some();
    }

    /// Records a dead worker, if it used the device, so that the run waits for its device memory to come back.
    pub(super) fn left_the_device(&mut self, now: Moment, worker: WorkerId, it: &Worker) {
        if it.on_device && self.device.is_watched && self.device.lost.is_none() {
            let bytes = it.demand().device;
            self.device.unreturned.insert(worker, Unreturned { since: now, bytes, overdue: false });
        }
    }

    /// Reports, once for each dead worker, that its device memory is not back in time. The memory stays charged until
    /// it is back.
    pub(super) fn device_overdue(&mut self, now: Moment) {
        let overdue = |it: &Unreturned| !it.overdue && it.since + DEVICE_RETURN_TIMEOUT <= now;
        let late: Vec<(WorkerId, Bytes)> = self
            .device
            .unreturned
            .iter()
            .filter(|(_, it)| overdue(it))
            .map(|(&worker, it)| (worker, it.bytes))
            .collect();
        for (worker, bytes) in late {
            if let Some(it) = self.device.unreturned.get_mut(&worker) {
                it.overdue = true;
            }
            let waited = u64::try_from(DEVICE_RETURN_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
            self.policy(
                "device_not_returned",
                format!(
                    "{worker} ended {DEVICE_RETURN_TIMEOUT:?} ago, but the device has not freed its memory: the device \
                     is in quarantine, and the rest of the plan continues without it"
                ),
                vec![
                    ("worker", u64::from(worker.0)),
                    ("device_bytes", bytes.get()),
                    ("waited_ms", waited),
                ],
            );
        }
    }

    /// Handles the loss of the device. Kills the workers whose leases use it. `without_device` then handles the units
    /// that need it.
    pub(super) fn device_lost(&mut self, why: String) {
        if self.device.lost.is_some() {
            return;
        }
        self.policy("device_lost", why.clone(), Vec::new());
        let holders: Vec<WorkerId> = self.device.with_unreturned().collect();
        self.device.unreturned.clear();
        self.device.lost = Some(why);
        self.ledger.measure_device(None);
        for worker in self.workers.values_mut() {
            worker.device = Bytes::ZERO;
            worker.on_device = false;
            worker.runners.values_mut().for_each(|runner| runner.device = Bytes::ZERO);
        }
        for worker in holders {
            self.settle_account(worker);
        }
        let at_work: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| it.lease().is_some_and(|lease| lease.device != Bytes::ZERO))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in at_work {
            self.kill_runners(worker, KillReason::DeviceLost);
            self.kill_worker(worker, KillReason::DeviceLost);
        }
    }

    /// Returns whether any worker that used the device is ending. Its device memory comes back only after its death.
    pub(super) fn worker_is_leaving_the_device(&self) -> bool {
        let is_leaving = |it: &Worker| matches!(it.state, State::Draining { .. } | State::Terminating);
        self.workers.values().any(|it| it.on_device && is_leaving(it))
    }

    pub(super) fn needs_device(&self, unit: UnitId, paired: bool) -> bool {
        self.unit(unit).step().ways(paired).iter().any(|way| way.device != Bytes::ZERO)
    }

    /// Returns the reason why the device cannot be used, or `None` if it can be used.
    pub(super) fn no_device(&self) -> Option<String> {
        match self.device.state() {
            DeviceState::Usable | DeviceState::Returning => None,
            DeviceState::Quarantined => Some(
                "the device is in quarantine: it did not free the memory of a process that has ended"
                    .to_owned(),
            ),
            DeviceState::Lost => self.device.lost.clone(),
        }
    }

    /// Handles a step that needs the device while it cannot be used. If the step is a screening or a confirmation, the
    /// unit continues without it. Otherwise the unit is put off once, until nothing else is left to do, because a
    /// device that is quarantined or in use may become usable again. If the unit was put off before, or if the device
    /// is lost, the unit ends.
    pub(super) fn without_device(&mut self, id: UnitId, why: String) {
        let is_lost = self.device.state() == DeviceState::Lost;
        let unit = self.unit(id);
        if matches!(unit.step().stage, Stage::Screen | Stage::Confirm) {
            if !self.change(id, Unit::advance) {
                self.unit_done(id, Status::Passed, None, format!("not confirmed: {why}"));
            }
        } else if !is_lost && unit.second_pass == SecondPass::NotNeeded {
            self.change(id, |unit| unit.second_pass = SecondPass::PutOff);
            let numbers = vec![("unit", u64::from(id.0))];
            self.policy("put_off", format!("put off until nothing else is left to do: {why}"), numbers);
        } else {
            self.unit_done(id, Status::InfraError, Some(Blame::Host), why);
        }
    }

    /// Handles an attempt that was ended because the run exceeded its device ceiling. The unit is blamed only if both
    /// this attempt and an earlier one held more than their leases reserved.
    pub(super) fn over_device(&mut self, lease: Lease, owed: Bytes, ceiling: Bytes) {
        let Some(held) = lease.over_device else {
            let why =
                format!("the worker was ended for lack of device memory (owed {owed}, ceiling {ceiling})");
            return self.repeat_smaller_or_give_up(lease, why);
        };
        let beside = if lease.order.beside.is_some() { " with the baseline beside it" } else { "" };
        let reserved = lease.device;
        let why = format!(
            "the attempt held {held} on the device{beside}, but only {reserved} were reserved for it; the run held \
             {owed}, more than its ceiling of {ceiling} (memory.device_ceiling)"
        );
        let id = lease.order.unit;
        let times = self.change(id, |unit| {
            unit.losses().over_device += 1;
            unit.losses().over_device
        });
        if times <= MAX_OVER_DEVICE {
            return self.repeat(lease, Blame::Host, why);
        }
        let detail = format!("{why}; the same happened in an earlier attempt, in another worker");
        let status = Status::DeviceMemoryLimit;
        let report = Report::new(Head::failed(status, &detail), Body::of_nothing(lease.order.stage));
        self.attempt_ended(&lease, AttemptEnd::Accepted(Box::new(report)));
        self.unit_done(id, status, status.blame(), detail);
    }
}

impl Worker {
    fn device_held(&self) -> Bytes {
        self.device + self.runners.values().map(|runner| runner.device).sum()
    }

    pub(super) fn demand(&self) -> Demand {
        Demand { host: self.tree_owed(), device: self.device_held() }
    }

    fn record_device_peak(&mut self) {
        let held = self.device_held();
        self.peak_device = self.peak_device.max(Some(held));
        if let Some(lease) = self.lease_mut() {
            lease.peak_device = lease.peak_device.max(Some(held));
        }
    }
}
