//! Provides the harness of the core's tests, which takes the driver's place: it feeds events, records actions, and
//! answers routine actions.

use std::collections::VecDeque;
use std::time::Duration;

use opt_shared::ids::{JobId, LeaseId, UnitId, WorkerId};
use opt_shared::message::{KillReason, Report};
use opt_shared::outcome::{Blame, Status};
use opt_shared::units::Bytes;

use crate::core::Core;
use crate::core::event::{
    Action, AttemptEnd, Event, Moment, Offer, Order, PolicyRow, Process, ProcessSample, Sample, Stage,
    StopReason,
};
pub(super) use crate::core::testkit::plan::{Plan, STAGE, a_candidate, a_job, a_replay, nothing, one_way};
use crate::core::testkit::reports;

/// The memory that is charged for an idle worker.
pub(super) const IDLE: Bytes = Bytes::mib(8);
/// The memory that is charged for the supervisor.
pub(super) const SUPERVISOR: Bytes = Bytes::mib(20);

/// Returns a plan with one job, whose baseline is candidate 0. The ceiling is generous, and no worker is recycled.
pub(super) fn plan(candidates: u32) -> Plan {
    let job = JobId(0);
    let mut plan = Plan { floor: Bytes::gib(1), spare: false, ..nothing() };
    plan.candidates = (0..candidates).map(|_| a_candidate()).collect();
    plan.jobs.push(a_job(job));
    plan.jobs[0].baseline = Some(UnitId(0));
    plan.jobs[0].candidates = (0..candidates).map(UnitId).collect();
    plan
}

/// Returns a plan with two jobs of one candidate each. The second job has no baseline.
pub(super) fn two_jobs() -> Plan {
    let mut plan = plan(2);
    plan.jobs[0].candidates = vec![UnitId(0)];
    plan.jobs.push(a_job(JobId(1)));
    plan.jobs[1].candidates = vec![UnitId(1)];
    plan
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) worker: WorkerId,
    pub(super) lease: LeaseId,
    pub(super) order: Order,
    pub(super) attempt: u32,
}

/// A core, the actions that it has returned, and those of them that still have to be answered.
pub(super) struct Harness {
    pub(super) core: Core,
    pub(super) now: Moment,
    pub(super) log: Vec<Action>,
    /// The machine's available memory in each sample.
    pub(super) available: Option<Bytes>,
    /// The plan whose units the sources offer. When the core asks for units of a job, it gets all of them at once.
    /// `None` if the sources offer nothing by themselves.
    plan: Option<Plan>,
    offered: usize,
    starting: VecDeque<WorkerId>,
    ending: VecDeque<WorkerId>,
    granted: VecDeque<Granted>,
    /// Whether the reasons for kills are recorded immediately.
    pub(super) acknowledges: bool,
}

impl Harness {
    pub(super) fn new(plan: Plan) -> Self {
        let mut harness = Self::silent(&plan);
        harness.plan = Some(plan);
        harness.feed(Event::Tick);
        harness
    }

    /// Returns a harness whose sources offer nothing by themselves, so the test must offer units. The core has not
    /// handled any event yet.
    pub(super) fn silent(plan: &Plan) -> Self {
        Self {
            core: Core::new(plan.spec(), WorkerId(1), LeaseId(1)),
            now: Duration::ZERO,
            log: Vec::new(),
            available: None,
            plan: None,
            offered: 0,
            starting: VecDeque::new(),
            ending: VecDeque::new(),
            granted: VecDeque::new(),
            acknowledges: true,
        }
    }

    pub(super) fn feed(&mut self, event: Event) -> Vec<Action> {
        self.now += Duration::from_millis(1);
        self.handle(event)
    }

