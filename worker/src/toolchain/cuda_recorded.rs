//! Builds CUDA candidates with host code for a card: nvcc makes a shared library, and a second command runs its host code
//! and records which kernels it launches for each call of the job.
//!
//! A worker then launches the recorded kernels itself, so neither a runner nor the candidate's host code ever uses the
//! card's driver.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use opt_shared::arguments::{Entry, bind, judged};
use opt_shared::capture::CaptureFile;
use opt_shared::causes::chain;
use opt_shared::language::ArtifactKind;
use opt_shared::message::{BuildTask, RecordedCalls};

use super::cuda::Cuda;
use super::{Folders, Program, Recipe, Step, Toolchain};
use crate::launches::view_of;
use crate::runner::recording_format::{HostView, Key, MAX_CALLS, RecordOrder};

pub(super) struct CudaRecorded;

impl Toolchain for CudaRecorded {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        let mut step = match Cuda.recipe(task, folders) {
            Recipe::Run(step) => step,
            other => return other,
        };
        let Some(recorded) = &task.recorded else {
            return Recipe::Unavailable(
                "the captures have no signature with which the host code could be called".to_owned(),
            );
        };
        let calls = match different_calls(recorded) {
            Ok(calls) if calls.len() <= MAX_CALLS => calls.into_values().collect(),
            Ok(_) => {
                return Recipe::Refused(format!(
                    "the entries make more than {MAX_CALLS} different calls, and the launches of no more can be recorded \
                     (select fewer entries with `entries`)"
                ));
            }
            Err(why) => return Recipe::Unavailable(why),
        };
        let order = folders.include.join("launches.order");
        let written = postcard::to_stdvec(&RecordOrder { symbol: task.source.symbol.to_string(), calls })
            .map_err(std::io::Error::other)
            .and_then(|bytes| fs::write(&order, bytes));
        if let Err(error) = written {
            return Recipe::Unavailable(format!("writing {}: {error}", order.display()));
        }
        let output = folders.scratch.join("candidate.launches");
        let arguments =
            vec![step.output.clone().into(), order.into(), "-o".into(), output.clone().into()];
        step.next = Some(Box::new(Step {
            compiler: crate::runner::cudart::RECORDER_NAME.to_owned(),
            program: Program::Recorder,
            arguments,
            version: None,
            output,
            artifact: ArtifactKind::Launches,
            readable: Vec::new(),
            toolchain: Vec::new(),
            next: None,
        }));
        Recipe::Run(step)
    }
}

/// Reads the entries until they have all been read or contain more than `MAX_CALLS` different calls.
fn different_calls(recorded: &RecordedCalls) -> Result<BTreeMap<Key, HostView>, String> {
    let mut calls = BTreeMap::new();
    for path in &recorded.entries {
        let view = view_in(path, recorded).map_err(|why| format!("{}: {why}", path.display()))?;
        let key = view.key().map_err(|error| format!("{}: {error}", path.display()))?;
        calls.entry(key).or_insert(view);
        if MAX_CALLS < calls.len() {
            break;
        }
    }
    Ok(calls)
}

/// Returns what host code sees of the call in a capture.
fn view_in(path: &Path, recorded: &RecordedCalls) -> Result<HostView, String> {
    let capture = CaptureFile::open(path).map_err(|error| chain(&error))?;
    let entry = Entry::from_value(capture.root()).map_err(|error| chain(&error))?;
    let arguments = bind(&entry, &recorded.signature).map_err(|error| chain(&error))?;
    let outputs = judged(&entry, &arguments).map_err(|error| chain(&error))?;
    Ok(view_of(&arguments, &outputs))
}
