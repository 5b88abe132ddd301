//! Streams a tensor's values in row-major order, in chunks of limited size.
//!
//! Contiguous tensors are read sequentially. Other tensors are gathered block by block. A block is a run of elements in
//! row-major order. Its elements are read in the order of the file, in pieces that are large enough to be worthwhile.

use super::dtype::{DType, Kind};
use super::error::CaptureError;
use super::file::CaptureFile;
use super::limits::{CHUNK_BYTES, GATHER_BYTES};
use super::value::{Tensor, extent_elements};
use crate::ids::StorageId;
use crate::units::Bytes;

/// The gap between elements, in bytes, above which two reads are cheaper than one read across the gap. It is one page.
const WORTH_SKIPPING_BYTES: u64 = 4 << 10;

/// How many bytes are read and gathered at a time.
#[derive(Clone, Copy)]
struct Sizes {
    chunk_bytes: u64,
    gather_bytes: u64,
    worth_skipping_bytes: u64,
}

const SIZES: Sizes = Sizes {
    chunk_bytes: CHUNK_BYTES,
    gather_bytes: GATHER_BYTES,
    worth_skipping_bytes: WORTH_SKIPPING_BYTES,
};

/// Calls `sink` with the values in row-major order, little-endian, with conj and neg applied. Each chunk contains whole
/// elements. Stops at the first error.
pub fn logical_values<E: From<CaptureError>>(
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    values_in(SIZES, capture, tensor, sink)
}

fn values_in<E: From<CaptureError>>(
    sizes: Sizes,
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    if tensor.elements() == 0 {
        return Ok(());
    }
    if tensor.is_contiguous() {
        return contiguous(sizes, capture, tensor, sink);
    }
    gathered(sizes, capture, tensor, sink)
}

fn contiguous<E: From<CaptureError>>(
    sizes: Sizes,
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let total = tensor.logical_bytes().get();
    let start = tensor.byte_range().start;
    // The length of a chunk is a multiple of every element size.
    let mut buffer = vec![0; Bytes::new(sizes.chunk_bytes.min(total)).to_usize()];
    let mut done = 0;
    while done < total {
        let chunk = &mut buffer[..Bytes::new(sizes.chunk_bytes.min(total - done)).to_usize()];
        capture.read_range(tensor.storage, start + done, chunk)?;
        apply_bits(tensor, chunk);
        sink(chunk)?;
        done += chunk.len() as u64;
    }
    Ok(())
}

/// An axis of a block: its number of steps, and the distance of a step, in elements, in the storage (`stride`) and in
/// row-major order (`place`).
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: u64,
    stride: u64,
    place: u64,
}

fn gathered<E: From<CaptureError>>(
    sizes: Sizes,
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let axes = merged_axes(tensor);
    let element = tensor.dtype.size();
    let (inner, steps) = division(sizes, &axes, element);
    let (outer, cut) = (&axes[..inner], axes[inner]);
    let length = Bytes::new(steps * cut.place * element).to_usize();
    let mut gather =
        Gather { sizes, capture, storage: tensor.storage, element, block: vec![0; length], read: Vec::new() };
    let mut odometer = vec![0; outer.len()];
    loop {
        let base = tensor.storage_offset
            + outer.iter().zip(&odometer).map(|(axis, index)| axis.stride * index).sum::<u64>();
        let mut step = 0;
        while step < cut.size {
            let taken = steps.min(cut.size - step);
            let mut block_axes = axes[inner..].to_vec();
            block_axes[0].size = taken;
            // The axes with the longest strides are outermost, so the file is read from front to back.
            block_axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
            gather.fill(&block_axes, base + step * cut.stride, 0)?;
            let values = &mut gather.block[..Bytes::new(taken * cut.place * element).to_usize()];
            apply_bits(tensor, values);
            sink(values)?;
            step += taken;
        }
        if !advance(&mut odometer, outer) {
            return Ok(());
        }
    }
}

/// Increments the odometer (the positions along the axes). Returns false when all positions have been visited.
fn advance(odometer: &mut [u64], axes: &[Axis]) -> bool {
    for (index, axis) in odometer.iter_mut().zip(axes).rev() {
        *index += 1;
        if *index < axis.size {
            return true;
        }
        *index = 0;
    }
    false
}

/// Returns the axes of a tensor. Axes of size one are left out, and an axis that continues another one is merged with
/// it. The result is never empty.
fn merged_axes(tensor: &Tensor) -> Vec<Axis> {
    let mut axes: Vec<Axis> = Vec::new();
    let mut place = 1;
    for (&size, &stride) in tensor.shape.iter().zip(&tensor.stride).rev() {
        if size == 1 {
            continue;
        }
        match axes.last_mut() {
            Some(last) if last.size.checked_mul(last.stride) == Some(stride) => last.size *= size,
            _ => axes.push(Axis { size, stride, place }),
        }
        place *= size;
    }
    if axes.is_empty() {
        axes.push(Axis { size: 1, stride: 1, place: 1 });
    }
    axes.reverse();
    axes
}

