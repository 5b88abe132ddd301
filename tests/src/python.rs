//! Finds Python interpreters. Tests that need one are skipped if it is missing.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::repository;

/// Returns an interpreter that can import `module`: the one of the virtual environment `target/ENVIRONMENT`, which
/// `.ci/run` creates, or else `python3`.
pub fn python_with(module: &str, environment: &str) -> Option<PathBuf> {
    let made = repository().join("target").join(environment).join("bin/python3");
    [made, PathBuf::from("python3")].into_iter().find(|python| {
        let mut command = Command::new(python);
        let tried =
            command.args(["-c", &format!("import {module}")]).stdout(Stdio::null()).stderr(Stdio::null());
        tried.status().is_ok_and(|status| status.success())
    })
}
