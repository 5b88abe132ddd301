//! Small plans with the demo's softmax, which has small captures, and kernels whose statuses are known.

use std::fmt::Write as _;
use std::path::PathBuf;

use opt_tests::{data, repository};

pub const SOFTMAX: &str = "softmax";

pub struct Plan {
    pub name: String,
    pub captures: PathBuf,
    /// The paths of the kernels below `configs/demo/softmax`, without the suffix.
    pub baseline: String,
    pub candidates: Vec<String>,
    /// Further keys of the job.
    pub extra: String,
    /// Keys of the table `[profile]`.
    pub profile: String,
}

impl Plan {
    pub fn softmax(candidates: &[&str]) -> Self {
        Self {
            name: SOFTMAX.to_owned(),
            captures: data("demo/torch_nn_functional_softmax"),
            baseline: "naive".to_owned(),
            candidates: candidates.iter().map(|&name| name.to_owned()).collect(),
            extra: String::new(),
            // These tests do not depend on exact times, so timing is short.
            profile: "entry_timeout = \"200ms\"\n".to_owned(),
        }
    }

    pub fn text(&self) -> String {
        format!("[build]\nlibraries = [\"m\"]\n[profile]\n{}\n{}", self.profile, self.job())
    }

    pub fn job(&self) -> String {
        let kernel = |name: &str| repository().join(format!("configs/demo/softmax/{name}.c"));
        let mut text = format!(
            "[[job]]\nname = \"{}\"\ncaptures = '{}'\nbaseline = '{}'\n",
            self.name,
            self.captures.display(),
            kernel(&self.baseline).display()
        );
        if !self.candidates.is_empty() {
            let files: Vec<String> =
                self.candidates.iter().map(|name| format!("'{}'", kernel(name).display())).collect();
            let _ = writeln!(text, "candidates = [{}]", files.join(", "));
        }
        text + &self.extra + "\n\n"
    }
}
