//! Builds CUDA candidates with host code for a card: nvcc makes a shared library, and a second command runs its host code
//! and records which kernels it launches for each call of the job.
//!
//! A worker then launches the recorded kernels itself, so neither a runner nor the candidate's host code ever uses the
//! card's driver.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use opt_shared::arguments::{Entry, bind, judged};
use opt_shared::capture::CaptureFile;
use opt_shared::language::ArtifactKind;
use opt_shared::message::{BuildTask, RecordedCalls};
use opt_shared::outcome::Status;
use opt_shared::units::Bytes;

use super::cuda::{Cuda, names_architecture};
use super::nvrtc::PTX_FOR;
use super::{Folders, Program, Recipe, Step, Toolchain};
use crate::launches::{RecordedLaunches, view_of};
use crate::runner::recording_format::{HostView, Key, MAX_CALLS, RecordOrder};

pub(super) struct CudaRecorded;

impl Toolchain for CudaRecorded {
    fn recipe(&self, task: &BuildTask, folders: &Folders<'_>) -> Recipe {
        // A card's driver may refuse PTX of a newer toolkit, so the library gets machine code for the card too. Its PTX
        // tells the recorder the sizes of the kernels' parameters.
        let mut with_machine_code = task.clone();
        let flags = &mut with_machine_code.build.extra_flags;
        if let Some(card) = task.card.filter(|_| !flags.iter().any(|flag| names_architecture(flag))) {
            let code = card.capability.machine_code();
            let architecture = code.replacen("sm_", "compute_", 1);
            flags.push(format!("-gencode=arch={PTX_FOR},code={PTX_FOR}"));
            flags.push(format!("-gencode=arch={architecture},code={code}"));
        }
        let mut step = match Cuda.recipe(&with_machine_code, folders) {
            Recipe::Run(step) => step,
            other => return other,
        };
        let Some(recorded) = &task.recorded else {
            return Recipe::Unavailable(
                "the captures have no signature with which the host code could be called".to_owned(),
            );
        };
        let calls = different_calls(recorded);
        if MAX_CALLS < calls.len() {
            return Recipe::Refused(format!(
                "the entries make more than {MAX_CALLS} different calls, and the launches of no more can be recorded \
                 (select fewer entries with `entries`)"
            ));
        }
        let calls = calls.into_values().collect();
        let order = folders.include.join("launches.order");
        let written = postcard::to_stdvec(&order_of(task, calls))
            .map_err(std::io::Error::other)
            .and_then(|bytes| fs::write(&order, bytes));
        if let Err(error) = written {
            return Recipe::Unavailable(format!("writing {}: {error}", order.display()));
        }
        let output = folders.scratch.join("candidate.launches");
        let arguments = vec![step.output.clone().into(), order.into(), "-o".into(), output.clone().into()];
        step.next = Some(Box::new(Step {
            compiler: crate::runner::cudart::RECORDER_NAME.to_owned(),
            program: Program::Recorder,
            arguments,
            version: None,
            output,
            artifact: ArtifactKind::Launches,
            readable: step.readable.clone(),
            toolchain: Vec::new(),
            next: None,
        }));
        Recipe::Run(step)
    }

    fn objection(&self, artifact: &File) -> Option<String> {
        let mut bytes = Vec::new();
        let read = artifact.metadata().and_then(|it| {
            bytes.resize(Bytes::new(it.len()).to_usize(), 0);
            artifact.read_exact_at(&mut bytes, 0)
        });
        let read = read.map_err(|error| error.to_string());
        let read = read.and_then(|()| RecordedLaunches::read(&bytes).map_err(str::to_owned));
        let why = read.err()?;
        Some(format!("the host code damaged the file of its recorded launches: {why}"))
    }

    fn advice(&self, status: Status, log: &str) -> Option<String> {
        let is_too_new = status == Status::CompileError && log.contains("Unsupported gpu architecture");
        is_too_new.then(|| {
            "this nvcc is too old for the card (install a newer one, or name an architecture in `extra_flags`, such as \
             `-gencode=arch=compute_80,code=compute_80`)"
                .to_owned()
        })
    }
}

fn order_of(task: &BuildTask, calls: Vec<HostView>) -> RecordOrder {
    RecordOrder {
        symbol: task.source.symbol.to_string(),
        library_path: task.build.library_path.clone(),
        card: task.card,
        calls,
    }
}

/// Reads the entries until they have all been read or contain more than `MAX_CALLS` different calls. Leaves out captures
/// that cannot be read; their verification reports why.
fn different_calls(recorded: &RecordedCalls) -> BTreeMap<Key, HostView> {
    let mut calls = BTreeMap::new();
    for path in &recorded.entries {
        let view = view_in(path, recorded);
        let keyed = view.and_then(|view| Some((view.key().ok()?, view)));
        if let Some((key, view)) = keyed {
            calls.entry(key).or_insert(view);
        }
        if MAX_CALLS < calls.len() {
            break;
        }
    }
    calls
}

/// Returns what host code sees of the call in a capture; `None` if it cannot be read.
fn view_in(path: &Path, recorded: &RecordedCalls) -> Option<HostView> {
    let capture = CaptureFile::open(path).ok()?;
    let entry = Entry::from_value(capture.root()).ok()?;
    let arguments = bind(&entry, &recorded.signature).ok()?;
    let outputs = judged(&entry, &arguments).ok()?;
    Some(view_of(&arguments, &outputs))
}
