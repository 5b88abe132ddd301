//! The simulated machine: it answers the core's actions by events, when and as the tape says.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::message::{KillReason, Report};
use opt_shared::outcome::{ProfileReport, Status, VerifyReport};
use opt_shared::settings::BeforeProfile;
use opt_shared::units::Bytes;

use super::super::{desk, reports};
use super::laws::Laws;
use super::tape::Tape;
use super::user;
use crate::core::Core;
use crate::core::control::CANCELLED;
use crate::core::event::{
    Action, AttemptEnd, Event, Moment, Order, Process, ProcessSample, Sample, Stage, StopReason,
    WorkerEndClass,
};
use crate::core::recycle::RecycleReason;
use crate::core::spec::{JobSpec, Resumed, RunSpec, StageSpec};

const SAMPLE_EVERY: Duration = Duration::from_secs(3);
const MIB64: Bytes = Bytes::mib(64);

/// How often what happened.
#[derive(Debug, Default)]
pub(super) struct Outcome(BTreeMap<&'static str, u32>);

impl Outcome {
    fn note(&mut self, kind: &'static str) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub(super) fn of(&self, kind: &str) -> u32 {
        self.0.get(kind).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (&kind, count) in &other.0 {
            *self.0.entry(kind).or_default() += count;
        }
    }
}

pub(super) struct Machine {
    tape: Tape,
    core: Core,
    laws: Laws,
    now: Moment,
    /// By time, then by the order they were planned in.
    plans: BTreeMap<(Moment, u32), Event>,
    planned: u32,
    next_pid: u32,
    /// No worker starts on it any more from some moment on.
    broken: bool,
    outcome: Outcome,
    story: Vec<String>,
}

impl Machine {
    pub(super) fn new(mut tape: Tape) -> Self {
        let spec = a_plan(&mut tape);
        let mut machine = Self {
            tape,
            core: Core::new(spec.clone(), WorkerId(1), LeaseId(1)),
            laws: Laws::new(spec),
            now: Duration::ZERO,
            plans: BTreeMap::new(),
            planned: 0,
            next_pid: 100,
            broken: false,
            outcome: Outcome::default(),
            story: Vec::new(),
        };
        machine.plan(Duration::ZERO, Event::Tick);
        machine.plan(SAMPLE_EVERY, Event::Sample(Sample::default()));
        for _ in 0..2 {
            if machine.tape.seldom() {
                let at = Duration::from_millis(u64::from(machine.tape.byte()) * 40);
                machine.plan(at, Event::Interrupt);
            }
        }
        for (at, request) in user::requests(&mut machine.tape) {
            machine.plan(at, Event::Control(request));
        }
        machine
    }

    pub(super) fn story(&self) -> String {
        let from = self.story.len().saturating_sub(120);
        self.story[from..].join("\n")
    }

    fn plan(&mut self, after: Duration, event: Event) {
        self.planned += 1;
        self.plans.insert((self.now + after, self.planned), event);
    }

    pub(super) fn run(&mut self, most_steps: usize) -> Result<Outcome, String> {
        for _ in 0..most_steps {
            if self.laws.stopped {
                return Ok(std::mem::take(&mut self.outcome));
            }
            self.step()?;
        }
        Err("the run does not end".to_owned())
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
            (None, None) | (Some(_), None) => return Err("nothing will ever happen again".to_owned()),
        };
        if self.tape.byte() == 255 {
            self.now += Duration::from_secs(100);
        }
        let event = self.as_it_is_now(event);
        self.seen(&event);
        self.story.push(format!("{:?} {event:?}", self.now));
        let actions = self.core.handle(self.now, event);
        self.core.check_invariants()?;
        for action in actions {
            self.story.push(format!("    {action:?}"));
            self.laws.action(&action)?;
            self.carry_out(action);
        }
        Ok(())
    }

    /// Samples say what is there when they are taken.
    fn as_it_is_now(&mut self, event: Event) -> Event {
        if let Event::Control(request) = event {
            return Event::Control(user::as_it_is_now(request, &self.laws.spec));
        }
        let Event::Sample(_) = event else { return event };
        self.plan(SAMPLE_EVERY, Event::Sample(Sample::default()));
        let mut processes = Vec::new();
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
        })
    }

    /// What the laws are told before the core is.
    fn seen(&mut self, event: &Event) {
        let laws = &mut self.laws;
        match event {
            Event::WorkerReady { worker } => {
                if let Some(it) = laws.workers.get_mut(worker) {
                    it.ready |= !it.killed;
                }
            }
            Event::WorkerGone { worker, .. } | Event::WorkerNotReady { worker, alive: false, .. } => {
                laws.workers.remove(worker);
            }
            Event::RunnerStarted { worker, pid, .. } => {
                if let Some(it) = laws.workers.get_mut(worker) {
                    it.runners.insert(*pid, (Bytes::ZERO, false));
                }
            }
            Event::RunnerDied { worker, pid } => {
                if let Some(it) = laws.workers.get_mut(worker) {
                    it.runners.remove(pid);
                }
            }
            Event::Finished { worker, lease, report } => {
                if let Some(it) = laws.workers.get_mut(worker)
                    && it.lease.is_some_and(|(held, _)| held == *lease)
                {
                    it.lease = None;
                    it.reserved = laws.spec.idle_worker;
                    it.sampled_idle = false;
                    if let Report::Verify(report) = &**report {
                        it.validated += report.bytes_validated;
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
                        Process::Runner(worker, pid) => {
                            if let Some((owed, _)) =
                                laws.workers.get_mut(&worker).and_then(|it| it.runners.get_mut(&pid))
                            {
                                *owed = seen.owed;
                            }
                        }
                    }
                }
                for it in laws.workers.values_mut() {
                    it.sampled_idle |= it.ready && it.lease.is_none() && !it.told && !it.killed;
                }
            }
            Event::Interrupt => laws.interrupted = true,
            Event::Control(request) => laws.user.asks(request),
            Event::WorkerNotReady { .. }
            | Event::KillWanted { .. }
            | Event::WorkerFault { .. }
            | Event::Tick => {}
        }
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::StartWorker { worker, .. } => self.start_worker(worker),
            Action::Start { worker, lease, order, .. } => self.start(worker, lease, order),
            Action::Shutdown { worker } => {
                self.outcome.note("shutdown");
                let slow = self.tape.seldom();
                let after = self.tape.soon() + if slow { Duration::from_secs(20) } else { Duration::ZERO };
                self.plan(after, gone(worker));
            }
            Action::KillWorker { worker, .. } => {
                self.outcome.note("worker_killed");
                let after = self.tape.soon() * self.tape.pick(&[1, 1, 1, 30]);
                self.plan(after, gone(worker));
            }
            Action::KillRunner { worker, pid, .. } => {
                self.outcome.note("runner_killed");
                let after = self.tape.soon();
                self.plan(after, Event::RunnerDied { worker, pid });
            }
            Action::AllowRunner { .. }
            | Action::MayReap { .. }
            | Action::PhaseEnded(_)
            | Action::JobDone { .. } => {}
            Action::Answered(answer) => self.outcome.note(user::name(&answer)),
            Action::AttemptEnded { ended, .. } => self.outcome.note(match ended {
                AttemptEnd::Stands(report) => match &*report {
                    Report::Verify(VerifyReport { status: Status::Crashed, end: Some(_), .. })
                    | Report::Profile(ProfileReport { status: Status::Crashed, end: Some(_), .. }) => {
                        "crashed_unknown"
                    }
                    _ => "stands",
                },
                AttemptEnd::Retried { why, .. } if why.contains("by the user") => "given_back",
                AttemptEnd::Retried { .. } => "retried",
                AttemptEnd::GivenUp { why, .. } if why == CANCELLED => "cancelled",
                AttemptEnd::GivenUp { .. } => "given_up",
                AttemptEnd::Abandoned { .. } => "abandoned",
            }),
            Action::CandidateDone { .. } => self.outcome.note("done"),
            Action::WorkerEnded { class, recycled, .. } => {
                if recycled == Some(RecycleReason::Requested) {
                    self.outcome.note("asked_to_recycle");
                }
                if recycled.is_some() {
                    self.outcome.note("recycled");
                }
                self.outcome.note(match class {
                    WorkerEndClass::Unknown => "unknown",
                    WorkerEndClass::NotReady => "not_ready",
                    WorkerEndClass::Ended | WorkerEndClass::Killed => "ended",
                });
            }
            Action::Policy(row) => self.outcome.note(row.decision),
            Action::Stop { reason } => self.outcome.note(match reason {
                StopReason::Finished => "finished",
                StopReason::Interrupted => "interrupted",
                StopReason::HostTrouble { .. } => "host_trouble",
            }),
        }
    }

    fn start_worker(&mut self, worker: WorkerId) {
        let after = self.tape.soon();
        let why = || "simulated".to_owned();
        let choice = self.tape.byte();
        self.broken |= choice == 254;
        match if self.broken { 8 + choice % 4 } else { choice % 12 } {
            8 => self.plan(after, Event::WorkerNotReady { worker, why: why(), alive: false }),
            9 => self.plan(after, Event::WorkerNotReady { worker, why: why(), alive: true }),
            10 => self.plan(after, gone(worker)),
            // It never says anything.
            11 => {}
            _ => self.plan(after, Event::WorkerReady { worker }),
        }
    }

    fn start(&mut self, worker: WorkerId, lease: LeaseId, order: Order) {
        if let Order::Profile { baseline: Some(_), .. } = order {
            self.outcome.note("paired");
        }
        let stage = order.stage();
        let pid = self.next_pid;
        self.next_pid += 1;
        let runner = self.tape.soon();
        let end = runner + self.tape.soon();
        let (limit, shared) = (Bytes::mib(100), Bytes::ZERO);
        let lease_said = if self.tape.seldom() { LeaseId(9999) } else { lease };
        self.plan(runner, Event::RunnerStarted { worker, lease: lease_said, pid, limit, shared });
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
            18 => return self.plan(end, gone(worker)),
            19 => return self.plan(end, Event::WorkerFault { worker, detail: "simulated".to_owned() }),
            // Nothing more is heard of it until its deadline.
            20 => return,
            21 => {
                // Its death is told before its last words.
                self.plan(end, gone(worker));
            }
            _ => {}
        }
        let report = match choice {
            22 => reports::report(stage, Status::Crashed),
            23 | 24 => reports::report(stage, Status::InfraError),
            25 => reports::report(stage, Status::Unsupported),
            26 => reports::report(
                if stage == Stage::Build { Stage::Verify } else { Stage::Build },
                Status::Passed,
            ),
            27 | 28 => reports::killed_at(stage, "entry_000001", true),
            29..=31 if stage == Stage::Profile => {
                let status = if choice == 29 { Status::Passed } else { Status::Timeout };
                Report::Profile(ProfileReport { baseline_failed: true, ..reports::profile(status) })
            }
            _ => reports::report(stage, Status::Passed),
        };
        self.plan(end, Event::Finished { worker, lease, report: Box::new(report) });
    }
}

