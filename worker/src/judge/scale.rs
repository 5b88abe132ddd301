//! Estimates the scale S of a tensor: a magnitude that few elements of a sample exceed, computed before the comparison.
//!
//! This file also chooses the sample. `tolerance` uses S.

use opt_shared::capture::DType;
use opt_shared::units::{Bytes, to_index};

use super::compare::{ByteSource, BytesSource, CompareError};
use super::decode::Number;
use super::feed::Feed;
use super::layout::{ReadError, Walk, read};
use super::tolerance::MIN_SCALE;

/// The maximum number of samples from a tensor that is read completely.
const MAX_SAMPLES: u64 = 65_536;

/// Tensors up to this size are read completely.
const READ_THROUGH: Bytes = Bytes::mib(16);

/// The number of samples from a larger tensor. Each sample is a separate read, in the worst case from a disk.
const SCATTERED_SAMPLES: u64 = 4096;

/// The fractional part of the golden ratio. The fractional parts of its multiples are spread evenly, and do not repeat
/// with the period of any shape.
const GOLDEN: f64 = 0.618_033_988_749_894_9;

/// The share of the sampled magnitudes that should be at most S.
const PERCENTILE: f64 = 0.95;

/// The upper bound of S, as a multiple of the median magnitude. Without this bound, a few huge elements, such as the
/// masked scores of an attention, would make S so large that errors in all other elements would be tolerated.
const MOST_OVER_MEDIAN: f64 = 32.0;

/// Returns S = max(1e-3, min(p95, 32 x median)) of the magnitudes |e| of the finite, non-zero elements e of an evenly
/// spaced sample. Each part of a complex number is an element of its own. Zeros are left out because they say nothing
/// about the scale. After a ReLU, more than half of the elements may be zero. If zeros were included, S could then be
/// 1e-3, and the rounding errors of a correct kernel would be rejected.
///
/// The median alone would be too small for activations. For example, a GELU whose inputs are mostly negative has mostly
/// tiny outputs. Each of these is computed as the difference of numbers near 1, so even torch's own results have
/// errors of up to 1e-6 there.
///
/// The tensor is divided into as many equal intervals as there are samples, and one element is taken from each. The
/// position of this element in its interval varies, because with a fixed position, all samples of a matrix whose sizes
/// are powers of two could lie in one column.
pub fn estimate_scale(
    source: &mut dyn BytesSource,
    dtype: DType,
    shape: &[u64],
    stride: &[u64],
    chunk: Bytes,
) -> Result<f64, CompareError> {
    let size = dtype.size();
    let walk = Walk::new(shape, stride, stride, size)?;
    let elements = walk.elements();
    let whole = Bytes::new(elements.saturating_mul(size));
    let mut magnitudes = Vec::new();
    let mut take = |bytes: &[u8]| {
        let parts = Number::read(dtype, bytes).parts();
        magnitudes.extend(parts.filter(|part| part.is_finite() && *part != 0.0).map(f64::abs));
    };
    if whole <= READ_THROUGH {
        let samples = elements.min(MAX_SAMPLES);
        let mut wanted = (0..samples).map(|sample| sample_at(sample, samples, elements)).peekable();
        let mut visited = 0;
        // A feed always reads two tensors, but only one is needed here.
        let mut nothing = Nothing;
        let sources: [(&mut dyn BytesSource, ByteSource); 2] =
            [(source, ByteSource::Expected), (&mut nothing, ByteSource::Expected)];
        let mut feed = Feed::new(walk, size, sources, chunk)?;
        feed.each_tile(|_, _, bytes| {
            for element in bytes[0].chunks_exact(to_index(size)) {
                if wanted.next_if_eq(&visited).is_some() {
                    take(element);
                }
                visited += 1;
            }
            Ok(())
        })?;
    } else {
        let mut element = vec![0; to_index(size)];
        for sample in 0..SCATTERED_SAMPLES {
            let position = sample_at(sample, SCATTERED_SAMPLES, elements);
            let offset: u64 =
                walk.coordinates(position).iter().zip(stride).map(|(&at, &step)| at * step).sum();
            read(source, offset * size, &mut element).map_err(|error: ReadError| CompareError::Read {
                side: ByteSource::Expected,
                offset: error.offset,
                length: error.length,
                source: error.source,
            })?;
            take(&element);
        }
    }
    Ok(scale_of(&mut magnitudes).unwrap_or(0.0).max(MIN_SCALE))
}

