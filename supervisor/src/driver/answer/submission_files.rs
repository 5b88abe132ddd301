//! Copies the files of submitted candidates into the run's folder, so that a resumed run finds them again.
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

use crate::control::{Code, Refusal, SubmitParams};
use crate::plan::{CandidatePlan, Plan, Submission};

/// The folder for submissions, within the run's folder. Each submission has its own folder in it.
const FOLDER: &str = "submitted";
const RECORD: &str = "submission.json";
/// The name of the record while it is being written.
const DRAFT: &str = ".new";
/// The largest number of submissions in a run. Each has a folder, and a row in the run's database.
const MAX_SUBMISSIONS: u32 = 10_000;
/// The largest number of source files of a submission.
const MAX_FILES: usize = 16;
/// The largest total size of a submission's files. Sources are small, but libraries may have debug symbols.
const MAX_BYTES: Bytes = Bytes::mib(16);
/// The longest record of a submission, in bytes. It contains the launches.
const MAX_RECORD: u64 = 4 << 20;

/// The record of a submission. It contains everything that a resumed run needs to add the candidate to its plan again.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct SubmissionRecord {
    job: String,
    name: String,
    /// The paths of the files. They are relative to the submission's folder, except in a record that has not been
    /// written yet.
    files: Vec<PathBuf>,
    language: Language,
    symbol: String,
    #[serde(default)]
    launch: Launch,
}

impl SubmissionRecord {
    pub(super) fn of(job: &str, candidate: &CandidatePlan) -> Self {
        Self {
            job: job.to_owned(),
            name: candidate.name.clone(),
            files: candidate.source.sources.clone(),
            language: candidate.source.language,
            symbol: candidate.source.symbol.to_string(),
            launch: (*candidate.launch).clone(),
        }
    }
}

/// The folders of a run's submissions, with the number of the last one.
pub(super) struct SubmissionFolders {
    /// The folder that contains the folder of each submission.
    folder: PathBuf,
    /// The last number that is used up. Either a recorded submission has it, or the folder that a refused submission
    /// left behind. Before the first submission, this is `None`. The folder is then listed to find the numbers that
    /// were used in earlier parts of the run.
    last: Option<u32>,
    /// The number and folder of the submission that was copied last. `None` if there is none, or if its folder was
    /// discarded.
    current: Option<(u32, PathBuf)>,
}

impl SubmissionFolders {
    pub(super) fn new(run: &Path) -> Self {
        Self { folder: run.join(FOLDER), last: None, current: None }
    }

    /// Copies the files of a submission into a new folder. Returns the paths of the copied sources.
    pub(super) fn copy(&mut self, params: &SubmitParams) -> Result<Vec<PathBuf>, Refusal> {
        // If no new folder can be created, a later `discard` must not remove the folder of an accepted submission.
        self.current = None;
        let (number, folder) = self.next_folder()?;
        let copied = copy_files(&folder, params);
        self.current = Some((number, folder));
        if copied.is_err() {
            self.discard();
        }
        copied
    }

    /// Writes the record of the submission that was copied last. Returns the digest of its files, if they can be read.
    pub(super) fn record(&mut self, record: &SubmissionRecord) -> Result<Option<String>, Refusal> {
        let Some((number, folder)) = &self.current else {
            return Err(Refusal::new(Code::Refused, "the submission's folder was removed"));
        };
        let number = *number;
        let written = write_record(folder, record);
        if written.is_err() {
            self.discard();
        }
        written.map_err(|error| refused("recording the submission", &error))?;
        self.last = Some(number);
        Ok(opt_shared::digest::of_files(&KernelFiles::find(&record.files, record.language)).ok())
    }

    /// Removes the folder of the submission that was copied last.
    pub(super) fn discard(&mut self) {
        if let Some((_, folder)) = self.current.take() {
            // The record is removed first, because a resumed run must not find a record without its files.
            let _ = fs::remove_file(folder.join(RECORD));
            let _ = fs::remove_dir_all(folder);
        }
    }

