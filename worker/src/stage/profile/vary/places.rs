//! Finds the elements in an input's memory that belong to its tensor. This file does no I/O.
//!
//! A view, such as a column of a table, has other elements between its own. The values of these other elements must not
//! be moved into the view, because they may be out of range for it.

use opt_shared::capture::Tensor;
use opt_shared::units::to_index;

#[derive(Debug)]
pub(super) struct Places {
    /// The sizes of the axes, from the widest stride to the narrowest. Axes of one element are left out, and so are
    /// axes that `expand` added, because these have no elements of their own.
    pub(super) shape: Vec<usize>,
    strides: Vec<usize>,
    /// True if other elements lie between those of the tensor.
    pub(super) has_gaps: bool,
}

impl Places {
    /// Finds the places of a tensor's elements. If elements overlap, as those of a sliding window do, all of them are
    /// treated as one axis.
    pub(super) fn of(tensor: &Tensor) -> Self {
        let axes = tensor.shape.iter().zip(&tensor.stride);
        let mut axes: Vec<(usize, usize)> = axes
            .filter(|&(&size, &stride)| 1 < size && stride != 0)
            .map(|(&size, &stride)| (to_index(stride), to_index(size)))
            .collect();
        axes.sort_unstable_by(|one, other| other.cmp(one));
        let all = to_index(tensor.extent_elements());
        let mut extent = 1;
        for &(stride, size) in axes.iter().rev() {
            if stride < extent {
                return Self { shape: vec![all], strides: vec![1], has_gaps: false };
            }
            extent += (size - 1) * stride;
        }
        let (strides, shape): (Vec<usize>, Vec<usize>) = axes.into_iter().unzip();
        let has_gaps = shape.iter().product::<usize>() < all;
        Self { shape, strides, has_gaps }
    }

    /// Returns the number of the tensor's distinct elements.
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns the positions of the elements in ascending order, counted from the first element.
    fn positions(&self) -> impl Iterator<Item = usize> {
        (0..self.elements()).map(|mut number| {
            let axes = self.shape.iter().zip(&self.strides).rev();
            axes.map(|(&size, &stride)| {
                let at = number % size;
                number /= size;
                at * stride
            })
            .sum()
        })
    }

    /// Removes the elements that do not belong to the tensor from `all`, which contains all elements from the tensor's
    /// first to its last.
    pub(super) fn gather(&self, all: &mut Vec<u8>, width: usize) {
        if self.has_gaps {
            for (number, at) in self.positions().enumerate() {
                all.copy_within(at * width..(at + 1) * width, number * width);
            }
            all.truncate(self.elements() * width);
        }
    }

    /// Writes the tensor's elements to their positions.
    pub(super) fn scatter(&self, elements: &[u8], all: &mut [u8], width: usize) {
        for (at, element) in self.positions().zip(elements.chunks_exact(width)) {
            all[at * width..(at + 1) * width].copy_from_slice(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::capture::DType;
    use opt_shared::ids::StorageId;

    use super::*;

    fn places(shape: &[u64], stride: &[u64]) -> Places {
        Places::of(&Tensor {
            stride: stride.to_vec(),
            storage_offset: 3,
            ..Tensor::dense(DType::UInt8, shape, StorageId(0))
        })
    }

    #[test]
    fn places_are_those_of_the_elements_of_the_view() {
        for (shape, stride, sizes, positions) in [
            (&[2, 3][..], &[3, 1][..], &[2, 3][..], None),
            (&[3, 2], &[1, 3], &[2, 3], None),
            (&[1, 4, 1], &[9, 1, 7], &[4], None),
            // These are a column of a table, and its first two columns.
            (&[4], &[3], &[4], Some(&[0, 3, 6, 9][..])),
            (&[3, 2], &[5, 1], &[3, 2], Some(&[0, 1, 5, 6, 10, 11])),
            (&[2, 3], &[1, 5], &[3, 2], Some(&[0, 1, 5, 6, 10, 11])),
            // These are expanded along the second axis.
            (&[4, 7], &[1, 0], &[4], None),
            (&[4, 7], &[2, 0], &[4], Some(&[0, 2, 4, 6])),
            // A window of three elements slides over five elements, and a window of three rows over four rows.
            (&[3, 3], &[1, 1], &[5], None),
            (&[2, 3, 2], &[2, 2, 1], &[8], None),
            // The next axis begins right after the end of the last, or overlaps its end.
            (&[2, 3], &[5, 2], &[2, 3], Some(&[0, 2, 4, 5, 7, 9])),
            (&[2, 3], &[4, 2], &[9], None),
            (&[2, 2, 3], &[10, 5, 2], &[2, 2, 3], Some(&[0, 2, 4, 5, 7, 9, 10, 12, 14, 15, 17, 19])),
            (&[2, 2, 3], &[9, 5, 2], &[19], None),
            // Axes of the same stride always overlap, and axes of one element never do.
            (&[1, 3], &[1, 1], &[3], None),
            (&[], &[], &[], None),
            (&[5, 5], &[0, 0], &[], None),
        ] {
            let found = places(shape, stride);
            assert_eq!(found.shape, sizes, "{shape:?} {stride:?}");
            assert_eq!(found.has_gaps, positions.is_some(), "{shape:?} {stride:?}");
            let expected = positions.map_or_else(|| (0..found.elements()).collect(), <[usize]>::to_vec);
            assert_eq!(found.positions().collect::<Vec<_>>(), expected, "{shape:?} {stride:?}");
        }
    }

    #[test]
    fn elements_are_gathered_and_scattered_around_the_others() {
        let column = places(&[3], &[2]);
        let gathered = |places: &Places, mut all: Vec<u8>, width| {
            places.gather(&mut all, width);
            all
        };
        assert_eq!(gathered(&column, vec![1, 1, 9, 9, 2, 2, 9, 9, 3, 3], 2), [1, 1, 2, 2, 3, 3]);
        let mut all = [1, 9, 2, 9, 3];
        column.scatter(&[5, 6, 7], &mut all, 1);
        assert_eq!(all, [5, 9, 6, 9, 7]);
        let mut all = [1, 1, 9, 9, 2, 2, 9, 9, 3, 3];
        column.scatter(&[4, 5, 6, 7, 8, 0], &mut all, 2);
        assert_eq!(all, [4, 5, 9, 9, 6, 7, 9, 9, 8, 0]);
        assert_eq!(gathered(&places(&[2, 2], &[1, 2]), vec![1, 2, 3, 4], 1), [1, 2, 3, 4]);
    }
}
