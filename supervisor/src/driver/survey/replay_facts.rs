//! Reads the facts about a replay from headers alone, before anything runs: its steps, its floor, and the memory that
//! it will owe.

use opt_shared::arguments::{Entry, bind};
use opt_shared::capture::CaptureFile;
use opt_shared::causes::chain;
use opt_shared::device::Device;
use opt_shared::formula::{RunnerTerms, pool_grain};
use opt_shared::ids::JobId;
use opt_shared::numbers::EntryNumbers;
use opt_shared::replay::{PoolFloor, Recorder, needs};
use opt_shared::settings::{LimitSettings, VerifySettings};
use opt_shared::units::Bytes;

use super::facts::{JobFacts, UsableEntry};
use crate::core::predict::{self, Prediction};
use crate::plan::{Plan, ReplayPlan};

#[derive(Debug)]
pub struct ReplayFacts {
    /// For each step, its job, and the index of its entry in the job's facts.
    pub steps: Vec<(JobId, usize)>,
    pub floor: PoolFloor,
    /// The memory that a worker needs for bookkeeping, in addition to the pool.
    pub bookkeeping: Bytes,
    /// Why the replay cannot be run. This is set if the captures of one of its jobs cannot be used.
    pub broken: Option<String>,
}

/// A mistake in the plan's description of a replay.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    #[error("replay `{replay}`: job `{job}` has no entry `{entry}` (its `dtypes` exclude it)")]
    LeftOut { replay: String, job: String, entry: String },
    #[error(
        "replay `{replay}`: no tensor is named `{pin}` (see `check --signature` for the names; write `weight` or `JOB/weight`)"
    )]
    Pin { replay: String, pin: String },
    #[error(
        "replay `{replay}`: its budget of {budget} ({} bytes) is below the floor; the minimum is {} bytes ({}): {} for two consecutive steps, {} for the largest tensor, {} pinned (raise `budget`)",
        budget.get(), floor.bytes().get(), floor.bytes(), floor.consecutive, floor.largest, floor.pinned
    )]
    BelowFloor { replay: String, budget: Bytes, floor: PoolFloor },
    #[error("replay `{replay}`")]
    Needs {
        replay: String,
        #[source]
        source: opt_shared::replay::NeedsError,
    },
    #[error("replay `{replay}`")]
    Unrecordable {
        replay: String,
        #[source]
        source: opt_shared::replay::Unrecordable,
    },
}

/// The first mistake in each faulty replay of a plan, one per line.
#[derive(Debug)]
pub struct ReplayErrors(Vec<ReplayError>);

impl std::fmt::Display for ReplayErrors {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<String> = self.0.iter().map(|error| chain(error)).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for ReplayErrors {}

/// Returns the facts about every replay, in the plan's order. The error contains the first mistake in each faulty
/// replay.
pub fn read_replays(plan: &Plan, facts: &[JobFacts]) -> Result<Vec<ReplayFacts>, ReplayErrors> {
    let (mut read, mut wrong) = (Vec::new(), Vec::new());
    for replay in &plan.replays {
        match read_replay(plan, replay, facts) {
            Ok(facts) => read.push(facts),
            Err(error) => wrong.push(error),
        }
    }
    if wrong.is_empty() { Ok(read) } else { Err(ReplayErrors(wrong)) }
}

fn read_replay(plan: &Plan, replay: &ReplayPlan, facts: &[JobFacts]) -> Result<ReplayFacts, ReplayError> {
    let name = || replay.name.clone();
    let broken = |why: String| ReplayFacts {
        steps: Vec::new(),
        floor: PoolFloor::default(),
        bookkeeping: Bytes::ZERO,
        broken: Some(why),
    };
    let mut recorder = Recorder::default();
    let mut steps = Vec::with_capacity(replay.steps.len());
    let mut longest_path = 0;
    for (job, entry) in &replay.steps {
        let Some(job_facts) = facts.get(job.index()) else {
            return Ok(broken(format!("its steps name {job}, which is not in this plan")));
        };
        let job_name = plan.job(*job).map_or("", |job| job.name.as_str());
        if let Some(why) = &job_facts.broken {
            return Ok(broken(format!("the captures of job `{job_name}` cannot be used: {why}")));
        }
        let index = job_facts.entries.iter().position(|fact| fact.entry.name == *entry);
        let (Some(index), Some(signature)) = (index, &job_facts.signature) else {
            let (job, entry) = (job_name.to_owned(), entry.clone());
            return Err(ReplayError::LeftOut { replay: name(), job, entry });
        };
        let opened = CaptureFile::open(&job_facts.entries[index].entry.path)
            .map_err(|error| chain(&error))
            .and_then(|capture| {
                let recorded = Entry::from_value(capture.root()).map_err(|error| chain(&error))?;
                let arguments = bind(&recorded, signature).map_err(|error| chain(&error))?;
                Ok((capture, arguments))
            });
        let (capture, arguments) = match opened {
            Ok(opened) => opened,
            Err(why) => return Ok(broken(format!("{entry} of job `{job_name}`: {why}"))),
        };
        let (needs, _) = needs(&capture, entry, &arguments)
            .map_err(|source| ReplayError::Needs { replay: name(), source })?;
        recorder
            .step(job_name, entry, &needs)
            .map_err(|source| ReplayError::Unrecordable { replay: name(), source })?;
        longest_path = longest_path.max(job_facts.entries[index].entry.path.as_os_str().len());
        steps.push((*job, index));
    }
    let recording = recorder.recording();
    if let Some(pin) = recording.unknown_pin(&replay.pin) {
        return Err(ReplayError::Pin { replay: name(), pin: pin.clone() });
    }
    let floor = recording.floor(&replay.pin, pool_grain(plan.device()));
    if replay.budget < floor.bytes() {
        return Err(ReplayError::BelowFloor { replay: name(), budget: replay.budget, floor });
    }
    let bookkeeping = recorder.bookkeeping(Bytes::from(longest_path));
    Ok(ReplayFacts { steps, floor, bookkeeping, broken: None })
}

/// The candidates that make a replay's calls.
pub struct Callees<'a> {
    pub runners: &'a [RunnerTerms<'a>],
    /// The largest number of workspaces that any of these candidates has.
    pub workspaces: usize,
    pub device: Device,
}

impl ReplayFacts {
    pub(crate) fn fact<'f>(&self, facts: &'f [JobFacts], step: usize) -> Option<&'f UsableEntry> {
        let (job, index) = self.steps.get(step)?;
        facts.get(job.index())?.entries.get(*index)
    }

    /// Predicts the most memory that the replay will owe if these callees make its calls.
    pub fn prediction(
        &self,
        replay: &ReplayPlan,
        facts: &[JobFacts],
        callees: &Callees<'_>,
        verify: &VerifySettings,
        cores: u32,
    ) -> Prediction {
        let steps = 0..self.steps.len();
        let entries: Vec<EntryNumbers> =
            steps.filter_map(|step| Some(self.fact(facts, step)?.entry.numbers.clone())).collect();
        // The pool never contains more than all constants together.
        let pool = replay.budget.min(self.floor.whole);
        let Callees { runners, workspaces, device } = callees;
        if device.runs_device_code() {
            let limits: Vec<&LimitSettings> = runners.iter().map(|runner| runner.limits).collect();
            let emulated = *device == Device::Emulated;
            let extra = (limits.as_slice(), *workspaces);
            return predict::replay_on_device(
                pool,
                self.bookkeeping,
                &entries,
                extra,
                emulated,
                verify,
                cores,
            );
        }
        predict::replay(pool, self.bookkeeping, &entries, runners, verify, cores)
    }
}
