//! Holds the work of a run: its plan, captures, candidates and replays. It also finds the names that belong to ids.

use std::collections::BTreeSet;

use opt_shared::device::CardShape;
use opt_shared::ids::{CandidateId, JobId, UnitId};
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use super::replay::Replaying;
use super::supply::{Subject, Units};
use crate::driver::candidate_facts::{CandidateFacts, Libraries};
use crate::driver::folder::RunFolder;
use crate::driver::survey::facts::JobFacts;
use crate::plan::Plan;
use crate::record::Numbers;

pub(crate) struct Agenda<'a> {
    pub(crate) plan: Plan,
    pub(crate) facts: &'a [JobFacts],
    /// What is known about each candidate, in the order of their ids.
    pub(crate) candidate_facts: Vec<CandidateFacts>,
    /// Jobs that are over and whose baseline failed, either in verification or while it was timed.
    pub(crate) without_baseline: BTreeSet<JobId>,
    pub(crate) libraries: Libraries,
    pub(crate) replays: Replaying<'a>,
    /// Maps the core's unit ids to candidates and replays.
    pub(crate) units: Units,
    pub(crate) folder: &'a RunFolder,
    pub(crate) cores: u32,
    /// The run's card; `None` on another device.
    pub(crate) card: Option<CardShape>,
    /// The total size up to which a job's captures are kept in the page cache.
    pub(crate) cache_budget: Bytes,
    /// The random seed of candidates for which the plan sets none.
    pub(crate) seed: u64,
    /// The speed-up that a candidate needs for the run to count as a success.
    pub(crate) min_speedup: Option<f64>,
}

impl Agenda<'_> {
    /// Returns a candidate's name in the form `JOB/CANDIDATE`, which `--only` accepts.
    pub(crate) fn full_name(&self, id: CandidateId) -> String {
        let Some(candidate) = self.plan.candidate(id) else { return id.to_string() };
        let job = self.plan.job(candidate.job).map_or("", |job| job.name.as_str());
        format!("{job}/{}", candidate.name)
    }

    pub(crate) fn unit_name(&self, unit: UnitId) -> String {
        self.units.subject(unit).map_or_else(|| unit.to_string(), |subject| self.name_of_subject(subject))
    }

    fn name_of_subject(&self, subject: Subject) -> String {
        let (source, index) = subject.source();
        source.name(self, index)
    }

    /// Returns names for those numbers of a decision that are ids. The names are listed by field.
    pub(crate) fn names_in(&self, numbers: &Numbers) -> Value {
        let names = numbers
            .iter()
            .filter_map(|(field, number)| Some((field.clone(), json!(self.name_of(field, number)?))));
        Value::Object(names.collect())
    }

    /// Returns the name that belongs to the id in a field, or `None` if the field does not contain an id.
    pub(crate) fn name_of(&self, field: &str, number: &Value) -> Option<String> {
        let id = u32::try_from(number.as_u64()?).ok()?;
        match field {
            "candidate" => Some(self.full_name(CandidateId(id))),
            "replay" => Some(self.name_of_subject(Subject::Replay(id))),
            "job" => self.plan.jobs.iter().find(|job| job.id.0 == id).map(|job| job.name.clone()),
            _ => None,
        }
    }
}
