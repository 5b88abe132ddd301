//! Finds, from headers alone, the parts of storages that several entries of a job share.
//!
//! These parts are called constants. Two parts are the same constant if they have the same digest. Only captures in a
//! store have digests. Small parts do not become constants.

use std::collections::BTreeMap;
use std::sync::Arc;

use opt_shared::arguments::Piece;
use opt_shared::batch::Constant;
use opt_shared::capture::store::BlobId;
use opt_shared::units::Bytes;

/// The size of the smallest constant. Smaller parts are counted again for each entry that contains them.
const MIN_SIZE: Bytes = Bytes::kib(64);
/// The largest number of an entry's parts that may become constants. The largest parts are preferred.
const MAX_PER_ENTRY: usize = 64;
/// The largest number of distinct parts of a job that may become constants.
const MAX_PER_JOB: usize = 16_384;

/// Collects the parts of a job's storages, entry by entry. A part becomes a constant if several entries contain it.
#[derive(Debug, Default)]
pub struct Constants {
    /// The id of each part. A part is identified by its blob, the offset in the blob at which the storage begins, and
    /// the start and end of the part in the storage.
    known: BTreeMap<(BlobId, u64, u64, u64), u32>,
    /// The parts by id, each with the number of entries that contain it.
    found: Vec<(Constant, u32)>,
    /// The ids of each entry's parts.
    of_entries: Vec<Vec<u32>>,
}

impl Constants {
    /// Adds the next entry of the job.
    pub fn observe(&mut self, pieces: &[Piece], page: Bytes) {
        let mut large: Vec<&Piece> =
            pieces.iter().filter(|piece| piece.content.is_some() && MIN_SIZE <= piece.bytes()).collect();
        large.sort_by_key(|piece| std::cmp::Reverse(piece.bytes()));
        let ids = large.into_iter().take(MAX_PER_ENTRY).filter_map(|piece| self.id_of(piece, page)).collect();
        self.of_entries.push(ids);
    }

    /// Returns the id of a part, and counts one more entry that contains it. Returns `None` if the part has no digest,
    /// or if it is new and the job already has too many parts.
    fn id_of(&mut self, piece: &Piece, page: Bytes) -> Option<u32> {
        let (blob, begins) = piece.content?;
        let key = (blob, begins, piece.range.start, piece.range.end);
        let id = match self.known.get(&key) {
            Some(&id) => id,
            None if MAX_PER_JOB <= self.found.len() => return None,
            None => {
                let id = u32::try_from(self.found.len()).ok()?;
                self.known.insert(key, id);
                self.found.push((Constant { id, bytes: piece.bytes(), placed: piece.placed(page) }, 0));
                id
            }
        };
        self.found[id as usize].1 += 1;
        Some(id)
    }

    /// Returns for each entry, in order, the constants that it shares with another entry.
    pub fn settle(self) -> impl Iterator<Item = Arc<[Constant]>> {
        let Self { found, of_entries, .. } = self;
        of_entries.into_iter().map(move |ids| {
            let shared = |&id: &u32| {
                let (constant, entries) = found[id as usize];
                (1 < entries).then_some(constant)
            };
            ids.iter().filter_map(shared).collect()
        })
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::ids::StorageId;

    use super::*;

    #[test]
    fn part_of_several_entries_is_a_constant() {
        let piece = |blob: Option<u8>, bytes: u64| Piece {
            storage: StorageId(0),
            content: blob.map(|blob| (BlobId([blob; 32]), 0)),
            range: 0..bytes,
        };
        let table = || piece(Some(1), 100_000);
        let mut constants = Constants::default();
        for pieces in [
            vec![table(), piece(Some(2), 1 << 20)],
            vec![piece(Some(3), 65_535), table()],
            vec![piece(Some(3), 65_535), piece(Some(1), 99_999)],
            vec![piece(None, 1 << 20)],
            vec![piece(None, 1 << 20), table()],
        ] {
            constants.observe(&pieces, Bytes::kib(4));
        }
        let settled: Vec<_> = constants.settle().collect();
        let shown: Vec<Vec<(u64, u64)>> = settled
            .iter()
            .map(|it| it.iter().map(|it| (it.bytes.get(), it.placed.get())).collect())
            .collect();
        let table = vec![(100_000, 102_400)];
        assert_eq!(shown, [table.clone(), table.clone(), vec![], vec![], table]);
        assert_eq!((settled[0][0].id, settled[4][0].id), (settled[1][0].id, settled[1][0].id));
    }

    #[test]
    fn entry_with_many_parts_keeps_its_largest() {
        let piece = |blob: u16| Piece {
            storage: StorageId(0),
            content: Some((BlobId([(blob % 250) as u8; 32]), u64::from(blob))),
            range: 0..1_000_000 - u64::from(blob),
        };
        let mut constants = Constants::default();
        let pieces: Vec<Piece> = (0..400).rev().map(piece).collect();
        constants.observe(&pieces, Bytes::kib(4));
        constants.observe(&pieces, Bytes::kib(4));
        let settled: Vec<_> = constants.settle().collect();
        assert_eq!(settled[0].len(), MAX_PER_ENTRY);
        assert_eq!(settled[0][0].bytes, Bytes::new(1_000_000));
    }
}
