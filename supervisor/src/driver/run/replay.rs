//! Supplies the core with replays, and records their results. A replay is offered when the jobs before it are over,
//! because these jobs determine which candidates make its calls.
//!
//! This file converts a plan's `[[replay]]` to a task, and records its end. The worker manages the pool.

use opt_shared::formula::RunnerTerms;
use opt_shared::ids::{CandidateId, EntryId, JobId};
use opt_shared::language::Launcher;
use opt_shared::message::{EntryRef, ReplayCall, ReplayCallee, ReplayTask, Role, Task, Work};
use opt_shared::outcome::{Body, ReplayResult, Report, Status};
use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

use super::Run;
use super::agenda::Agenda;
use super::supply::{EndedAttempt, Grant, Source, Subject, UnitEnd};
use crate::core::event::{Offer, PhaseRow, PolicyRow};
use crate::core::spec::{Step, UnitSpec};
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::driver::answer::replay_state::Figures;
use crate::driver::folder::register::KeptReplay;
use crate::driver::survey::needs::workspaces_of;
use crate::driver::survey::replay_facts::{Callees, ReplayFacts};
use crate::driver::survey::spec::replay_of_job;
use crate::plan::{CandidatePlan, ReplayCandidates, ReplayPlan};
use crate::record::UtcTime;
use crate::store::{AttemptEnd, ReplayEnd, ReplayStart};

/// The folder for recordings of replays, within the run's folder.
const FOLDER: &str = "replay";

/// The candidate that makes the calls of a job's steps.
struct Chosen {
    job: JobId,
    callee: ReplayCallee,
}

/// A replay that has been offered.
pub(crate) struct OfferedReplay {
    chosen: Vec<Chosen>,
    /// The identity of the builds of these candidates.
    inputs: String,
    peak_owed: Option<Bytes>,
    report: Option<Report>,
}

/// The replays of a run, in the plan's order.
pub(crate) struct Replaying<'a> {
    facts: &'a [ReplayFacts],
    /// The results from an earlier part of the run. Each comes with a description of what it depends on.
    kept: Vec<Option<KeptReplay>>,
    underway: Vec<Option<OfferedReplay>>,
    /// Whether the core has asked for any replay yet.
    has_begun: bool,
    /// The status of each replay that has ended.
    pub(crate) ends: Vec<Option<Status>>,
    /// The figures of each replay that passed.
    pub(crate) figures: Vec<Option<Figures>>,
}

impl<'a> Replaying<'a> {
    pub(crate) fn new(facts: &'a [ReplayFacts], mut kept: Vec<Option<KeptReplay>>) -> Self {
        let count = facts.len();
        kept.resize(count, None);
        Self {
            facts,
            kept,
            underway: std::iter::repeat_with(|| None).take(count).collect(),
            has_begun: false,
            ends: vec![None; count],
            figures: vec![None; count],
        }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.has_begun
    }
}

pub(super) struct Replays;

