//! Checks the laws from outside the core, using only the run's description, the events and the actions.

use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::{LeaseId, UnitId, WorkerId};
use opt_shared::message::Role;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use opt_supervisor::core::Demand;
use opt_supervisor::core::event::{Action, AttemptEnd, Moment, Order, PolicyRow, Stage, StopReason};
use opt_supervisor::core::spec::{Resumed, RunSpec};

use super::device::Card;
use super::supply::SupplyLaws;
use super::tape::Tape;
use super::tasks::TaskLaws;
use super::user::User;

/// The state of a live worker, derived from actions and events.
#[derive(Debug, Default)]
pub(crate) struct WorkerState {
    pub(crate) role: Option<Role>,
    pub(crate) ready: bool,
    pub(crate) drained: bool,
    pub(crate) killed: bool,
    /// Whether the policy log says that the worker, or one of its runners, did not end in time.
    pub(crate) reported_overdue: bool,
    pub(crate) lease: Option<(LeaseId, Order)>,
    /// Whether the worker's last lease must run alone, without other leases of this run.
    alone: bool,
    pub(crate) leases: u32,
    pub(crate) reserved: Bytes,
    pub(crate) owed: Bytes,
    pub(crate) owed_when_ready: Option<Bytes>,
    /// Whether a sample has shown the worker idle since its last lease ended.
    pub(crate) sampled_idle: bool,
    /// The bytes that the worker has compared in verifications.
    pub(crate) validated: Bytes,
    /// Whether the worker has had a lease on the device or was seen on it. The next two fields are the memory that it
    /// reserves there, and the memory that samples show.
    pub(crate) on_device: bool,
    pub(crate) device_reserved: Bytes,
    pub(crate) device: Bytes,
    /// The reported runners that are alive. Each has its last sample, and a flag that is true if it was killed.
    pub(crate) runners: BTreeMap<u32, (Bytes, bool)>,
}

impl WorkerState {
    fn is_alone(&self) -> bool {
        self.lease.is_some() && self.alone
    }
}

pub(crate) struct Laws {
    pub(crate) spec: RunSpec,
    pub(crate) workers: BTreeMap<WorkerId, WorkerState>,
    /// The dead workers whose runners are still alive.
    pub(crate) returning: BTreeMap<WorkerId, WorkerState>,
    pub(crate) card: Card,
    /// The memory that the supervisor owes.
    pub(crate) supervisor: Bytes,
    pub(crate) interrupted: bool,
    pub(crate) user: User,
    /// Whether the run's database accepts no rows.
    pub(crate) stalled: bool,
    /// Whether there is no room for builds. The next field is the number of builds that have failed because of that.
    pub(crate) room_is_short: bool,
    pub(crate) builds_without_room: u32,
    pub(crate) tasks: TaskLaws,
    /// Whether an attempt was abandoned. In this case, the run must not say that it finished.
    abandoned: bool,
    pub(crate) stopped: bool,
    started: BTreeSet<WorkerId>,
    ended: BTreeSet<WorkerId>,
    pub(crate) supply: SupplyLaws,
    /// The number of the last attempt at each stage of a unit.
    attempts: BTreeMap<(UnitId, Stage), u32>,
    lost_baselines: u32,
    /// The leases whose attempts have not ended.
    open: BTreeMap<LeaseId, UnitId>,
    /// The killed workers that do not die. The next field is true if one of them holds a lease.
    overdue: BTreeSet<WorkerId>,
    lingering: bool,
}

impl Laws {
    pub(crate) fn new(spec: RunSpec) -> Self {
        Self {
            card: Card::of(&spec),
            spec,
            workers: BTreeMap::new(),
            returning: BTreeMap::new(),
            supervisor: Bytes::ZERO,
            interrupted: false,
            user: User::default(),
            stalled: false,
            room_is_short: false,
            builds_without_room: 0,
            tasks: TaskLaws::default(),
            abandoned: false,
            stopped: false,
            started: BTreeSet::new(),
            ended: BTreeSet::new(),
            supply: SupplyLaws::default(),
            attempts: BTreeMap::new(),
            lost_baselines: 0,
            open: BTreeMap::new(),
            overdue: BTreeSet::new(),
            lingering: false,
        }
    }

    pub(crate) fn charged(&self) -> Demand {
        let of = |it: &WorkerState| {
            let runners: Bytes = it.runners.values().map(|(owed, _)| *owed).sum();
            Demand { host: it.reserved.max(it.owed + runners), device: it.device_reserved.max(it.device) }
        };
        let of_dead_workers: Bytes =
            self.returning.values().flat_map(|it| it.runners.values()).map(|(owed, _)| *owed).sum();
        let supervisor = Demand::host(self.supervisor.max(self.spec.supervisor) + of_dead_workers);
        supervisor + self.card.charged() + self.workers.values().map(of).sum()
    }