/// Number of bytes that `logical_values` reads. If the rows of a tensor are interleaved in its storage, parts of the
/// storage are read once for each block.
pub fn bytes_read(tensor: &Tensor) -> Bytes {
    if tensor.elements() == 0 || tensor.is_contiguous() {
        return tensor.logical_bytes();
    }
    let (axes, element) = (merged_axes(tensor), tensor.dtype.size());
    let (inner, steps) = division(SIZES, &axes, element);
    let outer: u64 = axes[..inner].iter().fold(1, |product, axis| product.saturating_mul(axis.size));
    let blocks = outer.saturating_mul(axes[inner].size.div_ceil(steps));
    let mut block_axes = axes[inner..].to_vec();
    block_axes[0].size = steps;
    block_axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
    Bytes::new(blocks.saturating_mul(block_bytes(SIZES, &block_axes, element)))
}

/// Returns the axis that is divided between blocks, and how many of its steps are in one block. This is the first axis
/// of which at least one step fits into a block. The axes before it are iterated step by step.
fn division(sizes: Sizes, axes: &[Axis], element: u64) -> (usize, u64) {
    let block_elements = sizes.gather_bytes / element;
    let inner = axes.iter().position(|axis| axis.place <= block_elements).unwrap_or(axes.len() - 1);
    (inner, (block_elements / axes[inner].place).clamp(1, axes[inner].size))
}

/// Number of bytes that `Gather::fill` reads for these axes, the first of which has the longest stride.
fn block_bytes(sizes: Sizes, axes: &[Axis], element: u64) -> u64 {
    let extent = extent(axes).saturating_mul(element);
    match axes.split_first() {
        Some((first, _)) if extent > sizes.chunk_bytes => {
            let steps = steps_per_read(sizes, axes, element);
            let part = |size: u64| {
                let mut part = axes.to_vec();
                part[0].size = size;
                block_bytes(sizes, if size == 1 { &part[1..] } else { &part }, element)
            };
            let last = match first.size % steps {
                0 => 0,
                size => part(size),
            };
            (first.size / steps).saturating_mul(part(steps)).saturating_add(last)
        }
        _ => extent,
    }
}

struct Gather<'a> {
    sizes: Sizes,
    capture: &'a CaptureFile,
    storage: StorageId,
    element: u64,
    block: Vec<u8>,
    read: Vec<u8>,
}

impl Gather<'_> {
    /// Fills the elements of these axes, the first of which has the longest stride.
    fn fill(&mut self, axes: &[Axis], base: u64, place: u64) -> Result<(), CaptureError> {
        let extent = extent(axes) * self.element;
        match axes.split_first() {
            Some((first, _)) if extent > self.sizes.chunk_bytes => {
                let steps = steps_per_read(self.sizes, axes, self.element);
                let mut part = axes.to_vec();
                let mut done = 0;
                while done < first.size {
                    let steps = steps.min(first.size - done);
                    part[0].size = steps;
                    // For a single step, the axis is left out, so each level of the recursion has one axis less.
                    let part = if steps == 1 { &part[1..] } else { &part[..] };
                    self.fill(part, base + done * first.stride, place + done * first.place)?;
                    done += steps;
                }
                Ok(())
            }
            _ => {
                self.read.resize(Bytes::new(extent).to_usize(), 0);
                self.capture.read_range(self.storage, base * self.element, &mut self.read)?;
                match self.element {
                    1 => scatter::<1>(axes, &self.read, &mut self.block, place),
                    2 => scatter::<2>(axes, &self.read, &mut self.block, place),
                    4 => scatter::<4>(axes, &self.read, &mut self.block, place),
                    8 => scatter::<8>(axes, &self.read, &mut self.block, place),
                    _ => scatter::<16>(axes, &self.read, &mut self.block, place),
                }
                Ok(())
            }
        }
    }
}

/// Returns how many steps of the first axis are read at once: a single one, unless reading across the gaps is cheaper
/// than skipping them.
fn steps_per_read(sizes: Sizes, axes: &[Axis], element: u64) -> u64 {
    let (first, rest) = match axes.split_first() {
        Some((first, rest)) if first.stride * element <= sizes.worth_skipping_bytes => (first, rest),
        _ => return 1,
    };
    // This is one step less than would fit, so that the extent stays below the size of a chunk.
    let room = sizes.chunk_bytes.saturating_sub(extent(rest) * element);
    (room / (first.stride * element).max(1)).clamp(1, first.size)
}

