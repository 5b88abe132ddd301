//! An opened capture: its values, the locations of its storages, and bounded reads of them.
//!
//! Opening a capture reads the zip directory, the local headers and small records such as the pickle, but no tensor
//! data. If the file is in torch's old format, opening reads its beginning, which may include tensor data. Every read
//! states its offset, so threads can share a capture.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::archive::{self, Archive, StorageLocation};
use super::body::Body;
use super::error::{CaptureError, ErrorKind, Fault, quoted};
use super::foreign;
use super::legacy::{self, Legacy};
use super::limits::CHUNK_BYTES;
use super::pickle::{StorageName, unpickle};
use super::store::{self, BlobId, Packed};
use super::value::{Storage, Value};
use crate::ids::StorageId;
use crate::stream::{FileDisk, ReadFault, Shape, stream};
use crate::units::Bytes;

/// Number of threads that read a storage to check it. Because of Linux's read-ahead, one thread reads as fast as
/// several.
const CRC_READERS: usize = 1;

/// A capture whose pickle has been read. The bytes of its tensors remain in the file.
pub struct CaptureFile {
    path: PathBuf,
    body: Body,
    bytes: u64,
    root: Value,
    storages: Vec<Storage>,
    /// Size of each storage's whole record, which its CRC covers.
    record_bytes: Vec<u64>,
    records: Vec<RecordRange>,
}

/// The range of a storage's record in the `.pt` file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecordRange {
    pub offset: u64,
    pub bytes: u64,
    /// `None` if the writer did not compute a CRC.
    pub crc32: Option<u32>,
}

/// Shows a capture without its values, because there may be many.
impl fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CaptureFile")
            .field("path", &self.path)
            .field("bytes", &self.bytes)
            .field("storages", &self.storages.len())
            .finish_non_exhaustive()
    }
}

struct Contents {
    root: Value,
    storages: Vec<(StorageName, StorageLocation)>,
    /// Storages that the pickle names but no value uses.
    unused: Vec<StorageLocation>,
}

impl CaptureFile {
    pub fn open(path: &Path) -> Result<Self, CaptureError> {
        Self::read(path).map_err(|fault| fault.at(path))
    }

