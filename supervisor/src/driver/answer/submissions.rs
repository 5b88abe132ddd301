//! Accepts submitted candidates. Their sources are copied into the run's folder first, so that a resumed run finds them
//! again.
//!
//! ```text
//! RUN_DIR/submitted/1/fast.c            the submitted files, with the headers that they include
//! RUN_DIR/submitted/1/submission.json   written last; a folder without it is not an accepted submission
//! ```

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opt_shared::ids::CandidateId;
use opt_shared::kernel_files::KernelFiles;
use opt_shared::language::{Language, Toolchain};
use opt_shared::launch::Launch;
use opt_shared::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::requests::to_reply;
use crate::control::{Code, Refusal, Reply, SubmitParams};
use crate::core::event::Answer;
use crate::driver::RunError;
use crate::driver::candidate_facts::CandidateFacts;
use crate::driver::folder::register::candidate_row;
use crate::driver::run::Run;
use crate::plan::{CandidatePlan, Plan, Submission, SubmissionError};

/// The folder for submissions, within the run's folder. Each submission has its own folder in it.
const FOLDER: &str = "submitted";
const RECORD: &str = "submission.json";
/// The largest number of submissions in a run. Each has a folder and a row.
const MAX_SUBMISSIONS: u32 = 10_000;
/// The largest number of source files of a submission.
const MAX_FILES: usize = 16;
/// The largest total size of a submission's files. Sources are small, but libraries may have debug symbols.
const MAX_BYTES: Bytes = Bytes::mib(16);
/// The longest record of a submission, in bytes. It contains the launches.
const MAX_RECORD: u64 = 4 << 20;

#[derive(Serialize, Deserialize)]
struct SubmissionRecord {
    job: String,
    name: String,
    files: Vec<String>,
    language: Language,
    symbol: String,
    #[serde(default)]
    launch: Launch,
}

impl Run<'_> {
    pub(crate) fn submit(&mut self, params: SubmitParams) -> Result<Reply, RunError> {
        let job = match self.job_for(params.job.as_deref()) {
            Ok(job) => job,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if let Err(answer) = self.decisions.core.may_offer(self.agenda.plan.jobs[job].id) {
            return Ok(to_reply(answer));
        }
        let folder = self.agenda.folder.path().join(FOLDER);
        let id = self.next_candidate();
        let last = &mut self.endpoints.submissions;
        let candidate = match copy_submission(&folder, last, &self.agenda.plan, job, id, &params) {
            Ok(candidate) => candidate,
            Err(refusal) => return Ok(Err(refusal)),
        };
        self.admit(job, candidate).map(Ok)
    }

    fn next_candidate(&self) -> CandidateId {
        CandidateId(u32::try_from(self.agenda.candidate_facts.len()).unwrap_or(u32::MAX))
    }

    fn job_for(&self, wanted: Option<&str>) -> Result<usize, Refusal> {
        let jobs = &self.agenda.plan.jobs;
        match wanted {
            Some(wanted) => jobs
                .iter()
                .position(|job| job.name == wanted)
                .ok_or_else(|| Refusal::new(Code::NotFound, format!("the run has no job `{wanted}`"))),
            None if jobs.len() == 1 => Ok(0),
            None => {
                let why = format!("the plan has {} jobs: name one in `job`", jobs.len());
                Err(Refusal::new(Code::InvalidParams, why))
            }
        }
    }

    /// Records the submission, adds it to the plan, and offers it to the core.
    fn admit(&mut self, job: usize, candidate: CandidatePlan) -> Result<serde_json::Value, RunError> {
        let (id, name) = (candidate.id, candidate.name.clone());
        let row = candidate_row(&self.agenda.plan, &candidate);
        self.records.writer.write(move |store| store.candidate(&row));
        self.agenda.plan.jobs[job].candidates.push(candidate);
        self.agenda.candidate_facts.push(CandidateFacts::default());
        match self.offer(id)? {
            Some(Answer::Done(_)) => {
                let full_name = self.agenda.full_name(id);
                Ok(json!({ "outcome": "done", "candidate": full_name, "name": name, "id": id }))
            }
            // `submit` has already checked everything for which the core refuses an offer, so this is a bug.
            answer => Err(RunError::Law { law: format!("{id} was refused: {answer:?}") }),
        }
    }
}

/// The number of the last submission of a run.
#[derive(Debug, Default)]
pub(crate) struct LastSubmission {
    /// `None` until the first submission, when the folder is listed to find those of earlier parts of the run.
    number: Option<u32>,
}

