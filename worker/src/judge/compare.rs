//! Compares an output with the expected one. Both tensors are read as streams. The result is a verdict and, if the
//! output is wrong, evidence.
//!
//! Floats are compared in f64, and their relative L2 error is limited for the whole tensor and for every chunk. Callers
//! compare shape and type beforehand. There are at most two passes over the tensors. The first pass (`tally`) is fast
//! and decides the verdict. The second pass (`evidence`) gathers facts that help people to understand a wrong output.
//! It runs only if the output is wrong, or if integers or bools differ by more than their tolerance.
//!
//! More rules:
//! - Errors are computed only for pairs of finite numbers. NaN and infinities are only counted. A relative error exists
//!   only if the expected number is not 0.
//! - A NaN or an infinity in the wrong place always fails, even if `required_matched_ratio` allows some elements to
//!   fail.
//! - Under `reject`, a recorded output that is not finite is an error of the capture, not of the candidate, because no
//!   output could pass.
//! - Integers and bools must be equal, unless the plan sets a tolerance for their type. Their norms are not checked.
//! - The elements after the last full chunk of 64 Ki are added to that chunk, because the relative norm of a few
//!   elements that nearly cancel means little.

use opt_shared::capture::{DType, Kind};
use opt_shared::outcome::{Mismatch, Pattern};
use opt_shared::settings::Nonfinite;
use opt_shared::units::Bytes;

use super::decode::Signs;
use super::evidence;
use super::feed::Feed;
use super::layout::{LayoutError, Walk};
use super::tally::Tally;
use super::tolerance::Tolerance;

pub use opt_shared::formula::COMPARE_CHUNK;

/// The number of elements in a chunk whose relative L2 error is limited. Chunks are checked in addition to the whole
/// tensor. Otherwise, a wrong corner of a large output could be hidden by the many correct elements.
pub const L2_CHUNK_ELEMENTS: u64 = 64 << 10;

/// A source of the bytes of one tensor. Offsets are counted from the first byte of the tensor's first element.
pub trait BytesSource {
    /// Fills the whole buffer.
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()>;
}

impl BytesSource for &[u8] {
    fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|start| self.get(start..)?.get(..buffer.len()))
            .ok_or(std::io::ErrorKind::UnexpectedEof)?;
        buffer.copy_from_slice(bytes);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ByteSource {
    Expected,
    Actual,
}

impl std::fmt::Display for ByteSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Expected => "expected output",
            Self::Actual => "actual output",
        })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    #[error(transparent)]
    Layout(#[from] LayoutError),
    #[error(
        "cannot read {length} at byte {offset} of the {side} (if it was recorded, its file may have been truncated \
         meanwhile)"
    )]
    Read {
        side: ByteSource,
        offset: u64,
        length: Bytes,
        #[source]
        source: std::io::Error,
    },
    #[error("cannot allocate {chunk} for a comparison (use fewer verifiers, or free memory)")]
    Memory {
        chunk: Bytes,
        #[source]
        source: std::collections::TryReserveError,
    },
    /// The recorded output is not finite, so the capture is to blame.
    #[error(
        "the expected {output} contains {value} at {index:?}, so no output can pass with `nonfinite = \"reject\"` \
         (capture it again, or write `nonfinite = \"match\"`)"
    )]
    ExpectedNotFinite { output: String, index: Vec<u64>, value: String },
}

#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The path of the output, such as `output[1]`, or of the argument that the call changes.
    pub output: &'a str,
    pub dtype: DType,
    pub shape: &'a [u64],
    /// Both strides are in elements.
    pub expected_stride: &'a [u64],
    pub actual_stride: &'a [u64],
    /// The flags of the captured tensor. If one is set, the tensor's values are the conjugates or negatives of the
    /// stored ones.
    pub expected_conjugate: bool,
    pub expected_negative: bool,
}

impl Subject<'_> {
    pub(super) fn signs(&self) -> Signs {
        Signs { conjugate: self.expected_conjugate, negative: self.expected_negative }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub tolerance: Tolerance,
    pub nonfinite: Nonfinite,
    /// The byte that filled the output before the call. It affects the reported pattern of a mismatch, not the
    /// verdict.
    pub poison: Option<u8>,
    /// The size of the read buffer for each of the two tensors.
    pub chunk: Bytes,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    pub passed: bool,
    pub elements: u64,
    pub failed: u64,
    /// True if the number of failed elements is within what `required_matched_ratio` allows. The ratio never allows a
    /// NaN or an infinity in the wrong place.
    pub failures_allowed: bool,
    pub max_absolute_error: f64,
    pub max_relative_error: f64,
    pub relative_l2: f64,
    pub worst_chunk_l2: f64,
    /// The evidence, if the output did not pass.
    pub mismatch: Option<Mismatch>,
}

