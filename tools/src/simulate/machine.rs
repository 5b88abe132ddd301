//! The simulated machine, which answers the core's actions with events. The tape decides when and how.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::{LeaseId, WorkerId};
use opt_shared::message::KillReason;
use opt_shared::outcome::{Body, Head, Status};
use opt_shared::units::Bytes;

use opt_supervisor::core::Core;
use opt_supervisor::core::control::CANCELLED;
use opt_supervisor::core::event::{
    Action, AttemptEnd, DeviceSample, Event, Moment, Order, Process, ProcessSample, Sample, Stage,
    StopReason, WorkerEndClass,
};
use opt_supervisor::core::recycle::RecycleReason;
use opt_supervisor::core::testkit::reports;

use super::device;
use super::disk::{self, NO_ROOM, NO_TASKS};
use super::laws::Laws;
use super::outcome::Outcome;
use super::plan::random_plan;
use super::replays::{self, ReplayLaws};
use super::sources::{self, Sources};
use super::tape::Tape;
use super::user;

const SAMPLE_EVERY: Duration = Duration::from_secs(3);
const MIB64: Bytes = Bytes::mib(64);

/// How a run broke a law, and the step at which it did.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) step: usize,
    pub(crate) breach: String,
}

pub(crate) struct Machine {
    tape: Tape,
    core: Core,
    laws: Laws,
    replay_laws: ReplayLaws,
    sources: Sources,
    now: Moment,
    /// The planned events, ordered by time and then by the order in which they were planned.
    plans: BTreeMap<(Moment, u32), Event>,
    planned: u32,
    next_pid: u32,
    /// Whether every start of a worker will fail from now on.
    starts_fail: bool,
    /// The kills that wait until their reasons are recorded, because the database accepts no rows.
    held: Vec<Action>,
    outcome: Outcome,
    log: Vec<String>,
}

impl Machine {
    pub(crate) fn new(mut tape: Tape) -> Self {
        let plan = random_plan(&mut tape);
        let mut machine = Self {
            tape,
            core: Core::new(plan.spec(), WorkerId(1), LeaseId(1)),
            laws: Laws::new(plan.spec()),
            replay_laws: ReplayLaws::default(),
            sources: Sources::new(plan),
            now: Duration::ZERO,
            plans: BTreeMap::new(),
            planned: 0,
            next_pid: 100,
            starts_fail: false,
            held: Vec::new(),
            outcome: Outcome::default(),
            log: Vec::new(),
        };
        for (at, event) in user::requests(&mut machine.tape) {
            machine.plan(at, event);
        }
        for (at, event) in device::events(&machine.laws.card, &mut machine.tape) {
            machine.plan(at, event);
        }
        machine.plan(Duration::ZERO, Event::Tick);
        machine.plan(SAMPLE_EVERY, Event::Sample(Sample::default()));
        if machine.tape.seldom() {
            let at = Duration::from_millis(u64::from(machine.tape.byte()) * 40);
            machine.plan(at, Event::Pressure);
        }
        for _ in 0..2 {
            if machine.tape.seldom() {
                let at = Duration::from_millis(u64::from(machine.tape.byte()) * 40);
                machine.plan(at, Event::Interrupt);
            }
        }
        for (at, event) in disk::events(&mut machine.tape) {
            machine.plan(at, event);
        }
        machine
    }

    pub(crate) fn log(&self) -> String {
        let from = self.log.len().saturating_sub(120);
        self.log[from..].join("\n")
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.planned += 1;
        self.plans.insert((self.now + after, self.planned), event);
    }

    /// Sends the signal of a kill whose reason is now recorded.
    fn kill(&mut self, action: &Action) {
        match *action {
            Action::KillWorker { worker, .. } => {
                let sent = self.tape.soon() / 8;
                self.plan(sent, Event::KillSent { worker });
                let after = self.tape.soon() * self.tape.pick(&[1, 1, 1, 30]);
                self.plan_end(sent + after, worker);
            }
            Action::KillRunner { worker, pid, .. } => {
                let after = self.tape.soon();
                self.plan(after, Event::RunnerDied { worker, pid });
            }
            _ => {}
        }
    }

    pub(crate) fn run(&mut self, max_steps: usize) -> Result<Outcome, Broken> {
        for step in 1..=max_steps {
            if self.laws.stopped {
                return Ok(std::mem::take(&mut self.outcome));
            }
            self.step().map_err(|breach| Broken { step, breach })?;
        }
        Err(Broken { step: max_steps, breach: "the run does not end".to_owned() })
    }

