//! Computes the lints that need the values of recorded outputs. The values are read in chunks of a fixed size.
//!
//! The figures do not depend on the order of the values. A tensor without gaps is therefore read in the order of its
//! storage, and any other tensor row by row.

use std::error::Error;

use opt_shared::arguments::{OutputTensor, numbers};
use opt_shared::capture::{DType, Kind, Tensor};
use opt_shared::ids::StorageId;
use opt_shared::units::to_index;

use super::statistics::{Accumulator, Statistics};
use super::{Lint, LintCode, Subject, tensors, unreadable};

/// The size of a chunk in bytes, which is a multiple of every element size. A chunk is so large that the cost of a
/// system call is negligible, and small compared with the supervisor's memory.
const CHUNK: usize = 256 << 10;
/// The maximum number of rows that are read from a tensor with gaps. If a tensor has more rows, evenly spaced rows are
/// read. Their number is more than half of this maximum.
const MAX_ROWS: u64 = 65_536;

/// Reads from a storage of the entry's file. Its arguments are the storage, the offset in it, and the buffer to fill.
pub type ReadRange<'a, E> = dyn FnMut(StorageId, u64, &mut [u8]) -> Result<(), E> + 'a;

/// Returns the lints that need the values of outputs. `atol` returns the job's absolute tolerance for a dtype.
pub fn of_values<E: Error + 'static>(
    subject: &Subject<'_>,
    atol: &dyn Fn(DType) -> f64,
    read: &mut ReadRange<'_, E>,
) -> Vec<Lint> {
    let mut lints = Vec::new();
    let mut buffer = vec![0; CHUNK];
    for output in subject.outputs.iter().filter(|output| output.tensor.elements() > 0) {
        match of_tensor(&output.tensor, &mut buffer, read) {
            Ok(found) => lints.extend(of_statistics(subject.name, output, &found, atol(output.tensor.dtype))),
            Err(error) => lints.push(unreadable(subject.name, &error)),
        }
        match equal_input(subject, output, atol(output.tensor.dtype), &mut buffer, read) {
            Ok(lint) => lints.extend(lint),
            Err(error) => lints.push(unreadable(subject.name, &error)),
        }
    }
    lints
}

fn of_statistics(entry: &str, output: &OutputTensor, found: &Statistics, atol: f64) -> Vec<Lint> {
    let mut lints = Vec::new();
    let path = &output.path;
    let largest = found.largest_magnitude();
    let numbers = [
        ("atol", atol),
        ("standard_deviation", found.standard_deviation),
        ("largest_magnitude", largest),
        ("mean", found.mean),
    ];
    let mut push = |code, message: String| lints.push(Lint::new(entry, code, message).with_numbers(numbers));
    let many = output.tensor.elements() > 1;
    if largest <= atol {
        push(
            LintCode::TinyOutput,
            format!(
                "no finite magnitude in `{path}` is above {largest:e}: zeros in their place are within the absolute \
                 tolerance {atol:e}"
            ),
        );
    } else if many && found.is_constant() {
        push(
            LintCode::ConstantOutput,
            format!("`{path}` is {:?} everywhere: a kernel that ignores its inputs could pass", found.mean),
        );
    } else if many && found.nan == 0 && found.infinite == 0 && found.standard_deviation <= atol {
        push(
            LintCode::ConstantOutput,
            format!(
                "`{path}` has a standard deviation of {:e} around {:e}, within the absolute tolerance {atol:e}: a \
                 kernel that ignores its inputs could pass",
                found.standard_deviation, found.mean
            ),
        );
    }
    if found.nan + found.infinite > 0 {
        let message = format!(
            "`{path}` contains {} NaNs and {} infinities, which a candidate must put in the same places (with \
             `nonfinite = \"reject\"`, no candidate can pass)",
            found.nan, found.infinite
        );
        #[expect(clippy::cast_precision_loss, reason = "counts of elements, exact up to 2^53")]
        let counts = [("nan", found.nan as f64), ("infinite", found.infinite as f64)];
        lints.push(Lint::new(entry, LintCode::NonfiniteOutput, message).with_numbers(counts));
    }
    lints
}

/// Computes the statistics of a tensor's stored values. Conjugation and negation are ignored, because they change
/// neither how much the values vary nor how large they are. The mean of a negated tensor therefore has the wrong sign.
fn of_tensor<E>(tensor: &Tensor, buffer: &mut [u8], read: &mut ReadRange<'_, E>) -> Result<Statistics, E> {
    let mut accumulator = Accumulator::default();
    for run in runs(tensor) {
        let size = tensor.dtype.size();
        let mut start = run.first * size;
        let end = start + run.extent() * size;
        let mut skip = 0;
        while start < end {
            let length = to_index((end - start).min(buffer.len() as u64));
            let chunk = &mut buffer[..length];
            read(tensor.storage, start, chunk)?;
            if run.step == 1 {
                accumulator.add(tensor.dtype, chunk);
            } else {
                // The next element may be in a later chunk.
                let step = run.step * size;
                while skip < length as u64 {
                    let element = to_index(skip)..to_index(skip + size);
                    accumulator.add(tensor.dtype, &chunk[element]);
                    skip += step;
                }
                skip -= length as u64;
            }
            start += length as u64;
        }
    }
    Ok(accumulator.finish())
}

