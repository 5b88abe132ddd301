//! Supplies the core with candidates, and records their results. Candidates of the plan are offered when the core asks
//! for their job, and submitted candidates when they arrive.

use opt_shared::batch::{Share, batches, input_bytes};
use opt_shared::ids::{CandidateId, JobId};
use opt_shared::message::{EntryRef, Task, Work};
use opt_shared::outcome::{Body, DevicePoint, Report, Status};
use opt_shared::stage::Stage;

use super::Run;
use super::agenda::Agenda;
use super::supply::{EndedAttempt, Grant, Source, Subject, UnitEnd};
use crate::core::event::{Answer, Event, Offer, PhaseRow, PolicyRow};
use crate::core::spec::UnitSpec;
use crate::driver::RunError;
use crate::driver::folder::reads;
use crate::driver::folder::writer::FollowUp;
use crate::driver::survey::needs::JobNeeds;
use crate::driver::survey::spec::unit_spec;
use crate::record::UtcTime;
use crate::report::feedback::{feedback, feedback_without_report};
use crate::store::{AttemptEnd, AttemptKey, AttemptRow, CandidateEnd};

/// The number of batches that a policy row names. Further batches are only counted.
const NAMED_BATCHES: usize = 8;

pub(super) struct Candidates;

/// The part of an attempt's report that is needed when the attempt ends its candidate.
pub(super) struct EndingReport {
    candidate: CandidateId,
    stage: Stage,
    feedback: String,
}

impl Source for Candidates {
    fn field(&self) -> &'static str {
        "candidate"
    }

    fn name(&self, agenda: &Agenda<'_>, index: usize) -> String {
        agenda.full_name(id_of(index))
    }

    /// Offers all candidates of the job at once, regardless of the capacity, because the memory that is charged for the
    /// supervisor already includes them.
    fn wanted(
        &self,
        run: &mut Run<'_>,
        job: JobId,
        _capacity: u32,
    ) -> Result<(Vec<UnitSpec>, Offer), RunError> {
        let agenda = &mut run.agenda;
        let unknown = || RunError::Law { law: format!("there is no {job} to ask for") };
        let plan = agenda.plan.job(job).ok_or_else(unknown)?;
        let facts = agenda.facts.get(job.index()).ok_or_else(unknown)?;
        let mut needs = JobNeeds::new(plan, facts, agenda.plan.stages(), agenda.plan.device(), agenda.cores);
        let units = plan.candidates.iter().map(|candidate| {
            let id = agenda.units.assign_number(Subject::Candidate(candidate.id));
            unit_spec(id, &mut needs, plan, candidate, &agenda.candidate_facts[candidate.id.index()])
        });
        let units: Vec<UnitSpec> = units.collect();
        // The units already contain the state of candidates that ended in an earlier part of the run. The artifacts of
        // these candidates are therefore dropped, unless something still uses them.
        let ids: Vec<CandidateId> = plan.candidates.iter().map(|candidate| candidate.id).collect();
        for id in ids {
            if agenda.candidate_facts[id.index()].status.is_some() {
                agenda.forget_artifact_unless_used(id);
            }
        }
        Ok((units, Offer::Asked { more: false }))
    }

    fn begin(&self, run: &mut Run<'_>, index: usize, grant: &Grant) -> Result<(u32, Option<Task>), RunError> {
        let Grant { worker, lease, order, attempt, reserved, .. } = *grant;
        let candidate = id_of(index);
        let before =
            run.agenda.candidate_facts[index].earlier_attempts.get(&order.stage).copied().unwrap_or(0);
        let number = before + attempt;
        let row = AttemptRow {
            key: AttemptKey { candidate, stage: order.stage, number },
            worker: Some(worker),
            lease: Some(lease),
            predicted: Some(reserved),
            started: UtcTime::now(),
        };
        run.records.writer.write(move |store| store.attempt_started(&row));
        let baseline = order.beside.and_then(|unit| run.agenda.units.candidate(unit));
        let task = run.agenda.task(grant, candidate, baseline);
        if let Some(row) = task.as_ref().and_then(|task| timed_together(candidate, &task.work)) {
            run.policy(&row);
        }
        Ok((number, task))
    }

    fn attempt_ended(
        &self,
        run: &mut Run<'_>,
        index: usize,
        attempt: &EndedAttempt,
        end: AttemptEnd,
    ) -> Result<(), RunError> {
        let (candidate, stage) = (id_of(index), attempt.order.stage);
        if let Some(report) = &end.report {
            run.keep_report(candidate, attempt, report);
        }
        let key = AttemptKey { candidate, stage, number: attempt.number };
        run.records.writer.write(move |store| store.attempt_finished(key, &end));
        Ok(())
    }

    fn phase_ended(&self, run: &mut Run<'_>, index: usize, row: &PhaseRow) -> Result<(), RunError> {
        run.records.phase(id_of(index), row);
        Ok(())
    }

    fn done(&self, run: &mut Run<'_>, index: usize, end: UnitEnd) -> Result<(), RunError> {
        let (candidate, UnitEnd { status, blame, detail }) = (id_of(index), end);
        run.agenda.candidate_facts[index].status = Some(status);
        run.agenda.forget_artifact_unless_used(candidate);
        // A candidate that is cancelled, or that never fits, ends without a report.
        let report = run.attempts.ending_report.take().filter(|report| report.candidate == candidate);
        let stage = report.as_ref().map(|report| report.stage);
        let feedback = report
            .map_or_else(|| feedback_without_report(Stage::Build, status, &detail), |report| report.feedback);
        let end = CandidateEnd {
            status,
            blame,
            failed_stage: stage.filter(|_| status != Status::Passed),
            detail: Some(detail).filter(|detail| !detail.is_empty()),
            feedback: Some(feedback),
        };
        run.endpoints.metrics.candidate_ended(status.name());
        run.endpoints.forecast.candidate_ended();
        let is_awaited = run.endpoints.is_awaited(candidate);
        let job = run.agenda.plan.candidate(candidate).and_then(|it| run.agenda.plan.job(it.job));
        let scores = job.filter(|_| is_awaited).map(|job| run.agenda.job_scores(job).rows);
        run.records.writer.write_then(move |store| {
            store.candidate_finished(candidate, &end)?;
            let mut record = None;
            if is_awaited {
                store.scores(scores.as_deref().unwrap_or_default())?;
                record = store.record_of(candidate)?.map(Box::new);
            }
            Ok(FollowUp::Ended(candidate, record))
        });
        Ok(())
    }
}

