//! Makes all decisions of a run: `Core::handle` takes an event and returns the actions that follow from it.
//!
//! The core owns the state of jobs, units of work, workers, leases and the ledger. It uses no clock, thread, file, log
//! or channel. The caller passes the current time with every event, and carries out the returned actions.
//! `check_invariants` checks the laws that must hold after every event.

mod assign;
mod contest;
pub mod control;
pub mod device;
mod estimate;
pub mod event;
mod evict;
mod grant;
mod job;
mod ledger;
mod lifecycle;
mod outcome;
pub mod pace;
pub mod predict;
mod pressure;
pub mod recycle;
pub mod request;
pub mod room;
mod roster;
mod sampling;
pub mod spec;
mod stall;
mod supply;
mod tasks;
#[cfg(any(test, feature = "testkit"))]
pub mod testkit;
#[cfg(test)]
mod tests;
mod unit;
mod worker;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::units::Bytes;

use self::assign::{Backoff, PolicySubject};
use self::control::PendingRequests;
use self::device::Device;
use self::estimate::Estimates;
use self::event::{Action, Event, Moment, PolicyRow, Stage, StopReason};
use self::job::Job;
use self::ledger::Ledger;
pub use self::ledger::{Ceilings, Demand, Refusal};
use self::pressure::Machine;
use self::room::RoomForBuilds;
use self::roster::Roster;
use self::spec::RunSpec;
use self::stall::Stall;
use self::tasks::TasksPause;
use self::unit::{Progress, Unit};
use self::worker::{Orphans, State, Worker};

/// The maximum time from the order to start a worker to the worker's hello. On a machine that is swapping, a start can
/// take seconds.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// The maximum time from `Shutdown` to the exit of an idle worker.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// The run stops if this many workers are lost within `FAILURE_WINDOW`, or one after another without a finished attempt
/// in between.
const MAX_FAILURES: usize = 12;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// An attempt that failed through no fault of its unit is a loss. Failures that have a separate limit, such as those
/// for lack of memory, do not count as losses. A lost attempt is repeated, unless its step has now had more than
/// `MAX_LOST` losses within `LOSS_WINDOW`, or more than `MAX_LOST_EVER` in all. A unit's second pass counts from zero.
const MAX_LOST: u32 = 1;
const LOSS_WINDOW: Duration = Duration::from_secs(600);
const MAX_LOST_EVER: u32 = 4;
/// An attempt that ended for lack of memory is repeated once. Unless it is a build, it gets a smaller batch, if there
/// is one.
const MAX_SHORT_OF_MEMORY: u32 = 1;
/// A unit whose attempts lost this many workers in one pass gets no further attempt in that pass.
const MAX_WORKERS_LOST: u32 = 2;
/// How long killed workers may take to die, and how long the runners of dead workers may take to end.
const DEATH_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a lease waits for memory that other programs hold. After this time, the run ends. If the memory is on the
/// device, the run continues, and `without_device` handles the unit.
const MEMORY_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// No further leases are granted, but running attempts may finish.
    Drain(StopReason),
    Kill(StopReason),
    Stopped,
}

/// A lease that was refused for lack of memory. It is requested again after every event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Waiting {
    since: Moment,
    refusal: Refusal,
    /// The unit that needs the lease, and the stage.
    unit: UnitId,
    stage: Stage,
    /// Whether the user has been told that nothing is running because this lease waits.
    is_told: bool,
}

pub struct Core {
    spec: RunSpec,
    /// Indexed by id.
    jobs: Vec<Job>,
    /// Indexed by id.
    units: Vec<Unit>,
    /// The highest turn of any unit.
    last_turn: u32,
    workers: BTreeMap<WorkerId, Worker>,
    /// The living runners that dead workers left behind.
    orphans: BTreeMap<WorkerId, Orphans>,
    ledger: Ledger,
    estimates: Estimates,
    machine: Machine,
    device: Device,
    /// The delay before the next worker of each role may be started.
    backoff: BTreeMap<Role, Backoff>,
    /// The subject and job of each policy row that must not be repeated for this job, because it has been written.
    reported: BTreeSet<(PolicySubject, JobId)>,
    /// No spare is started before this time. Set when memory runs short, on the machine or under the ceiling.
    no_spare_before: Moment,
    next_worker: u32,
    next_lease: u32,
    /// The times at which workers were lost within the last `FAILURE_WINDOW`.
    failures: VecDeque<Moment>,
    /// The number of workers that were lost since a worker last reported the end of an attempt.
    failures_in_a_row: usize,
    /// Set while the next lease waits for memory.
    waiting: Option<Waiting>,
    pending: PendingRequests,
    /// Set while the run's database does not accept rows.
    stall: Option<Stall>,
    room: RoomForBuilds,
    /// Set while no leases are granted because the machine refused to start a process.
    tasks_pause: Option<TasksPause>,
    /// The total length of all such pauses so far.
    tasks_paused: Duration,
    ending: Ending,
    /// When the order to kill everything was given.
    killed_all_at: Option<Moment>,
    /// The actions that follow from the current event.
    actions: Vec<Action>,
}

