//! Computes statistics of a stream of elements: how much the values vary, and how large they are.
//!
//! The bytes are read once, in chunks, and no values are kept.

use opt_shared::arguments::numbers;
use opt_shared::capture::DType;

/// Statistics of a tensor's values. A complex element counts as two values, which are its parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Statistics {
    pub finite: u64,
    pub nan: u64,
    pub infinite: u64,
    /// The smallest finite value. This field and those below describe only finite values, and are NaN if there are
    /// none.
    pub minimum: f64,
    pub maximum: f64,
    pub mean: f64,
    /// The population standard deviation.
    pub standard_deviation: f64,
}

impl Statistics {
    pub fn largest_magnitude(&self) -> f64 {
        self.minimum.abs().max(self.maximum.abs())
    }

    /// Returns whether all values are equal and finite.
    pub fn is_constant(&self) -> bool {
        self.nan == 0 && self.infinite == 0 && self.finite > 0 && self.minimum == self.maximum
    }
}

/// The sums and extremes of the chunks added so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Accumulator {
    finite: u64,
    nan: u64,
    infinite: u64,
    minimum: f64,
    maximum: f64,
    /// The first finite value. It is subtracted from every value before summing. Otherwise, small differences between
    /// large values would be lost in rounding.
    origin: f64,
    sum: f64,
    squares: f64,
}

impl Accumulator {
    /// Adds a chunk of whole elements.
    pub(super) fn add(&mut self, dtype: DType, chunk: &[u8]) {
        for value in numbers(dtype, chunk) {
            if value.is_nan() {
                self.nan += 1;
            } else if value.is_infinite() {
                self.infinite += 1;
            } else {
                self.add_finite(value);
            }
        }
    }

    fn add_finite(&mut self, value: f64) {
        if self.finite == 0 {
            (self.minimum, self.maximum, self.origin) = (value, value, value);
        }
        self.finite += 1;
        self.minimum = self.minimum.min(value);
        self.maximum = self.maximum.max(value);
        let above = value - self.origin;
        self.sum += above;
        self.squares += above * above;
    }

    pub(super) fn finish(self) -> Statistics {
        let Self { finite, nan, infinite, .. } = self;
        if finite == 0 {
            let none = f64::NAN;
            return Statistics {
                finite,
                nan,
                infinite,
                minimum: none,
                maximum: none,
                mean: none,
                standard_deviation: none,
            };
        }
        #[expect(clippy::cast_precision_loss, reason = "a count of elements, exact up to 2^53")]
        let count = finite as f64;
        let above = self.sum / count;
        let variance = (self.squares / count - above * above).max(0.0);
        Statistics {
            finite,
            nan,
            infinite,
            minimum: self.minimum,
            maximum: self.maximum,
            mean: self.origin + above,
            standard_deviation: variance.sqrt(),
        }
    }
}

/// Computes the statistics of all chunks. Each chunk must contain whole elements.
pub fn statistics<C: AsRef<[u8]>>(dtype: DType, chunks: impl IntoIterator<Item = C>) -> Statistics {
    let mut accumulator = Accumulator::default();
    for chunk in chunks {
        accumulator.add(dtype, chunk.as_ref());
    }
    accumulator.finish()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn statistics_of_a_few_values_are_exact() {
        let bytes = floats(&[1.0, 3.0, f32::NAN, f32::INFINITY, -4.0, 0.0]);
        let found = statistics(DType::Float32, [bytes]);
        assert_eq!((found.finite, found.nan, found.infinite), (4, 1, 1));
        assert_eq!((found.minimum, found.maximum, found.mean), (-4.0, 3.0, 0.0));
        assert_eq!(found.standard_deviation, 6.5_f64.sqrt());
        assert_eq!(found.largest_magnitude(), 4.0);
        assert!(!found.is_constant());
    }

    #[test]
    fn deviation_is_precise_for_large_values_that_differ_little() {
        let constant = statistics(DType::Float32, vec![floats(&[12_345.678; 1000]); 50]);
        assert!(constant.is_constant());
        assert_eq!(constant.standard_deviation, 0.0);
        let mut values = vec![1.0e6_f32; 1000];
        values[999] = 1.0e6 + 0.125;
        let found = statistics(DType::Float32, [floats(&values)]);
        assert!((found.standard_deviation - 0.003_950_870).abs() < 1e-8, "{found:?}");
    }

    #[test]
    fn statistics_without_finite_values_are_nan() {
        for bytes in [vec![], floats(&[f32::NAN; 3])] {
            let found = statistics(DType::Float32, [bytes]);
            assert!(found.mean.is_nan() && found.largest_magnitude().is_nan() && !found.is_constant());
        }
    }

    proptest! {
        #[test]
        fn statistics_do_not_depend_on_chunk_boundaries(
            values in prop::collection::vec(any::<f32>(), 0..200), size in 1..50_usize,
        ) {
            let bytes = floats(&values);
            let whole = statistics(DType::Float32, [&bytes]);
            let parts = statistics(DType::Float32, bytes.chunks(size * 4));
            prop_assert_eq!(format!("{whole:?}"), format!("{parts:?}"));
        }

        #[test]
        fn mean_and_deviation_stay_within_the_range_of_values(values in prop::collection::vec(-1e6..1e6_f32, 1..200)) {
            let found = statistics(DType::Float32, [floats(&values)]);
            prop_assert!(found.minimum <= found.mean + 1e-6 && found.mean <= found.maximum + 1e-6);
            prop_assert!(found.standard_deviation <= found.maximum - found.minimum + 1e-6);
        }
    }
}
