//! From `plan.toml` to a checked [`Plan`], or to every mistake in it with its place.
//!
//! Reads TOML, and the file system for globs and for whether things exist. Opens no capture and no source, starts
//! nothing, uses no other module of the supervisor.
//!
//! ```text
//! text ──syntax──▶ tree ──schema, job──▶ layers, raw jobs ──layers──▶ settings ──resolve──▶ Plan ──print──▶ text
//!                    └───────────────────────── mistakes: error ──render──▶ standard error
//! ```

mod amounts;
mod candidates;
mod codec;
mod compare;
mod error;
mod first;
mod glob;
mod job;
mod launch;
#[cfg(test)]
mod launch_tests;
mod layers;
pub mod lint;
mod lists;
#[cfg(test)]
mod mistakes;
mod names;
mod print;
mod quantity;
mod render;
mod replay;
mod resolve;
mod resolved;
mod schema;
mod submitted;
mod syntax;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io::Read;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use opt_shared::arguments::PlainValue;
use opt_shared::capture::DType;
use opt_shared::device::Device;
use opt_shared::ids::{CandidateId, JobId};
use opt_shared::launch::Launch;
use opt_shared::settings::{
    BuildSettings, CandidateSource, LimitSettings, ProfileSettings, RecycleSettings, VerifySettings,
};
use opt_shared::stage::Stage;
use opt_shared::units::Bytes;

pub use compare::changed_keys;
pub use error::{PlanError, PlanErrors};
pub use first::first_plan;
pub use layers::Settings;
pub use quantity::{Amount, Floor};
pub use resolved::resolved_toml;
pub use submitted::{Submission, SubmissionError};

/// A plan is typed by a person, or written by a small program; what is larger is some other file.
pub const MAX_PLAN_BYTES: u64 = 1 << 20;

/// Each job has its capture set read and its own row in every report.
pub const MAX_JOBS: usize = 1000;

/// Most candidates of a plan. Each costs the supervisor a few hundred bytes, and a run takes hours long before this.
pub const MAX_CANDIDATES: usize = 100_000;

/// Most entries of one job.
pub const MAX_ENTRIES: usize = 100_000;

/// Everything a run does, with no question left open. Paths are absolute.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub source_path: PathBuf,
    /// What relative paths are relative to.
    pub base_dir: PathBuf,
    pub run: RunSettings,
    pub memory: MemorySettings,
    /// What a job has unless it says otherwise.
    pub settings: Settings,
    pub jobs: Vec<JobPlan>,
    pub replays: Vec<ReplayPlan>,
}

/// `[[replay]]`: calls of the jobs in this order, after them, with their tensors in a pool of `budget`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPlan {
    /// Unique in the plan; a file is named after it.
    pub name: String,
    /// Entries by their names, as files have them before the suffix.
    pub steps: Vec<(JobId, String)>,
    pub candidates: ReplayCandidates,
    pub budget: Bytes,
    /// Names of tensors that never leave the pool.
    pub pin: Vec<String>,
    /// How many steps ahead of the running one are fetched.
    pub prefetch: u32,
}

/// Who makes the calls of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayCandidates {
    /// The winner of each job; where there is none, its baseline.
    Winners,
    Baseline,
}

/// `[run]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    pub name: String,
    pub device: DeviceChoice,
    pub verifiers: NonZeroU32,
    pub stages: Stages,
    /// What all libraries of the run may take on disk together.
    pub max_artifacts: Bytes,
}

/// What runs the candidates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first card where the plan has device code and there is one; else the CPU.
    Auto,
    Named(Device),
}

impl DeviceChoice {
    /// None while it is open: who opens the plan has to look at the machine.
    pub fn named(self) -> Option<Device> {
        match self {
            Self::Auto => None,
            Self::Named(device) => Some(device),
        }
    }
}

/// Which stages run; each only with the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stages {
    pub build: bool,
    pub verify: bool,
    pub profile: bool,
}

impl Stages {
    pub fn runs(mut self, stage: Stage) -> bool {
        self.flag(stage).is_some_and(|flag| *flag)
    }

    /// None for a replay, which is a table of its own and no stage of a candidate, and for what a profile brings along.
    fn flag(&mut self, stage: Stage) -> Option<&mut bool> {
        match stage {
            Stage::Build => Some(&mut self.build),
            Stage::Verify => Some(&mut self.verify),
            Stage::Profile => Some(&mut self.profile),
            Stage::Screen | Stage::Confirm | Stage::Replay => None,
        }
    }
}

/// `[memory]`.
#[derive(Clone, Debug, PartialEq)]
pub struct MemorySettings {
    /// A share of min(RAM, cgroup limit).
    pub host_ceiling: Amount,
    pub host_floor: Floor,
    pub device_ceiling: Amount,
    pub swap: SwapUse,
    pub unified: Unified,
    pub spare: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapUse {
    /// No page of our process tree goes to swap.
    Own,
    Any,
}

/// Whether host and device share one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unified {
    Auto,
    Yes,
    No,
}

/// `[[job]]`: one op.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    pub id: JobId,
    /// Unique in the plan.
    pub name: String,
    /// An existing folder.
    pub captures: PathBuf,
    /// Patterns of file names in it; [`entry_files`] applies them.
    pub entries: Vec<String>,
    pub dtypes: Option<Vec<DType>>,
    pub params: Option<Vec<String>>,
    /// Parameters that are the same in every timed call.
    pub constant: Vec<String>,
    pub defaults: BTreeMap<String, PlainValue>,
    /// Candidates that do not do every entry are ranked too.
    pub partial: bool,
    pub baseline: Option<CandidateId>,
    pub candidates: Vec<CandidatePlan>,
    pub recycle: Arc<RecycleSettings>,
    pub build: Arc<BuildSettings>,
    pub verify: Arc<VerifySettings>,
    pub profile: Arc<ProfileSettings>,
    /// For candidates that are handed in while the job runs, like `build`.
    pub limits: Arc<LimitSettings>,
}