impl LastSubmission {
    /// Creates the folder of the next submission. The number counts once the submission is accepted.
    fn next_folder(&mut self, folder: &Path) -> Result<(u32, PathBuf), Refusal> {
        let last = *self.number.get_or_insert_with(|| numbers(folder).last().copied().unwrap_or(0));
        for number in last.saturating_add(1)..=MAX_SUBMISSIONS {
            let submission_folder = folder.join(number.to_string());
            match fs::create_dir(&submission_folder) {
                Ok(()) => return Ok((number, submission_folder)),
                // A refused submission may have left its folder behind.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => self.number = Some(number),
                Err(error) => {
                    let why = format!("creating the folder {}: {error}", submission_folder.display());
                    return Err(Refusal::new(Code::Refused, why));
                }
            }
        }
        let why = format!("this run has had {MAX_SUBMISSIONS} submissions (start another run)");
        Err(Refusal::new(Code::Refused, why))
    }
}

/// Copies the files, checks them, and writes the record.
fn copy_submission(
    folder: &Path,
    last: &mut LastSubmission,
    plan: &Plan,
    job: usize,
    id: CandidateId,
    params: &SubmitParams,
) -> Result<CandidatePlan, Refusal> {
    let io = |what: &str, error: std::io::Error| Refusal::new(Code::Refused, format!("{what}: {error}"));
    // If the run's folder was moved, another must not appear at its old path.
    match fs::create_dir(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made.map_err(|error| io("creating the folder for submissions", error))?,
    }
    let (number, submission_folder) = last.next_folder(folder)?;
    let job = &plan.jobs[job];
    let refuse = |error: SubmissionError| Refusal::new(Code::InvalidParams, error.to_string());
    let result = copy_files(&submission_folder, params).and_then(|sources| {
        let submission = Submission {
            name: params.name.clone(),
            sources,
            language: params.language,
            symbol: params.symbol.clone(),
            launch: job.launch_like(params.like.as_deref()).map_err(refuse)?,
        };
        let candidate = job.admit(id, &submission).map_err(refuse)?;
        if let Some(why) = candidate.source.language.unfit_for(plan.device()) {
            return Err(Refusal::new(Code::InvalidParams, why));
        }
        let record = SubmissionRecord {
            job: job.name.clone(),
            name: candidate.name.clone(),
            files: candidate.source.sources.iter().map(|path| relative(&submission_folder, path)).collect(),
            language: candidate.source.language,
            symbol: candidate.source.symbol.clone(),
            launch: (*candidate.launch).clone(),
        };
        write_record(&submission_folder, &record).map_err(|error| io("recording the submission", error))?;
        Ok(candidate)
    });
    match &result {
        Ok(_) => last.number = Some(number),
        Err(_) => {
            let _ = fs::remove_dir_all(&submission_folder);
        }
    }
    result
}