/// Evenly spaced elements in a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    first: u64,
    count: u64,
    /// The distance between elements, at least 1.
    step: u64,
}

impl Run {
    fn extent(&self) -> u64 {
        (self.count - 1) * self.step + 1
    }
}

/// Returns the elements of a storage that a non-empty tensor refers to. If the tensor has no gaps, this is one run.
/// Otherwise it is one run for each row. If there are more than [`MAX_ROWS`] rows, evenly spaced rows are taken.
/// Elements that are repeated by a stride of 0 are listed once.
fn runs(tensor: &Tensor) -> impl Iterator<Item = Run> {
    let first = tensor.storage_offset;
    let mut axes: Vec<(u64, u64)> = tensor
        .shape
        .iter()
        .copied()
        .zip(tensor.stride.iter().copied())
        .filter(|&(size, step)| size > 1 && step > 0)
        .collect();
    axes.sort_by_key(|&(_, step)| std::cmp::Reverse(step));
    // A tensor without gaps and overlaps is one run, whatever the order of its axes.
    let mut dense = 1;
    let is_dense = axes.iter().rev().all(|&(size, step)| {
        let next = step == dense;
        dense *= size;
        next
    });
    let inner = if is_dense {
        axes.clear();
        (dense, 1)
    } else {
        axes.pop().unwrap_or((1, 1))
    };
    let rows: u64 = axes.iter().map(|&(size, _)| size).product();
    let distance = rows.div_ceil(MAX_ROWS).max(1);
    (0..rows.div_ceil(distance)).map(move |index| {
        let mut row = index * distance;
        let mut start = first;
        for &(size, step) in axes.iter().rev() {
            start += row % size * step;
            row /= size;
        }
        Run { first: start, count: inner.0, step: inner.1 }
    })
}

/// Returns a lint if an output equals an input byte for byte. If its values are floats or complex numbers, differences
/// within the absolute tolerance are allowed.
///
/// Only contiguous tensors of at least two elements are compared. An output that is the input's own memory gets no
/// lint. If a call changes an argument, the argument's value after the call is compared with its value before the call
/// byte for byte, because most tolerances bound the error of the change. Reading stops at the first chunk that differs.
fn equal_input<E>(
    subject: &Subject<'_>,
    output: &OutputTensor,
    atol: f64,
    buffer: &mut [u8],
    read: &mut ReadRange<'_, E>,
) -> Result<Option<Lint>, E> {
    let tensor = &output.tensor;
    if tensor.elements() < 2 || !tensor.is_contiguous() {
        return Ok(None);
    }
    let alike = |input: &Tensor| {
        input.dtype == tensor.dtype
            && input.shape == tensor.shape
            && input.is_contiguous()
            && (input.conjugate, input.negative) == (tensor.conjugate, tensor.negative)
            && (input.storage, input.storage_offset) != (tensor.storage, tensor.storage_offset)
    };
    for (argument, input) in tensors(subject.arguments).filter(|(_, input)| alike(input)) {
        let is_its_own = !output.arguments.is_empty() && output.path == argument.path;
        let atol = if is_its_own || !matches!(tensor.dtype.kind(), Kind::Float | Kind::Complex) {
            0.0
        } else {
            atol
        };
        if let Some(difference) = largest_difference(input, tensor, atol, buffer, read)? {
            let (one, other) = (&output.path, &argument.path);
            let message = if difference == 0.0 {
                format!("`{one}` equals `{other}`: a kernel that copies its input could pass")
            } else {
                format!(
                    "`{one}` differs from `{other}` by at most {difference:e}, which is within the absolute tolerance {atol:e}: \
                     a kernel that copies its input could pass"
                )
            };
            let lint = Lint::new(subject.name, LintCode::OutputEqualsInput, message);
            return Ok(Some(lint.with_bytes(tensor.logical_bytes())));
        }
    }
    Ok(None)
}

