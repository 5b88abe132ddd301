//! The hot loop: one block of numbers against another, in independent lanes.
//!
//! Says of a block only what is cheap to say of every block: whether anything needs a closer look, and the sums
//! of squares. The closer look, element by element, is `compare`'s. Plain Rust: fixed-width lanes are what the
//! compiler turns into vector code on x86-64 and aarch64 alike, and no lane waits for another's sum.

/// Independent accumulators: two vectors of 256 bits, four of 128.
const LANES: usize = 8;

/// What a block may do without being looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) rtol: f64,
    pub(super) atol: f64,
    /// Largest absolute error so far.
    pub(super) absolute: f64,
    /// Largest relative error so far.
    pub(super) relative: f64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BlockSums {
    /// An element fails, is not finite, or sets a record: the block has to be looked at by element, and the sums
    /// are not to be used.
    pub(super) remarkable: bool,
    pub(super) difference_squares: f64,
    pub(super) expected_squares: f64,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    remarkable: u64,
    difference_squares: f64,
    expected_squares: f64,
}

impl Lane {
    #[inline(always)]
    fn take(&mut self, expected: f64, actual: f64, bounds: Bounds) {
        let difference = (actual - expected).abs();
        let magnitude = expected.abs();
        // Negated, so that NaN, which is in no order with anything, is remarkable. An infinite difference is
        // above the record too, however large the tolerance. Where nothing was expected there is no relative
        // error: `0 <= relative * 0` fails only for a difference that the third test then excuses.
        let passes = difference <= bounds.atol + bounds.rtol * magnitude;
        let no_record = difference <= bounds.absolute;
        let no_relative_record = (difference <= bounds.relative * magnitude) | (magnitude == 0.0);
        self.remarkable |= u64::from(!(passes & no_record & no_relative_record));
        self.difference_squares += difference * difference;
        self.expected_squares += expected * expected;
    }
}

pub(super) fn examine<T: Copy + Into<f64>>(expected: &[T], actual: &[T], bounds: Bounds) -> BlockSums {
    let mut lanes = [Lane::default(); LANES];
    let (expected, expected_rest) = expected.as_chunks::<LANES>();
    let (actual, actual_rest) = actual.as_chunks::<LANES>();
    for (expected, actual) in expected.iter().zip(actual) {
        for lane in 0..LANES {
            lanes[lane].take(expected[lane].into(), actual[lane].into(), bounds);
        }
    }
    for (lane, (&expected, &actual)) in lanes.iter_mut().zip(expected_rest.iter().zip(actual_rest)) {
        lane.take(expected.into(), actual.into(), bounds);
    }
    let mut sums = BlockSums { remarkable: false, difference_squares: 0.0, expected_squares: 0.0 };
    for lane in lanes {
        sums.remarkable |= lane.remarkable != 0;
        sums.difference_squares += lane.difference_squares;
        sums.expected_squares += lane.expected_squares;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds = Bounds { rtol: 0.1, atol: 0.01, absolute: 0.05, relative: 0.05 };

    #[test]
    fn a_block_is_remarkable_for_each_reason_wherever_it_stands() {
        for (expected, actual, remarkable) in [
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
            for place in 0..19 {
                let mut block = ([1.0_f32; 19], [1.0_f32; 19]);
                (block.0[place], block.1[place]) = (expected, actual);
                let sums = examine(&block.0, &block.1, BOUNDS);
                assert_eq!(sums.remarkable, remarkable, "{expected} {actual} at {place}");
            }
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
