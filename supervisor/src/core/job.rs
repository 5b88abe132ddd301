//! Where each candidate stands, and what comes next in a job: builds, then verifications, then profiles, the baseline
//! always first.
//!
//! Pure bookkeeping. Whether the next order can be granted now is the ledger's and the core's affair.

use opt_shared::ids::CandidateId;
use opt_shared::outcome::Status;

use super::event::{Order, Stage};
use super::spec::{CandidateSpec, JobSpec, Resumed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The stage is still to be done; `attempt` is the next one's number.
    Waiting {
        stage: Stage,
        attempt: u32,
    },
    Running {
        stage: Stage,
        attempt: u32,
    },
    Done(Status),
}

#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    pub(crate) progress: Progress,
    /// It has passed verification, in this run or the one that is resumed, and nothing since says otherwise.
    pub(crate) may_profile: bool,
    /// Attempts of the stage in hand that failed for no fault of the candidate.
    pub(crate) lost: u32,
    /// Attempts of any stage that took their worker with them.
    pub(crate) workers_lost: u32,
    /// Attempts of the stage in hand that ended for want of memory; they have a budget of their own.
    pub(crate) short_of_memory: u32,
    /// They leave this of its steps, and smaller ones.
    pub(crate) from_step: usize,
    /// The entry at which a runner of it was last killed by nobody knows whom.
    pub(crate) killed_at: Option<String>,
    /// A baseline that passed and then failed beside a candidate.
    pub(crate) failed_beside: bool,
}

impl Candidate {
    pub(crate) fn new(spec: &CandidateSpec) -> Self {
        match spec.resumed {
            Some(Resumed::Done { status, may_profile }) => Self {
                progress: Progress::Done(status),
                may_profile: may_profile && status == Status::Passed,
                lost: 0,
                workers_lost: 0,
                short_of_memory: 0,
                from_step: 0,
                killed_at: None,
                failed_beside: false,
            },
            None => Self::at(spec.first_stage()),
        }
    }

    fn at(stage: Stage) -> Self {
        Self {
            progress: Progress::Waiting { stage, attempt: 1 },
            may_profile: false,
            lost: 0,
            workers_lost: 0,
            short_of_memory: 0,
            from_step: 0,
            killed_at: None,
            failed_beside: false,
        }
    }

    /// The stage before has passed.
    pub(crate) fn go_on_to(&mut self, stage: Stage) {
        let (may_profile, workers_lost) = (self.may_profile, self.workers_lost);
        *self = Self { may_profile, workers_lost, ..Self::at(stage) };
    }

    pub(crate) fn passed(&self) -> bool {
        self.progress == Progress::Done(Status::Passed)
    }
}

/// What a job wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Order {
        order: Order,
        attempt: u32,
    },
    /// Something has to end first.
    Wait,
    /// It is the turn of others.
    Later,
    Done,
}

/// Builds, then verifications, several at a time where there are workers for them; then profiles, one by one and
/// alone, so that nothing runs beside a profiler. Where candidates come in turns, `turn` says which may go on now.
pub(crate) fn next(job: &JobSpec, candidates: &[Candidate], turn: impl Fn(CandidateId) -> bool) -> Next {
    let (mut running, mut later) = (None, false);
    let mut waiting: Option<(Stage, CandidateId, u32)> = None;
    for &id in &job.candidates {
        match candidates[id.index()].progress {
            Progress::Running { stage, .. } => running = running.max(Some(stage)),
            Progress::Waiting { .. } if !turn(id) => later = true,
            Progress::Waiting { stage, attempt } => {
                if waiting.is_none_or(|(earliest, _, _)| stage < earliest) {
                    waiting = Some((stage, id, attempt));
                }
            }
            Progress::Done(_) => {}
        }
    }
    match (running, waiting) {
        (Some(Stage::Profile | Stage::Replay), _)
        | (Some(_), None | Some((Stage::Profile | Stage::Replay, _, _))) => Next::Wait,
        (None, None) if later => Next::Later,
        (None, None) => Next::Done,
        (_, Some((stage, candidate, attempt))) => {
            let order = match stage {
                Stage::Build => Order::Build { candidate },
                Stage::Verify => Order::Verify { candidate },
                Stage::Profile => {
                    let baseline = job.baseline.filter(|&baseline| {
                        baseline != candidate && candidates[baseline.index()].may_profile
                    });
                    Order::Profile { candidate, baseline }
                }
                Stage::Replay => Order::Replay { candidate },
            };
            Next::Order { order, attempt }
        }
    }
}