    fn read(path: &Path) -> Result<Self, Fault> {
        // The type is checked first, because opening a FIFO would wait for a writer.
        let could_not_open = |source| Fault::new(ErrorKind::Io, "could not open it").because(source);
        require_regular(&std::fs::metadata(path).map_err(could_not_open)?)?;
        let file = File::open(path).map_err(could_not_open)?;
        let metadata = file.metadata().map_err(could_not_open)?;
        require_regular(&metadata)?;
        let mut magic = [0; store::MAGIC.len()];
        let begins = file.read_at(&mut magic, 0).map_err(|source| Fault::read("its first bytes", source))?;
        let file = Arc::new(file);
        let (body, bytes) = if begins == magic.len() && magic == store::MAGIC {
            let packed = Packed::open(path, file)?;
            let bytes = packed.file_bytes();
            (Body::Packed(packed), bytes)
        } else {
            (Body::Whole(file), metadata.len())
        };
        let contents = read_contents(&body, bytes)?;
        let mut storages = Vec::with_capacity(contents.storages.len());
        let mut record_bytes = Vec::with_capacity(contents.storages.len());
        let used = contents.storages.iter().map(|(_, place)| place);
        let records = records(used.chain(&contents.unused));
        for (number, (name, place)) in contents.storages.into_iter().enumerate() {
            let id = StorageId(
                u32::try_from(number).map_err(|_| Fault::limit("it has too many storages", u32::MAX))?,
            );
            let (blob, file_offset) = match &body {
                Body::Packed(packed) if place.record_bytes != 0 => {
                    packed.locate(place.offset, place.record_bytes)?
                }
                _ => (None, place.offset),
            };
            record_bytes.push(place.record_bytes);
            storages.push(Storage {
                id,
                bytes: Bytes::new(name.bytes),
                file_offset,
                blob,
                crc32: place.crc32,
                name: place.name,
            });
        }
        let root = contents.root;
        Ok(Self { path: path.to_owned(), body, bytes, root, storages, record_bytes, records })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// True if the capture is in a capture store.
    pub fn is_packed(&self) -> bool {
        matches!(self.body, Body::Packed(_))
    }

    /// Returns the file that contains the storages with this `blob`. For a capture in a store, this is a blob or the
    /// manifest; otherwise, it is the capture's file.
    pub fn file_of(&self, blob: Option<BlobId>) -> io::Result<Arc<File>> {
        match &self.body {
            Body::Whole(file) => Ok(file.clone()),
            Body::Packed(packed) => packed.file_of(blob),
        }
    }

    /// All files that contain the capture's bytes, except the manifest of a packed entry.
    pub fn data_files(&self) -> io::Result<Vec<Arc<File>>> {
        match &self.body {
            Body::Whole(file) => Ok(vec![file.clone()]),
            Body::Packed(packed) => {
                packed.blobs().into_iter().map(|(id, _)| packed.file_of(Some(id))).collect()
            }
        }
    }

    /// Returns the records of all storages that the pickle names, in the order of the file, without empty or repeated
    /// ones.
    pub fn records(&self) -> &[RecordRange] {
        &self.records
    }

    /// Size of the `.pt` file. For a capture in a store, this is the size before packing.
    pub fn file_bytes(&self) -> Bytes {
        Bytes::new(self.bytes)
    }

    pub fn root(&self) -> &Value {
        &self.root
    }

    /// The storages in order of first appearance in the root. A storage's id is its index.
    pub fn storages(&self) -> &[Storage] {
        &self.storages
    }

    /// Returns the storage with this id. With an id from another capture, it returns a wrong storage or panics.
    pub fn storage(&self, id: StorageId) -> &Storage {
        &self.storages[id.index()]
    }

    /// Reads the whole record of a storage and compares its CRC, if the writer computed one, and its digest, if the
    /// record is a blob. If there is neither, it reads nothing and succeeds.
    pub fn check_storage(&self, id: StorageId) -> Result<(), CaptureError> {
        let storage = self.storage(id);
        let record_bytes = self.record_bytes[id.index()];
        let blob = self.whole_blob(storage, record_bytes)?;
        if storage.crc32.is_none() && blob.is_none() {
            return Ok(());
        }
        let (mut crc, mut digest) = (crc32fast::Hasher::new(), blake3::Hasher::new());
        let unread =
            |source| Fault::read(&format!("storage {}", quoted(&storage.name)), source).at(&self.path);
        let disk =
            self.file_of(storage.blob).and_then(|file| FileDisk::new(&file, CRC_READERS)).map_err(unread)?;
        let record = storage.file_offset..storage.file_offset + record_bytes;
        let shape = Shape { chunk: Bytes::new(CHUNK_BYTES.min(record_bytes)), readers: CRC_READERS };
        stream(&disk, record, shape, |chunk| {
            crc.update(chunk);
            if blob.is_some() {
                digest.update(chunk);
            }
            Ok(())
        })
        .map_err(|fault: ReadFault| unread(fault.source))?;
        let digest = BlobId::from(digest.finalize());
        if let Some((_, path)) = blob.filter(|(blob, _)| *blob != digest) {
            let path = path.display();
            let detail = format!("blob {path} is damaged: its digest is {digest} (run `captures check`)");
            return Err(Fault::new(ErrorKind::CorruptStore, detail).at(&self.path));
        }
        let found = crc.finalize();
        let Some(expected) = storage.crc32.filter(|&expected| expected != found) else { return Ok(()) };
        let detail = format!(
            "the CRC of record {} is {found:08x}, but the directory says {expected:08x} (the file is damaged: copy it \
             or save it again)",
            quoted(&storage.name)
        );
        Err(Fault::new(ErrorKind::CrcMismatch, detail).at(&self.path))
    }

    /// Finds the blob that consists of exactly this record, and its path.
    fn whole_blob(
        &self,
        storage: &Storage,
        record_bytes: u64,
    ) -> Result<Option<(BlobId, PathBuf)>, CaptureError> {
        let (Some(id), Body::Packed(packed)) = (storage.blob, &self.body) else { return Ok(None) };
        let path = packed.blob_path(id);
        let metadata = packed.file_of(Some(id)).and_then(|file| file.metadata()).map_err(|source| {
            let detail = format!("could not open blob {}", path.display());
            Fault::new(ErrorKind::Io, detail).because(source).at(&self.path)
        })?;
        let is_whole = storage.file_offset == 0 && metadata.len() == record_bytes;
        Ok(is_whole.then_some((id, path)))
    }

    /// Fills `buffer` from a storage.
    pub fn read_range(
        &self,
        id: StorageId,
        offset_in_storage: u64,
        buffer: &mut [u8],
    ) -> Result<(), CaptureError> {
        let storage = self.storage(id);
        let end = offset_in_storage.checked_add(buffer.len() as u64);
        if end.is_none_or(|end| end > storage.bytes.get()) {
            let detail = format!(
                "a read of {} bytes at offset {offset_in_storage} goes beyond storage {}, which has {} bytes",
                buffer.len(),
                quoted(&storage.name),
                storage.bytes.get()
            );
            return Err(Fault::new(ErrorKind::OutOfBounds, detail).at(&self.path));
        }
        // This cannot overflow, because opening checked that the record ends within the file.
        self.read_at(storage, buffer, storage.file_offset + offset_in_storage)
    }

    fn read_at(&self, storage: &Storage, buffer: &mut [u8], offset: u64) -> Result<(), CaptureError> {
        let read = self.file_of(storage.blob).and_then(|file| file.read_exact_at(buffer, offset));
        read.map_err(|source| {
            Fault::read(&format!("storage {}", quoted(&storage.name)), source).at(&self.path)
        })
    }
}

fn records<'p>(places: impl Iterator<Item = &'p StorageLocation>) -> Vec<RecordRange> {
    let mut records: Vec<RecordRange> = places
        .filter(|place| place.record_bytes != 0)
        .map(|place| RecordRange { offset: place.offset, bytes: place.record_bytes, crc32: place.crc32 })
        .collect();
    records.sort_unstable();
    records.dedup();
    records
}

