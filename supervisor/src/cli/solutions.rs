//! `opt-supervisor report --solutions FOLDER`: writes the winners of a run as solutions in the FlashInfer-Trace format.
//!
//! A solution contains its sources. They must therefore be unchanged since the candidate was judged.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use opt_shared::kernel_files::KernelFiles;
use opt_shared::language::Language;
use opt_shared::outcome::Status;
use opt_shared::settings::CandidateSource;
use opt_shared::units::Bytes;
use serde_json::{Value, json};

use super::output::Output;
use super::stored::{folder_safe, stored_plan};
use super::{Failure, print_out};
use crate::record::{CandidateRecord, RunRecord};
use crate::store::Store;

/// The size limit of the sources of a solution. It is the same as for a submission.
const MAX_SOURCES: Bytes = Bytes::mib(16);

/// Writes each job's winner, or the given candidate, to `FOLDER/JOB/NAME.json`, and prints the paths. No file is
/// replaced.
pub(super) fn write_solutions(run: &Path, folder: &Path, wanted: Option<&str>) -> Result<(), Failure> {
    let plan = stored_plan(run)?;
    let record: RunRecord = Store::read(run).and_then(|store| store.load()).map_err(Failure::reading)?;
    let mut written = String::new();
    for planned in plan.candidates() {
        let name = plan.job(planned.job).map(|job| &job.name);
        let Some(job) = record.jobs.iter().find(|it| Some(&it.name) == name) else { continue };
        let full_name = format!("{}/{}", job.name, planned.name);
        let is_wanted =
            wanted.map_or(job.winner.as_ref() == Some(&planned.name), |wanted| wanted == full_name);
        let Some(candidate) = job.candidates.iter().find(|it| is_wanted && it.name == planned.name) else {
            continue;
        };
        let document = document(&job.name, candidate, &planned.source, &record)
            .with_context(|| format!("writing {full_name} as a solution"))
            .map_err(Failure::usage)?;
        let path = place(folder, &job.name, &planned.name).map_err(Failure::host)?;
        let mut output = Output::open(Some(&path))?;
        serde_json::to_writer_pretty(&mut output, &document).map_err(Failure::host)?;
        output.write_all(b"\n").map_err(Failure::host)?;
        output.finish()?;
        written += &format!("{full_name}: {}\n", path.display());
    }
    if written.is_empty() {
        let what =
            wanted.map_or("winner".to_owned(), |wanted| format!("candidate `{wanted}` (write JOB/NAME)"));
        return Err(Failure::usage(anyhow::anyhow!("the run in {} has no {what}", run.display())));
    }
    print_out(&written)
}

/// Creates the folder of a new file and returns the file's path.
fn place(folder: &Path, job: &str, name: &str) -> anyhow::Result<PathBuf> {
    let folder = folder.join(folder_safe(job));
    std::fs::create_dir_all(&folder).with_context(|| format!("creating the folder {}", folder.display()))?;
    let path = folder.join(format!("{}.json", folder_safe(name)));
    ensure!(!path.exists(), "{} exists (remove it, or name another folder)", path.display());
    Ok(path)
}

fn document(
    job: &str,
    candidate: &CandidateRecord,
    source: &CandidateSource,
    record: &RunRecord,
) -> anyhow::Result<Value> {
    ensure!(candidate.status == Some(Status::Passed), "it did not pass");
    let (language, binding) = names(source.language)?;
    let files = KernelFiles::find(&source.sources, source.language);
    let digest = opt_shared::digest::of_files(&files)
        .map_err(|(path, error)| anyhow::Error::new(error).context(format!("reading {}", path.display())))?;
    ensure!(
        candidate.source.digest.as_deref() == Some(&digest),
        "its sources have changed since they were judged (run the plan again)"
    );
    let mut size = 0;
    let mut sources = Vec::new();
    for file in files.all() {
        let content = std::fs::read_to_string(&file.path)
            .with_context(|| format!("reading {} as text", file.path.display()))?;
        size += content.len();
        ensure!(size <= MAX_SOURCES.to_usize(), "its sources are larger than {MAX_SOURCES} together");
        sources.push(json!({ "path": file.relative, "content": content }));
    }
    let entry = files.sources.first().context("it has no sources")?.relative.display().to_string();
    let mut spec = json!({
        "language": language,
        "target_hardware": [record.host.cpu.as_deref().filter(|it| !it.is_empty()).unwrap_or("cpu")],
        "entry_point": format!("{entry}::{}", source.symbol),
        "dependencies": [],
    });
    if let Some(binding) = binding {
        spec["binding"] = binding.into();
    }
    let speedup = candidate.speedup.as_ref().map_or_else(String::new, |it| {
        format!(", {:.2} times as fast as the baseline [{:.2}–{:.2}]", it.value, it.ci_low, it.ci_high)
    });
    Ok(json!({
        "name": candidate.name,
        "definition": job,
        "author": "unknown",
        "description": format!("Verified by opt-supervisor {}{speedup}", record.run.version),
        "spec": spec,
        "sources": sources,
    }))
}

/// Returns two names that the format uses: for the language, and for the binding (how functions are called), if there
/// is one. `import flashinfer-trace` understands these names.
fn names(language: Language) -> anyhow::Result<(&'static str, Option<&'static str>)> {
    Ok(match language {
        Language::C => ("c", None),
        Language::Cpp => ("cpp", None),
        Language::TorchExtension => ("cpp", Some("torch")),
        Language::TorchCuda => ("cuda", Some("torch")),
        Language::Python => ("python", None),
        Language::Triton => ("triton", None),
        Language::Cuda | Language::CudaRecorded => ("cuda", None),
        Language::So
        | Language::CudaDevice
        | Language::Ptx
        | Language::Cubin
        | Language::Torch
        | Language::TorchCompile
        | Language::TritonDevice => {
            anyhow::bail!("the FlashInfer-Trace format cannot contain kernels in `{}`", language.name())
        }
    })
}
