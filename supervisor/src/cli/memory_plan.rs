//! Computes the memory plan that `check` prints for each job. For each stage, it contains the terms, their sum, the
//! entry that decides the sum, and the batches. It ends with the smallest ceiling under which every candidate of the
//! job runs.
//!
//! All figures come from the same formulas and the same spec that a run uses.

use std::ops::Range;

use opt_shared::batch::input_bytes;
use opt_shared::formula::Term;
use opt_shared::message::EntryRef;
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use crate::core::event::Stage;
use crate::core::predict::Prediction;
use crate::core::spec::RunSpec;
use crate::driver::survey::facts::{JobFacts, UsableEntry};
use crate::driver::survey::needs::JobNeeds;
use crate::plan::{CandidatePlan, JobPlan, Plan};
use crate::report::figures::one_line;
use opt_shared::settings::ProfileEntries;

/// The smallest saving of memory for which it is worth mentioning smaller batches.
const MIN_SAVING: Bytes = Bytes::mib(1);
/// The maximum number of batches that are listed by name. Further batches are only counted.
const MAX_NAMED_BATCHES: usize = 8;

/// The figures of one stage of a job. They are those of the candidate that needs the most memory if all candidates use
/// the smallest batches.
pub(super) struct StagePlan {
    stage: Stage,
    candidate: String,
    prediction: Prediction,
    /// The bytes that the stage needs with the smallest possible batches.
    smallest: Bytes,
    /// The entries that the indices in `prediction` refer to.
    entries: Vec<EntryRef>,
    idle_worker: Bytes,
}

pub(super) struct JobMemory {
    pub(super) stages: Vec<StagePlan>,
    /// The smallest ceiling under which every candidate of the job runs.
    pub(super) smallest_ceiling: Bytes,
}

/// Returns the stages of a plan that the memory plan lists.
pub(super) fn stages(plan: &Plan) -> Vec<Stage> {
    let stages = plan.stages();
    [(stages.build, Stage::Build), (stages.verify, Stage::Verify), (stages.profile, Stage::Profile)]
        .into_iter()
        .filter_map(|(runs, stage)| runs.then_some(stage))
        .collect()
}

pub(super) fn of_job(plan: &Plan, job: &JobPlan, facts: &JobFacts, spec: &RunSpec, cores: u32) -> JobMemory {
    let mut needs = JobNeeds::new(job, facts, plan.stages(), plan.device(), cores);
    let stages: Vec<StagePlan> =
        stages(plan).into_iter().filter_map(|stage| of_stage(stage, job, facts, &mut needs, spec)).collect();
    let smallest_ceiling =
        stages.iter().map(|stage| stage.smallest + spec.supervisor).max().unwrap_or_default();
    JobMemory { stages, smallest_ceiling }
}

fn of_stage(
    stage: Stage,
    job: &JobPlan,
    facts: &JobFacts,
    needs: &mut JobNeeds<'_>,
    spec: &RunSpec,
) -> Option<StagePlan> {
    let paired = |candidate: &CandidatePlan| job.baseline.is_some_and(|baseline| baseline != candidate.id);
    let mut smallest = |candidate: &CandidatePlan| {
        needs.of(candidate).least(stage).map(|least| {
            let demand = least.demand(spec.idle_worker);
            if spec.ceilings.unified { demand.sum() } else { demand.host }
        })
    };
    // If several candidates need the same amount, the first of them is taken.
    let largest = job.candidates.iter().rev().max_by_key(|candidate| smallest(candidate))?;
    let smallest = smallest(largest)?;
    let name = |fact: &UsableEntry| fact.entry.clone();
    let (prediction, entries) = match stage {
        Stage::Build => (needs.build_ways(largest).into_iter().next()?, Vec::new()),
        Stage::Verify => {
            let shared = needs.verify_ways(largest).into_iter().next()?;
            (shared, facts.entries_to_verify().into_iter().map(name).collect())
        }
        Stage::Profile => {
            let distinct = largest.profile.entries == ProfileEntries::Distinct;
            let largest_batches = needs.profile_ways(largest, paired(largest)).into_iter().next()?;
            (largest_batches, facts.entries_to_time(distinct, &[]).iter().map(name).collect())
        }
        // Screens and confirmations need as much memory as a profile, and a replay belongs to no job.
        Stage::Screen | Stage::Confirm | Stage::Replay => return None,
    };
    Some(StagePlan {
        stage,
        candidate: largest.name.clone(),
        prediction,
        smallest,
        entries,
        idle_worker: spec.idle_worker,
    })
}