impl Source for Replays {
    fn field(&self) -> &'static str {
        "replay"
    }

    fn name(&self, agenda: &Agenda<'_>, index: usize) -> String {
        agenda.plan.replays.get(index).map_or_else(String::new, |replay| format!("replay {}", replay.name))
    }

    /// Offers the replay, unless it cannot be run or its result is known from an earlier part of the run.
    fn wanted(
        &self,
        run: &mut Run<'_>,
        job: JobId,
        _capacity: u32,
    ) -> Result<(Vec<UnitSpec>, Offer), RunError> {
        run.agenda.replays.has_begun = true;
        let index = replay_of_job(&run.agenda.plan, job);
        let unit = match index {
            Some(index) => run.replay_unit(index)?,
            None => None,
        };
        Ok((unit.into_iter().collect(), Offer::Asked { more: false }))
    }

    fn begin(&self, run: &mut Run<'_>, index: usize, grant: &Grant) -> Result<(u32, Option<Task>), RunError> {
        let Some(task) = run.agenda.replay_task(index, grant.device_cap) else {
            return Ok((grant.attempt, None));
        };
        let started = ReplayStart {
            name: task.name.clone(),
            started: UtcTime::now(),
            worker: grant.worker,
            lease: grant.lease,
            attempts: grant.attempt,
            predicted: grant.reserved,
        };
        run.records.writer.write(move |store| store.replay_started(&started));
        let floor = &run.agenda.replays.facts[index].floor;
        let name = self.name(&run.agenda, index);
        let row = PolicyRow {
            decision: "replay_pool",
            reason: format!("{name}: the pool holds only the tensors that the next steps use"),
            numbers: vec![
                ("budget_bytes", task.budget.get()),
                ("floor_bytes", floor.bytes().get()),
                ("all_resident_bytes", floor.whole.get()),
                ("pinned_bytes", floor.pinned.get()),
                ("prefetch", u64::from(task.prefetch)),
                ("steps", task.steps.len() as u64),
            ],
        };
        run.policy(&row);
        Ok((grant.attempt, Some(Task { lease: grant.lease, work: Work::Replay(task) })))
    }

    fn attempt_ended(
        &self,
        run: &mut Run<'_>,
        index: usize,
        _attempt: &EndedAttempt,
        end: AttemptEnd,
    ) -> Result<(), RunError> {
        if let Some(underway) = &mut run.agenda.replays.underway[index] {
            underway.report = end.report;
        }
        Ok(())
    }

    fn phase_ended(&self, run: &mut Run<'_>, index: usize, row: &PhaseRow) -> Result<(), RunError> {
        if let Some(underway) = &mut run.agenda.replays.underway[index] {
            underway.peak_owed = underway.peak_owed.max(Some(row.peak_owed));
        }
        run.records.replay_phase(run.agenda.plan.replays[index].name.clone(), row);
        Ok(())
    }

    fn done(&self, run: &mut Run<'_>, index: usize, end: UnitEnd) -> Result<(), RunError> {
        let UnitEnd { status, blame, detail } = end;
        let name = run.agenda.plan.replays[index].name.clone();
        let (mut report, mut peak_owed, mut inputs) = (None, None, None);
        if let Some(underway) = run.agenda.replays.underway[index].take() {
            (report, peak_owed, inputs) = (underway.report, underway.peak_owed, Some(underway.inputs));
        }
        // A replay that did not pass has no result, even if its report contains one.
        let passed = status == Status::Passed;
        run.agenda.replays.figures[index] =
            report.as_ref().filter(|_| passed).and_then(|report| Some(Figures::of(replay_result(report)?)));
        let ms = report.as_ref().map(|report| report.head.ms);
        let (result, failure) = match report {
            Some(report) if passed => (replay_result(&report).cloned(), None),
            Some(report) => (None, report.head.failures.into_iter().next()),
            None => (None, None),
        };
        let end = ReplayEnd {
            name: name.clone(),
            status,
            blame,
            detail: Some(detail).filter(|detail| !detail.is_empty()),
            ended: UtcTime::now(),
            ms,
            peak_owed,
            inputs: inputs.filter(|_| passed),
            result,
            failure,
        };
        run.records.writer.write(move |store| store.replay_finished(&end));
        run.agenda.replays.ends[index] = Some(status);
        tracing::info!(replay = name, status = status.name(), "replay");
        run.endpoints.progress.print(format!("{:<20} replay {name}", status.name()));
        let state = run.view().replay_state(index);
        run.endpoints.notify(|| notifications::replay(state));
        run.records.write_summary(run.machine.sampler.totals);
        Ok(())
    }
}

impl Run<'_> {
    /// Creates the unit of a replay. Returns `None` if the replay ends without being run. It then either cannot be run,
    /// or its result for the same builds is known from an earlier part of the run.
    fn replay_unit(&mut self, index: usize) -> Result<Option<UnitSpec>, RunError> {
        let underway = match self.agenda.prepare_replay(index) {
            Ok(underway) => underway,
            Err((status, detail)) => {
                Replays.done(self, index, UnitEnd { status, blame: status.blame(), detail })?;
                return Ok(None);
            }
        };
        let stored = self.agenda.replays.kept[index].take();
        match stored.filter(|(before, _)| *before == underway.inputs) {
            Some((_, result)) => {
                self.agenda.replays.ends[index] = Some(Status::Passed);
                self.agenda.replays.figures[index] = Some(Figures::of(&result));
                Ok(None)
            }
            None => {
                let step = self.agenda.replay_step(index, &underway);
                self.agenda.replays.underway[index] = Some(underway);
                let id = self
                    .agenda
                    .units
                    .assign_number(Subject::Replay(u32::try_from(index).unwrap_or(u32::MAX)));
                let (is_baseline, partial) = (false, false);
                Ok(Some(UnitSpec { id, route: [step].into(), is_baseline, partial, resumed: None }))
            }
        }
    }
}

