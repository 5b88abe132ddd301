//! Generates inputs, and computes the right results on the CPU in double precision.

/// Generates numbers that look random and are the same in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let [.., a, b, c, d] = self.0.to_le_bytes();
        u32::from_le_bytes([a, b, c, d])
    }

    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        self.next() % bound
    }

    /// Returns values from -2 to 2 that float16 represents exactly.
    pub(crate) fn floats(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let step = i16::try_from(self.below(1025)).unwrap_or(0) - 512;
                f32::from(step) / 256.0
            })
            .collect()
    }
}

/// A matrix in row-major order.
#[derive(Clone, Copy)]
pub(crate) struct Matrix<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) width: usize,
}

impl Matrix<'_> {
    fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width)
    }
}

pub(crate) fn linear(input: Matrix<'_>, weight: Matrix<'_>, bias: Option<&[f32]>) -> Vec<f64> {
    let mut out = Vec::new();
    for row in input.rows() {
        for (feature, weights) in weight.rows().enumerate() {
            let bias = bias.map_or(0.0, |bias| f64::from(bias[feature]));
            out.push(dot(row, weights.iter()) + bias);
        }
    }
    out
}

pub(crate) fn matmul(a: Matrix<'_>, b: Matrix<'_>) -> Vec<f64> {
    let column = |at: usize| b.values.iter().skip(at).step_by(b.width);
    a.rows().flat_map(|row| (0..b.width).map(move |at| dot(row, column(at)))).collect()
}

fn dot<'a>(a: &[f32], b: impl Iterator<Item = &'a f32>) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

pub(crate) fn layer_norm(
    input: Matrix<'_>,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
) -> Vec<f64> {
    let mut out = Vec::new();
    for row in input.rows() {
        let count = f64::from(u32::try_from(row.len()).unwrap_or(u32::MAX));
        let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
        let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
        let scale = 1.0 / (variance + f64::from(eps)).sqrt();
        for (at, x) in row.iter().enumerate() {
            let weight = weight.map_or(1.0, |weight| f64::from(weight[at]));
            let bias = bias.map_or(0.0, |bias| f64::from(bias[at]));
            out.push((f64::from(*x) - mean) * scale * weight + bias);
        }
    }
    out
}

pub(crate) fn softmax(input: Matrix<'_>) -> Vec<f64> {
    let mut out = Vec::new();
    for row in input.rows() {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let powers: Vec<f64> = row.iter().map(|x| f64::from(x - most).exp()).collect();
        let sum: f64 = powers.iter().sum();
        out.extend(powers.iter().map(|power| power / sum));
    }
    out
}

pub(crate) fn gelu(x: f32) -> f64 {
    let x = f64::from(x);
    0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// Computes the approximation of GELU with tanh.
pub(crate) fn gelu_tanh(x: f32) -> f64 {
    let x = f64::from(x);
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// Computes the error function by its power series, which converges quickly for |x| below 3.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while 1e-17 < term.abs() {
        n += 1.0;
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// Computes the product's digest of 8-byte words.
pub(crate) fn digest(words: &[u64], seed: u64) -> u64 {
    let mut sum = 0_u64;
    for (index, word) in (0_u64..).zip(words) {
        let mixed = word ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(seed);
        let mut mixed = mixed.wrapping_mul(0xc2b2_ae3d_27d4_eb4f);
        mixed ^= mixed >> 32;
        sum = sum.wrapping_add(mixed.wrapping_mul(0x9e37_79b1_85eb_ca87));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{found} instead of {expected}");
        }
    }

    #[test]
    fn results_equal_known_values() {
        let matrix = |values| Matrix { values, width: 2 };
        close(
            &matmul(matrix(&[1.0, 2.0, 3.0, 4.0]), matrix(&[5.0, 6.0, 7.0, 8.0])),
            &[19.0, 22.0, 43.0, 50.0],
        );
        let bias = [0.5, -0.5];
        let linear = linear(matrix(&[1.0, 2.0]), matrix(&[5.0, 6.0, 7.0, 8.0]), Some(&bias));
        close(&linear, &[17.5, 22.5]);
        close(&layer_norm(matrix(&[1.0, 3.0]), Some(&[2.0, 2.0]), Some(&[0.0, 1.0]), 0.0), &[-2.0, 3.0]);
        close(&softmax(matrix(&[0.0, 0.0, 1.0, 0.0])), &[0.5, 0.5, 0.731_058_578_630, 0.268_941_421_370]);
        close(&[gelu(1.0), gelu(-2.0), gelu(0.0)], &[0.841_344_746_069, -0.045_500_263_896, 0.0]);
        close(&[gelu_tanh(1.0), gelu_tanh(-2.0)], &[0.841_191_990_608, -0.045_402_305_912]);
    }
}