impl Comparison {
    /// Describes the mismatch in one line, or returns `None` if the output passed.
    pub fn detail(&self) -> Option<String> {
        let found = self.mismatch.as_ref()?;
        let at = format!("{}{:?}", found.output, found.index);
        let pair = format!("expected {}, got {}", found.expected, found.actual);
        let (norm, over) = if self.relative_l2 <= found.tolerance.rel_l2 {
            (self.worst_chunk_l2, "one chunk of 64 Ki elements")
        } else {
            (self.relative_l2, "the tensor")
        };
        if found.failed == 0 {
            return Some(format!(
                "every element is within its tolerance, but the relative L2 error over {over} is {norm:.3e}, above {:.3e}; \
                 the largest error is {:.3e} at {at}: {pair}",
                found.tolerance.rel_l2, found.absolute_error
            ));
        }
        let mut text = format!(
            "{} of {} elements differ, the first at {at}: {pair} (absolute error {:.3e}, relative {:.3e})",
            found.failed, found.elements, found.absolute_error, found.relative_error
        );
        match &found.pattern {
            Pattern::All => text.push_str("; every element is wrong"),
            Pattern::Tail { from } => text.push_str(&format!("; all from element {from} to the end")),
            Pattern::FromRow { row } => text.push_str(&format!("; all rows from row {row} on")),
            Pattern::StillPoisoned => text.push_str("; all of them were never written"),
            Pattern::Scattered => {}
        }
        if self.failures_allowed && found.tolerance.rel_l2 < norm {
            text.push_str(&format!(
                "; so many may differ, but the relative L2 error over {over} is {norm:.3e}, above {:.3e}",
                found.tolerance.rel_l2
            ));
        }
        if found.actual_nan > found.expected_nan {
            text.push_str(&format!("; {} NaN where {} were expected", found.actual_nan, found.expected_nan));
        }
        if found.actual_inf > found.expected_inf {
            text.push_str(&format!(
                "; {} infinities where {} were expected",
                found.actual_inf, found.expected_inf
            ));
        }
        Some(text)
    }
}

/// Compares an expected output with an actual one. Needs memory for at most two chunks.
pub fn compare<'s>(
    expected: &'s mut dyn BytesSource,
    actual: &'s mut dyn BytesSource,
    subject: &Subject<'_>,
    rules: &Rules,
) -> Result<Comparison, CompareError> {
    let size = subject.dtype.size();
    let walk = Walk::new(subject.shape, subject.expected_stride, subject.actual_stride, size)?;
    let sources = [(expected, ByteSource::Expected), (actual, ByteSource::Actual)];
    let mut feed = Feed::new(walk, size, sources, rules.chunk)?;
    let mut tally = Tally::new(subject, rules);
    feed.each_tile(|walk, tile, bytes| tally.take_tile(walk, tile, bytes))?;
    let (mut comparison, shown_position) = tally.into_comparison(feed.walk().elements());
    let exact = is_exact(subject.dtype);
    if !comparison.passed || (exact && comparison.failed > 0) {
        let (mismatch, relative_l2) =
            evidence::gather(&mut feed, subject, rules, &comparison, shown_position)?;
        if exact {
            // The first pass does not compute the norms of integers and bools, so those of the second pass are used.
            comparison.relative_l2 = relative_l2;
            comparison.worst_chunk_l2 = relative_l2;
        }
        comparison.mismatch = (!comparison.passed).then_some(mismatch);
    }
    Ok(comparison)
}

pub(super) fn is_exact(dtype: DType) -> bool {
    matches!(dtype.kind(), Kind::Integer | Kind::Bool)
}

/// The verdict on one element. Both passes judge elements in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ElementVerdict {
    pub(super) fails: bool,
    /// True if the element fails because of a NaN or an infinity. `required_matched_ratio` never allows such a failure.
    pub(super) not_finite: bool,
}

/// Judges one element of a float or complex type by its parts. Calls `on_part` with the expected value and the error of
/// every part for which the expected and the actual value are finite.
#[inline(always)]
pub(super) fn judge_parts(
    expected: &[f64],
    actual: &[f64],
    rules: &Rules,
    mut on_part: impl FnMut(f64, f64),
) -> ElementVerdict {
    let used = rules.tolerance.used;
    let mut verdict = ElementVerdict { fails: false, not_finite: false };
    for (&expected, &actual) in expected.iter().zip(actual) {
        if expected.is_finite() && actual.is_finite() {
            let difference = (actual - expected).abs();
            on_part(expected, difference);
            verdict.fails |= difference > used.atol + used.rtol * expected.abs();
        } else {
            let matches = expected == actual || (expected.is_nan() && actual.is_nan());
            if !matches || rules.nonfinite == Nonfinite::Reject {
                verdict = ElementVerdict { fails: true, not_finite: true };
            }
        }
    }
    verdict
}

/// Judges one integer or bool. The comparison is exact, and only the size of an error is rounded to an f64. Calls
/// `on_part` as `judge_parts` does.
#[inline(always)]
pub(super) fn judge_whole(
    expected: i128,
    actual: i128,
    rules: &Rules,
    on_part: impl FnOnce(f64, f64),
) -> ElementVerdict {
    let used = rules.tolerance.used;
    #[expect(clippy::cast_precision_loss, reason = "sizes of errors are figures")]
    let (value, difference) = (expected as f64, (actual - expected).unsigned_abs() as f64);
    on_part(value, difference);
    let fails = expected != actual && difference > used.atol + used.rtol * value.abs();
    ElementVerdict { fails, not_finite: false }
}
