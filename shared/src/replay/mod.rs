//! Records which constants the steps of a replay use, and in which order.
//!
//! A recording has a catalog, which contains every constant once, and a schedule, which contains every use in order.
//! This module builds both, entry by entry, and computes the floor, which is the smallest possible budget. `file`
//! defines the file format. The worker decides what is in the pool at each moment.

mod file;
mod needs;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use self::file::FileSize;
pub use self::file::{MAX_FILE_BYTES, RecordingError};
pub use self::needs::{Need, NeedsError, needs};
use crate::capture::DType;
use crate::units::Bytes;

/// The largest number of distinct tensors in a replay. A typical model has thousands.
pub const MAX_CONSTANTS: usize = 65_536;
/// The largest number of steps, which is also the largest number of entries in a job.
pub const MAX_STEPS: usize = 100_000;
/// The largest number of uses over all steps.
pub const MAX_USES: usize = 1_000_000;
/// Longest name of a job, an entry or a parameter, in bytes.
pub const MAX_NAME: usize = 1024;
/// The number of characters that a message shows of a name that is too long.
const SHOWN_NAME_CHARS: usize = 64;
/// Largest number of axes of a constant, as in the capture reader.
pub const MAX_RANK: usize = 64;

/// The largest number of copies of a text (such as an entry's name) that a worker has in memory at once: in recordings,
/// files, the task and maps.
const TEXT_COPIES: u64 = 6;
/// The memory that a step takes in a worker, without its texts. This size and the next two include the capacity that
/// vectors have left unused after growing by doubling.
const BYTES_PER_STEP: Bytes = Bytes::kib(1);
/// The memory that a use takes in a worker.
const BYTES_PER_USE: Bytes = Bytes::new(256);
/// The memory that a constant takes in a worker.
const BYTES_PER_CONSTANT: Bytes = Bytes::new(1536);

/// Identifies a constant before its bytes are read (see [`needs`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub [u8; 32]);

/// BLAKE3 of a constant's bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// The digest of a constant that was not read. The reader refuses a recording that contains it.
    pub const UNKNOWN: Self = Self([0; 32]);
}

macro_rules! shown_as_hex {
    ($($name:ident),*) => {$(
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.iter().take(8).try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    )*};
}

shown_as_hex!(Key, Digest);

/// The bytes of one tensor, as described by a row of the catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Constant {
    pub key: Key,
    pub digest: Digest,
    pub bytes: Bytes,
    /// The address of the bytes modulo 64, as in PyTorch.
    pub phase: u8,
    pub dtype: DType,
    pub shape: Vec<u64>,
}

/// A recorded call, which is one step of the replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub job: String,
    pub entry: String,
}

/// A use of a constant by a step. It contains its own position, so that a use at the wrong position is detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The index of this use among all uses.
    pub id: u32,
    pub step: u32,
    pub constant: u32,
    /// The number of uses of this constant before this one.
    pub epoch: u32,
    /// The index of the parameter's name in the recording's list of names.
    pub name: u32,
    pub bytes: Bytes,
}

/// A catalog of constants and a schedule of their uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recording {
    pub constants: Vec<Constant>,
    pub names: Vec<String>,
    pub steps: Vec<Step>,
    pub uses: Vec<Use>,
}

/// The limit of the format that a recording would exceed. A recording that stays within the limits can always be read
/// back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unrecordable {
    #[error("the replay has more than {limit} {what} (replay fewer steps at a time)")]
    TooMany { what: &'static str, limit: usize },
    #[error(
        "{what} begins with `{begins}` and has {bytes} bytes, more than the limit of {MAX_NAME} (rename it)"
    )]
    LongName { what: &'static str, begins: String, bytes: usize },
    #[error(
        "the replay's recording would be larger than {} (replay fewer steps at a time)",
        Bytes::new(MAX_FILE_BYTES)
    )]
    TooLarge,
}

