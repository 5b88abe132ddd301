//! Locates the records in a zip that `torch.save` has written, reading only the zip's directory and its local headers.
//!
//! This module checks that records do not overlap, lie before the directory and have unique names, and that the records
//! in use are stored uncompressed. It expects torch's layout (`<prefix>/data.pkl`, `<prefix>/data/<key>`). The module
//! `pickle` interprets the pickle.

use std::collections::HashMap;
use std::io;

use rawzip::{CompressionMethod, RECOMMENDED_BUFFER_SIZE, ReaderAt, ZipArchive, ZipLocator};

use super::body::Body;
use super::error::{ErrorKind, Fault, quoted};
use super::limits::{
    DIRECTORY_SEARCH_BYTES, MAX_DIRECTORY_BYTES, MAX_PICKLE_BYTES, MAX_RECORDS, MAX_TRIED_DIRECTORIES,
};
use super::pickle::StorageName;
use crate::units::Bytes;

/// The bytes with which the header of a zip's first record begins.
pub(super) const MAGIC: [u8; 4] = *b"PK\x03\x04";
/// The bytes with which an empty zip begins.
pub(super) const EMPTY_MAGIC: [u8; 4] = *b"PK\x05\x06";

/// Versions of the zip's layout that torch reads (`caffe2/serialize/versions.h`). Torch writes 3.
const FORMAT_VERSIONS: std::ops::RangeInclusive<u64> = 1..=10;
/// The largest size of the record that contains the version: some digits and a newline. A longer record does not
/// contain a version.
const MAX_VERSION_BYTES: u64 = 16;

/// The largest size of the record `byteorder`, whose known values have at most 6 bytes.
const MAX_BYTEORDER_BYTES: u64 = 16;

/// Size of a local header without its name and its extra field.
const LOCAL_HEADER_BYTES: usize = 30;

/// The value of a header's size field which means that the actual size is in the zip64 extra field.
const ZIP64_SIZE: u32 = u32::MAX;

/// One file in the zip.
#[derive(Clone, Debug)]
struct Record {
    /// The position and the size of the record's content in the zip.
    offset: u64,
    bytes: u64,
    crc32: u32,
    /// True if the content is stored without compression.
    stored: bool,
    encrypted: bool,
}

/// The location of a storage in the file.
#[derive(Clone, Debug)]
pub(super) struct StorageLocation {
    pub(super) name: String,
    pub(super) offset: u64,
    /// Size of the whole record, which its CRC covers.
    pub(super) record_bytes: u64,
    pub(super) crc32: Option<u32>,
}

pub(super) struct Archive<'a> {
    file: &'a Body,
    records: HashMap<String, Record>,
    prefix: String,
    /// False if torch was configured not to compute CRCs. All of them are then 0.
    has_crcs: bool,
}

struct Reader<'a>(&'a Body);

impl ReaderAt for Reader<'_> {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        loop {
            match self.0.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result,
            }
        }
    }
}

impl<'a> Archive<'a> {
    pub(super) fn open(file: &'a Body, file_bytes: u64) -> Result<Self, Fault> {
        let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
        let zip = locate(file, file_bytes, &mut buffer)?;
        let records = read_records(file, &zip, &mut buffer)?;
        let prefix = prefix(&records)?;
        let has_crcs = records
            .get(&format!("{prefix}/data.pkl"))
            .is_some_and(|record| record.crc32 != 0 || record.bytes == 0);
        Ok(Self { file, records, prefix, has_crcs })
    }

    /// Reads the pickle, after checking that this reader supports the kind of archive, its byte order and its version.
    pub(super) fn pickle(&self) -> Result<Vec<u8>, Fault> {
        if self.has("constants.pkl") {
            return Err(Fault::unsupported("it is a TorchScript archive (record the call with torch.save)"));
        }
        if self.has("byteorder") {
            let order = self.read("byteorder", MAX_BYTEORDER_BYTES)?;
            if order != b"little" {
                let order = String::from_utf8_lossy(&order);
                return Err(Fault::unsupported(format!(
                    "its storages have the byte order {}, and this program reads only `little`",
                    quoted(&order)
                )));
            }
        }
        self.check_version()?;
        let bytes = self.read("data.pkl", MAX_PICKLE_BYTES)?;
        if self.has_crcs && crc32fast::hash(&bytes) != self.record("data.pkl")?.crc32 {
            return Err(Fault::new(
                ErrorKind::CrcMismatch,
                "the CRC of data.pkl does not match (the file is damaged: copy it or save it again)",
            ));
        }
        Ok(bytes)
    }

