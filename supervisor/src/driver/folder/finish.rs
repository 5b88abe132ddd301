//! Finishes a job or the run: determines ranks, winners, statuses and the exit code.

use opt_shared::ids::{CandidateId, JobId};
use opt_shared::outcome::{Estimate, Status};
use opt_shared::settings::ProfileEntries;

use super::ranking::{Doubt, Scores, Timed, Winner, scores};
use crate::core::event::StopReason;
use crate::driver::RunError;
use crate::driver::answer::notifications;
use crate::driver::run::Run;
use crate::driver::run::agenda::Agenda;
use crate::driver::run::watchdog::Part;
use crate::exit::Exit;
use crate::plan::{CandidatePlan, JobPlan};
use crate::record::{JobStatus, Ranking, RunStatus, UtcTime};
use crate::store::JobEnd;

/// A candidate counts as undisturbed if it waited for a CPU for at most this share of its time.
const MAX_UNDISTURBED_WAIT: f64 = 0.02;
/// The largest bound of a speed-up, and the largest lead in per cent, that are shown as numbers. On a busy machine, a
/// bound can be a million, which only means that it is unknown.
const MAX_BOUND: f64 = 999.0;

/// The outcome of a job, from which the exit code is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Good,
    NonePassed,
    DoesNotFit,
}

impl Run<'_> {
    /// Records the end of a job: its scores, its status and its winner.
    pub(crate) fn job_done(&mut self, id: JobId, baseline_failed: bool) -> Result<(), RunError> {
        let Some(job) = self.agenda.plan.jobs.get(id.index()) else { return Ok(()) };
        let name = job.name.clone();
        let scores = self.agenda.job_scores(job);
        let end = self.agenda.job_end(job, baseline_failed, &scores);
        if end.status == JobStatus::BaselineFailed {
            self.agenda.without_baseline.insert(id);
        }
        self.endpoints.notify(|| notifications::job(&name, &end));
        self.records.writer.write(move |store| {
            store.scores(&scores.rows)?;
            store.job_status(id, &end)
        });
        self.records.write_summary(self.machine.sampler.totals);
        Ok(())
    }

    /// Records the end of the run and returns the exit code.
    pub(crate) fn finish(&mut self, stop: &StopReason) -> Result<Exit, RunError> {
        self.endpoints.progress.clear();
        let was_not_skipped = |job: &&JobPlan| {
            !job.candidates
                .iter()
                .all(|it| self.agenda.candidate_facts[it.id.index()].status == Some(Status::Skipped))
        };
        let verdicts: Vec<Verdict> = self
            .agenda
            .plan
            .jobs
            .iter()
            .filter(was_not_skipped)
            .map(|job| self.agenda.verdict(job))
            .collect();
        let (status, exit) = match stop {
            StopReason::Interrupted => (RunStatus::Interrupted, Exit::Interrupted),
            StopReason::HostFailure { why } => {
                tracing::error!("{why}");
                (RunStatus::Failed, Exit::Host)
            }
            // Every candidate was skipped, for example because its job was cancelled.
            StopReason::Finished if verdicts.is_empty() => (RunStatus::Finished, Exit::NonePassed),
            StopReason::Finished if verdicts.iter().all(|it| *it == Verdict::DoesNotFit) => {
                (RunStatus::Finished, Exit::Host)
            }
            // A candidate without a verdict might have been the winner.
            StopReason::Finished if self.agenda.has_infra_error() => (RunStatus::Finished, Exit::Host),
            // A replay is skipped because of a job. That job's verdict already counts, so the replay's does not.
            StopReason::Finished
                if verdicts.iter().all(|it| *it == Verdict::Good)
                    && self
                        .agenda
                        .replays
                        .ends
                        .iter()
                        .all(|it| matches!(it, Some(Status::Passed | Status::Skipped))) =>
            {
                (RunStatus::Finished, Exit::Good)
            }
            StopReason::Finished => (RunStatus::Finished, Exit::NonePassed),
        };
        let (samples, totals, ended) =
            (self.records.evidence.take(), self.machine.sampler.totals, UtcTime::now());
        // The disturbances of the whole run are known only at its end.
        let host = self.machine.record();
        self.records.writer.write(move |store| {
            store.samples(&samples)?;
            store.host(&host)?;
            store.memory(totals)?;
            store.run_finished(status, i32::from(exit.code()), ended)
        });
        self.settle(stop)?;
        self.watchdog.enter(Part::WritingTheLastSummary);
        self.records.summaries.write_last()?;
        Ok(exit)
    }
}

