//! Defines the evidence of a failure: the entry that failed, the position of a wrong value, and how a runner died.

use serde::{Deserialize, Serialize};

use super::Status;
use crate::capture::DType;

/// How a runner died, and what it had printed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunnerEnd {
    /// Name of the signal that ended the runner (`SIGSEGV`), if one did.
    pub signal: Option<String>,
    pub exit_code: Option<i32>,
    /// The last part of what was kept of the runner's standard error or, on the emulated device, of its kernels'
    /// output.
    pub stderr_tail: String,
    /// The last part of what was kept of the runner's standard output.
    #[serde(default)]
    pub stdout_tail: String,
    /// True if the runner printed as much as can be kept or more, so some of the output may be missing.
    pub output_truncated: bool,
    /// True if a SIGKILL that we did not send ended the runner, and it may have come from the candidate itself, because
    /// no PID namespace rules this out.
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

/// Where and by how much an output differs from the recorded one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Path of the output: `output`, or `output[1]`.
    pub output: String,
    pub dtype: DType,
    pub shape: Vec<u64>,
    /// Coordinates of the first bad element. If no single element is bad, but a norm of the errors is too large, these
    /// are the coordinates of the element with the largest error.
    pub index: Vec<u64>,
    /// The expected value. It is text, because JSON cannot represent NaN and infinities.
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
    /// The smallest and the largest finite expected value, as text; `None` if no value is finite.
    pub expected_range: Option<[String; 2]>,
    pub actual_range: Option<[String; 2]>,
    /// Coordinates of the first bad elements, at most eight.
    pub bad_indices: Vec<Vec<u64>>,
    pub pattern: Pattern,
    pub tolerance: ToleranceUsed,
}

/// A pattern in the positions or the values of the bad elements.
///
/// The enum is not internally tagged: the channel's format is not self-describing, and therefore cannot deserialize
/// such enums.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pattern {
    /// Every element is bad.
    All,
    /// All elements from this one to the last are bad.
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