impl Recording {
    /// Returns the constants that each step uses, in order and without repetitions. References that point outside the
    /// catalog are skipped, but neither a recording that was read nor one that a [`Recorder`] made contains any.
    pub fn working_sets(&self) -> Vec<Vec<u32>> {
        let mut sets = vec![Vec::new(); self.steps.len()];
        for it in self.uses.iter().filter(|it| (it.constant as usize) < self.constants.len()) {
            if let Some(set) = sets.get_mut(it.step as usize)
                && !set.contains(&it.constant)
            {
                set.push(it.constant);
            }
        }
        sets
    }

    /// Returns, for each constant, whether it is pinned. A constant is pinned if one of its uses has a name in `pins`,
    /// written `weight` or `JOB/weight`.
    pub fn pinned(&self, pins: &[String]) -> Vec<bool> {
        let mut pinned = vec![false; self.constants.len()];
        for it in &self.uses {
            if let Some(slot) = pinned.get_mut(it.constant as usize) {
                *slot |= pins.iter().any(|pin| self.is_called(it, pin));
            }
        }
        pinned
    }

    /// Returns the first pin that is not the name of any use.
    pub fn unknown_pin<'p>(&self, pins: &'p [String]) -> Option<&'p String> {
        pins.iter().find(|pin| !self.uses.iter().any(|it| self.is_called(it, pin)))
    }

    fn is_called(&self, it: &Use, pin: &str) -> bool {
        let Some(name) = self.names.get(it.name as usize) else { return false };
        let job = self.steps.get(it.step as usize).map_or("", |step| step.job.as_str());
        pin == name || pin.strip_prefix(job).and_then(|rest| rest.strip_prefix('/')) == Some(name)
    }

    /// The memory that each constant takes in a pool that allocates multiples of `grain`.
    pub fn slots(&self, grain: Bytes) -> Vec<Bytes> {
        self.constants.iter().map(|constant| constant.slot(grain)).collect()
    }

    /// Returns the terms from which the smallest budget is computed.
    pub fn floor(&self, pins: &[String], grain: Bytes) -> PoolFloor {
        floor(&self.working_sets(), &self.slots(grain), &self.pinned(pins))
    }
}

impl Constant {
    /// The size of the constant's bytes and of the gap before them (its phase), rounded up to a multiple of `grain`.
    pub fn slot(&self, grain: Bytes) -> Bytes {
        let grain = grain.get().max(1);
        let bytes = (self.bytes + Bytes::new(u64::from(self.phase))).get();
        Bytes::new(bytes.div_ceil(grain).saturating_mul(grain))
    }
}

/// The terms of the smallest possible budget of a replay (the floor).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFloor {
    /// Size of all constants that never leave the pool.
    pub pinned: Bytes,
    /// The largest total size of the constants that two consecutive steps use, without pinned constants.
    pub consecutive: Bytes,
    /// The largest constant that is not pinned.
    pub largest: Bytes,
    /// W: the size of all constants. With this budget, no constant is ever evicted.
    pub whole: Bytes,
}

impl PoolFloor {
    /// Returns the smallest budget, which is never more than the size of all constants.
    pub fn bytes(&self) -> Bytes {
        (self.pinned + self.consecutive + self.largest).min(self.whole)
    }
}

/// Computes the floor for these working sets. With a smaller budget, the constants of the next step could not be
/// fetched while the current step runs.
pub fn floor(sets: &[Vec<u32>], slots: &[Bytes], pinned: &[bool]) -> PoolFloor {
    let is_pinned = |constant: u32| pinned.get(constant as usize).copied().unwrap_or(false);
    let slot = |constant: u32| slots.get(constant as usize).copied().unwrap_or_default();
    let streamed = |constant: &&u32| !is_pinned(**constant);
    let of = |set: &[u32]| set.iter().filter(streamed).map(|&constant| slot(constant)).sum::<Bytes>();
    let single_sets = sets.iter().map(|set| of(set));
    let pairs = sets.windows(2).map(|pair| {
        let second: Bytes = pair[1]
            .iter()
            .filter(streamed)
            .filter(|constant| !pair[0].contains(constant))
            .map(|&constant| slot(constant))
            .sum();
        of(&pair[0]) + second
    });
    let numbers = 0..u32::try_from(slots.len()).unwrap_or(u32::MAX);
    PoolFloor {
        pinned: numbers.clone().filter(|&constant| is_pinned(constant)).map(slot).sum(),
        consecutive: single_sets.chain(pairs).max().unwrap_or_default(),
        largest: numbers.filter(|&constant| !is_pinned(constant)).map(slot).max().unwrap_or_default(),
        whole: slots.iter().copied().sum(),
    }
}