fn require_regular(metadata: &std::fs::Metadata) -> Result<(), Fault> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(Fault::new(ErrorKind::Io, "it is not a regular file"))
}

fn read_contents(file: &Body, file_bytes: u64) -> Result<Contents, Fault> {
    let mut start = vec![0; foreign::LOOKED_AT_BYTES.min(Bytes::new(file_bytes).to_usize())];
    file.read_exact_at(&mut start, 0).map_err(|source| Fault::read("its first bytes", source))?;
    if start.is_empty() {
        return Err(Fault::new(ErrorKind::BadMagic, "the file is empty"));
    }
    if start.starts_with(&archive::MAGIC) || start.starts_with(&archive::EMPTY_MAGIC) {
        return read_archive(file, file_bytes);
    }
    if start[0] == legacy::MAGIC {
        return read_legacy(file, file_bytes);
    }
    let what = foreign::what_it_is(&start, file_bytes).unwrap_or("neither a zip nor in torch's old format");
    Err(Fault::new(ErrorKind::BadMagic, format!("it is not a torch.save file: it is {what}")))
}

fn read_archive(file: &Body, file_bytes: u64) -> Result<Contents, Fault> {
    let archive = Archive::open(file, file_bytes)?;
    let pickle = archive.pickle()?;
    // The record's length is taken from the directory. If the pickle needs more bytes than that, the pickle is
    // malformed, and the file is not truncated.
    let unpickled = unpickle(&pickle).map_err(|mut fault| {
        if fault.kind == ErrorKind::Truncated {
            fault.kind = ErrorKind::BadPickle;
        }
        fault
    })?;
    let unused = unpickled.unused.iter().map(|name| archive.storage(name)).collect::<Result<_, _>>()?;
    let mut storages = Vec::with_capacity(unpickled.storages.len());
    for name in unpickled.storages {
        let location = archive.storage(&name)?;
        storages.push((name, location));
    }
    Ok(Contents { root: unpickled.root, storages, unused })
}

fn read_legacy(file: &Body, file_bytes: u64) -> Result<Contents, Fault> {
    let legacy = Legacy::open(file, file_bytes)?;
    let object = legacy.object()?;
    let mut locations = legacy.locations(&object)?;
    let mut take = |name: &StorageName| {
        locations.remove(&name.key).ok_or_else(|| {
            Fault::new(
                ErrorKind::MissingRecord,
                format!("its pickle names storage {}, which is not in the file", quoted(&name.key)),
            )
        })
    };
    let unused = object.unused.iter().map(&mut take).collect::<Result<_, _>>()?;
    let mut storages = Vec::with_capacity(object.storages.len());
    for name in object.storages {
        let location = take(&name)?;
        storages.push((name, location));
    }
    Ok(Contents { root: object.root, storages, unused })
}
