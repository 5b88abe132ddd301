//! Draws new floats for an input, from the intervals between its captured values.
//!
//! If values were drawn only from the captured ones, they would repeat, and an elementwise kernel could look up its
//! results instead of computing them. A value between two captured ones is new, but still in the captured range.

use opt_shared::capture::DType;
use rand::Rng as _;
use rand::rngs::SmallRng;

use crate::judge::element;

/// The limit on equal values among captured floats, as the reciprocal of a share. New values are spread over the range
/// of the captured ones only if at most this share of them equals another, as is the case for random floats.
const FEW_EQUAL: usize = 16;

/// The size of the widest float type, in bytes.
const WIDEST: usize = 8;

/// Returns an input's part of the seed, which depends only on its type and captured values.
pub(super) fn key_of(dtype: DType, captured: &[u8]) -> u64 {
    let digest = blake3::Hasher::new().update(&[dtype as u8]).update(captured).finalize();
    digest.as_bytes().first_chunk().copied().map_or(0, u64::from_le_bytes)
}

/// Returns true if an input's new values are drawn between its captured ones. This is the case for float16, bfloat16,
/// float32 and float64, unless all finite captured values are whole numbers. Whole numbers must stay whole, because
/// they may be labels, counts, or masks of zeros and infinities.
pub(super) fn is_fresh(dtype: DType, captured: &[u8]) -> bool {
    let drawn = matches!(dtype, DType::Float16 | DType::BFloat16 | DType::Float32 | DType::Float64);
    let is_whole = |element: &[u8]| {
        let value = element::value(dtype, element);
        !value.is_finite() || value.fract() == 0.0
    };
    drawn && !captured.chunks_exact(dtype.element_len()).all(is_whole)
}

/// Returns a value from `low` up to but excluding `high`, which is the next captured value. The draws are spread
/// evenly over the representable values. Returns `low` itself if there is no value in between, if the signs differ, or
/// if one of the two is zero. (Most floats between zero and another value are so small that computing with them is
/// slow.)
pub(super) fn between<const WIDTH: usize>(low: [u8; WIDTH], high: [u8; WIDTH], random: u32) -> [u8; WIDTH] {
    let (a, b) = (bits(low), bits(high));
    let sign = sign::<WIDTH>();
    let magnitudes = (a & !sign, b & !sign);
    let apart = magnitudes.0.abs_diff(magnitudes.1);
    let usable = a & sign == b & sign && magnitudes.0 != 0 && magnitudes.1 != 0;
    // This scales 32 random bits to the number of possible values.
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

/// Fills `drawn` with distinct values in the range of `captured`, in ascending order. `captured` is sorted, and has the
/// same length as `drawn`. If many captured values are equal, or some are not finite, draws nothing and returns false.
///
/// The values come from a random part of the range and have a random skew, so their ranks, extremes and quantiles
/// differ from call to call. Otherwise, a kernel that selects by rank, such as a median, could learn in which interval
/// its result lies, and an `argmax` kernel could stop as soon as it finds the largest value that it has seen before.
pub(super) fn spread<const WIDTH: usize>(
    captured: &[[u8; WIDTH]],
    drawn: &mut [[u8; WIDTH]],
    random: &mut SmallRng,
) -> bool {
    let (Some(&smallest), Some(&largest)) = (captured.first(), captured.last()) else { return false };
    let equal = captured.windows(2).filter(|pair| order(pair[0]) == order(pair[1])).count();
    let Ok(intervals @ 1..) = u32::try_from(captured.len() - 1) else { return false };
    if captured.len() / FEW_EQUAL < equal || !is_finite(smallest) || !is_finite(largest) {
        return false;
    }
    let (start, end) = (random.random_range(0.0..0.25), random.random_range(0.75..=1.0));
    let (skew, is_mirrored) = (4_f64.powf(random.random_range(-1.0..=1.0)), random.random::<bool>());
    // This draws sorted uniform numbers, the largest first. The largest of n uniform numbers is distributed like the
    // n-th root of a uniform number, and so on. The computation uses logarithms for precision.
    let mut logarithm = 0.0;
    for number in (1..=intervals + 1).rev() {
        let uniform: f64 = random.random_range(f64::MIN_POSITIVE..1.0);
        logarithm += uniform.ln() / f64::from(number);
        let skewed = (skew * logarithm).exp();
        let (at, place) =
            if is_mirrored { (intervals + 1 - number, 1.0 - skewed) } else { (number - 1, skewed) };
        let (low, fraction) = split((start + (end - start) * place) * f64::from(intervals));
        let low = low.min(intervals - 1) as usize;
        drawn[at as usize] = between(captured[low], captured[low + 1], fraction);
    }
    make_distinct(drawn, order(largest));
    true
}

/// Returns the whole part of a number that is not negative, and its fraction in units of 2^-32.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the number is not negative, and larger ones are limited by the cast"
)]
fn split(number: f64) -> (u32, u32) {
    (number as u32, (number.fract() * f64::from(u32::MAX)) as u32)
}

