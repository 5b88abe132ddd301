//! The evidence of a failure: the entry, the position of a wrong value, and the death of a runner.

use serde::{Deserialize, Serialize};

use super::Status;
use crate::capture::DType;

/// The way in which a runner died.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerEnd {
    /// Name of the signal that ended the runner (`SIGSEGV`), if one did.
    pub signal: Option<String>,
    pub exit_code: Option<i32>,
    /// The last part of the kept standard error of the runner or, on the emulated device, of the kept output of its
    /// kernels.
    pub stderr_tail: String,
    /// The last part of its kept standard output.
    #[serde(default)]
    pub stdout_tail: String,
    /// True if the runner's output filled the room for output. Some output may then be lost.
    pub output_truncated: bool,
    /// True if the runner was ended by a SIGKILL that we did not send, and no PID namespace proves that the signal came
    /// from outside.
    pub unknown_sender: bool,
}

/// An entry that did not pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EntryFailure {
    pub entry: String,
    pub status: Status,
    /// One line that says what happened.
    pub detail: String,
    /// A short text for each argument: `input: float32[4, 8]`, `eps: 1e-05`.
    pub args: Vec<String>,
    pub mismatch: Option<Mismatch>,
}

/// The position and the size of a difference between an output and the recorded one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Path of the output: `output`, or `output[1]`.
    pub output: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// Coordinates of the first bad element or, if only a norm is too large, of the one with the largest error.
    pub index: Vec<u64>,
    /// A number as text, because JSON has no NaN and no infinities.
    pub expected: String,
    pub actual: String,
    #[serde(with = "crate::nonfinite")]
    pub absolute_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub relative_error: f64,
    #[serde(with = "crate::nonfinite")]
    pub relative_l2: f64,
    /// The number of the output's elements, and the number of bad ones.
    pub elements: u64,
    pub failed: u64,
    pub actual_nan: u64,
    pub actual_inf: u64,
    pub expected_nan: u64,
    pub expected_inf: u64,
    /// Smallest and largest finite value, as text; `None` if no value is finite.
    pub expected_range: Option<[String; 2]>,
    pub actual_range: Option<[String; 2]>,
    /// Coordinates of the first bad elements, at most eight.
    pub bad_indices: Vec<Vec<u64>>,
    pub pattern: Pattern,
    pub tolerance: ToleranceUsed,
}

/// The property that all bad elements share.
///
/// The enum is not internally tagged, because the channel's format is not self-describing and could not read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every element is bad.
    All,
    /// All elements from this one to the end are bad.
    Tail {
        from: u64,
    },
    /// Whole rows of the first axis are bad, from this one on.
    FromRow {
        row: u64,
    },
    /// Every bad element still holds the output's poison.
    StillPoisoned,
    Scattered,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToleranceUsed {
    #[serde(with = "crate::nonfinite")]
    pub rtol: f64,
    #[serde(with = "crate::nonfinite")]
    pub atol: f64,
    #[serde(with = "crate::nonfinite")]
    pub rel_l2: f64,
}
