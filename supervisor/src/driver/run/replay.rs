//! Replays: the part of a run that comes after its jobs.
//!
//! They are granted by a core of their own, with the same laws: each stands in it as a candidate that has one stage and
//! nothing else, numbered behind those of the plan. Owns the way from a plan's `[[replay]]` to a task, and from its end
//! to the store. What is in the pool when is the worker's.

use std::sync::Arc;
use std::time::Instant;

use opt_shared::ids::{CandidateId, EntryId, JobId, LeaseId, WorkerId};
use opt_shared::message::{EntryRef, ReplayCall, ReplayCallee, ReplayTask, Task, ToWorker, Work};
use opt_shared::outcome::{Blame, Body, ReplayResult, Report, Status};
use opt_shared::settings::LimitSettings;
use opt_shared::units::Bytes;

use super::Run;
use super::agenda::Agenda;
use super::attempts::RunningAttempt;
use crate::core::Core;
use crate::core::event::{AttemptEnd, Order, PhaseRow, PolicyRow, StopReason};
use crate::core::spec::{CandidateSpec, JobSpec, Resumed, RunSpec, StageSpec};
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::driver::answer::replay_standing::Figures;
use crate::driver::folder::resume;
use crate::driver::known::Known;
use crate::driver::survey::replay_facts::ReplayFacts;
use crate::plan::{ReplayCandidates, ReplayPlan};
use crate::record::UtcTime;
use crate::store::{ReplayEnd, ReplayRow, ReplayStart};

/// Recordings lie here, in the run's folder.
const FOLDER: &str = "replay";

/// Who makes the calls of a job's steps, ready to be called.
struct Chosen {
    job: JobId,
    callee: ReplayCallee,
}

/// A replay that is under way.
pub(crate) struct Underway {
    /// Its place in the plan.
    replay: usize,
    chosen: Vec<Chosen>,
    /// Of the builds that make its calls.
    inputs: String,
    attempts: u32,
    started: Option<(Instant, UtcTime, WorkerId, LeaseId)>,
    predicted: Bytes,
    peak_owed: Option<Bytes>,
    report: Option<Report>,
}

/// The part of the run after its jobs.
pub(crate) struct Replaying<'a> {
    /// Of each replay of the plan.
    facts: &'a [ReplayFacts],
    /// The first that stands for a replay.
    first: usize,
    underway: Vec<Underway>,
    /// How each replay of the plan ended, where it has.
    pub(crate) ends: Vec<Option<Status>>,
    /// Of those that passed.
    pub(crate) figures: Vec<Option<Figures>>,
}

impl<'a> Replaying<'a> {
    pub(crate) fn new(facts: &'a [ReplayFacts]) -> Self {
        let count = facts.len();
        Self {
            facts,
            first: usize::MAX,
            underway: Vec::new(),
            ends: vec![None; count],
            figures: vec![None; count],
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.first != usize::MAX
    }

    /// The one that stands for a replay of the plan.
    pub(crate) fn stand_in(&self, replay: usize) -> Option<CandidateId> {
        let place = self.underway.iter().position(|it| it.replay == replay)?;
        Some(CandidateId(u32::try_from(self.first.checked_add(place)?).ok()?))
    }

    fn place(&self, candidate: CandidateId) -> Option<usize> {
        candidate.index().checked_sub(self.first).filter(|&place| place < self.underway.len())
    }
}

impl Run<'_> {
    /// Says what replays the run has; a result of an earlier part of it stands.
    pub(crate) fn register_replays(&mut self) -> Result<(), RunError> {
        for (place, (replay, facts)) in
            self.agenda.plan.replays.iter().zip(self.agenda.replays.facts).enumerate()
        {
            self.books.store.replay(&ReplayRow {
                place: u32::try_from(place).unwrap_or(u32::MAX),
                name: replay.name.clone(),
                budget: replay.budget,
                floor: facts.broken.is_none().then(|| facts.floor.bytes()),
                all_resident: facts.broken.is_none().then_some(facts.floor.whole),
            })?;
        }
        Ok(())
    }

    /// All replays that can be done. None where there is nothing to do.
    pub(crate) fn replay_all(&mut self) -> Result<Option<StopReason>, RunError> {
        for place in 0..self.agenda.plan.replays.len() {
            match self.agenda.prepare_replay(place) {
                Ok(underway) => {
                    let name = &self.agenda.plan.replays[place].name;
                    match resume::kept_replay(&self.books.store, name, &underway.inputs)? {
                        Some(result) => {
                            self.agenda.replays.ends[place] = Some(Status::Passed);
                            self.agenda.replays.figures[place] = Some(Figures::of(&result));
                        }
                        None => self.agenda.replays.underway.push(underway),
                    }
                }
                Err((status, why)) => self.replay_done(place, status, status.blame(), why, None)?,
            }
        }
        if self.agenda.replays.underway.is_empty() {
            return Ok(None);
        }
        self.agenda.replays.first = self.agenda.known.len();
        let counters = self.books.store.counters()?;
        let spec = self.agenda.replay_spec(self.decisions.core.spec());
        self.decisions.core = Core::new(spec, counters.worker, counters.lease);
        self.go().map(Some)
    }

