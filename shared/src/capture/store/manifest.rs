//! Defines the manifest of an entry, which contains some bytes of the entry's `.pt` file and says which blobs contain
//! the others.
//!
//! ```text
//!      0  magic "OPTCAPTM"                    64 + 48n  literal bytes, one after the other
//!      8  version u32, segments n u32              end  BLAKE3 of everything before it
//!     16  bytes of the file u64
//!     24  bytes of all literals u64       a segment: bytes u64, kind u64 (0 literal, 1 blob), BLAKE3 of the blob
//!     32  BLAKE3 of the file                         or 32 zeros
//!     64  segments
//! ```
//!
//! Numbers are little-endian. The reader accepts only bytes that have exactly this form.

use super::BlobId;

pub(in crate::capture) const MAGIC: [u8; 8] = *b"OPTCAPTM";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 48;
const DIGEST_BYTES: usize = 32;

/// Largest number of blobs of an entry. The number is limited because the descriptors of all blobs are passed to a
/// runner in one message, and Linux allows 253 descriptors in a message. If an entry has more storages, its smallest
/// ones are kept in the manifest.
pub const MAX_BLOBS: usize = 200;
/// Largest number of literal bytes. Zip structure and pickle take a few KiB. An entry that exceeds the limit becomes a
/// single blob.
pub const MAX_LITERAL_BYTES: u64 = 4 << 20;
/// Largest number of segments. Each blob may have a literal before and after it.
const MAX_SEGMENTS: usize = 2 * MAX_BLOBS + 1;
pub const MAX_MANIFEST_BYTES: u64 =
    (HEAD_BYTES + MAX_SEGMENTS * SEGMENT_BYTES + DIGEST_BYTES) as u64 + MAX_LITERAL_BYTES;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    pub file_bytes: u64,
    /// BLAKE3 of the packed file.
    pub file_digest: BlobId,
    /// The segments in the file's order, without gaps.
    pub segments: Vec<Segment>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Offset in the packed file.
    pub start: u64,
    pub bytes: u64,
    pub content: Content,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// The segment's bytes are in the manifest itself, starting at this offset.
    Literal {
        at: u64,
    },
    Blob(BlobId),
}

/// The reason why bytes are not a manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    #[error("it does not begin like the manifest of a packed capture")]
    Magic,
    #[error("its version is {0}, and this program reads version {VERSION}")]
    Version(u32),
    #[error("its length is not the one that its header gives")]
    Length,
    #[error("{0} (the limit is {1})")]
    Limit(&'static str, u64),
    #[error("segment {0} is damaged")]
    Segment(u32),
    #[error("the sizes of its segments do not add up")]
    Sum,
    #[error("its digest does not match")]
    Digest,
}

