//! Prints the part of `check` about replays: their smallest budgets, and how much memory they would owe.

use opt_shared::formula::{RunnerTerms, Term};
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use crate::core::predict::Prediction;
use crate::core::spec::RunSpec;
use crate::driver::survey::facts::JobFacts;
use crate::driver::survey::needs::{runner_terms, workspaces_of};
use crate::driver::survey::replay_facts::{Callees, ReplayFacts};
use crate::plan::{JobPlan, Plan};
use crate::report::figures::{counted, one_line};

/// A replay, and the memory that it would owe if its calls were made by the candidates that need the most memory.
pub(super) struct CheckedReplay<'a> {
    plan: &'a crate::plan::ReplayPlan,
    facts: &'a ReplayFacts,
    prediction: Prediction,
}

pub(super) fn check_all<'a>(
    plan: &'a Plan,
    facts: &'a [JobFacts],
    replays: &'a [ReplayFacts],
    cores: u32,
) -> Vec<CheckedReplay<'a>> {
    let checked_replay = |(replay, replay_facts): (&'a crate::plan::ReplayPlan, &'a ReplayFacts)| {
        let jobs: Vec<&JobPlan> =
            plan.jobs.iter().filter(|job| replay.steps.iter().any(|(id, _)| *id == job.id)).collect();
        let runners: Vec<RunnerTerms<'_>> =
            jobs.iter().flat_map(|job| &job.candidates).map(runner_terms).collect();
        let longest = jobs.iter().map(|job| &job.verify).max_by_key(|verify| verify.call_timeout);
        let verify = longest.unwrap_or(&plan.settings.verify);
        let candidates = jobs.iter().flat_map(|job| &job.candidates);
        let workspaces =
            candidates.map(|it| workspaces_of(runner_terms(it).launcher, &it.launch)).max().unwrap_or(0);
        let callees = Callees { runners: &runners, workspaces, device: plan.device() };
        let prediction = replay_facts.prediction(replay, facts, &callees, verify, cores);
        CheckedReplay { plan: replay, facts: replay_facts, prediction }
    };
    plan.replays.iter().zip(replays).map(checked_replay).collect()
}

fn term_text(term: &Term) -> String {
    format!("{} {}", term.name, term.bytes)
}

impl CheckedReplay<'_> {
    fn smallest_ceiling(&self, spec: &RunSpec) -> Bytes {
        let demand = self.prediction.spec.demand(spec.idle_worker);
        (if spec.ceilings.unified { demand.sum() } else { demand.host }) + spec.supervisor
    }

    pub(super) fn text(&self, spec: &RunSpec) -> String {
        let head = format!(
            "replay {}: {}, budget {}",
            self.plan.name,
            counted(self.plan.steps.len(), "step", "steps"),
            self.plan.budget
        );
        if let Some(broken) = &self.facts.broken {
            return format!("{head}\n  cannot be used: {}\n\n", one_line(broken));
        }
        let floor = &self.facts.floor;
        let terms: Vec<String> =
            self.prediction.predicted.iter().chain(&self.prediction.beyond).map(term_text).collect();
        let on_device: Vec<String> = self.prediction.on_device.iter().map(term_text).collect();
        let on_device = match on_device.as_slice() {
            [] => String::new(),
            terms => format!("\n  device memory: {}", terms.join(" + ")),
        };
        format!(
            "{head}\n  smallest budget {} ({} bytes): {} for two consecutive steps, {} for the largest tensor, {} pinned; all tensor arguments together take {}\n  memory: {}{on_device}\n  smallest ceiling for this replay: {}\n\n",
            floor.bytes(),
            floor.bytes().get(),
            floor.consecutive,
            floor.largest,
            floor.pinned,
            floor.whole,
            terms.join(" + "),
            self.smallest_ceiling(spec)
        )
    }

    pub(super) fn document(&self, spec: &RunSpec) -> Value {
        json!({
            "name": self.plan.name,
            "steps": self.plan.steps.len(),
            "broken": self.facts.broken,
            "budget_bytes": self.plan.budget,
            "floor_bytes": self.facts.floor.bytes(),
            "all_resident_bytes": self.facts.floor.whole,
            "predicted_bytes": self.prediction.spec.predicted,
            "reserved_bytes": self.prediction.spec.reserved,
            "device_bytes": self.prediction.spec.device,
            "smallest_ceiling_bytes": self.smallest_ceiling(spec),
        })
    }
}
