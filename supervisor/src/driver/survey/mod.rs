//! Surveys the plan and its captures before a run starts: reads captures, predicts what each stage needs, and prepares
//! the core's input.

mod choice;
pub mod compilers;
mod constants;
pub mod devices;
mod entry_budget;
pub mod facts;
pub mod interpreters;
pub mod launches;
pub mod limits;
pub mod needs;
pub mod own_limits;
pub mod priority;
mod repeated;
pub mod replay_facts;
pub mod same_class;
pub mod seed;
pub mod spec;

use opt_shared::arguments::VaryChoice;
use opt_shared::units::Bytes;

use self::facts::JobFacts;
use super::error::RunError;
use crate::plan::{JobPlan, Plan};

/// Reads the headers of every job's captures.
pub fn read_facts(plan: &Plan) -> Result<Vec<JobFacts>, RunError> {
    plan.jobs
        .iter()
        .map(|job| {
            let files = crate::plan::entry_files(job)?;
            let facts = JobFacts::read(job, &files);
            if let Some(why) = facts.unread {
                return Err(RunError::Unread { job: job.name.clone(), why });
            }
            check_parameter_names(job, &facts)?;
            Ok(facts)
        })
        .collect()
}

/// Checks that the parameters that a job names exist. If a name were misspelt, an input could vary that must not vary,
/// or the reverse.
fn check_parameter_names(job: &JobPlan, facts: &JobFacts) -> Result<(), RunError> {
    let Some(signature) = &facts.signature else { return Ok(()) };
    let choice =
        VaryChoice { vary: &job.profile.vary, constant: &job.constant, repeated: &[], largest: Bytes::ZERO };
    match choice.unknown(&signature.params) {
        None => Ok(()),
        Some((key, name)) => Err(RunError::UnknownParameter {
            job: job.name.clone(),
            key,
            name: name.to_owned(),
            params: signature.params.join(", "),
        }),
    }
}
