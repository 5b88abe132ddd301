//! Answers requests for the state of all candidates, for the memory so far, and for decisions, and describes progress
//! and runners. This file only reads. Every answer has a bounded size, so candidates are sent in pages.

use std::collections::BTreeMap;
use std::time::Duration;

use opt_shared::ids::CandidateId;
use opt_shared::stage::Stage;
use serde_json::{Value, json};

use super::View;
use super::forecast::Open;
use crate::control::{Code, Refusal, Reply};
use crate::core::control::{RunnerView, UnitView};
use crate::core::event::Process;
use crate::plan::JobPlan;
use crate::record::PolicyRecord;
use crate::store::ScoreRow;

/// The largest number of candidates in an answer. A name takes at most a few hundred bytes, so a page fits into a
/// connection's queue, which has 512 KiB.
const PAGE: usize = 500;

impl View<'_> {
    /// Returns a page of candidates in the plan's order, starting at index `from`.
    pub(crate) fn candidates(&self, from: u32) -> Value {
        let total = self.agenda.plan.jobs.iter().map(|job| job.candidates.len()).sum::<usize>();
        let mut to_skip = from as usize;
        let mut page = Vec::new();
        for job in &self.agenda.plan.jobs {
            if job.candidates.len() <= to_skip {
                to_skip -= job.candidates.len();
                continue;
            }
            let scores: BTreeMap<CandidateId, ScoreRow> =
                self.agenda.job_scores(job).rows.into_iter().collect();
            let rest = job.candidates.iter().skip(std::mem::take(&mut to_skip)).take(PAGE - page.len());
            page.extend(rest.map(|it| self.candidate(job, it.id, scores.get(&it.id))));
            if page.len() == PAGE {
                break;
            }
        }
        json!({ "total": total, "from": from, "candidates": page })
    }

    fn candidate(&self, job: &JobPlan, id: CandidateId, score: Option<&ScoreRow>) -> Value {
        let mut answer =
            json!({ "candidate": self.agenda.full_name(id), "baseline": job.baseline == Some(id) });
        match self.state_of_candidate(id) {
            Some(UnitView::Done(status)) => answer["status"] = json!(status),
            Some(UnitView::Running { stage, attempt }) => {
                answer["stage"] = json!(stage.name());
                answer["attempt"] = json!(attempt);
                answer["running"] = json!(true);
            }
            Some(UnitView::Waiting { stage, attempt }) => {
                answer["stage"] = json!(stage.name());
                answer["attempt"] = json!(attempt);
                answer["running"] = json!(false);
            }
            None => {}
        }
        if let Some(score) = score {
            answer["rank"] = json!(score.rank);
            answer["speedup"] = json!(score.speedup);
            answer["same_inputs"] = json!(score.times.had_same_inputs());
        }
        answer
    }

    /// Returns the history of memory from a given time on. The time is in seconds since this process began.
    pub(crate) fn history(&self, since_s: f64) -> Reply {
        let since = Duration::try_from_secs_f64(since_s).map_err(|_| {
            Refusal::new(Code::InvalidParams, "`since_s` must be a number of seconds, 0 or more")
        })?;
        let slots = self
            .machine
            .history
            .since(since)
            .map(|(at, slot)| json!([at.as_secs_f64(), slot.owed, slot.reclaimable]));
        Ok(
            json!({ "width_s": self.machine.history.width().as_secs_f64(), "slots": slots.collect::<Vec<_>>() }),
        )
    }

    pub(crate) fn decisions_of(&self, rows: &[PolicyRecord]) -> Value {
        json!({ "decisions": rows.iter().map(|row| self.decision(row)).collect::<Vec<_>>() })
    }

    /// Returns the run's progress: how many candidates have ended since this process began, and how long the rest may
    /// take.
    pub(crate) fn pace(&self) -> Value {
        let now = self.decisions.now();
        let lease_ages: BTreeMap<CandidateId, Duration> = self
            .decisions
            .core
            .worker_views(now)
            .iter()
            .filter_map(|it| it.lease.as_ref())
            .filter_map(|lease| Some((self.agenda.units.candidate(lease.unit)?, lease.held)))
            .collect();
        let stages = self.agenda.plan.stages();
        let is_run = |stage: Stage| stages.runs(if stage.is_timed() { Stage::Profile } else { stage });
        let open = self.agenda.plan.candidates().filter_map(|it| match self.state_of_candidate(it.id)? {
            UnitView::Waiting { stage, .. } | UnitView::Running { stage, .. } => {
                Some(Open { job: it.job, stage, held: lease_ages.get(&it.id).copied().unwrap_or_default() })
            }
            UnitView::Done(_) => None,
        });
        // The duration of replays cannot be estimated.
        let remaining = if self.agenda.replays.has_begun() {
            None
        } else {
            self.endpoints.forecast.remaining(open, is_run)
        };
        let (ended, minutes) = (self.endpoints.forecast.ended(), now.as_secs_f64() / 60.0);
        json!({
            "candidates_ended": ended,
            "candidates_per_minute": (0 < ended).then(|| f64::from(ended) / minutes),
            "remaining_s": remaining.map(|it| it.as_secs_f64()),
        })
    }

    pub(crate) fn runner(&self, worker: opt_shared::ids::WorkerId, it: &RunnerView) -> Value {
        json!({
            "pid": it.pid,
            "age_s": self.machine.sampler.age(Process::Runner(worker, it.pid)).map(|age| age.as_secs_f64()),
            "owed_bytes": it.owed,
            "peak_owed_bytes": it.peak_owed,
            "limit_bytes": it.limit,
        })
    }
}
