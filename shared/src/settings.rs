//! What a plan settles and a worker obeys: resolved settings, every one of them with a value.
//!
//! Defaults live in `configs/default.toml` and nowhere else, so nothing here implements `Default`.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::capture::DType;
use crate::language::Language;
use crate::units::Bytes;

/// `[verify]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VerifySettings {
    pub tolerance: ToleranceProfile,
    /// `[verify.dtype.NAME]`: what it names replaces the profile's figure.
    pub dtype: BTreeMap<DType, ToleranceOverride>,
    pub required_matched_ratio: f64,
    pub nonfinite: Nonfinite,
    /// Calls per entry, differently poisoned; at least 2.
    pub repeats: u32,
    /// Failing entries after which an attempt ends; 0 runs all.
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
    /// NaN and infinities must stand where they stand in the expected output.
    Match,
    /// Any NaN or infinity in the actual output fails.
    Reject,
}

/// `[profile]`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProfileSettings {
    pub protocol: Protocol,
    pub entries: ProfileEntries,
    pub batch_bytes: Bytes,
    pub cache_state: CacheState,
    pub inputs: InputMemory,
    /// Half-width of the interval, as a share of the estimate (0.01 for `"1%"`).
    pub max_noise: f64,
    pub entry_timeout: Duration,
    /// As a share (0.02 for `"2%"`).
    pub min_improvement: f64,
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

/// `[limits]`, of a runner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitSettings {
    /// None is `"auto"`: max(256 MiB, inputs) + 8 MiB × threads.
    pub memory: Option<Bytes>,
    /// None is `"cores"`.
    pub threads: Option<u32>,
    /// None is `"auto"`: the user's count now + 4 × threads.
    pub processes: Option<u32>,
    pub open_files: u32,
    /// Kept of stdout and stderr each: head and tail.
    pub output: Bytes,
    pub env: BTreeMap<String, String>,
}

/// What a runner owes before its candidate does anything: its own heap, the loader's and libc's private pages.
/// Measured at 0.6 MiB for a plain C library; the C++ runtime and a handful of libraries fit.
pub const RUNNER_BASE: Bytes = Bytes::mib(4);
/// A runner that waits for a CPU has so many times its time, and no more. The worker keeps to it, and the supervisor's
/// deadlines leave room for it.
pub const MOST_STRETCH: u32 = 4;
const LEAST_MEMORY: Bytes = Bytes::mib(256);
/// Of each thread: its stack, as the C library makes it.
const PER_THREAD: Bytes = Bytes::mib(8);

impl LimitSettings {
    /// With `"cores"` resolved.
    pub fn threads_on(&self, cores: u32) -> u32 {
        self.threads.unwrap_or(cores).max(1)
    }

    /// What the candidate may owe beyond its outputs, with `"auto"` resolved; `inputs` are those of the largest entry.
    pub fn memory_for(&self, inputs: Bytes, cores: u32) -> Bytes {
        let stacks = PER_THREAD.saturating_mul(u64::from(self.threads_on(cores)));
        self.memory.unwrap_or_else(|| LEAST_MEMORY.max(inputs) + stacks)
    }

    /// What it may have of private memory, touched or not: where the plan gives a figure, the stacks of its further
    /// threads come on top, for they are hardly touched and would leave nothing of a small figure.
    pub fn private_memory_for(&self, inputs: Bytes, cores: u32) -> Bytes {
        let further = PER_THREAD.saturating_mul(u64::from(self.threads_on(cores)) - 1);
        let memory = self.memory_for(inputs, cores);
        if self.memory.is_some() { memory + further } else { memory }
    }
}

/// `[build]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildSettings {
    pub cc: String,
    pub cxx: String,
    pub flags: Vec<String>,
    pub extra_flags: Vec<String>,
    pub include: Vec<PathBuf>,
    pub link_flags: Vec<String>,
    pub libraries: Vec<String>,
    pub library_path: Vec<PathBuf>,
    pub env: BTreeMap<String, String>,
    pub memory: Bytes,
    pub timeout: Duration,
}

/// `[recycle]`.
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

/// What a candidate is made of. Paths are absolute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CandidateSource {
    pub sources: Vec<PathBuf>,
    pub language: Language,
    pub symbol: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_candidate_may_owe_what_the_plan_says_or_its_inputs_again() {
        for (memory, threads, inputs, owed, private) in [
            (None, Some(2), 100, 256 + 16, 256 + 16),
            (None, Some(2), 400, 400 + 16, 400 + 16),
            (None, None, 0, 256 + 4 * 8, 256 + 4 * 8),
            (Some(64), Some(1), 400, 64, 64),
            (Some(64), Some(0), 400, 64, 64),
            (Some(64), Some(3), 400, 64, 64 + 16),
        ] {
            let limits = LimitSettings {
                memory: memory.map(Bytes::mib),
                threads,
                processes: None,
                open_files: 256,
                output: Bytes::kib(64),
                env: BTreeMap::new(),
            };
            assert_eq!(limits.memory_for(Bytes::mib(inputs), 4), Bytes::mib(owed), "{limits:?}");
            assert_eq!(limits.private_memory_for(Bytes::mib(inputs), 4), Bytes::mib(private), "{limits:?}");
        }
    }
}