    /// Checks the version of the zip's layout. A zip without a version is accepted, because nothing else in it depends
    /// on the version.
    fn check_version(&self) -> Result<(), Fault> {
        // The second name was used by TorchScript.
        for name in ["version", ".data/version"] {
            if !self.has(name) {
                continue;
            }
            let text = self.read(name, MAX_VERSION_BYTES)?;
            let version = std::str::from_utf8(&text).ok().and_then(|text| text.trim_end().parse().ok());
            if !version.is_some_and(|version| FORMAT_VERSIONS.contains(&version)) {
                let found = quoted(&String::from_utf8_lossy(&text));
                let (first, last) = (FORMAT_VERSIONS.start(), FORMAT_VERSIONS.end());
                return Err(Fault::unsupported(format!(
                    "its format version is {found}, and this program reads {first} to {last}"
                )));
            }
        }
        Ok(())
    }

    pub(super) fn storage(&self, storage: &StorageName) -> Result<StorageLocation, Fault> {
        let name = format!("data/{}", storage.key);
        // Some writers leave out empty records.
        if storage.bytes == 0 && !self.has(&name) {
            return Ok(StorageLocation { name, offset: 0, record_bytes: 0, crc32: None });
        }
        let record = self.record(&name)?;
        if record.bytes < storage.bytes {
            return Err(Fault::new(
                ErrorKind::OutOfBounds,
                format!(
                    "record {} has {} bytes, but its storage has {}",
                    quoted(&name),
                    record.bytes,
                    storage.bytes
                ),
            ));
        }
        Ok(StorageLocation {
            name,
            offset: record.offset,
            record_bytes: record.bytes,
            crc32: self.has_crcs.then_some(record.crc32),
        })
    }

    fn has(&self, name: &str) -> bool {
        self.records.contains_key(&format!("{}/{name}", self.prefix))
    }

    /// Finds a record by its name below the prefix.
    fn record(&self, name: &str) -> Result<&Record, Fault> {
        let record = self.records.get(&format!("{}/{name}", self.prefix)).ok_or_else(|| {
            Fault::new(ErrorKind::MissingRecord, format!("the zip has no record {}", quoted(name)))
        })?;
        if record.encrypted {
            return Err(Fault::unsupported(format!("record {} is encrypted", quoted(name))));
        }
        if !record.stored {
            return Err(Fault::new(
                ErrorKind::UnsupportedCompression,
                format!(
                    "record {} is compressed (save it with torch.save, which does not compress)",
                    quoted(name)
                ),
            ));
        }
        Ok(record)
    }

    fn read(&self, name: &str, limit: u64) -> Result<Vec<u8>, Fault> {
        let record = self.record(name)?;
        if record.bytes > limit {
            let limit = format!("{limit} bytes");
            return Err(Fault::limit(&format!("record {name} has {} bytes", record.bytes), limit));
        }
        let mut bytes = vec![0; Bytes::new(record.bytes).to_usize()];
        self.file.read_exact_at(&mut bytes, record.offset).map_err(|source| Fault::read(name, source))?;
        Ok(bytes)
    }
}

