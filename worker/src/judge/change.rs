//! Measures what share of a small, expected change to an argument a kernel has made.
//!
//! If a change is hardly larger than the rounding error, the relative L2 error cannot distinguish a kernel that leaves
//! the change out from a correct kernel that rounds differently. But the direction of the errors can: rounding errors
//! have either sign, whereas the error of a missing change always points back to the value before the call.

use opt_shared::capture::{DType, Tensor};
use opt_shared::units::{Bytes, to_index};

use super::compare::{ByteSource, BytesSource, CompareError};
use super::decode::Number;
use super::tolerance::Tolerance;

/// The smallest effective number of changed elements for which the share of the change is computed. With fewer
/// elements, the share would depend on how individual elements were rounded.
const MIN_ELEMENTS: f64 = 256.0;
/// The number of bytes that are read at a time.
const PIECE: u64 = 64 << 10;

/// The sums from which the share of a change is computed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MadeChange {
    dtype: DType,
    /// The sum, over all elements, of the part of the change that was made times the square of the change. The part is
    /// clamped to the range 0 to 1, so an element that changes by more than it should does not make up for another one.
    made: f64,
    squares: f64,
    fourth_powers: f64,
}

impl MadeChange {
    pub(crate) fn new(dtype: DType) -> Self {
        Self { dtype, made: 0.0, squares: 0.0, fourth_powers: 0.0 }
    }

    /// Adds some elements. `before` has their bytes before the call, `expected` the bytes expected after it, and
    /// `actual` the bytes that the kernel left.
    pub(crate) fn add(&mut self, before: &[u8], expected: &[u8], actual: &[u8]) {
        let width = self.dtype.element_len();
        let elements = before.chunks_exact(width).zip(expected.chunks_exact(width));
        for ((before, expected), actual) in elements.zip(actual.chunks_exact(width)) {
            if before == expected {
                continue;
            }
            let parts = |element| Number::read(self.dtype, element).parts();
            for ((before, expected), actual) in parts(before).zip(parts(expected)).zip(parts(actual)) {
                let change = expected - before;
                let share = ((actual - before) / change).clamp(0.0, 1.0);
                // Two zeros of different sign are no change: the share is NaN, or `square` is 0. Numbers that are not
                // finite are judged by the comparison of elements.
                if share.is_finite() && change.is_finite() {
                    let square = change * change;
                    self.made += share * square;
                    self.squares += square;
                    self.fourth_powers += square * square;
                }
            }
        }
    }

    /// Reads all elements from three sources: their values before the call, the expected values, and the values that
    /// the kernel left. All three have the layout of `tensor`.
    pub(crate) fn read(
        tensor: &Tensor,
        before: &mut dyn BytesSource,
        expected: &mut dyn BytesSource,
        actual: &mut dyn BytesSource,
    ) -> Result<Self, CompareError> {
        let mut made = Self::new(tensor.dtype);
        let range = tensor.byte_range();
        let end = range.end - range.start;
        for at in (0..end).step_by(to_index(PIECE)) {
            let length = PIECE.min(end - at);
            let read = |source: &mut dyn BytesSource, side| read_piece(source, side, at, length);
            let before = read(before, ByteSource::Expected)?;
            made.add(&before, &read(expected, ByteSource::Expected)?, &read(actual, ByteSource::Actual)?);
        }
        Ok(made)
    }

    /// Returns the share of the change that was made, from 0 to 1, or `None` if too few elements change to judge this.
    fn share(&self) -> Option<f64> {
        // The effective number of elements is the number of equal changes that would have the same sums.
        let elements = self.squares * self.squares / self.fourth_powers;
        (MIN_ELEMENTS <= elements).then(|| self.made / self.squares)
    }

    /// Returns true if less of the change was made than the tolerance requires.
    pub(crate) fn is_too_little(&self, tolerance: Tolerance) -> bool {
        self.share().zip(tolerance.least_share).is_some_and(|(made, least)| made < least)
    }
}

