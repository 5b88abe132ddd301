//! What holds of the actions, seen from outside: kept from the events and actions alone, the core is not asked.

use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use opt_supervisor::core::Demand;
use opt_supervisor::core::event::{Action, AttemptEnd, Order, Stage, StopReason};
use opt_supervisor::core::spec::RunSpec;

use super::user::User;

/// A worker that lives, as far as actions and events tell.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) role: Option<Role>,
    pub(crate) ready: bool,
    pub(crate) told: bool,
    pub(crate) killed: bool,
    /// It was said that what it left does not go.
    pub(crate) told_overdue: bool,
    pub(crate) lease: Option<(LeaseId, Order)>,
    pub(crate) leases: u32,
    pub(crate) reserved: Bytes,
    pub(crate) owed: Bytes,
    pub(crate) owed_when_ready: Option<Bytes>,
    pub(crate) sampled_idle: bool,
    pub(crate) validated: Bytes,
    /// Reported and neither dead nor left behind: what was seen of it, and whether it was killed.
    pub(crate) runners: BTreeMap<u32, (Bytes, bool)>,
}

impl Seen {
    fn profiles(&self) -> bool {
        self.lease.is_some_and(|(_, order)| order.stage() == Stage::Profile)
    }
}

pub(crate) struct Laws {
    pub(crate) spec: RunSpec,
    pub(crate) workers: BTreeMap<WorkerId, Seen>,
    /// Dead, with runners that are not.
    pub(crate) returning: BTreeMap<WorkerId, Seen>,
    pub(crate) supervisor: Bytes,
    pub(crate) interrupted: bool,
    pub(crate) user: User,
    abandoned: bool,
    pub(crate) stopped: bool,
    started: BTreeSet<WorkerId>,
    ended: BTreeSet<WorkerId>,
    done: BTreeSet<CandidateId>,
    attempts: BTreeMap<(CandidateId, Stage), u32>,
    lost_baselines: u32,
    open: BTreeMap<LeaseId, CandidateId>,
    /// Killed workers that do not die, and whether one of them holds a lease.
    overdue: BTreeSet<WorkerId>,
    lingering: bool,
}

impl Laws {
    pub(crate) fn new(spec: RunSpec) -> Self {
        Self {
            spec,
            workers: BTreeMap::new(),
            returning: BTreeMap::new(),
            supervisor: Bytes::ZERO,
            interrupted: false,
            user: User::default(),
            abandoned: false,
            stopped: false,
            started: BTreeSet::new(),
            ended: BTreeSet::new(),
            done: BTreeSet::new(),
            attempts: BTreeMap::new(),
            lost_baselines: 0,
            open: BTreeMap::new(),
            overdue: BTreeSet::new(),
            lingering: false,
        }
    }

    pub(crate) fn charged(&self) -> Bytes {
        let of = |it: &Seen| {
            let runners: Bytes = it.runners.values().map(|(owed, _)| *owed).sum();
            it.reserved.max(it.owed + runners)
        };
        let left: Bytes =
            self.returning.values().flat_map(|it| it.runners.values()).map(|(owed, _)| *owed).sum();
        self.supervisor.max(self.spec.supervisor) + left + self.workers.values().map(of).sum()
    }

    pub(crate) fn gone(&mut self, worker: WorkerId, left_runners: bool) {
        if let Some(it) = self.workers.remove(&worker)
            && left_runners
        {
            self.returning.insert(worker, it);
        }
    }

    pub(crate) fn tree_mut(&mut self, worker: WorkerId) -> Option<&mut Seen> {
        self.workers.get_mut(&worker).or(self.returning.get_mut(&worker))
    }

    fn alive(&mut self, worker: WorkerId, action: &Action) -> Result<&mut Seen, String> {
        self.workers.get_mut(&worker).ok_or_else(|| format!("{action:?}, but it is gone"))
    }

