//! What holds of the actions, seen from outside: kept from the events and actions alone, the core is not asked.

use std::collections::{BTreeMap, BTreeSet};

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::user::User;
use crate::core::event::{Action, AttemptEnd, Order, Stage, StopReason};
use crate::core::spec::RunSpec;

/// A worker that lives, as far as actions and events tell.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) role: Option<Role>,
    pub(super) ready: bool,
    pub(super) told: bool,
    pub(super) killed: bool,
    pub(super) lease: Option<(LeaseId, Order)>,
    pub(super) leases: u32,
    pub(super) reserved: Bytes,
    pub(super) owed: Bytes,
    pub(super) owed_when_ready: Option<Bytes>,
    pub(super) sampled_idle: bool,
    pub(super) validated: Bytes,
    /// Reported and neither dead nor left behind: what was seen of it, and whether it was killed.
    pub(super) runners: BTreeMap<u32, (Bytes, bool)>,
}

pub(super) struct Laws {
    pub(super) spec: RunSpec,
    pub(super) workers: BTreeMap<WorkerId, Seen>,
    pub(super) supervisor: Bytes,
    pub(super) interrupted: bool,
    pub(super) user: User,
    abandoned: bool,
    pub(super) stopped: bool,
    started: BTreeSet<WorkerId>,
    ended: BTreeSet<WorkerId>,
    done: BTreeSet<CandidateId>,
    attempts: BTreeMap<(CandidateId, Stage), u32>,
    lost_baselines: u32,
    open: BTreeMap<LeaseId, CandidateId>,
}

impl Laws {
    pub(super) fn new(spec: RunSpec) -> Self {
        Self {
            spec,
            workers: BTreeMap::new(),
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
        }
    }

    pub(super) fn charged(&self) -> Bytes {
        let of = |it: &Seen| {
            let runners: Bytes = it.runners.values().map(|(owed, _)| *owed).sum();
            it.reserved.max(it.owed + runners)
        };
        self.supervisor + self.workers.values().map(of).sum()
    }

    fn alive(&mut self, worker: WorkerId, action: &Action) -> Result<&mut Seen, String> {
        self.workers.get_mut(&worker).ok_or_else(|| format!("{action:?}, but it is gone"))
    }

    pub(super) fn action(&mut self, action: &Action) -> Result<(), String> {
        if self.stopped {
            return Err(format!("{action:?} after the stop"));
        }
        match action {
            Action::StartWorker { worker, role } => {
                if !self.started.insert(*worker) {
                    return Err(format!("{worker} is started twice"));
                }
                let reserved = self.spec.idle_worker;
                self.workers.insert(*worker, Seen { role: Some(*role), reserved, ..Seen::default() });
            }
            Action::Start { worker, lease, order, attempt, reserved } => {
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
                if !self.ended.insert(*worker) || self.workers.contains_key(worker) {
                    return Err(format!("{action:?} comes too early, or again"));
                }
            }
            Action::Policy(row) if row.decision == "baseline_lost" => self.lost_baselines += 1,
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
            Stage::Profile => Role::Profiler,
        };
        if it.role != Some(right) {
            return Err(format!("{action:?}, but it is {it:?}"));
        }
        it.lease = Some((lease, order));
        it.leases += 1;
        it.reserved = reserved;
        it.sampled_idle = false;
        let (charged, ceiling) = (self.charged(), self.spec.ceiling);
        if ceiling < charged {
            return Err(format!("{action:?}: {charged} are charged, the ceiling is {ceiling}"));
        }
        let last = self.attempts.insert((order.candidate(), order.stage()), attempt).unwrap_or(0);
        let most = if order.stage() == Stage::Profile { 2 + self.lost_baselines } else { 2 };
        if attempt != last + 1 || most.min(3) + self.user.recycled_at_once < attempt {
            return Err(format!("{action:?} after attempt {last}"));
        }
        if self.done.contains(&order.candidate()) {
            return Err(format!("{action:?}, but it is done"));
        }
        self.user.may_start(order.candidate()).map_err(|why| format!("{action:?}, but {why}"))?;
        self.open.insert(lease, order.candidate());
        let leases = self.workers.values().filter(|it| it.lease.is_some()).count();
        let profiling = self
            .workers
            .values()
            .any(|it| it.lease.is_some_and(|(_, order)| order.stage() == Stage::Profile));
        if profiling && 1 < leases {
            return Err(format!("{action:?}: not alone while a profiler holds a lease"));
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
        if self.started != self.ended || !self.workers.is_empty() {
            return Err(format!("stopped beside living workers: {:?}", self.workers.keys()));
        }
        if !self.open.is_empty() {
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
