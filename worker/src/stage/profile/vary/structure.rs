//! Recognises properties of an input's values that a correct kernel may rely on, and that new values would break. This
//! file does no I/O.

use opt_shared::capture::{DType, Kind, Tensor};
use opt_shared::units::to_index;

use super::order::Order;
use crate::judge::element;

/// The minimum length of rows that are tested for order, sum or norm, and the minimum side of matrices that are tested.
const SHORTEST_ROW: usize = 3;
/// The minimum number of elements in tensors that are tested for having only two values, and in parts that are tested
/// for equality. Smaller tensors and parts can have these properties by chance.
const SMALLEST: usize = 8;
/// The maximum number of columns that are tested for order.
const MOST_COLUMNS: usize = 8;
/// The limit on the deviation of a row's sum or norm from 1. It allows for rounding: in half precision, each element is
/// rounded by up to one part in two thousand.
const NEAR_ONE: f64 = 0.02;

/// A property of an input's values.
///
/// - `Constant`: all values are equal.
/// - `TwoValues`: only two different values occur.
/// - `Mask`: some values are negative infinity or the lowest number.
/// - `Sorted`, `Probabilities`, `LogProbabilities`, `UnitRows`: the property holds for every row.
/// - `Symmetric`, `Triangular`, `Dominant`: the property holds for every matrix. In each row of a `Dominant` matrix,
///   the diagonal element is larger than all others together, so that systems of equations can be solved accurately.
/// - `Repeated`: along some axis, at least half of the slices are equal to another slice, or each row consists of two
///   equal halves or of pairs of equal elements.
/// - `OrderedColumns`: in every row, the element of one column does not exceed the element of another, and this is not
///   by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Structure {
    Constant,
    Mask,
    Sorted,
    Probabilities,
    UnitRows,
    Symmetric,
    Triangular,
    Dominant,
    TwoValues,
    Repeated,
    OrderedColumns,
    LogProbabilities,
}

/// Returns the first property that is found. `bytes` are the tensor's own elements in the order of memory. If the
/// tensor is not contiguous, they are treated as one row.
pub(super) fn of(tensor: &Tensor, bytes: &[u8]) -> Option<Structure> {
    let dtype = tensor.dtype;
    let width = dtype.element_len();
    if bytes.chunks_exact(width).all(|it| it == &bytes[..width]) {
        return Some(Structure::Constant);
    }
    let elements = || bytes.chunks_exact(width);
    let other = elements().find(|it| *it != &bytes[..width]);
    if SMALLEST * width <= bytes.len() && elements().all(|it| it == &bytes[..width] || Some(it) == other) {
        return Some(Structure::TwoValues);
    }
    let dense = tensor.is_contiguous();
    let row = match tensor.shape.last() {
        Some(&last) if dense => to_index(last),
        _ => bytes.len() / width,
    };
    let each_row = |holds: &dyn Fn(&[u8]) -> bool| {
        SHORTEST_ROW <= row && bytes.chunks_exact((row * width).max(width)).all(holds)
    };
    if each_row(&|row| {
        values(dtype, row).is_sorted() || values(dtype, row).is_sorted_by(|one, other| other <= one)
    }) {
        return Some(Structure::Sorted);
    }
    let is_integer = dtype.kind() == Kind::Integer;
    let lowest = lowest(dtype);
    if !is_integer && values(dtype, bytes).any(|value| value <= lowest) {
        return Some(Structure::Mask);
    }
    if !dense {
        return None;
    }
    if !is_integer && let Some(found) = of_floats(tensor, bytes, &each_row) {
        return Some(found);
    }
    if is_repeated(tensor, bytes) {
        return Some(Structure::Repeated);
    }
    has_ordered_columns(dtype, bytes, row).then_some(Structure::OrderedColumns)
}

/// A function that returns true if a test succeeds for every row of a tensor.
type EachRow<'a> = dyn Fn(&dyn Fn(&[u8]) -> bool) -> bool + 'a;