impl Core {
    /// Creates a core, which does nothing before the first event. The first event should be `Event::Tick`. After that,
    /// samples must arrive even if nothing changes, because a profile waits until the idle verifiers have been sampled.
    pub fn new(spec: RunSpec, first_worker: WorkerId, first_lease: LeaseId) -> Self {
        let jobs = vec![Job::default(); spec.jobs.len()];
        let ledger = Ledger::new(spec.ceilings, spec.floor, spec.supervisor);
        Self {
            spec,
            jobs,
            units: Vec::new(),
            last_turn: 0,
            workers: BTreeMap::new(),
            orphans: BTreeMap::new(),
            ledger,
            estimates: Estimates::default(),
            machine: Machine::default(),
            device: Device::default(),
            backoff: BTreeMap::new(),
            reported: BTreeSet::new(),
            no_spare_before: Moment::ZERO,
            next_worker: first_worker.0.max(1),
            next_lease: first_lease.0.max(1),
            failures: VecDeque::new(),
            failures_in_a_row: 0,
            waiting: None,
            pending: PendingRequests::default(),
            stall: None,
            room: RoomForBuilds::default(),
            tasks_pause: None,
            tasks_paused: Duration::ZERO,
            ending: Ending::No,
            killed_all_at: None,
            actions: Vec::new(),
        }
    }

    /// Handles an event, and returns the actions that follow from it. `now` must not decrease from one call to the
    /// next.
    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Action> {
        if self.ending != Ending::Stopped {
            self.apply(now, event);
            self.handle_deadlines(now);
            self.carry_out_requests(now);
            self.advance(now);
        }
        std::mem::take(&mut self.actions)
    }

    fn apply(&mut self, now: Moment, event: Event) {
        match event {
            Event::WorkerReady { worker } => self.worker_ready(worker),
            Event::WorkerNotReady { worker, why, alive } => self.worker_not_ready(now, worker, &why, alive),
            Event::WorkerGone { worker, how, left_runners } => {
                self.worker_gone(now, worker, &how, left_runners);
            }
            Event::OrphansEnded { worker } => self.orphans_ended(now, worker),
            Event::RunnerStarted { worker, lease, pid, limit, shared } => {
                self.runner_started(worker, lease, pid, limit, shared);
            }
            Event::KillWanted { worker, pid, reason } => self.kill_runner(worker, pid, reason),
            Event::RunnerDied { worker, pid } => self.runner_died(worker, pid),
            Event::Finished { worker, lease, report } => self.finished(now, worker, lease, report),
            Event::WorkerFault { worker, detail } => self.worker_fault(worker, detail),
            Event::Sample(sample) => self.sampled(now, &sample),
            Event::DeviceSample(sample) => self.device_sampled(now, &sample),
            Event::DeviceLost { why } => self.device_lost(why),
            Event::Pressure => self.pressure(now),
            Event::Room(room) => self.room_read(now, room),
            Event::Offered { job, units, by } => {
                let answer = self.offered(job, units, by);
                self.actions.push(Action::Replied(answer));
            }
            Event::Withdrawn { unit } => {
                let answer = self.withdrawn(unit);
                self.actions.push(Action::Replied(answer));
            }
            Event::Control(request) => self.control(now, request),
            Event::Interrupt => self.interrupt(now),
            Event::KillSent { worker } => self.kill_sent(now, worker),
            Event::StoreStalled { why, rows } => self.store_stalled(now, why, rows),
            Event::StoreBack { samples_dropped } => self.store_back(now, samples_dropped),
            Event::Tick => {}
        }
    }

