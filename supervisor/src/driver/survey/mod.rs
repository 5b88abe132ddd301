//! What is known of a run before it starts: captures as numbers, what each stage will owe, what the core is told.

mod choice;
mod constants;
pub mod facts;
mod kept;
pub mod limits;
pub mod needs;
pub mod replay_facts;
pub(super) mod seed;
pub mod spec;

use self::facts::JobFacts;
use super::error::RunError;
use crate::plan::Plan;

/// Reads the captures of every job; headers only.
pub fn read_facts(plan: &Plan) -> Result<Vec<JobFacts>, RunError> {
    plan.jobs
        .iter()
        .map(|job| {
            let files = crate::plan::entry_files(job)?;
            Ok(JobFacts::read(job, &files))
        })
        .collect()
}
