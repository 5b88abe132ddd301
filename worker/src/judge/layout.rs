//! Reads two strided tensors of the same shape together, in pieces of limited size.
//!
//! This file decides the order of the elements, the tiles (boxes of elements that fit a buffer), the reads that fetch
//! one tensor's part of a tile, and the coordinates of an element.
//!
//! Axes are visited in descending order of the first tensor's strides, so that this tensor is read from front to back
//! in any layout (channels_last, a transpose, an expanded axis). Axes that continue each other in memory are merged. If
//! neither tensor has gaps and both have the same order, tiles are read directly into the buffer. If the two layouts
//! differ, tiles are extended along the fast axes of both tensors in turn, so that neither tensor is read one element
//! at a time.

use opt_shared::units::{Bytes, to_index};

use super::compare::BytesSource;

/// The number of bytes that a read may contain for each wanted element: about as many as can be copied in the time of
/// one system call. If a read would contain more, separate reads are cheaper.
const WASTE_PER_ELEMENT: u64 = 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("cannot walk shape {shape:?}: {strides} strides for {axes} axes (give one stride per axis)", axes = shape.len())]
    Rank { shape: Vec<u64>, strides: usize },
    #[error(
        "cannot walk shape {shape:?} with strides {stride:?}: its size does not fit in 63 bits (the capture is corrupt)"
    )]
    Overflow { shape: Vec<u64>, stride: Vec<u64> },
}

/// An axis of the walk. Strides are in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Axis {
    size: u64,
    /// The strides in the first and in the second tensor.
    stride: [u64; 2],
    /// The difference in row-major position between two neighbours along this axis.
    logical: u64,
}

/// The order in which the elements of two tensors of the same shape are visited.
#[derive(Clone, Debug)]
pub(super) struct Walk {
    /// The axes, the outermost first. Axes of size one are left out, and neighbouring axes are merged where possible.
    axes: Vec<Axis>,
    shape: Vec<u64>,
    elements: u64,
    /// True if the elements of both tensors lie in memory without gaps and in the order of the walk.
    dense: bool,
}

/// A box of elements, with an `origin` and an `extent` along each axis of the walk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    origin: Vec<u64>,
    extent: Vec<u64>,
}

impl Tile {
    pub(super) fn elements(&self) -> u64 {
        self.extent.iter().product()
    }

    /// Returns the stride of each axis in a buffer that contains the tile. In the buffer, the last axis of the walk
    /// changes fastest.
    fn tile_strides(&self) -> Vec<u64> {
        let mut tile_strides = vec![1; self.extent.len()];
        for axis in (1..tile_strides.len()).rev() {
            tile_strides[axis - 1] = tile_strides[axis] * self.extent[axis];
        }
        tile_strides
    }
}

impl Walk {
    /// `first` and `second` are the strides of the two tensors, in elements. `size` is an element's size, in bytes.
    pub(super) fn new(shape: &[u64], first: &[u64], second: &[u64], size: u64) -> Result<Self, LayoutError> {
        for stride in [first, second] {
            if stride.len() != shape.len() {
                return Err(LayoutError::Rank { shape: shape.to_vec(), strides: stride.len() });
            }
            // Every value that is computed below is a part of the sums and products checked here, so nothing can
            // overflow.
            checked_extent_bytes(shape, stride, size)
                .ok_or_else(|| LayoutError::Overflow { shape: shape.to_vec(), stride: stride.to_vec() })?;
        }
        let elements = if shape.contains(&0) { 0 } else { shape.iter().product() };
        let mut axes = Vec::with_capacity(shape.len());
        if elements > 0 {
            let mut logical = 1;
            for axis in (0..shape.len()).rev() {
                if shape[axis] > 1 {
                    axes.push(Axis { size: shape[axis], stride: [first[axis], second[axis]], logical });
                }
                logical *= shape[axis];
            }
            axes.reverse();
            // The sort is stable, so that axes with equal strides (expanded axes) stay in row-major order.
            axes.sort_by_key(|axis| std::cmp::Reverse(axis.stride));
            axes = merged(&axes);
        }
        let mut run = 1;
        let dense = axes.iter().rev().all(|axis| {
            let continues = axis.stride == [run, run];
            run *= axis.size;
            continues
        });
        Ok(Self { axes, shape: shape.to_vec(), elements, dense })
    }

