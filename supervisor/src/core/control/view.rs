//! What can be read of the core between two events, and why things are as they are: copies of its numbers, no
//! decision.

use opt_shared::ids::{CandidateId, LeaseId, WorkerId};
use opt_shared::message::Role;
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use crate::core::event::{Moment, Stage};
use crate::core::job::Progress;
use crate::core::worker::{State, Worker};
use crate::core::{Core, Ending};

#[derive(Clone, Debug, PartialEq)]
pub struct RunView {
    pub paused: bool,
    pub stays_open: bool,
    /// `no`, `drain` or `now`.
    pub ending: &'static str,
    pub ceiling: Bytes,
    pub floor: Bytes,
    pub charged: Bytes,
    pub owed: Bytes,
    /// Since when the next lease waits for memory, and for what.
    pub waiting: Option<(Moment, String)>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct WorkerView {
    pub id: WorkerId,
    pub role: Role,
    /// starting, idle, leased, draining or terminating.
    pub state: &'static str,
    pub age: Moment,
    pub leases: u32,
    pub owed: Bytes,
    pub peak_owed: Bytes,
    pub charged: Bytes,
    pub validated: Bytes,
    pub runners: Vec<RunnerView>,
    pub lease: Option<LeaseView>,
    /// It goes after its lease.
    pub asked_to_go: bool,
}

/// A runner that was reported and is not yet reaped.
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
    pub candidate: CandidateId,
    pub stage: Stage,
    pub attempt: u32,
    pub held: Moment,
    /// When the worker is taken for stuck.
    pub left: Moment,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CandidateView {
    Waiting { stage: Stage, attempt: u32 },
    Running { stage: Stage, attempt: u32 },
    Done(Status),
}

impl Core {
    pub fn run_view(&self) -> RunView {
        RunView {
            paused: self.wishes.paused,
            stays_open: self.wishes.stays_open,
            ending: match self.ending {
                Ending::No => "no",
                Ending::Drain(_) => "drain",
                Ending::Kill(_) | Ending::Stopped => "now",
            },
            ceiling: self.ledger.ceilings().host,
            floor: self.ledger.floor(),
            charged: self.ledger.charged().host,
            owed: self.ledger.owed().host,
            waiting: self.waiting.map(|waiting| (waiting.since, waiting.refusal.to_string())),
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
                candidate: lease.order.candidate(),
                stage: lease.order.stage(),
                attempt: lease.attempt,
                held: now.saturating_sub(lease.started),
                left: lease.deadline.saturating_sub(now),
            }),
            asked_to_go: self.wishes.recycle.contains(&id) || it.told.is_some() || it.killed.is_some(),
        }
    }

    pub fn candidate_view(&self, candidate: CandidateId) -> Option<CandidateView> {
        Some(match self.candidates.get(candidate.index())?.progress {
            Progress::Waiting { stage, attempt } => CandidateView::Waiting { stage, attempt },
            Progress::Running { stage, attempt } => CandidateView::Running { stage, attempt },
            Progress::Done(status) => CandidateView::Done(status),
        })
    }

    /// What keeps a candidate that waits, as the end of a sentence; the stage's own lease is among the numbers. What
    /// others are called is the caller's to say.
    pub fn what_it_waits_for(
        &self,
        now: Moment,
        candidate: CandidateId,
        called: impl Fn(CandidateId) -> String,
    ) -> Option<String> {
        let CandidateView::Waiting { stage, .. } = self.candidate_view(candidate)? else { return None };
        let spec = &self.spec.candidates[candidate.index()];
        let paired = self.spec.jobs[spec.job.index()].baseline.is_some_and(|baseline| baseline != candidate);
        let needs = spec.least(stage, paired)?.demand(self.spec.idle_worker).host;
        let lease = format!("its {} needs a lease of {needs}", stage.name());
        let (charged, ceiling) = (self.ledger.charged().host, self.ledger.ceilings().host);
        let first = |it: &Worker| it.lease().map(|held| (held.id, held.order, held.started));
        let reason = if self.ending != Ending::No {
            "the run is ending".to_owned()
        } else if self.wishes.paused {
            "the run is paused".to_owned()
        } else if let Some(waiting) = self.waiting {
            let since = now.saturating_sub(waiting.since).as_secs();
            format!("the next lease has been waiting for memory for {since} s: {}", waiting.refusal)
        } else if let Some((id, order, started)) = self.workers.values().find_map(first) {
            let since = now.saturating_sub(started).as_secs_f64();
            format!(
                "{id} ({} of {}) has been running for {since:.1} s",
                order.stage().name(),
                called(order.candidate())
            )
        } else {
            match self.workers.values().filter(|it| !it.is_idle()).count() {
                1 => "1 worker is starting or ending".to_owned(),
                moving => format!("{moving} workers are starting or ending"),
            }
        };
        let before = match self.ahead_of(candidate) {
            1 => "1 candidate is before it".to_owned(),
            before => format!("{before} candidates are before it"),
        };
        Some(format!("{lease}, {charged} of {ceiling} are charged, {before}, and {reason}"))
    }

    /// Candidates that are served before this one: of earlier turns, stages and places.
    fn ahead_of(&self, candidate: CandidateId) -> usize {
        let place = |id: CandidateId| match self.candidates[id.index()].progress {
            Progress::Waiting { stage, .. } | Progress::Running { stage, .. } => {
                Some((self.turn_of(id), self.spec.candidates[id.index()].job, stage, id))
            }
            Progress::Done(_) => None,
        };
        let own = place(candidate);
        self.spec.candidates.iter().filter(|spec| place(spec.id).is_some_and(|it| Some(it) < own)).count()
    }
}
