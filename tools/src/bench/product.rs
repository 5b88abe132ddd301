//! Runs the product through its command line, and reads the JSON that it prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, anyhow, ensure};

/// Returns the path of a program of this workspace, which is in the same folder as this program.
pub(crate) fn binary(name: &str) -> Result<PathBuf> {
    opt_tests::built(name).map_err(|missing| anyhow!(missing))
}

/// Generates captures in a folder by running `gen-captures` with `arguments`.
pub(crate) fn generate(arguments: &[&str], folder: &Path) -> Result<()> {
    let made = Command::new(binary("gen-captures")?)
        .args(arguments)
        .arg("--out")
        .arg(folder)
        .output()
        .context("starting gen-captures")?;
    ensure!(made.status.success(), "gen-captures: {}", String::from_utf8_lossy(&made.stderr));
    Ok(())
}

/// Runs `run PLAN --json` and returns the printed document, whatever the exit code.
pub(crate) fn run_json(plan: &Path, more: &[&str]) -> Result<serde_json::Value> {
    run_json_of(&binary("opt-supervisor")?, plan, more)
}

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