/// Moves equal values of a sorted list apart by as little as possible. No value is moved above `largest`.
fn make_distinct<const WIDTH: usize>(sorted: &mut [[u8; WIDTH]], largest: u64) {
    let mut least = 0;
    for value in sorted.iter_mut() {
        let moved = order(*value).max(least);
        *value = of_order(moved);
        least = moved + 1;
    }
    let mut most = largest;
    for value in sorted.iter_mut().rev() {
        if order(*value) <= most {
            break;
        }
        *value = of_order(most);
        most = most.saturating_sub(1);
    }
}

const fn sign<const WIDTH: usize>() -> u64 {
    1 << (if WIDTH < WIDEST { WIDTH } else { WIDEST } * 8 - 1)
}

/// Returns the position of a float among all floats of its type. Both zeros have the same position, because they
/// compare as equal.
fn order<const WIDTH: usize>(element: [u8; WIDTH]) -> u64 {
    let (bits, zero) = (bits(element), sign::<WIDTH>());
    let magnitude = bits & (zero - 1);
    if bits == magnitude { zero + magnitude } else { zero - magnitude }
}

fn of_order<const WIDTH: usize>(order: u64) -> [u8; WIDTH] {
    let zero = sign::<WIDTH>();
    let bits = if order < zero { zero | (zero - order) } else { order - zero };
    let mut element = [0; WIDTH];
    let width = WIDTH.min(WIDEST);
    element[..width].copy_from_slice(&bits.to_le_bytes()[..width]);
    element
}

