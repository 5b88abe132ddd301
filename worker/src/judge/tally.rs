//! Makes the first pass over two tensors: computes the number of failures, the largest errors, and the L2 norms of the
//! whole tensor and of chunks. These figures decide the verdict.
//!
//! The pass goes from block to block. A block is examined element by element if it contains a failure, a value that is
//! not finite, a new largest error, squares that are too small or too large for f64, or integers or bools that differ
//! or have to be negated. `compare` judges an element, and `kernel` contains the hot loop.

use opt_shared::settings::Nonfinite;

use super::compare::{
    CompareError, Comparison, ElementVerdict, L2_CHUNK_ELEMENTS, Rules, Subject, is_exact, judge_parts,
    judge_whole,
};
use super::decode::{Number, Signs, decode_narrow, decode_parts, decode_wide, is_wide, parts_of};
use super::kernel::{BlockSums, Bounds, examine};
use super::layout::{Tile, Walk};
use super::norm::SquareSum;

/// The number of values for which the hot loop is called at a time. The decoded values of both tensors fit into the
/// first-level cache.
const BLOCK_PARTS: usize = 1024;

/// The smallest sum of squares that is accurate if it was computed without scaling. Underflow is negligible in sums of
/// at least this size.
const MIN_PLAIN_SQUARES: f64 = 1e-270;

/// The row-major positions of two elements: the one with the largest finite error, and the first one that failed in the
/// order of the walk.
#[derive(Clone, Copy, Debug, Default)]
struct Extremes {
    worst: u64,
    first_failed: Option<u64>,
}

/// The largest errors so far.
#[derive(Clone, Copy, Debug, Default)]
struct Records {
    absolute: f64,
    relative: f64,
}

impl Records {
    /// Updates the largest errors with one error. Returns true if this is the largest absolute error so far.
    #[inline(always)]
    fn take(&mut self, expected: f64, difference: f64) -> bool {
        // The condition needs no division, so the slow division is done only for a new largest relative error. Most
        // elements of a failing block do not have one.
        if difference > self.relative * expected.abs() && expected != 0.0 {
            self.relative = difference / expected.abs();
        }
        let record = difference > self.absolute;
        if record {
            self.absolute = difference;
        }
        record
    }
}

/// Computes the relative L2 errors of chunks of elements, in the order of the walk.
#[derive(Default)]
struct Chunks {
    elements: u64,
    current: Norms,
    /// The norms of the last full chunk. If the elements after this chunk do not fill another one, they are added to
    /// it.
    full: Option<Norms>,
    /// The largest relative L2 error of a finished chunk.
    worst: f64,
}

#[derive(Clone, Copy, Default)]
struct Norms {
    difference: SquareSum,
    expected: SquareSum,
}

impl Norms {
    fn merge(&mut self, other: Self) {
        self.difference.merge(other.difference);
        self.expected.merge(other.expected);
    }

    fn relative(self) -> f64 {
        self.difference.relative_to(self.expected)
    }
}

impl Chunks {
    /// Returns the number of elements by which the current chunk can still grow. It is never 0.
    fn room(&self) -> u64 {
        L2_CHUNK_ELEMENTS - self.elements
    }

    fn take(&mut self, elements: u64, norms: Norms) {
        self.current.merge(norms);
        self.elements += elements;
        if self.elements >= L2_CHUNK_ELEMENTS {
            let full = self.full.replace(std::mem::take(&mut self.current));
            self.elements = 0;
            self.close(full);
        }
    }

    fn close(&mut self, norms: Option<Norms>) {
        let relative = norms.map_or(0.0, Norms::relative);
        // A NaN means that the norms exceed f64. Such a chunk has the worst error possible, but `max` would ignore the
        // NaN.
        self.worst = if relative.is_nan() { f64::INFINITY } else { self.worst.max(relative) };
    }

    fn finish(mut self) -> f64 {
        let mut last = std::mem::take(&mut self.current);
        if let Some(full) = self.full.take() {
            last.merge(full);
        }
        self.close(Some(last));
        self.worst
    }
}

