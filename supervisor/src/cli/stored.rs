//! Loads the plan that a run stored in its folder, and forms names for files about its candidates.

use std::path::Path;

use super::Failure;
use crate::plan::Plan;
use crate::store::Store;

/// Returns the plan of a run, including the candidates that were submitted to the run.
pub(super) fn stored_plan(run: &Path) -> Result<Plan, Failure> {
    let text = Store::read(run).and_then(|store| store.stored_plan()).map_err(Failure::reading)?.ok_or_else(
        || {
            Failure::usage(anyhow::anyhow!(
                "the run in {} has not stored its plan (run the plan again)",
                run.display()
            ))
        },
    )?;
    // All paths in the stored plan are absolute, so the path of the plan itself does not matter.
    let mut plan = Plan::parse(&text, Path::new("/stored-plan.toml"), &[]).map_err(Failure::usage)?;
    crate::driver::answer::submissions::restore(&mut plan, run);
    Ok(plan)
}

/// Replaces all characters that should not occur in the name of a folder.
pub(super) fn folder_safe(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
