//! Turns candidates that are submitted during a run into candidates of a job. They follow the same rules as candidates
//! in a plan and use the job's settings.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opt_shared::ids::CandidateId;
use opt_shared::language::Language;
use opt_shared::launch::Launch;
use opt_shared::settings::CandidateSource;

use super::candidates::is_prebuilt;
use super::names::{MAX_NAME_CHARS, NameOf, objection};
use super::{CandidatePlan, JobPlan};

/// The number of characters of a name that are reserved for the number that makes the name unique.
const NUMBER_CHARS: usize = 8;

/// A submitted candidate. Paths are absolute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Submission {
    /// The name. By default, this is the name of the first file without its suffix. If the name is in use, a number is
    /// appended.
    pub name: Option<String>,
    pub sources: Vec<PathBuf>,
    /// The language. If it is not given, it follows from the suffixes of the files.
    pub language: Option<Language>,
    pub symbol: Option<String>,
    /// The launches of a kernel without host code. [`JobPlan::admit`] ignores them for other kernels. If there are
    /// launches and `language` is not given, a `.cu` file counts as a kernel without host code.
    pub launch: Arc<Launch>,
}

#[derive(Debug, thiserror::Error)]
pub enum SubmissionError {
    #[error("a candidate needs a source file")]
    NoSource,
    #[error(
        "the language of {path} is not clear from its suffix (give `language`, or use a suffix such as `c` or `cu`)"
    )]
    NoLanguage { path: PathBuf },
    #[error("the sources are in two languages (give `language`)")]
    TwoLanguages,
    #[error("{why}")]
    Unsupported { why: &'static str },
    #[error(
        "`{language}` has no host code and needs launches (as `like`, name a candidate of the job that has launches, \
         or start a run whose plan has this candidate as a `[[job.candidate]]`)"
    )]
    NoLaunch { language: &'static str },
    #[error("the job has no candidate `{name}` whose launches could be used")]
    NothingLike { name: String },
    #[error("{why}")]
    Unfit { why: String },
    #[error("a prebuilt file must be the only source of its candidate")]
    SeveralLibraries,
    #[error("the name `{name}` {objection}")]
    Name { name: String, objection: &'static str },
}

impl JobPlan {
    /// Returns the launches for a submitted kernel without host code. They come from the candidate `like`, which must
    /// have launches. Without `like`, they come from the baseline, or else from the first candidate that has launches.
    /// If no candidate has any, the result has no steps.
    pub fn launch_like(&self, like: Option<&str>) -> Result<Arc<Launch>, SubmissionError> {
        let launched = |it: &&CandidatePlan| !it.launch.steps.is_empty();
        let found = match like {
            Some(name) => {
                let named = self.candidates.iter().filter(launched).find(|it| it.name == name);
                Some(named.ok_or_else(|| SubmissionError::NothingLike { name: name.to_owned() })?)
            }
            None => {
                let baseline =
                    self.candidates.iter().filter(launched).find(|it| Some(it.id) == self.baseline);
                baseline.or_else(|| self.candidates.iter().find(launched))
            }
        };
        Ok(found.map(|it| it.launch.clone()).unwrap_or_default())
    }

    /// Checks a submission and turns it into a candidate of this job.
    pub fn admit(&self, id: CandidateId, submission: &Submission) -> Result<CandidatePlan, SubmissionError> {
        let first = submission.sources.first().ok_or(SubmissionError::NoSource)?;
        let language = match submission.language {
            Some(language) => language,
            None => match common_language(&submission.sources)? {
                // If there are launches, a `.cu` file is assumed to have no host code.
                Language::Cuda if !submission.launch.steps.is_empty() => Language::CudaDevice,
                language => language,
            },
        };
        if let Some(why) = language.kind().missing {
            return Err(SubmissionError::Unsupported { why });
        }
        let launch = if language.needs_launches() { submission.launch.clone() } else { Arc::default() };
        if language.needs_launches() && launch.steps.is_empty() {
            return Err(SubmissionError::NoLaunch { language: language.name() });
        }
        if let Some(why) = submission.sources.iter().find_map(|path| language.refuses(path)) {
            return Err(SubmissionError::Unsupported { why });
        }
        if is_prebuilt(language) && 1 < submission.sources.len() {
            return Err(SubmissionError::SeveralLibraries);
        }
        let stem = || first.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let wanted = submission.name.clone().unwrap_or_else(stem);
        if let Some(objection) = objection(&wanted, NameOf::Candidate) {
            let name = wanted.chars().take(MAX_NAME_CHARS).collect();
            return Err(SubmissionError::Name { name, objection });
        }
        Ok(CandidatePlan {
            id,
            job: self.id,
            name: self.unique_name(&wanted),
            source: CandidateSource {
                sources: submission.sources.clone(),
                language,
                symbol: submission.symbol.clone().map_or(language.kind().symbol.into(), Into::into),
            },
            recycle: self.recycle.clone(),
            build: self.build.clone(),
            verify: self.verify.clone(),
            profile: self.profile.clone(),
            limits: self.limits.clone(),
            partial: self.partial,
            launch,
        })
    }

    fn unique_name(&self, wanted: &str) -> String {
        let taken: BTreeSet<&str> = self.candidates.iter().map(|it| it.name.as_str()).collect();
        if !taken.contains(wanted) {
            return wanted.to_owned();
        }
        let short: String = wanted.chars().take(MAX_NAME_CHARS - NUMBER_CHARS).collect();
        // There are more numbers than candidates, so one is always free.
        (2..=taken.len() + 2)
            .map(|number| format!("{}-{number}", short.trim_end()))
            .find(|name| !taken.contains(name.as_str()))
            .unwrap_or_else(|| wanted.to_owned())
    }
}

fn common_language(sources: &[PathBuf]) -> Result<Language, SubmissionError> {
    let of = |path: &Path| {
        Language::of_path(path).ok_or_else(|| SubmissionError::NoLanguage { path: path.to_owned() })
    };
    let mut common = None;
    for path in sources {
        let language = of(path)?;
        if *common.get_or_insert(language) != language {
            return Err(SubmissionError::TwoLanguages);
        }
    }
    common.ok_or(SubmissionError::NoSource)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Plan;

    fn job() -> JobPlan {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("naive.c"), "").expect("written");
        std::fs::create_dir(folder.path().join("op")).expect("made");
        std::fs::write(folder.path().join("op/entry_000000.pt"), "").expect("written");
        let text = "[[job]]\ncaptures = \"op\"\nbaseline = \"naive.c\"\n";
        let mut plan = Plan::parse(text, &folder.path().join("plan.toml"), &[])
            .unwrap_or_else(|errors| panic!("{}", errors.render(false)));
        plan.jobs.remove(0)
    }

    #[test]
    fn submitted_device_code_is_launched_like_another_candidate() {
        let mut job = job();
        let of = |name: &str, launch: &Arc<Launch>| Submission {
            sources: vec![PathBuf::from(name)],
            launch: launch.clone(),
            ..Submission::default()
        };
        assert!(job.launch_like(None).expect("without steps").steps.is_empty());
        let text = r#"{"steps": [{"symbol": "fast", "grid": ["1", "1", "1"], "block": ["1", "1", "1"], "shared_mem": "0",
                       "args": ["out"]}], "workspaces": []}"#;
        let launch: Arc<Launch> = Arc::new(serde_json::from_str(text).expect("a launch"));
        let second = job.admit(CandidateId(1), &of("/x/second.ptx", &launch)).expect("admitted");
        job.candidates.push(second);
        assert_eq!(job.launch_like(None).expect("found"), launch);
        assert_eq!(job.launch_like(Some("second")).expect("found"), launch);
        for name in ["naive", "third"] {
            assert!(matches!(job.launch_like(Some(name)), Err(SubmissionError::NothingLike { .. })));
        }
        let source = job.admit(CandidateId(2), &of("/x/third.cu", &launch)).expect("admitted");
        assert_eq!((source.source.language, source.launch), (Language::CudaDevice, launch.clone()));
        let host = job.admit(CandidateId(3), &of("/x/fast.c", &launch)).expect("admitted");
        assert!(host.launch.steps.is_empty(), "host code is not launched");
    }

    #[test]
    fn admit_applies_the_rules_of_a_plan() {
        let mut job = job();
        let of = |name: &str| Submission { sources: vec![PathBuf::from(name)], ..Submission::default() };
        let first = job.admit(CandidateId(1), &of("/x/fast.c")).expect("admitted");
        assert_eq!((first.name.as_str(), &*first.source.symbol), ("fast", "run"));
        assert_eq!((first.job, &first.build), (job.id, &job.build));
        job.candidates.push(first);
        let second = job.admit(CandidateId(2), &of("/y/fast.cpp")).expect("admitted");
        assert_eq!((second.name.as_str(), second.source.language), ("fast-2", Language::Cpp));
        job.candidates.push(second);
        assert_eq!(job.admit(CandidateId(3), &of("/z/fast.c")).expect("admitted").name, "fast-3");
        assert!(matches!(
            job.admit(CandidateId(3), &of("/x/fast.rs")),
            Err(SubmissionError::NoLanguage { .. })
        ));
        let launches_itself = job.admit(CandidateId(3), &of("/x/fast.cu")).expect("admitted");
        assert_eq!(launches_itself.source.language, Language::Cuda);
        let error = job.admit(CandidateId(3), &of("/x/fast.ptx")).expect_err("refused");
        assert!(error.to_string().contains("`ptx` has no host code and needs launches"), "{error}");
        let python = job.admit(CandidateId(3), &of("/x/fast.py")).expect("admitted");
        assert_eq!(python.source.language, Language::Python);
        assert!(matches!(job.admit(CandidateId(3), &Submission::default()), Err(SubmissionError::NoSource)));
        let two = Submission { sources: vec!["/a.c".into(), "/b.cpp".into()], ..Submission::default() };
        assert!(matches!(job.admit(CandidateId(3), &two), Err(SubmissionError::TwoLanguages)));
        let named = Submission { name: Some("a\u{202e}b".to_owned()), ..of("/x/fast.c") };
        assert!(matches!(job.admit(CandidateId(3), &named), Err(SubmissionError::Name { .. })));
    }
}
