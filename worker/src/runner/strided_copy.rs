//! Copies a tensor to memory in which the tensor has other strides.

use super::abi::DataType;

/// One axis of a tensor, or several axes that can be copied as if they were one. Strides are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: isize,
    from: isize,
    to: isize,
    /// The number that its first axis has in the tensor.
    number: usize,
}

/// A copy between two tensors with the same shape and dtype. If the target is expanded along an axis (its stride is 0),
/// the source must have equal elements along this axis.
pub(super) struct StridedCopy {
    dtype: DataType,
    axes: Vec<Axis>,
}

impl StridedCopy {
    /// The strides `from` and `to` are in elements, and have the length of `shape`.
    pub(super) fn new(dtype: DataType, shape: &[i64], from: &[i64], to: &[i64]) -> Self {
        let narrow = |value: i64| isize::try_from(value).unwrap_or(0);
        let bytes = |stride: i64| narrow(stride).wrapping_mul(dtype.bytes().cast_signed());
        let mut axes: Vec<Axis> = Vec::with_capacity(shape.len());
        for (number, ((&size, &from), &to)) in shape.iter().zip(from).zip(to).enumerate() {
            let axis = Axis { size: narrow(size), from: bytes(from), to: bytes(to), number };
            if axis.size == 1 {
                continue;
            }
            match axes.last_mut() {
                // The outer axis continues this one, because its step is as long as this whole axis, in the source and
                // in the target. So the two can be copied as one axis.
                Some(outer)
                    if axis.to != 0
                        && outer.from == axis.from.wrapping_mul(axis.size)
                        && outer.to == axis.to.wrapping_mul(axis.size) =>
                {
                    *outer = Axis { size: outer.size.wrapping_mul(axis.size), number: outer.number, ..axis };
                }
                _ => axes.push(axis),
            }
        }
        Self { dtype, axes }
    }

    /// Copies all elements. If the target is expanded along an axis on which the source has different elements, returns
    /// that axis, and otherwise `None`.
    ///
    /// # Safety
    ///
    /// The addresses must be those of the first element of each tensor, and all other elements must be where the
    /// strides say.
    pub(super) unsafe fn run(&self, from: *const u8, to: *mut u8) -> Option<usize> {
        // SAFETY: the caller's promise.
        unsafe { self.along(&self.axes, from, to, false) }
    }

    /// Copies the elements along the remaining axes, or compares them if `compare` is true because they are already
    /// copied.
    ///
    /// # Safety
    ///
    /// Both addresses must be those of the first element that is to be copied or compared.
    unsafe fn along(&self, axes: &[Axis], from: *const u8, to: *mut u8, compare: bool) -> Option<usize> {
        let bytes = self.dtype.bytes();
        let Some((&Axis { size, from: from_step, to: to_step, number }, inner)) = axes.split_first() else {
            // SAFETY: both addresses are those of one element.
            return unsafe {
                if compare {
                    let [from, to] = [from, to.cast_const()].map(|at| std::slice::from_raw_parts(at, bytes));
                    (!are_equal(self.dtype, from, to)).then_some(0)
                } else {
                    std::ptr::copy(from, to, bytes);
                    None
                }
            };
        };
        if inner.is_empty() && !compare && to_step != 0 {
            let step = bytes.cast_signed();
            // SAFETY: `size` elements of this size lie at these distances, in the source and in the target.
            unsafe {
                match bytes {
                    _ if from_step == step && to_step == step => {
                        std::ptr::copy(from, to, size.cast_unsigned() * bytes);
                    }
                    1 => copy_row::<u8>(size, from, from_step, to, to_step),
                    2 => copy_row::<u16>(size, from, from_step, to, to_step),
                    4 => copy_row::<u32>(size, from, from_step, to, to_step),
                    8 => copy_row::<u64>(size, from, from_step, to, to_step),
                    16 => copy_row::<u128>(size, from, from_step, to, to_step),
                    // No dtype has another size.
                    _ => {}
                }
            }
            return None;
        }
        (0..size).find_map(|index| {
            let again = to_step == 0 && 0 < index;
            let (from, to) = (from.wrapping_offset(from_step * index), to.wrapping_offset(to_step * index));
            // SAFETY: these are the first elements with this index along the axis.
            let different = unsafe { self.along(inner, from, to, compare || again) };
            different.map(|found| if again { number } else { found })
        })
    }
}

/// # Safety
///
/// `size` elements must lie at these distances, in the source and in the target.
unsafe fn copy_row<T>(size: isize, from: *const u8, from_step: isize, to: *mut u8, to_step: isize) {
    for index in 0..size {
        let (from, to) = (from.wrapping_offset(from_step * index), to.wrapping_offset(to_step * index));
        // SAFETY: the caller's promise; unaligned accesses need no alignment.
        unsafe { to.cast::<T>().write_unaligned(from.cast::<T>().read_unaligned()) };
    }
}