    fn step(&mut self) -> Result<(), String> {
        let next = self.plans.keys().next().copied();
        let deadline = self.core.next_deadline();
        let event = match (next, deadline) {
            (Some(key), deadline) if deadline.is_none_or(|deadline| key.0 <= deadline) => {
                self.now = self.now.max(key.0);
                self.plans.remove(&key).unwrap_or(Event::Tick)
            }
            (_, Some(deadline)) => {
                self.now = self.now.max(deadline);
                Event::Tick
            }
            (None, None) | (Some(_), None) => {
                return Err("no event is planned, and the core has no deadline".to_owned());
            }
        };
        if self.tape.byte() == 255 {
            self.now += Duration::from_secs(100);
        }
        let event = self.as_it_is_now(event);
        self.laws.tasks.now = self.now;
        self.seen(&event);
        let quiet = matches!(event, Event::Sample(_) | Event::DeviceSample(_) | Event::Tick);
        let of_device = matches!(event, Event::DeviceSample(_));
        self.log.push(format!("{:?} {event:?}", self.now));
        let actions = self.core.handle(self.now, event);
        self.core.check_invariants()?;
        self.core.check_rosters()?;
        if quiet && actions.is_empty() {
            self.log.pop();
        }
        if !self.laws.stalled {
            for action in std::mem::take(&mut self.held) {
                self.kill(&action);
            }
        }
        for action in actions {
            self.log.push(format!("    {action:?}"));
            self.laws.action(&action)?;
            self.replay_laws.action(&action)?;
            self.carry_out(action);
        }
        if of_device { self.laws.device_is_relieved() } else { Ok(()) }
    }

    /// Completes an event that was planned earlier: a sample shows the state at this moment, and offered units get the
    /// next free ids.
    fn as_it_is_now(&mut self, event: Event) -> Event {
        if let Event::DeviceSample(_) = event {
            if let Some(after) = self.laws.card.next_sample(self.now, SAMPLE_EVERY) {
                self.plan(after, Event::DeviceSample(DeviceSample::default()));
            }
            let laws = &mut self.laws;
            return Event::DeviceSample(laws.card.sample(self.now, laws.workers.iter(), &mut self.tape));
        }
        let Event::Sample(_) = event else {
            return sources::with_next_ids(event, self.laws.supply.units.len());
        };
        self.plan(SAMPLE_EVERY, Event::Sample(Sample::default()));
        let mut processes = Vec::new();
        for (&worker, left) in &self.laws.returning {
            for &pid in left.runners.keys() {
                processes.push((Process::Runner(worker, pid), self.tape.mib(100)));
            }
        }
        for (&worker, it) in &self.laws.workers {
            if it.ready && self.tape.byte() % 16 != 15 {
                let owed = Bytes::mib(4) + if self.tape.seldom() { self.tape.mib(400) } else { Bytes::ZERO };
                processes.push((Process::Worker(worker), owed));
            }
            for &pid in it.runners.keys() {
                processes.push((Process::Runner(worker, pid), self.tape.mib(160)));
            }
        }
        let available =
            self.tape.pick(&[None, None, Some(Bytes::gib(8)), Some(Bytes::mib(1000)), Some(MIB64)]);
        Event::Sample(Sample {
            processes: processes
                .into_iter()
                .map(|(process, owed)| ProcessSample { process, owed, reclaimable: Bytes::ZERO })
                .collect(),
            supervisor_owed: Bytes::mib(8) + if self.tape.seldom() { self.tape.mib(30) } else { Bytes::ZERO },
            available,
            free: None,
            swapped: if self.tape.seldom() { self.tape.mib(20) } else { Bytes::ZERO },
        })
    }