impl Agenda<'_> {
    /// Chooses the candidates that make the calls of a replay. The error contains the replay's final status and the
    /// reason.
    fn prepare_replay(&self, index: usize) -> Result<OfferedReplay, (Status, String)> {
        let (replay, facts) = (&self.plan.replays[index], &self.replays.facts[index]);
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
        Ok(OfferedReplay { chosen, inputs, peak_owed: None, report: None })
    }

    /// Returns the step that runs a replay. Nothing else runs at the same time, because the measured times are the
    /// replay's result.
    fn replay_step(&self, index: usize, underway: &OfferedReplay) -> Step {
        let callees = underway.chosen.iter().map(|it| &it.callee.callee);
        let runners: Vec<RunnerTerms<'_>> =
            callees.map(|it| RunnerTerms { limits: &it.limits, launcher: it.launcher }).collect();
        let longest = underway.chosen.iter().max_by_key(|it| it.callee.verify.call_timeout);
        let verify = longest.map_or(&*self.plan.settings.verify, |it| &it.callee.verify);
        let (replay, facts) = (&self.plan.replays[index], &self.replays.facts[index]);
        let callees = underway.chosen.iter().map(|it| &it.callee.callee);
        let workspaces = callees.map(|it| workspaces_of(it.launcher, &it.launch)).max().unwrap_or(0);
        let callees = Callees { runners: &runners, workspaces, device: self.plan.device() };
        let way = facts.prediction(replay, self.facts, &callees, verify, self.cores).spec;
        Step { stage: Stage::Replay, role: Role::Profiler, exclusive: true, ways: [way].into(), paired: None }
    }

    /// Chooses the candidate that makes the calls of a job: the winner, if the replay uses winners, or else the
    /// baseline. The candidate must have passed, support all of `entries` and, on a device, have no host code.
    fn choose(&self, replay: &ReplayPlan, id: JobId, entries: &[EntryId]) -> Result<Chosen, String> {
        let job = self.plan.job(id).ok_or_else(|| format!("there is no {id}"))?;
        let winner = match replay.candidates {
            ReplayCandidates::Winners => self.winner(job),
            ReplayCandidates::Baseline => None,
        };
        let supports_all = |id: &CandidateId| {
            let result = &self.candidate_facts[id.index()];
            let is_launched = |it: &CandidatePlan| it.source.language.kind().launcher == Launcher::Kernel;
            let can_use_the_pool =
                !self.plan.device().runs_device_code() || self.plan.candidate(*id).is_some_and(is_launched);
            can_use_the_pool
                && result.status == Some(Status::Passed)
                && !entries.iter().any(|it| result.unsupported.contains(it))
        };
        let candidate =
            winner.filter(supports_all).or_else(|| job.baseline.filter(supports_all)).ok_or_else(|| {
                let wanted = match replay.candidates {
                    ReplayCandidates::Winners => {
                        "neither a winner nor a passing baseline that supports all entries of the replay"
                    }
                    ReplayCandidates::Baseline => {
                        "no passing baseline that supports all entries of the replay"
                    }
                };
                if self.plan.device().runs_device_code() {
                    format!(
                        "neither the winner nor the baseline of job `{}` is a kernel that the worker launches, passed, and \
                         supports all entries of the replay",
                        job.name
                    )
                } else {
                    format!("job `{}` has {wanted}", job.name)
                }
            })?;
        let callee =
            self.callee(candidate).ok_or_else(|| format!("{} was never built", self.full_name(candidate)))?;
        let verify =
            self.plan.candidate(candidate).map_or_else(|| (*job.verify).clone(), |it| (*it.verify).clone());
        Ok(Chosen { job: id, callee: ReplayCallee { job: job.name.clone(), callee, verify } })
    }

    fn replay_task(&self, index: usize, device_cap: Bytes) -> Option<ReplayTask> {
        let underway = self.replays.underway.get(index)?.as_ref()?;
        let (replay, facts) = (&self.plan.replays[index], &self.replays.facts[index]);
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
            device_cap,
            pin: replay.pin.clone(),
            prefetch: replay.prefetch,
            recording: self.folder.path().join(FOLDER).join(format!("{}.recording", replay.name)),
            drop_cache: self.cache_budget < bytes,
        })
    }
}

fn replay_result(report: &Report) -> Option<&ReplayResult> {
    match &report.body {
        Body::Replay(replayed) => replayed.result.as_deref(),
        Body::Build(_) | Body::Verify(_) | Body::Profile(_) => None,
    }
}
