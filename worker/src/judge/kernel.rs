//! Compares two blocks of numbers in independent lanes. This is the hot loop of a comparison.
//!
//! For each block, this computes the sums of squares, and whether `tally` has to examine the block element by element.
//! The lanes do not depend on each other's sums, so the compiler can generate vector code.

/// The number of independent accumulators. They fit into two vectors of 256 bits, or four of 128 bits.
const LANES: usize = 8;

/// Limits on the errors in a block. If no error exceeds them, the block need not be examined element by element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) rtol: f64,
    pub(super) atol: f64,
    /// The largest absolute error so far.
    pub(super) absolute: f64,
    /// The largest relative error so far.
    pub(super) relative: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockSums {
    /// True if an element fails, is not finite, or has a new largest error, or if the squares of the errors overflow.
    /// In these cases the block must be examined element by element, and the sums must not be used.
    pub(super) needs_elements: bool,
    pub(super) difference_squares: f64,
    pub(super) expected_squares: f64,
}

/// Returns the amount by which the error exceeds the bounds (0 or less if it does not), the square of the error, and
/// the square of the expected value.
#[inline(always)]
fn take(expected: f64, actual: f64, bounds: Bounds) -> (f64, f64, f64) {
    let difference = (actual - expected).abs();
    let magnitude = expected.abs();
    let tolerance = bounds.atol + bounds.rtol * magnitude;
    // If 0 is expected, there is no relative error, so only the other two bounds apply.
    let relative = if magnitude == 0.0 { bounds.absolute } else { bounds.relative * magnitude };
    let bound = smaller(smaller(tolerance, relative), bounds.absolute);
    (difference - bound, difference * difference, expected * expected)
}

/// Returns the smaller number. This compiles to a single instruction, whereas `f64::min` needs several because it
/// handles NaN.
#[inline(always)]
fn smaller(left: f64, right: f64) -> f64 {
    if left < right { left } else { right }
}

/// Compares two blocks of the same length. `T` is f32 or f64.
pub(super) fn examine<T: Copy + PartialEq + Into<f64>>(
    expected: &[T],
    actual: &[T],
    bounds: Bounds,
) -> BlockSums {
    // Many correct kernels compute exactly the recorded values, which is faster to check.
    if are_equal(expected, actual) {
        let expected_squares = squares(expected);
        // Infinities are equal to each other, but must be examined element by element.
        if expected_squares.is_finite() {
            return BlockSums { needs_elements: false, difference_squares: 0.0, expected_squares };
        }
    }
    // Each figure has an array of its own, so that a vector register contains the same figure for several lanes.
    let (mut excess, mut differences, mut magnitudes) = ([0.0_f64; LANES], [0.0; LANES], [0.0; LANES]);
    let mut lane = |lane: usize, expected: T, actual: T| {
        let (over, difference_square, expected_square) = take(expected.into(), actual.into(), bounds);
        excess[lane] = if over > excess[lane] { over } else { excess[lane] };
        differences[lane] += difference_square;
        magnitudes[lane] += expected_square;
    };
    let (expected, expected_rest) = expected.as_chunks::<LANES>();
    let (actual, actual_rest) = actual.as_chunks::<LANES>();
    for (expected, actual) in expected.iter().zip(actual) {
        for at in 0..LANES {
            lane(at, expected[at], actual[at]);
        }
    }
    for (at, (&expected, &actual)) in expected_rest.iter().zip(actual_rest).enumerate() {
        lane(at, expected, actual);
    }
    let difference_squares: f64 = differences.iter().sum();
    BlockSums {
        // A value that is not finite makes the sum of the differences NaN or infinite. `excess` alone would miss such a
        // value, because comparisons with NaN are false.
        needs_elements: excess.iter().any(|&over| over > 0.0) || !difference_squares.is_finite(),
        difference_squares,
        expected_squares: magnitudes.iter().sum(),
    }
}

/// Returns true if all numbers are equal. NaN is not equal to anything, and 0 is equal to -0.
fn are_equal<T: Copy + PartialEq>(expected: &[T], actual: &[T]) -> bool {
    // Comparing whole chunks lets the compiler generate vector code.
    let all = |expected: &[T], actual: &[T]| {
        expected.iter().zip(actual).fold(true, |same, (left, right)| same & (left == right))
    };
    expected.chunks(4 * LANES).zip(actual.chunks(4 * LANES)).all(|(expected, actual)| all(expected, actual))
}

/// Returns the sum of the squares, added in the same order as in `examine`.
fn squares<T: Copy + Into<f64>>(values: &[T]) -> f64 {
    let mut sums = [0.0_f64; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for values in chunks.iter().map(|chunk| chunk.as_slice()).chain([rest]) {
        for (sum, &value) in sums.iter_mut().zip(values) {
            let value: f64 = value.into();
            *sum += value * value;
        }
    }
    sums.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { rtol: 0.1, atol: 0.01, absolute: 0.05, relative: 0.05 };

    #[test]
    fn block_needs_examination_for_each_reason_at_any_position() {
        for (expected, actual, needs_elements) in [
            (1.0, 1.04, false),
            (0.0, 0.009, false),
            (0.0, 0.02, true),
            (2.0, 2.06, true),
            (0.5, 0.53, true),
            (0.0, -0.0, false),
            (f32::NAN, f32::NAN, true),
            (f32::INFINITY, f32::INFINITY, true),
            (f32::INFINITY, 0.0, true),
            (0.0, f32::INFINITY, true),
            (0.0, f32::NAN, true),
        ] {
            for index in 0..19 {
                let mut block = ([1.0_f32; 19], [1.0_f32; 19]);
                (block.0[index], block.1[index]) = (expected, actual);
                let sums = examine(&block.0, &block.1, BOUNDS);
                assert_eq!(sums.needs_elements, needs_elements, "{expected} {actual} at {index}");
            }
        }
    }

    #[test]
    fn equal_blocks_have_the_same_sums_as_nearly_equal_ones() {
        let expected: Vec<f64> = (0..21).map(|at| f64::from(at) + 0.3).collect();
        let equal = examine(&expected, &expected, BOUNDS);
        assert!(!equal.needs_elements && equal.difference_squares == 0.0, "{equal:?}");
        for at in 0..21 {
            let mut actual = expected.clone();
            actual[at] += 1e-9;
            let near = examine(&expected, &actual, BOUNDS);
            assert_eq!(near.expected_squares, equal.expected_squares);
            assert!(!near.needs_elements && 0.0 < near.difference_squares, "{near:?}");
        }
    }

    #[test]
    fn squares_are_summed_over_all_lanes_and_the_rest() {
        let expected: Vec<f64> = (0..21).map(f64::from).collect();
        let sums = examine(&expected, &[0.0; 21], BOUNDS);
        assert_eq!(sums.difference_squares, 2870.0);
        assert_eq!(sums.expected_squares, 2870.0);
    }
}