    pub(crate) fn start_replay(
        &mut self,
        worker: WorkerId,
        lease: LeaseId,
        order: Order,
        attempt: u32,
        reserved: Bytes,
    ) -> Result<(), RunError> {
        let law = || RunError::Law { law: format!("{order:?} was granted and is no replay") };
        let place = self.agenda.replays.place(order.candidate()).ok_or_else(law)?;
        let underway = &self.agenda.replays.underway[place];
        let task = self.agenda.replay_task(underway).ok_or_else(law)?;
        let (name, total) = (self.agenda.full_name(order.candidate()), task.steps.len() as u64);
        let plan_name = task.name.clone();
        let now = UtcTime::now();
        self.books.store.replay_started(&ReplayStart {
            name: plan_name,
            started: now,
            worker,
            lease,
            attempts: attempt,
            predicted: reserved,
        })?;
        let underway = &mut self.agenda.replays.underway[place];
        underway.attempts = attempt;
        underway.started = Some((Instant::now(), now, worker, lease));
        let facts = &self.agenda.replays.facts[self.agenda.replays.underway[place].replay];
        let row = PolicyRow {
            decision: "replay_pool",
            reason: format!("{name}: its tensors stay outside, and the pool holds what the next steps use"),
            numbers: vec![
                ("budget_bytes", task.budget.get()),
                ("floor_bytes", facts.floor.bytes().get()),
                ("all_resident_bytes", facts.floor.whole.get()),
                ("pinned_bytes", facts.floor.pinned.get()),
                ("prefetch", u64::from(task.prefetch)),
                ("steps", total),
            ],
        };
        self.policy(&row)?;
        self.desk.metrics.granted(order.stage().name());
        self.desk.tell(|| notifications::attempt_started(&name, order.stage(), attempt, worker));
        self.desk.progress.started(lease, order.stage().name(), name, total, false);
        self.attempts.running.insert(lease, RunningAttempt::new(attempt));
        self.machine.pool.send(worker, ToWorker::Start(Box::new(Task { lease, work: Work::Replay(task) })));
        self.books.evidence.phase_started(worker, true);
        Ok(())
    }

    pub(crate) fn replay_attempt_ended(
        &mut self,
        lease: LeaseId,
        order: Order,
        ended: AttemptEnd,
    ) -> Result<(), RunError> {
        self.desk.progress.ended(lease);
        self.attempts.running.remove(&lease);
        let Some(place) = self.agenda.replays.place(order.candidate()) else { return Ok(()) };
        let name = self.agenda.full_name(order.candidate());
        let underway = &mut self.agenda.replays.underway[place];
        let took = underway.started.map_or_else(Default::default, |(at, ..)| at.elapsed());
        let (status, detail) = match ended {
            AttemptEnd::Stands(report) => {
                let said = (report.head.status, report.head.detail.clone());
                underway.report = Some(*report);
                said
            }
            AttemptEnd::Retried { why, .. }
            | AttemptEnd::GivenUp { why, .. }
            | AttemptEnd::Abandoned { why } => {
                tracing::warn!("{name} (attempt {}) ended without a result: {why}", underway.attempts);
                (Status::InfraError, why)
            }
        };
        let number = underway.attempts;
        self.desk.metrics.attempt_ended(order.stage().name(), status.name(), took);
        let (stage, ms) = (order.stage(), Some(took.as_secs_f64() * 1e3));
        self.desk.tell(|| notifications::attempt_ended(&name, stage, number, status, Some(detail), ms));
        Ok(())
    }

    pub(super) fn replay_phase_ended(&mut self, row: &PhaseRow) -> Result<(), RunError> {
        let Some(place) = self.agenda.replays.place(row.order.candidate()) else { return Ok(()) };
        let underway = &mut self.agenda.replays.underway[place];
        underway.peak_owed = underway.peak_owed.max(Some(row.peak_owed));
        let name = self.agenda.plan.replays[underway.replay].name.clone();
        self.books.replay_phase(name, row)
    }