    pub(super) fn elements(&self) -> u64 {
        self.elements
    }

    pub(super) fn dense(&self) -> bool {
        self.dense
    }

    /// Returns tiles of at most `limit` elements, which together contain each element once. If both tensors have the
    /// same strides, the tiles visit the elements in the order of the walk.
    pub(super) fn tiles(&self, limit: u64) -> Boxes {
        let sizes: Vec<u64> = self.axes.iter().map(|axis| axis.size).collect();
        let step = if self.elements == 0 { Vec::new() } else { self.tile_extent(limit.max(1)) };
        Boxes::new(sizes, step, self.elements == 0)
    }

    /// Returns the extent of a tile of at most `limit` elements along each axis.
    fn tile_extent(&self, limit: u64) -> Vec<u64> {
        let mut extent = vec![1_u64; self.axes.len()];
        let fast_axes = [self.by_rising_stride(0), self.by_rising_stride(1)];
        let mut grew = true;
        while grew {
            grew = false;
            for order in &fast_axes {
                // Extend the tile only along the fastest axis that is not complete yet. Extending it along a slower
                // axis would change the order.
                let Some(&axis) = order.iter().find(|&&axis| extent[axis] < self.axes[axis].size) else {
                    continue;
                };
                let others: u64 =
                    extent.iter().enumerate().filter(|&(at, _)| at != axis).map(|(_, &e)| e).product();
                let target = (extent[axis] * 2).min(self.axes[axis].size).min(limit / others);
                if target > extent[axis] {
                    extent[axis] = target;
                    grew = true;
                }
            }
        }
        extent
    }

