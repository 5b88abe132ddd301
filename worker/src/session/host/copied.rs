//! Copies the inputs of a profile to an arena, so that calls are timed with inputs in memory instead of in their files.
//! The candidate and the baseline use the same copies.
//!
//! A part of a storage that several entries share (by digest) is loaded once, and stays if the next batch needs it too.
//! Runners map the arena like a file: read-only, and only their own ranges.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::sync::Arc;

use opt_shared::arguments::Piece;
use opt_shared::batch::BatchSum;
use opt_shared::capture::store::BlobId;
use opt_shared::formula::{LOAD_SLOTS, STAGING_SLOT};
use opt_shared::ids::EntryId;
use opt_shared::message::EntryRef;
use opt_shared::stream::{FileDisk, read_exact};
use opt_shared::units::Bytes;

use super::placed::{Placed, StoragePart};
use crate::link::{Held, Link};
use crate::recorded::Recorded;
use crate::residency::device::DeviceError;
use crate::residency::host::HostDevice;
use crate::residency::ledger::Kind;
use crate::residency::load::{Load, Origin, Residency};
use crate::residency::staging::{Source, StagingError};

/// An error that kept the inputs of a batch from being copied.
#[derive(Debug)]
pub(crate) struct Uncopied {
    /// The entry whose capture is the cause; `None` if no capture is.
    pub(crate) entry: Option<usize>,
    pub(crate) error: StagingError,
}

/// Identifies bytes by their content if that is known, otherwise by their location.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Content { blob: BlobId, begins: u64, start: u64, end: u64 },
    Own { entry: EntryId, storage: u32, start: u64 },
}

impl Key {
    fn of(entry: EntryId, piece: &Piece) -> Self {
        match piece.content {
            Some((blob, begins)) => {
                Self::Content { blob, begins, start: piece.range.start, end: piece.range.end }
            }
            None => Self::Own { entry, storage: piece.storage.0, start: piece.range.start },
        }
    }
}

pub(crate) struct CopiedInputs {
    residency: Residency<HostDevice, Key>,
    /// A descriptor that can only be read.
    arena: Arc<File>,
    /// The keys of the current batch.
    uses: Vec<Key>,
}

impl CopiedInputs {
    /// Creates an arena of the predicted size for the largest of these batches.
    pub(crate) fn create<'a>(batches: impl Iterator<Item = &'a [EntryRef]>) -> Result<Self, DeviceError> {
        let room = batches.map(placed_bytes).max().unwrap_or_default();
        let device = HostDevice::create(room)?;
        let arena = Arc::new(device.reader()?);
        let residency = Residency::new(device, LOAD_SLOTS, STAGING_SLOT);
        Ok(Self { residency, arena, uses: Vec::new() })
    }

    pub(crate) fn held(&self) -> Bytes {
        self.residency.ledger().held(Kind::Weight)
    }

    /// Copies the inputs of a batch. The runners that mapped earlier inputs must have ended.
    pub(crate) fn load(&mut self, link: &Link, entries: &mut [Placed]) -> Result<(), Uncopied> {
        let page = Bytes::from(rustix::param::page_size());
        let failed = Cell::new(None);
        let mut copies: BTreeMap<Key, usize> = BTreeMap::new();
        let mut origins: Vec<(Key, PieceOrigin<'_>)> = Vec::new();
        let mut tensors = Vec::new();
        for (number, entry) in entries.iter().enumerate() {
            let entry: &Recorded = entry.as_ref();
            for piece in entry.pieces() {
                let key = Key::of(entry.id, &piece);
                let at = *copies.entry(key.clone()).or_insert_with(|| {
                    let first = piece.first(page);
                    origins.push((key, PieceOrigin { entry, number, piece, first, failed: &failed }));
                    origins.len() - 1
                });
                tensors.push(at);
            }
        }
        let storages: Vec<(Key, &dyn Origin)> =
            origins.iter().map(|(key, origin)| (key.clone(), origin as &dyn Origin)).collect();
        let load = Load { storages: &storages, tensors: &tensors, after: &[], instead_of: &self.uses };
        // The supervisor must charge the memory from before it is allocated until after it is freed.
        let needed: Bytes = origins.iter().map(|(_, origin)| origin.piece.placed(page)).sum();
        link.holds(Held::Inputs, needed.max(self.held()));
        self.residency.load(&load).map_err(|error| Uncopied { entry: failed.get(), error })?;
        self.uses = tensors.iter().map(|&at| origins[at].0.clone()).collect();
        link.holds(Held::Inputs, self.held());
        for entry in entries {
            let recorded: &Recorded = (*entry).as_ref();
            let (id, pieces) = (recorded.id, recorded.pieces());
            let contents: Vec<_> =
                recorded.capture.storages().iter().map(|it| (it.blob, it.file_offset)).collect();
            let offset_of = |storage_part: &StoragePart| {
                let piece = piece_of(&pieces, storage_part, &contents)?;
                let buffer = self.residency.buffer(&Key::of(id, piece))?;
                Some(buffer.address() + (storage_part.within.start - piece.first(page)))
            };
            entry.move_inputs(&self.arena, offset_of).ok_or(Uncopied {
                entry: None,
                error: StagingError::NoStorage { storage: contents.len(), storages: pieces.len() },
            })?;
        }
        Ok(())
    }
}