    pub(crate) fn action(&mut self, action: &Action) -> Result<(), String> {
        if self.stopped {
            return Err(format!("{action:?} after the stop"));
        }
        match action {
            Action::StartWorker { worker, role } => {
                if !self.started.insert(*worker) {
                    return Err(format!("{worker} is started twice"));
                }
                if self.workers.values().any(Seen::profiles) {
                    return Err(format!("{action:?} beside a profile"));
                }
                let reserved = self.spec.idle_worker;
                self.workers.insert(*worker, Seen { role: Some(*role), reserved, ..Seen::default() });
            }
            Action::Start { worker, lease, order, attempt, reserved, .. } => {
                self.start(action, *worker, *lease, *order, *attempt, *reserved)?;
            }
            Action::Shutdown { worker } => {
                let it = self.alive(*worker, action)?;
                if it.told || it.killed || it.lease.is_some() || !it.ready {
                    return Err(format!("{action:?}, but it is {it:?}"));
                }
                it.told = true;
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
                if self.open.remove(lease) != Some(order.candidate()) {
                    return Err(format!("{action:?}, but it was not open"));
                }
                self.abandoned |= matches!(ended, AttemptEnd::Abandoned { .. });
            }
            Action::CandidateDone { candidate, .. } => {
                if !self.done.insert(*candidate) {
                    return Err(format!("{candidate} ends twice"));
                }
            }
            Action::WorkerEnded { worker, .. } => {
                let overdue = self.overdue.remove(worker);
                if !(self.ended.insert(*worker) || overdue) || self.workers.contains_key(worker) {
                    return Err(format!("{action:?} comes too early, or again"));
                }
            }
            Action::Policy(row) if row.decision == "baseline_lost" => self.lost_baselines += 1,
            Action::Policy(row) if row.decision == "worker_not_gone" => {
                let number =
                    row.numbers.iter().find(|(name, _)| *name == "worker").map(|(_, number)| *number);
                for (worker, it) in &mut self.workers {
                    if Some(u64::from(worker.0)) == number {
                        if !it.killed {
                            return Err(format!("{action:?}, but it was not killed"));
                        }
                        it.told_overdue = true;
                        // It never ends: nobody waits for that.
                        self.ended.insert(*worker);
                        self.overdue.insert(*worker);
                        self.lingering |= it.lease.is_some();
                    }
                }
            }
            Action::Policy(row) if row.decision == "memory_not_returned" => {
                let number =
                    row.numbers.iter().find(|(name, _)| *name == "worker").map(|(_, number)| *number);
                for (worker, it) in &mut self.returning {
                    it.told_overdue |= Some(u64::from(worker.0)) == number;
                }
            }
            Action::Answered(answer) => self.user.answered(answer, &mut self.spec)?,
            Action::Policy(_) | Action::PhaseEnded(_) | Action::JobDone { .. } => {}
            Action::Stop { reason } => {
                self.stopped = true;
                match reason {
                    StopReason::Finished if self.user.open && !(self.user.shut || self.interrupted) => {
                        return Err("an open run ends by itself".to_owned());
                    }
                    StopReason::Finished
                        if self.abandoned || !self.user.open && (self.interrupted || self.user.shut) =>
                    {
                        return Err("an interrupted run says that it finished".to_owned());
                    }
                    StopReason::Interrupted if !self.interrupted && !self.user.shut => {
                        return Err("nobody interrupted it".to_owned());
                    }
                    StopReason::Finished => self.everything_is_done()?,
                    StopReason::Interrupted | StopReason::HostTrouble { .. } => {}
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
        let it = self.alive(worker, action)?;
        if !it.ready || it.told || it.killed || it.lease.is_some() {
            return Err(format!("{action:?}, but it is {it:?}"));
        }
        let right = match order.stage() {
            Stage::Build | Stage::Verify => Role::Verifier,
            Stage::Profile | Stage::Replay => Role::Profiler,
        };
        if it.role != Some(right) {
            return Err(format!("{action:?}, but it is {it:?}"));
        }
        it.lease = Some((lease, order));
        it.leases += 1;
        it.reserved = reserved;
        it.sampled_idle = false;
        let charged = self.charged();
        if let Some((_, _, ceiling)) = self.spec.ceilings.over(Demand::host(charged)) {
            return Err(format!("{action:?}: {charged} are charged, the ceiling is {ceiling}"));
        }
        let last = self.attempts.insert((order.candidate(), order.stage()), attempt).unwrap_or(0);
        // One more for a loss, one for a want of memory, one for a baseline that failed beside it.
        let most = if order.stage() == Stage::Profile { 3 + self.lost_baselines.min(1) } else { 3 };
        if attempt != last + 1 || most + self.user.recycled_at_once < attempt {
            return Err(format!("{action:?} after attempt {last}"));
        }
        if self.done.contains(&order.candidate()) {
            return Err(format!("{action:?}, but it is done"));
        }
        self.user.may_start(order.candidate()).map_err(|why| format!("{action:?}, but {why}"))?;
        self.open.insert(lease, order.candidate());
        let leases = self.workers.values().filter(|it| it.lease.is_some()).count();
        let profiling = self.workers.values().any(Seen::profiles);
        if profiling && 1 < leases {
            return Err(format!("{action:?}: not alone while a profiler holds a lease"));
        }
        if self.spec.verifiers as usize + 1 < leases + usize::from(!profiling) {
            return Err(format!("{action:?}: {leases} leases, {} verifiers", self.spec.verifiers));
        }
        if profiling {
            // Law of the clock: nobody is born or dies beside a profile.
            let restless = self
                .workers
                .values()
                .any(|it| it.told || it.killed || (!it.ready && it.role == Some(Role::Verifier)));
            if restless || self.returning.values().any(|it| !it.told_overdue) {
                return Err(format!("{action:?}: somebody starts or ends beside it"));
            }
        }
        if order.stage() == Stage::Profile { self.profile_starts_clean(order) } else { Ok(()) }
    }

    /// Law 4.
    fn profile_starts_clean(&self, order: Order) -> Result<(), String> {
        let job = self.spec.candidates[order.candidate().index()].job;
        let recycle = &self.spec.jobs[job.index()].recycle;
        for (worker, it) in self.workers.iter().filter(|(_, it)| it.role == Some(Role::Verifier)) {
            let grown = it.owed - it.owed_when_ready.unwrap_or(it.owed);
            let large = match recycle.before_profile {
                BeforeProfile::Always => true,
                BeforeProfile::Large => recycle.large_job <= it.validated,
                BeforeProfile::Never => false,
            };
            if 0 < it.leases && (large || !it.sampled_idle || recycle.growth < grown) {
                return Err(format!("{order:?} beside {worker}, which is {it:?}"));
            }
        }
        Ok(())
    }

    fn nothing_is_left(&self) -> Result<(), String> {
        if self.started != self.ended || self.workers.values().any(|it| !it.told_overdue) {
            return Err(format!("stopped beside living workers: {:?}", self.workers.keys()));
        }
        if !self.open.is_empty() && !self.lingering {
            return Err(format!("attempts without an end: {:?}", self.open));
        }
        Ok(())
    }

    fn everything_is_done(&self) -> Result<(), String> {
        let resumed = self.spec.candidates.iter().filter(|it| it.resumed.is_some()).count();
        if self.done.len() + resumed == self.spec.candidates.len() {
            Ok(())
        } else {
            Err(format!("finished, and only {:?} are done", self.done))
        }
    }
}
