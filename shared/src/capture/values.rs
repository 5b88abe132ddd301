//! A tensor's values in row-major order, streamed out of the file in bounded chunks.
//!
//! Contiguous tensors are read straight through. Others are gathered block by block: a block is a run of the
//! row-major order, and what it needs is read in the order of the file, in pieces that are worth a read.

use super::dtype::{DType, Kind};
use super::error::CaptureError;
use super::file::CaptureFile;
use super::limits::{CHUNK_BYTES, GATHER_BYTES};
use super::value::{Tensor, extent_elements};
use crate::ids::StorageId;
use crate::units::Bytes;

/// A gap between elements above which two reads are cheaper than one over the gap: a page.
const WORTH_SKIPPING_BYTES: u64 = 4 << 10;

/// Calls `sink` with the values in row-major order, little-endian, conj and neg applied; each chunk holds whole
/// elements. Stops at the first error.
pub fn logical_values<E: From<CaptureError>>(
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    if tensor.elements() == 0 {
        return Ok(());
    }
    if tensor.is_contiguous() {
        return contiguous(capture, tensor, sink);
    }
    gathered(capture, tensor, sink)
}

fn contiguous<E: From<CaptureError>>(
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let total = tensor.logical_bytes().get();
    let start = tensor.byte_range().start;
    // A multiple of every element size.
    let mut buffer = vec![0; Bytes::new(CHUNK_BYTES.min(total)).to_usize()];
    let mut done = 0;
    while done < total {
        let chunk = &mut buffer[..Bytes::new(CHUNK_BYTES.min(total - done)).to_usize()];
        capture.read_range(tensor.storage, start + done, chunk)?;
        apply_bits(tensor, chunk);
        sink(chunk)?;
        done += chunk.len() as u64;
    }
    Ok(())
}

/// One axis of a block: how many steps, and how far each goes in the storage and in the row-major order (elements).
#[derive(Clone, Copy, Debug)]
struct Axis {
    size: u64,
    stride: u64,
    place: u64,
}

fn gathered<E: From<CaptureError>>(
    capture: &CaptureFile,
    tensor: &Tensor,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let axes = merged_axes(tensor);
    let element = tensor.dtype.size();
    let block_elements = GATHER_BYTES / element;
    // The first axis whose steps fit a block whole; the one before it is cut into runs of steps.
    let inner = axes.iter().position(|axis| axis.place <= block_elements).unwrap_or(axes.len() - 1);
    let (outer, cut) = (&axes[..inner], axes[inner]);
    let steps = (block_elements / cut.place).clamp(1, cut.size);
    let length = Bytes::new(steps * cut.place * element).to_usize();
    let mut gather =
        Gather { capture, storage: tensor.storage, element, block: vec![0; length], read: Vec::new() };
    let mut odometer = vec![0; outer.len()];
    loop {
        let base = tensor.storage_offset
            + outer.iter().zip(&odometer).map(|(axis, index)| axis.stride * index).sum::<u64>();
        let mut step = 0;
        while step < cut.size {
            let taken = steps.min(cut.size - step);
            let mut block_axes = axes[inner..].to_vec();
            block_axes[0].size = taken;
            // The longest strides outside: the file is then read from front to back.
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

/// Counts one up; false after the last.
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

/// The axes without those of size one, neighbours joined where one continues the other. Never empty.
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

struct Gather<'a> {
    capture: &'a CaptureFile,
    storage: StorageId,
    element: u64,
    block: Vec<u8>,
    read: Vec<u8>,
}

impl Gather<'_> {
    /// Fills the places of these axes, the first of which has the longest stride.
    fn fill(&mut self, axes: &[Axis], base: u64, place: u64) -> Result<(), CaptureError> {
        let (sizes, strides): (Vec<u64>, Vec<u64>) = axes.iter().map(|axis| (axis.size, axis.stride)).unzip();
        let extent = extent_elements(&sizes, &strides) * self.element;
        match axes.split_first() {
            Some((first, _)) if extent > CHUNK_BYTES => {
                let steps = steps_per_read(axes, self.element);
                let mut part = axes.to_vec();
                let mut done = 0;
                while done < first.size {
                    let steps = steps.min(first.size - done);
                    part[0].size = steps;
                    // A single step needs no axis, which also makes each level one axis shorter.
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

/// How many steps of the first axis to read at once: one, unless the gaps between them are cheaper to read than to
/// skip.
fn steps_per_read(axes: &[Axis], element: u64) -> u64 {
    let (first, rest) = match axes.split_first() {
        Some((first, rest)) if first.stride * element <= WORTH_SKIPPING_BYTES => (first, rest),
        _ => return 1,
    };
    let (sizes, strides): (Vec<u64>, Vec<u64>) = rest.iter().map(|axis| (axis.size, axis.stride)).unzip();
    let step_bytes = extent_elements(&sizes, &strides) * element;
    // One step less than fits, so that the extent stays below the size of a chunk.
    (CHUNK_BYTES.saturating_sub(step_bytes) / (first.stride * element).max(1)).clamp(1, first.size)
}

/// Copies elements of `N` bytes from where they were read to their places.
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

/// Conjugates and negates values in place, as the bits of the tensor say.
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
    // The sign is the highest bit of the last byte of each part.
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

/// Two's complement of a little-endian integer.
fn negate_integer(bytes: &mut [u8]) {
    let mut carry = true;
    for byte in bytes {
        (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
    }
}
