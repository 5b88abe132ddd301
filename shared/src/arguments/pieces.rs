//! Finds the parts of storages (pieces) that an entry's inputs use. Each piece is copied once, and as a whole.
//!
//! Equal ranges of two storages with the same content are a single piece if both storages are identified by their
//! digests. Other storages are not compared, because they would have to be read. Views that overlap or touch are in the
//! same piece. Lazy conjugates and negatives, which are written out before use, belong to no piece.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::capture::store::BlobId;
use crate::capture::{Storage, Tensor};
use crate::ids::StorageId;
use crate::units::Bytes;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub storage: StorageId,
    /// The blob that contains the storage, and the offset at which the storage begins in the blob. As a pair, they
    /// identify the storage across files. `None` if the capture is not in a store.
    pub content: Option<(BlobId, u64)>,
    /// Range within the storage.
    pub range: Range<u64>,
}

impl Piece {
    pub fn bytes(&self) -> Bytes {
        Bytes::new(self.range.end - self.range.start)
    }

    /// The offset in the storage at which copying starts. It is a page boundary, so that every byte keeps its offset
    /// within a page.
    pub fn first(&self, page: Bytes) -> u64 {
        let page = page.get().max(1);
        self.range.start - self.range.start % page
    }

    /// The total size of the pages that the piece occupies if its storage begins at a page boundary.
    pub fn placed(&self, page: Bytes) -> Bytes {
        let length = self.range.end - self.first(page);
        page.saturating_mul(length.div_ceil(page.get().max(1)))
    }
}

/// Returns the pieces that the inputs use, in the order of their storages.
pub fn pieces<'a>(storages: &[Storage], inputs: impl Iterator<Item = &'a Tensor>) -> Vec<Piece> {
    let mut seen: BTreeSet<(BlobId, u64, u64, u64)> = BTreeSet::new();
    distinct_ranges(inputs.filter(|tensor| !is_lazy(tensor)))
        .into_iter()
        .flat_map(|(storage, ranges)| ranges.into_iter().map(move |range| (storage, range)))
        .map(|(storage, range)| {
            let content = find(storages, storage).and_then(|it| Some((it.blob?, it.file_offset)));
            Piece { storage, content, range }
        })
        .filter(|piece| {
            let Range { start, end } = piece.range;
            piece.content.is_none_or(|(blob, at)| seen.insert((blob, at, start, end)))
        })
        .collect()
}

/// True for a lazy conjugate or negative. Its values differ from the stored ones, so they are written out before a
/// kernel gets them.
pub(super) fn is_lazy(tensor: &Tensor) -> bool {
    tensor.conjugate || tensor.negative
}

/// For each storage, the ranges that the tensors use. They are sorted and disjoint, and touching ranges are merged.
pub(super) fn distinct_ranges<'a>(
    tensors: impl Iterator<Item = &'a Tensor>,
) -> BTreeMap<StorageId, Vec<Range<u64>>> {
    let mut ranges: BTreeMap<StorageId, Vec<Range<u64>>> = BTreeMap::new();
    for tensor in tensors {
        let range = tensor.byte_range();
        if !range.is_empty() {
            ranges.entry(tensor.storage).or_default().push(range);
        }
    }
    for list in ranges.values_mut() {
        list.sort_by_key(|range| range.start);
        list.dedup_by(|next, joined| {
            let touching = next.start <= joined.end;
            if touching {
                joined.end = joined.end.max(next.end);
            }
            touching
        });
    }
    ranges
}

pub(super) fn find(storages: &[Storage], id: StorageId) -> Option<&Storage> {
    match storages.get(id.index()) {
        Some(storage) if storage.id == id => Some(storage),
        _ => storages.iter().find(|storage| storage.id == id),
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dense, storage};
    use super::*;
    use crate::capture::DType;

    #[test]
    fn equal_contents_and_touching_views_are_one_piece() {
        let blob = Some(BlobId([7; 32]));
        let storages = [
            Storage { blob, ..storage(0, 4096, 0) },
            Storage { blob, ..storage(1, 4096, 0) },
            storage(2, 9000, 64),
            storage(3, 9000, 64),
        ];
        let view = |first, elements, id| crate::capture::Tensor {
            storage_offset: first,
            ..dense(DType::Int8, &[elements], id)
        };
        let conjugate = crate::capture::Tensor { conjugate: true, ..view(0, 8, 2) };
        let tensors = [
            view(0, 4096, 0),
            view(0, 4096, 1),
            view(10, 10, 1),
            view(5000, 100, 2),
            view(5100, 50, 2),
            view(0, 0, 3),
            conjugate,
        ];
        let found = pieces(&storages, tensors.iter());
        let found_ranges: Vec<_> = found.iter().map(|it| (it.storage.0, it.range.clone())).collect();
        // Storage 1 has the same content as storage 0, and its views together cover the same range.
        assert_eq!(found_ranges, [(0, 0..4096), (2, 5000..5150)]);
        let page = Bytes::kib(4);
        let sizes: Vec<_> = found.iter().map(|it| (it.first(page), it.placed(page).get())).collect();
        assert_eq!(sizes, [(0, 4096), (4096, 4096)]);
    }
}