/// Returns the size of a batch's copies. Bytes that several entries share count once.
fn placed_bytes(entries: &[EntryRef]) -> Bytes {
    let mut sum = BatchSum::default();
    entries
        .iter()
        .map(|entry| sum.add(entry.numbers.copied, &entry.numbers.constants, |constant| constant.placed))
        .last()
        .unwrap_or_default()
}

fn piece_of<'a>(
    pieces: &'a [Piece],
    storage_part: &StoragePart,
    contents: &[(Option<BlobId>, u64)],
) -> Option<&'a Piece> {
    let covers = |piece: &&Piece| {
        piece.range.start <= storage_part.within.start && storage_part.within.end <= piece.range.end
    };
    let in_same_storage = pieces.iter().filter(covers).find(|piece| piece.storage == storage_part.storage);
    in_same_storage.or_else(|| {
        let (blob, begins) = *contents.get(storage_part.storage.index())?;
        let content = Some((blob?, begins));
        pieces.iter().filter(covers).find(|piece| piece.content == content)
    })
}

/// A part of a storage, which is read from the offset `first` on. The bytes between `first` and the part belong to the
/// same storage, but no runner can see them.
struct PieceOrigin<'a> {
    entry: &'a Recorded,
    number: usize,
    piece: Piece,
    /// The offset in the storage at which reading starts.
    first: u64,
    /// Set to `number` if a read fails.
    failed: &'a Cell<Option<usize>>,
}

/// The opened file of a part, which is read from `begins` on.
struct PieceSource<'a> {
    origin: &'a PieceOrigin<'a>,
    disk: FileDisk,
    begins: u64,
}

impl PieceOrigin<'_> {
    fn note<T>(&self, result: io::Result<T>) -> io::Result<T> {
        result.inspect_err(|_| self.failed.set(Some(self.number)))
    }
}

impl Origin for PieceOrigin<'_> {
    fn bytes(&self) -> Bytes {
        Bytes::new(self.piece.range.end - self.first)
    }

    fn describe(&self) -> String {
        let storage = self.entry.capture.storage(self.piece.storage);
        format!("{} of {}", storage.name, self.entry.name)
    }

    fn open(&self) -> io::Result<Box<dyn Source + '_>> {
        let storage = self.entry.capture.storage(self.piece.storage);
        let opened = self.entry.capture.file_of(storage.blob).and_then(|file| FileDisk::new(&file, 1));
        let begins = storage.file_offset + self.first;
        Ok(Box::new(PieceSource { origin: self, disk: self.note(opened)?, begins }))
    }
}

impl Source for PieceSource<'_> {
    fn bytes(&self) -> Bytes {
        self.origin.bytes()
    }

    fn describe(&self) -> String {
        self.origin.describe()
    }

    fn read_at(&mut self, at: Bytes, into: &mut [u8]) -> io::Result<()> {
        let read = read_exact(&self.disk, into, self.begins + at.get()).map_err(|fault| fault.source);
        self.origin.note(read)
    }
}

#[cfg(test)]
mod tests {
    use opt_shared::batch::Constant;
    use opt_shared::ids::StorageId;
    use opt_shared::numbers::EntryNumbers;

    use super::*;

    fn piece(storage: u32, blob: Option<u8>, range: std::ops::Range<u64>) -> Piece {
        Piece { storage: StorageId(storage), content: blob.map(|blob| (BlobId([blob; 32]), 0)), range }
    }

    #[test]
    fn piece_is_found_by_storage_or_by_content() {
        let pieces = [piece(0, Some(1), 0..100), piece(2, None, 50..80), piece(2, None, 90..99)];
        let blob = Some(BlobId([1; 32]));
        let contents = [(blob, 0), (blob, 0), (None, 64), (None, 64)];
        let find = |storage, within| {
            let storage_part = StoragePart { storage: StorageId(storage), within };
            piece_of(&pieces, &storage_part, &contents).map(|piece| (piece.storage.0, piece.range.start))
        };
        assert_eq!(find(0, 10..100), Some((0, 0)));
        // Storage 1 has the content of storage 0; the content of storage 3 is unknown.
        assert_eq!(find(1, 0..100), Some((0, 0)));
        assert_eq!(find(2, 90..95), Some((2, 90)));
        assert_eq!(find(2, 79..91), None);
        assert_eq!(find(3, 0..1), None);
    }

    #[test]
    fn shared_constants_are_counted_once_in_a_batch() {
        let table = Constant { id: 3, bytes: Bytes::new(9), placed: Bytes::kib(8) };
        let entry = |copied_kib, constants: &[Constant]| EntryRef {
            id: EntryId(0),
            name: String::new(),
            path: std::path::PathBuf::new(),
            identity: None,
            weight: 1,
            repeated: Vec::new(),
            numbers: EntryNumbers {
                copied: Bytes::kib(copied_kib),
                constants: constants.into(),
                ..EntryNumbers::default()
            },
        };
        let entries = [entry(12, &[table]), entry(9, &[table]), entry(4, &[])];
        assert_eq!(placed_bytes(&entries), Bytes::kib(12 + 1 + 4));
        assert_eq!(placed_bytes(&[]), Bytes::ZERO);
    }
}
