//! The driver's desk, by hand: events in, actions looked at, the dull ones answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use opt_shared::ids::{CandidateId, JobId, LeaseId, WorkerId};
use opt_shared::message::{KillReason, Report};
use opt_shared::outcome::{Blame, Status};
use opt_shared::settings::{BeforeProfile, RecycleSettings};
use opt_shared::units::Bytes;
use opt_tests::reports;

use crate::core::event::{
    Action, AttemptEnd, Event, Moment, Order, PolicyRow, Process, ProcessSample, Sample, Stage, StopReason,
};
use crate::core::spec::{CandidateSpec, JobSpec, RunSpec, StageSpec};
use crate::core::{Ceilings, Core};

pub(super) const IDLE: Bytes = Bytes::mib(8);
/// What the supervisor is charged.
pub(super) const SUPERVISOR: Bytes = Bytes::mib(20);
pub(super) const STAGE: StageSpec = StageSpec {
    predicted: Bytes::mib(10),
    reserved: Bytes::mib(100),
    device: Bytes::ZERO,
    deadline: Duration::from_secs(60),
    batch: None,
};

/// A profile with one way to do it.
pub(super) fn one_step(spec: StageSpec) -> Arc<[StageSpec]> {
    Arc::from([spec])
}

/// One job with a baseline (candidate 0) and others, under a roomy ceiling; nothing is recycled.
pub(super) fn plan(candidates: u32) -> RunSpec {
    let ids: Vec<CandidateId> = (0..candidates).map(CandidateId).collect();
    RunSpec {
        ceilings: Ceilings::host(Bytes::gib(4)),
        floor: Bytes::gib(1),
        idle_worker: IDLE,
        supervisor: SUPERVISOR,
        verifiers: 1,
        spare: false,
        own_swap: true,
        verify: true,
        profile: true,
        jobs: vec![JobSpec {
            id: JobId(0),
            baseline: Some(CandidateId(0)),
            candidates: ids.clone(),
            recycle: RecycleSettings {
                before_profile: BeforeProfile::Never,
                large_job: Bytes::gib(1),
                after_leases: 1000,
                growth: Bytes::mib(256),
                max_age: Duration::from_secs(36_000),
            },
            broken: None,
            timed: true,
        }],
        candidates: ids
            .into_iter()
            .map(|id| CandidateSpec {
                id,
                job: JobId(0),
                partial: false,
                build: STAGE,
                verify: STAGE,
                profile: one_step(STAGE),
                paired: one_step(STAGE),
                replay: None,
                resumed: None,
            })
            .collect(),
    }
}

/// Two jobs of a candidate each; the second has no baseline.
pub(super) fn two_jobs() -> RunSpec {
    let mut spec = plan(2);
    let mut second = spec.jobs[0].clone();
    (second.id, second.baseline) = (JobId(1), None);
    second.candidates = vec![spec.candidates[1].id];
    spec.jobs[0].candidates = vec![spec.candidates[0].id];
    spec.candidates[1].job = second.id;
    spec.jobs.push(second);
    spec
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) worker: WorkerId,
    pub(super) lease: LeaseId,
    pub(super) order: Order,
    pub(super) attempt: u32,
}

pub(super) struct Desk {
    pub(super) core: Core,
    pub(super) now: Moment,
    pub(super) log: Vec<Action>,
    /// What idle samples say of every worker, and of the machine.
    pub(super) available: Option<Bytes>,
    starting: VecDeque<WorkerId>,
    ending: VecDeque<WorkerId>,
    given: VecDeque<Given>,
}

impl Desk {
    pub(super) fn new(spec: RunSpec) -> Self {
        let mut desk = Self {
            core: Core::new(spec, WorkerId(1), LeaseId(1)),
            now: Duration::ZERO,
            log: Vec::new(),
            available: None,
            starting: VecDeque::new(),
            ending: VecDeque::new(),
            given: VecDeque::new(),
        };
        desk.feed(Event::Tick);
        desk
    }