    pub(crate) fn gone(&mut self, now: Moment, worker: WorkerId, left_runners: bool, tape: &mut Tape) {
        let Some(it) = self.workers.remove(&worker) else { return };
        self.card.gone(now, worker, &it, tape);
        if left_runners {
            self.returning.insert(worker, it);
        }
    }

    pub(crate) fn build_without_room(&mut self) {
        self.room_is_short = true;
        self.builds_without_room += 1;
    }

    /// Returns a worker that is alive, or that is dead but has left live runners.
    pub(crate) fn tree_mut(&mut self, worker: WorkerId) -> Option<&mut WorkerState> {
        self.workers.get_mut(&worker).or(self.returning.get_mut(&worker))
    }

    fn alive(&mut self, worker: WorkerId, action: &Action) -> Result<&mut WorkerState, String> {
        self.workers.get_mut(&worker).ok_or_else(|| format!("{action:?}, but it is gone"))
    }

    pub(crate) fn action(&mut self, action: &Action) -> Result<(), String> {
        if self.stopped {
            return Err(format!("{action:?} after the stop"));
        }
        if self.stalled && matches!(action, Action::StartWorker { .. } | Action::Start { .. }) {
            return Err(format!("{action:?} cannot be recorded"));
        }
        match action {
            Action::StartWorker { worker, role } => {
                if !self.started.insert(*worker) {
                    return Err(format!("{worker} is started twice"));
                }
                if self.workers.values().any(WorkerState::is_alone) {
                    return Err(format!("{action:?} beside a profile"));
                }
                let reserved = self.spec.idle_worker;
                self.workers
                    .insert(*worker, WorkerState { role: Some(*role), reserved, ..WorkerState::default() });
            }
            Action::Start { worker, lease, order, attempt, reserved, .. } => {
                self.start(action, *worker, *lease, *order, *attempt, *reserved)?;
            }
            Action::Shutdown { worker } => {
                let it = self.alive(*worker, action)?;
                if it.drained || it.killed || it.lease.is_some() || !it.ready {
                    return Err(format!("{action:?}, but it is {it:?}"));
                }
                it.drained = true;
            }
            Action::KillWorker { worker, .. } => {
                let it = self.alive(*worker, action)?;
                if std::mem::replace(&mut it.killed, true) {
                    return Err(format!("{worker} is killed twice"));
                }
            }
            Action::AllowRunner { worker, pid } => {
                let it = self.alive(*worker, action)?;
                if it.killed || it.lease.is_none() || it.runners.get(pid).is_none_or(|(_, killed)| *killed) {
                    return Err(format!("{action:?}, but it is {it:?}"));
                }
            }
            Action::KillRunner { worker, pid, .. } => {
                let it = self.alive(*worker, action)?;
                match it.runners.get_mut(pid) {
                    Some((_, killed)) if !*killed => *killed = true,
                    other => return Err(format!("{action:?}, but it is {other:?}")),
                }
            }
            Action::MayReap { worker, .. } => {
                self.alive(*worker, action)?;
            }
            Action::AttemptEnded { lease, order, ended, .. } => {
                if self.open.remove(lease) != Some(order.unit) {
                    return Err(format!("{action:?}, but it was not open"));
                }
                self.abandoned |= matches!(ended, AttemptEnd::Abandoned { .. });
            }
            Action::UnitDone { unit, status, .. } => {
                if self.supply.done.insert(*unit, *status).is_some() {
                    return Err(format!("{unit} ends twice"));
                }
            }
            Action::Wanted { job, capacity } => {
                let after = !self.spec.jobs[job.index()].after.is_empty();
                if self.user.open && after && !self.interrupted && !self.user.shut {
                    return Err(format!("{action:?}, and the run is still open"));
                }
                self.supply.wanted(&self.spec, *job, *capacity)?;
            }
            Action::JobDone { job, .. } => self.supply.job_done(*job)?,
            Action::Policy(row) if row.decision == "source_silent" => {
                self.supply.silent(number_of(row, "job"));
            }
            Action::WorkerEnded { worker, .. } => {
                let overdue = self.overdue.remove(worker);
                if !(self.ended.insert(*worker) || overdue) || self.workers.contains_key(worker) {
                    return Err(format!("{action:?} comes too early, or again"));
                }
            }
            Action::BaselineLost { .. } => self.lost_baselines += 1,
            Action::Policy(row) if row.decision == "tasks_short" => self.tasks.pause(row)?,
            Action::Policy(row) if row.decision == "worker_not_gone" => {
                let number = number_of(row, "worker");
                for (worker, it) in &mut self.workers {
                    if Some(u64::from(worker.0)) == number {
                        if !it.killed {
                            return Err(format!("{action:?}, but it was not killed"));
                        }
                        it.reported_overdue = true;
                        // The worker never ends, and the core no longer waits for it.
                        self.ended.insert(*worker);
                        self.overdue.insert(*worker);
                        self.lingering |= it.lease.is_some();
                    }
                }
            }
            Action::Policy(row) if row.decision == "memory_not_returned" => {
                let number = number_of(row, "worker");
                for (worker, it) in &mut self.returning {
                    it.reported_overdue |= Some(u64::from(worker.0)) == number;
                }
            }
            Action::Answered(answer) => {
                self.user.answered(answer, &mut self.spec, &self.supply.units)?;
            }
            Action::Replied(answer) => self.supply.replied(answer)?,
            Action::Policy(_) | Action::PhaseEnded(_) => {}
            Action::Stop { reason } => {
                self.stopped = true;
                match reason {
                    StopReason::Finished if self.user.open && !(self.user.shut || self.interrupted) => {
                        return Err("an open run ended by itself".to_owned());
                    }
                    StopReason::Finished
                        if self.abandoned || !self.user.open && (self.interrupted || self.user.shut) =>
                    {
                        return Err("an interrupted run says that it finished".to_owned());
                    }
                    StopReason::Interrupted if !self.interrupted && !self.user.shut => {
                        return Err("a run that was not interrupted says that it was".to_owned());
                    }
                    StopReason::Finished => self.supply.everything_is_done(&self.spec)?,
                    StopReason::Interrupted | StopReason::HostFailure { .. } => {}
                }
                self.nothing_is_left()?;
            }
        }
        Ok(())
    }