/// One candidate, the baseline included.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidatePlan {
    pub id: CandidateId,
    pub job: JobId,
    /// Unique in its job.
    pub name: String,
    pub source: CandidateSource,
    pub recycle: Arc<RecycleSettings>,
    pub build: Arc<BuildSettings>,
    pub verify: Arc<VerifySettings>,
    pub profile: Arc<ProfileSettings>,
    pub limits: Arc<LimitSettings>,
    pub partial: bool,
    /// How it is called, if it has no host code.
    pub launch: Arc<Launch>,
}

impl Plan {
    /// Reads and checks a plan. `set` are the arguments of `--set`, `KEY=VALUE` each.
    pub fn load(path: &Path, set: &[String]) -> Result<Self, PlanErrors> {
        let text = read_bounded(path)?;
        Self::parse(&text, path, set)
    }

    /// The same for a text that was read elsewhere; `path` is where it stands, or would.
    pub fn parse(text: &str, path: &Path, set: &[String]) -> Result<Self, PlanErrors> {
        resolve::resolve(text, path, set)
    }

    pub fn job(&self, id: JobId) -> Option<&JobPlan> {
        self.jobs.get(id.index())
    }

    /// Candidates are numbered job by job, then those that were submitted: within a job, by their numbers.
    pub fn candidate(&self, id: CandidateId) -> Option<&CandidatePlan> {
        self.jobs.iter().find_map(|job| {
            let place = job.candidates.binary_search_by_key(&id, |candidate| candidate.id).ok()?;
            job.candidates.get(place)
        })
    }

    /// What its candidates run on, if that was left open: the CPU, unless they have no host code.
    pub fn device(&self) -> Device {
        self.run.device.named().unwrap_or_default()
    }

    /// Whether candidates have no host code.
    pub fn has_device_code(&self) -> bool {
        self.candidates().any(|candidate| candidate.source.language.is_device_code())
    }

    /// Which stages run on the run's device: where nothing can be timed, nothing is.
    pub fn stages(&self) -> Stages {
        let stages = self.run.stages;
        Stages { profile: stages.profile && self.device().kind().not_timed().is_none(), ..stages }
    }

    /// Why no candidate is timed although the plan has a profile stage; `None` if candidates are timed, or the plan has
    /// no such stage.
    pub fn not_timed_because(&self) -> Option<&'static str> {
        self.device().kind().not_timed().filter(|_| self.run.stages.profile)
    }

    /// Why this candidate is not timed although the plan has a profile stage: because of the device, or of its language.
    pub fn candidate_not_timed_because(&self, candidate: &CandidatePlan) -> Option<&'static str> {
        let by_language = || candidate.source.language.not_timed().filter(|_| self.run.stages.profile);
        self.not_timed_because().or_else(by_language)
    }

    pub fn candidates(&self) -> impl Iterator<Item = &CandidatePlan> {
        self.jobs.iter().flat_map(|job| &job.candidates)
    }
}

fn read_bounded(path: &Path) -> Result<String, PlanErrors> {
    let refuse = |message: String, help: &str| {
        PlanErrors::of_file(render::label(path), message, (!help.is_empty()).then(|| help.to_owned()))
    };
    let unreadable = |error: std::io::Error| {
        let help = match error.kind() {
            std::io::ErrorKind::NotFound => "`opt-supervisor init` writes a first plan",
            _ => "",
        };
        refuse(format!("cannot read the plan: {error}"), help)
    };
    let file = std::fs::File::open(path).map_err(unreadable)?;
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(refuse("cannot read the plan: it is a folder".to_owned(), "name the `.toml` file in it"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_PLAN_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_PLAN_BYTES {
        return Err(refuse("the plan is larger than 1 MiB".to_owned(), "name candidates by patterns"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.utf8_error().valid_up_to();
        let line = error.as_bytes()[..valid].iter().filter(|&&byte| byte == b'\n').count() + 1;
        refuse(format!("the plan is not UTF-8: line {line} holds a byte that no character begins with"), "")
    })
}

/// Why the entries of a job cannot be listed.
#[derive(Debug, thiserror::Error)]
pub enum EntriesError {
    #[error("job `{job}`: the entries in `{}` cannot be listed", captures.display())]
    Unlisted {
        job: String,
        captures: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error(
        "job `{job}`: no file in `{}` matches {patterns} (look at `captures` and `entries` of the job)",
        captures.display()
    )]
    None { job: String, captures: PathBuf, patterns: String },
}

/// The files of a job's capture set, sorted by name; of a store, its manifests.
pub fn entry_files(job: &JobPlan) -> Result<Vec<PathBuf>, EntriesError> {
    let folder = opt_shared::capture::store::entries_folder(&job.captures);
    let listing =
        glob::list(&folder, &job.entries, MAX_ENTRIES).map_err(|source| EntriesError::Unlisted {
            job: job.name.clone(),
            captures: job.captures.clone(),
            source: Box::new(source),
        })?;
    if listing.files.is_empty() {
        let patterns =
            job.entries.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>().join(", ");
        return Err(EntriesError::None { job: job.name.clone(), captures: job.captures.clone(), patterns });
    }
    Ok(listing.files)
}