impl Run<'_> {
    /// Records those parts of a valid attempt's report that the rest of the run needs.
    fn keep_report(&mut self, id: CandidateId, attempt: &EndedAttempt, report: &Report) {
        let stage = attempt.order.stage;
        let facts = &mut self.agenda.candidate_facts[id.index()];
        facts.learn(stage, report, &self.agenda.folder.artifacts());
        if let Some(artifact) = facts.artifact.as_ref().filter(|_| stage == Stage::Build) {
            self.agenda.libraries.add(artifact);
        }
        if let Some(row) = reads::policy_row(id, report) {
            self.policy(&row);
        }
        if let Body::Verify(verified) = &report.body {
            self.log_device_points(id, &verified.device);
        }
        self.attempts.ending_report =
            Some(EndingReport { candidate: id, stage, feedback: feedback(stage, report) });
        if let Some(job) = self.agenda.plan.candidate(id).map(|it| it.job) {
            let passed = report.head.status == Status::Passed;
            self.endpoints.forecast.attempt_ended(job, stage, passed, attempt.took);
        }
    }

    fn log_device_points(&self, id: CandidateId, points: &[DevicePoint]) {
        for it in points {
            tracing::debug!(
                candidate = self.agenda.full_name(id),
                point = ?it.point,
                placed_bytes = it.placed_bytes.get(),
                used_bytes = it.used_bytes.get(),
                resident_bytes = it.resident_bytes.get(),
                "device memory"
            );
        }
    }

    /// Offers a submitted candidate, which has already been added to the plan.
    pub(crate) fn offer(&mut self, id: CandidateId) -> Result<Option<Answer>, RunError> {
        let unknown = || RunError::Law { law: format!("{id} belongs to no job") };
        let (job, unit) = self.agenda.unit_for_submission(id).ok_or_else(unknown)?;
        self.decisions.offer_answer = None;
        self.feed(Event::Offered { job, units: vec![unit], by: Offer::Unasked })?;
        Ok(self.decisions.offer_answer.take())
    }
}

impl Agenda<'_> {
    /// Drops the artifact of a candidate that has ended, unless the candidate is a baseline or may be called by a
    /// replay.
    fn forget_artifact_unless_used(&mut self, id: CandidateId) {
        let is_baseline = self.plan.jobs.iter().any(|job| job.baseline == Some(id));
        let facts = &mut self.candidate_facts[id.index()];
        let may_be_called = !self.plan.replays.is_empty() && facts.status == Some(Status::Passed);
        if !is_baseline && !may_be_called {
            facts.artifact = None;
        }
    }

    /// Creates a unit for a submitted candidate, and returns it with its job.
    fn unit_for_submission(&mut self, id: CandidateId) -> Option<(JobId, UnitSpec)> {
        let unit = self.units.assign_number(Subject::Candidate(id));
        let candidate = self.plan.candidate(id)?;
        let job = self.plan.job(candidate.job)?;
        let facts = self.facts.get(job.id.index())?;
        let mut needs = JobNeeds::new(job, facts, self.plan.run.stages, self.plan.device(), self.cores)
            .without_screening();
        Some((job.id, unit_spec(unit, &mut needs, job, candidate, &self.candidate_facts[id.index()])))
    }
}

fn id_of(index: usize) -> CandidateId {
    CandidateId(u32::try_from(index).unwrap_or(u32::MAX))
}

/// Returns a policy row that names the entries which are timed together. The row is made here, because the core has
/// only the sizes of the entries.
fn timed_together(candidate: CandidateId, work: &Work) -> Option<PolicyRow> {
    let Work::Profile(task) = work else { return None };
    let shares: Vec<Share<'_>> = task.entries.iter().map(EntryRef::share).collect();
    let batches = batches(&shares, task.profile.batch_bytes);
    let largest = batches.iter().map(|range| input_bytes(&shares[range.clone()])).max();
    let named: Vec<String> = batches
        .iter()
        .take(NAMED_BATCHES)
        .map(|range| match &task.entries[range.clone()] {
            [one] => one.name.clone(),
            [first, .., last] => format!("{} … {} ({})", first.name, last.name, range.len()),
            [] => String::new(),
        })
        .collect();
    let unnamed = batches.len().saturating_sub(NAMED_BATCHES);
    let and_more = if unnamed == 0 { String::new() } else { format!("; and {unnamed} more") };
    Some(PolicyRow {
        decision: "batches",
        reason: format!("timed together: {}{and_more}", named.join("; ")),
        numbers: vec![
            ("candidate", u64::from(candidate.0)),
            ("batches", batches.len() as u64),
            ("largest_bytes", largest.unwrap_or_default().get()),
            ("batch_bytes", task.profile.batch_bytes.get()),
        ],
    })
}
