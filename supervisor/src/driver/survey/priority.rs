//! Checks that this process may set the priority that a plan asks for in timed blocks.

use opt_shared::settings::Priority;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use crate::plan::{JobPlan, Plan};

/// Returns the name of the first job that asks for real-time priority if this process cannot grant it. `None` if no job
/// asks for it, or if this process can grant it. Granting it needs `CAP_SYS_NICE`, which workers inherit.
///
/// # Errors
/// Fails if Linux does not report the capabilities of this process.
pub fn first_refused_job(plan: &Plan) -> Result<Option<&str>, Errno> {
    let asks = |job: &&JobPlan| {
        let candidates = job.candidates.iter().map(|candidate| &candidate.profile);
        candidates.chain([&job.profile]).any(|profile| profile.priority == Priority::Realtime)
    };
    let Some(job) = plan.jobs.iter().find(asks) else { return Ok(None) };
    let is_capable = capabilities(None)?.effective.contains(CapabilitySet::SYS_NICE);
    Ok(if is_capable { None } else { Some(&job.name) })
}