fn gone(worker: WorkerId) -> Event {
    Event::WorkerGone { worker, how: "simulated".to_owned() }
}

/// One to three jobs of one to four candidates under settings that bite.
fn a_plan(tape: &mut Tape) -> RunSpec {
    let mut spec = desk::plan(0);
    let template = spec.jobs.remove(0);
    spec.ceiling = tape.pick(&[4096, 400, 200, 160]).into_mib();
    spec.floor = tape.pick(&[Bytes::ZERO, Bytes::mib(512)]);
    spec.verify = !tape.seldom();
    spec.profile = !tape.seldom();
    for number in 0..u32::from(tape.byte() % 3) + 1 {
        let id = JobId(number);
        let mut job = JobSpec { id, candidates: Vec::new(), baseline: None, ..template.clone() };
        job.recycle.before_profile =
            tape.pick(&[BeforeProfile::Large, BeforeProfile::Always, BeforeProfile::Never]);
        job.recycle.large_job = tape.pick(&[Bytes::mib(150), Bytes::ZERO, Bytes::gib(1)]);
        job.recycle.after_leases = tape.pick(&[64, 0, 1, 3]);
        job.recycle.growth = tape.pick(&[Bytes::mib(256), Bytes::ZERO]);
        job.recycle.max_age = tape.pick(&[Duration::from_secs(3600), Duration::ZERO]);
        job.timed = !tape.seldom();
        job.broken = tape.seldom().then(|| "simulated".to_owned());
        for _ in 0..=tape.byte() % 4 {
            let id = CandidateId(u32::try_from(spec.candidates.len()).unwrap_or(u32::MAX));
            job.candidates.push(id);
            let mut candidate = desk::plan(1).candidates.remove(0);
            let reserved = tape.pick(&[100, 20, 180, 500]).into_mib();
            let stage = StageSpec { reserved, deadline: Duration::from_secs(10), ..desk::STAGE };
            candidate.verify = stage;
            (candidate.id, candidate.job, candidate.partial) = (id, JobId(number), tape.seldom());
            candidate.resumed =
                tape.seldom().then_some(Resumed::Done { status: Status::Passed, may_profile: true });
            spec.candidates.push(candidate);
        }
        job.baseline = (!tape.seldom()).then_some(job.candidates[0]);
        spec.jobs.push(job);
    }
    spec
}

trait IntoMib {
    fn into_mib(self) -> Bytes;
}

impl IntoMib for u64 {
    fn into_mib(self) -> Bytes {
        Bytes::mib(self)
    }
}