fn read_piece(
    source: &mut dyn BytesSource,
    side: ByteSource,
    offset: u64,
    length: u64,
) -> Result<Vec<u8>, CompareError> {
    let mut piece = vec![0; to_index(length)];
    let read = source.read_at(offset, &mut piece);
    let length = Bytes::new(length);
    read.map(|()| piece).map_err(|source| CompareError::Read { side, offset, length, source })
}

#[cfg(test)]
mod tests {
    use opt_shared::settings::ToleranceProfile;

    use super::super::tolerance::tests::settings;
    use super::*;

    fn bf16(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|&it| half::bf16::from_f32(it).to_le_bytes()).collect()
    }

    /// Returns the share of the change `x *= factor` that `kernel` makes, for values in [1, 2).
    fn share(elements: u16, factor: f32, kernel: impl Fn(usize, f32, f32) -> f32) -> Option<f64> {
        let before: Vec<f32> = (0..elements)
            .map(|at| half::bf16::from_f32(1.0 + f32::from(at % 128) / 128.0).to_f32())
            .collect();
        let expected: Vec<f32> = before.iter().map(|it| half::bf16::from_f32(it * factor).to_f32()).collect();
        let actual: Vec<f32> =
            before.iter().zip(&expected).enumerate().map(|(at, (&b, &e))| kernel(at, b, e)).collect();
        let mut made = MadeChange::new(DType::BFloat16);
        made.add(&bf16(&before), &bf16(&expected), &bf16(&actual));
        made.share()
    }

    #[test]
    fn share_is_that_of_the_change_which_was_made() {
        assert_eq!(share(4096, 0.99, |_, _, expected| expected), Some(1.0));
        assert_eq!(share(4096, 0.99, |_, before, _| before), Some(0.0));
        // Twice the change of every second row does not make up for the other rows.
        for times in [1.0, 2.0] {
            let half = share(4096, 0.5, |at, before, expected| {
                if (at / 128).is_multiple_of(2) { before } else { before + times * (expected - before) }
            });
            assert_eq!(half, Some(0.5));
        }
        // A change in the wrong direction counts as no change.
        assert_eq!(share(4096, 0.5, |_, before, expected| 2.0 * before - expected), Some(0.0));
    }

    #[test]
    fn share_of_few_elements_is_unknown() {
        assert_eq!(share(128, 0.5, |_, before, _| before), None);
        assert_eq!(share(4096, 1.0, |_, before, _| before), None, "nothing changes");
        // One element changes much more than the others.
        let mut made = MadeChange::new(DType::Float32);
        let floats = |first: f32, rest: f32| -> Vec<u8> {
            std::iter::once(first).chain([rest; 999]).flat_map(f32::to_le_bytes).collect()
        };
        made.add(&floats(0.0, 0.0), &floats(1e6, 1.0), &floats(0.0, 0.0));
        assert_eq!(made.share(), None);
        made.add(&floats(0.0, 0.0), &floats(f32::NAN, 1.0), &floats(0.0, f32::INFINITY));
        assert!(made.share().is_none());
    }

    #[test]
    fn least_share_grows_with_the_size_of_the_change() {
        let rounding = 0.5_f64.powi(8);
        let standard = settings(ToleranceProfile::Standard);
        let made = |share: f64| MadeChange {
            made: share,
            squares: 1.0,
            fourth_powers: 1e-6,
            ..MadeChange::new(DType::BFloat16)
        };
        for (unchanged, least) in [
            (0.9, None),
            (1.0, None),
            (4.0, Some(0.75)),
            (2.0, Some(0.5)),
            (8.0, Some(0.875)),
            // The bound of the norm follows from the change, so no share is required.
            (10.0, None),
        ] {
            let tolerance = Tolerance::for_dtype(&standard, DType::BFloat16, 1.0).for_change(
                &standard,
                DType::BFloat16,
                unchanged * rounding,
            );
            assert_eq!(tolerance.least_share, least, "{unchanged}");
            assert_eq!(tolerance.doubled().least_share, least, "{unchanged}");
            for (share, too_little) in [(0.0, least.is_some()), (0.45, least > Some(0.45)), (0.875, false)] {
                assert_eq!(made(share).is_too_little(tolerance), too_little, "{share} of {unchanged}");
            }
        }
    }
}