    pub(super) fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now += Duration::from_millis(1);
        let text = format!("{event:?}");
        let actions = self.core.handle(self.now, event);
        if let Err(law) = self.core.check_invariants() {
            panic!("after {text}: {law}\n{:#?}", self.log);
        }
        for action in &actions {
            match *action {
                Action::StartWorker { worker, .. } => self.starting.push_back(worker),
                Action::Shutdown { worker } => self.ending.push_back(worker),
                Action::KillWorker { worker, .. } => {
                    self.starting.retain(|&other| other != worker);
                    self.ending.retain(|&other| other != worker);
                    self.ending.push_back(worker);
                }
                Action::Start { worker, lease, order, attempt, .. } => {
                    self.given.push_back(Given { worker, lease, order, attempt });
                }
                _ => {}
            }
        }
        self.log.extend(actions.iter().cloned());
        actions
    }

    pub(super) fn pass_time(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.feed(Event::Tick)
    }

    /// Answers one dull action: a start, an end, or nothing, which is a sample.
    pub(super) fn answer(&mut self) -> Vec<Action> {
        if let Some(worker) = self.starting.pop_front() {
            self.feed(Event::WorkerReady { worker })
        } else if let Some(worker) = self.ending.pop_front() {
            self.gone(worker)
        } else {
            self.sample(&[])
        }
    }

    pub(super) fn gone(&mut self, worker: WorkerId) -> Vec<Action> {
        self.starting.retain(|&other| other != worker);
        self.ending.retain(|&other| other != worker);
        self.given.retain(|given| given.worker != worker);
        self.feed(Event::WorkerGone { worker, how: "signal 9".to_owned(), left_runners: false })
    }

    pub(super) fn lease(&mut self) -> Given {
        for _ in 0..20 {
            if let Some(given) = self.given.pop_front() {
                return given;
            }
            self.answer();
        }
        panic!("nothing is granted\n{:#?}", self.log);
    }

    /// What was granted and is in nobody's hands.
    pub(super) fn try_lease(&mut self) -> Option<Given> {
        self.given.pop_front()
    }

    pub(super) fn finish(&mut self, given: Given, status: Status) -> Vec<Action> {
        self.report(given, reports::report(given.order.stage(), status))
    }

    pub(super) fn report(&mut self, given: Given, report: Report) -> Vec<Action> {
        self.feed(Event::Finished { worker: given.worker, lease: given.lease, report: Box::new(report) })
    }

    pub(super) fn runner(&mut self, given: Given, pid: u32, limit: Bytes) -> Vec<Action> {
        let (worker, lease) = (given.worker, given.lease);
        self.feed(Event::RunnerStarted { worker, lease, pid, limit, shared: Bytes::mib(1) })
    }

    pub(super) fn sample(&mut self, processes: &[(Process, Bytes)]) -> Vec<Action> {
        let processes = processes
            .iter()
            .map(|&(process, owed)| ProcessSample {
                process,
                owed,
                reclaimable: Bytes::mib(1),
                device: Bytes::ZERO,
            })
            .collect();
        let available = self.available;
        self.feed(Event::Sample(Sample {
            processes,
            supervisor_owed: Bytes::mib(10),
            available,
            ..Sample::default()
        }))
    }

    /// Everything passes from here on.
    pub(super) fn pass_the_rest(&mut self) -> StopReason {
        for _ in 0..400 {
            if let Some(stop) = self.stopped() {
                return stop;
            }
            match self.given.pop_front() {
                Some(given) => self.finish(given, Status::Passed),
                None => self.answer(),
            };
        }
        panic!("the run does not end\n{:#?}", self.log);
    }

    /// What was said of the run so far.
    pub(super) fn stopped(&self) -> Option<StopReason> {
        self.log.iter().find_map(|action| match action {
            Action::Stop { reason } => Some(reason.clone()),
            _ => None,
        })
    }

    pub(super) fn done(&self, candidate: u32) -> Option<(Status, Option<Blame>)> {
        self.log.iter().find_map(|action| match action {
            Action::CandidateDone { candidate: id, status, blame, .. } if id.0 == candidate => {
                Some((*status, *blame))
            }
            _ => None,
        })
    }

    /// `B0 V0 P1/0#2`: stage, candidate, baseline beside it, attempt if not the first.
    pub(super) fn orders(&self) -> String {
        let orders: Vec<String> = self
            .log
            .iter()
            .filter_map(|action| match action {
                Action::Start { order, attempt, .. } => Some(short(*order, *attempt)),
                _ => None,
            })
            .collect();
        orders.join(" ")
    }

    pub(super) fn ends(&self) -> Vec<AttemptEnd> {
        self.log
            .iter()
            .filter_map(|action| match action {
                Action::AttemptEnded { ended, .. } => Some(ended.clone()),
                _ => None,
            })
            .collect()
    }

    pub(super) fn policies(&self, decision: &str) -> Vec<PolicyRow> {
        self.log
            .iter()
            .filter_map(|action| match action {
                Action::Policy(row) if row.decision == decision => Some(row.clone()),
                _ => None,
            })
            .collect()
    }

    pub(super) fn kills(&self) -> Vec<(WorkerId, Option<u32>, KillReason)> {
        kills(&self.log)
    }
}

pub(super) fn kills(actions: &[Action]) -> Vec<(WorkerId, Option<u32>, KillReason)> {
    actions
        .iter()
        .filter_map(|action| match *action {
            Action::KillWorker { worker, reason } => Some((worker, None, reason)),
            Action::KillRunner { worker, pid, reason } => Some((worker, Some(pid), reason)),
            _ => None,
        })
        .collect()
}

fn short(order: Order, attempt: u32) -> String {
    let letter = match order.stage() {
        Stage::Build => 'B',
        Stage::Verify => 'V',
        Stage::Profile => 'P',
        Stage::Replay => 'R',
    };
    let mut text = format!("{letter}{}", order.candidate().0);
    if let Order::Profile { baseline: Some(baseline), .. } = order {
        text.push_str(&format!("/{}", baseline.0));
    }
    if attempt != 1 {
        text.push_str(&format!("#{attempt}"));
    }
    text
}
