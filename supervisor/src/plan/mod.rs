//! Reads `plan.toml` into a checked [`Plan`], or reports every mistake in it with its position.
//!
//! Apart from the plan itself, this module reads no file. It only expands globs and checks that paths exist. It starts
//! no process, and uses no other module of the supervisor. (`lint` receives the values that it needs from its caller.)
//!
//! ```text
//! text ──syntax──▶ tree ──schema, job──▶ layers, raw jobs ──layers──▶ settings ──resolve──▶ Plan ──resolved──▶ text
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

/// The largest size of a plan, in bytes. People and small programs write plans, so a larger file is probably not a
/// plan.
pub const MAX_PLAN_BYTES: u64 = 1 << 20;

/// The maximum number of jobs in a plan. The supervisor reads the capture set of each job, and every report has a part
/// for it.
pub const MAX_JOBS: usize = 1000;

/// The maximum number of candidates in a plan. Each takes a few hundred bytes of the supervisor's memory. Even a run
/// with far fewer candidates takes hours.
pub const MAX_CANDIDATES: usize = 100_000;

/// The maximum number of entries in a job.
pub const MAX_ENTRIES: usize = 100_000;

/// A checked plan, with everything that a run needs. All settings have values, and all paths are absolute.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub source_path: PathBuf,
    /// The folder of the plan, at which relative paths in the plan start.
    pub base_dir: PathBuf,
    pub run: RunSettings,
    pub memory: MemorySettings,
    /// The settings of jobs that do not override them.
    pub settings: Settings,
    pub jobs: Vec<JobPlan>,
    pub replays: Vec<ReplayPlan>,
}

/// A `[[replay]]`: recorded calls of the jobs, which are made in the order of `steps` after all jobs of the plan have
/// ended. The tensors are kept in a pool of `budget` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplayPlan {
    /// The name, which is unique in the plan. It becomes part of the name of a file.
    pub name: String,
    /// The job and entry of each step. An entry is named by its file without the suffix.
    pub steps: Vec<(JobId, String)>,
    pub candidates: ReplayCandidates,
    pub budget: Bytes,
    /// Names of tensors that never leave the pool.
    pub pin: Vec<String>,
    /// How many of the steps after the running one have their tensors loaded in advance, if the pool has room.
    pub prefetch: u32,
}

/// The candidates that make the calls of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplayCandidates {
    /// The winner of each job. The baseline makes the calls instead if there is no winner, or if the winner does not
    /// support all of the job's entries in the replay. On a device, it also does so if the winner has host code.
    Winners,
    Baseline,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunSettings {
    pub name: String,
    pub device: DeviceChoice,
    pub verifiers: NonZeroU32,
    pub stages: Stages,
    /// The most disk space that all built libraries of the run may take together.
    pub max_artifacts: Bytes,
}

/// The device that runs the candidates, as the plan chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first card, if the plan has candidates for a device and the machine has a card. Otherwise, the CPU.
    Auto,
    Named(Device),
}

impl DeviceChoice {
    /// Returns the device that the plan names. `None` for `auto`, which is resolved later by looking at the machine.
    pub fn named(self) -> Option<Device> {
        match self {
            Self::Auto => None,
            Self::Named(device) => Some(device),
        }
    }
}

/// The stages to run. Each stage requires all earlier ones.
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

    /// Returns the flag that says whether a stage is run. `None` for a replay, which has its own table in the plan, and
    /// for stages that are part of profiling.
    fn flag(&mut self, stage: Stage) -> Option<&mut bool> {
        match stage {
            Stage::Build => Some(&mut self.build),
            Stage::Verify => Some(&mut self.verify),
            Stage::Profile => Some(&mut self.profile),
            Stage::Screen | Stage::Confirm | Stage::Replay => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct MemorySettings {
    /// A size, or a share of min(RAM, cgroup limit).
    pub host_ceiling: Amount,
    pub host_floor: Floor,
    pub device_ceiling: Amount,
    pub swap: SwapUse,
    pub unified: Unified,
    pub spare: bool,
}

/// How much swapping a run tolerates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SwapUse {
    /// No page of the run's own processes should be swapped out. If some are, the supervisor reports this and ends idle
    /// workers.
    Own,
    /// Swapping is ignored.
    Any,
}

/// Whether host and device are treated as sharing one memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unified {
    Auto,
    Yes,
    No,
}