/// Returns the property of rows or matrices of floats, if they have one.
fn of_floats(tensor: &Tensor, bytes: &[u8], each_row: &EachRow<'_>) -> Option<Structure> {
    let dtype = tensor.dtype;
    let near_one = |value: f64| (value - 1.0).abs() < NEAR_ONE;
    if each_row(&|row| values(dtype, row).all(|value| 0.0 <= value) && near_one(values(dtype, row).sum())) {
        return Some(Structure::Probabilities);
    }
    let exp_sum = |row: &[u8]| values(dtype, row).map(f64::exp).sum();
    if each_row(&|row| values(dtype, row).all(|value| value <= 0.0) && near_one(exp_sum(row))) {
        return Some(Structure::LogProbabilities);
    }
    if each_row(&|row| near_one(values(dtype, row).map(|value| value * value).sum::<f64>().sqrt())) {
        return Some(Structure::UnitRows);
    }
    of_matrices(tensor, bytes)
}

/// Returns the values of a row or a tensor. They are decoded one by one, because a list of f64 would need much more
/// memory than the input.
fn values(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.chunks_exact(dtype.element_len()).map(move |element| element::value(dtype, element))
}

/// Returns the lowest finite value of a float type.
fn lowest(dtype: DType) -> f64 {
    match dtype {
        DType::Float16 => f64::from(half::f16::MIN),
        DType::BFloat16 => f64::from(half::bf16::MIN),
        DType::Float32 => f64::from(f32::MIN),
        _ => f64::MIN,
    }
}

/// Returns true if, along some axis, at least half of the slices are equal to another slice, or if each row consists of
/// two equal halves or of pairs of equal elements.
fn is_repeated(tensor: &Tensor, bytes: &[u8]) -> bool {
    let width = tensor.dtype.element_len();
    let shape: Vec<usize> = tensor.shape.iter().map(|&length| to_index(length)).collect();
    let row = shape.last().copied().unwrap_or(1) * width;
    let rows = || bytes.chunks_exact(row);
    if SMALLEST * width <= row && row.is_multiple_of(2 * width) {
        let has_equal_halves = |row: &[u8]| row[..row.len() / 2] == row[row.len() / 2..];
        let has_equal_pairs =
            |row: &[u8]| row.chunks_exact(2 * width).all(|pair| pair[..width] == pair[width..]);
        if rows().all(has_equal_halves) || rows().all(has_equal_pairs) {
            return true;
        }
    }
    (0..shape.len()).any(|axis| {
        let count = shape[axis];
        let inner = shape[axis + 1..].iter().product::<usize>() * width;
        if count < 2 || bytes.len() / width / count < SMALLEST {
            return false;
        }
        let mut digests = vec![0_u32; count];
        let mut is_zero = vec![true; count];
        for (number, line) in bytes.chunks_exact(inner).enumerate() {
            let digest = &mut digests[number % count];
            is_zero[number % count] &= line.iter().all(|byte| *byte == 0);
            *digest = line.chunks(4).fold(*digest, |digest, piece| {
                let mut word = [0; 4];
                word[..piece.len()].copy_from_slice(piece);
                // Multiplying by an odd number loses no information, and the rotation moves high bits down.
                (digest.rotate_left(13) ^ u32::from_le_bytes(word)).wrapping_mul(0x9e37_79b1)
            });
        }
        // Parts that consist of zeros, such as the unused end of a cache, are trivially equal, so they are left out.
        let mut used: Vec<u32> = digests
            .into_iter()
            .zip(is_zero)
            .filter(|(_, is_zero)| !is_zero)
            .map(|(digest, _)| digest)
            .collect();
        used.sort_unstable();
        let single = used.chunk_by(|one, next| one == next).filter(|equal| equal.len() == 1).count();
        !used.is_empty() && single <= used.len() / 2
    })
}

/// Returns true if one column nowhere exceeds another, and this is not by chance ([`Order`]).
fn has_ordered_columns(dtype: DType, bytes: &[u8], row: usize) -> bool {
    let width = dtype.element_len();
    if !(2..=MOST_COLUMNS).contains(&row) {
        return false;
    }
    let at = |row: &[u8], column: usize| element::value(dtype, &row[column * width..][..width]);
    let are_ordered = |one: usize, other: usize| {
        let mut order = Order::new();
        let mut rows = bytes.chunks_exact(row * width);
        rows.all(|row| {
            order.add(at(row, one), at(row, other));
            order.is_possible()
        }) && order.is_a_relation()
    };
    (0..row).any(|one| (0..one).any(|other| are_ordered(one, other)))
}