/// Finds the zip's directory by its end signature. The zip's comment may contain false signatures. The true one belongs
/// to a zip that ends where the file ends. If there is no such signature, bytes after the zip are accepted, as in
/// torch.
fn locate<'a>(file: &'a Body, file_bytes: u64, buffer: &mut [u8]) -> Result<ZipArchive<Reader<'a>>, Fault> {
    let locator = ZipLocator::new().max_search_space(DIRECTORY_SEARCH_BYTES);
    let mut end = file_bytes;
    let mut first = None;
    for _ in 0..MAX_TRIED_DIRECTORIES {
        let found = locator.locate_in_reader(Reader(file), buffer, end);
        let signature = match &found {
            Ok(zip) if zip.end_offset() == file_bytes => return found.map_err(|_| no_directory()),
            Ok(zip) => Some(zip.eocd_offset()),
            Err((_, source)) => source.eocd_offset(),
        };
        if !matches!(first, Some(Ok(_))) {
            match found {
                Ok(zip) => first = Some(Ok(zip)),
                Err((_, source)) if first.is_none() => {
                    first = Some(Err(zip_fault("the end of its directory", source)));
                }
                Err(_) => {}
            }
        }
        match signature {
            Some(signature) if signature < end => end = signature,
            _ => break,
        }
    }
    first.unwrap_or_else(|| Err(no_directory()))
}

const NO_DIRECTORY: &str =
    "the zip has no directory, so the end of the file is probably missing (copy it or save it again)";

fn no_directory() -> Fault {
    Fault::new(ErrorKind::Truncated, NO_DIRECTORY)
}

fn read_records(
    file: &Body,
    zip: &ZipArchive<Reader<'_>>,
    buffer: &mut [u8],
) -> Result<HashMap<String, Record>, Fault> {
    let corrupt = |detail: String| Fault::new(ErrorKind::CorruptZip, detail);
    let directory = zip.directory_offset();
    if directory > zip.eocd_offset() {
        return Err(corrupt("its directory begins after its end-of-directory record".to_owned()));
    }
    if zip.eocd_offset().saturating_sub(directory) > MAX_DIRECTORY_BYTES {
        return Err(Fault::limit("the directory of the zip is too long", Bytes::new(MAX_DIRECTORY_BYTES)));
    }
    if zip.entries_hint() > MAX_RECORDS {
        return Err(Fault::limit("the zip has too many records", MAX_RECORDS));
    }
    let mut records = HashMap::new();
    let mut ranges = Vec::new();
    let mut entries = zip.entries(buffer);
    while let Some(entry) = entries.next_entry().map_err(|source| zip_fault("its directory", source))? {
        if records.len() as u64 >= zip.entries_hint() {
            return Err(corrupt("the zip's directory lists more records than its end says".to_owned()));
        }
        let name = std::str::from_utf8(entry.file_path().as_bytes())
            .map_err(|source| corrupt("the name of a record is not UTF-8".to_owned()).because(source))?;
        let stored = entry.compression_method() == CompressionMethod::STORE;
        let bytes = entry.compressed_size_hint();
        if stored && bytes != entry.uncompressed_size_hint() {
            return Err(corrupt(format!(
                "record {} is not compressed, but its two sizes differ",
                quoted(name)
            )));
        }
        let header = entry.local_header_offset();
        let reaches_too_far =
            || corrupt(format!("record {} does not end before the zip's directory", quoted(name)));
        if header >= directory {
            return Err(reaches_too_far());
        }
        let local = LocalHeader::read(file, header, name)?;
        let local_size_agrees = local.sizes_follow
            || local.compressed_bytes == ZIP64_SIZE
            || u64::from(local.compressed_bytes) == bytes;
        if local.method != entry.compression_method().as_u16() || !local_size_agrees {
            return Err(corrupt(format!(
                "the local header of record {} differs from the directory",
                quoted(name)
            )));
        }
        let offset = local.data_offset;
        let end = offset.checked_add(bytes).filter(|&end| end <= directory).ok_or_else(reaches_too_far)?;
        ranges.push((header, end));
        let record =
            Record { offset, bytes, crc32: entry.crc32(), stored, encrypted: entry.flags().is_encrypted() };
        if records.insert(name.to_owned(), record).is_some() {
            return Err(corrupt(format!("there are two records {}", quoted(name))));
        }
    }
    if records.len() as u64 != zip.entries_hint() {
        return Err(corrupt("the zip's directory lists fewer records than its end says".to_owned()));
    }
    ranges.sort_unstable();
    if ranges.windows(2).any(|pair| pair[0].1 > pair[1].0) {
        return Err(corrupt("two records overlap".to_owned()));
    }
    Ok(records)
}

