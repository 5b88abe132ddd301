//! Draws a new float between two neighbouring captured ones.
//!
//! Values drawn only from the captured ones would repeat, and an elementwise kernel could look up its results instead
//! of computing them. A value in between is new, and in the captured range.

use opt_shared::capture::DType;

use crate::judge::element;

/// Size of the widest float type.
const WIDEST: usize = 8;

/// Returns true if new values are drawn between the captured ones: for float16, bfloat16, float32 and float64, unless
/// all finite captured values are whole numbers, such as labels, counts and masks of zeros and infinities, which must
/// stay whole.
pub(super) fn is_fresh(dtype: DType, captured: &[u8]) -> bool {
    let drawn = matches!(dtype, DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64);
    let is_whole = |element: &[u8]| {
        let value = element::value(dtype, element);
        !value.is_finite() || value.fract() == 0.0
    };
    drawn && !captured.chunks_exact(dtype.element_len()).all(is_whole)
}

/// Returns a value from `low` up to but excluding `high`, its neighbour among the captured ones. The draws are spread
/// evenly over the representable values. Returns `low` itself if there is no value in between, if the signs differ, or
/// if one of the two is zero: most floats between zero and another value are so small that they are slow to compute
/// with.
pub(super) fn between<const WIDTH: usize>(low: [u8; WIDTH], high: [u8; WIDTH], random: u32) -> [u8; WIDTH] {
    let (a, b) = (bits(low), bits(high));
    let sign = 1_u64 << (WIDTH.min(WIDEST) * 8 - 1);
    let magnitudes = (a & !sign, b & !sign);
    let apart = magnitudes.0.abs_diff(magnitudes.1);
    let usable = a & sign == b & sign && magnitudes.0 != 0 && magnitudes.1 != 0;
    // 32 random bits, scaled to the number of possible values.
    let step = u64::try_from((u128::from(apart) * u128::from(random)) >> 32).unwrap_or(0);
    let drawn = match () {
        () if !usable => return low,
        () if magnitudes.0 <= magnitudes.1 => a + step,
        () => a - step,
    };
    let mut value = low;
    let width = WIDTH.min(WIDEST);
    value[..width].copy_from_slice(&drawn.to_le_bytes()[..width]);
    value
}

fn bits<const WIDTH: usize>(element: [u8; WIDTH]) -> u64 {
    let mut bytes = [0; WIDEST];
    let width = WIDTH.min(WIDEST);
    bytes[..width].copy_from_slice(&element[..width]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn f32_between(low: f32, high: f32, random: u32) -> f32 {
        f32::from_le_bytes(between(low.to_le_bytes(), high.to_le_bytes(), random))
    }

    #[test]
    fn values_lie_between_their_neighbours() {
        for (low, high) in [(1.0_f32, 1.5_f32), (-1.5, -1.0), (0.1, 1000.0), (-3e30, -1e-30)] {
            for random in [0, 1, 1 << 31, u32::MAX] {
                let found = f32_between(low, high, random);
                assert!(low <= found && found < high, "{found} between {low} and {high}");
            }
            assert_eq!(f32_between(low, high, 0), low);
            assert_ne!(f32_between(low, high, 1 << 31), low);
        }
        for (low, high) in [(0.0_f32, 1.0_f32), (-1.0, 1.0), (-1.0, -0.0), (2.0, 2.0)] {
            assert_eq!(f32_between(low, high, 1 << 31).to_bits(), low.to_bits(), "{low} and {high}");
        }
        let half = between(0x3c00_u16.to_le_bytes(), 0x4000_u16.to_le_bytes(), 1 << 31);
        assert_eq!(half, 0x3e00_u16.to_le_bytes(), "half of the way from 1 to 2 in float16");
    }

    #[test]
    fn whole_numbers_and_other_types_are_left_alone() {
        let of = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        assert!(is_fresh(DType::Float32, &of(&[1.0, 0.5])));
        assert!(!is_fresh(DType::Float32, &of(&[1.0, 3.0, 0.0])));
        assert!(!is_fresh(DType::Float32, &of(&[0.0, f32::NEG_INFINITY, f32::NAN])), "a mask");
        assert!(!is_fresh(DType::Int64, &[1; 16]));
        assert!(!is_fresh(DType::Complex64, &of(&[0.5, 0.5])));
    }
}