pub(super) struct Tally<'a> {
    subject: &'a Subject<'a>,
    rules: &'a Rules,
    signs: Signs,
    failed: u64,
    failed_not_finite: u64,
    records: Records,
    extremes: Extremes,
    whole: Norms,
    chunks: Chunks,
    narrow: [Vec<f32>; 2],
    wide: [Vec<f64>; 2],
}

impl<'a> Tally<'a> {
    pub(super) fn new(subject: &'a Subject<'a>, rules: &'a Rules) -> Self {
        Self {
            subject,
            rules,
            signs: subject.signs(),
            failed: 0,
            failed_not_finite: 0,
            records: Records::default(),
            extremes: Extremes::default(),
            whole: Norms::default(),
            chunks: Chunks::default(),
            narrow: [vec![0.0; BLOCK_PARTS], vec![0.0; BLOCK_PARTS]],
            wide: [vec![0.0; BLOCK_PARTS], vec![0.0; BLOCK_PARTS]],
        }
    }

    /// Adds a tile to the tally. `bytes` are the expected and the actual elements.
    pub(super) fn take_tile(
        &mut self,
        walk: &Walk,
        tile: &Tile,
        bytes: [&[u8]; 2],
    ) -> Result<(), CompareError> {
        let size = self.subject.dtype.element_len();
        let elements = bytes[0].len() / size;
        let exact = is_exact(self.subject.dtype);
        let block = BLOCK_PARTS / parts_of(self.subject.dtype);
        let mut index = 0;
        while index < elements {
            let room = usize::try_from(self.chunks.room()).unwrap_or(usize::MAX);
            let count = block.min(elements - index).min(room);
            let range = index * size..(index + count) * size;
            let pair = [&bytes[0][range.clone()], &bytes[1][range]];
            let seen = if exact { self.sum_exact_block(pair) } else { self.sum_block(pair, count) };
            let norms = match seen {
                Some(norms) => norms,
                None => self.judge_each_element(walk, tile, index as u64, pair)?,
            };
            self.whole.merge(norms);
            self.chunks.take(count as u64, norms);
            index += count;
        }
        Ok(())
    }

    /// Returns norms of zero if the bytes of the two blocks are equal and need not be negated. (The norms of integers
    /// and bools are not judged.) Otherwise returns `None`, which means that the block must be examined element by
    /// element.
    fn sum_exact_block(&self, pair: [&[u8]; 2]) -> Option<Norms> {
        (!self.signs.negative && pair[0] == pair[1]).then(Norms::default)
    }

    /// Returns the norms of a block, or `None` if the block must be examined element by element.
    fn sum_block(&mut self, pair: [&[u8]; 2], elements: usize) -> Option<Norms> {
        let dtype = self.subject.dtype;
        let parts = elements * parts_of(dtype);
        let bounds = Bounds {
            rtol: self.rules.tolerance.used.rtol,
            atol: self.rules.tolerance.used.atol,
            absolute: self.records.absolute,
            relative: self.records.relative,
        };
        let BlockSums { needs_elements, difference_squares, expected_squares } = if is_wide(dtype) {
            let [expected, actual] = &mut self.wide;
            let (expected, actual) = (&mut expected[..parts], &mut actual[..parts]);
            decode_wide(dtype, pair[0], self.signs, expected);
            decode_wide(dtype, pair[1], Signs::default(), actual);
            let mut sums = examine(expected, actual, bounds);
            sums.needs_elements |= !(sums.expected_squares >= MIN_PLAIN_SQUARES
                && sums.expected_squares.is_finite()
                && sums.difference_squares.is_finite());
            sums
        } else {
            let [expected, actual] = &mut self.narrow;
            let (expected, actual) = (&mut expected[..parts], &mut actual[..parts]);
            decode_narrow(dtype, pair[0], self.signs, expected);
            decode_narrow(dtype, pair[1], Signs::default(), actual);
            examine(expected, actual, bounds)
        };
        if needs_elements {
            return None;
        }
        let mut norms = Norms::default();
        norms.difference.add_squares(difference_squares);
        norms.expected.add_squares(expected_squares);
        Some(norms)
    }