    fn start(
        &mut self,
        action: &Action,
        worker: WorkerId,
        lease: LeaseId,
        order: Order,
        attempt: u32,
        reserved: Bytes,
    ) -> Result<(), String> {
        let (job, unit) =
            self.supply.may_start(order.unit).map_err(|why| format!("{action:?}, but {why}"))?.clone();
        let after = !self.spec.jobs[job.index()].after.is_empty();
        self.user.may_start(order.unit, after).map_err(|why| format!("{action:?}, but {why}"))?;
        let Some(at) = unit.route.iter().position(|step| step.stage == order.stage) else {
            return Err(format!("{action:?}, and there is no such step: {unit:?}"));
        };
        let was_built = unit.resumed.as_deref() == Some(&Resumed::Built) && 1 < unit.route.len();
        if was_built && order.stage == Stage::Build {
            return Err(format!("{action:?}, but an earlier part of the run has built it"));
        }
        // A candidate without a baseline in its job is not screened.
        let is_left_out = |stage| {
            stage != Stage::Screen
                && !(was_built && stage == Stage::Build)
                && !self.attempts.contains_key(&(order.unit, stage))
        };
        if unit.route[..at].iter().any(|step| is_left_out(step.stage)) {
            return Err(format!("{action:?}, and a step before it was left out"));
        }
        if self.room_is_short && order.stage == Stage::Build {
            return Err(format!("{action:?}, but there is no room for a build"));
        }
        self.tasks.may_start().map_err(|why| format!("{action:?}, but {why}"))?;
        let it = self.alive(worker, action)?;
        if !it.ready || it.drained || it.killed || it.lease.is_some() {
            return Err(format!("{action:?}, but it is {it:?}"));
        }
        let step = &unit.route[at];
        if it.role != Some(step.role) {
            return Err(format!("{action:?}, but it is {it:?}"));
        }
        let device = Card::reserved(order, step);
        it.on_device |= device != Bytes::ZERO;
        it.device_reserved = device;
        it.alone = step.exclusive;
        it.lease = Some((lease, order));
        it.leases += 1;
        it.reserved = reserved;
        it.sampled_idle = false;
        if device != Bytes::ZERO {
            self.card.may_start().map_err(|why| format!("{action:?}, but {why}"))?;
        }
        let charged = self.charged();
        if let Some((_, _, ceiling)) = self.spec.ceilings.over(charged) {
            return Err(format!("{action:?}: {charged:?} are charged, the ceiling is {ceiling}"));
        }
        let last = self.attempts.insert((order.unit, order.stage), attempt).unwrap_or(0);
        // A stage has two passes of at most six attempts each: the first attempt, four after losses, and one after a
        // lack of memory. If a baseline failed in the same lease, one more attempt is allowed.
        let most = if order.stage.is_timed() { 12 + self.lost_baselines.min(1) } else { 12 };
        // Each pass also allows one more attempt if memory was still in use on the device.
        let most = most + if device == Bytes::ZERO { 0 } else { 2 };
        let most = most + if order.stage == Stage::Build { self.builds_without_room } else { 0 };
        let most = most + self.tasks.uncounted(order.unit);
        if attempt != last + 1 || most + self.user.recycled_at_once < attempt {
            return Err(format!("{action:?} after attempt {last}"));
        }
        self.open.insert(lease, order.unit);
        let leases = self.workers.values().filter(|it| it.lease.is_some()).count();
        let is_exclusive = self.workers.values().any(WorkerState::is_alone);
        if is_exclusive && 1 < leases {
            return Err(format!("{action:?}: it is not the only lease, and one of them must run alone"));
        }
        if self.spec.verifiers as usize + 1 < leases + usize::from(!is_exclusive) {
            return Err(format!("{action:?}: {leases} leases, {} verifiers", self.spec.verifiers));
        }
        if is_exclusive {
            // While a step runs alone, no verifier may start and no worker may end.
            let starts_or_ends = self
                .workers
                .values()
                .any(|it| it.drained || it.killed || (!it.ready && it.role == Some(Role::Verifier)));
            if starts_or_ends || self.returning.values().any(|it| !it.reported_overdue) {
                return Err(format!("{action:?}: a worker starts or ends beside it"));
            }
        }
        if is_exclusive { self.starts_clean(order) } else { Ok(()) }
    }