    fn by_rising_stride(&self, side: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.axes.len()).rev().collect();
        order.sort_by_key(|&axis| self.axes[axis].stride[side]);
        order
    }

    /// Returns the row-major position of an element of a tile.
    pub(super) fn position(&self, tile: &Tile, mut index: u64) -> u64 {
        let mut position = 0;
        for (axis, (&origin, &extent)) in self.axes.iter().zip(tile.origin.iter().zip(&tile.extent)).rev() {
            let (rest, inside) = if extent == 1 { (index, 0) } else { (index / extent, index % extent) };
            position += (origin + inside) * axis.logical;
            index = rest;
        }
        position
    }

    pub(super) fn coordinates(&self, mut position: u64) -> Vec<u64> {
        let mut coordinates = vec![0; self.shape.len()];
        for (coordinate, &size) in coordinates.iter_mut().zip(&self.shape).rev() {
            *coordinate = position % size.max(1);
            position /= size.max(1);
        }
        coordinates
    }

    /// Fills `out` with one tensor's elements of a tile, in the tile's order. Reads that also contain other bytes go to
    /// `scratch`, which must have room for an element unless the walk is dense.
    pub(super) fn fetch(
        &self,
        side: usize,
        tile: &Tile,
        size: usize,
        source: &mut dyn BytesSource,
        scratch: &mut [u8],
        out: &mut [u8],
    ) -> Result<(), ReadError> {
        let width = size as u64;
        let strides: Vec<u64> = self.axes.iter().map(|axis| axis.stride[side]).collect();
        let tile_strides = tile.tile_strides();
        let start: u64 = tile.origin.iter().zip(&strides).map(|(&at, &stride)| at * stride).sum();
        let direct_all =
            (0..strides.len()).all(|axis| tile.extent[axis] == 1 || strides[axis] == tile_strides[axis]);
        if direct_all {
            return read(source, start * width, out);
        }
        let step = self.read_extent(side, tile, width, scratch.len() as u64);
        for piece in Boxes::new(tile.extent.clone(), step, false) {
            let from = start + dot(&piece.origin, &strides);
            let offset = dot(&piece.origin, &tile_strides);
            let span =
                1 + piece.extent.iter().zip(&strides).map(|(&e, &stride)| (e - 1) * stride).sum::<u64>();
            let in_order =
                (0..strides.len()).all(|axis| piece.extent[axis] == 1 || strides[axis] == tile_strides[axis]);
            // Neither value exceeds the length of its buffer, so both fit `usize`.
            let at = to_index(offset) * size;
            let length = to_index(span) * size;
            if in_order && span == piece.elements() {
                read(source, from * width, &mut out[at..at + length])?;
            } else {
                let window = &mut scratch[..length];
                read(source, from * width, window)?;
                match size {
                    1 => scatter::<1>(window, out, at, &piece.extent, &strides, &tile_strides),
                    2 => scatter::<2>(window, out, at, &piece.extent, &strides, &tile_strides),
                    4 => scatter::<4>(window, out, at, &piece.extent, &strides, &tile_strides),
                    8 => scatter::<8>(window, out, at, &piece.extent, &strides, &tile_strides),
                    _ => scatter::<16>(window, out, at, &piece.extent, &strides, &tile_strides),
                }
            }
        }
        Ok(())
    }

    /// Returns the extent of the part of a tile that one read fetches. The part is extended along one axis after
    /// another, in ascending order of their strides, while the read fits the scratch buffer and contains few enough
    /// unwanted bytes.
    fn read_extent(&self, side: usize, tile: &Tile, width: u64, scratch: u64) -> Vec<u64> {
        let mut step = vec![1; self.axes.len()];
        let (mut span, mut count) = (1, 1);
        for axis in self.by_rising_stride(side) {
            let stride = self.axes[axis].stride[side];
            let fits = |extent: u64| {
                let reach = span + (extent - 1) * stride;
                reach * width <= scratch && reach * width <= WASTE_PER_ELEMENT * count * extent
            };
            let whole = tile.extent[axis];
            if fits(whole) {
                step[axis] = whole;
                span += (whole - 1) * stride;
                count *= whole;
                continue;
            }
            // A larger part has a larger span, so a binary search finds the largest part of the axis that fits.
            let (mut low, mut high) = (1, whole);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if fits(middle) { low = middle } else { high = middle }
            }
            step[axis] = low;
            break;
        }
        step
    }
}

/// A failed read. The caller adds which tensor was read.
#[derive(Debug)]
pub(super) struct ReadError {
    pub(super) offset: u64,
    pub(super) length: Bytes,
    pub(super) source: std::io::Error,
}

pub(super) fn read(source: &mut dyn BytesSource, offset: u64, buffer: &mut [u8]) -> Result<(), ReadError> {
    let length = Bytes::from(buffer.len());
    source.read_at(offset, buffer).map_err(|source| ReadError { offset, length, source })
}

fn dot(left: &[u64], right: &[u64]) -> u64 {
    left.iter().zip(right).map(|(&l, &r)| l * r).sum()
}

/// Returns the number of bytes from the first element to the end of the last. `None` if this number, or the size of all
/// elements, does not fit in 63 bits (file offsets are signed).
fn checked_extent_bytes(shape: &[u64], stride: &[u64], size: u64) -> Option<u64> {
    if shape.contains(&0) {
        return Some(0);
    }
    let limit = |bytes: u64| (bytes <= i64::MAX as u64).then_some(bytes);
    shape.iter().try_fold(1_u64, |all, &n| all.checked_mul(n))?.checked_mul(size).and_then(limit)?;
    shape
        .iter()
        .zip(stride)
        .try_fold(1_u64, |last, (&n, &step)| last.checked_add((n - 1).checked_mul(step)?))?
        .checked_mul(size)
        .and_then(limit)
}

