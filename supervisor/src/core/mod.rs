//! All decisions of a run, pure: `handle(now, event)` gives actions.
//!
//! Owns the truth about jobs, candidates, workers, leases and the ledger. No clock, thread, file, log or channel:
//! `now` comes in with every event, and everything that is to happen goes out as an action. `check_invariants`
//! states the laws that must hold after every step.

pub mod event;
mod grant;
mod job;
mod ledger;
mod outcome;
pub mod predict;
pub mod recycle;
pub mod spec;
mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::message::{KillReason, Role};
use opt_shared::units::Bytes;

use self::event::{Action, Event, Moment, PolicyRow, Process, Sample, StopReason, WorkerEndClass};
use self::job::Candidate;
use self::ledger::Ledger;
use self::spec::RunSpec;
use self::worker::{Runner, State, Worker};

/// From exec to hello. A machine that swaps can need seconds.
const START_DEADLINE: Duration = Duration::from_secs(30);
/// From Shutdown to the end: the worker is idle, so this is a process exit.
const DRAIN_DEADLINE: Duration = Duration::from_secs(10);
/// Restart intensity, as in OTP: this many workers lost in the window stop the run upward.
const MOST_FAILURES: usize = 8;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// An attempt that failed for no fault of the candidate is done again once.
const MOST_ATTEMPTS: u32 = 2;

/// How the run is going to end.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Ending {
    No,
    /// No more grants; what runs may finish.
    Drain(StopReason),
    /// Everything is killed.
    Kill(StopReason),
    Stopped,
}

pub struct Core {
    spec: RunSpec,
    candidates: Vec<Candidate>,
    job_done: Vec<bool>,
    workers: BTreeMap<WorkerId, Worker>,
    ledger: Ledger,
    next_worker: u32,
    next_lease: u32,
    failures: VecDeque<Moment>,
    ending: Ending,
    /// The last refusal that was written down, so that a wait is one row and not a thousand.
    refused: Option<LeaseId>,
    actions: Vec<Action>,
}

impl Core {
    /// Nothing happens before the first event: send `Event::Tick`.
    pub fn new(spec: RunSpec, first_worker: WorkerId, first_lease: LeaseId) -> Self {
        let candidates = spec.candidates.iter().map(Candidate::new).collect();
        let job_done = vec![false; spec.jobs.len()];
        let ledger = Ledger::new(spec.ceiling, spec.floor);
        Self {
            spec,
            candidates,
            job_done,
            workers: BTreeMap::new(),
            ledger,
            next_worker: first_worker.0.max(1),
            next_lease: first_lease.0.max(1),
            failures: VecDeque::new(),
            ending: Ending::No,
            refused: None,
            actions: Vec::new(),
        }
    }

    pub fn handle(&mut self, now: Moment, event: Event) -> Vec<Action> {
        if self.ending != Ending::Stopped {
            self.apply(now, event);
            self.deadlines(now);
            self.advance(now);
        }
        std::mem::take(&mut self.actions)
    }

    fn apply(&mut self, now: Moment, event: Event) {
        match event {
            Event::WorkerReady { worker } => self.worker_ready(worker),
            Event::WorkerNotReady { worker, why, alive } => self.worker_not_ready(now, worker, &why, alive),
            Event::WorkerGone { worker, how } => self.worker_gone(now, worker, &how),
            Event::RunnerStarted { worker, lease, pid, limit, shared } => {
                self.runner_started(worker, lease, pid, limit, shared);
            }
            Event::KillWanted { worker, pid, reason } => self.kill_runner(worker, pid, reason),
            Event::RunnerDied { worker, pid } => self.runner_died(worker, pid),
            Event::Finished { worker, lease, report } => self.finished(now, worker, lease, report),
            Event::WorkerFault { worker, detail } => {
                self.policy("worker_fault", detail, vec![("worker", u64::from(worker.0))]);
                self.kill_worker(worker, KillReason::Deadline);
            }
            Event::Sample(sample) => self.sampled(&sample),
            Event::Interrupt => self.interrupt(),
            Event::Tick => {}
        }
    }