/// Returns true if a value of one of the types in [`is_fresh`] is finite. Both 16-bit types are compared with the bits
/// of float16's infinity. In bfloat16, only enormous values reach these bits.
fn is_finite<const WIDTH: usize>(element: [u8; WIDTH]) -> bool {
    let magnitude = bits(element) & (sign::<WIDTH>() - 1);
    let infinity = match WIDTH {
        2 => 0x7c00,
        4 => u64::from(f32::INFINITY.to_bits()),
        _ => f64::INFINITY.to_bits(),
    };
    magnitude < infinity
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
    fn spread_values_are_distinct_and_have_other_ranks_in_each_variant() {
        use rand::SeedableRng as _;
        let mut captured: Vec<[u8; 4]> =
            (-500..=500_i16).map(|at| (f32::from(at) / 7.0).to_le_bytes()).collect();
        captured[700] = captured[701];
        let value = |element: [u8; 4]| f32::from_le_bytes(element);
        let mut medians = Vec::new();
        let mut maxima = Vec::new();
        for seed in 0..32 {
            let mut drawn = captured.clone();
            assert!(spread(&captured, &mut drawn, &mut SmallRng::seed_from_u64(seed)));
            assert!(drawn.is_sorted_by(|&one, &next| value(one) < value(next)), "distinct, smallest first");
            assert!(value(captured[0]) <= value(drawn[0]) && value(drawn[1000]) <= value(captured[1000]));
            medians.push(value(drawn[500]));
            maxima.push(value(drawn[1000]));
        }
        let span = |all: &[f32]| {
            let bounds =
                all.iter().fold((f32::MAX, f32::MIN), |(low, high), &it| (low.min(it), high.max(it)));
            (bounds.1 - bounds.0) / (value(captured[1000]) - value(captured[0]))
        };
        assert!(0.4 < span(&medians), "the medians span {} of the range", span(&medians));
        assert!(0.1 < span(&maxima), "the largest values span {} of the range", span(&maxima));
    }

    #[test]
    fn few_values_are_spread_within_their_range() {
        use rand::SeedableRng as _;
        for count in [2_u8, 3, 5] {
            let captured: Vec<[u8; 4]> = (1..=count).map(|at| (f32::from(at) / 2.0).to_le_bytes()).collect();
            for seed in 0..64 {
                // Each of these values must be overwritten.
                let mut drawn = vec![0.75_f32.to_le_bytes(); captured.len()];
                assert!(spread(&captured, &mut drawn, &mut SmallRng::seed_from_u64(seed)));
                let drawn: Vec<f32> = drawn.into_iter().map(f32::from_le_bytes).collect();
                assert!(drawn.iter().all(|it| (0.5..=f32::from(count) / 2.0).contains(it)), "{drawn:?}");
                assert!(!drawn.contains(&0.75) && drawn.is_sorted(), "{drawn:?}");
            }
        }
    }

    #[test]
    fn values_that_are_often_equal_or_infinite_are_not_spread() {
        use rand::SeedableRng as _;
        let random = &mut SmallRng::seed_from_u64(1);
        for values in
            [vec![1.0_f32, 1.0, 2.5], vec![1.5, 2.5, f32::INFINITY], vec![f32::NEG_INFINITY, 1.5], vec![]]
        {
            let captured: Vec<[u8; 4]> = values.iter().map(|it| it.to_le_bytes()).collect();
            let mut drawn = captured.clone();
            assert!(!spread(&captured, &mut drawn, random), "{values:?}");
            assert_eq!(drawn, captured);
        }
        // In float16, and in float64.
        let half = [1.5, 2.5, f32::INFINITY].map(|it| half::f16::from_f32(it).to_le_bytes());
        assert!(!spread(&half, &mut half.clone(), random));
        let double = [1.5, 2.5, f64::INFINITY].map(f64::to_le_bytes);
        assert!(!spread(&double, &mut double.clone(), random));
        let finite = [1.5, 2.5, f64::from(f32::MAX)].map(f64::to_le_bytes);
        assert!(spread(&finite, &mut finite.clone(), random));
    }

    #[test]
    fn crowded_values_are_moved_apart_within_the_range() {
        let top = 0x3c05_u16;
        let mut sorted = [0x3c04, 0x3c04, 0x3c04, 0x3c05_u16].map(u16::to_le_bytes);
        make_distinct(&mut sorted, order(top.to_le_bytes()));
        assert_eq!(sorted.map(u16::from_le_bytes), [0x3c02, 0x3c03, 0x3c04, 0x3c05]);
        let around_zero = [-1.5_f32, -f32::from_bits(1), 0.0, 1.5].map(f32::to_le_bytes);
        assert!(around_zero.is_sorted_by(|&one, &next| order(one) < order(next)));
        assert_eq!(around_zero.map(|it| of_order::<4>(order(it))), around_zero);
        let mut zeros = [-0.0_f32, 0.0, 1.5].map(f32::to_le_bytes);
        make_distinct(&mut zeros, order(1.5_f32.to_le_bytes()));
        let zeros = zeros.map(f32::from_le_bytes);
        assert!(zeros[0] < zeros[1] && zeros[1] < zeros[2], "the two zeros are equal: {zeros:?}");
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