    /// Records the information that the core gets from an event, so that the laws can be checked.
    fn seen(&mut self, event: &Event) {
        let laws = &mut self.laws;
        match event {
            Event::WorkerReady { worker } => {
                if let Some(it) = laws.workers.get_mut(worker) {
                    it.ready |= !it.killed;
                }
            }
            Event::WorkerGone { worker, left_runners, .. } => {
                laws.gone(self.now, *worker, *left_runners, &mut self.tape);
            }
            Event::WorkerNotReady { worker, alive: false, .. } => {
                laws.gone(self.now, *worker, false, &mut self.tape);
            }
            Event::OrphansEnded { worker } => {
                laws.returning.remove(worker);
            }
            Event::RunnerStarted { worker, pid, .. } => {
                if let Some(it) = laws.workers.get_mut(worker) {
                    it.runners.insert(*pid, (Bytes::ZERO, false));
                }
            }
            Event::RunnerDied { worker, pid } => {
                if let Some(it) = laws.workers.get_mut(worker).or(laws.returning.get_mut(worker)) {
                    it.runners.remove(pid);
                }
            }
            Event::Finished { worker, lease, report } => {
                if let Some(it) = laws.workers.get_mut(worker)
                    && let Some((held, order)) = it.lease
                    && held == *lease
                {
                    it.lease = None;
                    it.reserved = laws.spec.idle_worker;
                    it.device_reserved = Bytes::ZERO;
                    it.sampled_idle = false;
                    if let Body::Verify(report) = &report.body {
                        it.validated += report.bytes_validated;
                    }
                    match report.head.room {
                        Some(NO_TASKS) => laws.tasks.refuse(order.unit),
                        Some(_) => laws.build_without_room(),
                        None => {}
                    }
                }
            }
            Event::Sample(sample) => {
                laws.supervisor = sample.supervisor_owed;
                for seen in &sample.processes {
                    match seen.process {
                        Process::Worker(worker) => {
                            if let Some(it) = laws.workers.get_mut(&worker) {
                                it.owed = seen.owed;
                                it.owed_when_ready.get_or_insert(seen.owed);
                            }
                        }
                        // No simulated worker has a zygote.
                        Process::Zygote(_) => {}
                        Process::Runner(worker, pid) => {
                            if let Some((owed, _)) =
                                laws.tree_mut(worker).and_then(|it| it.runners.get_mut(&pid))
                            {
                                *owed = seen.owed;
                            }
                        }
                    }
                }
                for it in laws.workers.values_mut() {
                    it.sampled_idle |= it.ready && it.lease.is_none() && !it.drained && !it.killed;
                }
            }
            Event::DeviceSample(sample) => laws.card.seen(sample, &mut laws.workers),
            Event::DeviceLost { .. } => {
                laws.card.lose();
                for it in laws.workers.values_mut() {
                    (it.on_device, it.device) = (false, Bytes::ZERO);
                }
            }
            Event::Interrupt => {
                laws.interrupted = true;
                laws.user.interrupts();
            }
            Event::Control(request) => laws.user.asks(request),
            Event::Offered { .. } | Event::Withdrawn { .. } => laws.supply.observe(event),
            Event::Room(room) => laws.room_is_short = *room == NO_ROOM,
            Event::StoreStalled { .. } => laws.stalled = true,
            Event::StoreBack { .. } => laws.stalled = false,
            Event::WorkerNotReady { .. }
            | Event::KillSent { .. }
            | Event::KillWanted { .. }
            | Event::WorkerFault { .. }
            | Event::Pressure
            | Event::Tick => {}
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Wanted { job, capacity } => {
                let (kind, events) = self.sources.wanted(job, capacity, &mut self.tape);
                self.outcome.note(kind);
                for (after, event) in events {
                    self.plan(after, event);
                }
            }
            Action::StartWorker { worker, .. } => self.start_worker(worker),
            Action::Start { worker, lease, order, .. } => self.start(worker, lease, order),
            Action::Shutdown { worker } => {
                self.outcome.note("shutdown");
                let slow = self.tape.seldom();
                let after = self.tape.soon() + if slow { Duration::from_secs(20) } else { Duration::ZERO };
                self.plan_end(after, worker);
            }
            Action::KillWorker { .. } | Action::KillRunner { .. } => {
                let is_worker = matches!(action, Action::KillWorker { .. });
                self.outcome.note(if is_worker { "worker_killed" } else { "runner_killed" });
                if self.laws.stalled {
                    self.outcome.note("kill_held");
                    self.held.push(action);
                } else {
                    self.kill(&action);
                }
            }
            Action::AllowRunner { .. }
            | Action::MayReap { .. }
            | Action::PhaseEnded(_)
            | Action::BaselineLost { .. }
            | Action::JobDone { .. } => {}
            Action::Answered(answer) | Action::Replied(answer) => self.outcome.note(user::name(&answer)),
            Action::AttemptEnded { ended, .. } => self.outcome.note(match ended {
                AttemptEnd::Accepted(report) => match (&report.head, &report.body) {
                    (
                        Head { status: Status::Crashed, end: Some(_), .. },
                        Body::Verify(_) | Body::Profile(_),
                    ) => "crashed_unknown",
                    (_, Body::Replay(replayed)) if replayed.result.is_some() => "replayed",
                    (Head { status: Status::DeviceMemoryLimit, .. }, _) => "over_device_limit",
                    _ => "accepted",
                },
                AttemptEnd::Retried { why, .. } if why.contains("by the user") => "retried_for_user",
                AttemptEnd::Retried { .. } => "retried",
                AttemptEnd::GivenUp { why, .. } if why == CANCELLED => "cancelled",
                AttemptEnd::GivenUp { .. } => "given_up",
                AttemptEnd::Abandoned { .. } => "abandoned",
            }),
            Action::UnitDone { .. } => self.outcome.note("unit_done"),
            Action::WorkerEnded { class, recycled, .. } => {
                if recycled == Some(RecycleReason::Requested) {
                    self.outcome.note("recycled_on_request");
                }
                if recycled.is_some() {
                    self.outcome.note("recycled");
                }
                self.outcome.note(match class {
                    WorkerEndClass::Unknown => "worker_end_unknown",
                    WorkerEndClass::NotReady => "worker_end_not_ready",
                    WorkerEndClass::Ended | WorkerEndClass::Killed => "worker_ended",
                });
            }
            Action::Policy(row) => self.outcome.note(row.decision),
            Action::Stop { reason } => self.outcome.note(match reason {
                StopReason::Finished => "finished",
                StopReason::Interrupted => "interrupted",
                StopReason::HostFailure { .. } => "host_failure",
            }),
        }
    }