    fn handle(&mut self, event: Event) -> Vec<Action> {
        let text = format!("{event:?}");
        let mut actions = self.core.handle(self.now, event);
        if let Err(law) = self.core.check_invariants().and_then(|()| self.core.check_rosters()) {
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
                    self.granted.push_back(Granted { worker, lease, order, attempt });
                }
                _ => {}
            }
        }
        self.log.extend(actions.iter().cloned());
        for (worker, runner, _) in kills(&actions) {
            if self.acknowledges && runner.is_none() {
                let more = self.handle(Event::KillSent { worker });
                actions.extend(more);
            }
        }
        let wanted: Vec<JobId> = actions
            .iter()
            .filter_map(|action| match action {
                Action::Wanted { job, .. } => Some(*job),
                _ => None,
            })
            .collect();
        for job in wanted {
            let Some(plan) = &self.plan else { break };
            let units = plan.offers(job, self.offered);
            self.offered += units.len();
            let more = self.handle(Event::Offered { job, units, by: Offer::Asked { more: false } });
            actions.extend(more);
        }
        actions
    }

    pub(super) fn submit(&mut self, job: u32, id: u32) -> Vec<Action> {
        let unit = plan(1).unit(UnitId(id), &a_candidate(), true, false);
        self.offered += 1;
        self.feed(Event::Offered { job: JobId(job), units: vec![unit], by: Offer::Unasked })
    }

    pub(super) fn pass_time(&mut self, time: Duration) -> Vec<Action> {
        self.now += time;
        self.feed(Event::Tick)
    }

    /// Answers the core's order to start or end a worker. If no such order is unanswered, feeds a sample.
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
        self.granted.retain(|granted| granted.worker != worker);
        self.feed(Event::WorkerGone { worker, how: "signal 9".to_owned(), left_runners: false })
    }

    /// Answers routine actions until a lease is granted.
    pub(super) fn lease(&mut self) -> Granted {
        for _ in 0..20 {
            if let Some(granted) = self.granted.pop_front() {
                return granted;
            }
            self.answer();
        }
        panic!("nothing is granted\n{:#?}", self.log);
    }

    /// Returns the next grant that the test has not taken yet.
    pub(super) fn try_lease(&mut self) -> Option<Granted> {
        self.granted.pop_front()
    }

    pub(super) fn finish(&mut self, granted: Granted, status: Status) -> Vec<Action> {
        self.report(granted, reports::report(granted.order.stage, status))
    }

    pub(super) fn report(&mut self, granted: Granted, report: Report) -> Vec<Action> {
        self.feed(Event::Finished { worker: granted.worker, lease: granted.lease, report: Box::new(report) })
    }

    pub(super) fn runner(&mut self, granted: Granted, pid: u32, limit: Bytes) -> Vec<Action> {
        let (worker, lease) = (granted.worker, granted.lease);
        self.feed(Event::RunnerStarted { worker, lease, pid, limit, shared: Bytes::mib(1) })
    }

    pub(super) fn sample(&mut self, processes: &[(Process, Bytes)]) -> Vec<Action> {
        let processes = processes
            .iter()
            .map(|&(process, owed)| ProcessSample { process, owed, reclaimable: Bytes::mib(1) })
            .collect();
        let available = self.available;
        self.feed(Event::Sample(Sample {
            processes,
            supervisor_owed: Bytes::mib(10),
            available,
            ..Sample::default()
        }))
    }

    /// Lets all remaining steps pass, and returns why the run stops.
    pub(super) fn pass_the_rest(&mut self) -> StopReason {
        for _ in 0..400 {
            if let Some(stop) = self.stopped() {
                return stop;
            }
            match self.granted.pop_front() {
                Some(granted) => self.finish(granted, Status::Passed),
                None => self.answer(),
            };
        }
        panic!("the run does not end\n{:#?}", self.log);
    }

    pub(super) fn stopped(&self) -> Option<StopReason> {
        self.log.iter().find_map(|action| match action {
            Action::Stop { reason } => Some(reason.clone()),
            _ => None,
        })
    }

    pub(super) fn done(&self, candidate: u32) -> Option<(Status, Option<Blame>)> {
        self.log.iter().find_map(|action| match action {
            Action::UnitDone { unit, status, blame, .. } if unit.0 == candidate => Some((*status, *blame)),
            _ => None,
        })
    }

    /// Returns the orders in short form, such as `B0 V0 P1/0#2`: stage, candidate, baseline beside it, and the attempt
    /// if it is not the first.
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

/// Returns the worker of each kill, the pid if a runner is killed, and the reason.
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
    let letter = match order.stage {
        Stage::Build => 'B',
        Stage::Verify => 'V',
        Stage::Screen => 'S',
        Stage::Profile => 'P',
        Stage::Confirm => 'C',
        Stage::Replay => 'R',
    };
    let mut text = format!("{letter}{}", order.unit.0);
    if let Some(baseline) = order.beside {
        text.push_str(&format!("/{}", baseline.0));
    }
    if attempt != 1 {
        text.push_str(&format!("#{attempt}"));
    }
    text
}
