//! Defines the settings of a plan in the form that workers get: resolved, so that every setting has a value.
//!
//! No table of settings implements `Default`, because all defaults are in `configs/default.toml`. The only exception is
//! an override of tolerances, which may be empty.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::capture::DType;
use crate::language::{Language, Toolchain};
use crate::units::Bytes;

/// The settings of `[verify]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifySettings {
    pub tolerance: ToleranceProfile,
    /// `[verify.dtype.NAME]`, whose values replace those of the tolerance profile.
    pub dtype: BTreeMap<DType, ToleranceOverride>,
    pub required_matched_ratio: f64,
    pub nonfinite: Nonfinite,
    /// The number of calls per entry, at least 2. Each call has different poison.
    pub repeats: u32,
    /// The number of failing entries after which an attempt ends. If it is 0, all entries are run.
    pub stop_after: u32,
    pub call_timeout: Duration,
    pub seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToleranceProfile {
    Standard,
    Gpu,
    Torch,
    Kernelforge,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ToleranceOverride {
    pub rtol: Option<f64>,
    pub atol: Option<f64>,
    pub rel_l2: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nonfinite {
    /// NaN and infinities must be at the same positions as in the expected output.
    Match,
    /// A NaN or an infinity anywhere in the actual output is a failure.
    Reject,
}

/// The settings of `[profile]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileSettings {
    pub protocol: Protocol,
    pub entries: ProfileEntries,
    /// The project whose rules the plan asks for. The other settings in this table have already been set according to
    /// these rules.
    pub parity: Parity,
    pub batch_bytes: Bytes,
    pub cache_state: CacheState,
    pub inputs: InputMemory,
    /// The noise at which the timing of an entry ends: the half-width of the confidence interval as a fraction of the
    /// estimate (0.01 for `"1%"`).
    pub max_noise: f64,
    pub entry_timeout: Duration,
    /// The time that the timing of a job should take in total.
    pub budget: Duration,
    /// The smallest improvement for which a candidate is called faster, as a fraction (0.02 for `"2%"`).
    pub min_improvement: f64,
    pub vary: Vary,
    pub priority: Priority,
}

impl ProfileSettings {
    /// True if the entries of a batch of this size are timed in turns. KernelForge's rules demand that entries are
    /// timed one after another.
    pub fn rotates(&self, entries: usize) -> bool {
        self.cache_state == CacheState::Rotate && self.protocol == Protocol::Paired && 1 < entries
    }
}

/// Another project's rules of timing and correctness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parity {
    None,
    Kernelforge,
}

/// The scheduling priority of processes in a timed block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// The same priority as other processes.
    None,
    /// A higher priority than all processes without real-time priority (`SCHED_FIFO`).
    Realtime,
}

/// The inputs that have new values in every timed call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Vary {
    /// All inputs whose values may change.
    Auto,
    None,
    /// The inputs with these parameters or paths, if their values may change.
    Only(Vec<String>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Paired,
    Kernelforge,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileEntries {
    Distinct,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheState {
    Auto,
    Warm,
    Cold,
    Rotate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputMemory {
    Mapped,
    Copied,
}

/// The settings of `[limits]`: the limits of a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// `None` is `"auto"`: max(256 MiB, inputs) + 8 MiB × threads.
    pub memory: Option<Bytes>,
    /// `None` is `"cores"`.
    pub threads: Option<u32>,
    /// `None` is `"auto"`: 4 × threads. If Linux includes the user's other processes in its count, their number is
    /// added.
    pub processes: Option<u32>,
    pub open_files: u32,
    /// The number of bytes that are kept of stdout, and of stderr, in each case from the beginning.
    pub output: Bytes,
    pub env: BTreeMap<String, String>,
}

/// The settings of `[build]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildSettings {
    pub cc: String,
    pub cxx: String,
    /// The interpreter for languages that need Python: a path, or a name that is looked up in PATH.
    pub python: String,
    pub flags: Vec<String>,
    pub extra_flags: Vec<String>,
    pub include: Vec<PathBuf>,
    pub link_flags: Vec<String>,
    pub libraries: Vec<String>,
    pub library_path: Vec<PathBuf>,
    /// Folders of compilers that are outside the system's folders.
    pub toolchain: Vec<PathBuf>,
    pub env: BTreeMap<String, String>,
    /// `None` is `"auto"`, which depends on the language.
    pub memory: Option<Bytes>,
    /// `None` is `"auto"`, which depends on the language.
    pub timeout: Option<Duration>,
    /// The largest allowed size of an artifact.
    pub max_artifact: Bytes,
}

impl BuildSettings {
    /// The memory that a compiler may owe, with `"auto"` resolved.
    pub fn memory_for(&self, language: Language) -> Bytes {
        self.memory.unwrap_or(match language.kind().toolchain {
            // A compiler needs 1.5 GiB for all of PyTorch's headers, and more memory for the candidate's templates.
            Toolchain::TorchExtension | Toolchain::TorchNvcc => Bytes::gib(6),
            _ => Bytes::gib(4),
        })
    }

    /// The time that a compiler may take, with `"auto"` resolved.
    pub fn timeout_for(&self, language: Language) -> Duration {
        self.timeout.unwrap_or(match language.kind().toolchain {
            Toolchain::TorchExtension | Toolchain::TorchNvcc | Toolchain::TorchCompiler => {
                Duration::from_mins(10)
            }
            _ => Duration::from_mins(2),
        })
    }
}

/// The settings of `[recycle]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecycleSettings {
    pub before_profile: BeforeProfile,
    pub large_job: Bytes,
    pub after_leases: u32,
    pub growth: Bytes,
    pub max_age: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BeforeProfile {
    Always,
    Large,
    Never,
}

/// The sources of a candidate. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateSource {
    pub sources: Vec<PathBuf>,
    pub language: Language,
    /// The function that is called.
    pub symbol: Cow<'static, str>,
}