    /// Plans the death of a worker. In rare cases, the worker leaves runners behind, which end after a while or never.
    fn plan_end(&mut self, after: Duration, worker: WorkerId) {
        let left_runners = self.tape.seldom();
        self.plan(after, Event::WorkerGone { worker, how: "simulated".to_owned(), left_runners });
        if left_runners {
            self.outcome.note("left_runners");
            match self.tape.byte() % 4 {
                0 | 1 => {
                    let longer = self.tape.soon();
                    self.plan(after + longer, Event::OrphansEnded { worker });
                }
                2 => self.plan(after + Duration::from_secs(30), Event::OrphansEnded { worker }),
                _ => {}
            }
        }
    }

    fn start_worker(&mut self, worker: WorkerId) {
        let after = self.tape.soon();
        let why = || "simulated".to_owned();
        let choice = self.tape.byte();
        self.starts_fail |= choice == 254;
        match if self.starts_fail { 8 + choice % 4 } else { choice % 12 } {
            8 => self.plan(after, Event::WorkerNotReady { worker, why: why(), alive: false }),
            9 => self.plan(after, Event::WorkerNotReady { worker, why: why(), alive: true }),
            10 => self.plan_end(after, worker),
            // In this case, the worker never reports that it is ready.
            11 => {}
            _ => self.plan(after, Event::WorkerReady { worker }),
        }
    }

    fn start(&mut self, worker: WorkerId, lease: LeaseId, order: Order) {
        if order.beside.is_some() {
            self.outcome.note("paired");
        }
        let stage = order.stage;
        if self.laws.workers.get(&worker).is_some_and(|it| it.device_reserved != Bytes::ZERO) {
            self.laws.card.started(order.unit, &mut self.tape);
            let after = self.tape.soon() / 2;
            self.plan(after, Event::DeviceSample(DeviceSample::default()));
        }
        let pid = self.next_pid;
        self.next_pid += 1;
        let runner = self.tape.soon();
        let end = runner + self.tape.soon();
        let (limit, shared) = (Bytes::mib(100), Bytes::ZERO);
        let reported_lease = if self.tape.seldom() { LeaseId(9999) } else { lease };
        self.plan(runner, Event::RunnerStarted { worker, lease: reported_lease, pid, limit, shared });
        if self.tape.seldom() {
            self.plan(runner, Event::KillWanted { worker, pid, reason: KillReason::Orphaned });
        }
        let long = if self.tape.seldom() { Duration::from_secs(8) } else { Duration::ZERO };
        let end = end + long;
        if !self.tape.seldom() {
            self.plan(end, Event::RunnerDied { worker, pid });
        }
        let choice = self.tape.byte() % 32;
        match choice {
            18 => return self.plan_end(end, worker),
            19 => return self.plan(end, Event::WorkerFault { worker, detail: "simulated".to_owned() }),
            // In this case, the worker never sends its report.
            20 => return,
            21 => {
                // In this case, the worker's death is reported before its last messages.
                self.plan_end(end, worker);
            }
            _ => {}
        }
        let mut report = match choice {
            22 => reports::report(stage, Status::Crashed),
            23 | 24 => reports::report(stage, Status::InfraError),
            25 => reports::report(stage, Status::Unsupported),
            26 => reports::report(
                if stage == Stage::Build { Stage::Verify } else { Stage::Build },
                Status::Passed,
            ),
            27 | 28 => reports::killed_at(stage, "entry_000001", true),
            29..=31 if stage.is_timed() => {
                let status = if choice == 29 { Status::Passed } else { Status::Timeout };
                reports::of_the_baseline(reports::report(stage, status))
            }
            29..=31 if stage == Stage::Replay => {
                self.outcome.note("nonsense_replay_report");
                replays::nonsense_report(choice)
            }
            _ if stage.is_timed() => {
                let ratio = f64::from(self.tape.byte()) / 64.0;
                reports::timed(stage, &[(ratio, self.tape.pick(&[0.02, 0.15]))])
            }
            _ => reports::report(stage, Status::Passed),
        };
        if report.head.status == Status::InfraError {
            let (room, kind, again) = disk::cause(stage, end, &mut self.tape);
            report.head.room = room;
            self.outcome.note(kind);
            again.into_iter().for_each(|(at, event)| self.plan(at, event));
        }
        self.plan(end, Event::Finished { worker, lease, report: Box::new(report) });
    }
}
