//! Resolves the launches in a plan for the first entry of each job, so that unknown names are found before anything
//! runs.

use opt_shared::arguments::{Argument, Entry, OutputTensor, bind, judged};
use opt_shared::capture::CaptureFile;
use opt_shared::launch::{Launch, LaunchError, Pointer, ResolvedLaunch, Value, resolve};
use serde_json::json;

use super::facts::JobFacts;
use crate::driver::error::RunError;
use crate::plan::{JobPlan, Plan};

/// The launches of one candidate, resolved with the numbers of the job's first entry.
pub struct FirstLaunch {
    pub candidate: String,
    /// The name of the entry's file without its suffix.
    pub entry: String,
    /// The resolved steps, with the names that their addresses refer to. The error says why the entry cannot be
    /// launched.
    pub resolved: Result<(ResolvedLaunch, AddressNames), LaunchError>,
}

/// The names of workspaces, arguments and outputs. The index is that of the workspace, argument or output.
pub struct AddressNames {
    arguments: Vec<String>,
    outputs: Vec<String>,
    workspaces: Vec<String>,
}

/// Checks that all names in a plan's launches can be resolved. If one cannot, the plan is refused.
pub fn check_names(plan: &Plan, facts: &[JobFacts]) -> Result<(), RunError> {
    for (job, facts) in plan.jobs.iter().zip(facts) {
        for first in of_job(job, facts) {
            if let Err(error) = first.resolved
                && error.problem.is_of_plan()
            {
                let candidate = format!("{}/{}", job.name, first.candidate);
                return Err(RunError::Launch { candidate, entry: first.entry, why: Box::new(error) });
            }
        }
    }
    Ok(())
}

/// Returns the launches of every candidate without host code. If the first entry cannot be read, the list is empty, and
/// the problem is reported elsewhere.
pub fn of_job(job: &JobPlan, facts: &JobFacts) -> Vec<FirstLaunch> {
    let is_launched = |launch: &Launch| !launch.steps.is_empty();
    if !job.candidates.iter().any(|candidate| is_launched(&candidate.launch)) {
        return Vec::new();
    }
    let Some((entry, arguments, outputs)) = first_call(facts) else { return Vec::new() };
    let launched = job.candidates.iter().filter(|candidate| is_launched(&candidate.launch));
    launched
        .map(|candidate| FirstLaunch {
            candidate: candidate.name.clone(),
            entry: entry.clone(),
            resolved: resolve(&candidate.launch, &arguments, &outputs)
                .map(|resolved| (resolved, AddressNames::new(&candidate.launch, &arguments, &outputs))),
        })
        .collect()
}

fn first_call(facts: &JobFacts) -> Option<(String, Vec<Argument>, Vec<OutputTensor>)> {
    let first = &facts.entries.first()?.entry;
    let signature = facts.signature.as_ref()?;
    let capture = CaptureFile::open(&first.path).ok()?;
    let entry = Entry::from_value(capture.root()).ok()?;
    let arguments = bind(&entry, signature).ok()?;
    let outputs = judged(&entry, &arguments).ok()?;
    Some((first.name.clone(), arguments, outputs))
}

impl AddressNames {
    fn new(launch: &Launch, arguments: &[Argument], outputs: &[OutputTensor]) -> Self {
        Self {
            arguments: arguments.iter().map(|argument| argument.path.clone()).collect(),
            outputs: outputs.iter().map(|output| output.path.clone()).collect(),
            workspaces: launch.workspaces.iter().map(|workspace| workspace.name.clone()).collect(),
        }
    }

    /// Returns a kernel argument as `check` prints it.
    fn name(&self, value: &Value) -> String {
        let address =
            |names: &[String], index: usize| format!("&{}", names.get(index).map_or("?", String::as_str));
        match value {
            Value::Pointer(Pointer::Argument(index)) => address(&self.arguments, *index),
            Value::Pointer(Pointer::Output(index)) => address(&self.outputs, *index),
            Value::Pointer(Pointer::Workspace(index)) => address(&self.workspaces, *index),
            Value::Null => "null".to_owned(),
            Value::Bytes { bytes, .. } => format!("{} bytes", bytes.len()),
            Value::Scalar(scalar) => scalar.to_string(),
        }
    }
}

impl FirstLaunch {
    /// Returns the lines that `check` prints: `relu<<<(2, 1, 1), (256, 1, 1), 0>>>(&input, &output, 150:i64)`.
    pub fn text(&self) -> String {
        let mut text = format!("    {}, {}\n", self.candidate, self.entry);
        match &self.resolved {
            Err(error) => text.push_str(&format!("      cannot be launched: {error}\n")),
            Ok((resolved, names)) => {
                for (name, bytes) in names.workspaces.iter().zip(&resolved.workspaces) {
                    text.push_str(&format!("      {name}: {bytes}\n"));
                }
                for step in &resolved.steps {
                    let triple = |[x, y, z]: [u32; 3]| format!("({x}, {y}, {z})");
                    let args: Vec<String> = step.args.iter().map(|value| names.name(value)).collect();
                    let nothing = if step.is_empty() { ": no block, so nothing is launched" } else { "" };
                    text.push_str(&format!(
                        "      {}<<<{}, {}, {}>>>({}){nothing}\n",
                        step.symbol,
                        triple(step.grid),
                        triple(step.block),
                        step.shared_mem,
                        args.join(", ")
                    ));
                }
            }
        }
        text
    }

    pub fn document(&self) -> serde_json::Value {
        let resolved = self.resolved.as_ref().ok();
        json!({
            "candidate": self.candidate,
            "entry": self.entry,
            "error": self.resolved.as_ref().err().map(ToString::to_string),
            "workspaces": resolved.map(|(resolved, names)| {
                let sizes = names.workspaces.iter().zip(&resolved.workspaces);
                sizes.map(|(name, bytes)| json!({ "name": name, "bytes": bytes })).collect::<Vec<_>>()
            }),
            "steps": resolved.map(|(resolved, names)| {
                let step = |step: &opt_shared::launch::ResolvedStep| json!({
                    "symbol": step.symbol,
                    "grid": step.grid,
                    "block": step.block,
                    "shared_mem": step.shared_mem,
                    "args": step.args.iter().map(|value| names.name(value)).collect::<Vec<_>>(),
                });
                resolved.steps.iter().map(step).collect::<Vec<_>>()
            }),
        })
    }
}
