//! Tests the whole comparison, with property tests against a naive comparison (`properties`) and with single cases
//! (`verdicts`).

mod properties;
mod verdicts;

use opt_shared::capture::{DType, Kind, contiguous_strides};
use opt_shared::settings::{Nonfinite, ToleranceProfile, VerifySettings};
use opt_shared::units::to_index;

use super::decode::{Number, Signs};
use super::tolerance::tests::settings;
use super::*;

#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    shape: Vec<u64>,
    expected_stride: Vec<u64>,
    actual_stride: Vec<u64>,
    expected: Vec<u8>,
    actual: Vec<u8>,
    signs: Signs,
    rules: Rules,
}

impl Case {
    /// Returns a case with two equal dense tensors. `make` computes each element from its row-major position.
    fn filled(dtype: DType, shape: &[u64], mut make: impl FnMut(usize) -> f64) -> Self {
        let stride = contiguous_strides(shape);
        let count: u64 = shape.iter().product();
        let expected: Vec<u8> = (0..to_index(count)).flat_map(|at| encode(dtype, make(at))).collect();
        Self {
            dtype,
            shape: shape.to_vec(),
            expected_stride: stride.clone(),
            actual_stride: stride,
            actual: expected.clone(),
            expected,
            signs: Signs::default(),
            rules: rules(Tolerance::for_dtype(&standard(), dtype, 1.0)),
        }
    }

    fn set_actual(&mut self, at: usize, value: f64) {
        let size = self.dtype.element_len();
        self.actual[at * size..(at + 1) * size].copy_from_slice(&encode(self.dtype, value));
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            output: "output",
            dtype: self.dtype,
            shape: &self.shape,
            expected_stride: &self.expected_stride,
            actual_stride: &self.actual_stride,
            expected_conjugate: self.signs.conjugate,
            expected_negative: self.signs.negative,
        }
    }

    fn run(&self) -> Comparison {
        let (mut expected, mut actual) = (self.expected.as_slice(), self.actual.as_slice());
        compare(&mut expected, &mut actual, &self.subject(), &self.rules).expect("memory can be read")
    }

    /// Every element in row-major order: its index, the expected number, the actual number and the actual bytes.
    fn pairs(&self) -> Vec<(Vec<u64>, Number, Number, Vec<u8>)> {
        let count: u64 = self.shape.iter().product();
        (0..count)
            .map(|position| {
                let mut index = vec![0; self.shape.len()];
                let mut rest = position;
                for axis in (0..index.len()).rev() {
                    index[axis] = rest % self.shape[axis];
                    rest /= self.shape[axis];
                }
                let bytes = |memory: &[u8], stride: &[u64]| {
                    let at: u64 = index.iter().zip(stride).map(|(&at, &step)| at * step).sum();
                    let size = self.dtype.size();
                    memory[to_index(at * size)..to_index((at + 1) * size)].to_vec()
                };
                let expected = Number::read(self.dtype, &bytes(&self.expected, &self.expected_stride));
                let actual = bytes(&self.actual, &self.actual_stride);
                let number = Number::read(self.dtype, &actual);
                (index, expected.signed(self.signs, self.dtype), number, actual)
            })
            .collect()
    }
}

fn standard() -> VerifySettings {
    settings(ToleranceProfile::Standard)
}

fn rules(tolerance: Tolerance) -> Rules {
    Rules { tolerance, nonfinite: Nonfinite::Match, poison: Some(0x5a), chunk: COMPARE_CHUNK }
}

fn floats() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().filter(|dtype| matches!(dtype.kind(), Kind::Float | Kind::Complex))
}

/// Encodes `value` as `dtype`. A float is rounded to the nearest value of its type. An integer has the low bytes of the
/// whole part of `value`. A complex number has `value` as its real part and half of `value` as its imaginary part.
#[expect(clippy::cast_possible_truncation, reason = "rounds to the type, or keeps the low bytes that it has")]
fn encode(dtype: DType, value: f64) -> Vec<u8> {
    match dtype {
        DType::Float64 => value.to_le_bytes().to_vec(),
        DType::Float32 => (value as f32).to_le_bytes().to_vec(),
        DType::Float16 => half::f16::from_f64(value).to_le_bytes().to_vec(),
        DType::BFloat16 => half::bf16::from_f64(value).to_le_bytes().to_vec(),
        DType::Complex32 => [encode(DType::Float16, value), encode(DType::Float16, value / 2.0)].concat(),
        DType::Complex64 => [encode(DType::Float32, value), encode(DType::Float32, value / 2.0)].concat(),
        DType::Complex128 => [encode(DType::Float64, value), encode(DType::Float64, value / 2.0)].concat(),
        DType::Bool => vec![u8::from(value != 0.0)],
        _ if dtype.kind() == Kind::Integer => {
            let whole = value as i64;
            whole.to_le_bytes()[..dtype.element_len()].to_vec()
        }
        _ => {
            let distance = |code: u8| match Number::read(dtype, &[code]).parts().next() {
                Some(found) if found.is_finite() => (found - value).abs(),
                _ => f64::INFINITY,
            };
            let nearest = (0..=u8::MAX).min_by(|&left, &right| distance(left).total_cmp(&distance(right)));
            vec![nearest.unwrap_or_default()]
        }
    }
}

fn alike(left: f64, right: f64) -> bool {
    left == right || (left - right).abs() <= 1e-9 * left.abs().max(right.abs())
}