/// Returns the position of the element to take from the `sample`-th of `samples` equal intervals.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "an edge is at most `elements`; a position in an interval is clamped to it"
)]
fn sample_at(sample: u64, samples: u64, elements: u64) -> u64 {
    let edge = |sample: u64| (u128::from(sample) * u128::from(elements) / u128::from(samples)) as u64;
    let (start, end) = (edge(sample), edge(sample + 1));
    let jitter = ((sample as f64 * GOLDEN).fract() * (end - start) as f64) as u64;
    (start + jitter).min(end - 1)
}

/// Returns the smaller of the 95th percentile and 32 times the median, or `None` if there are no values.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "there are at most MAX_SAMPLES values, and the position is below their number"
)]
fn scale_of(values: &mut [f64]) -> Option<f64> {
    if values.is_empty() {
        return None;
    }
    let at = |share: f64| (share * values.len() as f64) as usize;
    let (middle, high) = (at(0.5), at(PERCENTILE));
    let high = *values.select_nth_unstable_by(high, f64::total_cmp).1;
    let median = *values.select_nth_unstable_by(middle, f64::total_cmp).1;
    Some(high.min(MOST_OVER_MEDIAN * median))
}

/// A source that leaves the buffer unchanged.
struct Nothing;

impl BytesSource for Nothing {
    fn read_at(&mut self, _offset: u64, _buffer: &mut [u8]) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(values: &[f32]) -> f64 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let shape = [values.len() as u64];
        estimate_scale(&mut bytes.as_slice(), DType::Float32, &shape, &[1], Bytes::kib(4))
            .expect("memory can be read")
    }

    #[test]
    fn scale_is_the_95th_percentile_of_finite_elements_that_are_not_zero() {
        assert_eq!(scale(&[-3.0, 1.0, 2.0]), 3.0);
        assert_eq!(scale(&[0.0, -0.0, 0.0, 0.0, -3.0, 1.0, 2.0]), 3.0);
        let hundred: Vec<f32> = (0..100).map(|at| if at < 95 { 1.0 } else { 4.0 }).collect();
        assert_eq!(scale(&hundred), 4.0);
        assert_eq!(scale(&hundred[..94]), 1.0);
        assert_eq!(scale(&[&hundred[..], &[1.0]].concat()), 1.0);
        assert_eq!(scale(&[0.0; 10]), MIN_SCALE);
        assert_eq!(scale(&[f32::NAN, 5.0, f32::INFINITY, 5.0]), 5.0);
        assert_eq!(scale(&[]), MIN_SCALE);
        assert_eq!(scale(&[1e-9; 10]), MIN_SCALE);
        assert_eq!(scale(&[f32::NAN; 10]), MIN_SCALE);
    }

    #[test]
    fn scale_is_at_most_32_times_the_median() {
        let masked: Vec<f32> = (0..100).map(|at| if at % 10 == 0 { -1e9 } else { 2.0 }).collect();
        assert_eq!(scale(&masked), 64.0);
    }

    #[test]
    fn samples_are_spread_over_columns() {
        let (rows, columns) = (1 << 13, 1 << 10);
        let samples = 1 << 12;
        let mut seen = std::collections::BTreeSet::new();
        let mut last = None;
        for sample in 0..samples {
            let at = sample_at(sample, samples, rows * columns);
            assert!(last < Some(at));
            last = Some(at);
            seen.insert(at % columns);
        }
        assert!(seen.len() > 900, "{} columns of 1024", seen.len());
    }

    #[test]
    fn sampled_scale_agrees_with_the_complete_one() {
        // 8 Mi elements of f32 are 32 MiB, so only samples of them are read. Most values are 2, and 3 is as rare as 1.
        let values: Vec<f32> =
            (0..8 << 20).map(|at| if at % 30 < 28 { 2.0 } else { [1.0, 3.0][at % 2] }).collect();
        assert_eq!(scale(&values), 2.0);
        assert_eq!(scale(&values[..1 << 20]), 2.0);
    }
}