    fn policy(&mut self, decision: &'static str, reason: String, numbers: Vec<(&'static str, u64)>) {
        self.actions.push(Action::Policy(PolicyRow { decision, reason, numbers }));
    }

    fn unit(&self, id: UnitId) -> &Unit {
        &self.units[id.index()]
    }

    /// Changes a unit and updates its job's roster. All changes to units must go through this function.
    fn change<R>(&mut self, id: UnitId, change: impl FnOnce(&mut Unit) -> R) -> R {
        let unit = &mut self.units[id.index()];
        let roster = &mut self.jobs[unit.job.index()].roster;
        roster.leave(unit);
        let changed = change(unit);
        roster.enter(unit);
        changed
    }

    fn units_of(&self, job: usize) -> impl Iterator<Item = &Unit> + Clone {
        self.jobs[job].units.iter().map(|&id| self.unit(id))
    }

    pub fn reserved_for_supervisor(&self) -> Bytes {
        self.ledger.reserved_for_supervisor()
    }

    pub fn lease_of(&self, worker: WorkerId) -> Option<LeaseId> {
        self.workers.get(&worker)?.lease().map(|lease| lease.id)
    }

    /// Returns the time at which the core needs an event even if nothing has happened by then.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.workers
            .values()
            .filter(|it| it.killed.is_none())
            .filter_map(Worker::deadline)
            .chain(self.workers.values().filter(|it| !it.overdue).filter_map(Worker::dead_by))
            .chain(self.memory_timeout_at())
            .chain(self.room_timeout_at().filter(|_| self.ending == Ending::No))
            .chain(self.tasks_pause.map(|pause| pause.until).filter(|_| self.ending == Ending::No))
            .chain(self.source_deadlines().filter(|_| self.ending == Ending::No))
            .chain(self.backoff.values().filter_map(|backoff| backoff.until))
            .chain(self.orphans.values().filter(|it| !it.overdue).map(|it| it.since + DEATH_TIMEOUT))
            .chain(self.device.next_deadline())
            .chain(self.stall_ends_at().filter(|_| self.ending != Ending::Stopped))
            .min()
    }

    /// Returns the time at which the wait for memory times out. The timeout does not apply while a worker of this run
    /// holds a lease, because each lease has a deadline and frees memory when it ends.
    fn memory_timeout_at(&self) -> Option<Moment> {
        let ours = self.workers.values().any(|it| it.lease().is_some());
        self.waiting.filter(|_| !ours).map(|waiting| waiting.since + MEMORY_TIMEOUT)
    }

    fn handle_deadlines(&mut self, now: Moment) {
        let late: Vec<WorkerId> = self
            .workers
            .iter()
            .filter(|(_, it)| it.killed.is_none())
            .filter(|(_, it)| it.deadline().is_some_and(|deadline| deadline <= now))
            .map(|(&worker, _)| worker)
            .collect();
        for worker in late {
            self.report_late(worker);
            self.kill_worker(worker, KillReason::Deadline);
        }
        self.orphans_overdue(now);
        self.death_overdue(now);
        self.device_overdue(now);
        self.sources_overdue(now);
        self.stall_overdue(now);
        self.room_overdue(now);
        self.tasks_pause_overdue(now);
        for backoff in self.backoff.values_mut() {
            backoff.expire(now);
        }
        if let Some(Waiting { refusal, unit, .. }) = self.waiting
            && self.memory_timeout_at().is_some_and(|at| at <= now)
            && self.ending == Ending::No
        {
            if let Refusal::DeviceInUse { .. } = refusal {
                self.waiting = None;
                return self.without_device(unit, format!("other processes use the device: {refusal}"));
            }
            let why = format!("the next lease has waited for memory for {MEMORY_TIMEOUT:?}: {refusal}");
            self.stop_for_the_host(now, why, refusal.numbers());
        }
    }

    fn report_late(&mut self, worker: WorkerId) {
        let Some(it) = self.workers.get(&worker) else { return };
        let ms = |time: Moment| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let (reason, given) = match &it.state {
            State::Leased(lease) => {
                (format!("{} did not finish in time", lease.id), lease.deadline.saturating_sub(lease.started))
            }
            State::Starting { deadline } => {
                ("the worker was not ready in time".to_owned(), deadline.saturating_sub(it.born))
            }
            _ => ("the worker did not end in time after its drain order".to_owned(), DRAIN_DEADLINE),
        };
        let mut numbers = vec![("worker", u64::from(worker.0)), ("deadline_ms", ms(given))];
        if let Some(lease) = it.lease() {
            numbers.insert(1, ("lease", u64::from(lease.id.0)));
        }
        self.policy("kill_worker", reason, numbers);
    }

    fn interrupt(&mut self, now: Moment) {
        match self.ending {
            Ending::No => self.drain(now),
            Ending::Drain(_) => self.end(now, Ending::Kill(self.reason_to_end())),
            Ending::Kill(_) | Ending::Stopped => {}
        }
    }

    fn stop_for_the_host(&mut self, now: Moment, why: String, numbers: Vec<(&'static str, u64)>) {
        self.policy("stop", why.clone(), numbers);
        self.end(now, Ending::Kill(StopReason::HostFailure { why }));
    }

    fn end(&mut self, now: Moment, ending: Ending) {
        self.waiting = None;
        self.ending = ending;
        let Some(reason) = self.reason_for_killing_all() else { return };
        self.killed_all_at = Some(now);
        let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
        for worker in workers {
            self.kill_runners(worker, reason);
            self.kill_worker(worker, reason);
        }
    }

    /// Returns the reason for killing everything, if everything is being killed.
    fn reason_for_killing_all(&self) -> Option<KillReason> {
        match &self.ending {
            Ending::Kill(StopReason::HostFailure { .. }) => Some(KillReason::RunStopped),
            Ending::Kill(StopReason::Interrupted | StopReason::Finished) => Some(KillReason::Interrupted),
            Ending::No | Ending::Drain(_) | Ending::Stopped => None,
        }
    }

    /// Checks that each job's roster agrees with its units. Unlike `check_invariants`, it visits all units.
    pub fn check_rosters(&self) -> Result<(), String> {
        for (spec, job) in self.spec.jobs.iter().zip(&self.jobs) {
            let units = job.units.iter().map(|id| self.unit(*id));
            if job.roster != Roster::of(units) {
                return Err(format!("the roster of {} differs from its units", spec.id));
            }
        }
        Ok(())
    }

    /// Checks the laws that hold after every event. It visits the workers and jobs, but not each unit.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut running = 0;
        for (worker, it) in &self.workers {
            if !self.ledger.has_account(*worker) {
                return Err(format!("{worker} is alive but not charged"));
            }
            let Some(lease) = it.lease() else { continue };
            running += 1;
            let Some(unit) = self.units.get(lease.order.unit.index()) else {
                return Err(format!("{worker} holds {lease:?} but its unit does not exist"));
            };
            let progress = (unit.step().stage, unit.progress);
            if progress != (lease.order.stage, Progress::Running { attempt: lease.attempt }) {
                return Err(format!("{worker} holds {lease:?} but its unit is {progress:?}"));
            }
            if it.role != unit.step().role {
                return Err(format!("{worker} is a {} but holds {lease:?}", it.role.name()));
            }
        }
        if let Some(worker) = self.orphans.keys().find(|&&worker| !self.ledger.has_account(worker)) {
            return Err(format!("{worker} has left processes behind but is not charged"));
        }
        if let Some(worker) = self.device.with_unreturned().find(|&worker| !self.ledger.has_account(worker)) {
            return Err(format!("{worker} has left memory on the device but is not charged"));
        }
        let orphans = self.orphans.keys().copied();
        let gone: BTreeSet<WorkerId> = orphans.chain(self.device.with_unreturned()).collect();
        if self.ledger.account_count() != self.workers.len() + gone.len() {
            return Err("a worker that has ended is still charged".to_owned());
        }
        let running_units: usize = self.jobs.iter().map(|job| job.roster.running_count()).sum();
        if running_units != running {
            return Err(format!("{running_units} units are running and {running} leases are held"));
        }
        let mut held = self.workers.values().filter_map(Worker::lease);
        if 1 < running && held.any(|lease| self.unit(lease.order.unit).step().exclusive) {
            return Err("an exclusive step runs beside another one".to_owned());
        }
        if let Some((spec, _)) =
            self.spec.jobs.iter().zip(&self.jobs).find(|(_, job)| job.done && !job.is_exhausted())
        {
            return Err(format!("{} is over, but it has open units or its source may offer more", spec.id));
        }
        for role in [Role::Verifier, Role::Profiler] {
            let held = self.workers.values().filter(|it| it.role == role && it.lease().is_some()).count();
            let max_leases = if role == Role::Verifier { self.spec.verifiers.max(1) } else { 1 };
            if (max_leases as usize) < held {
                let role = role.name();
                return Err(format!("{role}s hold {held} leases, the limit is {max_leases}"));
            }
        }
        let stopping = matches!(self.ending, Ending::Kill(_));
        if let Some((worker, _)) = self.workers.iter().find(|(_, it)| stopping && it.killed.is_none()) {
            return Err(format!("everything is being killed, but not {worker}"));
        }
        Ok(())
    }
}