    /// True where the candidate stands for a replay.
    pub(crate) fn replay_candidate_done(
        &mut self,
        candidate: CandidateId,
        status: Status,
        blame: Option<Blame>,
        detail: &str,
    ) -> Result<bool, RunError> {
        let Some(place) = self.agenda.replays.place(candidate) else { return Ok(false) };
        let replay = self.agenda.replays.underway[place].replay;
        self.replay_done(replay, status, blame, detail.to_owned(), Some(place))?;
        Ok(true)
    }

    fn replay_done(
        &mut self,
        replay: usize,
        status: Status,
        blame: Option<Blame>,
        detail: String,
        underway: Option<usize>,
    ) -> Result<(), RunError> {
        let name = self.agenda.plan.replays[replay].name.clone();
        let underway = underway.map(|place| &mut self.agenda.replays.underway[place]);
        let (mut end, mut peak, mut inputs) = (None, None, None);
        if let Some(it) = underway {
            (end, peak, inputs) = (it.report.take(), it.peak_owed, Some(it.inputs.clone()));
        }
        // What did not pass has no result, whatever a report holds.
        self.agenda.replays.figures[replay] = end
            .as_ref()
            .and_then(|report| Some(Figures::of(measured(report)?)))
            .filter(|_| status == Status::Passed);
        let (result, failure, ms) = match end {
            Some(report) if status == Status::Passed => {
                (measured(&report).cloned(), None, Some(report.head.ms))
            }
            Some(Report { head, .. }) => (None, head.failures.into_iter().next(), Some(head.ms)),
            None => (None, None, None),
        };
        self.books.store.replay_finished(&ReplayEnd {
            name: name.clone(),
            status,
            blame,
            detail: Some(detail).filter(|detail| !detail.is_empty()),
            ended: UtcTime::now(),
            ms,
            peak_owed: peak,
            inputs: inputs.filter(|_| status == Status::Passed),
            result,
            failure,
        })?;
        self.agenda.replays.ends[replay] = Some(status);
        tracing::info!(replay = name, status = status.name(), "replay");
        self.desk.progress.said(&format!("{:<20} replay {name}", status.name()));
        let standing = self.view().replay_standing(replay);
        self.desk.tell(|| notifications::replay(standing));
        self.books.write_summary(self.machine.sampler.totals)
    }
}