/// Merges each axis with the previous one if, in both tensors and in row-major order, there is no gap between them.
fn merged(axes: &[Axis]) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::with_capacity(axes.len());
    for &inner in axes {
        if let Some(outer) = merged.last_mut()
            && (0..2).all(|side| outer.stride[side] == inner.stride[side].saturating_mul(inner.size))
            && outer.logical == inner.logical.saturating_mul(inner.size)
        {
            *outer = Axis { size: outer.size * inner.size, ..inner };
        } else {
            merged.push(inner);
        }
    }
    merged
}

/// Copies the elements of a piece from a window of memory to their positions in a tile.
fn scatter<const SIZE: usize>(
    window: &[u8],
    out: &mut [u8],
    at: usize,
    extent: &[u64],
    strides: &[u64],
    tile_strides: &[u64],
) {
    // The inner loop copies along the longest axis. A piece without axes was read directly into the tile.
    let inner = (0..extent.len()).rev().max_by_key(|&axis| extent[axis]).unwrap_or(0);
    let (row, window_step, out_step) =
        (to_index(extent[inner]), to_index(strides[inner]) * SIZE, to_index(tile_strides[inner]) * SIZE);
    let mut outer = extent.to_vec();
    outer[inner] = 1;
    let mut index = vec![0_u64; extent.len()];
    loop {
        let mut from = to_index(dot(&index, strides)) * SIZE;
        let mut to = at + to_index(dot(&index, tile_strides)) * SIZE;
        for _ in 0..row {
            out[to..to + SIZE].copy_from_slice(&window[from..from + SIZE]);
            from += window_step;
            to += out_step;
        }
        if !advance(&mut index, &outer, |_| 1) {
            return;
        }
    }
}

/// Advances a multi-axis index to the next position, by `step` along each axis. The last axis changes fastest. Returns
/// false at the end.
fn advance(index: &mut [u64], sizes: &[u64], step: impl Fn(usize) -> u64) -> bool {
    for axis in (0..index.len()).rev() {
        index[axis] += step(axis);
        if index[axis] < sizes[axis] {
            return true;
        }
        index[axis] = 0;
    }
    false
}

/// Divides a box of size `sizes` into boxes of at most `step`. The last axis changes fastest.
#[derive(Clone, Debug)]
pub(super) struct Boxes {
    sizes: Vec<u64>,
    step: Vec<u64>,
    origin: Vec<u64>,
    done: bool,
}

impl Boxes {
    fn new(sizes: Vec<u64>, step: Vec<u64>, done: bool) -> Self {
        let origin = vec![0; sizes.len()];
        Self { sizes, step, origin, done }
    }
}

impl Iterator for Boxes {
    type Item = Tile;