    /// Checks law 4 of ARCHITECTURE.md. Each live verifier that has had a lease must have been sampled while idle since
    /// then, and must not have grown by more than the plan allows. The plan may also end verifiers before this profile,
    /// always or because of the amount that they have validated together. In that case, there must be no such verifier
    /// at all.
    fn starts_clean(&self, order: Order) -> Result<(), String> {
        let (job, _) = self.supply.units[order.unit.index()];
        let recycle = &self.spec.jobs[job.index()].recycle;
        let verifiers = || self.workers.iter().filter(|(_, it)| it.role == Some(Role::Verifier));
        let validated: Bytes = verifiers().map(|(_, it)| it.validated).sum();
        for (worker, it) in verifiers() {
            let grown = it.owed - it.owed_when_ready.unwrap_or(it.owed);
            let large = match recycle.before_profile {
                BeforeProfile::Always => true,
                BeforeProfile::Large => recycle.large_job <= validated,
                BeforeProfile::Never => false,
            };
            if 0 < it.leases && (large || !it.sampled_idle || recycle.growth < grown) {
                return Err(format!("{order:?} beside {worker}, which is {it:?}"));
            }
        }
        Ok(())
    }

    /// Checks the device if its ceiling is exceeded: a worker or a runner must be ending, or the core must be waiting
    /// for memory of an ended worker. Unified memory has no separate ceiling, so nothing is checked.
    pub(crate) fn device_is_relieved(&self) -> Result<(), String> {
        if self.spec.ceilings.unified || !self.card.exists() {
            return Ok(());
        }
        let held: Bytes = self.workers.values().map(|it| it.device).sum();
        let on_the_way = self
            .workers
            .values()
            .any(|it| it.killed || it.drained || it.runners.values().any(|(_, killed)| *killed));
        if self.spec.ceilings.device < held
            && !on_the_way
            && self.returning.is_empty()
            && self.card.left.is_empty()
        {
            return Err(format!("{held} are held on the device, and no worker is being ended"));
        }
        Ok(())
    }

    fn nothing_is_left(&self) -> Result<(), String> {
        if self.stalled {
            // A process that could not be killed dies together with the supervisor.
            return Ok(());
        }
        if self.started != self.ended || self.workers.values().any(|it| !it.reported_overdue) {
            return Err(format!("the run stopped before these workers ended: {:?}", self.workers.keys()));
        }
        if !self.open.is_empty() && !self.lingering {
            return Err(format!("the run stopped before these attempts ended: {:?}", self.open));
        }
        Ok(())
    }
}

pub(crate) fn number_of(row: &PolicyRow, wanted: &str) -> Option<u64> {
    row.numbers.iter().find(|(name, _)| *name == wanted).map(|(_, number)| *number)
}