/// Makes a recording, step by step.
#[derive(Debug, Default)]
pub struct Recorder {
    recording: Recording,
    constants: BTreeMap<Key, u32>,
    names: BTreeMap<String, u32>,
    /// The number of uses so far, for each constant.
    epochs: Vec<u32>,
    /// The size of the file with the steps recorded so far.
    file: FileSize,
}

impl Recorder {
    /// Adds a step. After an error, the recorder must not be used again.
    pub fn step(&mut self, job: &str, entry: &str, needs: &[Need]) -> Result<(), Unrecordable> {
        let step = number(self.recording.steps.len(), MAX_STEPS, "steps")?;
        let step_of = Step { job: name("the job's name", job)?, entry: name("the entry's name", entry)? };
        self.file.step(&step_of);
        self.recording.steps.push(step_of);
        for need in needs {
            let constant = match self.constants.get(&need.key) {
                Some(&known) => known,
                None => {
                    let constant = number(self.recording.constants.len(), MAX_CONSTANTS, "distinct tensors")?;
                    self.recording.constants.push(need.constant());
                    self.file.constant(need.shape.len());
                    self.constants.insert(need.key, constant);
                    self.epochs.push(0);
                    constant
                }
            };
            let name = match self.names.get(&need.name) {
                Some(&known) => known,
                None => {
                    let number = number(self.recording.names.len(), MAX_USES, "names")?;
                    let name = name("a parameter's name", &need.name)?;
                    self.file.name(&name);
                    self.recording.names.push(name.clone());
                    self.names.insert(name, number);
                    number
                }
            };
            let id = number(self.recording.uses.len(), MAX_USES, "uses of tensors")?;
            let epoch = &mut self.epochs[constant as usize];
            self.recording.uses.push(Use { id, step, constant, epoch: *epoch, name, bytes: need.bytes });
            self.file.one_use();
            *epoch += 1;
        }
        if MAX_FILE_BYTES < self.file.bytes() { Err(Unrecordable::TooLarge) } else { Ok(()) }
    }

    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// The size of the recording's file.
    pub fn file_bytes(&self) -> Bytes {
        Bytes::new(self.file.bytes())
    }

    /// The most memory that a worker owes for the bookkeeping of a replay, without the pool, the staging slots and the
    /// judge's chunks. It includes the recording's file and two copies of the recording, because the stored recording
    /// is compared with a new one. It also includes the data that a worker keeps for each step (task, moves, times),
    /// use (moves) and constant (position, size).
    pub fn bookkeeping(&self, longest_path: Bytes) -> Bytes {
        let Recording { constants, steps, uses, .. } = &self.recording;
        let times = |each: Bytes, count: usize| each.saturating_mul(count as u64);
        self.file_bytes().saturating_mul(TEXT_COPIES)
            + times(BYTES_PER_STEP + longest_path.saturating_mul(2), steps.len())
            + times(BYTES_PER_CONSTANT + longest_path, constants.len())
            + times(BYTES_PER_USE, uses.len())
    }

    /// Returns the recording with the digests of its constants. `digests` are in the order of the constants.
    pub fn finish(mut self, digests: &[Digest]) -> Recording {
        for (constant, &digest) in self.recording.constants.iter_mut().zip(digests) {
            constant.digest = digest;
        }
        self.recording
    }
}

fn number(taken: usize, limit: usize, what: &'static str) -> Result<u32, Unrecordable> {
    u32::try_from(taken).ok().filter(|_| taken < limit).ok_or(Unrecordable::TooMany { what, limit })
}

fn name(what: &'static str, name: &str) -> Result<String, Unrecordable> {
    if MAX_NAME < name.len() {
        let begins = name.chars().take(SHOWN_NAME_CHARS).collect();
        return Err(Unrecordable::LongName { what, begins, bytes: name.len() });
    }
    Ok(name.to_owned())
}