/// Returns the numbers of the submissions in the folder, in ascending order.
fn numbers(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbers: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Copies the sources and their headers, keeping their relative paths, or writes the given text to a file. Returns the
/// paths of the copied sources.
fn copy_files(submission_folder: &Path, params: &SubmitParams) -> Result<Vec<PathBuf>, Refusal> {
    let invalid = |why: String| Refusal::new(Code::InvalidParams, why);
    if let Some(text) = &params.text {
        let Some(language) = params.language else {
            return Err(invalid("`text` requires `language`".to_owned()));
        };
        if language.kind().toolchain == Toolchain::Prebuilt {
            return Err(invalid("a library cannot be given as `text`".to_owned()));
        }
        let path = submission_folder.join("submitted").with_extension(language.suffix_of_text());
        fs::write(&path, text)
            .map_err(|error| Refusal::new(Code::Refused, format!("writing the source: {error}")))?;
        return Ok(vec![path]);
    }
    if MAX_FILES < params.sources.len() {
        return Err(invalid(format!("more than {MAX_FILES} source files")));
    }
    if let Some(source) = params.sources.iter().find(|source| !Path::new(source).is_absolute()) {
        return Err(invalid(format!("`{source}` is not an absolute path")));
    }
    let paths: Vec<PathBuf> = params.sources.iter().map(PathBuf::from).collect();
    let language = params.language.or_else(|| Language::of_path(paths.first()?));
    // A file whose suffix belongs to no language is refused later, with a message that names the file.
    let files = KernelFiles::find(&paths, language.unwrap_or(Language::So));
    let copies = files
        .copy_to(submission_folder, MAX_BYTES)
        .map_err(|error| invalid(opt_shared::causes::chain(&error)))?;
    Ok(copies.sources.into_iter().map(|source| source.path).collect())
}

fn relative(submission_folder: &Path, path: &Path) -> String {
    path.strip_prefix(submission_folder).unwrap_or(path).to_string_lossy().into_owned()
}

fn write_record(submission_folder: &Path, record: &SubmissionRecord) -> std::io::Result<()> {
    let draft = submission_folder.join(".new");
    let mut file = File::create(&draft)?;
    file.write_all(&serde_json::to_vec(record)?)?;
    file.sync_all()?;
    fs::rename(&draft, submission_folder.join(RECORD))?;
    // The folder is synced, because otherwise the names may not be on disk.
    File::open(submission_folder)?.sync_all()?;
    submission_folder.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Adds the submissions of earlier parts of a run to its plan. Submissions that cannot be read, or whose job no longer
/// accepts them, are reported and left out. If the plan no longer has their job, they are left out silently.
pub fn restore(plan: &mut Plan, run: &Path) {
    // Candidates get absolute paths, because the earlier part may have had another working folder.
    let run = fs::canonicalize(run).unwrap_or_else(|_| run.to_owned());
    let folder = run.join(FOLDER);
    for number in numbers(&folder).into_iter().take(MAX_SUBMISSIONS as usize) {
        let submission_folder = folder.join(number.to_string());
        match read_record(&submission_folder) {
            Ok(None) => {}
            Ok(Some(record)) => add_to_plan(plan, &submission_folder, record),
            Err(error) => {
                tracing::warn!("the submission {} is left out: {error}", submission_folder.display())
            }
        }
    }
}

fn read_record(submission_folder: &Path) -> std::io::Result<Option<SubmissionRecord>> {
    let file = match File::open(submission_folder.join(RECORD)) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    let mut text = String::new();
    file.take(MAX_RECORD).read_to_string(&mut text)?;
    Ok(Some(serde_json::from_str(&text)?))
}

fn add_to_plan(plan: &mut Plan, submission_folder: &Path, record: SubmissionRecord) {
    let id = CandidateId(u32::try_from(plan.candidates().count()).unwrap_or(u32::MAX));
    let Some(job) = plan.jobs.iter_mut().find(|job| job.name == record.job) else { return };
    let sources = record.files.iter().map(|file| submission_folder.join(file)).collect();
    let submission = Submission {
        name: Some(record.name.clone()),
        sources,
        language: Some(record.language),
        symbol: Some(record.symbol),
        launch: Arc::new(record.launch),
    };
    match job.admit(id, &submission) {
        // Results are stored by the candidate's name. Under another name, the candidate would not find its results.
        Ok(candidate) if candidate.name == record.name => job.candidates.push(candidate),
        Ok(_) => {
            tracing::warn!(
                "the submission `{}` is left out, because the plan now uses that name",
                record.name
            );
        }
        Err(error) => tracing::warn!("the submission `{}` is left out: {error}", record.name),
    }
}

/// Adds a candidate to the plan of a separate run.
pub fn alone(plan: &mut Plan, job: usize, submission: &Submission) -> Result<CandidateId, SubmissionError> {
    let id = CandidateId(u32::try_from(plan.candidates().count()).unwrap_or(u32::MAX));
    let candidate = plan.jobs[job].admit(id, submission)?;
    if let Some(why) = candidate.source.language.unfit_for(plan.device()) {
        return Err(SubmissionError::Unfit { why });
    }
    plan.jobs[job].candidates.push(candidate);
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_listed_only_for_the_first_submission() {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = folder.path();
        for name in ["7", "12", "notes"] {
            fs::create_dir(folder.join(name)).expect("made");
        }
        let mut last = LastSubmission::default();
        let next = |last: &mut LastSubmission| last.next_folder(folder).map(|(number, _)| number);
        assert_eq!(next(&mut last).ok(), Some(13), "the number follows those of earlier parts of the run");
        // A refused submission whose folder is removed does not use its number up; one whose folder stays does.
        fs::remove_dir(folder.join("13")).expect("removed");
        assert_eq!(next(&mut last).ok(), Some(13));
        assert_eq!(next(&mut last).ok(), Some(14));
        last.number = Some(14);
        // A folder that appears later is noticed only when its number is next, and is never used twice.
        fs::create_dir(folder.join("20")).expect("made");
        fs::create_dir(folder.join("15")).expect("made");
        assert_eq!(next(&mut last).ok(), Some(16));
        last.number = Some(MAX_SUBMISSIONS);
        assert!(next(&mut last).is_err());
    }
}
