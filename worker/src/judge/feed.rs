//! Reads two tensors piece by piece (in tiles) into buffers of a fixed size.
//!
//! This file owns the memory for a pass over two tensors. It is at most two chunks, however large the tensors are.
//! `layout` decides the order in which tiles are read.

use opt_shared::units::{Bytes, to_index};

use super::compare::{ByteSource, BytesSource, CompareError};
use super::layout::{Tile, Walk};

/// The smallest chunk, in bytes. Half of it has room for the largest element (complex128).
const SMALLEST_CHUNK: usize = 64;

/// A walk over two tensors, with the sources that are read and the buffers that receive the bytes.
pub(super) struct Feed<'s> {
    walk: Walk,
    /// The size of an element, in bytes.
    size: usize,
    sources: [(&'s mut dyn BytesSource, ByteSource); 2],
    /// The contents of the current tile of each tensor, which are passed to the caller.
    tiles: [Vec<u8>; 2],
    /// For each tensor, a buffer for reads that also contain bytes between the wanted elements. It is empty if the walk
    /// is dense.
    scratch: [Vec<u8>; 2],
}

impl<'s> Feed<'s> {
    pub(super) fn new(
        walk: Walk,
        size: u64,
        sources: [(&'s mut dyn BytesSource, ByteSource); 2],
        chunk: Bytes,
    ) -> Result<Self, CompareError> {
        // If the walk is dense, a buffer need not be larger than the tensor.
        let whole = Bytes::new(walk.elements().saturating_mul(size));
        let wanted = if walk.dense() { chunk.min(whole) } else { chunk };
        let chunk = wanted.to_usize().max(SMALLEST_CHUNK);
        let size = Bytes::new(size).to_usize();
        let (tile, scratch) = if walk.dense() { (chunk, 0) } else { (chunk / 2, chunk / 2) };
        let tile = tile / size * size;
        Ok(Self {
            walk,
            size,
            sources,
            tiles: [buffer(tile)?, buffer(tile)?],
            scratch: [buffer(scratch)?, buffer(scratch)?],
        })
    }

    pub(super) fn walk(&self) -> &Walk {
        &self.walk
    }

    /// Fetches the tiles one after another, and passes the bytes of both tensors to `use_tile`.
    pub(super) fn each_tile(
        &mut self,
        mut use_tile: impl FnMut(&Walk, &Tile, [&[u8]; 2]) -> Result<(), CompareError>,
    ) -> Result<(), CompareError> {
        let limit = (self.tiles[0].len() / self.size) as u64;
        for tile in self.walk.tiles(limit) {
            // A tile has at most `limit` elements, so this is at most the buffer's length.
            let length = to_index(tile.elements()) * self.size;
            for index in 0..2 {
                let (source, side) = &mut self.sources[index];
                let side = *side;
                self.walk
                    .fetch(
                        index,
                        &tile,
                        self.size,
                        *source,
                        &mut self.scratch[index],
                        &mut self.tiles[index][..length],
                    )
                    .map_err(|error| CompareError::Read {
                        side,
                        offset: error.offset,
                        length: error.length,
                        source: error.source,
                    })?;
            }
            use_tile(&self.walk, &tile, [&self.tiles[0][..length], &self.tiles[1][..length]])?;
        }
        Ok(())
    }
}

fn buffer(length: usize) -> Result<Vec<u8>, CompareError> {
    let mut buffer = Vec::new();
    buffer
        .try_reserve_exact(length)
        .map_err(|source| CompareError::Memory { chunk: Bytes::from(length), source })?;
    buffer.resize(length, 0);
    Ok(buffer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feed_holds_at_most_two_chunks() {
        let chunk = Bytes::kib(64);
        for stride in [[4096, 1], [1, 4096], [9000, 2], [0, 0]] {
            let walk = Walk::new(&[4096, 4096], &stride, &[4096, 1], 16).expect("a plain shape");
            let (mut one, mut other): (&[u8], &[u8]) = (&[], &[]);
            let sources: [(&mut dyn BytesSource, ByteSource); 2] =
                [(&mut one, ByteSource::Expected), (&mut other, ByteSource::Actual)];
            let feed = Feed::new(walk, 16, sources, chunk).expect("little memory");
            let held: usize = feed.tiles.iter().chain(&feed.scratch).map(Vec::capacity).sum();
            assert!(Bytes::from(held) <= chunk.saturating_mul(2), "{held} bytes for {stride:?}");
        }
        // A small tensor needs less.
        let walk = Walk::new(&[3], &[1], &[1], 4).expect("a plain shape");
        let (mut one, mut other): (&[u8], &[u8]) = (&[], &[]);
        let sources: [(&mut dyn BytesSource, ByteSource); 2] =
            [(&mut one, ByteSource::Expected), (&mut other, ByteSource::Actual)];
        let feed = Feed::new(walk, 4, sources, chunk).expect("little memory");
        assert_eq!(feed.tiles[0].capacity(), SMALLEST_CHUNK);
    }
}