    /// Judges the elements of a pair of blocks one by one, and returns their norms.
    fn judge_each_element(
        &mut self,
        walk: &Walk,
        tile: &Tile,
        first_index: u64,
        pair: [&[u8]; 2],
    ) -> Result<Norms, CompareError> {
        let dtype = self.subject.dtype;
        let size = dtype.element_len();
        let mut norms = Norms::default();
        if is_exact(dtype) {
            let elements = pair[0].chunks_exact(size).zip(pair[1].chunks_exact(size));
            for (index, (expected, actual)) in (first_index..).zip(elements) {
                let expected = Number::read(dtype, expected).signed(self.signs, dtype).whole();
                let actual = Number::read(dtype, actual).whole();
                // Neither value is `None`, because the type is an integer or bool.
                let (expected, actual) = (expected.unwrap_or(0), actual.unwrap_or(0));
                let mut record = false;
                let verdict = judge_whole(expected, actual, self.rules, |value, difference| {
                    record = self.records.take(value, difference);
                });
                self.count(verdict, record, || walk.position(tile, index));
            }
            return Ok(norms);
        }
        let parts = parts_of(dtype);
        let count = pair[0].len() / size * parts;
        let mut wide = std::mem::take(&mut self.wide);
        let [expected, actual] = &mut wide;
        let (expected, actual) = (&mut expected[..count], &mut actual[..count]);
        decode_parts(dtype, pair[0], self.signs, expected);
        decode_parts(dtype, pair[1], Signs::default(), actual);
        if self.rules.nonfinite == Nonfinite::Reject
            && let Some(part) = expected.iter().position(|value| !value.is_finite())
        {
            return Err(CompareError::ExpectedNotFinite {
                output: self.subject.output.to_owned(),
                index: walk.coordinates(walk.position(tile, first_index + (part / parts) as u64)),
                value: Number::of_part(dtype, expected[part]).to_string(),
            });
        }
        let elements = expected.chunks_exact(parts).zip(actual.chunks_exact(parts));
        for (index, (expected, actual)) in (first_index..).zip(elements) {
            let mut record = false;
            let verdict = judge_parts(expected, actual, self.rules, |value, difference| {
                record |= self.records.take(value, difference);
                norms.difference.add(difference);
                norms.expected.add(value);
            });
            self.count(verdict, record, || walk.position(tile, index));
        }
        self.wide = wide;
        Ok(norms)
    }

    #[inline(always)]
    fn count(&mut self, verdict: ElementVerdict, record: bool, position: impl Fn() -> u64) {
        if record {
            self.extremes.worst = position();
        }
        if verdict.fails {
            self.failed += 1;
            self.failed_not_finite += u64::from(verdict.not_finite);
            if self.extremes.first_failed.is_none() {
                self.extremes.first_failed = Some(position());
            }
        }
    }

    /// Returns the result without evidence, and the row-major position of the element to show.
    pub(super) fn into_comparison(self, elements: u64) -> (Comparison, u64) {
        let relative_l2 = self.whole.relative();
        let worst_chunk_l2 = self.chunks.finish();
        let tolerance = self.rules.tolerance;
        #[expect(clippy::cast_precision_loss, reason = "a share; exact below 2^53 elements")]
        let enough_match =
            (elements - self.failed) as f64 >= tolerance.required_matched_ratio * elements as f64;
        let exact = is_exact(self.subject.dtype);
        let close =
            exact || (relative_l2 <= tolerance.used.rel_l2 && worst_chunk_l2 <= tolerance.of_each_part());
        let failures_allowed = enough_match && self.failed_not_finite == 0;
        let comparison = Comparison {
            passed: failures_allowed && close,
            elements,
            failed: self.failed,
            failures_allowed,
            max_absolute_error: self.records.absolute,
            max_relative_error: self.records.relative,
            relative_l2,
            worst_chunk_l2,
            mismatch: None,
        };
        (comparison, self.extremes.first_failed.unwrap_or(self.extremes.worst))
    }
}