/// Number of elements from the first one used to the last one, inclusive.
fn extent(axes: &[Axis]) -> u64 {
    let (sizes, strides): (Vec<u64>, Vec<u64>) = axes.iter().map(|axis| (axis.size, axis.stride)).unzip();
    extent_elements(&sizes, &strides)
}

/// Copies elements of `N` bytes to their positions.
fn scatter<const N: usize>(axes: &[Axis], read: &[u8], block: &mut [u8], place: u64) {
    let (read, _) = read.as_chunks::<N>();
    let (block, _) = block.as_chunks_mut::<N>();
    let index = |elements: u64| Bytes::new(elements).to_usize();
    let (inner, outer) = match axes.split_last() {
        Some((inner, outer)) => (*inner, outer),
        None => (Axis { size: 1, stride: 1, place: 1 }, axes),
    };
    let mut odometer = vec![0; outer.len()];
    loop {
        let at = |of: fn(&Axis) -> u64| -> u64 {
            outer.iter().zip(&odometer).map(|(axis, step)| of(axis) * step).sum()
        };
        let (mut from, mut to) = (index(at(|axis| axis.stride)), index(place + at(|axis| axis.place)));
        if inner.stride == 1 && inner.place == 1 {
            block[to..to + index(inner.size)].copy_from_slice(&read[from..from + index(inner.size)]);
        } else {
            for _ in 0..inner.size {
                block[to] = read[from];
                from += index(inner.stride);
                to += index(inner.place);
            }
        }
        if !advance(&mut odometer, outer) {
            return;
        }
    }
}

/// Conjugates and negates values in place, according to the tensor's conj and neg bits.
fn apply_bits(tensor: &Tensor, values: &mut [u8]) {
    if !tensor.conjugate && !tensor.negative {
        return;
    }
    let DTypeParts { part_bytes, parts } = DTypeParts::of(tensor.dtype);
    if tensor.dtype.kind() == Kind::Integer {
        if tensor.negative {
            values.chunks_exact_mut(part_bytes).for_each(negate_integer);
        }
        return;
    }
    // The sign is the highest bit in the last byte of each part.
    for (number, part) in values.chunks_exact_mut(part_bytes).enumerate() {
        let imaginary = parts == 2 && number % 2 == 1;
        if tensor.negative != (tensor.conjugate && imaginary) {
            part[part_bytes - 1] ^= 0x80;
        }
    }
}

struct DTypeParts {
    part_bytes: usize,
    parts: usize,
}

impl DTypeParts {
    fn of(dtype: DType) -> Self {
        let parts = if dtype.kind() == Kind::Complex { 2 } else { 1 };
        Self { part_bytes: Bytes::new(dtype.size()).to_usize() / parts, parts }
    }
}