impl Agenda<'_> {
    /// Returns whether any candidate or replay has the status INFRA_ERROR, which means that it has no verdict.
    fn has_infra_error(&self) -> bool {
        let candidates = self.candidate_facts.iter().map(|facts| facts.status);
        candidates.chain(self.replays.ends.iter().copied()).any(|status| status == Some(Status::InfraError))
    }

    pub(crate) fn job_scores(&self, job: &JobPlan) -> Scores {
        let (facts, distinct) =
            (&self.facts[job.id.index()], job.profile.entries == ProfileEntries::Distinct);
        let timed_candidates: Vec<Timed<'_>> = job
            .candidates
            .iter()
            .filter_map(|candidate| {
                let result = &self.candidate_facts[candidate.id.index()];
                let summary = result.profile.as_ref()?;
                (result.status == Some(Status::Passed) && summary.has_entries()).then_some(Timed {
                    id: candidate.id,
                    is_baseline: job.baseline == Some(candidate.id),
                    summary,
                    left_out: facts.weight_left_out(distinct, &result.unsupported),
                })
            })
            .collect();
        scores(&timed_candidates, job.profile.min_improvement)
    }

    /// Returns the winner of a job, if there is one.
    pub(crate) fn winner(&self, job: &JobPlan) -> Option<CandidateId> {
        match self.job_scores(job).winner() {
            Winner::Is(id) => Some(id),
            Winner::Nobody | Winner::Uncertain => None,
        }
    }

    /// Returns how a job has ended: its status, its winner and the reasons.
    fn job_end(&self, job: &JobPlan, baseline_failed: bool, scores: &Scores) -> JobEnd {
        let facts = &self.facts[job.id.index()];
        if let Some(broken) = &facts.broken {
            return JobEnd { detail: Some(broken.clone()), ..JobEnd::of(JobStatus::CaptureError) };
        }
        let status_of = |id: CandidateId| self.candidate_facts[id.index()].status;
        let all = |status| job.candidates.iter().all(|it| status_of(it.id) == Some(status));
        if all(Status::DoesNotFit) {
            return JobEnd::of(JobStatus::DoesNotFit);
        }
        if all(Status::Skipped) {
            return JobEnd::of(JobStatus::Skipped);
        }
        let (winner, mut detail) = match scores.winner() {
            Winner::Is(id) => (job.candidates.iter().find(|it| it.id == id).map(|it| it.name.clone()), None),
            Winner::Uncertain => {
                let percent = job.profile.min_improvement * 100.0;
                let why = format!(
                    "no candidate is at least {percent:.1} % faster than the baseline with sufficient confidence (min_improvement)"
                );
                (None, Some(why))
            }
            Winner::Nobody => (None, None),
        };
        let status = if baseline_failed && job.baseline.is_some() {
            detail = job.baseline.and_then(status_of).map(|status| match status {
                Status::Passed => {
                    "the baseline passed verification, but failed while it was timed with a candidate (see \
                     `baseline_lost` in the policy log)"
                        .to_owned()
                }
                status => format!("the baseline ended with status {status}"),
            });
            JobStatus::BaselineFailed
        } else if self.allows_success(job) {
            detail = self.not_timed_because(job).map(|why| format!("nothing was timed: {why}")).or(detail);
            JobStatus::Passed
        } else {
            detail = self.why_none_counts(job).or(detail);
            JobStatus::NonePassed
        };
        let unsettled_because = scores.doubt().map(|doubt| self.explanation(job, scores, doubt));
        let ranking = match unsettled_because {
            Some(_) => Some(Ranking::Unsettled),
            None => (!scores.rows.is_empty()).then_some(Ranking::Settled),
        };
        let winner_confirmed = scores.winner_is_confirmed();
        JobEnd { status, detail, winner, winner_confirmed, ranking, unsettled_because }
    }

    /// Explains why the ranking is unsettled, and what the user can change to settle it.
    fn explanation(&self, job: &JobPlan, scores: &Scores, doubt: Doubt) -> String {
        let name = |id: CandidateId| {
            job.candidates.iter().find(|it| it.id == id).map_or_else(String::new, |it| it.name.clone())
        };
        let (candidate, what) = match doubt {
            Doubt::Faster { candidate, speedup } => (
                candidate,
                format!(
                    "the speed-up of `{}` {}, so it is unclear whether the candidate is at least {:.1} % faster than the baseline",
                    name(candidate),
                    known_range(&speedup),
                    job.profile.min_improvement * 100.0
                ),
            ),
            Doubt::Unchecked { candidate } => {
                return format!(
                    "the job names no baseline, so the outputs of `{}` in timed calls were compared only with the outputs of a \
                     second process of the same candidate (name a `baseline`)",
                    name(candidate)
                );
            }
            Doubt::SpeedupTooWide { candidate, speedup } => (
                candidate,
                format!(
                    "`{}` is faster than the baseline, but it is unclear by how much: its speed-up {}",
                    name(candidate),
                    known_range(&speedup)
                ),
            ),
            Doubt::Best { candidate, share, .. } => {
                let name = name(candidate);
                let by = if share * 100.0 <= MAX_BOUND {
                    format!("up to {:.0} % ", share * 100.0)
                } else {
                    String::new()
                };
                (candidate, format!("`{name}` could still be {by}faster than the current best candidate"))
            }
        };
        let row = scores.rows.iter().find(|(id, _)| *id == candidate).map(|(_, row)| row);
        let wait_share =
            row.and_then(|row| row.times.wait_share).filter(|share| MAX_UNDISTURBED_WAIT < *share);
        let wait_note = wait_share
            .map(|share| {
                format!("; its processes spent up to {:.0} % of their time waiting for a CPU", share * 100.0)
            })
            .unwrap_or_default();
        format!(
            "{what}{wait_note} (use a less busy machine, keep CPUs free, lower `limits.threads`, or raise `profile.entry_timeout`)"
        )
    }

    /// Explains why the candidates that passed were not timed, if the reason is their device or their languages.
    fn not_timed_because(&self, job: &JobPlan) -> Option<&'static str> {
        let passed = |it: &&CandidatePlan| {
            job.baseline != Some(it.id) && self.candidate_facts[it.id.index()].status == Some(Status::Passed)
        };
        let mut reasons =
            job.candidates.iter().filter(passed).map(|it| self.plan.candidate_not_timed_because(it));
        let first = reasons.next().unwrap_or_else(|| self.plan.not_timed_because())?;
        reasons.all(|reason| reason.is_some()).then_some(first)
    }

    /// Explains why passing candidates do not count: none was timed, or none was fast enough.
    fn why_none_counts(&self, job: &JobPlan) -> Option<String> {
        let passed = |it: &&CandidatePlan| {
            job.baseline != Some(it.id) && self.candidate_facts[it.id.index()].status == Some(Status::Passed)
        };
        let count = job.candidates.iter().filter(passed).count();
        if count == 0 {
            return None;
        }
        let timed = self.facts[job.id.index()].entries.iter().any(|fact| fact.scored);
        if let Some(why) = self.not_timed_because(job) {
            let min_speedup_note = self
                .min_speedup
                .map_or_else(String::new, |least| format!(" (--min-speedup {least} asks for times)"));
            return Some(format!("{count} passed verification and none was timed: {why}{min_speedup_note}"));
        }
        Some(match self.min_speedup {
            _ if !timed => format!(
                "{count} passed verification and none was timed: in every entry an output has no elements, or shares memory with an input"
            ),
            Some(least) => {
                format!(
                    "{count} passed, none of them {least} times as fast as the baseline with sufficient confidence (--min-speedup)"
                )
            }
            None => format!("{count} passed verification and none was timed"),
        })
    }

    /// Returns whether a job allows exit code 0. A candidate other than the baseline must have passed and been timed.
    /// If the job has only a baseline, the baseline counts. Passing is enough if the plan has no profile stage, or if
    /// the candidate cannot be timed. With `--min-speedup`, the candidate must also be that much faster than the
    /// baseline.
    fn allows_success(&self, job: &JobPlan) -> bool {
        let only_baseline = job.candidates.len() == 1 && job.baseline.is_some();
        let profiled = self.plan.stages().profile;
        let scores = self.min_speedup.map(|least| (least, self.job_scores(job)));
        job.candidates.iter().filter(|it| only_baseline || job.baseline != Some(it.id)).any(|it| {
            let result = &self.candidate_facts[it.id.index()];
            let is_timed = profiled && self.plan.candidate_not_timed_because(it).is_none();
            let passed = result.status == Some(Status::Passed) && (!is_timed || result.profile.is_some());
            let fast = scores.as_ref().is_none_or(|(least, scores)| {
                scores.rows.iter().any(|(id, row)| {
                    *id == it.id && row.speedup.is_some_and(|speedup| *least <= speedup.ci_low)
                })
            });
            passed && fast
        })
    }

    fn verdict(&self, job: &JobPlan) -> Verdict {
        let status = |id: CandidateId| self.candidate_facts[id.index()].status;
        if job.candidates.iter().all(|it| status(it.id) == Some(Status::DoesNotFit)) {
            return Verdict::DoesNotFit;
        }
        let has_baseline = !self.without_baseline.contains(&job.id);
        if self.allows_success(job) && has_baseline { Verdict::Good } else { Verdict::NonePassed }
    }
}

/// Returns the interval of a speed-up in words, as the end of a sentence.
fn known_range(speedup: &Estimate) -> String {
    let Estimate { ci_low, ci_high, .. } = speedup;
    match (0.005 <= *ci_low, *ci_high <= MAX_BOUND) {
        (_, true) => format!("lies between {ci_low:.2} and {ci_high:.2}"),
        (true, false) => format!("is at least {ci_low:.2}"),
        (false, false) => "is unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_of_a_speedup_names_only_known_bounds() {
        for (ci_low, ci_high, expected) in [
            (0.97, 1.04, "lies between 0.97 and 1.04"),
            (0.0, 2.0, "lies between 0.00 and 2.00"),
            (5.0, 999.0, "lies between 5.00 and 999.00"),
            (0.31, 1e6, "is at least 0.31"),
            (0.31, f64::INFINITY, "is at least 0.31"),
            (1e-9, 1e12, "is unknown"),
        ] {
            assert_eq!(known_range(&Estimate { value: 1.0, ci_low, ci_high }), expected);
        }
    }
}