/// A `[[job]]`, which is about one op.
#[derive(Clone, Debug, PartialEq)]
pub struct JobPlan {
    pub id: JobId,
    /// The name, which is unique in the plan.
    pub name: String,
    /// The capture folder or store. It existed when the plan was read.
    pub captures: PathBuf,
    /// Patterns for file names in `captures`. [`entry_files`] lists the files that match.
    pub entries: Vec<String>,
    pub dtypes: Option<Vec<DType>>,
    pub params: Option<Vec<String>>,
    /// Parameters that keep their recorded values in every timed call.
    pub constant: Vec<String>,
    pub defaults: BTreeMap<String, PlainValue>,
    /// Whether candidates that do not support every entry are ranked too.
    pub partial: bool,
    pub baseline: Option<CandidateId>,
    pub candidates: Vec<CandidatePlan>,
    pub recycle: Arc<RecycleSettings>,
    pub build: Arc<BuildSettings>,
    pub verify: Arc<VerifySettings>,
    pub profile: Arc<ProfileSettings>,
    /// The limits of candidates that are submitted during the run. [`JobPlan::admit`] gives such a candidate these
    /// limits, the value of `partial`, and the four settings above.
    pub limits: Arc<LimitSettings>,
}

/// A candidate. The baseline is also a candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct CandidatePlan {
    pub id: CandidateId,
    pub job: JobId,
    /// The name, which is unique in its job.
    pub name: String,
    pub source: CandidateSource,
    pub recycle: Arc<RecycleSettings>,
    pub build: Arc<BuildSettings>,
    pub verify: Arc<VerifySettings>,
    pub profile: Arc<ProfileSettings>,
    pub limits: Arc<LimitSettings>,
    pub partial: bool,
    /// The launches of a candidate without host code. Empty for any other candidate.
    pub launch: Arc<Launch>,
}

impl Plan {
    /// Reads and checks a plan. `set` contains the arguments of `--set`, each of the form `KEY=VALUE`.
    pub fn load(path: &Path, set: &[String]) -> Result<Self, PlanErrors> {
        let text = read_bounded(path)?;
        Self::parse(&text, path, set)
    }

    /// Checks the text of a plan. `path` is the file that contains the text, or the file that it would be written to.
    pub fn parse(text: &str, path: &Path, set: &[String]) -> Result<Self, PlanErrors> {
        resolve::resolve(text, path, set)
    }

    pub fn job(&self, id: JobId) -> Option<&JobPlan> {
        self.jobs.get(id.index())
    }

    pub fn candidate(&self, id: CandidateId) -> Option<&CandidatePlan> {
        // Candidates are numbered job by job, and later in the order in which they are submitted. The numbers within a
        // job are therefore always sorted.
        self.jobs.iter().find_map(|job| {
            let index = job.candidates.binary_search_by_key(&id, |candidate| candidate.id).ok()?;
            job.candidates.get(index)
        })
    }

    /// Returns the device that the candidates run on. `auto` counts as the CPU until it is resolved.
    pub fn device(&self) -> Device {
        self.run.device.named().unwrap_or_default()
    }

    /// Returns whether the kernels of any candidate run on a device.
    pub fn needs_device(&self) -> bool {
        self.candidates().any(|candidate| candidate.source.language.needs_device())
    }

    /// Returns the stages that are run on the run's device. If the device cannot time anything, the profile stage is
    /// left out.
    pub fn stages(&self) -> Stages {
        let stages = self.run.stages;
        Stages { profile: stages.profile && self.device().kind().not_timed().is_none(), ..stages }
    }

    /// Returns why no candidate is timed although the plan has a profile stage. `None` if candidates are timed, or if
    /// the plan has no such stage.
    pub fn not_timed_because(&self) -> Option<&'static str> {
        self.device().kind().not_timed().filter(|_| self.run.stages.profile)
    }

    /// Returns why this candidate is not timed although the plan has a profile stage: because of its device, or its
    /// language.
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
        refuse(format!("the plan is not valid UTF-8 (line {line})"), "")
    })
}

/// An error while listing the entries of a job.
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
    NoMatch { job: String, captures: PathBuf, patterns: String },
}

/// Returns the files that match `entries`, sorted by name. They are files of the job's capture set, or manifests of its
/// capture store.
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
        return Err(EntriesError::NoMatch {
            job: job.name.clone(),
            captures: job.captures.clone(),
            patterns,
        });
    }
    Ok(listing.files)
}