/// Returns the largest difference between two tensors of the same dtype. `None` if it is above `most`, or if one tensor
/// has a NaN or an infinity where the bytes of the other differ.
fn largest_difference<E>(
    one: &Tensor,
    other: &Tensor,
    most: f64,
    buffer: &mut [u8],
    read: &mut ReadRange<'_, E>,
) -> Result<Option<f64>, E> {
    let half = buffer.len() / 2;
    let (left, right) = buffer.split_at_mut(half);
    let total = one.logical_bytes().get();
    let (from, to) = (one.byte_range().start, other.byte_range().start);
    let (mut done, mut largest) = (0, 0.0_f64);
    while done < total {
        let length = to_index((total - done).min(half as u64));
        read(one.storage, from + done, &mut left[..length])?;
        read(other.storage, to + done, &mut right[..length])?;
        let (left, right) = (&left[..length], &right[..length]);
        if left != right && most == 0.0 {
            return Ok(None);
        }
        if left != right {
            for (left, right) in numbers(one.dtype, left).zip(numbers(one.dtype, right)) {
                let difference = (left - right).abs();
                if left.to_bits() != right.to_bits() && (difference.is_nan() || most < difference) {
                    return Ok(None);
                }
                largest = largest.max(difference);
            }
        }
        done += length as u64;
    }
    Ok(Some(largest))
}

#[cfg(test)]
mod tests {
    use std::io;

    use opt_shared::capture::contiguous_strides;
    use proptest::prelude::*;

    use super::*;

    fn tensor(shape: &[u64], stride: &[u64], storage_offset: u64) -> Tensor {
        Tensor { stride: stride.to_vec(), storage_offset, ..Tensor::dense(DType::UInt8, shape, StorageId(0)) }
    }

    #[test]
    fn tensors_without_gaps_are_one_run() {
        for (shape, stride, first, count) in [
            (&[2, 3][..], &[3, 1][..], 5, 6),
            (&[2, 3], &[1, 2], 0, 6),
            (&[4, 1, 3], &[0, 9, 0], 7, 1),
            (&[], &[], 2, 1),
        ] {
            let found: Vec<Run> = runs(&tensor(shape, stride, first)).collect();
            assert_eq!(found, [Run { first, count, step: 1 }], "{shape:?}");
        }
    }

    #[test]
    fn overlapping_rows_with_gaps_are_not_one_run() {
        // Nine index pairs span nine elements, but reach only the even ones.
        let found: Vec<Run> = runs(&tensor(&[3, 3], &[2, 2], 0)).collect();
        assert!(found.iter().all(|run| run.step == 2 && run.count == 3), "{found:?}");
    }

    #[test]
    fn sampled_rows_of_a_long_tensor_are_evenly_spaced() {
        let rows = MAX_ROWS * 3 + 1;
        let found: Vec<Run> = runs(&tensor(&[rows, 2], &[4, 1], 0)).collect();
        assert!(found.len() as u64 <= MAX_ROWS && found.len() as u64 > MAX_ROWS / 2);
        assert_eq!(found[1].first - found[0].first, 16);
    }

    /// Returns all elements that a strided tensor reaches, computed from the definition of strides.
    fn reached(tensor: &Tensor) -> Vec<u64> {
        let strides = contiguous_strides(&tensor.shape);
        let mut all: Vec<u64> = (0..tensor.elements())
            .map(|flat| {
                let axes = tensor.shape.iter().zip(&strides).zip(&tensor.stride);
                tensor.storage_offset
                    + axes.map(|((size, dense), step)| flat / dense % size * step).sum::<u64>()
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    proptest! {
        #[test]
        fn runs_reach_every_element_and_no_other(
            axes in prop::collection::vec((1..5_u64, 0..20_u64), 0..4), first in 0..10_u64,
        ) {
            let (shape, stride): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
            let tensor = tensor(&shape, &stride, first);
            let mut found: Vec<u64> =
                runs(&tensor).flat_map(|run| (0..run.count).map(move |index| run.first + index * run.step)).collect();
            found.sort_unstable();
            found.dedup();
            prop_assert_eq!(found, reached(&tensor));
        }

        /// A step can cross the boundary between two chunks.
        #[test]
        fn statistics_of_a_run_do_not_depend_on_the_chunk_size(count in 1..60_u64, step in 2..9_u64, chunk in 1..40_usize) {
            let storage: Vec<u8> = (0..=255).cycle().take(600).collect();
            let tensor = tensor(&[count, 1], &[step, 1], 3);
            let mut read = |_: StorageId, offset: u64, buffer: &mut [u8]| -> io::Result<()> {
                buffer.copy_from_slice(&storage[to_index(offset)..][..buffer.len()]);
                Ok(())
            };
            let found = of_tensor(&tensor, &mut vec![0; chunk], &mut read).unwrap();
            let values: Vec<u8> = (0..count).map(|index| storage[to_index(3 + index * step)]).collect();
            prop_assert_eq!(found, super::super::statistics(DType::UInt8, [values]));
        }
    }
}