    /// Creates the folder of the next submission. Its number is used up once the submission is recorded. If the
    /// submission is refused, its number is used up only if its folder cannot be removed.
    fn next_folder(&mut self) -> Result<(u32, PathBuf), Refusal> {
        // Only this folder is created, not its parents. If the run's folder was moved, no new one may appear at its old
        // path.
        match fs::create_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => made.map_err(|error| {
                refused(&format!("creating the folder {}", self.folder.display()), &error)
            })?,
        }
        let last = *self.last.get_or_insert_with(|| numbers(&self.folder).last().copied().unwrap_or(0));
        for number in last.saturating_add(1)..=MAX_SUBMISSIONS {
            let folder = self.folder.join(number.to_string());
            match fs::create_dir(&folder) {
                Ok(()) => return Ok((number, folder)),
                // A refused submission may have left its folder behind.
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => self.last = Some(number),
                Err(error) => {
                    return Err(refused(&format!("creating the folder {}", folder.display()), &error));
                }
            }
        }
        let why = format!(
            "this run has had {MAX_SUBMISSIONS} submissions, which is the maximum (start another run)"
        );
        Err(Refusal::new(Code::Refused, why))
    }
}

fn refused(attempt: &str, error: &std::io::Error) -> Refusal {
    Refusal::new(Code::Refused, format!("{attempt}: {error}"))
}

/// Returns the numbers of the submission folders in `folder`, in ascending order.
fn numbers(folder: &Path) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut numbers: Vec<u32> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// Copies the sources and their headers and keeps their relative paths, or writes the given text to a file. Returns the
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
        return Err(invalid(format!("a submission can have at most {MAX_FILES} source files")));
    }
    if let Some(source) = params.sources.iter().find(|source| !Path::new(source).is_absolute()) {
        return Err(invalid(format!("`{source}` is not an absolute path")));
    }
    let paths: Vec<PathBuf> = params.sources.iter().map(PathBuf::from).collect();
    let language = params.language.or_else(|| Language::of_path(paths.first()?));
    // If the suffix of a file belongs to no language, the submission is refused later, with a message that names the
    // file.
    let files = KernelFiles::find(&paths, language.unwrap_or(Language::So));
    let is_reserved = |path: &Path| [DRAFT, RECORD].iter().any(|name| path.starts_with(name));
    if let Some(file) = files.all().find(|file| is_reserved(&file.relative)) {
        let name = file.relative.display();
        return Err(invalid(format!(
            "a submission cannot have a file `{name}`, because its record has this name"
        )));
    }
    let copies = files
        .copy_to(submission_folder, MAX_BYTES)
        .map_err(|error| invalid(opt_shared::causes::chain(&error)))?;
    Ok(copies.sources.into_iter().map(|source| source.path).collect())
}