/// Computes the two's complement of a little-endian integer.
fn negate_integer(bytes: &mut [u8]) {
    let mut carry = true;
    for byte in bytes {
        (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::capture::value::Value;
    use crate::units::to_index;

    /// Sizes that are so small that even a small tensor exercises every path of the code.
    const SMALL: Sizes = Sizes { chunk_bytes: 32, gather_bytes: 48, worth_skipping_bytes: 24 };

    const STORED_BYTES: usize = 1 << 10;

    /// Makes a capture of a uint8 tensor whose neighbouring bytes differ. Some of them have the high bit set.
    fn capture() -> (tempfile::NamedTempFile, CaptureFile, Vec<u8>) {
        let stored: Vec<u8> = (0..STORED_BYTES).map(|index| (index * 37 % 251).to_le_bytes()[0]).collect();
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}.")
            .expect("written");
        let object =
            b"\x80\x02ctorch._utils\n_rebuild_tensor\n((U\x07storagectorch\nByteStorage\nU\x01kU\x03cpu\
            M\x00\x04tQK\x00M\x00\x04\x85K\x01\x85tR.";
        file.write_all(object).expect("written");
        file.write_all(b"\x80\x02]U\x01ka.").expect("written");
        file.write_all(&(STORED_BYTES as u64).to_le_bytes()).expect("written");
        file.write_all(&stored).expect("written");
        let capture = CaptureFile::open(file.path()).expect("a capture");
        (file, capture, stored)
    }

    fn base(capture: &CaptureFile) -> Arc<Tensor> {
        match capture.root() {
            Value::Tensor(tensor) => tensor.clone(),
            other => panic!("{other:?} is not a tensor"),
        }
    }

    fn streamed(sizes: Sizes, capture: &CaptureFile, tensor: &Tensor) -> Vec<u8> {
        let mut values = Vec::new();
        values_in(sizes, capture, tensor, &mut |chunk| -> Result<(), CaptureError> {
            let bound = sizes.chunk_bytes.max(sizes.gather_bytes);
            assert!(chunk.len() as u64 <= bound && (chunk.len() as u64).is_multiple_of(tensor.dtype.size()));
            values.extend_from_slice(chunk);
            Ok(())
        })
        .expect("the values are read");
        values
    }

    /// A reference implementation that follows the definition element by element.
    fn by_definition(tensor: &Tensor, stored: &[u8]) -> Vec<u8> {
        let element = tensor.dtype.element_len();
        let mut values = Vec::new();
        for number in 0..tensor.elements() {
            let mut rest = number;
            let mut position = tensor.storage_offset;
            for (size, stride) in tensor.shape.iter().zip(&tensor.stride).rev() {
                position += rest % size * stride;
                rest /= size;
            }
            values.extend_from_slice(&stored[to_index(position) * element..][..element]);
        }
        values
    }

    fn geometry() -> impl Strategy<Value = (Vec<u64>, Vec<u64>, u64)> {
        prop::collection::vec((0u64..6, 0u64..9), 0..5).prop_flat_map(|axes| {
            let (shape, stride): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
            (Just(shape), Just(stride), 0u64..4)
        })
    }

    proptest! {
        #[test]
        fn values_are_streamed_in_row_major_order(
            (shape, stride, storage_offset) in geometry(),
            dtype in prop::sample::select(DType::ALL),
            permuted in any::<bool>(),
        ) {
            let (_file, capture, stored) = capture();
            let mut tensor = Tensor { dtype, shape, stride, storage_offset, ..(*base(&capture)).clone() };
            if permuted {
                // The tensor is dense, and its first axis is moved to the end, as in a transposed matrix or in
                // channels-last.
                tensor.stride = crate::capture::contiguous_strides(&tensor.shape);
                if !tensor.shape.is_empty() {
                    tensor.shape.rotate_left(1);
                    tensor.stride.rotate_left(1);
                }
            }
            prop_assume!(tensor.byte_range().end <= STORED_BYTES as u64);
            let expected = by_definition(&tensor, &stored);
            prop_assert_eq!(&streamed(SMALL, &capture, &tensor), &expected);
            prop_assert_eq!(&streamed(SIZES, &capture, &tensor), &expected);
        }
    }

    #[test]
    fn conj_and_neg_bits_are_applied() {
        let (_file, capture, stored) = capture();
        let view = |dtype, conjugate, negative| Tensor {
            dtype,
            shape: vec![3],
            stride: vec![2],
            conjugate,
            negative,
            ..(*base(&capture)).clone()
        };
        let parts = |bytes: &[u8]| -> Vec<f32> {
            bytes.as_chunks::<4>().0.iter().map(|part| f32::from_le_bytes(*part)).collect()
        };
        let plain = parts(&by_definition(&view(DType::Complex64, false, false), &stored));
        for (conjugate, negative, real, imaginary) in
            [(true, false, 1.0, -1.0), (false, true, -1.0, -1.0), (true, true, -1.0, 1.0)]
        {
            let found = parts(&streamed(SIZES, &capture, &view(DType::Complex64, conjugate, negative)));
            let expected: Vec<f32> = plain
                .iter()
                .enumerate()
                .map(|(index, value)| value * if index % 2 == 0 { real } else { imaginary })
                .collect();
            assert_eq!(found, expected);
        }
        let integers = |bytes: &[u8]| -> Vec<i16> {
            bytes.as_chunks::<2>().0.iter().map(|part| i16::from_le_bytes(*part)).collect()
        };
        let plain = integers(&by_definition(&view(DType::Int16, false, false), &stored));
        let found = integers(&streamed(SIZES, &capture, &view(DType::Int16, false, true)));
        assert_eq!(found, plain.iter().map(|value| value.wrapping_neg()).collect::<Vec<_>>());
    }

    #[test]
    fn sink_can_stop_the_stream() {
        let (_file, capture, _) = capture();
        let mut calls = 0;
        let stopped = values_in(SMALL, &capture, &base(&capture), &mut |_| {
            calls += 1;
            Err(CaptureError {
                path: "here".into(),
                kind: crate::capture::ErrorKind::Io,
                detail: "enough".into(),
                source: None,
            })
        });
        assert_eq!((stopped.expect_err("it stopped").detail.as_str(), calls), ("enough", 1));
    }

    #[test]
    fn elements_along_an_expanded_axis_are_one() {
        for (shape, stride, bytes) in [
            (&[3, 4][..], &[4, 1][..], 48),
            (&[3, 4], &[0, 1], 16),
            (&[3, 4], &[0, 0], 4),
            (&[3, 4], &[1000, 0], 12),
            (&[0, 4], &[0, 1], 0),
            (&[], &[], 4),
        ] {
            let dense = Tensor::dense(crate::capture::DType::Float32, shape, crate::ids::StorageId(0));
            let tensor = Tensor { stride: stride.to_vec(), ..dense };
            assert_eq!(tensor.distinct_bytes().get(), bytes, "{shape:?} {stride:?}");
        }
    }
}
