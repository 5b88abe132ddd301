//! Runs the product the way a user would: its command line, its JSON.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow};

/// A binary of this workspace, beside this one.
pub(crate) fn binary(name: &str) -> Result<PathBuf> {
    opt_tests::built(name).map_err(|missing| anyhow!(missing))
}

/// `run PLAN --json` and the document it prints, whatever the exit code says of the candidates.
pub(crate) fn run_json(plan: &Path, more: &[&str]) -> Result<serde_json::Value> {
    run_json_of(&binary("opt-supervisor")?, plan, more)
}

/// The same by another build of the product.
pub(crate) fn run_json_of(product: &Path, plan: &Path, more: &[&str]) -> Result<serde_json::Value> {
    let output = Command::new(product)
        .arg("run")
        .arg(plan)
        .arg("--json")
        .args(more)
        .output()
        .context("starting opt-supervisor")?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        format!("no result ({}): {}", output.status, String::from_utf8_lossy(&output.stderr))
    })
}
