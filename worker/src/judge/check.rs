//! Compares one output of a call with the expected values, with the tolerance, poison and strides of the attempt.
//! `compare` does the actual comparison.

use opt_shared::capture::Tensor;
use opt_shared::causes::is_shortage;
use opt_shared::outcome::{Mismatch, ToleranceUsed};
use opt_shared::settings::VerifySettings;

use super::compare::{
    ByteSource, BytesSource, COMPARE_CHUNK, CompareError, Comparison, Rules, Subject, compare,
};
use super::scale::estimate_scale;
use super::tolerance::Tolerance;

/// Returns the tolerance for an output. If the tolerance depends on the scale of the expected values, reads these
/// values or a sample of them.
pub(crate) fn tolerance_of(
    expected: &mut dyn BytesSource,
    tensor: &Tensor,
    settings: &VerifySettings,
) -> Result<Tolerance, CompareError> {
    let scale = if Tolerance::needs_scale(settings, tensor.dtype) {
        estimate_scale(expected, tensor.dtype, &tensor.shape, &tensor.stride, COMPARE_CHUNK)?
    } else {
        0.0
    };
    Ok(Tolerance::for_dtype(settings, tensor.dtype, scale))
}

/// Returns the tolerance for an argument that the call changes. `before` contains the argument's values before the
/// call.
pub(crate) fn tolerance_of_change(
    expected: &mut dyn BytesSource,
    before: &mut dyn BytesSource,
    tensor: &Tensor,
    settings: &VerifySettings,
) -> Result<Tolerance, CompareError> {
    let tolerance = tolerance_of(expected, tensor, settings)?;
    let check = OutputCheck { path: "", tensor, settings, tolerance, poison: None, expected_written: false };
    match check.run(expected, before) {
        Ok(unchanged) => Ok(tolerance.for_change(settings, tensor.dtype, unchanged.relative_l2)),
        // The comparison of the output will report this error.
        Err(CompareError::ExpectedNotFinite { .. }) => Ok(tolerance),
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy)]
pub(crate) struct OutputCheck<'a> {
    pub(crate) path: &'a str,
    pub(crate) tensor: &'a Tensor,
    pub(crate) settings: &'a VerifySettings,
    pub(crate) tolerance: Tolerance,
    /// The byte with which the output was filled before the call, or `None` if it was not filled.
    pub(crate) poison: Option<u8>,
    /// True if the expected values were written by a kernel as well. They are then compared as stored, and the
    /// conjugate and negative flags of the captured tensor are ignored.
    pub(crate) expected_written: bool,
}

impl OutputCheck<'_> {
    pub(crate) fn run(
        &self,
        expected: &mut dyn BytesSource,
        actual: &mut dyn BytesSource,
    ) -> Result<Comparison, CompareError> {
        let tensor = self.tensor;
        let subject = Subject {
            output: self.path,
            dtype: tensor.dtype,
            shape: &tensor.shape,
            expected_stride: &tensor.stride,
            // Outputs are allocated with the captured strides.
            actual_stride: &tensor.stride,
            expected_conjugate: tensor.conjugate && !self.expected_written,
            expected_negative: tensor.negative && !self.expected_written,
        };
        let rules = Rules {
            tolerance: self.tolerance,
            nonfinite: self.settings.nonfinite,
            poison: self.poison,
            chunk: COMPARE_CHUNK,
        };
        compare(expected, actual, &subject, &rules)
    }

    /// Raises the absolute tolerance if the expected values have a larger scale than the recorded ones.
    pub(crate) fn at_the_scale_of(mut self, expected: &mut dyn BytesSource) -> Result<Self, CompareError> {
        let used = tolerance_of(expected, self.tensor, self.settings)?.doubled().used;
        self.tolerance.used.atol = self.tolerance.used.atol.max(used.atol);
        Ok(self)
    }

    /// Describes an output whose elements and norms pass, but which is wrong as a whole. Returns `None` if it equals
    /// the expected output.
    pub(crate) fn describe(
        &self,
        expected: &mut dyn BytesSource,
        actual: &mut dyn BytesSource,
    ) -> Result<Option<Mismatch>, CompareError> {
        let used = self.tolerance.used;
        let tolerance = Tolerance { used: ToleranceUsed { rel_l2: 0.0, ..used }, ..self.tolerance };
        let found = Self { tolerance, ..*self }.run(expected, actual)?;
        Ok(found.mismatch.map(|it| Mismatch { tolerance: used, ..it }))
    }
}

/// Returns true if a comparison could not be made because of the recorded data. In this case the capture is to blame,
/// not the worker.
pub(crate) fn is_capture_fault(error: &CompareError) -> bool {
    matches!(
        error,
        CompareError::ExpectedNotFinite { .. } | CompareError::Read { side: ByteSource::Expected, .. }
    ) && !is_shortage(error)
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;
    use opt_shared::settings::ToleranceProfile;

    use super::super::tolerance::tests::settings;
    use super::*;

    #[test]
    fn absolute_tolerance_grows_with_the_expected_values_and_never_shrinks() {
        let settings = settings(ToleranceProfile::Standard);
        let tensor = Tensor::dense(DType::Float32, &[4], StorageId(0));
        let tolerance = Tolerance::for_dtype(&settings, DType::Float32, 1.0).doubled();
        for (value, factor) in [(0.01_f32, 1.0), (1.0, 1.0), (90.0, 90.0)] {
            let check = OutputCheck {
                path: "output",
                tensor: &tensor,
                settings: &settings,
                tolerance,
                poison: None,
                expected_written: true,
            };
            let expected: Vec<u8> = [value; 4].into_iter().flat_map(f32::to_le_bytes).collect();
            let found = check.at_the_scale_of(&mut expected.as_slice()).expect("in memory").tolerance.used;
            assert_eq!(found.atol, tolerance.used.atol * factor, "{value}");
            assert_eq!((found.rtol, found.rel_l2), (tolerance.used.rtol, tolerance.used.rel_l2));
        }
    }
}