    fn next(&mut self) -> Option<Tile> {
        if self.done {
            return None;
        }
        let extent = (0..self.sizes.len())
            .map(|axis| self.step[axis].min(self.sizes[axis] - self.origin[axis]))
            .collect();
        let tile = Tile { origin: self.origin.clone(), extent };
        self.done = !advance(&mut self.origin, &self.sizes, |axis| self.step[axis]);
        Some(tile)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A source whose bytes are a function of their offset. It counts the reads, and the bytes that were read.
    struct Counting {
        length: u64,
        reads: u64,
        bytes: u64,
    }

    impl Counting {
        fn byte(offset: u64) -> u8 {
            (offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
        }
    }

    impl BytesSource for Counting {
        fn read_at(&mut self, offset: u64, buffer: &mut [u8]) -> std::io::Result<()> {
            assert!(offset + buffer.len() as u64 <= self.length, "a read past the tensor's last byte");
            self.reads += 1;
            self.bytes += buffer.len() as u64;
            for (at, byte) in (offset..).zip(buffer) {
                *byte = Self::byte(at);
            }
            Ok(())
        }
    }

    /// Walks two tensors and checks the bytes of every element. Returns the reads of each tensor and the bytes read.
    fn walk_all(shape: &[u64], strides: [&[u64]; 2], size: u64, chunk: usize) -> [(u64, u64); 2] {
        let walk = Walk::new(shape, strides[0], strides[1], size).expect("a small shape");
        let mut sources = strides.map(|stride| Counting {
            length: checked_extent_bytes(shape, stride, size).expect("a small shape"),
            reads: 0,
            bytes: 0,
        });
        let mut seen = vec![false; to_index(walk.elements())];
        let mut scratch = vec![0; chunk];
        for tile in walk.tiles(chunk as u64 / size) {
            let mut out = vec![0; to_index(tile.elements() * size)];
            assert!(out.len() <= chunk);
            for side in 0..2 {
                walk.fetch(side, &tile, to_index(size), &mut sources[side], &mut scratch, &mut out)
                    .expect("memory can be read");
                for element in 0..tile.elements() {
                    let index = walk.coordinates(walk.position(&tile, element));
                    let from = dot(&index, strides[side]) * size;
                    for byte in 0..size {
                        assert_eq!(out[to_index(element * size + byte)], Counting::byte(from + byte));
                    }
                }
            }
            for element in 0..tile.elements() {
                let position = to_index(walk.position(&tile, element));
                assert!(!std::mem::replace(&mut seen[position], true), "visited twice");
            }
        }
        assert!(seen.iter().all(|&seen| seen), "some elements were never visited");
        sources.map(|source| (source.reads, source.bytes))
    }

    #[test]
    fn dense_tensors_are_read_once_in_few_reads_whatever_their_axis_order() {
        for (shape, stride) in [
            (vec![100, 100], vec![100, 1]),
            (vec![100, 100], vec![1, 100]),
            // channels_last
            (vec![2, 16, 10, 30], vec![4800, 1, 480, 16]),
        ] {
            let elements: u64 = shape.iter().product();
            let [(reads, bytes), other] = walk_all(&shape, [&stride, &stride], 4, 4096);
            assert_eq!((reads, bytes), other);
            assert_eq!(bytes, elements * 4);
            assert!(reads <= 2 * (elements * 4).div_ceil(4096), "{reads} reads of {shape:?}");
        }
    }

    #[test]
    fn differing_orders_are_read_in_tiles() {
        let [first, second] = walk_all(&[256, 256], [&[256, 1], &[1, 256]], 4, 16 << 10);
        for (reads, bytes) in [first, second] {
            assert!(reads <= 65_536 / 32, "{reads} reads");
            assert!(bytes <= 16 * 65_536 * 4, "{bytes} bytes");
        }
    }

    #[test]
    fn small_gaps_are_read_with_their_neighbours() {
        let stride = [20, 2];
        let [(reads, bytes), _] = walk_all(&[500, 5], [&stride, &stride], 4, 4096);
        assert!(reads <= 20 && bytes <= 500 * 20 * 4, "{reads} reads of {bytes} bytes");
        // Elements far apart get a separate read each.
        let stride = [10_000];
        assert_eq!(walk_all(&[50], [&stride, &stride], 4, 4096)[0], (50, 200));
    }

    #[test]
    fn expanded_axis_is_not_read_again_for_each_element() {
        let stride = [0, 1];
        let [(_, bytes), _] = walk_all(&[1000, 4], [&stride, &stride], 4, 32 << 10);
        assert!(bytes <= 4 * 4 * 4, "{bytes} bytes");
    }

    proptest! {
        #[test]
        fn every_element_is_visited_once_and_has_its_own_bytes(
            axes in prop::collection::vec((0_u64..9, 0_u64..40, 0_u64..40), 0..5),
            size in prop::sample::select(vec![1_u64, 2, 4, 8, 16]),
            chunk in 16_usize..2000,
        ) {
            let shape: Vec<u64> = axes.iter().map(|axis| axis.0).collect();
            let first: Vec<u64> = axes.iter().map(|axis| axis.1).collect();
            let second: Vec<u64> = axes.iter().map(|axis| axis.2).collect();
            walk_all(&shape, [&first, &second], size, chunk);
        }
    }
}