impl Manifest {
    /// Parses a whole manifest. There must be exactly as many literal bytes as the literal segments have in total.
    pub fn parse(bytes: &[u8]) -> Result<Self, ManifestError> {
        if bytes.len() as u64 > MAX_MANIFEST_BYTES {
            return Err(ManifestError::Limit("it is too long", MAX_MANIFEST_BYTES));
        }
        if bytes.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(ManifestError::Magic);
        }
        let version = u32_at(bytes, 8)?;
        if version != VERSION {
            return Err(ManifestError::Version(version));
        }
        let (content, digest) = bytes.split_last_chunk::<DIGEST_BYTES>().ok_or(ManifestError::Length)?;
        let count = u32_at(content, 12)? as usize;
        if MAX_SEGMENTS < count {
            return Err(ManifestError::Limit("it has too many segments", MAX_SEGMENTS as u64));
        }
        let literals_at = HEAD_BYTES + count * SEGMENT_BYTES;
        let literal_bytes = u64_at(content, 24)?;
        if content.len().checked_sub(literals_at).map(|length| length as u64) != Some(literal_bytes) {
            return Err(ManifestError::Length);
        }
        if *blake3::hash(content).as_bytes() != *digest {
            return Err(ManifestError::Digest);
        }
        let manifest = Self {
            file_bytes: u64_at(content, 16)?,
            file_digest: blob_id_at(content, 32)?,
            segments: segments(content, count, literals_at as u64)?,
        };
        let last = manifest.segments.last();
        let end = last.map_or(0, |segment| segment.start + segment.bytes);
        let literals: u64 = manifest.literals().map(|segment| segment.bytes).sum();
        if end != manifest.file_bytes || literals != literal_bytes {
            return Err(ManifestError::Sum);
        }
        Ok(manifest)
    }

    /// Encodes the whole manifest; `literals` are the bytes of all literal segments.
    pub fn encode(&self, literals: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.segments.len() * SEGMENT_BYTES + literals.len());
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(u32::try_from(self.segments.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(self.file_bytes.to_le_bytes());
        bytes.extend((literals.len() as u64).to_le_bytes());
        bytes.extend(self.file_digest.0);
        for segment in &self.segments {
            let (kind, digest) = match segment.content {
                Content::Literal { .. } => (0u64, [0; DIGEST_BYTES]),
                Content::Blob(id) => (1, id.0),
            };
            bytes.extend(segment.bytes.to_le_bytes());
            bytes.extend(kind.to_le_bytes());
            bytes.extend(digest);
        }
        bytes.extend(literals);
        let digest = blake3::hash(&bytes);
        bytes.extend(digest.as_bytes());
        bytes
    }

    fn literals(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|segment| matches!(segment.content, Content::Literal { .. }))
    }

    /// Returns every distinct blob with its size.
    pub fn blobs(&self) -> Vec<(BlobId, u64)> {
        let mut blobs: Vec<(BlobId, u64)> = self
            .segments
            .iter()
            .filter_map(|segment| match segment.content {
                Content::Blob(id) => Some((id, segment.bytes)),
                Content::Literal { .. } => None,
            })
            .collect();
        blobs.sort_unstable();
        blobs.dedup();
        blobs
    }

    /// The segment that contains this byte of the file.
    pub fn segment_at(&self, offset: u64) -> Option<&Segment> {
        let after = self.segments.partition_point(|segment| segment.start <= offset);
        self.segments[..after].last().filter(|segment| offset - segment.start < segment.bytes)
    }
}

fn segments(content: &[u8], count: usize, literals_at: u64) -> Result<Vec<Segment>, ManifestError> {
    let mut found: Vec<Segment> = Vec::with_capacity(count);
    let mut sizes = std::collections::BTreeMap::new();
    let (mut start, mut literal_at) = (0u64, literals_at);
    for number in 0..count {
        let at = HEAD_BYTES + number * SEGMENT_BYTES;
        let damaged = || ManifestError::Segment(u32::try_from(number).unwrap_or(u32::MAX));
        let bytes = u64_at(content, at)?;
        let digest = blob_id_at(content, at + 16)?;
        let content = match u64_at(content, at + 8)? {
            0 if digest.0 == [0; DIGEST_BYTES] => Content::Literal { at: literal_at },
            1 if *sizes.entry(digest).or_insert(bytes) == bytes => Content::Blob(digest),
            _ => return Err(damaged()),
        };
        let is_literal = |content| matches!(content, Content::Literal { .. });
        let follows_literal = found.last().is_some_and(|before| is_literal(before.content));
        if bytes == 0 || is_literal(content) && follows_literal {
            return Err(damaged());
        }
        found.push(Segment { start, bytes, content });
        start = start.checked_add(bytes).ok_or_else(damaged)?;
        if is_literal(content) {
            literal_at = literal_at.checked_add(bytes).ok_or_else(damaged)?;
        }
    }
    if MAX_BLOBS < sizes.len() {
        return Err(ManifestError::Limit("it has too many blobs", MAX_BLOBS as u64));
    }
    Ok(found)
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, ManifestError> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(ManifestError::Length)?;
    Ok(u32::from_le_bytes(*found))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64, ManifestError> {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk()).ok_or(ManifestError::Length)?;
    Ok(u64::from_le_bytes(*found))
}