/// Returns the property of square matrices in the last two dimensions, if they have one.
fn of_matrices(tensor: &Tensor, bytes: &[u8]) -> Option<Structure> {
    let [.., height, side] = tensor.shape[..] else { return None };
    let (width, side) = (tensor.dtype.element_len(), to_index(side));
    if height != side as u64 || side < SHORTEST_ROW {
        return None;
    }
    let matrices = || bytes.chunks_exact(side * side * width);
    let at = |matrix: &[u8], row: usize, column: usize| {
        element::value(tensor.dtype, &matrix[(row * side + column) * width..][..width])
    };
    let each_pair = |holds: &dyn Fn(f64, f64) -> bool| {
        matrices().all(|matrix| {
            (1..side)
                .all(|row| (0..row).all(|column| holds(at(matrix, row, column), at(matrix, column, row))))
        })
    };
    if each_pair(&|below, above| below == above) {
        return Some(Structure::Symmetric);
    }
    if each_pair(&|below, _| below == 0.0) || each_pair(&|_, above| above == 0.0) {
        return Some(Structure::Triangular);
    }
    let is_dominant = |matrix: &[u8], row: usize| {
        let others = (0..side).filter(|&column| column != row).map(|column| at(matrix, row, column).abs());
        others.sum::<f64>() < at(matrix, row, row).abs()
    };
    if matrices().all(|matrix| (0..side).all(|row| is_dominant(matrix, row))) {
        return Some(Structure::Dominant);
    }
    None
}

#[cfg(test)]
mod tests {
    use opt_shared::ids::StorageId;

    use super::*;

    fn tensor(dtype: DType, shape: &[u64]) -> Tensor {
        Tensor::dense(dtype, shape, StorageId(0))
    }

