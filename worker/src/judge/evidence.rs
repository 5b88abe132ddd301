//! Describes how an output is wrong: the positions and values of wrong elements, counts, ranges, and the pattern of the
//! errors.
//!
//! This is the second pass over the same bytes, element by element. It does not change the verdict. It may be slow,
//! because few comparisons need it.

use opt_shared::capture::DType;
use opt_shared::outcome::{Mismatch, Pattern};

use super::compare::{CompareError, Comparison, Rules, Subject, is_exact, judge_parts, judge_whole};
use super::decode::{Number, Signs, decode_parts, parts_of};
use super::feed::Feed;
use super::norm::SquareSum;

/// The maximum number of bad elements whose coordinates are listed.
const MAX_LISTED: usize = 8;

/// The number of elements that are decoded at a time.
const BLOCK_ELEMENTS: usize = 256;

#[derive(Clone, Copy)]
struct ValueSummary {
    nan: u64,
    infinite: u64,
    /// The smallest and the largest finite part.
    floats: (f64, f64),
    /// The smallest and the largest value of an integer type or of bool. These values may not fit f64.
    wholes: (i128, i128),
}

impl ValueSummary {
    const EMPTY: Self = Self {
        nan: 0,
        infinite: 0,
        floats: (f64::INFINITY, f64::NEG_INFINITY),
        wholes: (i128::MAX, i128::MIN),
    };

    #[inline(always)]
    fn take_parts(&mut self, parts: &[f64]) {
        let (mut nan, mut infinite) = (false, false);
        for &part in parts {
            if part.is_finite() {
                self.floats = (self.floats.0.min(part), self.floats.1.max(part));
            } else {
                nan |= part.is_nan();
                infinite |= part.is_infinite();
            }
        }
        self.nan += u64::from(nan);
        self.infinite += u64::from(infinite && !nan);
    }

    fn take_whole(&mut self, value: i128) {
        self.wholes = (self.wholes.0.min(value), self.wholes.1.max(value));
    }

    fn range(self, dtype: DType) -> Option<[String; 2]> {
        let (min, max) = self.floats;
        if min <= max {
            return Some([min, max].map(|value| Number::of_part(dtype, value).to_string()));
        }
        let (min, max) = self.wholes;
        let show =
            |value: i128| if dtype == DType::Bool { (value != 0).to_string() } else { value.to_string() };
        (min <= max).then(|| [show(min), show(max)])
    }
}

/// The elements that fail. They may be added in any order of their positions.
#[derive(Default)]
struct BadElements {
    count: u64,
    /// The smallest row-major positions of failing elements, in ascending order. There are at most `MAX_LISTED`.
    first: Vec<u64>,
    /// True if at least one of the failing elements differs from the poison, or if there is no poison.
    written: bool,
}

impl BadElements {
    fn take(&mut self, position: u64) {
        self.count += 1;
        if self.first.len() == MAX_LISTED && self.first.last().is_some_and(|&last| last < position) {
            return;
        }
        let at = self.first.partition_point(|&earlier| earlier < position);
        self.first.insert(at, position);
        self.first.truncate(MAX_LISTED);
    }

    /// Returns the pattern of the bad elements. Patterns are exact: `Tail` and `FromRow` mean that every element from
    /// that position on is bad, and that no element before it is.
    fn pattern(&self, shape: &[u64], elements: u64) -> Pattern {
        let Some(&from) = self.first.first() else {
            return Pattern::Scattered;
        };
        if !self.written {
            return Pattern::StillPoisoned;
        }
        if self.count == elements {
            return Pattern::All;
        }
        if self.count != elements - from {
            return Pattern::Scattered;
        }
        let row: u64 = shape.get(1..).unwrap_or_default().iter().product();
        // In a one-dimensional tensor every element is a row, so `Tail` is more informative.
        if shape.len() > 1 && from.is_multiple_of(row) {
            Pattern::FromRow { row: from / row }
        } else {
            Pattern::Tail { from }
        }
    }
}

