//! Lists in the policy log the entries that are not timed because another entry of the same class is timed.

use std::collections::BTreeMap;

use opt_shared::settings::ProfileEntries;

use super::facts::JobFacts;
use crate::core::event::PolicyRow;
use crate::plan::{JobPlan, Plan};

/// The largest number of entries that a row names. Further entries are only counted.
const NAMED: usize = 5;

/// Returns a row for each job in which some entries are not timed because another entry of their class is timed.
pub(crate) fn policy_rows(plan: &Plan, facts: &[JobFacts]) -> Vec<PolicyRow> {
    if !plan.stages().profile {
        return Vec::new();
    }
    plan.jobs.iter().zip(facts).filter_map(|(job, facts)| policy_row(job, facts)).collect()
}

fn policy_row(job: &JobPlan, facts: &JobFacts) -> Option<PolicyRow> {
    if job.profile.entries != ProfileEntries::Distinct {
        return None;
    }
    let mut first: BTreeMap<&str, &str> = BTreeMap::new();
    let mut skipped = Vec::new();
    for fact in facts.entries.iter().filter(|fact| fact.scored) {
        match first.get(fact.class.as_str()) {
            Some(timed) => skipped.push(format!("{} like {timed}", fact.entry.name)),
            None => {
                first.insert(&fact.class, &fact.entry.name);
            }
        }
    }
    let count = skipped.len();
    if count == 0 {
        return None;
    }
    let more = count.saturating_sub(NAMED);
    let named = skipped.iter().take(NAMED).cloned().collect::<Vec<_>>().join("; ");
    let more = if more == 0 { String::new() } else { format!("; and {more} more") };
    Some(PolicyRow {
        decision: "same_class",
        reason: format!(
            "{}: these entries are not timed, because another entry of their class is, with their weight: {named}{more} \
             (`entries = \"all\"` times them)",
            job.name
        ),
        numbers: vec![("job", u64::from(job.id.0)), ("timed", first.len() as u64), ("skipped", count as u64)],
    })
}
