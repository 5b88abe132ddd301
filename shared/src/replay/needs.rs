//! Determines which bytes an entry needs from its capture, and the keys that identify these bytes before they are read.
//!
//! Only headers are read. In a capture store, a storage is identified by its place in a blob. In a file, it is
//! identified by its size and CRC or, without a CRC, by the file's path and the storage's number. When the bytes are
//! read later, their digest is compared with the recording.

use super::{Constant, Digest, Key};
use crate::arguments::{Argument, ArgumentValue};
use crate::capture::{CaptureFile, DType, Storage};
use crate::formula::ALIGNMENT;
use crate::ids::StorageId;
use crate::units::Bytes;

/// The bytes of a tensor that an entry needs, as a range of the tensor's storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    pub key: Key,
    /// The path of the argument, for messages.
    pub name: String,
    pub storage: StorageId,
    /// The offset of the bytes in the storage.
    pub start: u64,
    pub bytes: Bytes,
    /// The address that the bytes have in PyTorch, modulo 64.
    pub phase: u8,
    pub dtype: DType,
    pub shape: Vec<u64>,
}

impl Need {
    pub(super) fn constant(&self) -> Constant {
        Constant {
            key: self.key,
            digest: Digest::UNKNOWN,
            bytes: self.bytes,
            phase: self.phase,
            dtype: self.dtype,
            shape: self.shape.clone(),
        }
    }
}

/// The error for an argument whose bytes cannot be taken from a pool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the argument `{name}` of {entry} is a lazy conjugate or negative, whose values are not in the file (resolve it before saving: `.resolve_conj()`, `.resolve_neg()`)"
)]
pub struct NeedsError {
    pub name: String,
    pub entry: String,
}

/// Returns the needs of a call, in the order of its arguments and without repetitions. Also returns, for every tensor
/// argument, the index of its need, or `None` if the tensor has no elements.
pub fn needs(
    capture: &CaptureFile,
    entry: &str,
    arguments: &[Argument],
) -> Result<(Vec<Need>, Vec<Option<usize>>), NeedsError> {
    let mut needs: Vec<Need> = Vec::new();
    let mut indices = Vec::new();
    for argument in arguments {
        let ArgumentValue::Tensor(tensor) = &argument.value else { continue };
        if tensor.elements() == 0 {
            indices.push(None);
            continue;
        }
        if tensor.conjugate || tensor.negative {
            return Err(NeedsError { name: argument.path.to_string(), entry: entry.to_owned() });
        }
        let range = tensor.byte_range();
        let bytes = Bytes::new(range.end - range.start);
        let key = key(capture, capture.storage(tensor.storage), range.start, bytes);
        let index_of_same = needs.iter().position(|it| it.key == key);
        indices.push(Some(index_of_same.unwrap_or(needs.len())));
        if index_of_same.is_none() {
            needs.push(Need {
                key,
                name: argument.path.to_string(),
                storage: tensor.storage,
                start: range.start,
                bytes,
                phase: (range.start % ALIGNMENT) as u8,
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
            });
        }
    }
    Ok((needs, indices))
}

fn key(capture: &CaptureFile, storage: &Storage, start: u64, bytes: Bytes) -> Key {
    let mut hasher = blake3::Hasher::new();
    match (storage.blob, storage.crc32) {
        (Some(blob), _) => {
            hasher.update(b"blob").update(&blob.0);
            // A store may keep a `.pt` file as a whole, and then all of the file's storages are in the same blob.
            if storage.file_offset != 0 {
                hasher.update(&storage.file_offset.to_le_bytes());
            }
        }
        (None, Some(crc)) => {
            hasher.update(b"crc").update(&crc.to_le_bytes());
        }
        (None, None) => {
            let path = capture.path().as_os_str().as_encoded_bytes();
            hasher.update(b"file").update(&(path.len() as u64).to_le_bytes()).update(path);
            hasher.update(&storage.id.0.to_le_bytes());
        }
    }
    hasher.update(&storage.bytes.get().to_le_bytes());
    hasher.update(&start.to_le_bytes()).update(&bytes.get().to_le_bytes());
    Key(*hasher.finalize().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::capture::store::BlobId;

    #[test]
    fn storages_of_equal_size_in_one_blob_have_different_keys() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/formats/all_dtypes.pt");
        let capture = CaptureFile::open(&path).expect("a capture");
        let storage = |blob, file_offset| Storage {
            id: StorageId(0),
            bytes: Bytes::new(64),
            file_offset,
            blob: Some(BlobId([blob; 32])),
            crc32: None,
            name: "data/0".to_owned(),
        };
        let key = |blob, file_offset| key(&capture, &storage(blob, file_offset), 0, Bytes::new(64));
        assert_eq!(key(1, 128), key(1, 128));
        assert_ne!(key(1, 128), key(1, 256));
        assert_ne!(key(1, 0), key(1, 128));
        assert_ne!(key(1, 128), key(2, 128));
    }
}
