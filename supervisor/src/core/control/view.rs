//! Provides the core's state to clients as plain data, and the answer to the request `why`, which says why a unit
//! waits.

use std::time::Duration;

use opt_shared::ids::{LeaseId, UnitId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use opt_shared::room::Room;
use opt_shared::units::Bytes;

use crate::core::event::{Moment, Stage};
use crate::core::unit::{Progress, Unit};
use crate::core::worker::{State, Worker};
use crate::core::{Core, Ending};

/// The state of the run. All amounts of memory are on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub paused: bool,
    /// Whether the run waits for submissions when all jobs are over.
    pub stays_open: bool,
    /// `no`, `drain` or `now`.
    pub ending: &'static str,
    pub ceiling: Bytes,
    pub floor: Bytes,
    pub charged: Bytes,
    pub owed: Bytes,
    /// The time at which the run began to wait, and what it waits for: the database, processes, room for builds, or
    /// memory for the next lease.
    pub waiting: Option<(Moment, String)>,
    pub room: Room,
}

/// The state of a worker. All amounts of memory are on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    pub id: WorkerId,
    pub role: Role,
    /// `starting`, `idle`, `leased`, `draining` or `terminating`.
    pub state: &'static str,
    pub age: Duration,
    pub leases: u32,
    pub owed: Bytes,
    pub peak_owed: Bytes,
    pub charged: Bytes,
    pub validated: Bytes,
    pub runners: Vec<RunnerView>,
    pub lease: Option<LeaseView>,
    /// Whether the worker is being ended, or will be ended after its lease.
    pub asked_to_go: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunnerView {
    pub pid: u32,
    pub limit: Bytes,
    pub owed: Bytes,
    pub peak_owed: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseView {
    pub id: LeaseId,
    pub unit: UnitId,
    pub stage: Stage,
    pub attempt: u32,
    /// The time since the lease was granted.
    pub held: Duration,
    /// The time left until the worker is assumed to be stuck.
    pub left: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnitView {
    Waiting { stage: Stage, attempt: u32 },
    Running { stage: Stage, attempt: u32 },
    Done(Status),
}

impl Core {
    pub fn run_view(&self) -> RunView {
        RunView {
            paused: self.pending.paused,
            stays_open: self.pending.stays_open,
            ending: match self.ending {
                Ending::No => "no",
                Ending::Drain(_) => "drain",
                Ending::Kill(_) | Ending::Stopped => "now",
            },
            ceiling: self.ledger.ceilings().host,
            floor: self.ledger.floor(),
            charged: self.ledger.charged().host,
            owed: self.ledger.owed().host,
            room: self.room.latest,
            waiting: self
                .stall
                .map(|stall| (stall.since, "the run's database to accept rows".to_owned()))
                .or_else(|| {
                    let pause = self.tasks_pause?;
                    Some((pause.since, "the machine to allow more processes".to_owned()))
                })
                .or_else(|| {
                    let held = self.held_builds()?;
                    Some((held.since, format!("room for builds: {}", held.what)))
                })
                .or_else(|| {
                    self.waiting.map(|waiting| (waiting.since, format!("memory: {}", waiting.refusal)))
                }),
        }
    }

    pub fn worker_views(&self, now: Moment) -> Vec<WorkerView> {
        self.workers.iter().map(|(&id, it)| self.worker_view(now, id, it)).collect()
    }

    fn worker_view(&self, now: Moment, id: WorkerId, it: &Worker) -> WorkerView {
        WorkerView {
            id,
            role: it.role,
            state: match &it.state {
                State::Starting { .. } => "starting",
                State::Idle => "idle",
                State::Leased(_) => "leased",
                State::Draining { .. } => "draining",
                State::Terminating => "terminating",
            },
            age: now.saturating_sub(it.born),
            leases: it.leases,
            owed: it.tree_owed(),
            peak_owed: it.peak_owed,
            charged: self.ledger.charge(id).host,
            validated: it.validated,
            runners: it
                .runners
                .iter()
                .map(|(&pid, runner)| RunnerView {
                    pid,
                    limit: runner.limit,
                    owed: runner.owed + runner.shared,
                    peak_owed: runner.peak_owed,
                })
                .collect(),
            lease: it.lease().map(|lease| LeaseView {
                id: lease.id,
                unit: lease.order.unit,
                stage: lease.order.stage,
                attempt: lease.attempt,
                held: now.saturating_sub(lease.started),
                left: lease.deadline.saturating_sub(now),
            }),
            asked_to_go: self.pending.recycle.contains(&id)
                || it.drain_order.is_some()
                || it.killed.is_some(),
        }
    }

    pub fn unit_view(&self, id: UnitId) -> Option<UnitView> {
        let unit = self.units.get(id.index())?;
        let stage = unit.step().stage;
        Some(match unit.progress {
            Progress::Waiting { attempt } => UnitView::Waiting { stage, attempt },
            Progress::Running { attempt } => UnitView::Running { stage, attempt },
            Progress::Done(status) => UnitView::Done(status),
        })
    }

    /// Returns why a unit waits, as the end of a sentence. The text also states the size of the lease that the unit
    /// needs. `name_of` returns the names of other units.
    pub fn wait_reason(&self, now: Moment, id: UnitId, name_of: impl Fn(UnitId) -> String) -> Option<String> {
        let UnitView::Waiting { stage, .. } = self.unit_view(id)? else { return None };
        let unit = self.unit(id);
        let paired = self.jobs[unit.job.index()].is_beside_a_baseline(id);
        let needs = unit.step().least(paired)?.demand(self.spec.idle_worker).host;
        let lease = format!("stage `{}` needs a lease of {needs}", stage.name());
        let (charged, ceiling) = (self.ledger.charged().host, self.ledger.ceilings().host);
        let lease_of = |it: &Worker| it.lease().map(|held| (held.id, held.order, held.started));
        let reason = if self.ending != Ending::No {
            "the run is ending".to_owned()
        } else if self.pending.paused {
            "the run is paused".to_owned()
        } else if let Some(stall) = self.stall {
            let since = now.saturating_sub(stall.since).as_secs();
            format!("the run's database has accepted no rows for {since} s")
        } else if self.tasks_pause.is_some() {
            "the machine refused a process or thread a moment ago".to_owned()
        } else if let Some(short) = self.room.short
            && stage == Stage::Build
        {
            let since = now.saturating_sub(short.since).as_secs();
            format!("there has been no room for builds for {since} s: {}", short.what)
        } else if let Some(waiting) = self.waiting {
            let since = now.saturating_sub(waiting.since).as_secs();
            format!("the next lease has been waiting for memory for {since} s: {}", waiting.refusal)
        } else if let Some((id, order, started)) = self.workers.values().find_map(lease_of) {
            let since = now.saturating_sub(started).as_secs_f64();
            format!(
                "{id} ({} of {}) has been running for {since:.1} s",
                order.stage.name(),
                name_of(order.unit)
            )
        } else {
            match self.workers.values().filter(|it| !it.is_idle()).count() {
                1 => "1 worker is starting or ending".to_owned(),
                moving => format!("{moving} workers are starting or ending"),
            }
        };
        let before = match self.ahead_of(id) {
            1 => "1 candidate is ahead of it".to_owned(),
            before => format!("{before} candidates are ahead of it"),
        };
        Some(format!("{lease}, {charged} of {ceiling} are charged, {before}, and {reason}"))
    }

    /// Returns how many open units come before this one if units are ordered by turn, job, stage and number. The count
    /// ignores that faster candidates are timed first.
    fn ahead_of(&self, id: UnitId) -> usize {
        let order =
            |unit: &Unit| (!unit.is_done()).then(|| (unit.turn, unit.job, unit.step().stage, unit.spec.id));
        let own_order = order(self.unit(id));
        self.units.iter().filter(|unit| order(unit).is_some_and(|it| Some(it) < own_order)).count()
    }
}