impl Agenda<'_> {
    fn prepare_replay(&self, place: usize) -> Result<Underway, (Status, String)> {
        let (replay, facts) = (&self.plan.replays[place], &self.replays.facts[place]);
        if let Some(why) = &facts.broken {
            return Err((Status::CaptureError, why.clone()));
        }
        let mut chosen: Vec<Chosen> = Vec::new();
        for (job, _) in &facts.steps {
            if !chosen.iter().any(|it| it.job == *job) {
                let steps = facts.steps.iter().filter(|(other, _)| other == job);
                let entries: Vec<EntryId> = steps
                    .filter_map(|(job, at)| Some(self.facts.get(job.index())?.entries.get(*at)?.entry.id))
                    .collect();
                chosen.push(self.choose(replay, *job, &entries).map_err(|why| (Status::Skipped, why))?);
            }
        }
        let inputs =
            chosen.iter().map(|it| it.callee.callee.artifact.digest.as_str()).collect::<Vec<_>>().join(" ");
        Ok(Underway {
            replay: place,
            chosen,
            inputs,
            attempts: 0,
            started: None,
            predicted: Bytes::ZERO,
            peak_owed: None,
            report: None,
        })
    }

    /// Who makes the calls of a job: the winner or the baseline, where it does all of these entries.
    fn choose(&self, replay: &ReplayPlan, id: JobId, entries: &[EntryId]) -> Result<Chosen, String> {
        let job = self.plan.job(id).ok_or_else(|| format!("there is no {id}"))?;
        let winner = match replay.candidates {
            ReplayCandidates::Winners => self.winner(job),
            ReplayCandidates::Baseline => None,
        };
        let does_them = |id: &CandidateId| {
            let known = &self.known[id.index()];
            known.status == Some(Status::Passed) && !entries.iter().any(|it| known.unsupported.contains(it))
        };
        let candidate =
            winner.filter(does_them).or_else(|| job.baseline.filter(does_them)).ok_or_else(|| {
                let wanted = match replay.candidates {
                    ReplayCandidates::Winners => {
                        "no winner, and no baseline that passed, that does all of its entries"
                    }
                    ReplayCandidates::Baseline => "no baseline that passed and does all of its entries",
                };
                format!("job `{}` has {wanted}", job.name)
            })?;
        let callee = self.callee(candidate).ok_or_else(|| format!("{candidate} was never built"))?;
        let verify =
            self.plan.candidate(candidate).map_or_else(|| (*job.verify).clone(), |it| (*it.verify).clone());
        Ok(Chosen { job: id, callee: ReplayCallee { job: job.name.clone(), callee, verify } })
    }

    /// A core in which everything of the plan is over and the replays are to come.
    fn replay_spec(&mut self, before: &RunSpec) -> RunSpec {
        let nothing = StageSpec {
            predicted: Bytes::ZERO,
            reserved: Bytes::ZERO,
            device: Bytes::ZERO,
            deadline: std::time::Duration::ZERO,
            batch: None,
        };
        let none: Arc<[StageSpec]> = Arc::from([nothing]);
        let over = |(index, known): (usize, &Known)| CandidateSpec {
            id: CandidateId(u32::try_from(index).unwrap_or(u32::MAX)),
            job: JobId(0),
            partial: false,
            build: nothing,
            verify: nothing,
            profile: none.clone(),
            paired: none.clone(),
            replay: None,
            resumed: Some(Resumed::Done {
                status: known.status.unwrap_or(Status::Skipped),
                may_profile: false,
            }),
        };
        let mut candidates: Vec<CandidateSpec> = self.known.iter().enumerate().map(over).collect();
        let of_plan = |job: &crate::plan::JobPlan| JobSpec {
            id: job.id,
            baseline: None,
            candidates: Vec::new(),
            recycle: (*job.recycle).clone(),
            broken: None,
            timed: false,
        };
        let mut jobs: Vec<JobSpec> = self.plan.jobs.iter().map(of_plan).collect();
        let cores = self.cores;
        for underway in &mut self.replays.underway {
            let limits: Vec<&LimitSettings> =
                underway.chosen.iter().map(|it| &it.callee.callee.limits).collect();
            let longest = underway.chosen.iter().max_by_key(|it| it.callee.verify.call_timeout);
            let verify = longest.map_or(&*self.plan.settings.verify, |it| &it.callee.verify);
            let (replay, facts) = (&self.plan.replays[underway.replay], &self.replays.facts[underway.replay]);
            let stage = facts.prediction(replay, self.facts, &limits, verify, cores).spec;
            underway.predicted = stage.predicted;
            let id = CandidateId(u32::try_from(candidates.len()).unwrap_or(u32::MAX));
            let job = JobId(u32::try_from(jobs.len()).unwrap_or(u32::MAX));
            candidates.push(CandidateSpec {
                id,
                job,
                partial: false,
                build: nothing,
                verify: nothing,
                profile: none.clone(),
                paired: none.clone(),
                replay: Some(stage),
                resumed: None,
            });
            jobs.push(JobSpec {
                id: job,
                baseline: None,
                candidates: vec![id],
                recycle: (*self.plan.settings.recycle).clone(),
                broken: None,
                timed: false,
            });
        }
        RunSpec { verify: false, profile: false, jobs, candidates, ..before.clone() }
    }

    /// `replay NAME`, for one that stands for a replay.
    pub(crate) fn replay_name(&self, candidate: CandidateId) -> Option<String> {
        let underway = self.replays.underway.get(self.replays.place(candidate)?)?;
        Some(format!("replay {}", self.plan.replays[underway.replay].name))
    }

    fn replay_task(&self, underway: &Underway) -> Option<ReplayTask> {
        let (replay, facts) = (&self.plan.replays[underway.replay], &self.replays.facts[underway.replay]);
        let steps = facts.steps.iter().enumerate().map(|(step, (job, _))| {
            let callee = underway.chosen.iter().position(|it| it.job == *job)?;
            let entry: EntryRef = facts.fact(self.facts, step)?.entry.clone();
            Some(ReplayCall { callee: u32::try_from(callee).ok()?, entry })
        });
        let bytes: Bytes = facts
            .steps
            .iter()
            .enumerate()
            .filter_map(|(step, _)| Some(facts.fact(self.facts, step)?.entry.numbers.file))
            .sum();
        Some(ReplayTask {
            name: replay.name.clone(),
            steps: steps.collect::<Option<Vec<_>>>()?,
            callees: underway.chosen.iter().map(|it| it.callee.clone()).collect(),
            budget: replay.budget,
            pin: replay.pin.clone(),
            prefetch: replay.prefetch,
            recording: self.folder.path().join(FOLDER).join(format!("{}.recording", replay.name)),
            drop_cache: self.cache_budget < bytes,
        })
    }
}

fn measured(report: &Report) -> Option<&ReplayResult> {
    match &report.body {
        Body::Replay(replayed) => replayed.result.as_deref(),
        Body::Build(_) | Body::Verify(_) | Body::Profile(_) => None,
    }
}
