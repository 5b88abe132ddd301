//! Finds long runs of zeros in an input, such as the padding after short sequences. They stay zero in every call. This
//! file does no I/O.

use std::ops::Range;

use opt_shared::capture::{DType, Kind};
use opt_shared::units::to_index;

/// The base of the minimum length of a long run. The minimum is this number of elements, plus one for each doubling of
/// the input's size. Shorter runs can occur by chance if half of the elements are zero, as in the output of a ReLU.
const LONG: usize = 16;
/// The share of zeros that an input must have for short runs at the ends of rows to be kept too, as its reciprocal.
const FEW_ZEROS: usize = 20;
/// The maximum number of runs that are kept. They take 64 KiB of memory.
const MOST_RUNS: usize = 4096;

/// The byte ranges of the long runs, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Zeros(Vec<Range<u64>>);

impl Zeros {
    /// Finds the long runs in `bytes`, which are floats or complex numbers. If zeros occur only at the ends of rows of
    /// `row` elements, short runs are included. Returns no runs if there are too many.
    pub(super) fn of(bytes: &[u8], dtype: DType, row: usize) -> Self {
        let width = dtype.element_len();
        let is_zero = |element: &[u8]| is_zero(dtype, element);
        let zeros = |elements: &[u8]| elements.chunks_exact(width).filter(|it| is_zero(it)).count();
        let at_the_end = |row: &[u8]| row.rchunks_exact(width).take_while(|it| is_zero(it)).count();
        let count = bytes.len() / width;
        let are_padded = 1 < row
            && count <= FEW_ZEROS * zeros(bytes)
            && bytes.chunks_exact(row * width).all(|row| zeros(row) == at_the_end(row));
        let shortest = if are_padded { 1 } else { LONG + count.max(1).ilog2() as usize };
        let mut runs = Vec::new();
        let (mut at, mut elements) = (0, bytes.chunks_exact(width).peekable());
        while elements.peek().is_some() {
            let mut length = 0;
            while elements.next_if(|it| is_zero(it)).is_some() {
                length += 1;
            }
            if shortest <= length && runs.len() == MOST_RUNS {
                return Self::default();
            }
            if shortest <= length {
                runs.push((at * width) as u64..((at + length) * width) as u64);
            }
            at += length;
            while elements.next_if(|it| !is_zero(it)).is_some() {
                at += 1;
            }
        }
        Self(runs)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Removes the runs from the input's bytes.
    pub(super) fn remove_from(&self, bytes: &mut Vec<u8>) {
        let (mut kept, mut from) = (0, 0);
        let end = (bytes.len(), bytes.len());
        for (start, end) in self.0.iter().map(|run| (to_index(run.start), to_index(run.end))).chain([end]) {
            bytes.copy_within(from..start, kept);
            kept += start - from;
            from = end;
        }
        bytes.truncate(kept);
    }

    /// Returns the first byte of the run that contains the byte before `end`, or `None` if no run contains this byte.
    pub(super) fn start_of_tail(&self, end: u64) -> Option<u64> {
        let run = self.0.get(self.0.partition_point(|run| run.end < end))?;
        (run.start < end).then_some(run.start)
    }

    /// Writes the zeros into a piece of the input. The piece begins at byte `at` of the input.
    pub(super) fn write(&self, at: u64, piece: &mut [u8]) {
        let end = at + piece.len() as u64;
        let first = self.0.partition_point(|run| run.end <= at);
        for run in self.0[first..].iter().take_while(|run| run.start < end) {
            piece[to_index(run.start.max(at) - at)..to_index(run.end.min(end) - at)].fill(0);
        }
    }
}

/// Returns true for zeros of either sign, because multiplying by a mask can produce negative zeros. For 8-bit floats,
/// returns true only for positive zeros, because some of these types have no negative zero.
fn is_zero(dtype: DType, element: &[u8]) -> bool {
    if dtype.element_len() == 1 {
        return element == [0];
    }
    let parts = if dtype.kind() == Kind::Complex { 2 } else { 1 };
    element.chunks_exact(element.len() / parts).all(|part| match part.split_last() {
        Some((sign, rest)) => sign & 0x7f == 0 && rest.iter().all(|it| *it == 0),
        None => true,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the start and the end of each run.
    fn zeros(bytes: &[u8], dtype: DType, row: usize) -> Vec<(u64, u64)> {
        Zeros::of(bytes, dtype, row).0.iter().map(|run| (run.start, run.end)).collect()
    }

    const ONE: DType = DType::Float8E5M2;
    const TWO: DType = DType::Float16;

    #[test]
    fn zeros_are_long_runs_or_ends_of_rows() {
        assert_eq!(zeros(&[1, 2, 0, 4, 0, 0], ONE, 3), [(2, 3), (4, 6)], "each row ends with zeros");
        assert_eq!(zeros(&[1, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0], TWO, 3), [(4, 12)], "two bytes each");
        assert_eq!(zeros(&[1, 1, 0, 0, 0, 0x80], TWO, 3), [(2, 6)], "zeros of either sign");
        assert_eq!(zeros(&[1, 1, 0x80, 0, 0, 0x80], TWO, 3), [(4, 6)], "the first byte has no sign");
        assert_eq!(zeros(&[0, 2, 0, 4, 0, 0], ONE, 3), [], "a row begins with a zero");
        assert_eq!(zeros(&[0, 2, 0, 4, 0, 0], ONE, 1), [], "no rows");
        assert_eq!(zeros(&[1, 2, 3, 4], ONE, 2), []);
        let around = |length: usize| [&[0, 1][..], &vec![0; length], &[1, 0, 1]].concat();
        assert_eq!(zeros(&around(19), ONE, 24), [], "16 and 4, for 24 elements");
        assert_eq!(zeros(&around(20), ONE, 25), [(2, 22)]);
        assert_eq!(zeros(&[&around(41)[..], &[1]].concat(), TWO, 23), [(2, 42)], "twenty of two bytes");
        let rows = |count: usize| [&[1, 1].repeat(count - 1)[..], &[1, 0]].concat();
        assert_eq!(zeros(&rows(10), ONE, 2), [(19, 20)], "one element in twenty is zero");
        assert_eq!(zeros(&rows(11), ONE, 2), []);
    }

    #[test]
    fn complex_numbers_are_zero_if_both_parts_are() {
        let of = |parts: [f32; 2]| parts.map(f32::to_le_bytes).concat();
        for (parts, zero) in
            [([0.0, 0.0], true), ([-0.0, -0.0], true), ([0.0, 1.0], false), ([1.0, 0.0], false)]
        {
            assert_eq!(is_zero(DType::Complex64, &of(parts)), zero, "{parts:?}");
        }
        assert!(!is_zero(DType::Float64, &of([-0.0, 0.0])));
    }

    #[test]
    fn tails_of_rows_are_found() {
        // There are three rows of four elements. The second is used in part, and the third not at all.
        let zeros = Zeros::of(&[1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0], ONE, 4);
        assert_eq!([4, 8, 12].map(|end| zeros.start_of_tail(end)), [None, Some(5), Some(5)]);
        assert_eq!([5, 6, 13].map(|end| zeros.start_of_tail(end)), [None, Some(5), None]);
    }

    #[test]
    fn too_many_runs_are_not_kept() {
        let rows = |count: usize| [1, 0].repeat(count);
        assert_eq!(zeros(&rows(MOST_RUNS), ONE, 2).len(), MOST_RUNS);
        assert!(Zeros::of(&rows(MOST_RUNS + 1), ONE, 2).is_empty());
    }

    proptest! {
        #[test]
        fn pieces_get_the_zeros_that_the_input_had(
            rows in prop::collection::vec(0usize..=5, 1..20), piece in 1usize..12,
        ) {
            let bytes: Vec<u8> =
                rows.iter().flat_map(|&used| (0..5).map(move |at| u8::from(at < used))).collect();
            let zeros = Zeros::of(&bytes, ONE, 5);
            let mut drawn = vec![1; bytes.len()];
            for (number, piece_of_drawn) in drawn.chunks_mut(piece).enumerate() {
                zeros.write((number * piece) as u64, piece_of_drawn);
            }
            // If there are too few zeros, none are kept.
            let expected = if zeros.is_empty() { vec![1; bytes.len()] } else { bytes.clone() };
            prop_assert_eq!(drawn, expected);
            let mut rest = bytes.clone();
            zeros.remove_from(&mut rest);
            let ones = bytes.iter().filter(|it| **it == 1).count();
            prop_assert_eq!(rest, if zeros.is_empty() { bytes } else { vec![1; ones] });
        }
    }
}