fn blob_id_at(bytes: &[u8], at: usize) -> Result<BlobId, ManifestError> {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .map(|digest| BlobId(*digest))
        .ok_or(ManifestError::Length)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(parts: &[(bool, u16)]) -> (Manifest, Vec<u8>) {
        let (mut segments, mut literals): (Vec<Segment>, Vec<u8>) = (Vec::new(), Vec::new());
        let mut start = 0;
        for &(literal, bytes) in parts {
            let bytes = u64::from(bytes) + 1;
            let before = segments.last().map(|segment| segment.content);
            if literal && matches!(before, Some(Content::Literal { .. })) {
                continue;
            }
            let content = if literal {
                literals.extend((0..bytes).map(|at| at.to_le_bytes()[0]));
                Content::Literal { at: 0 }
            } else {
                Content::Blob(blake3::hash(&bytes.to_le_bytes()).into())
            };
            segments.push(Segment { start, bytes, content });
            start += bytes;
        }
        let mut at = (HEAD_BYTES + segments.len() * SEGMENT_BYTES) as u64;
        for segment in &mut segments {
            if let Content::Literal { at: literal_at } = &mut segment.content {
                *literal_at = at;
                at += segment.bytes;
            }
        }
        (Manifest { file_bytes: start, file_digest: BlobId([7; 32]), segments }, literals)
    }

    /// Recomputes the digest of changed bytes, so that they pass the check of the digest and reach the later checks.
    fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
        if let Some(length) = bytes.len().checked_sub(DIGEST_BYTES) {
            let digest = blake3::hash(&bytes[..length]);
            bytes[length..].copy_from_slice(digest.as_bytes());
        }
        bytes
    }

    proptest! {
        #[test]
        fn manifest_reads_back(parts in prop::collection::vec((any::<bool>(), any::<u16>()), 0..40)) {
            let (manifest, literals) = made(&parts);
            let bytes = manifest.encode(&literals);
            prop_assert_eq!(Manifest::parse(&bytes), Ok(manifest.clone()));
            for segment in &manifest.segments {
                prop_assert_eq!(manifest.segment_at(segment.start), Some(segment));
                prop_assert_eq!(manifest.segment_at(segment.start + segment.bytes - 1), Some(segment));
            }
            prop_assert_eq!(manifest.segment_at(manifest.file_bytes), None);
        }

        #[test]
        fn parser_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut begun = MAGIC.to_vec();
            begun.extend(&bytes);
            let _ = (Manifest::parse(&bytes), Manifest::parse(&begun), Manifest::parse(&sealed(begun.clone())));
        }

        /// A change anywhere is refused. If the digest is corrected too, the change is refused or harmless.
        #[test]
        fn changed_manifest_is_refused_or_consistent(
            parts in prop::collection::vec((any::<bool>(), 0u16..50), 1..8),
            at in any::<prop::sample::Index>(), value: u8, cut: bool,
        ) {
            let (manifest, literals) = made(&parts);
            let encoded = manifest.encode(&literals);
            let at = at.index(encoded.len());
            let mut bytes = encoded.clone();
            if cut { bytes.truncate(at) } else { bytes[at] = value }
            prop_assert_eq!(Manifest::parse(&bytes).is_ok(), bytes == encoded);
            if let Ok(other) = Manifest::parse(&sealed(bytes)) {
                let sum: u64 = other.segments.iter().map(|segment| segment.bytes).sum();
                prop_assert_eq!(sum, other.file_bytes);
            }
        }
    }

    #[test]
    fn inconsistent_manifest_is_refused() {
        let (manifest, literals) = made(&[(true, 9), (false, 99), (true, 9)]);
        let refused = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = manifest.encode(&literals);
            change(&mut bytes);
            Manifest::parse(&sealed(bytes)).expect_err("refused")
        };
        assert_eq!(refused(&|bytes| bytes[8] = 9), ManifestError::Version(9));
        assert_eq!(refused(&|bytes| bytes[16] += 1), ManifestError::Sum);
        assert_eq!(refused(&|bytes| bytes.push(0)), ManifestError::Length);
        // The first segment is one byte longer and the second is one byte shorter, so the literals no longer fit.
        let shifted = |bytes: &mut Vec<u8>| {
            bytes[HEAD_BYTES] += 1;
            bytes[HEAD_BYTES + SEGMENT_BYTES] -= 1;
        };
        assert_eq!(refused(&shifted), ManifestError::Sum);
        let endless = |bytes: &mut Vec<u8>| bytes[HEAD_BYTES + SEGMENT_BYTES..][..8].fill(0xff);
        assert_eq!(refused(&endless), ManifestError::Segment(1));
        assert_eq!(refused(&|bytes| bytes[HEAD_BYTES + 8] = 2), ManifestError::Segment(0));
        assert_eq!(refused(&|bytes| bytes[HEAD_BYTES] = 0), ManifestError::Segment(0));
        assert!(matches!(refused(&|bytes| bytes[13] = 9), ManifestError::Limit(..)));
    }
}