/// Returns true if two elements are equal apart from rounding. Floats may differ by 8 times the relative precision of
/// their type, and NaN equals NaN. The glue code for torch applies the same rule.
fn are_equal(dtype: DataType, one: &[u8], other: &[u8]) -> bool {
    const ROUNDING: f64 = 8.0;
    type Decode = fn(&[u8]) -> f64;
    let (decode, bytes, precision): (Decode, usize, f64) = match (dtype.code, dtype.bits) {
        (2, 64) | (5, 128) => (|it| it.try_into().map_or(f64::NAN, f64::from_ne_bytes), 8, f64::EPSILON),
        (2, 32) | (5, 64) => {
            (|it| it.try_into().map_or(f64::NAN, |it| f32::from_ne_bytes(it).into()), 4, f32::EPSILON.into())
        }
        (2, 16) | (5, 32) => (
            |it| it.try_into().map_or(f64::NAN, |it| half::f16::from_ne_bytes(it).into()),
            2,
            half::f16::EPSILON.into(),
        ),
        (4, 16) => (
            |it| it.try_into().map_or(f64::NAN, |it| half::bf16::from_ne_bytes(it).into()),
            2,
            half::bf16::EPSILON.into(),
        ),
        _ => return one == other,
    };
    one == other
        || one.chunks_exact(bytes).zip(other.chunks_exact(bytes)).all(|(one, other)| {
            let (one, other) = (decode(one), decode(other));
            // This is separate, because an infinity has no finite distance from another value.
            one == other
                || (one.is_nan() && other.is_nan())
                || (other.is_finite() && (one - other).abs() <= ROUNDING * precision * other.abs())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOAT: DataType = DataType { code: 2, bits: 32, lanes: 1 };

    #[test]
    fn axes_that_lie_one_after_another_are_copied_like_one() {
        let sizes = |shape: &[i64], from: &[i64], to: &[i64]| {
            StridedCopy::new(FLOAT, shape, from, to).axes.iter().map(|axis| axis.size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(&[2, 3, 4], &[12, 4, 1], &[12, 4, 1]), [24]);
        assert_eq!(sizes(&[5, 1], &[1, 1], &[1, 7]), [5], "an axis of size 1 is left out");
        assert_eq!(sizes(&[2, 3, 4], &[12, 4, 1], &[20, 4, 1]), [2, 12]);
        assert_eq!(sizes(&[2, 3], &[1, 2], &[3, 1]), [2, 3]);
        assert_eq!(sizes(&[2, 3], &[0, 0], &[0, 0]), [2, 3], "expanded axes keep their numbers");
    }

    #[test]
    fn every_element_is_copied_for_each_size_and_order_of_axes() {
        let shape = [3_i64, 1, 4, 2];
        let orders = [[8_i64, 8, 2, 1], [1, 24, 3, 12], [2, 2, 6, 1], [8, 1, 1, 4]];
        for (bits, lanes) in [(8, 1), (16, 1), (32, 1), (64, 1), (128, 1), (4, 2)] {
            let dtype = DataType { code: 0, bits, lanes };
            let bytes = dtype.bytes();
            for (from, to) in orders.iter().flat_map(|from| orders.iter().map(move |to| (from, to))) {
                let source: Vec<u8> =
                    (0..24 * bytes).map(|at| u8::try_from(at % 251).expect("small")).collect();
                let mut target = vec![255_u8; 24 * bytes];
                let copy = StridedCopy::new(dtype, &shape, from, to);
                // SAFETY: both have 24 elements, and the strides in each order reach exactly these elements.
                assert_eq!(unsafe { copy.run(source.as_ptr(), target.as_mut_ptr()) }, None);
                let at = |stride: &[i64; 4], index: [i64; 3]| {
                    let [a, c, d] = index;
                    usize::try_from(a * stride[0] + c * stride[2] + d * stride[3]).expect("small") * bytes
                };
                for index in 0..24 {
                    let index = [index / 8, index / 2 % 4, index % 2];
                    let (from, to) = (at(from, index), at(to, index));
                    assert_eq!(
                        target[to..to + bytes],
                        source[from..from + bytes],
                        "{bits} {from:?} {to:?} {index:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn elements_along_an_expanded_axis_may_differ_by_rounding() {
        let run = |values: [f32; 4]| {
            let mut target = [9.0_f32; 2];
            let copy = StridedCopy::new(FLOAT, &[2, 2], &[2, 1], &[0, 1]);
            // SAFETY: the source has four elements, and the target two.
            let different = unsafe { copy.run(values.as_ptr().cast(), target.as_mut_ptr().cast()) };
            (different, target)
        };
        assert_eq!(run([1.0, 2.0, 1.0, 2.0]), (None, [1.0, 2.0]));
        assert_eq!(run([1.0, 2.0, 1.0 + f32::EPSILON, 2.0]).0, None);
        assert_eq!(run([0.0, f32::INFINITY, -0.0, f32::INFINITY]).0, None);
        assert_eq!(run([1.0, 2.0, 1.0 + 9.0 * f32::EPSILON, 2.0]).0, Some(0));
        assert_eq!(run([1.0, f32::INFINITY, 1.0, 2.0]).0, Some(0));
        let (different, target) = run([f32::NAN, 2.0, -f32::NAN, 2.0]);
        assert!(different.is_none() && target[0].is_nan());
    }

    #[test]
    fn other_types_are_compared_by_their_bytes_or_their_values() {
        let dtype = |code, bits| DataType { code, bits, lanes: 1 };
        let close = |dtype, one: &[u8], other: &[u8]| are_equal(dtype, one, other);
        let near = |value: f64| [value.to_ne_bytes(), (value + 4.0 * f64::EPSILON).to_ne_bytes()];
        let [one, other] = near(1.0);
        assert!(close(dtype(2, 64), &one, &other) && !close(dtype(0, 64), &one, &other));
        let [one, other] =
            [half::bf16::from_f32(1.0), half::bf16::from_f32(1.0 + 1.0 / 32.0)].map(half::bf16::to_ne_bytes);
        assert!(
            close(dtype(4, 16), &one, &other)
                && !close(dtype(2, 16), &one, &half::f16::from_f32(9.0).to_ne_bytes())
        );
        let pair = |imaginary: f32| [1.0_f32.to_ne_bytes(), imaginary.to_ne_bytes()].concat();
        assert!(
            close(dtype(5, 64), &pair(2.0), &pair(2.0 + f32::EPSILON))
                && !close(dtype(5, 64), &pair(2.0), &pair(3.0))
        );
    }
}