    fn policy(&mut self, decision: &'static str, reason: String, numbers: Vec<(&'static str, u64)>) {
        self.actions.push(Action::Policy(PolicyRow { decision, reason, numbers }));
    }

    // Workers.

    fn start_worker(&mut self, now: Moment, role: Role) {
        let worker = WorkerId(self.next_worker);
        self.next_worker += 1;
        self.workers.insert(worker, Worker::new(role, now, now + START_DEADLINE));
        self.ledger.open(worker, self.spec.idle_worker);
        self.actions.push(Action::StartWorker { worker, role });
    }

    fn worker_ready(&mut self, worker: WorkerId) {
        if let Some(it) = self.workers.get_mut(&worker) {
            it.was_ready = true;
            if matches!(it.state, State::Starting { .. }) {
                it.state = State::Idle;
            }
        }
    }

    fn worker_not_ready(&mut self, now: Moment, worker: WorkerId, why: &str, alive: bool) {
        self.policy("worker_not_ready", why.to_owned(), vec![("worker", u64::from(worker.0))]);
        if alive {
            self.kill_worker(worker, KillReason::Deadline);
        } else {
            self.worker_gone(now, worker, why);
        }
    }

    fn kill_worker(&mut self, worker: WorkerId, reason: KillReason) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        if it.killed {
            return;
        }
        it.killed = true;
        if !matches!(it.state, State::Leased(_)) {
            it.state = State::Terminating;
        }
        self.actions.push(Action::KillWorker { worker, reason });
    }

    fn worker_gone(&mut self, now: Moment, worker: WorkerId, how: &str) {
        let Some(it) = self.workers.remove(&worker) else { return };
        self.ledger.close(worker);
        let class = match &it.state {
            _ if !it.was_ready => WorkerEndClass::NotReady,
            State::Draining { .. } if !it.killed => WorkerEndClass::Ended,
            _ if it.killed => WorkerEndClass::Killed,
            _ => WorkerEndClass::Unknown,
        };
        // Its runners die with it; the driver kills those that do not.
        self.actions.push(Action::WorkerEnded {
            worker,
            class,
            recycled: it.recycled.map(|recycled| recycled.reason),
            leases: it.leases,
            peak_owed: it.peak_owed,
        });
        if let Some(recycled) = it.recycled {
            let took = now.saturating_sub(recycled.since);
            self.policy(
                "recycled",
                format!("{} {worker} is gone ({})", it.role.name(), recycled.reason.name()),
                vec![
                    ("worker", u64::from(worker.0)),
                    ("owed_before_bytes", recycled.owed_before.get()),
                    ("owed_after_bytes", self.ledger.owed().get()),
                    ("took_ms", u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
                ],
            );
        }
        if matches!(class, WorkerEndClass::Unknown | WorkerEndClass::NotReady) {
            self.failures.push_back(now);
        }
        if let State::Leased(lease) = &it.state {
            let why = format!("the {} was lost ({how})", it.role.name());
            self.attempt_lost(now, &it, lease.clone(), why);
        }
        while self.failures.front().is_some_and(|&at| at + FAILURE_WINDOW < now) {
            self.failures.pop_front();
        }
        if MOST_FAILURES <= self.failures.len() && self.ending == Ending::No {
            let why = format!(
                "{} workers were lost within {FAILURE_WINDOW:?}, the last one: {how}",
                self.failures.len()
            );
            self.policy("stop", why.clone(), vec![("failures", self.failures.len() as u64)]);
            self.end(Ending::Kill(StopReason::HostTrouble { why }));
        }
    }

    // Runners.

    fn runner_started(&mut self, worker: WorkerId, lease: LeaseId, pid: u32, limit: Bytes, shared: Bytes) {
        let killing = matches!(self.ending, Ending::Kill(_));
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let known = it.lease().is_some_and(|held| held.id == lease);
        it.runners
            .insert(pid, Runner { limit, shared, owed: Bytes::ZERO, peak_owed: Bytes::ZERO, killed: None });
        if known && !killing {
            self.actions.push(Action::AllowRunner { worker, pid });
        } else {
            self.kill_runner(worker, pid, KillReason::Orphaned);
        }
    }

    fn kill_runner(&mut self, worker: WorkerId, pid: u32, reason: KillReason) {
        let Some(runner) = self.workers.get_mut(&worker).and_then(|it| it.runners.get_mut(&pid)) else {
            return;
        };
        if runner.killed.is_none() {
            runner.killed = Some(reason);
            self.actions.push(Action::KillRunner { worker, pid, reason });
        }
    }

    fn runner_died(&mut self, worker: WorkerId, pid: u32) {
        let Some(it) = self.workers.get_mut(&worker) else { return };
        let runner = it.runners.remove(&pid);
        let (killed, peak_owed) =
            runner.map_or((None, Bytes::ZERO), |runner| (runner.killed, runner.peak_owed));
        self.actions.push(Action::MayReap { worker, pid, killed, peak_owed });
    }

    // The machine.

    fn sampled(&mut self, sample: &Sample) {
        let mut over = Vec::new();
        for process in &sample.processes {
            match process.process {
                Process::Worker(worker) => {
                    if let Some(it) = self.workers.get_mut(&worker) {
                        it.owed = process.owed;
                        if it.is_idle() && it.owed_when_ready.is_none() {
                            it.owed_when_ready = Some(process.owed);
                        }
                        if let State::Leased(lease) = &mut it.state {
                            lease.peak_reclaimable = lease.peak_reclaimable.max(process.reclaimable);
                        }
                    }
                }
                Process::Runner(worker, pid) => {
                    let Some(it) = self.workers.get_mut(&worker) else { continue };
                    if let Some(runner) = it.runners.get_mut(&pid) {
                        runner.owed = process.owed;
                        runner.peak_owed = runner.peak_owed.max(process.owed + runner.shared);
                        if runner.limit < process.owed + runner.shared {
                            let owed = process.owed + runner.shared;
                            over.push((worker, pid, KillReason::RunnerMemory { owed, limit: runner.limit }));
                        }
                    }
                    if let State::Leased(lease) = &mut it.state {
                        lease.peak_reclaimable = lease.peak_reclaimable.max(process.reclaimable);
                    }
                }
            }
        }
        for (&worker, it) in &mut self.workers {
            let owed = it.tree_owed();
            it.peak_owed = it.peak_owed.max(owed);
            if let State::Leased(lease) = &mut it.state {
                lease.peak_owed = lease.peak_owed.max(owed);
            }
            self.ledger.measure(worker, owed);
        }
        self.ledger.measure_machine(sample.supervisor_owed, sample.available);
        for (worker, pid, reason) in over {
            self.policy(
                "kill_runner",
                "it owes more than its limit".to_owned(),
                match reason {
                    KillReason::RunnerMemory { owed, limit } => {
                        vec![("owed_bytes", owed.get()), ("limit_bytes", limit.get())]
                    }
                    _ => Vec::new(),
                },
            );
            self.kill_runner(worker, pid, reason);
        }
        self.keep_the_floor(sample);
    }

    /// Below the floor the newest lease's largest runner goes: it is the likeliest cause and the cheapest loss.
    fn keep_the_floor(&mut self, sample: &Sample) {
        let floor = self.ledger.floor();
        let Some(available) = sample.available.filter(|&available| available < floor) else { return };
        let victim = self
            .workers
            .iter()
            .filter_map(|(&worker, it)| {
                let lease = it.lease()?;
                let (&pid, runner) = it
                    .runners
                    .iter()
                    .filter(|(_, runner)| runner.killed.is_none())
                    .max_by_key(|(_, r)| r.owed)?;
                // A runner that owes next to nothing is not what drowns the machine: killing it would help nobody.
                (Bytes::mib(64) < runner.owed).then_some((lease.id, worker, pid))
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

    // Time and the user.

    fn deadlines(&mut self, now: Moment) {
        let mut late = Vec::new();
        for (&worker, it) in &self.workers {
            let deadline = match &it.state {
                State::Starting { deadline } | State::Draining { deadline } => *deadline,
                State::Leased(lease) => lease.deadline,
                State::Idle | State::Terminating => continue,
            };
            if deadline <= now && !it.killed {
                late.push(worker);
            }
        }
        for worker in late {
            self.policy(
                "kill_worker",
                "it did not answer in time".to_owned(),
                vec![("worker", u64::from(worker.0))],
            );
            self.kill_worker(worker, KillReason::Deadline);
        }
    }

    /// What a worker is busy with.
    pub fn lease_of(&self, worker: WorkerId) -> Option<LeaseId> {
        self.workers.get(&worker)?.lease().map(|lease| lease.id)
    }

    /// When `handle` has to be called again even if nothing happens.
    pub fn next_deadline(&self) -> Option<Moment> {
        self.workers
            .values()
            .filter(|it| !it.killed)
            .filter_map(|it| match &it.state {
                State::Starting { deadline } | State::Draining { deadline } => Some(*deadline),
                State::Leased(lease) => Some(lease.deadline),
                State::Idle | State::Terminating => None,
            })
            .min()
    }

    fn interrupt(&mut self) {
        match self.ending {
            Ending::No => self.end(Ending::Drain(StopReason::Interrupted)),
            Ending::Drain(_) => self.end(Ending::Kill(StopReason::Interrupted)),
            Ending::Kill(_) | Ending::Stopped => {}
        }
    }

    fn end(&mut self, ending: Ending) {
        if let Ending::Kill(_) = ending {
            let workers: Vec<WorkerId> = self.workers.keys().copied().collect();
            for &worker in &workers {
                let pids: Vec<u32> = self
                    .workers
                    .get(&worker)
                    .map(|it| it.runners.keys().copied().collect())
                    .unwrap_or_default();
                for pid in pids {
                    self.kill_runner(worker, pid, KillReason::Interrupted);
                }
                self.kill_worker(worker, KillReason::Interrupted);
            }
        }
        self.ending = ending;
    }

    /// States the laws; the first that does not hold.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut running = 0;
        for (worker, it) in &self.workers {
            if let Some(lease) = it.lease() {
                running += 1;
                let progress = self.candidates[lease.order.candidate().index()].progress;
                let expected = job::Progress::Running { stage: lease.order.stage(), attempt: lease.attempt };
                if progress != expected {
                    return Err(format!("{worker} holds {lease:?} and its candidate is {progress:?}"));
                }
                let right = match lease.order.stage() {
                    event::Stage::Build | event::Stage::Verify => Role::Verifier,
                    event::Stage::Profile => Role::Profiler,
                };
                if it.role != right {
                    return Err(format!("{worker} is a {} and holds {lease:?}", it.role.name()));
                }
            }
        }
        let said = self
            .candidates
            .iter()
            .filter(|candidate| matches!(candidate.progress, job::Progress::Running { .. }))
            .count();
        if said != running {
            return Err(format!("{said} candidates are running and {running} leases are held"));
        }
        let profiling = self
            .workers
            .values()
            .any(|it| it.lease().is_some_and(|lease| lease.order.stage() == event::Stage::Profile));
        if profiling && 1 < running {
            return Err("something else runs while a profiler holds its lease".to_owned());
        }
        Ok(())
    }
}