fn write_record(folder: &Path, record: &SubmissionRecord) -> std::io::Result<()> {
    let relative = |path: &PathBuf| path.strip_prefix(folder).unwrap_or(path).to_owned();
    let files = record.files.iter().map(relative).collect();
    let draft = folder.join(DRAFT);
    let mut file = File::create(&draft)?;
    file.write_all(&serde_json::to_vec(&SubmissionRecord { files, ..record.clone() })?)?;
    file.sync_all()?;
    fs::rename(&draft, folder.join(RECORD))?;
    // Without syncing the folders, the names in them may not be on disk.
    File::open(folder)?.sync_all()?;
    folder.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Adds the submissions of earlier parts of a run to its plan. A submission is reported and left out if it cannot be
/// read, if the plan now uses its name, or if its job is gone or no longer accepts it.
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
                tracing::warn!(
                    "the submission in {} is left out of the resumed run: {error}",
                    submission_folder.display()
                )
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
    let Some(job) = plan.jobs.iter_mut().find(|job| job.name == record.job) else {
        tracing::warn!(
            "the submission `{}` is left out of the resumed run, because the plan has no job `{}` any more",
            record.name,
            record.job
        );
        return;
    };
    let sources = record.files.iter().map(|file| submission_folder.join(file)).collect();
    let submission = Submission {
        name: Some(record.name.clone()),
        sources,
        language: Some(record.language),
        symbol: Some(record.symbol),
        launch: Arc::new(record.launch),
    };
    match job.admit(id, &submission) {
        // Results are stored by the candidate's name, so under another name the candidate would not find its results.
        Ok(candidate) if candidate.name == record.name => job.candidates.push(candidate),
        Ok(_) => {
            tracing::warn!(
                "the submission `{}` is left out of the resumed run, because the plan now uses that name",
                record.name
            );
        }
        Err(error) => {
            tracing::warn!("the submission `{}` is left out of the resumed run: {error}", record.name)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_is_listed_only_for_the_first_submission() {
        let run = tempfile::tempdir().expect("a folder");
        let folder = run.path().join(FOLDER);
        for name in ["7", "12", "notes"] {
            fs::create_dir_all(folder.join(name)).expect("made");
        }
        let mut folders = SubmissionFolders::new(run.path());
        let next = |folders: &mut SubmissionFolders| folders.next_folder().map(|(number, _)| number);
        assert_eq!(next(&mut folders).ok(), Some(13), "the number follows those of earlier parts of the run");
        // A refused submission whose folder is removed does not use its number up; one whose folder stays does.
        fs::remove_dir(folder.join("13")).expect("removed");
        assert_eq!(next(&mut folders).ok(), Some(13));
        assert_eq!(next(&mut folders).ok(), Some(14));
        folders.last = Some(14);
        // A folder that appears later is noticed only when its number is next, and is never used twice.
        fs::create_dir(folder.join("20")).expect("made");
        fs::create_dir(folder.join("15")).expect("made");
        assert_eq!(next(&mut folders).ok(), Some(16));
        folders.last = Some(MAX_SUBMISSIONS);
        assert!(next(&mut folders).is_err());
    }

    fn text(text: &str) -> SubmitParams {
        SubmitParams { text: Some(text.to_owned()), language: Some(Language::C), ..SubmitParams::default() }
    }

    #[test]
    fn discarded_submission_leaves_no_folder_and_its_number_is_used_again() {
        let run = tempfile::tempdir().expect("a folder");
        let mut folders = SubmissionFolders::new(run.path());
        let copied = folders.copy(&text("int x;")).expect("copied");
        let path = run.path().join("submitted/1/submitted.c");
        assert_eq!(copied, std::slice::from_ref(&path));
        assert_eq!(fs::read_to_string(&path).expect("read"), "int x;");
        folders.discard();
        assert!(!path.exists());
        assert!(folders.copy(&SubmitParams { language: None, ..text("int x;") }).is_err());
        assert_eq!(fs::read_dir(run.path().join(FOLDER)).expect("listed").count(), 0);
        assert_eq!(folders.copy(&text("int y;")).expect("copied"), [path]);
    }

    #[test]
    fn file_with_the_name_of_the_record_is_refused() {
        let (run, sources) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let mut folders = SubmissionFolders::new(run.path());
        for (name, is_refused) in [("submission.json", true), (".new", true), ("new.c", false)] {
            let path = sources.path().join(name);
            fs::write(&path, "int x;").expect("written");
            let params = SubmitParams { text: None, sources: vec![path.display().to_string()], ..text("") };
            assert_eq!(folders.copy(&params).is_err(), is_refused, "{name}");
        }
    }

    #[test]
    fn refused_submission_leaves_the_files_of_the_accepted_one_before_it() {
        let run = tempfile::tempdir().expect("a folder");
        let mut folders = SubmissionFolders::new(run.path());
        let copied = folders.copy(&text("int x;")).expect("copied");
        let record = SubmissionRecord {
            job: "job".to_owned(),
            name: "one".to_owned(),
            files: copied.clone(),
            language: Language::C,
            symbol: "run".to_owned(),
            launch: Launch::default(),
        };
        let digest = folders.record(&record).expect("recorded");
        assert!(digest.is_some(), "the files can be read");
        folders.last = Some(MAX_SUBMISSIONS);
        assert!(folders.copy(&text("int y;")).is_err(), "there is no room for another");
        folders.discard();
        assert_eq!(fs::read_to_string(&copied[0]).expect("still there"), "int x;");
    }
}
