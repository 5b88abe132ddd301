//! Reads the format that torch wrote before version 1.6. A file in this format has one pickle each for the magic
//! number, the protocol, the system, the object and the storage keys, followed by the element count and the bytes of
//! each storage. It contains no offsets, so storages are found by going from one to the next.

use std::collections::HashMap;
use std::sync::Arc;

use num_bigint::BigInt;

use super::archive::StorageLocation;
use super::body::Body;
use super::error::{ErrorKind, Fault, quoted};
use super::limits::{FIRST_LEGACY_READ_BYTES, MAX_PICKLE_BYTES, MAX_STORAGES};
use super::pickle::{StorageName, Unpickled, pickle_length, unpickle};
use super::value::{SequenceKind, Value};
use crate::units::Bytes;

/// The first byte of every pickle since protocol 2.
pub(super) const MAGIC: u8 = 0x80;

/// The value of the first pickle.
const MAGIC_NUMBER: u128 = 0x1950_a86a_20f9_469c_fc6c;

/// The largest size of the first pickle. Its actual size is 15 bytes in protocol 2, and 24 with the frame of later
/// protocols.
const MAX_MAGIC_BYTES: usize = 64;

/// The version of the format. There is no other.
const FORMAT_VERSION: i64 = 1001;

/// The number of pickles: magic number, protocol, system, object and storage keys.
const PICKLES: usize = 5;

pub(super) struct Legacy<'a> {
    file: &'a Body,
    file_bytes: u64,
    /// The bytes before the storages.
    pickles: Vec<u8>,
    /// The offset of each pickle, and of the end of the last one.
    bounds: [usize; PICKLES + 1],
}

impl<'a> Legacy<'a> {
    /// Reads the pickles. The format does not state their lengths, so each read takes more of the file until all
    /// pickles are complete.
    pub(super) fn open(file: &'a Body, file_bytes: u64) -> Result<Self, Fault> {
        let mut pickles = Vec::new();
        let mut bounds = [0; PICKLES + 1];
        let mut wanted = FIRST_LEGACY_READ_BYTES;
        let mut found = 0;
        loop {
            let length = wanted.min(file_bytes);
            let present = pickles.len();
            pickles.resize(usize::try_from(length).unwrap_or(usize::MAX), 0);
            file.read_exact_at(&mut pickles[present..], present as u64)
                .map_err(|source| Fault::read("its pickles", source))?;
            if present == 0 {
                check_magic(&pickles)?;
            }
            if next_bounds(&pickles, file_bytes - length, &mut bounds, &mut found)? {
                break;
            }
            if wanted >= MAX_PICKLE_BYTES {
                return Err(Fault::limit("its pickles are too long", Bytes::new(MAX_PICKLE_BYTES)));
            }
            wanted *= 2;
        }
        pickles.truncate(bounds[PICKLES]);
        Ok(Self { file, file_bytes, pickles, bounds })
    }

    fn pickle(&self, number: usize) -> Result<Unpickled, Fault> {
        unpickle(&self.pickles[self.bounds[number]..self.bounds[number + 1]])
    }

    /// Reads the object, after checking that this reader supports the version and the system of the file.
    pub(super) fn object(&self) -> Result<Unpickled, Fault> {
        if self.pickle(1)?.root != Value::Int(FORMAT_VERSION) {
            return Err(Fault::unsupported(format!(
                "its version of torch's old format is not {FORMAT_VERSION}"
            )));
        }
        let Value::Dict { items: system, .. } = self.pickle(2)?.root else {
            return Err(Fault::bad_pickle("the description of the system is not a dict"));
        };
        let is_little_endian = system
            .iter()
            .find(|(key, _)| matches!(key, Value::Str(key) if &**key == "little_endian"))
            .is_none_or(|(_, value)| *value == Value::Bool(true));
        if !is_little_endian {
            return Err(Fault::unsupported(
                "it was written on a big-endian machine, and this program reads only little-endian storages",
            ));
        }
        self.pickle(3)
    }

    /// Finds the location of each storage, by key.
    pub(super) fn locations(&self, object: &Unpickled) -> Result<HashMap<Arc<str>, StorageLocation>, Fault> {
        let Value::Sequence { kind: SequenceKind::List, items: keys } = self.pickle(4)?.root else {
            return Err(Fault::bad_pickle("the storage keys are not a list"));
        };
        if keys.len() > MAX_STORAGES {
            return Err(Fault::limit("it has too many storages", MAX_STORAGES));
        }
        let named: HashMap<&str, &StorageName> =
            object.storages.iter().chain(&object.unused).map(|storage| (&*storage.key, storage)).collect();
        let mut locations = HashMap::new();
        let mut offset = self.bounds[PICKLES] as u64;
        for key in keys.iter() {
            let Value::Str(key) = key else {
                return Err(Fault::bad_pickle("a storage key is not a string"));
            };
            let storage = named.get(&**key).ok_or_else(|| {
                Fault::bad_pickle(format!("storage {} is listed, but no object uses it", quoted(key)))
            })?;
            let location = self.location(storage, offset)?;
            // Locations are checked against the length of the file, so the sum does not overflow.
            offset = location.offset + location.record_bytes;
            if locations.insert(key.clone(), location).is_some() {
                return Err(Fault::bad_pickle(format!("storage {} is listed twice", quoted(key))));
            }
        }
        Ok(locations)
    }

    fn location(&self, storage: &StorageName, offset: u64) -> Result<StorageLocation, Fault> {
        let shown = format!("storage {}", quoted(&storage.key));
        let truncated = || Fault::new(ErrorKind::Truncated, format!("the file ends inside {shown}"));
        let mut count = [0; 8];
        let start = offset.checked_add(8).filter(|&start| start <= self.file_bytes).ok_or_else(truncated)?;
        self.file.read_exact_at(&mut count, offset).map_err(|source| Fault::read(&shown, source))?;
        let count = u64::from_le_bytes(count);
        let bytes = count
            .checked_mul(storage.element_bytes)
            .filter(|&bytes| bytes == storage.bytes)
            .ok_or_else(|| {
                Fault::new(
                    ErrorKind::OutOfBounds,
                    format!(
                        "{shown} has {count} elements, but has {} bytes according to the pickle",
                        storage.bytes
                    ),
                )
            })?;
        start.checked_add(bytes).filter(|&end| end <= self.file_bytes).ok_or_else(truncated)?;
        Ok(StorageLocation { name: storage.key.to_string(), offset: start, record_bytes: bytes, crc32: None })
    }
}

/// Finds the ends of further pickles after more of the file has been read. Returns false if even more of it must be
/// read.
fn next_bounds(
    bytes: &[u8],
    unread: u64,
    bounds: &mut [usize; PICKLES + 1],
    found: &mut usize,
) -> Result<bool, Fault> {
    while *found < PICKLES {
        let start = bounds[*found];
        let Some(length) = pickle_length(&bytes[start..], unread)? else { return Ok(false) };
        bounds[*found + 1] = start + length;
        *found += 1;
    }
    Ok(true)
}

fn check_magic(bytes: &[u8]) -> Result<(), Fault> {
    let start = &bytes[..bytes.len().min(MAX_MAGIC_BYTES)];
    match unpickle(start) {
        Ok(Unpickled { root: Value::BigInt(number), .. }) if *number == BigInt::from(MAGIC_NUMBER) => Ok(()),
        _ => Err(Fault::new(
            ErrorKind::BadMagic,
            "it is not a torch.save file: it is another program's pickle, or it is damaged",
        )),
    }
}