/// The fields that we need from the header before a record's data. It is parsed here, because rawzip would read each
/// header in full three times, and headers of page-aligned records contain up to a page of padding.
struct LocalHeader {
    data_offset: u64,
    method: u16,
    /// True if the sizes and the CRC are stored after the data instead of in this header. They are also in the
    /// directory.
    sizes_follow: bool,
    compressed_bytes: u32,
}

impl LocalHeader {
    fn read(file: &Body, offset: u64, name: &str) -> Result<Self, Fault> {
        let shown = || format!("the local header of record {}", quoted(name));
        let mut bytes = vec![0; LOCAL_HEADER_BYTES + name.len()];
        file.read_exact_at(&mut bytes, offset).map_err(|source| Fault::read(&shown(), source))?;
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let lengths = u64::from(u16_at(26)) + u64::from(u16_at(28));
        if bytes[..4] != MAGIC
            || usize::from(u16_at(26)) != name.len()
            || bytes[LOCAL_HEADER_BYTES..] != *name.as_bytes()
        {
            return Err(Fault::new(
                ErrorKind::CorruptZip,
                format!("{} is not where the directory says", shown()),
            ));
        }
        let data_offset = offset.checked_add(LOCAL_HEADER_BYTES as u64 + lengths).ok_or_else(|| {
            Fault::new(ErrorKind::CorruptZip, format!("{} ends beyond the largest offset", shown()))
        })?;
        Ok(Self {
            data_offset,
            method: u16_at(8),
            sizes_follow: u16_at(6) & 0x0008 != 0,
            compressed_bytes: u32::from_le_bytes([bytes[18], bytes[19], bytes[20], bytes[21]]),
        })
    }
}

/// The folder that contains all records of a capture.
fn prefix(records: &HashMap<String, Record>) -> Result<String, Fault> {
    let mut prefixes = records
        .keys()
        .filter_map(|name| name.strip_suffix("/data.pkl"))
        .filter(|prefix| !prefix.contains('/'));
    let prefix = prefixes.next().ok_or_else(|| {
        let ends = |suffix: &str| records.keys().any(|name| name.ends_with(suffix));
        let what = match () {
            () if ends(".npy") => "it is a numpy archive (.npz; record the call with torch.save)",
            () if records.contains_key("META-INF/MANIFEST.MF") => "it is a Java archive",
            () if ends("model.json") || ends("/constants.pkl") => "it is a TorchScript archive",
            () if ends(".pt") => "it is an archive of captures; unpack it first",
            () => "torch.save did not write it",
        };
        Fault::new(ErrorKind::MissingRecord, format!("the zip has no data.pkl ({what})"))
    })?;
    if prefixes.next().is_some() {
        return Err(Fault::new(ErrorKind::CorruptZip, "the zip contains more than one data.pkl"));
    }
    Ok(prefix.to_owned())
}

fn zip_fault(what: &str, source: rawzip::Error) -> Fault {
    use rawzip::ErrorKind as Zip;
    let (kind, detail) = match source.kind() {
        Zip::MissingEndOfCentralDirectory => (ErrorKind::Truncated, NO_DIRECTORY.into()),
        Zip::Eof => (ErrorKind::Truncated, format!("the zip ends inside {what}")),
        Zip::IO(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            (ErrorKind::Truncated, format!("the zip ends inside {what}"))
        }
        // The offset is larger than that of any byte in any file.
        Zip::IO(error) if error.kind() == io::ErrorKind::InvalidInput => {
            (ErrorKind::CorruptZip, format!("{what} is at an offset beyond the largest possible file"))
        }
        Zip::IO(_) => (ErrorKind::Io, format!("could not read {what}")),
        Zip::BufferTooSmall { .. } => (ErrorKind::Limit, format!("a part of {what} is too long to be read")),
        _ => (ErrorKind::CorruptZip, format!("the zip is damaged in {what}")),
    };
    Fault::new(kind, detail).because(source)
}
