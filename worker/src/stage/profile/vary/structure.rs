//! Recognises structure in an input that a correct kernel may rely on, and that new values would break. Pure.

use opt_shared::capture::{DType, Kind, Tensor};
use opt_shared::units::to_index;

use crate::judge::element;

/// The length of the shortest rows that are tested for order, sum or norm, and the smallest side of matrices that are
/// tested.
const SHORTEST_ROW: usize = 3;
/// The largest deviation of a row's sum or norm from 1. Half precision rounds each element by up to one part in two
/// thousand.
const NEAR_ONE: f64 = 0.02;

/// A property of an input's values. In a `Constant` input, all are equal; in a `Mask`, some are negative infinity.
/// `Sorted`, `Probabilities` and `UnitRows` hold for every row, `Symmetric`, `Triangular` and `Dominant` for every
/// matrix. In each row of a `Dominant` matrix, the diagonal element is larger than all others together, so that systems
/// of equations can be solved accurately.
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
}

/// Returns the first structure found. `bytes` are the tensor's own elements in the order of memory. They count as one row
/// if the tensor is not contiguous.
pub(super) fn of(tensor: &Tensor, bytes: &[u8]) -> Option<Structure> {
    let dtype = tensor.dtype;
    let width = dtype.element_len();
    if bytes.chunks_exact(width).all(|it| it == &bytes[..width]) {
        return Some(Structure::Constant);
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
    if dtype.kind() == Kind::Integer {
        return None;
    }
    if values(dtype, bytes).any(|value| value == f64::NEG_INFINITY) {
        return Some(Structure::Mask);
    }
    if !dense {
        return None;
    }
    let near_one = |value: f64| (value - 1.0).abs() < NEAR_ONE;
    if each_row(&|row| values(dtype, row).all(|value| 0.0 <= value) && near_one(values(dtype, row).sum())) {
        return Some(Structure::Probabilities);
    }
    if each_row(&|row| near_one(values(dtype, row).map(|value| value * value).sum::<f64>().sqrt())) {
        return Some(Structure::UnitRows);
    }
    of_matrices(tensor, bytes)
}

/// The values of a row or a tensor, decoded one by one, because a list of f64 would need much more memory than the
/// input.
fn values(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f64> {
    bytes.chunks_exact(dtype.element_len()).map(move |element| element::value(dtype, element))
}

/// Returns the structure of square matrices in the last two dimensions.
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
            // One row has another sum.
            (&[2, 3], vec![0.2, 0.5, 0.3, 1.0, 5.0, 2.0], None),
            (&[2, 3], vec![0.2, 0.5, 0.2, 0.1, 0.7, 0.1], None),
            (&[2, 3], vec![0.5, 0.7, -0.2, 0.1, 0.1, 0.8], None),
            // One row has another norm.
            (&[2, 3], vec![-0.6, 0.8, 0.0, 0.0, -2.0, 1.0], None),
        ] {
            assert_eq!(floats(shape, &values), expected, "{shape:?} {values:?}");
        }
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
        // One unsorted row rules out the structure.
        assert_eq!(integers(&[2, 3], &[0, 1, 2, 5, 4, 6]), None);
    }
}
