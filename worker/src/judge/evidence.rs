//! What a person needs to know about an output that failed: places, values, counts, ranges, and the pattern.
//!
//! A second pass over the same bytes, element by element: it runs only after a no, so it may take its time. The
//! verdict is not looked at again.

use opt_shared::outcome::{Mismatch, Pattern};

use super::compare::{CompareError, Comparison, Rules, Subject, judge_element};
use super::decode::Number;
use super::feed::Feed;
use super::norm::SquareSum;

/// Bad places that are named one by one.
const BAD_PLACES: usize = 8;

/// One side's numbers.
#[derive(Clone, Copy, Default)]
struct Census {
    nan: u64,
    infinite: u64,
    least: Option<Number>,
    greatest: Option<Number>,
}

impl Census {
    fn take(&mut self, number: Number) {
        self.nan += u64::from(number.is_nan());
        self.infinite += u64::from(number.is_infinite());
        for part in number.finite_parts() {
            if self.least.is_none_or(|least| part.less_than(least)) {
                self.least = Some(part);
            }
            if self.greatest.is_none_or(|greatest| greatest.less_than(part)) {
                self.greatest = Some(part);
            }
        }
    }

    fn range(self) -> Option<[String; 2]> {
        Some([self.least?.to_string(), self.greatest?.to_string()])
    }
}

/// The places of bad elements, as row-major positions, whatever the order they are found in.
#[derive(Default)]
struct Bad {
    count: u64,
    /// Rising; the least ones.
    first: Vec<u64>,
    poisoned: u64,
}

impl Bad {
    fn take(&mut self, position: u64, poisoned: bool) {
        self.count += 1;
        self.poisoned += u64::from(poisoned);
        if self.first.len() == BAD_PLACES && self.first.last().is_some_and(|&last| last < position) {
            return;
        }
        let at = self.first.partition_point(|&earlier| earlier < position);
        self.first.insert(at, position);
        self.first.truncate(BAD_PLACES);
    }

    /// Exact: `Tail` and `FromRow` mean that every element from there on is bad and none before.
    fn pattern(&self, shape: &[u64], elements: u64) -> Pattern {
        let Some(&from) = self.first.first() else {
            return Pattern::Scattered;
        };
        if self.poisoned == self.count {
            return Pattern::StillPoisoned;
        }
        if self.count == elements {
            return Pattern::All;
        }
        if self.count != elements - from {
            return Pattern::Scattered;
        }
        let row: u64 = shape.get(1..).unwrap_or_default().iter().product();
        // In one dimension every element is a row, and "tail" says more.
        if shape.len() > 1 && from.is_multiple_of(row) {
            Pattern::FromRow { row: from / row }
        } else {
            Pattern::Tail { from }
        }
    }
}

/// The mismatch, and the relative L2 error over all finite pairs. `place` is where to look if no element fails.
pub(super) fn gather(
    feed: &mut Feed<'_>,
    subject: &Subject<'_>,
    rules: &Rules,
    comparison: &Comparison,
    place: u64,
) -> Result<(Mismatch, f64), CompareError> {
    let dtype = subject.dtype;
    let size = dtype.size() as usize;
    let (mut expected_census, mut actual_census) = (Census::default(), Census::default());
    let (mut difference, mut reference) = (SquareSum::default(), SquareSum::default());
    let mut bad = Bad::default();
    let mut shown: Option<(u64, Number, Number)> = None;
    feed.each_tile(|walk, tile, bytes| {
        let elements = bytes[0].chunks_exact(size).zip(bytes[1].chunks_exact(size));
        for (inside, (expected_bytes, actual_bytes)) in (0..).zip(elements) {
            let expected = Number::read(dtype, expected_bytes).signed(subject.signs(), dtype);
            let actual = Number::read(dtype, actual_bytes);
            expected_census.take(expected);
            actual_census.take(actual);
            let verdict = judge_element(expected, actual, rules, |value, error| {
                difference.add(error);
                reference.add(value);
            });
            // Where only the norm is too large, no element fails and the worst one is shown.
            if !verdict.fails && comparison.failed > 0 {
                continue;
            }
            let position = walk.position(tile, inside);
            if verdict.fails {
                let poisoned = rules.poison.is_some_and(|poison| poison.is_in(actual_bytes));
                bad.take(position, poisoned);
            }
            let wanted = if verdict.fails {
                shown.is_none_or(|(earlier, ..)| position < earlier)
            } else {
                position == place
            };
            if wanted {
                shown = Some((position, expected, actual));
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
        index: walk.coordinates(shown.map_or(place, |(position, ..)| position)),
        expected: text(shown.map(|(_, expected, _)| expected)),
        actual: text(shown.map(|(.., actual)| actual)),
        absolute_error,
        relative_error,
        relative_l2,
        elements: comparison.elements,
        failed: comparison.failed,
        actual_nan: actual_census.nan,
        actual_inf: actual_census.infinite,
        expected_nan: expected_census.nan,
        expected_inf: expected_census.infinite,
        expected_range: expected_census.range(),
        actual_range: actual_census.range(),
        bad_indices: bad.first.iter().map(|&position| walk.coordinates(position)).collect(),
        pattern: bad.pattern(subject.shape, comparison.elements),
        tolerance: rules.tolerance.used,
    };
    Ok((mismatch, relative_l2))
}

/// Absolute and relative error of one element, the larger of its parts; NaN where either value is.
fn errors(expected: Number, actual: Number) -> (f64, f64) {
    if let (Number::Integer(expected), Number::Integer(actual)) = (expected, actual) {
        #[expect(clippy::cast_precision_loss, reason = "sizes of errors are figures")]
        let (value, error) = (expected as f64, (actual - expected).unsigned_abs() as f64);
        return (error, over(error, value));
    }
    let mut worst = (0.0, 0.0);
    for (expected, actual) in expected.parts().zip(actual.parts()) {
        let error = if expected == actual { 0.0 } else { (actual - expected).abs() };
        if error > worst.0 || error.is_nan() {
            worst = (error, over(error, expected));
        }
    }
    worst
}

fn over(error: f64, value: f64) -> f64 {
    if error == 0.0 { 0.0 } else { error / value.abs() }
}