impl StagePlan {
    fn predicted(&self) -> Bytes {
        self.prediction.spec.predicted + self.idle_worker
    }

    fn reserved(&self) -> Bytes {
        self.prediction.spec.reserved + self.idle_worker
    }

    fn predicted_terms(&self) -> Vec<Term> {
        let mut terms = vec![Term { name: "idle worker (B)", bytes: self.idle_worker }];
        terms.extend(&self.prediction.predicted);
        terms
    }

    fn deciding_entry(&self) -> Option<&str> {
        Some(self.entries.get(self.prediction.decides?)?.name.as_str())
    }

    fn batch_bytes(&self, range: &Range<usize>) -> Bytes {
        let entries = self.entries.get(range.clone()).unwrap_or_default();
        input_bytes(&entries.iter().map(EntryRef::share).collect::<Vec<_>>())
    }

    fn batch_name(&self, range: &Range<usize>) -> String {
        let names: Vec<&str> = self
            .entries
            .get(range.clone())
            .unwrap_or_default()
            .iter()
            .map(|entry| entry.name.as_str())
            .collect();
        match names[..] {
            [one] => one.to_owned(),
            [first, .., last] => format!("{first} … {last} ({} entries)", names.len()),
            [] => String::new(),
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!(
            "    {:<8} predicted {:>10}  = {}\n",
            self.stage.name(),
            self.predicted().to_string(),
            sum(&self.predicted_terms())
        );
        text.push_str(&format!(
            "             reserved  {:>10}  = predicted + {}\n",
            self.reserved().to_string(),
            sum(&self.prediction.beyond)
        ));
        if !self.prediction.on_device.is_empty() {
            text.push_str(&format!(
                "             on the card {:>8}  = {}\n",
                self.prediction.spec.device.to_string(),
                sum(&self.prediction.on_device)
            ));
        }
        if let Some(entry) = self.deciding_entry() {
            text.push_str(&format!(
                "             decided by {}, candidate {}\n",
                one_line(entry),
                self.candidate
            ));
        }
        if !self.prediction.batches.is_empty() {
            let named: Vec<String> = self
                .prediction
                .batches
                .iter()
                .take(MAX_NAMED_BATCHES)
                .map(|range| format!("{} {}", self.batch_name(range), self.batch_bytes(range)))
                .collect();
            let unnamed = self.prediction.batches.len().saturating_sub(MAX_NAMED_BATCHES);
            let and_more = if unnamed == 0 { String::new() } else { format!("; and {unnamed} more") };
            let what = if self.stage == Stage::Verify { "sharing a runner" } else { "timed together" };
            text.push_str(&format!("             {what}: {}{and_more}\n", one_line(&named.join("; "))));
            if self.smallest + MIN_SAVING <= self.reserved() {
                text.push_str(&format!(
                    "             with one entry at a time, if the ceiling requires it: {}\n",
                    self.smallest
                ));
            }
        }
        text
    }

    pub(super) fn document(&self) -> Value {
        let terms = |terms: &[Term]| -> Vec<Value> {
            terms.iter().map(|term| json!({"name": term.name, "bytes": term.bytes})).collect()
        };
        json!({
            "stage": self.stage.name(),
            "candidate": self.candidate,
            "predicted_bytes": self.predicted(),
            "reserved_bytes": self.reserved(),
            "least_reserved_bytes": self.smallest,
            "predicted_terms": terms(&self.predicted_terms()),
            "reserved_terms": terms(&self.prediction.beyond),
            "device_bytes": self.prediction.spec.device,
            "device_terms": terms(&self.prediction.on_device),
            "decided_by": self.deciding_entry(),
            "batches": self.prediction.batches.iter().map(|range| json!({
                "entries": self.entries.get(range.clone()).unwrap_or_default()
                    .iter().map(|entry| &entry.name).collect::<Vec<_>>(),
                "bytes": self.batch_bytes(range),
            })).collect::<Vec<_>>(),
        })
    }
}

/// Prints a sum. Terms of zero are left out, and a sum of zero is printed as `0 B`.
fn sum(terms: &[Term]) -> String {
    let shown: Vec<String> = terms
        .iter()
        .filter(|term| term.bytes != Bytes::ZERO)
        .map(|term| format!("{} {}", term.name, term.bytes))
        .collect();
    if shown.is_empty() { Bytes::ZERO.to_string() } else { shown.join(" + ") }
}