    fn floats(shape: &[u64], values: &[f32]) -> Option<Structure> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        of(&tensor(DType::Float32, shape), &bytes)
    }

    fn integers(shape: &[u64], values: &[i64]) -> Option<Structure> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        of(&tensor(DType::Int64, shape), &bytes)
    }

    #[test]
    fn structure_that_kernels_rely_on_is_recognised() {
        let inf = f32::NEG_INFINITY;
        for (shape, values, expected) in [
            (&[2, 3][..], &[1.0, -2.0, 0.5, 3.0, 0.0, 4.0][..], None),
            (&[4], &[2.0; 4], Some(Structure::Constant)),
            (&[2, 3], &[0.0, inf, 0.5, 0.0, 0.0, inf], Some(Structure::Mask)),
            (&[2, 3], &[1.0, 2.0, 2.0, 9.0, 3.0, 1.0], Some(Structure::Sorted)),
            (&[2, 3], &[0.2, 0.5, 0.3, 0.1, 0.1, 0.8], Some(Structure::Probabilities)),
            (&[2, 3], &[-0.6, 0.8, 0.0, 0.0, -1.0, 0.0], Some(Structure::UnitRows)),
            (&[3, 3], &[1.0, 5.0, 2.0, 5.0, 1.0, 7.0, 2.0, 7.0, 0.0], Some(Structure::Symmetric)),
            (&[3, 3], &[1.0, 5.0, 2.0, 0.0, 1.0, 7.0, 0.0, 0.0, 2.0], Some(Structure::Triangular)),
            (&[3, 3], &[1.0, 0.0, 0.0, 5.0, 1.0, 0.0, 2.0, 9.0, 2.0], Some(Structure::Triangular)),
            (&[3, 3], &[6.0, 2.0, 1.0, 0.5, -3.0, 2.0, 1.0, 0.0, 1.5], Some(Structure::Dominant)),
            (&[3, 3], &[6.0, 2.0, 1.0, 0.5, -3.0, 2.5, 1.0, 0.0, 1.5], None),
            (&[2, 3], &[0.0, f32::MIN, 0.5, 0.0, 0.0, 1.0], Some(Structure::Mask)),
            (&[2, 3], &[-1.39, -0.69, -1.39, -20.0, 0.0, -30.0], Some(Structure::LogProbabilities)),
            (&[2, 4], &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0], Some(Structure::TwoValues)),
            (&[2, 4], &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 2.0], None),
            // Seven elements can have only two values by chance.
            (&[7], &[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0], None),
            // Rows of two values are not tested for order.
            (&[2, 2], &[1.0, 3.0, 9.0, 4.0], None),
        ] {
            assert_eq!(floats(shape, values), expected, "{values:?}");
        }
    }

    #[test]
    fn each_matrix_and_each_row_must_have_the_structure() {
        let symmetric = [1.0, 5.0, 2.0, 5.0, 1.0, 7.0, 2.0, 7.0, 0.0];
        let triangular = [1.0, 5.0, 2.0, 0.0, 1.0, 7.0, 0.0, 0.0, 2.0];
        let dominant = [6.0, 2.0, 1.0, 0.5, -3.0, 2.0, 1.0, 0.0, 1.5];
        let mixed = [4.0, 1.0, 6.0, 7.0, 2.0, 9.0, 8.0, 3.0, 5.0];
        for (shape, values, expected) in [
            (&[2, 3, 3][..], [symmetric, symmetric].concat(), Some(Structure::Symmetric)),
            (&[2, 3, 3], [symmetric, mixed].concat(), None),
            (&[2, 3, 3], [mixed, symmetric].concat(), None),
            (&[2, 3, 3], [triangular, triangular].concat(), Some(Structure::Triangular)),
            (&[2, 3, 3], [triangular, mixed].concat(), None),
            (&[2, 3, 3], [dominant, dominant].concat(), Some(Structure::Dominant)),
            (&[2, 3, 3], [dominant, mixed].concat(), None),
            (&[3, 3], mixed.to_vec(), None),
            (
                &[4, 4],
                vec![1.0, 9.0, 3.0, 4.0, 9.0, 1.0, 6.0, 7.0, 3.0, 6.0, 1.0, 8.0, 4.0, 7.0, 8.0, 1.0],
                Some(Structure::Symmetric),
            ),
            // These would be symmetric if they were square.
            (&[2, 3], vec![1.0, 5.0, 2.0, 5.0, 1.0, 7.0], None),
            (&[3, 2], vec![1.0, 5.0, 5.0, 1.0, 2.0, 7.0], None),
            // Smaller matrices are often symmetric by chance.
            (&[2, 2], vec![1.0, 5.0, 5.0, 2.0], None),
            (&[9], symmetric.to_vec(), None),
            // One row does not sum to 1, or has negative elements.
            (&[2, 3], vec![0.2, 0.5, 0.3, 1.0, 5.0, 2.0], None),
            (&[2, 3], vec![0.2, 0.5, 0.2, 0.1, 0.7, 0.1], None),
            (&[2, 3], vec![0.5, 0.7, -0.2, 0.1, 0.1, 0.8], None),
            // One row does not have the norm 1.
            (&[2, 3], vec![-0.6, 0.8, 0.0, 0.0, -2.0, 1.0], None),
        ] {
            assert_eq!(floats(shape, &values), expected, "{shape:?} {values:?}");
        }
    }

    /// Returns a different value for each number.
    fn value(number: u16) -> f32 {
        f32::from(u16::try_from(u32::from(number) * 7919 % 1013).expect("small")) / 3.0 + 1.0
    }

    #[test]
    fn equal_parts_are_recognised_along_each_axis_and_in_each_row() {
        for (shape, element, expected) in [
            // All elements differ.
            (&[4, 8][..], (|at| at) as fn(u16) -> u16, None),
            (&[2, 8], |at| at / 8 * 8 + at % 4, Some(Structure::Repeated)),
            (&[2, 8], |at| at / 2, Some(Structure::Repeated)),
            // The halves of one row are not equal.
            (&[2, 8], |at| if at < 8 { at % 4 } else { at }, None),
            (&[1, 9], |at| at % 3, None),
            // Rows of four and of six elements are too short, and rows of nine have no pairs.
            (&[3, 4], |at| at / 4 * 4 + at % 2, None),
            (&[3, 6], |at| at / 2, None),
            (&[1, 9], |at| at / 2, None),
            // Three of four rows are equal, or two of four, or two of five.
            (&[4, 9], |at| if at < 27 { at % 9 } else { at }, Some(Structure::Repeated)),
            (&[4, 9], |at| if at < 18 { at % 9 } else { at }, Some(Structure::Repeated)),
            (&[5, 9], |at| if at < 18 { at % 9 } else { at }, None),
            // There are only two rows, or rows of eight elements.
            (&[2, 9], |at| at % 9, Some(Structure::Repeated)),
            (&[3, 8], |at| at % 8, Some(Structure::Repeated)),
            // Columns are equal, or slices along the middle axis.
            (&[9, 4], |at| at / 4 * 4 + at % 4 % 3, Some(Structure::Repeated)),
            (&[2, 3, 5], |at| at / 15 * 5 + at % 5, Some(Structure::Repeated)),
            // Parts of zeros are left out.
            (&[4, 9], |at| if at < 18 { 2000 } else { at }, None),
            // Each part has only seven elements, or the equal parts are not rows.
            (&[3, 7], |at| at % 7, None),
            (&[24], |at| at % 8, None),
        ] {
            let count: u16 = shape.iter().product::<u64>().try_into().expect("small");
            let number = |at| Some(element(at)).filter(|&it| it != 2000);
            let values: Vec<f32> = (0..count).map(|at| number(at).map_or(0.0, value)).collect();
            assert_eq!(floats(shape, &values), expected, "{shape:?} {values:?}");
            let whole: Vec<i64> =
                (0..count).map(|at| number(at).map_or(0, |it| i64::from(it) * 7919 % 1013 + 1)).collect();
            assert_eq!(integers(shape, &whole), expected, "{shape:?} {whole:?}");
        }
    }

    #[test]
    fn ordered_columns_are_recognised_if_their_ranges_overlap() {
        let rows = |count: u16, row: fn(f32, f32) -> [f32; 3]| {
            let values: Vec<f32> = (0..count).flat_map(|at| row(value(2 * at), value(2 * at + 1))).collect();
            floats(&[u64::from(count), 3], &values)
        };
        let interval = |middle: f32, length: f32| [middle, -length, middle + length];
        assert_eq!(rows(60, interval), Some(Structure::OrderedColumns));
        assert_eq!(rows(10, interval), None, "few rows are ordered by chance");
        assert_eq!(rows(60, |one, other| [one + other, -other, one]), Some(Structure::OrderedColumns));
        assert_eq!(rows(60, |one, other| [one, -other, one + 1000.0]), None, "the ranges do not overlap");
        assert_eq!(rows(60, |one, other| [one, -other, other]), None);
    }

    #[test]
    fn inputs_that_are_not_contiguous_are_tested_for_order_and_infinities_only() {
        let of_columns = |values: &[f32]| {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            of(&Tensor { stride: vec![1, 3], ..tensor(DType::Float32, &[3, 3]) }, &bytes)
        };
        for (values, expected) in [
            ([1.0, 5.0, 2.0, 5.0, 1.0, 7.0, 2.0, 7.0, 0.0], None),
            ([0.2, 0.5, 0.3, 0.1, 0.8, 0.1, 0.3, 0.4, 0.3], None),
            // Each column is sorted.
            ([1.0, 2.0, 3.0, 0.0, 1.0, 2.0, 5.0, 6.0, 7.0], None),
            ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], Some(Structure::Sorted)),
            ([1.0, f32::NEG_INFINITY, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0], Some(Structure::Mask)),
        ] {
            assert_eq!(of_columns(&values), expected, "{values:?}");
        }
    }

    #[test]
    fn integers_are_recognised_as_constant_or_sorted() {
        assert_eq!(integers(&[4], &[0, 3, 3, 9]), Some(Structure::Sorted));
        assert_eq!(integers(&[4], &[7, 7, 7, 7]), Some(Structure::Constant));
        assert_eq!(integers(&[4], &[5, 0, 9, 2]), None);
        // If one row is not sorted, the input does not count as sorted.
        assert_eq!(integers(&[2, 3], &[0, 1, 2, 5, 4, 6]), None);
    }
}
