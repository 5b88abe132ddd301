//! Computes Euclidean norms without overflow or underflow.
//!
//! The square of an f64 can overflow although the value itself is far below the largest f64. Therefore, as in LAPACK
//! 3.10's `dnrm2` (Blue's algorithm), squares are summed in three bins for values of different magnitude, and each bin
//! has its own scale.

/// The lower bound of the large bin. Values below `SMALL` go to the small bin. Squares of the values in between are at
/// most 2^960, so 2^63 of them can be summed.
const LARGE: f64 = power_of_two(480);
const SMALL: f64 = power_of_two(-480);
/// The scale of the large bin, as a power of two. Divided by it, the largest f64 becomes 2^484, and its square is
/// 2^968.
const LARGE_EXPONENT: i32 = 540;
/// The scale of the small bin, as a power of two. Divided by it, the smallest subnormal becomes 2^-474, and its square
/// is 2^-948.
const SMALL_EXPONENT: i32 = -600;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct SquareSum {
    small: f64,
    middle: f64,
    large: f64,
}

impl SquareSum {
    pub(super) fn add(&mut self, value: f64) {
        let magnitude = value.abs();
        if magnitude >= LARGE {
            let scaled = magnitude * power_of_two(-LARGE_EXPONENT);
            self.large += scaled * scaled;
        } else if magnitude >= SMALL {
            self.middle += magnitude * magnitude;
        } else {
            let scaled = magnitude * power_of_two(-SMALL_EXPONENT);
            self.small += scaled * scaled;
        }
    }

    /// Adds squares that were summed without scaling. The caller ensures that none overflowed.
    pub(super) fn add_squares(&mut self, squares: f64) {
        self.middle += squares;
    }

    pub(super) fn merge(&mut self, other: Self) {
        self.small += other.small;
        self.middle += other.middle;
        self.large += other.large;
    }

    /// Returns the norm as a number and the exponent of the power of two by which to multiply it.
    fn norm(self) -> (f64, i32) {
        let shift = |sum: f64, exponent: i32| sum * power_of_two(exponent) * power_of_two(exponent);
        if self.large > 0.0 {
            ((self.large + shift(self.middle, -LARGE_EXPONENT)).sqrt(), LARGE_EXPONENT)
        } else if self.middle > 0.0 {
            ((self.middle + shift(self.small, SMALL_EXPONENT)).sqrt(), 0)
        } else {
            (self.small.sqrt(), SMALL_EXPONENT)
        }
    }

    /// Returns ‖self‖ / ‖other‖. Zero divided by zero counts as 0. Any other norm divided by zero is infinite.
    pub(super) fn relative_to(self, other: Self) -> f64 {
        let ((difference, up), (reference, down)) = (self.norm(), other.norm());
        if difference == 0.0 {
            return 0.0;
        }
        if reference == 0.0 {
            return f64::INFINITY;
        }
        // This multiplies in two steps, because the power of two alone may overflow f64 although the ratio does not.
        let exponent = up - down;
        difference / reference * power_of_two(exponent / 2) * power_of_two(exponent - exponent / 2)
    }
}

/// Returns 2^exponent. The exponent must be that of a normal number.
#[expect(clippy::cast_sign_loss, reason = "a normal number's exponent is above -1023")]
const fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((1023 + exponent) as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(values: &[f64]) -> SquareSum {
        let mut sum = SquareSum::default();
        for &value in values {
            sum.add(value);
        }
        sum
    }

    #[test]
    fn ratio_is_right_for_magnitudes_with_squares_beyond_f64() {
        for (difference, reference, ratio) in [
            (vec![3.0, 4.0], vec![10.0], 0.5),
            (vec![3e-300, 4e-300], vec![1e-299], 0.5),
            (vec![3e300, 4e300], vec![1e301], 0.5),
            (vec![3e-300, 4e-300], vec![1e300], 0.0),
            (vec![5e-324], vec![5e-324], 1.0),
            (vec![f64::MAX], vec![f64::MAX], 1.0),
            (vec![1e-160], vec![1e-150], 1e-10),
            (vec![1e140], vec![1e150], 1e-10),
            (vec![0.0], vec![0.0], 0.0),
            (vec![5e-324], vec![0.0], f64::INFINITY),
            (vec![1e300], vec![1e-300], f64::INFINITY),
        ] {
            let found = sum(&difference).relative_to(sum(&reference));
            assert!(
                found == ratio || (found - ratio).abs() <= 1e-14 * ratio,
                "{difference:?} over {reference:?}: {found}, not {ratio}"
            );
        }
    }

    #[test]
    fn plain_squares_and_merged_sums_give_the_same_norm() {
        let mut plain = SquareSum::default();
        plain.add_squares(9.0);
        plain.merge(sum(&[4.0]));
        assert_eq!(plain.relative_to(sum(&[5.0])), 1.0);
    }
}