/// Returns the mismatch, and the relative L2 error over all pairs of finite numbers. The mismatch shows the first
/// element that fails or, if no element fails, the element at `fallback_position`.
pub(super) fn gather(
    feed: &mut Feed<'_>,
    subject: &Subject<'_>,
    rules: &Rules,
    comparison: &Comparison,
    fallback_position: u64,
) -> Result<(Mismatch, f64), CompareError> {
    let dtype = subject.dtype;
    let size = dtype.element_len();
    let mut summaries = [ValueSummary::EMPTY; 2];
    let (mut difference, mut reference) = (SquareSum::default(), SquareSum::default());
    let mut bad = BadElements::default();
    let mut shown: Option<(u64, Number, Number)> = None;
    let parts = parts_of(dtype);
    let mut decoded = [vec![0.0; BLOCK_ELEMENTS * parts], vec![0.0; BLOCK_ELEMENTS * parts]];
    let mut on_part = |value, error| {
        difference.add(error);
        reference.add(value);
    };
    feed.each_tile(|walk, tile, bytes| {
        let mut note = |fails: bool, inside: u64, pair: [&[u8]; 2]| {
            let position = walk.position(tile, inside);
            if fails {
                bad.take(position);
                bad.written = bad.written
                    || !rules.poison.is_some_and(|poison| pair[1].iter().all(|&byte| byte == poison));
            }
            // If only the norm is too large, no element fails. Then the element at `fallback_position`, which has the
            // largest error, is shown.
            let wanted = if fails {
                shown.is_none_or(|(earlier, ..)| position < earlier)
            } else {
                position == fallback_position
            };
            if wanted {
                let expected = Number::read(dtype, pair[0]).signed(subject.signs(), dtype);
                shown = Some((position, expected, Number::read(dtype, pair[1])));
            }
        };
        let show_all = comparison.failed == 0;
        let blocks = bytes[0].chunks(BLOCK_ELEMENTS * size).zip(bytes[1].chunks(BLOCK_ELEMENTS * size));
        for (block, pair) in (0_u64..).step_by(BLOCK_ELEMENTS).zip(blocks) {
            let elements = pair.0.chunks_exact(size).zip(pair.1.chunks_exact(size));
            if is_exact(dtype) {
                for (inside, pair) in (block..).zip(elements) {
                    let expected = Number::read(dtype, pair.0).signed(subject.signs(), dtype).whole();
                    let actual = Number::read(dtype, pair.1).whole();
                    let (expected, actual) = (expected.unwrap_or(0), actual.unwrap_or(0));
                    summaries[0].take_whole(expected);
                    summaries[1].take_whole(actual);
                    if judge_whole(expected, actual, rules, &mut on_part).fails {
                        note(true, inside, [pair.0, pair.1]);
                    }
                }
                continue;
            }
            let count = pair.0.len() / size * parts;
            let [expected, actual] = &mut decoded;
            let (expected, actual) = (&mut expected[..count], &mut actual[..count]);
            decode_parts(dtype, pair.0, subject.signs(), expected);
            decode_parts(dtype, pair.1, Signs::default(), actual);
            let numbers = expected.chunks_exact(parts).zip(actual.chunks_exact(parts));
            for ((inside, pair), (expected, actual)) in (block..).zip(elements).zip(numbers) {
                summaries[0].take_parts(expected);
                summaries[1].take_parts(actual);
                let fails = judge_parts(expected, actual, rules, &mut on_part).fails;
                if fails || show_all {
                    note(fails, inside, [pair.0, pair.1]);
                }
            }
        }
        Ok(())
    })?;
    let relative_l2 = difference.relative_to(reference);
    let walk = feed.walk();
    let text = |number: Option<Number>| number.map_or_else(String::new, |number| number.to_string());
    let (mut absolute_error, mut relative_error) = (0.0_f64, 0.0_f64);
    if let Some((_, expected, actual)) = shown {
        (absolute_error, relative_error) = errors(expected, actual);
    }
    let mismatch = Mismatch {
        output: subject.output.to_owned(),
        dtype,
        shape: subject.shape.to_vec(),
        index: walk.coordinates(shown.map_or(fallback_position, |(position, ..)| position)),
        expected: text(shown.map(|(_, expected, _)| expected)),
        actual: text(shown.map(|(.., actual)| actual)),
        absolute_error,
        relative_error,
        relative_l2,
        elements: comparison.elements,
        failed: comparison.failed,
        actual_nan: summaries[1].nan,
        actual_inf: summaries[1].infinite,
        expected_nan: summaries[0].nan,
        expected_inf: summaries[0].infinite,
        expected_range: summaries[0].range(dtype),
        actual_range: summaries[1].range(dtype),
        bad_indices: bad.first.iter().map(|&position| walk.coordinates(position)).collect(),
        pattern: bad.pattern(subject.shape, comparison.elements),
        tolerance: rules.tolerance.used,
    };
    Ok((mismatch, relative_l2))
}

/// Returns the absolute and the relative error of one element. For a complex number, these are the errors of the part
/// with the larger error. If either value is NaN, the errors are NaN.
fn errors(expected: Number, actual: Number) -> (f64, f64) {
    if let (Some(expected), Some(actual)) = (expected.whole(), actual.whole()) {
        #[expect(clippy::cast_precision_loss, reason = "sizes of errors are figures")]
        let (value, error) = (expected as f64, (actual - expected).unsigned_abs() as f64);
        return (error, relative(error, value));
    }
    let mut worst = (0.0, 0.0);
    for (expected, actual) in expected.parts().zip(actual.parts()) {
        let error = if expected == actual { 0.0 } else { (actual - expected).abs() };
        if error > worst.0 || error.is_nan() {
            worst = (error, relative(error, expected));
        }
    }
    worst
}

fn relative(error: f64, value: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / value.abs() }
}
